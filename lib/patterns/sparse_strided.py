"""Sparse Transformer, strided: the last l keys, and every l-th. Source: Child et al. 2019, section 4.3."""

from math import isqrt
from typing import Literal

from lib.patterns.kinds import Knob, Pattern, PerHead, Positive, Windowed

Arrangement = Literal["merged", "layers", "heads"]


def factors(arrange: str, layer: int, head: int) -> tuple[bool, bool]:
    """Whether a head has the near and the far factor: both when merged, else in turn by layer or head (section 5.1)."""
    if arrange == "merged":
        return True, True
    turn = (layer if arrange == "layers" else head) % 2
    return turn == 0, turn == 1


def split(pattern: Pattern) -> tuple[str, ...]:
    """Arrangements that `match_edges` may choose: where merged heads have too many pairs, the factors are dealt out."""
    if pattern.arrange != "merged" or pattern.heads == pattern.layers == 1:
        return (pattern.arrange,)
    return ("heads" if pattern.heads > 1 else "layers", "merged")


class SparseStrided(Windowed):
    """Query `i` attends itself; near factor: `0 <= d <= window`; far factor: `d mod stride = 0`.

    `window` None is the stride, as in the paper. `arrange`: each head has both factors (`merged`), or one, in turn by
    `layers` or by `heads`.
    """
    name = "sparse_strided"
    family = "literature"
    source = "arxiv.org/abs/1904.10509 (Sparse Transformer), sections 4.3 (strided) and 5.1 (arrange)"

    stride: Positive = 16
    window: PerHead | None = None
    arrange: Arrangement = "merged"

    @property
    def by_head(self):
        return "stride" if self.window is None else "window"

    def band(self, layer, head):
        near, _ = factors(self.arrange, layer, head)
        return self.widths[layer][head] * near, 1

    def far(self, layer, length, head):
        _, far = factors(self.arrange, layer, head)
        return range(0, length, self.stride) if far else ()

    def attends(self, i, j, layer, length, head):
        d = abs(i - j)
        near, far = factors(self.arrange, layer, head)
        return (near & (d <= self.widths[layer][head])) | (far & (d % self.stride == 0)) | (d == 0)

    def knobs(self, length):
        windows = Knob("window", range(self.widest, length), "head")
        arrangements = Knob("arrange", split(self))
        if self.window is not None:
            return arrangements, Knob("stride", range(length, 0, -1)), windows
        # A longer stride has fewer far keys but a wider window: pairs grow from about the root of half the length on
        cheapest = max(1, isqrt(length // 2))
        return arrangements, Knob("stride", range(cheapest, length + 1)), windows

    shown = [dict(stride=6), dict(stride=5, arrange="layers", layers=4),
             dict(stride=5, arrange="heads", heads=2, causal=False)]
