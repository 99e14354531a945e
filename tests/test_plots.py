"""Figures: what is drawn is what the table says, what does not fit is written out, colours stay with their family."""

import io

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_hex

from lib.patterns import build, names
from suite.study import figures as plots

MODELS = ["Dense", "Fibonacci, fixed", "Fibonacci, linear ramp", "Local window, equal edges", "Christoffel 31/256",
          "Power law, sigma=0.5, B=32", "Power law, sigma=1.2, B=32", "Christoffel 32/256", "Dense, rope=yarn"]
LINES = pd.DataFrame(np.random.default_rng(0).random((4, 9)) + 1, index=[0, 8, 64, 256], columns=MODELS)
ROLES = pd.DataFrame({"role": ["model", "neighbour", "baseline"], "at 1": [2.0, 3.0, 4.0], "at 4": [2.5, 3.0, 40.0]},
                     index=["a", "b", "c"])
PATTERNS = {"ramp": build("scaled_base", layers=4, schedule="linear", window=2, rungs=8),
            "Power law": build("power_law", layers=4, window=2, budget=6),
            "learned": build("learned", layers=4, window=2, rungs=8)}


def ranges(**estimates: float) -> pd.DataFrame:
    table = pd.Series(estimates, name="estimate").to_frame()
    return table.assign(low=table["estimate"] - 0.1, high=table["estimate"] + 0.2)


def words(texts) -> list[str]:
    return [text.get_text() for text in texts]


def entries(fig) -> list[str]:
    return words(fig.legends[0].get_texts())


def spans(axes, across: int = 0) -> dict[float, list[float]]:
    """Ends of the drawn intervals by their row (across 0), or by their place on the x axis (across 1)."""
    segments = [segment for bars in axes.collections for segment in bars.get_segments() if not np.isnan(segment).any()]
    return {round(float(s[0, 1 - across]), 2): sorted(np.round(s[:, across], 3).tolist()) for s in segments}


FIGURES = {
    "lines": lambda: plots.lines(LINES, x="x", y="y", log_x=True, log_y=True, mark=(64, "here"), zero=True,
                                 ticks=[0, 64, 64], levels={"Dense": 1.5}),
    "panels of lines": lambda: plots.lines({"one": LINES.iloc[1:], "two": LINES.iloc[1:, :3]}, x="x", y="y",
                                           log_x=True),
    "points without intervals": lambda: plots.intervals(LINES.T[[8]].set_axis(["estimate"], axis=1), x="perplexity"),
    "alpha_paths": lambda: plots.alpha_paths({f"model {n}": pd.DataFrame(np.ones((3, 4)), [0, 5, 10])
                                              for n in range(4)}),
    "cells": lambda: plots.cells(pd.DataFrame(np.eye(3)), title="t", x="distance", digits=3),
    "bars": lambda: plots.bars({"Christoffel 31/256": pd.Series([1, 2]), "Dense": pd.Series([3, 4])}, x="x", y="y"),
    "offsets": lambda: plots.offsets(PATTERNS, 32),
    "sequence": lambda: plots.sequence(np.arange(10), np.where(np.arange(10) > 7, 3, -100)),
}


@pytest.mark.parametrize("name", FIGURES)
def test_when_a_figure_is_asked_for_then_it_is_drawn_and_pyplot_does_not_know_it(name):
    figure, content = FIGURES[name](), io.BytesIO()
    figure.savefig(content, format="png")
    assert content.getbuffer().nbytes > 2000 and pyplot.get_fignums() == []
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert figure.get_supxlabel() or all(axes.get_xlabel() for axes in shown), "an axis without a name"


def test_when_lines_are_drawn_then_their_values_are_the_tables_and_missing_ones_are_skipped():
    table = LINES.copy()
    table.loc[8, "Dense"] = np.nan
    fig = plots.lines(table, x="x", y="y")
    drawn = {line.get_label(): line.get_ydata() for line in fig.axes[0].get_lines()}
    assert set(drawn) == set(MODELS)
    assert all(np.array_equal(drawn[name], table[name].dropna()) for name in MODELS)
    assert entries(fig) == list(table.iloc[-1].sort_values(ascending=False).index), "as the lines end, from above"


def test_when_an_axis_counts_tokens_then_its_ticks_are_few_and_plain():
    table = pd.DataFrame({"Dense": [1.0, 2.0]}, index=[16_384_000, 425_984_000])       # with its margins up to 500 M
    fig = plots.lines({"published": table, "here": table}, x="tokens", y="perplexity", log_x=True)
    fig.canvas.draw()
    axis = fig.axes[0].xaxis
    low, high = axis.get_view_interval()
    ticks = zip(axis.get_majorticklocs(), words(axis.get_majorticklabels()), strict=True)
    assert [text for tick, text in ticks if low <= tick <= high] == ["20M", "50M", "100M", "200M", "500M"]
    assert not [text for text in words(axis.get_ticklabels(which="both")) if "10^" in text or "mathdefault" in text]
    numbers = {64: "64", 1024: "1024", 25_000: "25k", 263_168: "263k", 1.2e9: "1.2G", 3e12: "3T", 0.5: "0.5"}
    assert {value: plots.short(value) for value in numbers} == numbers


