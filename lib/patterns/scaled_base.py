"""Scaled base: a window and the rungs `alpha * f` of a base, alpha by layer. Source: Fibonacci document, section 3."""

from lib.patterns.kinds import Count, Positive, Windowed
from lib.patterns.rungs import Base, Schedule, base_rungs, schedule_alphas


class ScaledBase(Windowed):
    """Query `i` attends `j` where `0 <= d <= window`, or `d > window` is `alpha_l * f`, rounded half to even, f a rung.

    `rungs` counts the rungs of `fibonacci` and `matched_pow2`; `pow2` has as many as fit the length. `trained_length`
    freezes the far distances as they are at that length (at most `trained_length - 1`), so that a longer text adds
    none. `seed` serves the `permuted` schedule.
    """
    name = "scaled_base"
    family = "scaled-base"
    source = "Fibonacci document (arxiv.org/abs/2606.28560), section 3; descending, permuted, matched_pow2: our own"

    base: Base = "fibonacci"
    schedule: Schedule = "fixed"
    rungs: Positive = 15
    trained_length: Positive | None = None      # tokens
    seed: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.alphas

    @property
    def alphas(self) -> tuple[float, ...]:
        return schedule_alphas(self.schedule, self.layers, self.seed)

    def far(self, layer, length, head):
        frozen, alpha = self.trained_length or length, self.alphas[layer]
        scaled = (round(alpha * f) for f in base_rungs(self.base, self.rungs, frozen))      # half to even
        return [d for d in scaled if self.widths[layer][head] < d <= frozen - 1]

    def attends(self, i, j, layer, length, head):
        # d is alpha * f rounded half to even where |alpha f - d| < 1/2, or = 1/2 and d is even; the difference is exact
        d, frozen = abs(i - j), self.trained_length or length
        near, rung = d <= self.widths[layer][head], d < 0
        for f in base_rungs(self.base, self.rungs, frozen):
            error = abs(self.alphas[layer] * f - d)
            rung = rung | (error < 0.5) | ((error == 0.5) & (d % 2 == 0))
        return near | (rung & (d <= frozen - 1))

    shown = [dict(window=2, rungs=8), dict(window=2, rungs=8, schedule="linear", layers=4),
             dict(window=1, rungs=8, schedule="coprime", layers=8, trained_length=40),
             dict(window=3, base="pow2", schedule="descending", layers=4),
             dict(window=2, base="matched_pow2", rungs=8, schedule="permuted", layers=4, causal=False)]
