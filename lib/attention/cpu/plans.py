"""What the kernels need to know of keys, as arrays: built once for the keys, the number of tokens and the heads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lib.attention.call import Call
from lib.attention.keys import check_table, distances_at, offsets_by_head, order_by_key, refuse_empty
from lib.patterns.base import EdgeTable, HeadOffsets, LearnedOffsets, Offsets, SoftWindow
from lib.patterns.learned import fractional_rungs


@dataclass(frozen=True, eq=False)
class Shifts:
    """Keys at distances. The words are those of `lib.attention.cpu.shifts`."""
    shifts: np.ndarray              # int32 [H or 1, N]
    counts: np.ndarray              # int64 [H or 1]
    leading: np.ndarray             # int64 [H or 1]
    causal: bool
    plain: int
    rungs: np.ndarray               # int32 [R, 2]
    fractions: np.ndarray           # float64 [R]
    base: np.ndarray                # float64 [R], a rung's distance at alpha = 1
    alpha: float | None

    @property
    def nbytes(self) -> int:
        return self.shifts.nbytes

    @property
    def products(self) -> int:
        """Rows of S: integer shifts and leading keys."""
        return self.shifts.shape[1] + int(self.leading.max())

    @property
    def columns(self) -> int:
        """C"""
        return self.plain + len(self.rungs) + int(self.leading.max())

    def bias(self, slopes: np.ndarray, learned: np.ndarray | None) -> np.ndarray:
        """Bias `[H, plain + R]` of the columns but the leading keys': `learned`, and ALiBi's `-slope * distance`."""
        bias = np.zeros((len(slopes), self.plain + len(self.base))) if learned is None else learned
        if not slopes.any():
            return bias
        near = np.abs(self.shifts[:, :self.plain].astype(np.float64))
        rungs = np.broadcast_to(self.base * (1.0 if self.alpha is None else self.alpha), (len(near), len(self.base)))
        return bias - slopes[:, None] * np.concatenate([near, rungs], 1)


@dataclass(frozen=True, eq=False)
class Edges:
    """Keys of every query, and the transpose. The words are those of `lib.attention.cpu.edges`."""
    keys: np.ndarray                # int32 [H or 1, T, C]
    counts: np.ndarray              # int32 [H or 1, T]
    starts: np.ndarray              # int64 [H or 1, T + 1]
    queries: np.ndarray             # int32 [H or 1, E], E the most edges of a head
    slots: np.ndarray               # int32 [H or 1, E]
    alpha: None = None

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.queries.nbytes + self.slots.nbytes


def build(call: Call) -> Shifts | Edges:
    """The plan of a call; with a learned alpha that of its present value."""
    T = call.q.shape[2]
    match call.keys:
        case EdgeTable():
            return _edges(call.keys, T)
        case LearnedOffsets():
            return _learned(call.keys, call.alpha_value, T)
    return _shifts(call.keys, T)


def _shifts(keys: Offsets | HeadOffsets | SoftWindow, T: int) -> Shifts:
    heads = offsets_by_head(keys)
    distances = [distances_at(offsets, T) for offsets in heads]
    counts = np.array([len(row) for row in distances])
    shifts = np.zeros((len(heads), max(counts)), np.int32)
    for row, of_head in zip(shifts, distances, strict=True):
        row[:len(of_head)] = of_head
    leading, none = np.array([min(offsets.leading, T) for offsets in heads]), np.zeros(0)
    no_rungs = np.zeros((0, 2), np.int32)
    return Shifts(shifts, counts, leading, heads[0].causal, shifts.shape[1], no_rungs, none, none, None)


def _learned(keys: LearnedOffsets, alpha: float, T: int) -> Shifts:
    """The window and the rungs at `alpha * f`: the shifts `floor(alpha * f)` and the next, each once."""
    rungs = fractional_rungs(keys.base, keys.window, alpha, T)
    plain = min(keys.window, T - 1) + 1
    low = np.array([lo for lo, _, _ in rungs], np.int64)
    shifts = np.union1d(np.arange(plain), np.concatenate([low, low + 1]))
    places = np.stack([np.searchsorted(shifts, low), np.searchsorted(shifts, low + 1)], 1)
    fractions, base = (np.array([float(rung[at]) for rung in rungs]) for at in (1, 2))
    return Shifts(shifts.astype(np.int32)[None], np.array([len(shifts)]), np.array([0]), True, plain,
                  places.astype(np.int32), fractions, base, alpha)


def _edges(keys: EdgeTable, T: int) -> Edges:
    check_table(keys, T)
    table = np.ascontiguousarray(keys.keys, np.int32).reshape(-1, T, keys.keys.shape[-1])
    counts = (table >= 0).sum(-1, dtype=np.int32)
    refuse_empty(counts > 0)
    starts = np.zeros((len(table), T + 1), np.int64)
    queries, slots = np.zeros((2, len(table), int(counts.sum(1).max())), np.int32)
    for h, of_head in enumerate(table):
        query, slot = np.nonzero(of_head >= 0)
        key = of_head[query, slot]
        order = order_by_key(key, T)
        queries[h, :len(order)], slots[h, :len(order)] = query[order], slot[order]
        starts[h, 1:] = np.bincount(key, minlength=T).cumsum()
    return Edges(table, counts, starts, queries, slots)
