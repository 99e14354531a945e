"""Adaptive span: a window with a soft end whose place each head learns. Source: Sukhbaatar et al. 2019."""

from dataclasses import dataclass

from lib.patterns.base import PerHead, SoftWindow
from lib.patterns.kinds import LearnedPattern
from lib.registry import Positive


@dataclass(frozen=True, kw_only=True)
class AdaptiveSpan(LearnedPattern):
    """Query `i` attends `j` where `0 <= d <= window`, with the weight `clamp((span_h + ramp - d) / ramp, 0, 1)`.

    The weight applies before normalising. The spans, one a head, belong to the model; the oracle mask has
    spans >= window. `window` is the paper's S - 1, `ramp` its R.
    """
    name = "adaptive_span"
    family = "literature"
    source = "arxiv.org/abs/1905.07799 (Adaptive Attention Span), soft masking function m_z"
    learned = "span"

    window: PerHead = 32            # one for all layers, or one a layer
    ramp: Positive = 8

    def keys(self, layer, length):
        return SoftWindow(self.widths[layer], self.ramp)

    def attends(self, i, j, layer, length, head):
        return i - j <= self.widths[layer]

    @classmethod
    def examples(cls):
        return [cls(window=10, ramp=4, layers=4, heads=2)]
