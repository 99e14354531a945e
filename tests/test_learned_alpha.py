"""Notebook 2: alphas, their reach and landscape, the copy probe's cells here and published; from made-up numbers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from claim_results import ITEMS, ClaimDatabase
from plans import loaded, planned

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
    jobs = planned("02_learned_alpha", **PROBES)
    return Study(jobs, ClaimDatabase(**numbers), "02_learned_alpha", loaded("smoke").parameters("02_learned_alpha"))


def by_series(value: float, other: float):
    return lambda job: value if job.labels.series == BLUR else other


@pytest.fixture
def landed() -> Study:
    """With a blur a rung has moved from 55 to 48, and 0.9 of the answers are right; else 0.2 are."""
    return study(right=by_series(0.9, 0.2), alpha=by_series(-7 / 55, 0.0))


def test_when_alpha_moves_then_each_run_says_how_far_and_where_it_ended():
    moved = study(alpha=lambda job: 0.3 * (job.labels.start == "one"))
    table = learned_alpha.moves(moved, learned_alpha.learned(moved))
    assert table["largest move"].round(6).tolist() == [0.3, 0.0]
    assert table.loc["Fibonacci, learned", "highest alpha"] == pytest.approx(1.3)
    assert learned_alpha.moves(moved, []).empty


def test_when_alpha_is_logged_then_its_path_is_the_first_seeds_by_layer():
    rows = [("alpha", step, layer, 1 + layer * step / 100) for step in (0, 10) for layer in (0, 1)]
    rows += [("alpha", np.nan, 1, 9.0), ("nll", 10, 1, 9.0)]
    frame = pd.DataFrame(rows, columns=["measure", "step", "layer", "value"])
    made_up = SimpleNamespace(metrics={"first": frame}.get)
    path = learned_alpha.paths(made_up, [SimpleNamespace(name="M", jobs=("first", "second"))])["M"]
    assert path.loc[10].tolist() == [1.0, 1.1] and list(path.index) == [0, 10]


def test_when_the_loss_changes_with_alpha_then_the_landscape_has_it_by_value_and_layer():
    steep = study(slope=lambda job: 0.1)
    table = learned_alpha.landscape(steep, steep.model("Fibonacci, learned"))
    assert table.shape == (5, 5) and table.loc[1.4].tolist() == pytest.approx([0.4] * 5) and not table.loc[0.6].any()


def test_when_theta_travels_further_then_alpha_comes_closer_to_the_ramps_ends():
    paper = TrainConfig()
    assert learned_alpha.travel(paper) == pytest.approx(2.14, abs=0.01)
    table = learned_alpha.reach_table({"paper": paper, "fast": replace(paper, theta_lr=10.0)})
    assert table.loc["paper", "highest alpha"] == pytest.approx(1.395, abs=1e-3)
    assert table.loc["fast", "highest alpha"] > 1.49
    assert np.allclose(table["lowest alpha"] + table["highest alpha"], 2)
    assert learned_alpha.source_rows() == (29, 19)    # audit row 11


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


def test_when_cells_are_found_then_the_outcomes_count_them_and_the_models_with_a_rung_there(landed):
    table = learned_alpha.outcomes(learned_alpha.cells(landed, BETWEEN))
    counted = ["theta rate", "models", "with a rung there", "cells", "found", "best cell"]
    assert table.loc[BLUR, counted].tolist() == [10, 1, 1, 2, 2, 0.9]
    assert table.loc["Fibonacci, learned", counted].tolist() == [1, 1, 0, 2, 0, 0.2]
    published = learned_alpha.outcomes(learned_alpha.published_cells())
    assert published["cells"].tolist() == [12, 12] and published["found"].tolist() == [1, 4]
    assert learned_alpha.outcomes(learned_alpha.cells(landed, (1, 2))).empty


def test_when_ours_are_beside_the_published_then_cells_meet_by_depth_start_and_seed(landed):
    wide = learned_alpha.beside_published(learned_alpha.cells(landed, BETWEEN))
    assert [wide.loc[(2, "one", 0, place), "published, blur"] for place in (0, 1)] == [0.748, 0.463]
    assert wide.loc[(2, "one", 0, 0), "here, blur, rate x10"] == 0.9
    assert wide.loc[(2, "ramp", 0, 0), "here, no blur, rate x1"] == 0.2 and len(wide) == 4
    assert len(learned_alpha.beside_published(learned_alpha.cells(landed, (1, 2)))) == 24


def test_when_published_cells_are_read_then_rungs_are_those_of_the_files_alphas():
    cells = learned_alpha.published_cells()
    uniform = cells.query("depth == 2 and start == 'one'").set_index(["seed", "place"])
    assert uniform["accuracy"].tolist() == [0.748, 0.463, 0.003, 0.0]                  # audit row 8
    assert uniform.loc[(0, 1), "distance"] == 350 and uniform.loc[(0, 1), "rung there"]     # 0.928 x 377
    assert len(cells) == 24 and learned_alpha.grid(cells).shape == (12, 2)
