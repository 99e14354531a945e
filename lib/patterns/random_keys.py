"""Random keys redrawn for every query. Source: Christoffel document, "random m-edge attention"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lib.errors import require
from lib.patterns.base import Knob, whole
from lib.patterns.draws import PARTS, row_budgets
from lib.patterns.kinds import RowPattern


@dataclass(frozen=True, kw_only=True)
class RandomKeys(RowPattern):
    """Query `i` attends itself, `0 <= d <= window`, and keys drawn without replacement, `budget` in all.

    Where fewer predecessors exist it attends them all. The draw is anew for each query and layer (unless `per_layer` is
    off), and a causal query draws the same keys at every length. `extra` of every 1024 queries draw one key more: it makes
    equal pairs with another pattern nearly exact.
    """
    name = "random_keys"
    family = "comparator"
    source = "Christoffel document, comparator (random m-edge attention)"
    bidirectional = True

    budget: int = 16
    extra: int = 0
    window: int = 0
    per_layer: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(whole(self.window), "window", self.window, "an integer W >= 0")
        least = (1 if self.causal else 2) * self.window + 1
        require(whole(self.budget, least), "budget", self.budget, f"an integer of at least {least}, the keys of the window")
        require(whole(self.extra) and self.extra < PARTS, "extra", self.extra, f"0 to {PARTS - 1} of every {PARTS} queries")
        require(whole(self.seed), "seed", self.seed, "an integer of at least 0")

    def links(self, layer, length, head):
        rng = np.random.default_rng([self.seed, layer if self.per_layer else 0])
        for i in range(length):
            budget = row_budgets(self.budget, self.extra, i)
            near = np.arange(max(0, i - self.window), min(length, i + 1 if self.causal else i + self.window + 1))
            before, after = near[0], 0 if self.causal else length - 1 - near[-1]        # keys that are not in the window
            drawn = rng.choice(before + after, min(budget - len(near), before + after), replace=False)
            yield i, [*near, *np.where(drawn < before, drawn, drawn + len(near))]

    def attends(self, i, j, layer, length, head):
        drawn = np.zeros((length, length), bool)
        for query, keys in self.links(layer, length, head):
            drawn[query, keys] = True
        return (abs(i - j) <= self.window) | drawn[i, j]

    def layer_pairs(self, layer, length):
        i = np.arange(length)
        return float(np.minimum(row_budgets(self.budget, self.extra, i), i + 1 if self.causal else length).sum())

    def knobs(self, length):
        least = (1 if self.causal else 2) * self.window + 1
        return Knob("budget", range(least, least + length)), Knob("extra", range(PARTS))

    @classmethod
    def examples(cls):
        return [cls(budget=4, layers=4), cls(budget=6, extra=512, window=2, layers=4, seed=1),
                cls(budget=6, window=1, causal=False)]
