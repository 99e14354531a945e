"""Intervals of losses, accuracies and seeds; corrections for many comparisons; a line through runs over log tokens.

An interval is over training runs (seeds, and graphs where a pattern is drawn) and held-out windows. With fewer than
three seeds the runs' variance is borrowed (`Noise`); an interval that has none to borrow is not `replicated`, and
decides nothing. docs/statistics.md explains the rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from lib.errors import require

LEVEL = 0.95
ENOUGH_SEEDS = 3            # from here on the variance of a model's own seeds counts, else it is borrowed
ENOUGH_PATTERNS = 4         # with so many seeds, to borrow from
Windows = list[np.ndarray]  # an array `[S, N]` a held-out domain: S seeds, N windows


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval; `count` is the number of windows, items or values behind it."""
    estimate: float
    low: float
    high: float
    count: int
    seeds: int = 0                  # training runs behind it; 0: not known, or no run
    df: float = np.inf              # degrees of freedom of its standard error
    replicated: bool = True         # whether it holds for other seeds too
    spread: float = 0.0             # standard deviation of the same number of one further seed

    def p(self, boundary: float = 0.0) -> float:
        """Two-sided p value against `boundary`: below 1 - `LEVEL` exactly where the interval leaves it out."""
        distance = boundary - self.estimate
        side = self.high - self.estimate if distance > 0 else self.estimate - self.low
        if side <= 0:
            return 1.0 if distance == 0 else 0.0
        return float(2 * stats.t.sf(abs(distance) / side * quantile(self.df), self.df))

    def flip(self, boundary: float = 0.0) -> float:
        """How likely the same number of one further seed lies on the other side of `boundary`."""
        se = (self.high - self.low) / 2 / quantile(self.df)
        scale = float(np.hypot(se, self.spread))
        return float(stats.t.sf(abs(self.estimate - boundary) / scale, self.df)) if scale > 0 else 0.0

    def shifted(self, by: float) -> "Interval":
        return replace(self, estimate=self.estimate + by, low=self.low + by, high=self.high + by)

    def text(self, digits: int = 3) -> str:
        estimate, low, high = (f"{end:z.{digits}f}" for end in (self.estimate, self.low, self.high))
        return f"{estimate} ({100 * LEVEL:.0f} % interval {low} to {high})"

    def sign(self) -> str:
        """`above` or `below`, where the whole interval lies on that side of zero; else `undecided`."""
        return "above" if self.low > 0 else "below" if self.high < 0 else "undecided"


def quantile(df: float) -> float:
    return float(stats.t.ppf((1 + LEVEL) / 2, df))


# Means

class Noise(NamedTuple):
    """Variance of a number of one run, or of one pair of runs, from seed to seed, with its degrees of freedom."""
    variance: float
    df: float

    @classmethod
    def pooled(cls, numbers: Sequence[Sequence[float]], paired: bool) -> "Noise | None":
        """From `[P][S]` numbers of P patterns with S seeds each; None unless P >= `ENOUGH_PATTERNS` and S suffices.

        paired: of the difference of two patterns' numbers of one seed: twice the residual of pattern + seed, since
        what all patterns of a seed share cancels. Else of one pattern's number: the variance within patterns.
        """
        table = np.asarray(numbers, dtype=float)
        if table.ndim < 2 or len(table) < ENOUGH_PATTERNS or table.shape[1] < ENOUGH_SEEDS:
            return None
        P, S = table.shape
        rest = table - table.mean(axis=1, keepdims=True)
        if not paired:
            return cls(float((rest ** 2).sum()) / (P * (S - 1)), P * (S - 1))
        rest = rest - rest.mean(axis=0, keepdims=True)
        return cls(2 * float((rest ** 2).sum()) / ((P - 1) * (S - 1)), (P - 1) * (S - 1))


