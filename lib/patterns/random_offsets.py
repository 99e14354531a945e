"""Random offsets shared by all queries: a window and `count` far distances drawn once. Source: design, comparators."""

import numpy as np

from lib.patterns.kinds import Count, Knob, Positive, Windowed


class RandomOffsets(Windowed):
    """Query `i` attends `j` where `0 <= d <= window` or `d` is one of `count` distances with `window < d <= reach`.

    The distances are drawn without replacement, uniformly, anew in each layer unless `per_layer` is off. `reach=None`
    is `length - 1`, so that another length draws other distances; give `reach` to keep them (as `match_edges` does).
    Where fewer than `count` exist, all of them are keys.
    """
    name = "random_offsets"
    family = "comparator"
    source = "Christoffel document, comparator (random m-edge attention), with one draw for all queries"

    count: Count = 10
    reach: Positive | None = None
    per_layer: bool = True
    seed: Count = 0

    def far(self, layer, length, head):
        rng = np.random.default_rng([self.seed, layer if self.per_layer else 0])
        order = rng.permutation(self.reach or length - 1) + 1
        return order[order > self.widths[layer][head]][:self.count].tolist()

    def attends(self, i, j, layer, length, head):
        d, drawn = abs(i - j), np.zeros(length, bool)
        drawn[[far for far in self.far(layer, length, head) if far < length]] = True
        return (d <= self.widths[layer][head]) | drawn[d]

    def knobs(self, length):
        frozen = Knob("reach", [self.reach or length - 1])
        return frozen, Knob("count", range(length)), Knob("window", range(self.widest, length), "head")

    shown = [dict(count=4, window=2, layers=4), dict(count=3, window=0, reach=20, per_layer=False, layers=4, seed=1),
             dict(count=4, window=2, causal=False)]
