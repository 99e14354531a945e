"""Intervals: of mean losses over windows and seeds, Wilson's of a proportion, Student's over few values.

What an interval covers is told by its `seeds`: from three seeds on it holds for other seeds and other text; with one or
two it is over windows only, and says nothing of other seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from lib.errors import require

LEVEL = 0.95
ENOUGH_SEEDS = 3            # from here on an interval is over seeds too


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval; `count` is the number of windows, items or values behind it."""
    estimate: float
    low: float
    high: float
    count: int
    seeds: int = 0                  # training runs behind it; 0: not known, or no run
    df: float = np.inf              # degrees of freedom of its standard error

    @property
    def se(self) -> float:
        """Standard error; of a skewed interval (a proportion's) the mean of both sides."""
        return (self.high - self.low) / 2 / self.quantile

    @property
    def quantile(self) -> float:
        return float(stats.t.ppf((1 + LEVEL) / 2, self.df))

    def p(self, boundary: float = 0.0) -> float:
        """Two-sided p value against `boundary`: below 1 - `LEVEL` exactly where the interval leaves it out."""
        distance = boundary - self.estimate
        side = self.high - self.estimate if distance > 0 else self.estimate - self.low
        if side <= 0:
            return 1.0 if distance == 0 else 0.0
        return float(2 * stats.t.sf(abs(distance) / side * self.quantile, self.df))

    def shifted(self, by: float) -> Interval:
        return replace(self, estimate=self.estimate + by, low=self.low + by, high=self.high + by)

    def text(self, digits: int = 3, scale: float = 1.0) -> str:
        low, high = sorted((self.low * scale, self.high * scale))
        return (f"{self.estimate * scale:z.{digits}f} ({100 * LEVEL:.0f} % interval {low:z.{digits}f} to "
                f"{high:z.{digits}f})")

    def sign(self, margin: float = 0.0) -> str:
        """`above` or `below`: the whole interval lies beyond the margin; `within`: inside it; else `undecided`."""
        if self.low > margin:
            return "above"
        if self.high < -margin:
            return "below"
        return "within" if -margin <= self.low and self.high <= margin and margin > 0 else "undecided"


def seed_words(seeds: int) -> str:
    """How many seeds an interval is of, where a reader must know: `one seed`, `two seeds`; else nothing."""
    return {1: "one seed", 2: "two seeds"}.get(seeds, "")


def mean_interval(strata: Sequence[np.ndarray]) -> Interval:
    """Interval of the mean over strata of each stratum's mean.

    strata: one array of window differences a held-out domain, for instance: `[N]` of one seed or `[S, N]` of S seeds
    that have the same windows, N >= 2. The variance of the mean is that of the windows, and from `ENOUGH_SEEDS` seeds
    on that of the seeds besides, all strata together. The quantile is Student's with Satterthwaite's degrees of
    freedom: with three seeds the normal one would claim too much. Of three seeds the interval covers 92 to 95 %. Raises
    `SuiteError` where a value is not finite or the strata have different numbers of seeds.
    """
    tables = [np.atleast_2d(np.asarray(s, dtype=float)) for s in strata]
    shapes = [t.shape for t in tables]
    alike = len(tables) > 0 and all(t.ndim == 2 and t.shape[1] >= 2 and len(t) == len(tables[0]) for t in tables)
    require(alike, "strata", shapes, "arrays of at least two windows, of as many seeds each")
    require(all(np.isfinite(t).all() for t in tables), "strata", "not finite", "finite numbers")
    estimate, count, seeds = float(np.mean([t.mean() for t in tables])), sum(t.shape[1] for t in tables), len(tables[0])
    parts = components(tables)
    variance = sum(v for v, _ in parts)
    if variance <= (1e-12 * max(1.0, abs(estimate))) ** 2:
        return Interval(estimate, estimate, estimate, count, seeds)          # nothing varies: the interval is the value
    df = variance ** 2 / sum(v ** 2 / n for v, n in parts)
    half = float(stats.t.ppf((1 + LEVEL) / 2, df)) * float(np.sqrt(variance))
    return Interval(estimate, estimate - half, estimate + half, count, seeds, df)


