"""Random keys redrawn for every query. Source: Christoffel document, "random m-edge attention"."""

from dataclasses import dataclass

import numpy as np

from lib.errors import require
from lib.patterns.base import Knob
from lib.patterns.kinds import PARTS, RowPattern, row_budgets
from lib.registry import Count, Positive


@dataclass(frozen=True, kw_only=True)
class RandomKeys(RowPattern):
    """Query `i` attends itself, `0 <= d <= window`, and keys drawn without replacement, `budget` in all.

    Where fewer predecessors exist it attends them all. Each query and layer has a draw of its own (the layers share one
    where `per_layer` is off), and a causal query draws the same keys at every length. `extra` of every 1024 queries
    draw one key more, so that equal pairs with another pattern are nearly exact.
    """
    name = "random_keys"
    family = "comparator"
    source = "Christoffel document, comparator (random m-edge attention)"

    budget: Positive = 16
    extra: Count = 0
    window: Count = 0
    per_layer: bool = True
    seed: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.budget >= self.near, "budget", self.budget, f"at least {self.near}, the keys of the window")
        require(self.extra < PARTS, "extra", self.extra, f"0 to {PARTS - 1} of every {PARTS} queries")

    @property
    def near(self) -> int:
        """Keys of the window, the query included."""
        return (1 if self.causal else 2) * self.window + 1

    def links(self, layer, length, head):
        rng = np.random.default_rng([self.seed, layer if self.per_layer else 0])
        for i in range(length):
            budget = row_budgets(self.budget, self.extra, i)
            near = np.arange(max(0, i - self.window), min(length, i + 1 if self.causal else i + self.window + 1))
            before, after = near[0], 0 if self.causal else length - 1 - near[-1]        # keys outside the window
            drawn = rng.choice(before + after, min(budget - len(near), before + after), replace=False)
            yield i, [*near, *np.where(drawn < before, drawn, drawn + len(near))]

    def attends(self, i, j, layer, length, head):
        return (abs(i - j) <= self.window) | self.drawn(i, j, layer, length, head)

    def layer_pairs(self, layer, length):
        i = np.arange(length)
        return float(np.minimum(row_budgets(self.budget, self.extra, i), i + 1 if self.causal else length).sum())

    def knobs(self, length):
        return Knob("budget", range(self.near, self.near + length)), Knob("extra", range(PARTS))

    @classmethod
    def examples(cls):
        return [cls(budget=4, layers=4), cls(budget=6, extra=512, window=2, layers=4, seed=1),
                cls(budget=6, window=1, causal=False)]
