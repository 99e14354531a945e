"""Controls and published numbers in notebooks 1 to 6: tables against numbers that a test chose, sentences turned by them."""

from __future__ import annotations

from dataclasses import replace
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from made_up_results import MadeUpDatabase, one, results
from plans import planned

from lib import paths as where
from lib.patterns import build
from suite.experiments import experiment
from suite.experiments.power_law_sigma import draws_for
from suite.settings import profiles
from suite.study import tables
from suite.study.findings import (capacity_battery, christoffel, extrapolation,
                                  power_law_sigma, published_battery,
                                  published_lengths, window_sweep)
from suite.study.frames import Study
from suite.study.stats import wilson


def test_when_curves_are_beside_the_published_then_both_are_against_fixed_rungs_on_tokens():
    study = results("01_window_sweep", one("Fibonacci, linear ramp", 2.9))[2].study
    theirs, ours = window_sweep.relative_curves(study, 4).values()
    a_step = study["Fibonacci, fixed"].run.train.batch * 64
    assert list(ours.index) == [10 * a_step, 20 * a_step]
    assert ours["Fibonacci, linear ramp"].to_numpy() == pytest.approx([math.exp(-0.1)] * 2)
    assert theirs.index[0] == 500 * 32768 and theirs.index[-1] == 13000 * 32768
    own = pd.read_csv(where.PUBLISHED / "training_curves.csv").query("base == 'fibonacci' and window == 8 and seed == 42 and step == 13000")
    ends = own.groupby("schedule")["perplexity"].apply(lambda values: float(np.exp(np.log(values).mean())))
    assert theirs["Fibonacci, linear ramp"].iloc[-1] == pytest.approx(ends["staggered"] / ends["fixed"])


def test_when_seeds_differ_then_the_spread_is_the_samples_in_per_cent():
    jobs = planned("01_window_sweep", seeds=(1, 2, 3))
    study = Study(jobs, MadeUpDatabase(lambda job, length, variant: 3.0 + 0.01 * job.run.train.seed))
    table = window_sweep.seed_spread(study)
    assert table.loc["Dense", "ours, %"] == pytest.approx(1.0) and table["published, %"].notna().sum() >= 3


def test_when_the_documents_draws_are_beside_the_budget_then_pairs_and_the_sign_of_the_difference_are_said():
    for draws, words in ((2.9, "lower loss in 1, a higher in 0"), (3.1, "lower loss in 0, a higher in 1")):
        _, runs, losses = results("04_power_law_sigma", one("Power law, draws", draws))
        table = power_law_sigma.modes_table(losses)
        assert list(table["draws"]) == [draws_for(0.85, 12, 4, 64)] and table["estimate"].iloc[0] == pytest.approx(draws - 3)
        assert words in power_law_sigma.say_modes(table)
        curve = power_law_sigma.curve(runs)
        assert list(curve) == ["Power law, B=12", "Power law, draws, B=12"] and curve.iloc[:, 1].count() == 1
        assert "lowest loss is at" in power_law_sigma.say_curve(curve, losses)
    assert "No model" in power_law_sigma.say_modes(table.iloc[:0])


def test_when_draws_are_counted_out_for_a_budget_then_the_drawn_graphs_have_its_pairs():
    for sigma, budget, radius, length in ((0.85, 32, 8, 256), (0.5, 16, 8, 200), (1.2, 20, 4, 128)):
        m, wanted = draws_for(sigma, budget, radius, length), np.minimum(budget, np.arange(length) + 1).sum()
        fewer, pattern, more = (build("power_law", mode="draws", sigma=sigma, draws=n, window=radius)
                                for n in (m - 1, m, m + 1))
        drawn, expected = (replace(pattern, layers=8).pairs(length) / 8, pattern.expected_pairs(length))
        assert drawn == pytest.approx(wanted, rel=0.01) and drawn == pytest.approx(expected, rel=0.01)
        assert fewer.expected_pairs(length) < wanted or more.expected_pairs(length) > wanted


def test_when_a_layer_hardly_learns_then_its_gradient_norm_says_so():
    _, runs, _ = results("05_christoffel", lambda series, length, variant: 3.0)
    table = christoffel.gradient_norms(runs)
    assert list(table.index) == [0, 1, 2, 3, 4] and "Dense" in table and table.iloc[4].eq(0.2).all()
    dead = table.assign(**{"Christoffel 7/64": [1.0, 0.5, 0.0, 1.0, 1.0]})
    said = christoffel.say_gradient_norms(dead)
    assert "from 0.00 (Christoffel 7/64) to 0.20" in said and "Dense has 0.20" in said


def test_when_tasks_are_trained_with_and_without_a_window_then_each_is_a_row_of_its_own():
    profile = profiles.load("smoke")
    parameters = profile.parameters("05_christoffel").model_copy(
        update={"task_windows": (0, 4), "task_masks": ("dense", "words", "local")})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="christoffel")
        jobs = experiment("05_christoffel").plan(parameters, profile)
        database = MadeUpDatabase(lambda *_: 3.0, accuracy=lambda job: 0.25 + (job.labels.window or 0) / 10)
        runs = experiment("05_christoffel").table(jobs, database)
    table = christoffel.task_table(runs)
    assert set(table.index) == {"Dense", *(f"{name}, W={window}" for window in (0, 4) for name in
                                           ("Christoffel 8/64", "Christoffel 7/64", "Local window, equal edges"))}
    assert table.loc["Christoffel 8/64, W=4", "estimate"] == pytest.approx(0.65) and len(table) == 7
    of_tasks = {job.labels.series: job.run for job in jobs if job.run.data.source != "text"}
    assert of_tasks["Christoffel 7/64"].train.length == 64 and len(of_tasks) == 4


