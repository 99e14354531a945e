"""The rule of verdicts on simulated models with known effects and known noise of seeds (docs/statistics.md)."""

import numpy as np
import pytest

from suite.study.stats import ENOUGH_SEEDS, Noise, mean_interval

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


def minus(a, b, seeds=slice(None)):
    return [x[seeds] - y[seeds] for x, y in zip(a, b, strict=True)]


def borrowed(models, paired=True):
    return Noise.pooled([np.mean([d.mean(axis=1) for d in own], axis=0) for own in models], paired)


def one_seed(models, seed):
    """The interval of the last pattern minus the first, both of one seed, with noise borrowed from the others."""
    return mean_interval(minus(models[-1], models[0], [seed]), borrowed(models[:-1]))


@pytest.mark.parametrize("seeds", ["three seeds", "one seed, borrowed noise"])
def test_when_models_have_a_known_effect_then_intervals_cover_it_in_93_to_97_per_cent(seeds):
    rng, covered, rounds = np.random.default_rng(1), 0, 1500
    for _ in range(rounds):
        models = trained(rng, [0.0] * (PATTERNS - 1) + [0.03], ENOUGH_SEEDS)
        if seeds == "three seeds":
            found = mean_interval(minus(models[-1], models[0]))
        else:
            found = one_seed(models, 0)
        covered += found.low <= 0.03 <= found.high
    assert 0.93 <= covered / rounds <= 0.97


def test_when_seeds_are_judged_one_by_one_then_none_contradicts_what_another_supports():
    """An effect as large as the noise: windows alone (the old rule) would turn around, the rule does not."""
    rng, turned, by_windows, rounds = np.random.default_rng(2), 0, 0, 400
    for _ in range(rounds):
        models = trained(rng, [0.0] * (PATTERNS - 1) + [rng.normal(0, 0.02)], ENOUGH_SEEDS, of_window=0.01)
        for count, intervals in enumerate([[one_seed(models, seed) for seed in range(ENOUGH_SEEDS)],
                                           [mean_interval(minus(models[-1], models[0], [seed])) for seed in range(3)]]):
            signs = {own.sign() for own in intervals}
            turned += count == 0 and {"above", "below"} <= signs
            by_windows += count == 1 and {"above", "below"} <= signs
    assert turned <= 0.005 * rounds < 0.1 * rounds <= by_windows


def test_when_there_is_nothing_to_borrow_then_an_interval_says_that_it_is_of_windows_alone():
    models = trained(np.random.default_rng(3), [0.0] * 3, ENOUGH_SEEDS)
    assert borrowed(models) is None and Noise.pooled(np.zeros((4, 2)), True) is None
    assert not mean_interval(minus(models[1], models[0], [0])).replicated
    assert mean_interval(minus(models[1], models[0])).replicated


def test_when_noise_is_pooled_then_it_is_the_analysis_of_variance():
    numbers = np.random.default_rng(4).normal(size=(5, 3))
    mean, by_pattern, by_seed = numbers.mean(), numbers.mean(1, keepdims=True), numbers.mean(0, keepdims=True)
    rest = numbers - by_pattern - by_seed + mean
    assert Noise.pooled(numbers, True) == pytest.approx((2 * (rest ** 2).sum() / 8, 8))
    assert Noise.pooled(numbers, False) == pytest.approx((((numbers - by_pattern) ** 2).sum() / 10, 10))
    shifted = numbers + 100 * np.arange(3)                     # what all patterns of a seed share is no noise of a pair
    assert Noise.pooled(shifted, True) == pytest.approx(Noise.pooled(numbers, True))


def test_when_a_further_seed_is_drawn_then_flip_is_how_often_it_shows_the_other_sign():
    """Over effects of all sizes: which of them is the true one is not known when `flip` is said."""
    rng, flips, expected, rounds = np.random.default_rng(5), 0, [], 1500
    for _ in range(rounds):
        models = trained(rng, [0.0] * (PATTERNS - 1) + [rng.uniform(-0.1, 0.1)], ENOUGH_SEEDS + 1, of_window=0.01)
        known = [[d[:ENOUGH_SEEDS] for d in own] for own in models]
        found = one_seed(known, 0)
        further = np.mean([d.mean() for d in minus(models[-1], models[0], [ENOUGH_SEEDS])])
        flips += np.sign(further) != np.sign(found.estimate)
        expected.append(found.flip())
    assert np.mean(expected) == pytest.approx(flips / rounds, abs=0.03)
    assert 0.1 < flips / rounds < 0.3