def test_when_a_model_beats_all_with_as_few_pairs_then_it_is_on_the_dashed_line():
    table = pd.DataFrame({"pairs": [30, 10, 20, 20, 40], "mean": [2.0, 5.0, 6.0, 4.0, 3.0]}, index=list("abcde"))
    fig = plots.against_pairs(table, title="perplexity")
    step = next(line for line in fig.axes[0].get_lines() if line.get_linestyle() == "--")
    assert list(step.get_xdata()) == [10, 20, 30] and list(step.get_ydata()) == [5.0, 4.0, 2.0]
    assert entries(fig)[:5] == ["a", "e", "d", "b", "c"]


def test_when_intervals_are_rows_then_they_end_at_their_bounds_and_every_panel_has_the_rows_of_the_first():
    table = ranges(Dense=0.1, Christoffel=0.4)
    panels = pd.concat([table.assign(group="a", chance=0.1), table.iloc[::-1].assign(group="b", chance=0.2)])
    fig = plots.intervals(panels, x="accuracy")
    assert words(fig.axes[0].get_yticklabels()) == ["Christoffel", "Dense"]             # the first is on top
    for axes, level in zip(fig.axes, (0.1, 0.2), strict=True):
        assert spans(axes) == {1.0: [0.0, 0.3], 0.0: [0.3, 0.6]}
        assert [list(line.get_xdata()) for line in axes.get_lines() if line.get_label() == "chance"] == [[level, level]]
    assert entries(fig) == ["chance"]
    same = plots.intervals({"a": table, "b": table.iloc[::-1]}, x="x", zero=True)
    assert [spans(axes) for axes in same.axes] == [spans(axes) for axes in fig.axes] and not same.legends


def test_when_one_difference_is_far_beyond_the_others_then_it_is_written_at_the_edge():
    table = ranges(a=-9.0, b=-0.02, c=0.01, d=0.03)
    fig = plots.intervals({"64": table, "256": table.loc[["d", "c", "b", "a"]]}, x="nats", limit=3)
    for axes in fig.axes:
        assert words(axes.texts) == ["-9.00"] and axes.texts[0].xy[1] == 3 and -1 < axes.get_xlim()[0] < -0.1
        assert spans(axes) == {2.0: [-0.12, 0.18], 1.0: [-0.09, 0.21], 0.0: [-0.07, 0.23]}


def test_when_intervals_are_lines_then_bins_stay_in_order_and_each_panel_has_its_own():
    table = ranges(**{"0-12": 0.1, "13-24": -0.1, "first time": 0.0})
    fig = plots.interval_lines({"all": {"Dense": table, "Power law": table}, "copy": {"Dense": table.iloc[:2]}}, x="d",
                               y="nats", places={"one window": 0.5}, zero=True)
    ticks = [words(axes.get_xticklabels()) for axes in fig.axes]
    assert ticks == [["0-12", "13-24", "first time"], ["0-12", "13-24"]] and entries(fig) == ["Dense", "Power law"]
    assert all(words(axes.texts) == ["one window"] for axes in fig.axes)
    assert spans(fig.axes[1], across=1) == {0.0: [0.0, 0.3], 1.0: [-0.2, 0.1]}
    assert sorted(spans(fig.axes[0], across=1)) == [-0.06, 0.06, 0.94, 1.06, 1.94, 2.06]        # side by side
    late, early = (ranges(a=1.0, b=0.9).set_index(pd.Index(at)) for at in ([24, 96], [6, 24]))
    fig = plots.interval_lines({"Dense": late, "Power law": early}, x="d", y="accuracy", chance=0.03)
    assert words(fig.axes[0].get_xticklabels()) == ["6", "24", "96"], "bins that are numbers are those of all lines"
    assert sorted(entries(fig)) == ["Dense", "Power law", "chance"]


def test_when_no_line_is_fitted_then_the_points_stand_alone_and_else_the_band_is_there():
    points, line = ranges(a=0.02, b=0.01).assign(tokens=[1e6, 2e6]), ranges(a=0.02, b=-0.1).set_axis([1e6, 4e8])
    curves = pd.DataFrame({"seed 1": [0.1, 0.0]}, index=[1e6, 2e6])
    fitted, alone = (entries(plots.trend(points, own, curves, y="y", mark=(4e8, "the paper's tokens")))
                     for own in (line, pd.DataFrame()))
    assert {"whole runs", "logged inside the runs", "the paper's tokens"} <= set(alone) <= set(fitted)
    assert "line in log tokens" in fitted and "line in log tokens" not in alone


