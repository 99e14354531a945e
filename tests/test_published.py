"""Published numbers: read as they stand in the paper's database, and the audit's facts computed from them."""

import math

import pandas as pd
import pytest

from lib import paths
from suite import published
from suite.study.findings import capacity_battery, extrapolation, window_sweep


def test_when_tables_are_read_then_all_rows_are_there_and_models_have_the_suites_names():
    rows = {"battery": 863, "cost": 30, "length_extrapolation": 132, "perplexity": 120, "position_loss": 672,
            "retrieval_probe": 2438, "training_curves": 3120}
    assert {name: len(published.read(name)) for name in rows} == rows
    assert {path.stem for path in paths.PUBLISHED.glob("*.csv")} == set(rows)
    assert set(published.read("length_extrapolation")["series"]) == {
        "Fibonacci, fixed", "Fibonacci, learned", "Fibonacci, linear ramp", "Fibonacci, coprime ramp",
        "Powers of two, fixed", "Powers of two, linear ramp", "Dense"}
    at = published.read("perplexity").query("series == 'Fibonacci, coprime ramp' and window == 6").iloc[0]
    assert (at["perplexity"], at["dataset"], at["nll"]) == (43.1038, "fineweb_edu", pytest.approx(math.log(43.1038)))


def test_when_lengths_are_compared_then_changes_are_those_of_the_audit():
    table = extrapolation.published_table()
    change = table["change, %"].round(1)
    assert change["Powers of two, fixed, W=8"] == 11.3 and change["Fibonacci, coprime ramp, W=6"] == 4.2    # row 3
    ramps = change[change.index.str.startswith("Powers of two, linear")]
    assert ramps.between(-0.4, 0).all() and len(ramps) == 4    # row 2
    assert change["Dense"].round() == 201 and (table["change, %"].drop("Dense") > 2).sum() == 4


def test_when_seeds_are_pooled_then_the_sample_formula_is_the_larger_by_the_square_root_of_three_halves():
    table = published.spread_over_seeds()
    three = table[table["seeds"] == 3]
    assert len(three) and table["seeds"].min() > 1
    assert three["sample_std"].to_numpy() == pytest.approx(three["population_std"].to_numpy() * math.sqrt(1.5))


def test_when_cost_and_battery_are_read_then_the_audits_facts_follow():
    assert 4.2 <= published.learned_cost() <= 4.5    # row 10
    table = capacity_battery.lambada_table()
    assert [round(value) for value in table["estimate"]] == [300, 309, 347, 364, 387]    # row 17
    assert list(table.index)[0] == "Fibonacci, linear ramp" and list(table.index)[-1] == "Fibonacci, fixed"
    battery = published.read("battery")
    assert set(battery.loc[battery["base"] == "dense", "task"]) == {"flops_context", "lego", "ruler_vt"}    # row 16
    assert battery.query("task == 'blimp' and metric == 'n_pairs'")["value"].max() == 800
    assert capacity_battery.published_battery().loc[("blimp", "accuracy")].notna().sum() >= 4


def test_when_position_losses_are_read_then_the_gain_is_smaller_in_the_first_bin():
    gain = window_sweep.published_gain()
    table = pd.read_csv(paths.PUBLISHED / "position_loss.csv")
    second = table.query("window == 8 and base == 'fibonacci' and bin == 1")
    nll = second.groupby(["schedule", "dataset"])["nll"].first()
    assert gain.loc[128].to_dict() == pytest.approx((nll["fixed"] - nll["staggered"]).to_dict())
    mean = gain.mean(axis=1)
    assert len(mean) == 8 and mean.iloc[0] < mean.iloc[1:].min()    # row 5
