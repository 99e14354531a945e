"""Fixed stride: every s-th key, `d mod s = 0`, and a window. Source: Christoffel document (fixed strided attention)."""

from lib.patterns.kinds import Knob, PerHead, Positive, Windowed


class Strided(Windowed):
    """Query `i` attends `j` where `0 <= d <= window`, or `d >= 0` and `d mod stride = 0` (encoder: `d = |i - j|`)."""
    name = "strided"
    family = "comparator"
    source = "Christoffel document, comparator; arxiv.org/abs/1904.10509 (Sparse Transformer), section 4.3, far factor"

    stride: Positive = 8                # 1 is dense
    window: PerHead = 0

    def far(self, layer, length, head):
        return range(0, length, self.stride)

    def attends(self, i, j, layer, length, head):
        d = abs(i - j)
        return (d <= self.widths[layer][head]) | (d % self.stride == 0)

    def knobs(self, length):
        return Knob("stride", range(length, 0, -1)), Knob("window", range(self.widest, length), "head")

    shown = [dict(stride=4), dict(stride=6, window=2), dict(stride=4, window=1, causal=False)]
