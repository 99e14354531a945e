"""DilateFormer: windows dilated by head. Source: Jiao et al. 2023, arXiv 2302.01791, section 3."""

from __future__ import annotations

from dataclasses import dataclass

from lib.errors import require
from lib.patterns.base import PerHead, whole
from lib.patterns.kinds import Windowed


@dataclass(frozen=True, kw_only=True)
class DilateFormer(Windowed):
    """Query `i` attends `j` where `d = r * n` with `0 <= n <= window`; `|n| <= window` in an encoder, as in the paper.

    Head h has the dilation `r = dilations[h mod len(dilations)]`. Keys beyond the ends do not exist (the paper pads).
    """
    name = "dilate_former"
    family = "literature"
    source = "arxiv.org/abs/2302.01791 (DilateFormer), sections 3.1 (dilated window) and 3.2 (dilation by head)"
    bidirectional = True

    window: PerHead = 8
    dilations: tuple[int, ...] = (1, 2, 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = isinstance(self.dilations, tuple) and self.dilations and all(whole(r, 1) for r in self.dilations)
        require(bool(allowed), "dilations", self.dilations, "a tuple of integers of at least 1")

    def dilation(self, head: int) -> int:
        return self.dilations[head % len(self.dilations)]

    def distances(self, layer, length, head):
        step = self.dilation(head)
        return range(0, min(step * self.widths[layer][head], length - 1) + 1, step)

    def attends(self, i, j, layer, length, head):
        d, step = abs(i - j), self.dilation(head)
        return (d % step == 0) & (d // step <= self.widths[layer][head])

    @classmethod
    def examples(cls):
        return [cls(window=4, heads=4), cls(window=3, dilations=(1, 4), heads=2, causal=False)]
