"""Expected number of attended pairs of a random pattern, without sampling it.

A plan counts patterns of thousands of tokens, whose graphs would take seconds to draw.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lib.patterns import Pattern
from lib.patterns.power_law import PowerLaw


def expected_pairs(pattern: Pattern, length: int) -> float:
    """Attended pairs of a sequence of `length` tokens, summed over layers.

    Exact (`pattern.pairs(length)`), but for power-law draws with replacement, whose number of pairs depends on the seed:
    there it is the expectation.
    """
    if isinstance(pattern, PowerLaw) and pattern.mode == "draws" and pattern.causal:
        return pattern.layers * pairs_of_draws(pattern.sigma, pattern.amount, pattern.window, length, pattern.reach)
    return pattern.pairs(length)


def pairs_of_draws(sigma: float, count: int, window: int, length: int, reach: int | None = None) -> float:
    """Expected attended pairs of one layer of power-law draws with replacement.

    A query attends its window, and each distance d beyond it up to `reach` with probability `1 - (1 - q(d))^count`, where
    q is the law `d^-(1 + sigma)`, normalised over the distances of its predecessors.
    """
    near = float(np.minimum(window + 1, np.arange(length) + 1).sum())
    return near + float(-np.expm1(count * log_misses(sigma, window, length, reach)).sum())


@lru_cache(maxsize=16)
def log_misses(sigma: float, window: int, length: int, reach: int | None) -> np.ndarray:
    """`log(1 - q(d))` of every pair of a query and a distance beyond the window, as one float64 row."""
    weight = np.arange(1, min(length - 1, reach or length) + 1) ** -(1.0 + sigma)
    total = np.cumsum(weight)
    with np.errstate(divide="ignore"):                       # a distance that is drawn for certain: log(0)
        rows = [np.log1p(-weight[window:i] / total[min(i, len(total)) - 1]) for i in range(window + 1, length)]
    return np.concatenate(rows) if rows else np.zeros(0)
