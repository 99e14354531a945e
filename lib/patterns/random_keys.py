"""Random keys redrawn for every query. Source: Christoffel document, "random m-edge attention"."""

import numpy as np

from lib.errors import require
from lib.patterns.kinds import DrawnPattern, Positive


class RandomKeys(DrawnPattern):
    """Query `i` attends itself, `0 <= d <= window`, and keys drawn without replacement, `budget` in all.

    Where fewer predecessors exist it attends them all. Each query has a draw of its own, and a causal query draws the
    same keys at every length. With `extra`, equal pairs with another pattern are nearly exact.
    """
    name = "random_keys"
    family = "comparator"
    source = "Christoffel document, comparator (random m-edge attention)"

    budget: Positive = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.budget >= self.near, "budget", self.budget, f"at least {self.near}, the keys of the window")

    def links(self, layer, length, head):
        rng = self.rng(layer)
        for i in range(length):
            near = np.arange(max(0, i - self.window), min(length, i + 1 if self.causal else i + self.window + 1))
            before, after = near[0], 0 if self.causal else length - 1 - near[-1]        # keys outside the window
            count = min(self.with_extra(self.budget, i) - len(near), before + after)
            drawn = rng.choice(before + after, count, replace=False)
            yield i, [*near, *np.where(drawn < before, drawn, drawn + len(near))]

    def attends(self, i, j, layer, length, head):
        return (abs(i - j) <= self.window) | self.drawn(i, j, layer, length, head)

    def layer_pairs(self, layer, length):
        i = np.arange(length)
        return float(np.minimum(self.with_extra(self.budget, i), i + 1 if self.causal else length).sum())

    shown = [dict(budget=4, layers=4), dict(budget=6, extra=512, window=2, layers=4, seed=1),
             dict(budget=6, window=1, causal=False)]
