"""PowerAttention: a window, and the blocks at distances that are powers of two. Source: Chen et al. 2025."""

import numpy as np

from lib.patterns.kinds import Knob, PerHead, Positive, RowPattern


class PowerAttention(RowPattern):
    """Query `i` attends `j` where `0 <= d <= window` or `i // block - j // block` is a power of two.

    In an encoder `|d| <= window`, and blocks on both sides.
    """
    name = "power_attention"
    family = "literature"
    source = "arxiv.org/abs/2503.03588 (PowerAttention): window and power-of-two blocks, the same in every layer"
    by_head = "window"

    window: PerHead = 7
    block: Positive = 4

    def links(self, layer, length, head):
        i, reach = np.arange(length)[:, None], min(self.widths[layer][head], length - 1)
        yield i, i + np.arange(-reach, reach + 1)
        for hop in (1 << n for n in range(length.bit_length())):
            for block in (i // self.block - hop, i // self.block + hop):
                yield i, block * self.block + np.arange(self.block)

    def attends(self, i, j, layer, length, head):
        hop = abs(i // self.block - j // self.block)
        return (abs(i - j) <= self.widths[layer][head]) | ((hop > 0) & (hop & (hop - 1) == 0))

    def knobs(self, length):
        return Knob("block", range(1, self.block + 1)), Knob("window", range(length), "head")

    shown = [dict(window=3), dict(window=((1, 2), 3, 0, 4), block=3, layers=4, heads=2),
             dict(window=2, block=2, causal=False)]
