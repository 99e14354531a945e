"""A line through differences of runs against the logarithm of their training tokens, and what it says beyond them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.errors import require
from suite.study.stats import LEVEL, Interval, mean_interval

LEAST = 3           # points of a line: two fit any, and leave nothing to judge it by


@dataclass(frozen=True)
class Trend:
    """Least squares of values (one a pair of runs) on log2 of training tokens; runs of one length are replicates."""
    tokens: np.ndarray              # [n], ascending or not
    values: np.ndarray              # [n]
    fitted: Any                     # statsmodels' results
    windows: Sequence[Sequence[np.ndarray]] = ()        # of each pair its difference by window, `[N]` a domain

    @property
    def longest(self) -> int:
        return int(self.tokens.max())

    @property
    def slope(self) -> Interval:
        """What a doubling of the tokens adds, with Student's interval over the runs."""
        low, high = self.fitted.conf_int(1 - LEVEL)[1]
        return Interval(float(self.fitted.params[1]), float(low), float(high), len(self.values), len(self.values),
                        float(self.fitted.df_resid))

    def predicted(self, tokens: float) -> Interval:
        """The value of one further pair of runs of so many tokens: its prediction interval, the held-out text as it
        is."""
        found = self.fitted.get_prediction([[1.0, np.log2(tokens)]]).summary_frame(alpha=1 - LEVEL).iloc[0]
        ends = (float(found[name]) for name in ("mean", "obs_ci_lower", "obs_ci_upper"))
        return Interval(*ends, len(self.values), len(self.values), float(self.fitted.df_resid))

    def weights(self, tokens: float) -> np.ndarray:
        """How much each value counts in the line's value at `tokens`, `[n]`; they sum to 1."""
        x = np.log2(self.tokens)
        return 1 / len(x) + (np.log2(tokens) - x.mean()) * (x - x.mean()) / ((x - x.mean()) ** 2).sum()

    def extrapolated(self, tokens: float) -> Interval:
        """`predicted`, widened by what other held-out windows would change: the line's value is a weighted sum of the
        pairs', and so it is one in every window."""
        seen, h = self.predicted(tokens), self.weights(tokens)
        text = mean_interval([np.tensordot(h, np.stack(domain), axes=1) for domain in zip(*self.windows, strict=True)])
        half = float(np.hypot(seen.high - seen.estimate, text.high - text.estimate))
        ends = (seen.estimate - half, seen.estimate + half)
        return Interval(seen.estimate, *ends, text.count, len(self.values), seen.df)

    def crossing(self) -> float | None:
        """Tokens at which the line is zero, where its slope is told from zero; beyond 2^100 it is as good as never."""
        at = -self.fitted.params[0] / self.fitted.params[1] if self.slope.sign() != "undecided" else np.inf
        return float(2.0 ** at) if 0 <= at <= 100 else None


def fit(tokens: Sequence[float], values: Sequence[float], windows: Sequence[Sequence[np.ndarray]] = ()) -> Trend | None:
    """The line, or None where the runs are too few or of one number of tokens alone."""
    x, y = np.asarray(tokens, dtype=float), np.asarray(values, dtype=float)
    require(x.shape == y.shape and x.ndim == 1 and bool((x > 0).all()) and bool(np.isfinite(y).all()), "tokens, values",
            (x.tolist(), y.tolist()), "as many finite values as positive numbers of tokens")
    if len(x) < LEAST or len(set(x.tolist())) < 2:
        return None
    from statsmodels.regression.linear_model import OLS
    return Trend(x, y, OLS(y, np.column_stack([np.ones_like(x), np.log2(x)])).fit(), windows)


def linearised(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Values whose mean is the ratio of all sums to all counts and whose spread is that ratio's, to first order.

    sums: `[S, N]`, of S seeds and N windows; counts: `[N]`, tokens of each window. The delta method: a window counts by
    what it differs from the ratio, so that windows without a token neither help nor hurt.
    """
    mean = counts.mean()
    ratio = sums.mean() / mean
    return ratio + (sums - ratio * counts) / mean

