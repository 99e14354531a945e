"""Which keys a call attends, under a number: an operator of PyTorch takes tensors and numbers, no patterns."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from lib.attention.call import CACHE, Call
from lib.attention.cpu.plans import (Edges, Shifts, edges_plan, learned_plan,
                                     shifts_plan)
from lib.errors import SuiteError
from lib.patterns.base import EdgeTable, Keys, LearnedOffsets, Pattern


@dataclass(frozen=True, eq=False)
class Rule:
    """Keys at T tokens, and ALiBi's slopes `[H]` (zeros without)."""
    number: int
    pattern: Pattern | None         # without one, the keys themselves
    bare: Keys | None
    layer: int
    T: int
    heads: int
    slopes: np.ndarray

    @property
    def keys(self) -> Keys:
        """Not held here, where a pattern can make them again: tables of many lengths would fill the memory."""
        return self.bare if self.pattern is None else self.pattern.plan(self.layer, self.T)

    def plan(self, alpha: float | None) -> Shifts | Edges:
        """Kept, if memory allows, for the next call; of learned keys the one of this alpha only."""
        return CACHE.get(("cpu", self.number), lambda: _Kept(self._plan(alpha), alpha),
                         stale=lambda kept: kept.alpha != alpha).plan

    def _plan(self, alpha: float | None) -> Shifts | Edges:
        keys = self.keys
        if isinstance(keys, EdgeTable):
            return edges_plan(keys, self.T)
        return learned_plan(keys, alpha, self.T) if isinstance(keys, LearnedOffsets) else shifts_plan(keys, self.T)

    def saved(self, batch: int) -> int:
        """Numbers that a forward pass keeps for its derivative: weights, and of rungs the farther key's product minus the
        nearer one's. With a learned alpha an upper bound, which does not depend on it.
        """
        match self.keys:
            case EdgeTable(keys=table):
                return batch * self.heads * self.T * row_length(table.shape[-1])
            case LearnedOffsets(window=window, base=base):
                columns = min(window, self.T - 1) + 1 + 2 * len(base)
            case _:
                columns = self.plan(None).columns
        return batch * self.heads * columns * column_length(self.T)

    def bias(self, plan: Shifts, alpha: float | None, learned: np.ndarray | None) -> np.ndarray:
        """What is added to the logits of the columns but the leading keys', `[H, plain + R]`."""
        columns = plan.plain + len(plan.base)
        found = np.zeros((self.heads, columns)) if learned is None else learned[:, :columns].astype(np.float64)
        return found + plan.alibi(self.slopes, alpha) if self.slopes.any() else found


@dataclass(frozen=True)
class _Kept:
    plan: Shifts | Edges
    alpha: float | None

    @property
    def nbytes(self) -> int:
        return self.plan.nbytes


def column_length(T: int) -> int:
    """Numbers from column to column: an odd number of cache lines, so that columns do not compete for the same place in it."""
    return (-(-T // 16) | 1) * 16


def row_length(C: int) -> int:
    """Numbers from query to query of an edge table's weights: whole cache lines."""
    return -(-C // 16) * 16


TABLES = 64         # edge tables of callers' own that are remembered: they may be large, and other ones in every call
_rules: dict[int, Rule] = {}
_numbers: dict[Hashable, int] = {}
_own_tables: deque[Hashable] = deque()
_next = itertools.count()
_lock = threading.Lock()


def number_of(call: Call) -> int:
    """The number of the call's rule; equal calls have equal numbers. Rules of patterns stay: compiled programs hold them."""
    identity = call.identity
    with _lock:
        if identity not in _numbers:
            B, H, G, T, D = call.shape
            slopes = np.zeros(H) if call.slopes is None else call.slopes.detach().double().cpu().numpy()
            bare = call.keys if call.pattern is None else None
            rule = Rule(next(_next), call.pattern, bare, call.layer, T, H, slopes)
            _rules[rule.number], _numbers[identity] = rule, rule.number
            if isinstance(bare, EdgeTable):
                _own_tables.append(identity)
                if len(_own_tables) > TABLES:
                    _rules.pop(_numbers.pop(_own_tables.popleft()), None)
        return _numbers[identity]


def rule_of(number: int) -> Rule:
    if number not in _rules:
        raise SuiteError(f"the edge table of a compiled call is gone: the last {TABLES} are kept; make a Pattern of it, whose "
                         "tables are remembered")
    return _rules[number]


def remember(rule: Rule) -> None:
    """Of a derivative, which holds its rule: the number is good again."""
    _rules.setdefault(rule.number, rule)
