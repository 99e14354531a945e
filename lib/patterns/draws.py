"""Random choices that several patterns share: how many keys a query has, and which by a power law."""

from __future__ import annotations

import numpy as np

PARTS = 1024            # `extra` counts queries out of this many


def row_budgets(budget: int, extra: int, i: np.ndarray | int) -> np.ndarray | int:
    """Keys of query `i`: `budget`, and one more for `extra` of every 1024 queries, spread evenly."""
    return budget + (i + 1) * extra // PARTS - i * extra // PARTS


def budget_draw(rng: np.random.Generator, d: np.ndarray, sigma: float, count: int) -> np.ndarray:
    """`count` of the signed distances `d` (all, if fewer) without replacement, weights `|d|^-(1+sigma)`: Gumbel top-k."""
    score = rng.gumbel(size=len(d)) - (1 + sigma) * np.log(abs(d))
    return d if count >= len(d) else d[np.argpartition(-score, count)[:count]]


def repeated_draw(rng: np.random.Generator, d: np.ndarray, sigma: float, count: int) -> np.ndarray:
    """`count` draws from the signed distances `d` with replacement, weights `|d|^-(1+sigma)`."""
    below = np.cumsum(abs(d) ** -(1.0 + sigma))
    return d[np.searchsorted(below, rng.random(count) * below[-1], side="right")] if len(d) else d


def bernoulli_draw(rng: np.random.Generator, d: np.ndarray, sigma: float, scale: float) -> np.ndarray:
    """Each of the signed distances `d` with probability `min(1, scale * |d|^-(1+sigma))`."""
    return d[rng.random(len(d)) < scale * abs(d) ** -(1.0 + sigma)]


def around(d: np.ndarray, length: int) -> np.ndarray:
    """Distances `d` both ways round a ring of `length`, each key once (0 and half the ring have no second side)."""
    d = d[2 * d <= length]
    return np.concatenate([d, -d[(d > 0) & (2 * d < length)]])
