"""Local window: `0 <= d <= W`; bidirectional `|d| <= W`. Sources: Fibonacci document (control), Longformer."""

from __future__ import annotations

from dataclasses import dataclass

from lib.errors import require
from lib.patterns.base import Offsets, Pattern


@dataclass(frozen=True, kw_only=True)
class Local(Pattern):
    """Query `i` attends `j` where `0 <= i - j <= window` (`|i - j| <= window` when bidirectional)."""
    name = "local"
    family = "comparator"
    source = "Fibonacci document, equal-edge control; arxiv.org/abs/2004.05150 (Longformer), section 3.1"
    bidirectional = True

    window: int | tuple[int, ...] = 8      # one for all layers, or one a layer

    def __post_init__(self) -> None:
        super().__post_init__()
        for width in self.widths:
            require(isinstance(width, int) and width >= 0, "window", self.window, "integers W >= 0 (W + 1 keys a query)")
        require(len(self.widths) == self.layers, "window", self.window, f"one integer, or one for each of {self.layers} layers")

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.window,) * self.layers if isinstance(self.window, int) else self.window

    def keys(self, layer, length):
        reach = min(self.widths[layer], length - 1)
        return Offsets(tuple(range(0 if self.causal else -reach, reach + 1)), causal=self.causal)

    def attends(self, i, j, layer, length, head):
        return abs(i - j) <= self.widths[layer]

    @classmethod
    def examples(cls):
        return [cls(window=3), cls(window=(1, 2, 3, 4), layers=4), cls(window=3, causal=False)]