def mean_interval(strata: Sequence[np.ndarray], noise: Noise | None = None) -> Interval:
    """Interval of the mean over strata of each stratum's mean.

    strata: one array of window differences a held-out domain, for instance: `[N]` of one seed or `[S, N]` of S seeds
    that have the same windows. The variance of the mean is that of the windows and that of the seeds, all strata
    together: the seeds' own from `ENOUGH_SEEDS` on, else `noise`, that of one row. The quantile is Student's; the
    degrees of freedom are those of the parts, harmonically weighted by their shares of the variance: Satterthwaite's,
    weighted by squares, cover 93 % with three seeds.
    """
    tables = [np.atleast_2d(np.asarray(s, dtype=float)) for s in strata]
    shapes, seeds = [t.shape for t in tables], len(tables[0])
    require(all(len(t) == seeds for t in tables), "strata", shapes, "arrays of as many seeds each")
    require(all(np.isfinite(t).all() for t in tables), "strata", "not finite", "finite numbers")
    estimate, count = float(np.mean([t.mean() for t in tables])), sum(t.shape[1] for t in tables)
    of_windows = [t.mean(axis=0).var(ddof=1) / t.shape[1] for t in tables if t.shape[1] > 1]
    parts = [Noise(float(sum(of_windows)) / len(tables) ** 2, count - len(tables))] if of_windows else []
    if seeds >= ENOUGH_SEEDS:
        by_seed = np.mean([t.mean(axis=1) for t in tables], axis=0)
        noise = Noise(float(by_seed.var(ddof=1)), seeds - 1)
    if noise is not None:
        parts.append(Noise(noise.variance / seeds, noise.df))
    variance, replicated = sum(part.variance for part in parts), noise is not None
    spread = float(np.sqrt(noise.variance)) if replicated else 0.0
    if variance <= (1e-12 * max(1.0, abs(estimate))) ** 2:                   # nothing varies: the interval is the value
        return Interval(estimate, estimate, estimate, count, seeds, replicated=replicated, spread=spread)
    df = variance / sum(part.variance / part.df for part in parts if part.variance)
    half = quantile(df) * float(np.sqrt(variance))
    return Interval(estimate, estimate - half, estimate + half, count, seeds, df, replicated, spread)


