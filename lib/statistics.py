"""Intervals: paired bootstrap of mean losses over evaluation windows, and Wilson's interval of a proportion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from lib.errors import require

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval; `count` is the number of windows, items or seeds behind it."""
    estimate: float
    low: float
    high: float
    count: int

    def text(self, digits: int = 3, scale: float = 1.0) -> str:
        low, high = sorted((self.low * scale, self.high * scale))
        return f"{self.estimate * scale:z.{digits}f} ({100 * LEVEL:.0f} % interval {low:z.{digits}f} to {high:z.{digits}f})"

    def sign(self, margin: float = 0.0) -> str:
        """`above` or `below`: the whole interval lies beyond the margin; `within`: inside it; else `undecided`."""
        if self.low > margin:
            return "above"
        if self.high < -margin:
            return "below"
        return "within" if -margin <= self.low and self.high <= margin and margin > 0 else "undecided"


def bootstrap_mean(strata: Sequence[np.ndarray], *, resamples: int = 2000, seed: int = 0) -> Interval:
    """Interval of the mean over strata of each stratum's mean, windows resampled within their stratum (percentile).

    strata: for instance one array of window differences `[N]` a held-out domain, at least two windows each.
    """
    strata = [np.asarray(s, dtype=float) for s in strata]
    require(len(strata) > 0 and all(s.ndim == 1 and len(s) >= 2 for s in strata), "strata",
            [s.shape for s in strata], "one-dimensional arrays of at least two windows")
    require(all(np.isfinite(s).all() for s in strata), "strata", "not finite", "finite numbers")
    estimate = float(np.mean([s.mean() for s in strata]))
    count = sum(len(s) for s in strata)
    if all(np.ptp(s) == 0 for s in strata):                # nothing varies: the interval is the value
        return Interval(estimate, estimate, estimate, count)

    def mean_of_means(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.mean([s.mean(axis=axis) for s in samples], axis=0)
    found = stats.bootstrap(strata, mean_of_means, n_resamples=resamples, vectorized=True, method="percentile",
                            confidence_level=LEVEL, rng=np.random.default_rng(seed))
    low, high = found.confidence_interval
    return Interval(estimate, float(low), float(high), count)


def paired_difference(a: Sequence[np.ndarray], b: Sequence[np.ndarray], **options: int) -> Interval:
    """Mean of `a - b` with its interval; `a` and `b` hold the same windows in the same order, stratum by stratum."""
    require(len(a) == len(b) and all(np.shape(x) == np.shape(y) for x, y in zip(a, b, strict=False)), "a, b",
            ([np.shape(x) for x in a], [np.shape(y) for y in b]), "the same windows in both")
    return bootstrap_mean([np.asarray(x) - np.asarray(y) for x, y in zip(a, b, strict=True)], **options)


def wilson(successes: int, trials: int) -> Interval:
    """Wilson's score interval of a proportion."""
    require(trials >= 1 and 0 <= successes <= trials, "successes", (successes, trials), "0 to trials, of at least 1 trial")
    found = stats.binomtest(int(successes), int(trials)).proportion_ci(confidence_level=LEVEL, method="wilson")
    return Interval(successes / trials, float(found.low), float(found.high), int(trials))


def sample_std(values: Sequence[float]) -> float:
    """Standard deviation with n - 1: what a spread over seeds estimates."""
    require(len(values) >= 2, "values", len(values), "at least two")
    return float(np.std(values, ddof=1))
