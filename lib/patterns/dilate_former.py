"""DilateFormer: windows dilated by head. Source: Jiao et al. 2023, arXiv 2302.01791, section 3."""

from lib.errors import require
from lib.patterns.kinds import PerHead, Positive, Windowed


class DilateFormer(Windowed):
    """Query `i` attends `j` where `d = r * n` with `0 <= n <= window`; `|n| <= window` in an encoder, as in the paper.

    Head h has the dilation `r = dilations[h mod len(dilations)]`. Keys beyond the ends do not exist (the paper pads).
    """
    name = "dilate_former"
    family = "literature"
    source = "arxiv.org/abs/2302.01791 (DilateFormer), sections 3.1 (dilated window) and 3.2 (dilation by head)"

    window: PerHead = 8
    dilations: tuple[Positive, ...] = (1, 2, 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.dilations) >= 1, "dilations", self.dilations, "at least one dilation")

    def band(self, layer, head):
        return self.widths[layer][head], self.dilations[head % len(self.dilations)]

    def attends(self, i, j, layer, length, head):
        d, (width, dilation) = abs(i - j), self.band(layer, head)
        return (d % dilation == 0) & (d // dilation <= width)

    shown = [dict(window=4, heads=4), dict(window=3, dilations=(1, 4), heads=2, causal=False)]