def minus(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> Windows:
    """`a - b`, stratum by stratum; both hold the same windows in the same order."""
    shapes = [[np.shape(x) for x in strata] for strata in (a, b)]
    require(shapes[0] == shapes[1], "a, b", shapes, "the same windows in both")
    return [np.asarray(x) - np.asarray(y) for x, y in zip(a, b, strict=True)]


# Proportions

def wilson(successes: float, trials: int, seeds: int = 0) -> Interval:
    """Wilson's score interval of a proportion. successes may be a fraction: a sum of shares over `trials` sequences."""
    from statsmodels.stats.proportion import proportion_confint
    low, high = proportion_confint(successes, trials, alpha=1 - LEVEL, method="wilson")
    share = successes / trials
    return Interval(share, min(share, max(0.0, float(low))), max(share, min(1.0, float(high))), int(trials), seeds)


def accuracy(right: np.ndarray, noise: Noise | None = None) -> Interval:
    """Interval of an accuracy. right: share of right answers `[N]` or `[S, N]`, of N items or sequences and S seeds;
    noise: as in `mean_interval`. Where nothing varies, or no noise is known, Wilson's over items (or sequences)."""
    right = np.atleast_2d(np.asarray(right, dtype=float))
    if np.ptp(right) > 0 and (len(right) >= ENOUGH_SEEDS or noise):
        return mean_interval([right], noise)
    known = len(right) >= ENOUGH_SEEDS or noise is not None
    return replace(wilson(float(right.mean(axis=0).sum()), right.shape[1], len(right)), replicated=known)


def accuracy_difference(a: np.ndarray, b: np.ndarray, noise: Noise | None = None) -> Interval:
    """Accuracy of `a` minus that of `b`, paired by item (`accuracy`); Newcombe's where no difference varies."""
    a, b = (np.atleast_2d(np.asarray(x, dtype=float)) for x in (a, b))
    if np.ptp(a - b) > 0:
        return mean_interval(minus([a], [b]), noise)
    from statsmodels.stats.proportion import confint_proportions_2indep
    N, counts = a.shape[1], [float(x.mean(axis=0).sum()) for x in (a, b)]
    low, high = confint_proportions_2indep(counts[0], N, counts[1], N, method="newcomb", compare="diff",
                                           alpha=1 - LEVEL)
    estimate = (counts[0] - counts[1]) / N
    known = len(a) >= ENOUGH_SEEDS or noise is not None
    return Interval(estimate, min(estimate, float(low)), max(estimate, float(high)), N, len(a), replicated=known)


# Many comparisons

def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values: how sure a finding is when as many were looked for."""
    p, order = np.asarray(p_values, dtype=float), np.argsort(p_values)
    adjusted = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1.0)
    return adjusted[np.argsort(order)].tolist()


def corrected_signs(table: pd.DataFrame) -> list[str]:
    """`below`, `above` or `undecided` for each row of a table of intervals, with Holm's correction for their number."""
    found = [Interval(row.estimate, row.low, row.high, 0, df=row.df) for row in table.itertuples()]
    adjusted = holm([own.p() for own in found])
    return [own.sign() if p < 1 - LEVEL else "undecided" for own, p in zip(found, adjusted, strict=True)]


def correlation(x: Sequence[float], y: Sequence[float], what_x: str, what_y: str) -> str:
    """Whether two quantities go together over models, by Spearman's rank correlation: a sentence."""
    if len(x) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
        return f"{what_y} against {what_x}: too few different models ({len(x)}) for a correlation."
    found = stats.spearmanr(x, y)
    word = ("rises" if found.statistic > 0 else "falls") if found.pvalue < 1 - LEVEL else "shows no monotone relation"
    return f"{what_y} {word} with {what_x} (Spearman {found.statistic:+.2f}, p = {found.pvalue:.2g}, {len(x)} models)."


# A line over log tokens

@dataclass(frozen=True)
class Trend:
    """Least squares of values (one a pair of runs) on log2 of training tokens; runs of one length are replicates."""
    tokens: np.ndarray              # [n], ascending or not
    fitted: Any                     # statsmodels' results
    windows: Sequence[Windows]      # of each pair its difference by window, `[N]` a domain

    @property
    def slope(self) -> Interval:
        """What a doubling of the tokens adds, with Student's interval over the runs."""
        low, high = self.fitted.conf_int(1 - LEVEL)[1]
        runs = len(self.tokens)
        return Interval(float(self.fitted.params[1]), float(low), float(high), runs, runs, float(self.fitted.df_resid))

    def extrapolated(self, tokens: float) -> Interval:
        """The value of one further pair of runs of so many tokens: its prediction interval, widened by what other
        held-out windows would change: the line's value is a weighted sum of the pairs', in every window."""
        x, to = np.log2(self.tokens), np.log2(tokens)
        seen = self.fitted.get_prediction([[1.0, to]]).summary_frame(alpha=1 - LEVEL).iloc[0]
        weights = 1 / len(x) + (to - x.mean()) * (x - x.mean()) / ((x - x.mean()) ** 2).sum()               # [n]
        text = mean_interval([np.tensordot(weights, np.stack(own), axes=1) for own in zip(*self.windows, strict=True)])
        estimate = float(seen["mean"])
        half = float(np.hypot(seen["obs_ci_upper"] - estimate, text.high - text.estimate))
        return Interval(estimate, estimate - half, estimate + half, text.count, len(x), float(self.fitted.df_resid))

    def crossing(self) -> float | None:
        """Tokens at which the line is zero, where its slope is told from zero; beyond 2^100 it is as good as never."""
        at = -self.fitted.params[0] / self.fitted.params[1] if self.slope.sign() != "undecided" else np.inf
        return float(2.0 ** at) if 0 <= at <= 100 else None


def fit(tokens: Sequence[float], values: Sequence[float], windows: Sequence[Windows]) -> Trend | None:
    """The line, or None where the runs are too few or of one number of tokens alone."""
    x, y = np.asarray(tokens, dtype=float), np.asarray(values, dtype=float)
    if len(x) < 3 or len(set(x.tolist())) < 2:            # two points fit any line, and leave nothing to judge it by
        return None
    from statsmodels.regression.linear_model import OLS
    return Trend(x, OLS(y, np.column_stack([np.ones_like(x), np.log2(x)])).fit(), windows)


def linearised(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Values whose mean is the ratio of all sums to all counts and whose spread is that ratio's, to first order.

    sums: `[S, N]`, of S seeds and N windows; counts: `[N]`, tokens of each window. The delta method: a window counts by
    what it differs from the ratio, so that windows without a token neither help nor hurt.
    """
    mean = counts.mean()
    ratio = sums.mean() / mean
    return ratio + (sums - ratio * counts) / mean
