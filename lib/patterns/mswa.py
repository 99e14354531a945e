"""MSWA: windows that widen over heads and over layers. Source: Xu et al. 2025, arXiv 2501.01039, section 3."""

from lib.patterns.kinds import Knob, PerHead, Windowed


class MSWA(Windowed):
    """Query `i` attends `j` where `0 <= d <= W_lh`, `W_lh = window * s_l * s_h` rounded down.

    Layers from shallow to deep fall into four groups with `s_l` = 1/4, 1/2, 1, 2, and so do the heads of a layer
    (`s_h`): windows go from window/16 to 4 window, with the mean 0.88 window.
    """
    name = "mswa"
    family = "literature"
    source = "arxiv.org/abs/2501.01039 (MSWA), section 3: head groups and layer groups at w/4, w/2, w, 2w"

    window: PerHead = 16

    def band(self, layer, head):
        doublings = 4 * layer // self.layers + 4 * head // self.heads       # group of the layer and of the head: 0 to 6
        return self.widths[layer][head] * 2 ** doublings // 16, 1

    def attends(self, i, j, layer, length, head):
        scales = [0.25, 0.5, 1.0, 2.0]
        scale = scales[layer * 4 // self.layers] * scales[head * 4 // self.heads]
        return abs(i - j) <= scale * self.widths[layer][head]

    def knobs(self, length):
        return (Knob("window", range(16 * length), "head"),)

    shown = [dict(window=12, layers=4, heads=4), dict(window=8, layers=8, heads=2, causal=False)]