def components(tables: Sequence[np.ndarray]) -> list[tuple[float, int]]:
    """Variance of the mean and degrees of freedom, of the windows and (with enough) of the seeds. tables: `[S, N]`
    each."""
    windows = sum(t.mean(axis=0).var(ddof=1) / t.shape[1] for t in tables) / len(tables) ** 2
    found = [(float(windows), sum(t.shape[1] - 1 for t in tables))]
    if len(tables[0]) >= ENOUGH_SEEDS:
        by_seed = np.mean([t.mean(axis=1) for t in tables], axis=0)
        found.append((float(by_seed.var(ddof=1) / len(by_seed)), len(by_seed) - 1))
    return found


def paired_difference(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> Interval:
    """Mean of `a - b` with its interval; `a` and `b` hold the same windows in the same order, stratum by stratum."""
    require(len(a) == len(b) and all(np.shape(x) == np.shape(y) for x, y in zip(a, b, strict=False)), "a, b",
            ([np.shape(x) for x in a], [np.shape(y) for y in b]), "the same windows in both")
    return mean_interval([np.asarray(x) - np.asarray(y) for x, y in zip(a, b, strict=True)])


def mean_over_runs(values: Sequence[float]) -> Interval:
    """Student's interval of a mean over values of which each is a run's (seeds), two at least."""
    values = np.asarray(values, dtype=float)
    require(values.ndim == 1 and len(values) >= 2 and bool(np.isfinite(values).all()), "values", values.tolist(),
            "at least two finite numbers")
    df = len(values) - 1
    half = float(stats.t.ppf((1 + LEVEL) / 2, df) * values.std(ddof=1) / np.sqrt(len(values)))
    mean = float(values.mean())
    return Interval(mean, mean - half, mean + half, len(values), len(values), df)


def wilson(successes: float, trials: int, seeds: int = 0) -> Interval:
    """Wilson's score interval of a proportion. successes may be a fraction: a mean of shares over `trials`
    sequences."""
    possible = trials >= 1 and 0 <= successes <= trials
    require(possible, "successes", (successes, trials), "0 to trials, of at least 1 trial")
    from statsmodels.stats.proportion import proportion_confint
    low, high = proportion_confint(successes, trials, alpha=1 - LEVEL, method="wilson")
    share = successes / trials
    return Interval(share, min(share, max(0.0, float(low))), max(share, min(1.0, float(high))), int(trials), seeds)


def accuracy(right: np.ndarray) -> Interval:
    """Interval of an accuracy. right: share of right answers `[N]` or `[S, N]`, of N items or sequences and S seeds.

    With few seeds Wilson's, each item (or sequence, however many answers it holds) counted once; else over both.
    """
    right = np.atleast_2d(np.asarray(right, dtype=float))
    if len(right) >= ENOUGH_SEEDS and np.ptp(right) > 0:
        return mean_interval([right])
    return wilson(float(right.mean(axis=0).sum()), right.shape[1], len(right))


def accuracy_difference(a: np.ndarray, b: np.ndarray) -> Interval:
    """Accuracy of `a` minus that of `b`, paired by item (`accuracy`); Newcombe's where no difference varies."""
    a, b = (np.atleast_2d(np.asarray(x, dtype=float)) for x in (a, b))
    if np.ptp(a - b) > 0:
        return paired_difference([a], [b])
    from statsmodels.stats.proportion import confint_proportions_2indep
    N, counts = a.shape[1], [float(x.mean(axis=0).sum()) for x in (a, b)]
    low, high = confint_proportions_2indep(counts[0], N, counts[1], N, method="newcomb", compare="diff",
                                           alpha=1 - LEVEL)
    estimate = (counts[0] - counts[1]) / N
    return Interval(estimate, min(estimate, float(low)), max(estimate, float(high)), N, len(a))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values: how sure a finding is when as many were looked for."""
    if not len(p_values):
        return []
    from statsmodels.stats.multitest import multipletests
    return [float(p) for p in multipletests(p_values, alpha=1 - LEVEL, method="holm")[1]]


def sample_std(values: Sequence[float]) -> float:
    """Standard deviation with n - 1: what a spread over seeds estimates."""
    require(len(values) >= 2, "values", len(values), "at least two")
    return float(np.std(values, ddof=1))
