"""Learned alpha whose rungs are blurred in training: the mechanism of the paper's copy probe. A rung is a kernel of tokens."""

from __future__ import annotations

from dataclasses import dataclass

from lib.errors import require
from lib.patterns.learned import Learned


@dataclass(frozen=True, kw_only=True)
class Blurred(Learned):
    """Query `i` attends `j` as in `learned`; while it is trained, a rung at the real distance `d = alpha_l * f` is a kernel of
    half-width `s` tokens: the mean of keys `j <= i`, and of their values, with the weights `max(0, 1 - |i - j - d| / s)`.

    At `s = 1` that is the blend of `learned`, whose alpha feels a target only next to a rung; wider, up to `s` tokens away.
    `s` falls linearly from `blur` at the first optimiser step to 1 at the last, so that the finished model is a `learned` one.
    The paper names the mechanism (fib_blur) and says no more: kernel and schedule are ours. `lib.blurred` trains it.
    """
    name = "blurred"
    trainer = "lib.blurred"
    source = "the copy probe of arxiv.org/abs/2606.28560 (fib_blur); kernel and schedule: ours, as the paper gives none"

    blur: float = 16.0              # half-width at the first step, tokens

    def __post_init__(self) -> None:
        super().__post_init__()
        number = isinstance(self.blur, (int, float)) and not isinstance(self.blur, bool)
        require(number and self.blur >= 1, "blur", self.blur, "a number of at least 1 (tokens); 1 is no blur")

    def half_width(self, step: int, steps: int) -> float:
        """`s` at optimiser step `step` of `steps`, from 0: `blur` at the first, 1 at the last (or only one)."""
        return 1 + (self.blur - 1) * (1 - step / (steps - 1)) if steps > 1 else 1.0

    @classmethod
    def examples(cls):
        return [cls(window=2, rungs=8, layers=4, heads=2, blur=4.0)]