def test_when_models_are_ranked_then_the_first_is_on_top_and_each_length_has_its_mark():
    fig = plots.dumbbells(ROLES, ["at 1", "at 4"], x="perplexity")
    assert words(fig.axes[0].get_yticklabels()) == ["c", "b", "a"]
    marks = sorted(tuple(mark.get_offsets()[0]) for mark in fig.axes[0].collections)
    assert marks == sorted([(2.0, 2), (2.5, 2), (3.0, 1), (3.0, 1), (4.0, 0), (40.0, 0)])
    assert entries(fig) == ["proposal", "literature", "dense", "at 1", "at 4"]


def test_when_differences_are_cells_then_they_hold_the_numbers_and_mark_the_certain_ones():
    cells = pd.DataFrame({"docs": [(-0.02, True), (0.01, False)], "code": [(0.0, False), (0.3, True)]})
    shown = words(plots.difference_cells(cells).axes[0].texts)
    assert [word.strip() for word in shown] == ["-0.020 •", "+0.000", "+0.010", "+0.300 •"]


@pytest.mark.parametrize("hops", [[1.0, 50.0, np.inf], [1.0, 2.0, 3.0]])
def test_when_properties_are_drawn_then_infinite_ones_have_no_mark_and_wide_ones_a_log_axis(hops):
    fig = plots.scatters(ROLES[["role"]].assign(hops=hops, rank=[1.0, 2.0, 3.0]), "rank")
    drawn, = (mark.get_offsets().tolist() for mark in fig.axes[0].collections)
    assert drawn == [[hop, rank] for hop, rank in zip(hops, (1.0, 2.0, 3.0), strict=True) if np.isfinite(hop)]
    assert fig.axes[0].get_xscale() == ("log" if 50.0 in hops else "linear") and fig.get_supylabel() == "rank"


def test_when_models_are_of_one_family_then_they_keep_its_colour_and_no_two_in_a_figure_look_alike():
    assert plots.look("Local window, equal edges, W=6").color == plots.look("Local window, W=64").color == plots.GREY
    assert plots.look("Fibonacci, linear ramp, W=8") == plots.look("Fibonacci, linear ramp")
    assert plots.look("Power law, sigma=0.5, B=32").color == plots.FAMILIES["power-law"]
    assert plots.look("Christoffel 31/256").color == plots.FAMILIES["christoffel"]
    crowd = [*MODELS, "Power law, sigma=0.7, B=32", "Power law, sigma=0.85, B=32",
             *(f"Fibonacci, linear ramp, W={w}" for w in (6, 8, 10, 12))]
    assert len({(look.color, look.marker, look.dash) for look in plots.looks(crowd).values()}) == len(crowd)


# Machado, Oliveira and Fernandes (2009), severity 1: what a viewer without one kind of cone sees, in linear RGB
PROTAN = np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]])
DEUTAN = np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]])


@pytest.mark.parametrize("sight", [np.eye(3), PROTAN, DEUTAN], ids=["all cones", "protan", "deutan"])
def test_when_colours_are_seen_with_fewer_cones_then_those_of_different_families_still_differ(sight):
    def seen(color):
        linear = (np.array([int(to_hex(color)[at:at + 2], 16) for at in (1, 3, 5)]) / 255) ** 2.2
        return np.clip(sight @ linear, 0, 1) ** (1 / 2.2)
    colours = [seen(color) for color in (plots.BLACK, plots.GREY, plots.BLUE, plots.SKY, plots.AMBER, plots.VERMILION,
                                         plots.PURPLE)]
    assert min(np.linalg.norm(a - b) for at, a in enumerate(colours) for b in colours[:at]) > 0.15


def test_when_patterns_are_drawn_then_all_are_there_dark_where_they_attend_and_layers_show_their_distances():
    titles = {axes.get_title().splitlines()[0] for axes in plots.everything(32).axes if axes.get_visible()}
    assert titles == set(names())
    picture = plots.masks({"ramp": PATTERNS["ramp"]}, 32, layer=1).axes[0].get_images()[0].get_array()
    assert np.array_equal(picture.astype(bool), PATTERNS["ramp"].mask(1, 32)[0])
    axes = plots.stack(PATTERNS, 32, window=2).axes[0]
    points = {(int(x), int(y)) for cloud in axes.collections for x, y in cloud.get_offsets()}
    assert points == {(d, layer) for layer in range(4) for d in PATTERNS["ramp"].plan(layer, 32).distances if d > 0}
