"""Published numbers: read as they stand in the paper's database, and the audit's facts computed from them."""

from __future__ import annotations

import math

import pytest

from lib.errors import SuiteError
from suite import published
from suite.study.findings import capacity_battery, extrapolation, window_sweep


def test_when_tables_are_read_then_all_published_rows_are_there():
    rows = {"battery": 863, "cost": 30, "length_extrapolation": 132, "perplexity": 120, "position_loss": 672,
            "retrieval_probe": 2438, "training_curves": 3120}
    assert {name: len(published.read(name)) for name in published.FILES} == rows
    with pytest.raises(SuiteError, match="perplexity"):
        published.read("perplexities")


def test_when_a_published_model_is_named_then_it_is_the_suites_name():
    names = set(published.read("perplexity")["series"])
    assert names == {"Fibonacci, fixed", "Fibonacci, learned", "Fibonacci, linear ramp", "Fibonacci, coprime ramp",
                     "Powers of two, fixed", "Powers of two, linear ramp"}
    assert published.series("dense", "dense") == "Dense"


def test_when_perplexities_are_tabled_then_they_are_those_of_the_seed_and_window():
    table = published.perplexities(6)
    assert table.loc[("Fibonacci, coprime ramp", 6), "fineweb_edu"] == 43.1038
    assert len(published.perplexities()) == 21
    relative = published.relative_to(table["fineweb_edu"], ("Fibonacci, fixed", 6))
    assert relative[("Fibonacci, fixed", 6)] == 0 and relative[("Fibonacci, linear ramp", 6)] < 0


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
    assert len(three)
    assert three["sample_std"].to_numpy() == pytest.approx(three["population_std"].to_numpy() * math.sqrt(1.5))


def test_when_cost_is_compared_then_learned_takes_over_four_times_as_long():
    assert 4.2 <= published.learned_cost() <= 4.5    # row 10


def test_when_the_battery_is_read_then_the_audits_facts_follow():
    table = capacity_battery.lambada_table()
    assert [round(value) for value in table["estimate"]] == [300, 309, 347, 364, 387]    # row 17
    assert list(table.index)[0] == "Fibonacci, linear ramp" and list(table.index)[-1] == "Fibonacci, fixed"
    battery = published.read("battery")
    assert set(battery.loc[battery["base"] == "dense", "task"]) == {"flops_context", "lego", "ruler_vt"}    # row 16
    assert battery.query("task == 'blimp' and metric == 'n_pairs'")["value"].max() == 800
    assert capacity_battery.published_battery().loc[("blimp", "accuracy")].notna().sum() >= 4


def test_when_position_losses_are_read_then_the_gain_is_smaller_in_the_first_bin():
    gain = window_sweep.published_gain().mean(axis=1)
    assert len(gain) == 8 and gain.iloc[0] < gain.iloc[1:].min()    # row 5
