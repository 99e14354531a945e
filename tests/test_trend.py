"""Lines over log tokens against the textbook's formulas, and ratios whose intervals are those of a paired bootstrap."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from lib.errors import SuiteError
from suite.study.stats import mean_interval
from suite.study.trend import fit, linearised

TOKENS = [1e6, 2e6, 4e6, 4e6, 4e6]
VALUES = [0.030, 0.022, 0.010, 0.014, 0.009]


def test_when_a_line_is_fitted_then_slope_and_prediction_are_the_textbooks():
    trend = fit(TOKENS, VALUES)
    x, y, n = np.log2(TOKENS), np.array(VALUES), 5
    ssx = ((x - x.mean()) ** 2).sum()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ssx
    spread = math.sqrt(((y - y.mean() - slope * (x - x.mean())) ** 2).sum() / (n - 2))
    t = stats.t.ppf(0.975, n - 2)
    assert trend.slope.estimate == pytest.approx(slope)
    assert trend.slope.high - slope == pytest.approx(t * spread / math.sqrt(ssx))
    far = math.log2(64e6)
    found = trend.predicted(64e6)
    assert found.estimate == pytest.approx(y.mean() + slope * (far - x.mean()))
    assert found.high - found.estimate == pytest.approx(t * spread * math.sqrt(1 + 1 / n + (far - x.mean()) ** 2 / ssx))
    assert trend.longest == 4_000_000 and trend.slope.sign() == "below"
    assert trend.weights(64e6).sum() == pytest.approx(1) and trend.weights(64e6) @ y == pytest.approx(found.estimate)


def test_when_runs_are_too_few_or_of_one_length_then_there_is_no_line():
    assert fit([1e6, 2e6], [0.1, 0.2]) is None and fit([2e6] * 4, [0.1, 0.2, 0.3, 0.4]) is None
    with pytest.raises(SuiteError, match="tokens, values"):
        fit([0, 1, 2], [1.0, 1.0, 1.0])
    with pytest.raises(SuiteError, match="tokens, values"):
        fit([1, 2, 3], [1.0, math.nan, 1.0])


def test_when_other_windows_would_change_the_line_then_the_extrapolation_is_wider_by_that():
    rng = np.random.default_rng(0)
    common = rng.normal(0, 0.2, 50)                       # what a window does to every pair alike: no residual shows it
    windows = [[value + common - common.mean(), np.full(20, value)] for value in VALUES]
    trend = fit(TOKENS, VALUES, windows)
    plain, wide = trend.predicted(64e6), trend.extrapolated(64e6)
    assert wide.estimate == pytest.approx(plain.estimate)
    by_text = mean_interval([common - common.mean(), np.zeros(20)])
    assert wide.high - wide.estimate == pytest.approx(math.hypot(plain.high - plain.estimate, by_text.high), rel=1e-6)
    fixed = fit(TOKENS, VALUES, [[np.full(50, value)] for value in VALUES]).extrapolated(64e6)
    assert fixed.high == pytest.approx(plain.high), "windows that agree widen nothing"


@pytest.mark.parametrize("slope, crossing", [(-0.01, 2 ** 24), (0.0, None), (0.01, 2 ** 16)])
def test_when_the_line_is_followed_then_it_crosses_zero_where_it_does(slope, crossing):
    x = np.array([19.0, 20.0, 20.0, 21.0, 21.0])
    noise = np.array([0, 1e-6, -1e-6, 1e-6, -1e-6])
    found = fit(2 ** x, 0.04 + slope * (x - 20) + noise).crossing()
    assert found is None if crossing is None else found == pytest.approx(crossing, rel=1e-2)


def test_when_windows_hold_different_numbers_of_tokens_then_the_ratio_has_the_interval_of_a_paired_bootstrap():
    rng = np.random.default_rng(1)
    counts = rng.poisson(3, 300).astype(float)            # some windows have no token at all
    sums = counts * 0.05 + rng.normal(0, 0.3, 300) * np.sqrt(counts)
    found = mean_interval([linearised(sums[None], counts)])
    assert found.estimate == pytest.approx(sums.sum() / counts.sum())

    def ratio(a, b, axis=-1):
        return a.sum(axis=axis) / b.sum(axis=axis)
    oracle = stats.bootstrap((sums, counts), ratio, paired=True, vectorized=True, n_resamples=4000, method="percentile",
                             rng=np.random.default_rng(2)).confidence_interval
    assert found.low == pytest.approx(oracle.low, abs=0.15 * (oracle.high - oracle.low))
    assert found.high == pytest.approx(oracle.high, abs=0.15 * (oracle.high - oracle.low))


def test_when_every_token_differs_alike_then_it_does_not_matter_how_many_a_window_holds():
    counts = np.random.default_rng(0).poisson(3, 50).astype(float)
    assert linearised(0.05 * counts[None], counts) == pytest.approx(0.05 * np.ones((1, 50)))


def test_when_seeds_disagree_then_the_ratios_interval_knows_it():
    counts = np.full(100, 4.0)
    sums = np.array([0.0, 0.1, 0.2])[:, None] * counts + np.random.default_rng(0).normal(0, 0.01, (3, 100))
    wide, narrow = mean_interval([linearised(sums, counts)]), mean_interval([linearised(sums[:1], counts)])
    assert wide.seeds == 3 and wide.high - wide.low > 20 * (narrow.high - narrow.low)
