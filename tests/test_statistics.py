"""Intervals, corrections and lines: the rule of verdicts on simulated models with known effects and known noise
(docs/statistics.md), closed forms, a bootstrap, and Holm by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from lib.errors import SuiteError
from suite.study.frames import as_table
from suite.study.stats import (ENOUGH_SEEDS, Interval, Noise, accuracy, accuracy_difference, correlation,
                               corrected_signs, fit, holm, linearised, mean_interval, minus, wilson)


PATTERNS, DOMAINS, WINDOWS = 5, 4, 32


def trained(rng, effects, seeds, of_seed=0.02, of_window=0.05):
    """Losses `[P][domain][S, N]` of patterns with these effects: text, seed, seed by pattern, and window by pattern."""
    text = rng.normal(0, 0.3, (DOMAINS, WINDOWS))
    shared = rng.normal(0, 0.03, seeds)
    found = []
    for effect in effects:
        own, runs = rng.normal(0, of_window, (DOMAINS, WINDOWS)), rng.normal(0, of_seed, seeds)
        found.append([effect + text[d] + own[d] + (shared + runs)[:, None] + rng.normal(0, 0.02, (seeds, WINDOWS))
                      for d in range(DOMAINS)])
    return found


def borrowed(models):
    return Noise.pooled([np.mean([d.mean(axis=1) for d in own], axis=0) for own in models], True)


def one_seed(models, seed, noise=True):
    """The interval of the last pattern minus the first, both of one seed; with noise borrowed from the others."""
    windows = minus(*([domain[[seed]] for domain in model] for model in (models[-1], models[0])))
    return mean_interval(windows, borrowed(models[:-1]) if noise else None)


@pytest.mark.parametrize("seeds, of_seed", [(3, 0.02), (3, 1.0), (3, 0.0), (5, 0.05), (1, 0.0), ("borrowed", 0.02)])
def test_when_models_have_a_known_effect_then_intervals_cover_it_in_93_to_97_per_cent(seeds, of_seed):
    rng, covered, rounds = np.random.default_rng(1), 0, 1000
    for _ in range(rounds):
        if seeds == "borrowed":
            found = one_seed(trained(rng, [0.0] * (PATTERNS - 1) + [0.03], ENOUGH_SEEDS, of_seed), 0)
        else:
            found = mean_interval(minus(*trained(rng, [0.03, 0.0], seeds, of_seed)))
            assert (found.seeds, found.count) == (seeds, DOMAINS * WINDOWS)
        covered += found.low <= 0.03 <= found.high
    assert 0.93 <= covered / rounds <= 0.97


def test_when_seeds_are_judged_one_by_one_then_none_contradicts_what_another_supports():
    """An effect as large as the noise: windows alone (the old rule) would turn around, the rule does not."""
    rng, turned, rounds = np.random.default_rng(2), {True: 0, False: 0}, 400
    for _ in range(rounds):
        models = trained(rng, [0.0] * (PATTERNS - 1) + [rng.normal(0, 0.02)], ENOUGH_SEEDS, of_window=0.01)
        for noise in turned:
            turned[noise] += {"above", "below"} <= {one_seed(models, seed, noise).sign() for seed in range(3)}
    assert turned[True] <= 0.005 * rounds < 0.1 * rounds <= turned[False]


def test_when_noise_is_pooled_then_it_is_the_analysis_of_variance_and_else_intervals_are_of_windows_alone():
    numbers = np.random.default_rng(4).normal(size=(5, 3))
    mean, by_pattern, by_seed = numbers.mean(), numbers.mean(1, keepdims=True), numbers.mean(0, keepdims=True)
    rest = numbers - by_pattern - by_seed + mean
    assert Noise.pooled(numbers, True) == pytest.approx((2 * (rest ** 2).sum() / 8, 8))
    assert Noise.pooled(numbers, False) == pytest.approx((((numbers - by_pattern) ** 2).sum() / 10, 10))
    shifted = numbers + 100 * np.arange(3)                     # what all patterns of a seed share is no noise of a pair
    assert Noise.pooled(shifted, True) == pytest.approx(Noise.pooled(numbers, True))
    few = trained(np.random.default_rng(3), [0.0] * 3, ENOUGH_SEEDS)
    assert borrowed(few) is None and Noise.pooled(np.zeros((4, 2)), True) is None
    assert not one_seed(few, 0).replicated and mean_interval(minus(few[1], few[0])).replicated


def test_when_a_further_seed_is_drawn_then_flip_is_how_often_it_shows_the_other_sign():
    """Over effects of all sizes: which of them is the true one is not known when `flip` is said."""
    rng, flips, expected, rounds = np.random.default_rng(5), 0, [], 1500
    for _ in range(rounds):
        models = trained(rng, [0.0] * (PATTERNS - 1) + [rng.uniform(-0.1, 0.1)], ENOUGH_SEEDS + 1, of_window=0.01)
        found = one_seed([[domain[:ENOUGH_SEEDS] for domain in model] for model in models], 0)
        flips += np.sign(one_seed(models, ENOUGH_SEEDS).estimate) != np.sign(found.estimate)
        expected.append(found.flip())
    assert np.mean(expected) == pytest.approx(flips / rounds, abs=0.03)
    assert 0.1 < flips / rounds < 0.3


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
    by_seed = np.array([0.0, 1.0, 2.0])[:, None] * counts + sums                          # three seeds that disagree
    wide = mean_interval([linearised(by_seed, counts)])
    assert wide.seeds == 3 and wide.high - wide.low > 20 * (found.high - found.low)
