"""Power law: a window, and far keys with probability `~ d^-(1+sigma)`. Source: power-law document, steps 1 and 2."""

from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from lib.errors import require
from lib.patterns.kinds import Count, DrawnPattern, Positive

MODES = {"budget": ("budget", 32), "draws": ("draws", 48), "bernoulli": ("scale", 1.0)}     # parameter, and its default


class PowerLaw(DrawnPattern):
    """Query `i` attends `j` where `0 <= d <= window`, and far keys at random distances with `q(d) ~ d^-(1+sigma)`.

    Mode `budget`: exactly `budget` keys, the query included (or all there are), the far ones drawn without replacement
    from `window < d <= reach` (Gumbel top-k on log q). Mode `draws`: `draws` distances from q on `1 <= d <= reach` with
    replacement, repeats and near ones merged, as in the document. Mode `bernoulli`: each `d` with probability
    `min(1, scale * d^-(1+sigma))`.

    Causal: backwards only, never wrapped; a query draws among its predecessors, and the same keys at every length.
    Bidirectional: the ring of the document, window included: `j = (i +- d) mod T`, `d <= T // 2`, signs random.
    `reach=None`: as far as there are keys.
    """
    name = "power_law"
    family = "power-law"
    source = "power-law document, steps 1 and 2 (draws); budget and bernoulli: its law at an exact or a random degree"

    sigma: Annotated[float, Field(gt=-1, allow_inf_nan=False)] = 0.8
    window: Count = 8                   # the document's radius r
    mode: Literal["budget", "draws", "bernoulli"] = "budget"
    budget: Count | None = None
    draws: Count | None = None
    scale: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    reach: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for mode, (parameter, _) in MODES.items():
            given = getattr(self, parameter)
            require(given is None or mode == self.mode, parameter, given, f"None, as mode is {self.mode!r}")
        require(self.mode != "budget" or self.amount >= self.near, "budget", self.amount,
                f"an integer of at least {self.near}, the window")
        require(self.mode == "budget" or not self.extra, "extra", self.extra, "0, as no budget is exact in this mode")

    @property
    def amount(self) -> float:
        """The parameter of this mode: `budget`, `draws` or `scale`."""
        parameter, default = MODES[self.mode]
        given = getattr(self, parameter)
        return default if given is None else given

    def farthest(self, length: int) -> int:
        """The largest distance that may be drawn at `length` tokens."""
        largest = length - 1 if self.causal else length // 2
        return largest if self.reach is None else min(self.reach, largest)

    def links(self, layer, length, head):
        rng = self.rng(layer)
        for i in range(length):
            farthest = min(i, self.farthest(length)) if self.causal else self.farthest(length)
            near, d = np.arange(self.window + 1), np.arange(1, farthest + 1)
            if self.causal:
                near = near[:i + 1]
            else:                               # draws may take either side of the half ring, like the document's signs
                near, d = around(near, length), around(d, length) if self.mode != "draws" else np.concatenate([d, -d])
            yield i, (i - np.concatenate([near, self.far(rng, d, i, len(near))])) % length

    def far(self, rng: np.random.Generator, d: np.ndarray, i: int, near: int) -> np.ndarray:
        """The signed distances among `d` that query `i` draws beside `near` keys of the window."""
        if self.mode == "draws":
            below = np.cumsum(abs(d) ** -(1.0 + self.sigma))
            return d[np.searchsorted(below, rng.random(self.amount) * below[-1], side="right")] if len(d) else d
        d = d[abs(d) > self.window]
        if self.mode == "bernoulli":
            return d[rng.random(len(d)) < self.amount * abs(d) ** -(1.0 + self.sigma)]
        count = self.with_extra(self.amount, i) - near
        score = rng.gumbel(size=len(d)) - (1 + self.sigma) * np.log(abs(d))
        return d if count >= len(d) else d[np.argpartition(-score, count)[:count]]

    def attends(self, i, j, layer, length, head):
        d = abs(i - j)
        near = (d if self.causal else np.minimum(d, length - d)) <= self.window
        return near | self.drawn(i, j, layer, length, head)

    def layer_pairs(self, layer, length):
        if self.mode != "budget":
            return super().layer_pairs(layer, length)
        i = np.arange(length)
        if self.causal:
            near, most = np.minimum(i, self.window) + 1, np.minimum(i, self.farthest(length)) + 1
        else:
            near, most = (np.minimum(length, 2 * d + 1) + 0 * i for d in (self.window, self.farthest(length)))
        return float(np.maximum(near, np.minimum(self.with_extra(self.amount, i), most)).sum())

    def expected_pairs(self, length):
        """Of draws with replacement: each pair beyond the window is drawn with probability `1 - (1 - q(d))^draws`."""
        if self.mode != "draws" or not self.causal:
            return self.pairs(length)
        near = float(np.minimum(self.window + 1, np.arange(length) + 1).sum())
        missed = log_misses(self.sigma, self.window, length, self.reach)
        return self.layers * (near + float(-np.expm1(self.amount * missed).sum()))

    def knobs(self, length):
        return super().knobs(length) if self.mode == "budget" else ()

    shown = [dict(sigma=0.5, window=2, budget=6, layers=4), dict(mode="draws", draws=12, window=2, layers=4, seed=1),
             dict(mode="bernoulli", scale=2.0, window=1, reach=20, per_layer=False),
             dict(window=2, budget=9, causal=False), dict(mode="draws", draws=12, window=1, causal=False)]


def around(d: np.ndarray, length: int) -> np.ndarray:
    """Distances `d` both ways round a ring of `length`, each key once (0 and half the ring have no second side)."""
    d = d[2 * d <= length]
    return np.concatenate([d, -d[(d > 0) & (2 * d < length)]])


@lru_cache(maxsize=16)
def log_misses(sigma: float, window: int, length: int, reach: int | None) -> np.ndarray:
    """`log(1 - q(d))` of every causal pair beyond the window, float64, where q is the law on a query's predecessors."""
    weight = np.arange(1, min(length - 1, reach or length) + 1) ** -(1.0 + sigma)
    total = np.cumsum(weight)
    with np.errstate(divide="ignore"):                       # log(0): a distance that is certainly drawn
        rows = [np.log1p(-weight[window:i] / total[min(i, len(total)) - 1]) for i in range(window + 1, length)]
    return np.concatenate(rows) if rows else np.zeros(0)
