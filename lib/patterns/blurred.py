"""Learned alpha whose rungs are blurred while it trains: the mechanism of the paper's copy probe."""

from typing import Annotated

from pydantic import Field

from lib.patterns.learned import Learned


class Blurred(Learned):
    """Query `i` attends `j` as in `learned`; while the model trains, a rung is a kernel of half-width `s` tokens.

    A rung at the real distance `d = alpha_l * f` is then the mean of keys `j <= i`, and of their values, with the
    weights `max(0, 1 - |i - j - d| / s)`. At `s = 1` that is the blend of `learned`, whose alpha has a gradient only
    from targets next to a rung; a wider kernel has one from targets up to `s` tokens away. `s` falls linearly from
    `blur` at the first optimiser step to 1 at the last, so that the finished model is a `learned` one. The paper only
    names the mechanism (fib_blur): kernel and schedule are ours. `lib.attention.blurred` computes it.
    """
    name = "blurred"
    blurs = True
    source = "the copy probe of arxiv.org/abs/2606.28560 (fib_blur); kernel and schedule: ours, as the paper gives none"

    blur: Annotated[float, Field(ge=1)] = 16.0      # half-width at the first step, tokens; 1 is no blur

    def half_width(self, step, steps):
        return 1 + (self.blur - 1) * (1 - step / (steps - 1)) if steps > 1 else 1.0

    shown = [dict(window=2, rungs=8, layers=4, heads=2, blur=4.0)]
