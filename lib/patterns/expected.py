"""How many pairs drawn patterns attend in the mean: what a plan needs, without drawing graphs of thousands of tokens."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lib.patterns import Pattern
from lib.patterns.power_law import PowerLaw


def pairs(pattern: Pattern, length: int) -> float:
    """`pattern.pairs(length)`; of power-law draws with replacement, whose count differs from seed to seed, the mean."""
    if isinstance(pattern, PowerLaw) and pattern.mode == "draws" and pattern.causal:
        return pattern.layers * draws(pattern.sigma, pattern.amount, pattern.window, length, pattern.reach)
    return pattern.pairs(length)


def draws(sigma: float, count: int, window: int, length: int, reach: int | None = None) -> float:
    """Pairs of one layer in the mean: query i has its window, and each distance d beyond it that may be drawn, up to `reach`,
    with probability `1 - (1 - q(d))^count`, where q is the law `d^-(1 + sigma)` on its predecessors' distances."""
    near = float(np.minimum(window + 1, np.arange(length) + 1).sum())
    return near + float(-np.expm1(count * misses(sigma, window, length, reach)).sum())


@lru_cache(maxsize=16)
def misses(sigma: float, window: int, length: int, reach: int | None) -> np.ndarray:
    """`log(1 - q(d))` of every pair of a query and a distance beyond the window, float64, in one row."""
    weight = np.arange(1, min(length - 1, reach or length) + 1) ** -(1.0 + sigma)
    total = np.cumsum(weight)
    with np.errstate(divide="ignore"):                       # a distance that is drawn for certain: log(0)
        rows = [np.log1p(-weight[window:i] / total[min(i, len(total)) - 1]) for i in range(window + 1, length)]
    return np.concatenate(rows) if rows else np.zeros(0)
