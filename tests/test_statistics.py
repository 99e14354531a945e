"""Intervals over windows and seeds: coverage on simulated runs, p values, proportions and Holm's correction by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from lib.errors import SuiteError
from suite.study.conclusions import corrected_signs
from suite.study.stats import (Interval, accuracy, accuracy_difference,
                               mean_interval, holm, mean_over_runs,
                               paired_difference, seed_words, wilson)


def simulated(rng: np.random.Generator, seeds: int, windows: int, between: float) -> list[np.ndarray]:
    """Differences of two domains whose true mean is 0: each seed and each window has an effect of its own, and each
    pair."""
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
    assert {own.seeds for own in found} == {seeds}


def test_when_seeds_differ_then_an_interval_over_windows_alone_would_claim_too_much():
    rng = np.random.default_rng(3)
    drawn = [simulated(rng, 3, 40, 1.0) for _ in range(100)]
    alone = [mean_interval([d.mean(axis=0) for d in own]) for own in drawn]
    both = [mean_interval(own) for own in drawn]
    assert np.mean([own.low <= 0 <= own.high for own in alone]) < 0.6
    assert np.median([own.se for own in both]) > 1.5 * np.median([own.se for own in alone])


def test_when_three_seeds_decide_then_the_interval_is_nearly_students_over_them():
    """Oracle: with many windows that hardly vary, the runs' means are three numbers, and Student's t is the answer."""
    runs = np.array([0.1, 0.2, 0.6])
    table = runs[:, None] + np.random.default_rng(0).normal(0, 1e-3, (1, 50))
    found, oracle = mean_interval([table]), mean_over_runs(runs)
    assert oracle.high == pytest.approx(0.3 + stats.t.ppf(0.975, 2) * runs.std(ddof=1) / math.sqrt(3))
    assert found.estimate == pytest.approx(0.3, abs=1e-3)
    assert found.high - found.low == pytest.approx(oracle.high - oracle.low, rel=0.01)
    assert found.df == pytest.approx(2, abs=0.01) and (found.seeds, oracle.seeds) == (3, 3)


def test_when_there_are_two_seeds_then_the_interval_is_of_their_mean_over_windows_only():
    table = np.random.default_rng(1).normal(0, 1, (1, 60)) + np.array([[0.0], [10.0]])
    found = mean_interval([table])
    alone = mean_interval([table.mean(axis=0)])
    assert (found.low, found.high) == (pytest.approx(alone.low), pytest.approx(alone.high))
    assert found.seeds == 2 and found.high - found.low < 1


def test_when_strata_differ_in_their_seeds_then_they_are_refused():
    with pytest.raises(SuiteError, match="as many seeds"):
        mean_interval([np.zeros((2, 5)), np.zeros((3, 5))])
    with pytest.raises(SuiteError, match="same windows"):
        paired_difference([np.zeros((2, 5))], [np.zeros((3, 5))])
    with pytest.raises(SuiteError, match="finite"):
        mean_interval([np.array([1.0, np.nan])])


@pytest.mark.parametrize("df", [2.0, 30.0, math.inf])
def test_when_a_boundary_is_an_end_of_the_interval_then_its_p_is_five_per_cent(df):
    found = Interval(0.3, 0.1, 0.6, 9, 3, df)            # skewed: each side has its own width
    assert found.p(0.1) == pytest.approx(0.05) and found.p(0.6) == pytest.approx(0.05)
    assert found.p(0.3) == 1.0 and found.p(0.0) < 0.05 < found.p(0.2)
    assert found.p(-1) < found.p(0) < 0.05
    assert found.se == pytest.approx(0.25 / stats.t.ppf(0.975, df))


def test_when_nothing_varies_then_p_is_certain():
    found = mean_interval([np.full((3, 9), 0.25)])
    assert (found.low, found.high, found.p(0.25), found.p(0.0)) == (found.estimate, found.estimate, 1.0, 0.0)


def test_when_many_are_compared_then_holm_multiplies_the_smallest_by_their_number():
    p = [0.04, 0.001, 0.03]
    assert holm(p) == pytest.approx([0.06, 0.003, 0.06])          # 2 x 0.03 and 3 x 0.001; never below a smaller one's
    assert holm([]) == [] and holm([0.2]) == [0.2]


def test_when_many_are_compared_then_a_word_needs_more_than_its_own_interval():
    near = Interval(-0.1, -0.19, -0.01, 9)               # alone below 0
    unsure = [Interval(0.0, -0.1, 0.1, 9)] * 5
    assert corrected_signs([near]) == ["below"] and corrected_signs([near, *unsure])[0] == "undecided"
    assert corrected_signs([Interval(0.1, 0.08, 0.12, 9), *unsure])[0] == "above"


def test_when_answers_are_scored_then_items_count_once_whatever_the_seeds():
    right = np.array([[1, 0, 1, 1], [1, 1, 1, 0]])
    found = accuracy(right)
    assert found == wilson(3, 4, 2)
    never = accuracy(np.zeros((1, 50)))
    assert (never.estimate, never.low) == (0, 0) and 0.05 < never.high < 0.1
    three = accuracy(np.array([[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]]))
    assert three.seeds == 3 and three.estimate == pytest.approx(0.5) and three.df < 10


def test_when_two_accuracies_are_compared_then_pairs_help_and_newcombe_stands_in():
    rng = np.random.default_rng(0)
    easy = rng.random(400) < 0.5
    a, b = easy.astype(float), (easy & (rng.random(400) < 0.9)).astype(float)
    paired = accuracy_difference(a, b)
    assert paired.sign() == "above" and paired.high - paired.low < 0.1      # unpaired it would be 0.14 wide
    all_right, all_wrong = np.ones(40), np.zeros(40)
    found = accuracy_difference(all_right, all_wrong)
    width = wilson(0, 40).high                             # Newcombe: 1 - sqrt(width^2 + width^2)
    assert found.estimate == 1 and found.high == 1 and found.low == pytest.approx(1 - math.hypot(width, width))
    same = accuracy_difference(all_wrong, all_wrong)
    assert same.estimate == 0 and same.low < 0 < same.high


def test_when_seeds_are_few_then_a_sentence_says_so():
    assert [seed_words(n) for n in (0, 1, 2, 3)] == ["", "one seed", "two seeds", ""]
