"""Adaptive span: a window with a soft end whose place each head learns. Source: Sukhbaatar et al. 2019."""

from __future__ import annotations

from dataclasses import dataclass

from lib.errors import require
from lib.patterns.base import (Knob, Pattern, PerHead, SoftWindow, per_head,
                               whole)


@dataclass(frozen=True, kw_only=True)
class AdaptiveSpan(Pattern):
    """Query `i` attends `j` where `0 <= d <= window`, weighted `clamp((span_h + ramp - d) / ramp, 0, 1)` before normalising.

    The spans, one a head, belong to the model; the oracle mask is that of spans >= window. `window` is the paper's S - 1,
    `ramp` its R.
    """
    name = "adaptive_span"
    family = "literature"
    source = "arxiv.org/abs/1905.07799 (Adaptive Attention Span), soft masking function m_z"
    learned = "span"

    window: PerHead = 32            # one for all layers, or one a layer
    ramp: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        require(whole(self.ramp, 1), "ramp", self.ramp, "an integer of at least 1")
        _ = self.widths

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(row[0] for row in per_head(self.window, self.layers, 1, "window"))

    def keys(self, layer, length):
        return SoftWindow(self.widths[layer], self.ramp)

    def attends(self, i, j, layer, length, head):
        return i - j <= self.widths[layer]

    def knobs(self, length):
        return (Knob("window", range(length), "layer"),)

    @classmethod
    def examples(cls):
        return [cls(window=10, ramp=4, layers=4, heads=2)]
