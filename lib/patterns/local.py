"""Local window: `0 <= d <= W`; bidirectional `|d| <= W`. Sources: Fibonacci document (control), Longformer."""

from lib.patterns.kinds import Windowed


class Local(Windowed):
    """Query `i` attends `j` where `0 <= i - j <= window` (`|i - j| <= window` when bidirectional)."""
    name = "local"
    family = "comparator"
    source = "Fibonacci document, equal-edge control; arxiv.org/abs/2004.05150 (Longformer), section 3.1"

    def attends(self, i, j, layer, length, head):
        return abs(i - j) <= self.widths[layer][head]

    shown = [dict(window=3), dict(window=(1, 2, 3, 4), layers=4),
             dict(window=((2, 3), 4, (0, 9), 1), layers=4, heads=2), dict(window=3, causal=False)]
