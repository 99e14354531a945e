"""Intervals, corrections and lines: coverage on simulated runs, closed forms, a bootstrap, and Holm by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from lib.errors import SuiteError
from suite.study.frames import as_table
from suite.study.stats import (Interval, accuracy, accuracy_difference, correlation, corrected_signs, fit, holm,
                               linearised, mean_interval, minus, wilson)


def simulated(rng: np.random.Generator, seeds: int, windows: int, between: float) -> list[np.ndarray]:
    """Differences of two domains whose true mean is 0: each seed, window and pair has an effect of its own."""
    own = rng.normal(0, between, (seeds, 1))
    return [own + rng.normal(0, 1, (1, windows)) + rng.normal(0, 0.3, (seeds, windows)) for _ in range(2)]


# Satterthwaite's interval of three seeds holds the truth in 92 to 95 % of the cases: where seeds and windows matter
# alike, a small spread of the three is taken for none. Below this share of 300 a right interval falls once in a
# thousand.
LEAST = stats.binom.ppf(0.001, 300, 0.92) / 300


@pytest.mark.parametrize("seeds, between, windows",
                         [(3, 1.0, 40), (3, 0.0, 40), (3, 0.15, 40), (5, 0.5, 20), (1, 0.0, 12)])
def test_when_runs_are_simulated_then_the_interval_holds_the_truth_as_often_as_it_says(seeds, between, windows):
    rng = np.random.default_rng(seeds * 100 + windows)
    found = [mean_interval(simulated(rng, seeds, windows, between)) for _ in range(300)]
    assert np.mean([own.low <= 0 <= own.high for own in found]) >= LEAST
    assert {(own.seeds, own.count) for own in found} == {(seeds, 2 * windows)}


def test_when_three_seeds_decide_then_the_interval_is_nearly_students_over_them():
    """Oracle: with many windows that hardly vary, the runs' means are three numbers, and Student's t is the answer."""
    runs = np.array([0.1, 0.2, 0.6])
    table = runs[:, None] + np.random.default_rng(0).normal(0, 1e-3, (1, 50))
    half = stats.t.ppf(0.975, 2) * runs.std(ddof=1) / math.sqrt(3)
    assert mean_interval([runs[:, None]]).high == pytest.approx(0.3 + half)
    found = mean_interval([table])
    assert found.estimate == pytest.approx(0.3, abs=1e-3) and found.seeds == 3
    assert found.high - found.low == pytest.approx(2 * half, rel=0.01) and found.df == pytest.approx(2, abs=0.01)


def test_when_there_are_one_or_two_seeds_then_the_interval_is_of_their_mean_over_windows_only():
    table = np.random.default_rng(1).normal(0, 1, (1, 60)) + np.array([[0.0], [10.0]])
    found, mean = mean_interval([table]), table.mean(axis=0)
    half = stats.t.ppf(0.975, 59) * mean.std(ddof=1) / math.sqrt(60)
    for own, seeds in ((found, 2), (mean_interval([mean]), 1)):
        assert (own.low, own.high) == pytest.approx((mean.mean() - half, mean.mean() + half)) and own.seeds == seeds


def test_when_domains_differ_in_size_then_each_counts_alike_and_without_spread_p_is_certain():
    assert mean_interval([np.array([1.0, 1.0]), np.array([3.0] * 50)]).estimate == 2.0
    found = mean_interval([np.full((3, 9), 0.25)])
    assert (found.low, found.high, found.p(0.25), found.p(0.0)) == (found.estimate, found.estimate, 1.0, 0.0)


@pytest.mark.parametrize("wrong, words", [
    (lambda: mean_interval([np.zeros((2, 5)), np.zeros((3, 5))]), "as many seeds"),
    (lambda: mean_interval([np.array([1.0, np.nan])]), "finite"),
    (lambda: minus([np.zeros((2, 5))], [np.zeros((3, 5))]), "same windows")])
def test_when_values_cannot_be_compared_then_they_are_refused(wrong, words):
    with pytest.raises(SuiteError, match=words):
        wrong()


@pytest.mark.parametrize("df", [2.0, 30.0, math.inf])
def test_when_a_boundary_is_an_end_of_the_interval_then_its_p_is_five_per_cent(df):
    found = Interval(0.3, 0.1, 0.6, 9, 3, df)            # skewed: each side has its own width
    assert found.p(0.1) == pytest.approx(0.05) and found.p(0.6) == pytest.approx(0.05)
    assert found.p(0.3) == 1.0 and found.p(0.0) < 0.05 < found.p(0.2)
    assert found.p(-1) < found.p(0) < 0.05


def test_when_many_are_compared_then_holm_multiplies_and_a_word_needs_more_than_its_own_interval():
    p = [0.04, 0.001, 0.03]
    assert holm(p) == pytest.approx([0.06, 0.003, 0.06])          # 2 x 0.03 and 3 x 0.001; never below a smaller one's
    assert holm([]) == [] and holm([0.2]) == [0.2]
    near, clear = Interval(-0.1, -0.19, -0.01, 9), Interval(0.1, 0.08, 0.12, 9)         # both apart from 0 if alone
    unsure = dict.fromkeys(range(5), Interval(0.0, -0.1, 0.1, 9))
    assert corrected_signs(as_table({"near": near})) == ["below"]
    assert corrected_signs(as_table({"near": near, "clear": clear, **unsure}))[:2] == ["undecided", "above"]


def test_when_two_quantities_go_together_or_not_then_the_sentence_says_so():
    for sign, word in ((-1, "falls"), (1, "rises")):
        assert f"The loss {word} with x" in correlation(range(10), sign * np.arange(10.0), "x", "The loss")
    assert "no monotone relation" in correlation(range(10), [0, 9, 1, 8, 2, 7, 3, 6, 4, 5], "x", "The loss")
    assert "too few different models (2)" in correlation([1, 2], [1, 2], "x", "The loss")


@pytest.mark.parametrize("successes, trials", [(0, 10), (3, 10), (50, 100), (100, 100)])
def test_when_a_proportion_is_estimated_then_the_interval_is_wilsons(successes, trials):
    found, oracle = wilson(successes, trials), stats.binomtest(successes, trials).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((oracle.low, oracle.high), abs=1e-12)


def test_when_answers_are_scored_then_items_count_once_whatever_the_seeds():
    assert accuracy(np.array([[1, 0, 1, 1], [1, 1, 1, 0]])) == replace(wilson(3, 4, 2), replicated=False)
    never = accuracy(np.zeros((1, 50)))
    assert (never.estimate, never.low) == (0, 0) and 0.05 < never.high < 0.1
    three = accuracy(np.array([[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]]))
    assert three.seeds == 3 and three.estimate == pytest.approx(0.5) and three.df < 10


def test_when_two_accuracies_are_compared_then_pairs_help_and_newcombe_stands_in():
    rng = np.random.default_rng(0)
    easy = rng.random(400) < 0.5
    paired = accuracy_difference(easy, easy & (rng.random(400) < 0.9))
    assert paired.sign() == "above" and paired.high - paired.low < 0.1      # unpaired it would be 0.14 wide
    all_right, all_wrong = np.ones(40), np.zeros(40)
    found, width = accuracy_difference(all_right, all_wrong), wilson(0, 40).high
    assert found.estimate == 1 and found.high == 1 and found.low == pytest.approx(1 - math.hypot(width, width))
    same = accuracy_difference(all_wrong, all_wrong)
    assert same.estimate == 0 and same.low < 0 < same.high


TOKENS = [1e6, 2e6, 4e6, 4e6, 4e6]
VALUES = [0.030, 0.022, 0.010, 0.014, 0.009]


def test_when_a_line_is_fitted_then_slope_and_prediction_are_the_textbooks_wider_where_windows_disagree():
    x, n, far, t = np.log2(TOKENS), 5, math.log2(64e6), stats.t.ppf(0.975, 3)
    oracle, ssx = stats.linregress(x, VALUES), ((x - x.mean()) ** 2).sum()
    half = t * oracle.stderr * math.sqrt(ssx * (1 + 1 / n) + (far - x.mean()) ** 2)
    trend = fit(TOKENS, VALUES, [[np.full(50, value)] for value in VALUES])                   # windows that agree
    found = trend.extrapolated(64e6)
    assert trend.slope.estimate == pytest.approx(oracle.slope) and trend.slope.sign() == "below"
    assert trend.slope.high - oracle.slope == pytest.approx(t * oracle.stderr)
    assert found.estimate == pytest.approx(oracle.intercept + oracle.slope * far)
    assert (found.high - found.estimate, found.estimate - found.low) == pytest.approx((half, half))
    common = np.random.default_rng(0).normal(0, 0.2, 50)  # what a window does to every pair alike: no residual shows it
    common -= common.mean()
    wide = fit(TOKENS, VALUES, [[value + common, np.full(20, value)] for value in VALUES]).extrapolated(64e6)
    by_text = mean_interval([common, np.zeros(20)])
    assert wide.estimate == pytest.approx(found.estimate)
    assert wide.high - wide.estimate == pytest.approx(math.hypot(half, by_text.high), rel=1e-6)


@pytest.mark.parametrize("slope, crossing", [(-0.01, 2 ** 24), (0.0, None), (0.01, 2 ** 16)])
def test_when_the_line_is_followed_then_it_crosses_zero_where_it_does_and_two_points_or_one_length_have_none(
        slope, crossing):
    x = np.array([19.0, 20.0, 20.0, 21.0, 21.0])
    noise = np.array([0, 1e-6, -1e-6, 1e-6, -1e-6])
    found = fit(2 ** x, 0.04 + slope * (x - 20) + noise, ()).crossing()
    assert found is None if crossing is None else found == pytest.approx(crossing, rel=1e-2)
    assert fit([1e6, 2e6], [0.1, 0.2], ()) is None and fit([2e6] * 4, [0.1, 0.2, 0.3, 0.4], ()) is None


def test_when_windows_hold_different_numbers_of_tokens_then_the_ratio_has_the_interval_of_a_paired_bootstrap():
    rng = np.random.default_rng(1)
    counts = rng.poisson(3, 300).astype(float)            # some windows have no token at all
    sums = counts * 0.05 + rng.normal(0, 0.3, 300) * np.sqrt(counts)
    found = mean_interval([linearised(sums[None], counts)])
    assert found.estimate == pytest.approx(sums.sum() / counts.sum())
    oracle = stats.bootstrap((sums, counts), lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis), paired=True,
                             vectorized=True, n_resamples=4000, method="percentile",
                             rng=np.random.default_rng(2)).confidence_interval
    ends = (oracle.low, oracle.high)
    assert (found.low, found.high) == pytest.approx(ends, abs=0.15 * (oracle.high - oracle.low))


def test_when_seeds_disagree_then_the_ratios_interval_knows_it():
    counts = np.full(100, 4.0)
    sums = np.array([0.0, 0.1, 0.2])[:, None] * counts + np.random.default_rng(0).normal(0, 0.01, (3, 100))
    wide, narrow = mean_interval([linearised(sums, counts)]), mean_interval([linearised(sums[:1], counts)])
    assert wide.seeds == 3 and wide.high - wide.low > 20 * (narrow.high - narrow.low)
