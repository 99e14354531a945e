"""Figures of notebooks 8 and 9: what is drawn is what the table says, and what does not fit is written out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from suite.study import study_figures as study_plots


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def ranges(**estimates: float) -> pd.DataFrame:
    return pd.DataFrame({"estimate": estimates, "low": {k: v - 0.01 for k, v in estimates.items()},
                         "high": {k: v + 0.01 for k, v in estimates.items()}})


def test_when_models_are_ranked_then_the_first_is_on_top_and_each_length_has_its_mark():
    table = pd.DataFrame({"role": ["model", "neighbour", "baseline"], "at 1": [2.0, 3.0, 4.0], "at 4": [2.5, 3.0, 40.0]},
                         index=["a", "b", "c"])
    fig = study_plots.dumbbells(table, ["at 1", "at 4"], x="perplexity")
    axes = fig.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["c", "b", "a"]
    marks = sorted(tuple(mark.get_offsets()[0]) for mark in axes.collections)
    assert marks == sorted([(2.0, 2), (2.5, 2), (3.0, 1), (3.0, 1), (4.0, 0), (40.0, 0)])
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["proposal", "literature", "dense", "at 1", "at 4"]


def test_when_one_difference_is_far_beyond_the_others_then_it_is_written_at_the_edge():
    table = ranges(a=-0.9, b=-0.02, c=0.01, d=0.03)
    fig = study_plots.differences({64: table, 256: table.loc[["d", "c", "b", "a"]]}, x="nats")
    for axes in fig.axes:
        assert texts(axes) == ["-0.90"] and len(axes.collections) == 3
        drawn = {round(float(mark.get_offsets()[0][0]), 2): mark.get_offsets()[0][1] for mark in axes.collections}
        assert drawn == {-0.02: 2, 0.01: 1, 0.03: 0}, "both panels have the rows of the first"
        assert texts(axes) and axes.texts[0].xy[1] == 3 and axes.get_xlim()[0] < -0.1


def test_when_cells_are_drawn_then_they_hold_the_numbers_and_mark_the_certain_ones():
    cells = pd.DataFrame({"docs": [(-0.02, True), (0.01, False)], "code": [(0.0, False), (0.3, True)]}, index=["a", "b"])
    words = texts(study_plots.grid(cells).axes[0])
    assert [word.strip() for word in words] == ["-0.020 •", "+0.000", "+0.010", "+0.300 •"]


def test_when_no_line_is_fitted_then_the_points_stand_alone_and_else_the_band_is_there():
    points = ranges(a=0.02, b=0.01).assign(tokens=[1e6, 2e6])
    line = ranges(a=0.02, b=-0.1).set_index(pd.Index([1e6, 4e8]))
    curves = pd.DataFrame({"seed 1": [0.1, 0.0]}, index=[1e6, 2e6])
    mark = (4e8, "the paper's tokens")
    legends = [[text.get_text() for text in study_plots.trend(points, own, curves, y="y", mark=mark).legends[0].get_texts()]
               for own in (line, pd.DataFrame())]
    assert "line in log tokens" in legends[0] and "line in log tokens" not in legends[1]
    assert all({"whole runs", "logged inside the runs", "the paper's tokens"} <= set(own) for own in legends)


def test_when_bins_differ_between_panels_then_each_has_its_own_ticks_and_the_marks():
    table = ranges(**{"0-12": 0.1, "13-24": -0.1, "first time": 0.0})
    fig = study_plots.band_panels({"all": {"Dense": table}, "copy": {"Dense": table.iloc[:2]}}, x="d", y="nats",
                                  marks={"one window": 0.5})
    ticks = [[label.get_text() for label in axes.get_xticklabels()] for axes in fig.axes]
    assert ticks == [["0-12", "13-24", "first time"], ["0-12", "13-24"]]
    assert all(texts(axes) == ["one window"] for axes in fig.axes)


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [1.0, 50.0, np.inf]])
def test_when_properties_are_drawn_then_infinite_ones_have_no_mark_and_wide_ones_a_log_axis(values):
    table = pd.DataFrame({"hops": values, "role": ["model", "model", "control"], "rank": [1.0, 2.0, 3.0]}, index=list("abc"))
    fig = study_plots.scatters(table, "rank")
    axes = fig.axes[0]
    drawn = np.concatenate([mark.get_offsets().compressed() for mark in axes.collections])
    assert axes.get_xscale() == ("log" if 50.0 in values else "linear")
    assert np.isfinite(drawn).all() and axes.get_ylabel() == "rank"


def test_when_rates_are_drawn_then_the_ticks_are_the_distances_that_were_trained():
    table = ranges(a=1.0, b=0.9).set_index(pd.Index([24, 96]))
    fig = study_plots.rates({"Dense": table}, x="d", y="accuracy", level=(0.03, "chance"))
    assert [tick for tick in fig.axes[0].get_xticks()] == [24, 96]
    assert "chance" in [text.get_text() for text in fig.legends[0].get_texts()]