def battery(accuracy):
    """Jobs, names, database and table of notebook 6 with fixed rungs too; `accuracy` by series."""
    profile = profiles.load("smoke")
    parameters = profile.parameters("06_capacity_battery").model_copy(
        update={"models": ("fibonacci/fixed", "fibonacci/linear"), "widths": (16,)})
    jobs = experiment("06_capacity_battery").plan(parameters, profile)
    database = MadeUpDatabase(lambda *_: 3.0, accuracy=accuracy)
    runs = experiment("06_capacity_battery").table(jobs, database)
    sizes = runs["parameters"].where(runs["setting"] != "d_model 16", 500)
    return jobs, tables.job_names(jobs), database, runs.assign(parameters=sizes)


def of(series: str, high: float):
    return lambda job: high if job.labels.series == series else 0.5


def test_when_the_ramp_answers_better_or_worse_than_fixed_then_it_is_said_beside_the_published_sign():
    theirs = pd.read_csv(where.PUBLISHED / "battery.csv").query("task == 'blimp' and metric == 'accuracy' and window == 12")
    mean = theirs[theirs["base"] == "fibonacci"].groupby("schedule")["value"].mean()
    for high, sign in ((0.9, 1), (0.1, -1)):
        jobs, names, database, runs = battery(of("Fibonacci, linear ramp", high))
        table = published_battery.ramp_against_fixed(jobs, names, database, runs)
        assert table.loc["blimp", "published"] == pytest.approx(mean["staggered"] - mean["fixed"])
        assert np.sign(table["ours"]).eq(sign).all() and (table["low"] * table["high"] > 0).all()
        same = int((np.sign(table["published"]) == sign).sum())
        assert f"{len(table)} are decided here (intervals over items, one seed), {same} of them" in published_battery.say_beside(table)
    beside = published_battery.beside(runs)
    own = beside.loc[("blimp", "blimp accuracy", "Fibonacci, linear ramp")]
    assert own["published"] == pytest.approx(mean["staggered"]) and own["ours"] == 0.1 and own["low"] < 0.1 < own["high"]
    assert np.isnan(beside.loc[("blimp", "blimp accuracy", "Dense")]["published"])


def test_when_context_helps_one_model_more_then_its_score_is_best_and_intervals_tell_them_apart():
    jobs, names, database, _ = battery(of("Fibonacci, linear ramp", 0.9))
    table = capacity_battery.in_context(jobs, names, database)
    assert table.index[0].startswith("Fibonacci, linear ramp") and table["estimate"].iloc[0] == pytest.approx(-0.9, abs=0.1)
    assert "do not overlap" in capacity_battery.say_in_context(table)
    assert "intervals overlap (one seed)" in capacity_battery.say_in_context(table.iloc[[0, 0]])


def test_when_larger_models_answer_better_then_the_ladder_counts_where_intervals_are_apart():
    grown = {"d_model 16": 0.3}
    _, _, _, runs = battery(lambda job: grown.get(job.labels.setting, 0.6))
    table = capacity_battery.ladder(runs)
    assert sorted(set(table.index.get_level_values("parameters"))) == [500, 1000]
    assert set(table.index.get_level_values("series")) == {"Dense", "Fibonacci, linear ramp"}
    said = capacity_battery.say_ladder(table)
    assert f"beyond its intervals in {len(table) // 2} of {len(table) // 2}" in said and "falls in 0" in said
    assert "no capacity ladder" in capacity_battery.say_ladder(table.iloc[:0])


def test_when_distances_are_tabled_then_it_is_the_mean_over_seeds_and_no_answer_counts_twice():
    def rows(seed, accuracy, count):
        what = {"series": "Dense", "setting": "mqar", "split": "distance=4-7", "run": f"r{seed}", "step": np.nan}
        return [what | {"measure": "accuracy", "value": accuracy}, what | {"measure": "count", "value": count}]
    table = capacity_battery.distance_table(pd.DataFrame(rows(1, 0.5, 10.0) + rows(2, 1.0, 30.0)))
    found = wilson(7.5, 10)
    assert table.loc[("mqar", 4), "Dense"] == f"0.750 ({found.low:.3f} to {found.high:.3f})"
    assert capacity_battery.distance_table(pd.DataFrame(columns=["step", "split", "measure"])).empty


def test_when_a_model_keeps_or_loses_its_perplexity_then_it_is_beside_the_published_change():
    theirs = pd.read_csv(where.PUBLISHED / "length_extrapolation.csv").query("base == 'dense'").groupby("eval_length")["perplexity"]
    mean = {length: float(np.exp(np.log(own).mean())) for length, own in theirs}
    for rises, same in (("Dense", "Dense"), ("Fibonacci, linear ramp", "none")):
        jobs, _, losses = results("03_extrapolation", lambda name, length, _, rises=rises: 3 + (length > 64) * (name == rises))
        plain = extrapolation.shown_of(extrapolation.variants(jobs, tables.job_names(jobs)), plain=True)
        table = published_lengths.beside(losses, plain, 64, (1, 2, 4), 4)
        dense = table.loc[("Dense", 4)]
        assert dense["published, %"] == pytest.approx(100 * (mean[4096] / mean[1024] - 1))
        assert dense["ours, %"] == pytest.approx(100 * math.expm1(rises == "Dense"), abs=1e-6)
        said = published_lengths.say(table)
        assert ("Dense" in said.partition("Otherwise")[0]) == (same == "Dense") and "one seed" in said
