"""Dense attention: every key, `d >= 0`; bidirectional every key of the sequence. Source: Vaswani et al. 2017."""

import numpy as np

from lib.patterns.kinds import OffsetPattern


class Dense(OffsetPattern):
    """Query `i` attends `j` where `0 <= i - j` (any `j` when bidirectional)."""
    name = "dense"
    family = "comparator"
    source = "arxiv.org/abs/1706.03762, section 3.2.1"

    def distances(self, layer, length, head):
        return range(length)

    def attends(self, i, j, layer, length, head):
        return np.ones(np.broadcast_shapes(i.shape, j.shape), bool)

    shown = [dict(), dict(causal=False)]
