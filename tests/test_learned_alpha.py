"""Notebook 2: alphas, their reach and landscape, the copy probe's cells here and published; from made-up numbers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from made_up_results import ITEMS, one, results

from lib.config import TrainConfig
from suite.study.findings import learned_alpha
from suite.study.frames import Study
from suite.study.stats import wilson

BETWEEN = (48, 83)
BLUR = "Fibonacci, learned with a blur"
PROBES = {"probe_distances": BETWEEN, "probe_rungs": (55, 89), "probe_length": 128,
          "probe_models": ("fibonacci/fixed", "fibonacci/learned", "fibonacci/learned_ramp"),
          "probe_blur_theta_lr": (10.0,)}


def study(**numbers) -> Study:
    """Without a number of its own, half of a probe's answers are right and no alpha has moved."""
    return results("02_learned_alpha", changes=PROBES, **numbers)


@pytest.fixture
def landed() -> Study:
    """With a blur a rung has moved from 55 to 48, and 0.9 of the answers are right; else 0.2 are."""
    return study(right=one(BLUR, 0.9, 0.2), alpha=one(BLUR, -7 / 55, 0.0))


def test_when_alpha_moves_and_the_loss_with_it_then_tables_say_how_far_where_it_ended_and_what_another_alpha_costs():
    moved = study(alpha=lambda job: 0.3 * (job.labels.start == "one"), slope=lambda job: 0.1)
    table = learned_alpha.moves(moved, learned_alpha.learned(moved))
    assert table["largest move"].round(6).tolist() == [0.3, 0.0]
    assert table.loc["Fibonacci, learned", "highest alpha"] == pytest.approx(1.3)
    assert learned_alpha.moves(moved, []).empty
    landscape = learned_alpha.landscape(moved, moved.model("Fibonacci, learned"))
    assert landscape.loc[1.4].tolist() == pytest.approx([0.4] * 5) and not landscape.loc[0.6].any()


def test_when_alpha_is_logged_then_its_path_is_the_first_seeds_by_layer():
    rows = [("alpha", step, layer, 1 + layer * step / 100) for step in (0, 10) for layer in (0, 1)]
    rows += [("alpha", np.nan, 1, 9.0), ("nll", 10, 1, 9.0)]
    frame = pd.DataFrame(rows, columns=["measure", "step", "layer", "value"])
    made_up = SimpleNamespace(metrics={"first": frame}.get)
    path = learned_alpha.paths(made_up, [SimpleNamespace(name="M", jobs=("first", "second"))])["M"]
    assert path.loc[10].tolist() == [1.0, 1.1] and list(path.index) == [0, 10]


def test_when_theta_travels_further_then_alpha_comes_closer_to_the_ramps_ends():
    paper = TrainConfig()
    assert learned_alpha.travel(paper) == pytest.approx(2.14, abs=0.01)
    table = learned_alpha.reach_table({"paper": paper, "fast": replace(paper, theta_lr=10.0)})
    assert table.loc["paper", "highest alpha"] == pytest.approx(1.395, abs=1e-3)
    assert table.loc["fast", "highest alpha"] > 1.49
    assert np.allclose(table["lowest alpha"] + table["highest alpha"], 2)


def test_when_cells_are_read_then_each_has_its_interval_and_whether_a_rung_is_there(landed):
    cells = learned_alpha.cells(landed, BETWEEN)
    assert len(cells) == 8 and set(cells["start"].dropna()) == {"one", "ramp"}
    row = cells[(cells["series"] == BLUR) & (cells["distance"] == 48)].iloc[0]
    right = wilson(54, ITEMS)                             # a sequence counts once, whatever it asks
    assert (row["accuracy"], row["low"], row["high"]) == (0.9, pytest.approx(right.low), pytest.approx(right.high))
    assert row["rung there"] and row["blur"] and (row["theta rate"], row["place"]) == (10, 0)
    assert cells[cells["start"] == "one"]["rung there"].sum() == 1
    on = learned_alpha.cells(landed, (55, 89))
    assert len(on) == 6 and on[on["start"] != "ramp"]["rung there"].all()
    assert learned_alpha.grid(cells).loc[f"{BLUR}, rate x10, depth 2, seed 0"].tolist() == [0.9, 0.9]


def test_when_cells_are_found_then_outcomes_count_them_and_they_meet_the_published_by_depth_start_and_seed(landed):
    ours, none = (learned_alpha.cells(landed, distances) for distances in (BETWEEN, (1, 2)))
    table = learned_alpha.outcomes(ours)
    counted = ["theta rate", "models", "with a rung there", "cells", "found", "best cell"]
    assert table.loc[BLUR, counted].tolist() == [10, 1, 1, 2, 2, 0.9]
    assert table.loc["Fibonacci, learned", counted].tolist() == [1, 1, 0, 2, 0, 0.2]
    wide = learned_alpha.beside_published(ours)
    assert [wide.loc[(2, "one", 0, place), "published, blur"] for place in (0, 1)] == [0.748, 0.463]
    assert wide.loc[(2, "one", 0, 0), "here, blur, rate x10"] == 0.9
    assert wide.loc[(2, "ramp", 0, 0), "here, no blur, rate x1"] == 0.2 and len(wide) == 4
    assert learned_alpha.outcomes(none).empty and len(learned_alpha.beside_published(none)) == 24


def test_when_published_cells_are_read_then_rungs_are_those_of_the_files_alphas():
    cells = learned_alpha.published_cells()
    uniform = cells.query("depth == 2 and start == 'one'").set_index(["seed", "place"])
    assert uniform["accuracy"].tolist() == [0.748, 0.463, 0.003, 0.0]                  # audit row 8
    assert uniform.loc[(0, 1), "distance"] == 350 and uniform.loc[(0, 1), "rung there"]     # 0.928 x 377
    assert len(cells) == 24 and learned_alpha.grid(cells).shape == (12, 2)
    outcomes = learned_alpha.outcomes(cells)
    assert outcomes["cells"].tolist() == [12, 12] and outcomes["found"].tolist() == [1, 4]
