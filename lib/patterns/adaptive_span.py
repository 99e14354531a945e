"""Adaptive span: a window with a soft end whose place each head learns. Source: Sukhbaatar et al. 2019."""

from lib.patterns.kinds import LearnedPattern, PerLayer, Positive, SoftWindow


class AdaptiveSpan(LearnedPattern):
    """Query `i` attends `j` where `0 <= d <= window`, with the weight `clamp((span_h + ramp - d) / ramp, 0, 1)`.

    The weight applies before normalising. The spans, one a head, belong to the model; the oracle mask has
    spans >= window. `window` is the paper's S - 1, `ramp` its R.

    A span is `window * sigmoid(theta)`, where the paper clamps: outside a clamp nothing pulls a span back. The paper's
    penalty of 2e-6 nats per token of span is left out: it would be 1e-4 nats at the windows used here.
    """
    name = "adaptive_span"
    family = "literature"
    source = "arxiv.org/abs/1905.07799 (Adaptive Attention Span), soft masking function m_z"
    learned = "span"

    window: PerLayer = 32
    ramp: Positive = 8

    @property
    def thetas(self) -> tuple[tuple[float, ...], ...]:
        """theta of each layer and head at start: half the window, so that a span can grow or shrink."""
        return ((0.0,) * self.heads,) * self.layers

    def arguments(self, theta, layer):
        return {"span": self.widths[layer][0] * theta.sigmoid()}

    def keys(self, layer, length):
        return SoftWindow(self.widths[layer][0], self.ramp)

    def attends(self, i, j, layer, length, head):
        return i - j <= self.widths[layer][head]

    shown = [dict(window=10, ramp=4, layers=4, heads=2)]
