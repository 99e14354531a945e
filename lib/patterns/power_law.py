"""Power law: a window and far keys with probability falling as `d^-(1+sigma)`. Source: power-law document, steps 1 and 2."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lib.errors import one_of, require
from lib.patterns.base import Knob, whole
from lib.patterns.draws import (PARTS, around, bernoulli_draw, budget_draw,
                                repeated_draw, row_budgets)
from lib.patterns.kinds import RowPattern

AMOUNTS = {"budget": 32, "draws": 48, "bernoulli": 1.0}        # what each mode takes when its own parameter is not given


@dataclass(frozen=True, kw_only=True)
class PowerLaw(RowPattern):
    """Query `i` attends `j` where `0 <= d <= window`, and far keys at random distances with `q(d) ~ d^-(1+sigma)`.

    `budget` mode: exactly `budget` keys, the query included (all there are, where fewer are), the far ones without
    replacement from `window < d <= reach` (Gumbel top-k on log q); `extra` of every 1024 queries have one more. `draws`
    mode: `draws` distances from q on `1 <= d <= reach` with replacement, repeats and near ones merged, as in the document.
    `bernoulli` mode: each `d` with probability `min(1, scale * d^-(1+sigma))`.

    Causal: backwards only, never wrapped; a query draws among its predecessors, and the same keys at every length.
    Bidirectional: the ring of the document, window included: `j = (i +- d) mod T`, `d <= T // 2`, signs random.
    `reach=None`: as far as there are keys. Each layer has a graph of its own unless `per_layer` is off.
    """
    name = "power_law"
    family = "power-law"
    source = "power-law document, steps 1 and 2 (draws); budget and bernoulli: the same law at an exact or a random degree"
    bidirectional = True

    sigma: float = 0.8
    window: int = 8                     # the document's radius r
    mode: str = "budget"                # budget | draws | bernoulli
    budget: int | None = None
    draws: int | None = None
    scale: float | None = None
    extra: int = 0
    reach: int | None = None
    per_layer: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.mode, AMOUNTS, "mode")
        require(_number(self.sigma) and self.sigma > -1, "sigma", self.sigma, "a finite number above -1")
        require(whole(self.window), "window", self.window, "an integer W >= 0")
        for parameter, mode in (("budget", "budget"), ("draws", "draws"), ("scale", "bernoulli")):
            given = getattr(self, parameter)
            require(given is None or mode == self.mode, parameter, given, f"None, as mode is {self.mode!r}")
        if self.mode == "budget":
            require(whole(self.amount, self.near), "budget", self.amount, f"an integer of at least {self.near}, the window")
        elif self.mode == "draws":
            require(whole(self.amount), "draws", self.amount, "an integer of at least 0")
        else:
            require(_number(self.amount) and self.amount >= 0, "scale", self.amount, "a finite number of at least 0")
        require(whole(self.extra) and self.extra < (PARTS if self.mode == "budget" else 1), "extra", self.extra,
                f"0 to {PARTS - 1} in budget mode, else 0")
        require(self.reach is None or whole(self.reach, 1), "reach", self.reach, "None or a distance of at least 1")
        require(whole(self.seed), "seed", self.seed, "an integer of at least 0")

    @property
    def amount(self) -> float:
        """The parameter of this mode: `budget`, `draws` or `scale`."""
        given = {"budget": self.budget, "draws": self.draws, "bernoulli": self.scale}[self.mode]
        return AMOUNTS[self.mode] if given is None else given

    @property
    def near(self) -> int:
        """Keys of the window, the query included."""
        return self.window * (1 if self.causal else 2) + 1

    def farthest(self, length: int) -> int:
        """The largest distance that may be drawn at `length` tokens."""
        there = length - 1 if self.causal else length // 2
        return there if self.reach is None else min(self.reach, there)

    def links(self, layer, length, head):
        rng = np.random.default_rng([self.seed, layer if self.per_layer else 0])
        for i in range(length):
            farthest = min(i, self.farthest(length)) if self.causal else self.farthest(length)
            near, d = np.arange(self.window + 1), np.arange(1, farthest + 1)
            if self.causal:
                near = near[:i + 1]
            else:                               # draws may take either side of the half ring, as the document's signs do
                near, d = around(near, length), around(d, length) if self.mode != "draws" else np.concatenate([d, -d])
            yield i, (i - np.concatenate([near, self._far(rng, d, i, len(near))])) % length

    def _far(self, rng: np.random.Generator, d: np.ndarray, i: int, near: int) -> np.ndarray:
        """Which of the signed distances `d` query `i` draws by the law of this mode, beside `near` keys of the window."""
        if self.mode == "draws":
            return repeated_draw(rng, d, self.sigma, self.amount)
        d = d[abs(d) > self.window]
        if self.mode == "bernoulli":
            return bernoulli_draw(rng, d, self.sigma, self.amount)
        return budget_draw(rng, d, self.sigma, row_budgets(self.amount, self.extra, i) - near)

    def attends(self, i, j, layer, length, head):
        drawn = np.zeros((length, length), bool)
        for query, keys in self.links(layer, length, head):
            drawn[query, keys] = True
        d = abs(i - j)
        return ((d if self.causal else np.minimum(d, length - d)) <= self.window) | drawn[i, j]

    def layer_pairs(self, layer, length):
        if self.mode != "budget":
            return super().layer_pairs(layer, length)
        i = np.arange(length)
        if self.causal:
            near, there = np.minimum(i, self.window) + 1, np.minimum(i, self.farthest(length)) + 1
        else:
            near, there = (np.minimum(length, 2 * d + 1) + 0 * i for d in (self.window, self.farthest(length)))
        return float(np.maximum(near, np.minimum(row_budgets(self.amount, self.extra, i), there)).sum())

    def knobs(self, length):
        if self.mode != "budget":
            return ()
        return Knob("budget", range(self.near, self.near + length)), Knob("extra", range(PARTS))

    @classmethod
    def examples(cls):
        return [cls(sigma=0.5, window=2, budget=6, layers=4), cls(mode="draws", draws=12, window=2, layers=4, seed=1),
                cls(mode="bernoulli", scale=2.0, window=1, reach=20, per_layer=False),
                cls(window=2, budget=9, causal=False), cls(mode="draws", draws=12, window=1, causal=False)]


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
