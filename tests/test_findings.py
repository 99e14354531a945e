"""What notebooks say: intervals against closed forms, and sentences whose direction turns when the numbers turn."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from made_up_results import WINDOWS, one, results
from plans import planned
from scipy import stats

from lib.config import RunConfig
from lib.errors import SuiteError
from lib.patterns import build
from suite.claims.measures import patterns as exact
from suite.notebook import Notebook
from suite.plan.cost import training_flops
from suite.study import tables
from suite.study.conclusions import correlation, listing
from suite.study.findings import extrapolation, window_sweep
from suite.study.frames import NotTested, Study
from suite.study.stats import (mean_interval, paired_difference,
                               sample_std, wilson)

# Intervals

def test_when_windows_vary_then_the_interval_is_that_of_their_mean():
    sample = np.random.default_rng(1).normal(0.3, 0.2, 400)
    found = mean_interval([sample])
    half = 1.96 * sample.std(ddof=1) / math.sqrt(400)
    assert found.estimate == pytest.approx(sample.mean()) and found.count == 400
    assert found.low == pytest.approx(sample.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(sample.mean() + half, abs=0.1 * half)
    assert mean_interval([sample]) == found


def test_when_domains_differ_in_size_then_each_counts_alike():
    assert mean_interval([np.array([1.0, 1.0]), np.array([3.0] * 50)]).estimate == 2.0


def test_when_pairs_share_their_noise_then_the_interval_is_narrow():
    noise = np.random.default_rng(0).normal(0, 5, 100)
    paired = paired_difference([noise + 0.1], [noise])
    assert paired.low == pytest.approx(0.1) and paired.high == pytest.approx(0.1)
    with pytest.raises(SuiteError, match="same windows"):
        paired_difference([noise], [noise[:-1]])
    with pytest.raises(SuiteError, match="at least two"):
        mean_interval([np.array([1.0])])


@pytest.mark.parametrize("successes, trials", [(0, 10), (3, 10), (50, 100), (100, 100)])
def test_when_a_proportion_is_estimated_then_the_interval_is_wilsons(successes, trials):
    z, p = stats.norm.ppf(0.975), successes / trials
    middle = (p + z * z / 2 / trials) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(p * (1 - p) / trials + z * z / 4 / trials**2)
    found = wilson(successes, trials)
    assert (found.low, found.high) == (pytest.approx(middle - half, abs=1e-12), pytest.approx(middle + half, abs=1e-12))
    with pytest.raises(SuiteError):
        wilson(trials + 1, trials)


def test_when_a_spread_over_seeds_is_taken_then_it_is_the_samples():
    assert sample_std([1.0, 2.0, 3.0]) == 1.0


# Sentences

def test_when_names_are_listed_then_they_read_as_english():
    words = ["none", "a", "a and b", "a, b and c"]
    assert [listing(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == words
    for sign, word in ((-1, "falls"), (1, "rises")):
        assert f"The loss {word} with x" in correlation(range(10), sign * np.arange(10.0), "x", "The loss")
    assert "no monotone relation" in correlation(range(10), [0, 9, 1, 8, 2, 7, 3, 6, 4, 5], "x", "The loss")
    assert "too few different models (2)" in correlation([1, 2], [1, 2], "x", "The loss")


# Losses

def test_when_a_loss_is_read_then_it_is_what_the_windows_say_and_positions_select_bins():
    study = results("01_window_sweep", lambda series, length, variant: 3.0, noise=0.0)
    windows = study.windows("Dense")
    assert len(windows) == 2 and all(np.allclose(domain, 3.0) and domain.shape == (1, WINDOWS) for domain in windows)
    assert np.allclose(study.windows("Dense", positions=(8, 32))[0], 3.0)
    with pytest.raises(SuiteError, match="edges"):
        study.windows("Dense", positions=(8, 33))
    with pytest.raises(SuiteError, match="'Dense'"):
        study.windows("Dens")


def test_when_lengths_are_compared_then_the_same_tokens_are():
    study = results("03_extrapolation", lambda series, length, variant: 3.0 + (length > 64) * 0.5, noise=1.0)
    grew = study.growth("Dense", 256)
    assert grew.estimate == pytest.approx(0.5) and grew.high - grew.low < 1e-9      # the windows' noise cancels
    with pytest.raises(SuiteError, match="multiple"):
        study.growth("Dense", 100)


# Notebooks 1 and 3

def test_when_ours_is_beside_the_published_then_it_is_in_per_cent_of_fixed_rungs():
    study = results("01_window_sweep", one("Fibonacci, fixed", 2.9))
    table = window_sweep.beside_published(study, 4)
    assert table.loc["Fibonacci, linear ramp", "ours, %"] == pytest.approx(100 * math.expm1(0.1))
    assert table.loc["Fibonacci, fixed"].isna().sum() == 4 and table.loc["Fibonacci, fixed", "published, %"] == 0
    gain = study.by_position("Fibonacci, linear ramp", "Fibonacci, fixed")
    assert list(gain.index) == [0, 8, 16, 32] and np.allclose(gain["estimate"], 0.1)


def test_when_operations_are_counted_then_they_are_those_of_the_matrices_and_pairs():
    run = RunConfig(planned("04_power_law_sigma")[0].run.pattern)
    embedding_and_norms = 32_768 * 512 + 512 + 16 * 1024
    matrices = 60_850_688 - embedding_and_norms + 32_768 * 512
    assert training_flops(run, pairs=0) == 6 * matrices * run.train.tokens
    one_pair = training_flops(run, pairs=1) - training_flops(run, pairs=0)
    assert one_pair == pytest.approx(3 * 4 * 8 * 64 * run.train.steps * run.train.batch)


def test_when_the_papers_sizes_are_computed_then_the_audits_numbers_follow():
    assert exact.reach_difference() == 512 - 987    # row 1
    assert exact.distances_of_the_stack(window=8) == 133    # row 12
    assert exact.depths_without_coprime() == 4    # row 25: 2, 3, 4 and 6
    grows = {schedule: exact.paper_pattern(schedule=schedule) for schedule in ("linear", "fixed")}
    table = extrapolation.rungs_added(grows | {"pow2": exact.paper_pattern("pow2", "linear")}, 1024, 4096)
    assert table["layers with untrained distances"].to_dict() == {"linear": 7, "fixed": 0, "pow2": 16}    # row 2
    assert table["untrained distances"].drop("pow2").to_dict() == {"linear": "1086 to 1480", "fixed": "none"}


def test_when_the_plan_is_shown_then_its_controls_have_their_pairs_and_one_that_is_off_is_refused(monkeypatch, capsys):
    study = results("01_window_sweep", lambda series, length, variant: 3.0)
    nb = SimpleNamespace(study=study, note=print)
    assert "Local window, equal edges" in Notebook.plan(nb).to_html() and "within 0." in capsys.readouterr().out
    monkeypatch.setattr(Study, "plan", study.plan.assign(**{"equal to": study.plan["equal to"] * 1.05}))
    with pytest.raises(SuiteError, match="off the attended pairs"):
        Notebook.plan(nb)


def test_when_several_windows_are_trained_then_names_tell_them_apart():
    described = [("A", 6, ""), ("A", 8, ""), ("B", 6, "x"), ("C", -1, "")]
    assert tables.unique_names(described) == ["A, W=6", "A, W=8", "B, x", "C"]


def test_when_a_table_lacks_what_is_asked_then_the_error_says_what_there_is():
    study = results("01_window_sweep", lambda series, length, variant: 3.0)
    runs = study.table
    with pytest.raises(SuiteError, match="'perplexity'"):
        tables.select(runs, "perplexty")
    with pytest.raises(SuiteError, match="no nll"):
        tables.select(runs, "nll", length=999)
    with pytest.raises(NotTested, match="Power law"):
        study.find("Power law")


def test_when_a_pattern_has_no_offsets_then_the_stack_is_counted_from_its_edges():
    patterns = {"local": build("local", window=3, layers=2), "power": build("power_law", window=2, budget=6, layers=2)}
    table = window_sweep.stack_table(patterns, 16)
    assert table.loc["local", ["stack", "sums of two"]].tolist() == [4, 7] and table.loc["power", "stack"] > 6
