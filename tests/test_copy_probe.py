"""The copy probe's cells: read from a table that a test wrote, and beside the published cells."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lib import paths
from suite.study.findings import copy_probe
from suite.study.stats import wilson

PARAMETERS = SimpleNamespace(probe_distances=(48, 83), probe_length=128, probe_blur=16.0)


def model(series: str, alphas: list[float], right: dict[int, float], rate: str = "", seed: int = 0) -> list[dict]:
    run = f"{series}{rate}{seed}"
    what = {"series": series, "setting": f"copy probe, depth 2{rate}", "seed": seed, "run": run, "step": np.nan, "split": ""}
    rows = [what | {"measure": "alpha", "value": alpha} for alpha in alphas]
    for distance, value in right.items():
        split = {"split": f"distance={distance}"}
        rows += [what | split | {"measure": "accuracy", "value": value}, what | split | {"measure": "count", "value": 4000.0}]
    return rows


def table(blurred: list[float], plain: list[float]) -> pd.DataFrame:
    return pd.DataFrame(model("Fibonacci, learned with a blur", blurred, {48: 0.9, 83: 0.2}, ", theta rate x10")
                        + model("Fibonacci, learned", plain, {48: 0.01, 83: 0.02})
                        + model("Fibonacci, learned from the ramp", [0.6, 1.4], {48: 0.4, 83: 0.1})
                        + model("Fibonacci, fixed", [], {55: 1.0, 89: 1.0}))


def test_when_cells_are_read_then_each_has_its_interval_and_whether_a_rung_is_there():
    cells = copy_probe.cells(table([48 / 55, 1.0], [1.0, 1.0]), PARAMETERS)
    assert len(cells) == 6 and set(cells["mechanism"]) == {"learned", "learned with a blur"}
    row = cells[(cells["mechanism"] == copy_probe.BLUR) & (cells["distance"] == 48)].iloc[0]
    found = wilson(0.9 * 256, 256)                       # 256 sequences: answers of one sequence count once
    assert (row["low"], row["high"]) == (pytest.approx(found.low), pytest.approx(found.high))
    assert row["rung there"] and row["theta rate"] == 10 and row["place"] == 0 and row["start"] == "one"
    assert cells[cells["start"] == "one"]["rung there"].sum() == 1


def test_when_the_blur_brings_a_rung_to_a_distance_or_does_not_then_it_is_said():
    for alphas, words in (([48 / 55, 1.0], "1 of 1 with it and 0 of 1 without"), ([1.0, 1.0], "0 of 1 with it and 0 of 1")):
        said = copy_probe.say_blur(copy_probe.cells(table(alphas, [1.0, 1.0]), PARAMETERS), PARAMETERS)
        assert f"from alpha = 1, {words}" in said and "kernel of 16 tokens" in said and "(one seed)" in said
        assert "best cell with it 0.900" in said and "without 0.020" in said
    none = copy_probe.cells(table([1.0], [1.0]).query("series == 'Fibonacci, learned'"), PARAMETERS)
    assert "No model with a blur" in copy_probe.say_blur(none, PARAMETERS)


def test_when_ours_are_beside_the_published_then_cells_meet_by_depth_start_and_seed():
    cells = copy_probe.cells(table([48 / 55, 1.0], [1.0, 1.0]), PARAMETERS)
    wide = copy_probe.beside_published(cells)
    assert wide.loc[(2, "one", 0, 0), "published, blur"] == 0.748 and wide.loc[(2, "one", 0, 1), "published, blur"] == 0.463
    assert wide.loc[(2, "one", 0, 0), "ours, blur, theta rate x10"] == 0.9
    assert wide.loc[(2, "ramp", 0, 0), "ours, no blur, theta rate x1"] == 0.4
    said = copy_probe.say_beside(cells)
    assert "Of 2 cells" in said and "2 agree" in said                    # 0.748 and 0.463 published, 0.9 and 0.2 ours
    turned = cells.assign(accuracy=1 - cells["accuracy"])
    assert "0 agree" in copy_probe.say_beside(turned)
    assert "No published cell" in copy_probe.say_beside(cells[cells["mechanism"] == "learned"])


def test_when_published_rungs_are_looked_up_then_they_are_those_of_the_files_alphas():
    rows = pd.read_csv(paths.PUBLISHED / "retrieval_probe.csv").query("experiment == 'marked' and depth == 2 and seed == 0")
    uniform = rows[(rows["staggered_init"] == 0) & (rows["distance"] == 350)].iloc[0]
    assert uniform["alphas"] == "[1.035, 0.928]" and abs(0.928 * 377 - 350) < 1
    own = copy_probe.published_cells().query("depth == 2 and seed == 0 and start == 'one' and distance == 350")
    assert own["rung there"].tolist() == [True] and len(copy_probe.published_cells()) == 24
