"""Random offsets shared by all queries: a window and `count` far distances drawn once. Source: design, comparators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lib.errors import require
from lib.patterns.base import Knob, whole
from lib.patterns.kinds import Windowed


@dataclass(frozen=True, kw_only=True)
class RandomOffsets(Windowed):
    """Query `i` attends `j` where `0 <= d <= window` or `d` is one of `count` distances with `window < d <= reach`.

    The distances are drawn without replacement, uniformly, anew in each layer unless `per_layer` is off. `reach=None` means
    `length - 1`, so that another length draws other distances; give `reach` to keep them (as `match_edges` does).
    More than there are means all of them.
    """
    name = "random_offsets"
    family = "comparator"
    source = "Christoffel document, comparator (random m-edge attention), with one draw for all queries"
    bidirectional = True

    count: int = 10
    reach: int | None = None
    per_layer: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(whole(self.count), "count", self.count, "an integer of at least 0")
        require(self.reach is None or whole(self.reach, 1), "reach", self.reach, "None or a distance of at least 1")
        require(whole(self.seed), "seed", self.seed, "an integer of at least 0")

    def far(self, layer, length, head):
        reach = length - 1 if self.reach is None else self.reach
        order = np.random.default_rng([self.seed, layer if self.per_layer else 0]).permutation(reach) + 1
        return order[order > self.widths[layer][head]][:self.count].tolist()

    def attends(self, i, j, layer, length, head):
        d, drawn = abs(i - j), np.zeros(length, bool)
        drawn[[far for far in self.far(layer, length, head) if far < length]] = True
        return (d <= self.widths[layer][head]) | drawn[d]

    def knobs(self, length):
        frozen = Knob("reach", [length - 1 if self.reach is None else self.reach])
        return frozen, Knob("count", range(length)), Knob("window", range(self.widest, length), "head")

    @classmethod
    def examples(cls):
        return [cls(count=4, window=2, layers=4), cls(count=3, window=0, reach=20, per_layer=False, layers=4, seed=1),
                cls(count=4, window=2, causal=False)]
