"""Learned alpha: rungs at real distances, interpolated. Source: Fibonacci document, arXiv 2606.28560, section 3."""

import math
from typing import Literal

from lib.errors import require
from lib.patterns.kinds import LearnedOffsets, LearnedPattern, Positive
from lib.patterns.rungs import Base, base_rungs

STEEPEST = 4.0          # largest |theta| at start: alpha 0.518 and 1.482, as the ramp's own ends need an infinite theta


def alpha_of(theta: float) -> float:
    """`0.5 + sigmoid(theta)`, between 0.5 and 1.5."""
    return 0.5 + 1 / (1 + math.exp(-theta))


def fractional_rungs(base: tuple[int, ...], window: int, alpha: float, length: int) -> list[tuple[int, float, int]]:
    """Rungs that exist at `alpha`: `(lo, t, f)` with `alpha * f = lo + t`, `0 <= t < 1`, in the order of the base.

    Key and value of the rung are `(1 - t) * x[i - lo] + t * x[max(i - lo - 1, 0)]` for queries `i >= lo`. As in
    the published code (audit row 27), dropped are rungs whose `lo` the window or an earlier rung has taken, and those
    with `lo > length - 1`. Raises `SuiteError` for an alpha outside [0.5, 1.5].
    """
    require(0.5 <= alpha <= 1.5, "alpha", alpha, "a number from 0.5 to 1.5")
    rungs: dict[int, tuple[int, float, int]] = {}
    for f in base:
        distance = alpha * f
        lo = math.floor(distance)
        if window < lo <= length - 1:
            rungs.setdefault(lo, (lo, distance - lo, f))
    return list(rungs.values())


class Learned(LearnedPattern):
    """Query `i` attends `j` where `0 <= d <= window`, and a blend of two keys at each distance `alpha_l * f`.

    alpha belongs to the model: `keys` are the window and the base rungs for every alpha. The oracle mask has alpha = 1.
    """
    name = "learned"
    family = "scaled-base"
    source = "Fibonacci document (arxiv.org/abs/2606.28560), section 3; start 'ramp': a control of ours"
    learned = "alpha"

    rungs: Positive = 15
    base: Base = "fibonacci"
    start: Literal["one", "ramp"] = "one"

    @property
    def thetas(self) -> tuple[float, ...]:
        """theta of each layer at start: 0 (alpha 1) for `one`; for `ramp` that of alpha `0.5 + l/(L-1)`, within +-4."""
        if self.start == "one" or self.layers == 1:
            return (0.0,) * self.layers
        inner = [math.log(at / (self.layers - 1 - at)) for at in range(1, self.layers - 1)]
        return tuple(max(-STEEPEST, min(STEEPEST, theta)) for theta in (-math.inf, *inner, math.inf))

    def arguments(self, theta, layer):
        return {"alpha": 0.5 + theta.sigmoid()}

    def keys(self, layer, length):
        return LearnedOffsets(self.widths[layer][0], base_rungs(self.base, self.rungs, length))

    def attends(self, i, j, layer, length, head):
        allowed = i - j <= self.widths[layer][head]
        for f in base_rungs(self.base, self.rungs, length):
            allowed = allowed | (i - j == f)
        return allowed

    shown = [dict(window=2, rungs=8, layers=4, heads=2), dict(window=1, rungs=6, start="ramp", layers=4)]
