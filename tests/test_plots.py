"""Figures: drawn from made-up tables, each with what it must have; colours that stay with their family."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from lib.patterns import build, names
from suite.study import figures as plots
from suite.study import gallery

MODELS = ["Dense", "Fibonacci, fixed", "Fibonacci, linear ramp", "Local window, equal edges", "Power law, sigma=0.5, B=32",
          "Power law, sigma=1.2, B=32", "Christoffel 31/256", "Christoffel 32/256", "Dense, rope=yarn"]
SUMMARY = pd.DataFrame({"pairs": np.geomspace(1e4, 1e5, 9), "mean": np.linspace(20, 30, 9), "docs": 1.0, "code": 2.0},
                       index=MODELS)
RANGES = pd.DataFrame({"estimate": [0.1, 0.4], "low": [0.0, 0.3], "high": [0.2, 0.5], "group": ["a", "b"]},
                      index=["Dense", "Christoffel 31/256"])
LINES = pd.DataFrame(np.random.default_rng(0).random((4, 9)) + 1, index=[0, 8, 64, 256], columns=MODELS)
ALPHAS = {f"model {n}, long": pd.DataFrame(np.ones((3, 4)), index=[0, 5, 10]) for n in range(4)}
PATTERNS = {"Fibonacci, linear ramp": build("scaled_base", layers=4, schedule="linear", window=2, rungs=8),
            "Power law": build("power_law", layers=4, window=2, budget=6),
            "learned": build("learned", layers=4, window=2, rungs=8)}

FIGURES = {
    "lines": lambda: plots.lines(LINES, x="x", y="y", log_x=True, log_y=True, mark=(64, "here"), zero=True,
                                 ticks=[0, 64, 64], levels={"Dense": 1.5}),
    "against_pairs": lambda: plots.against_pairs(SUMMARY),
    "ranking": lambda: plots.ranking(SUMMARY, ["docs", "code"]),
    "ranges": lambda: plots.ranges(RANGES, x="accuracy", marks={"a": 0.1, "b": 0.2}),
    "ranges without groups": lambda: plots.ranges(RANGES.drop(columns="group"), x="x", zero=True),
    "band": lambda: plots.band({"here": RANGES.drop(columns="group").set_axis([0, 8])}, x="x", y="y"),
    "alpha_paths": lambda: plots.alpha_paths(ALPHAS),
    "panels": lambda: plots.panels({"one": LINES.iloc[1:], "two": LINES.iloc[1:, :3]}, x="x", y="y", log_y=True,
                                   ticks=[8, 256]),
    "cells": lambda: plots.cells(pd.DataFrame(np.eye(3)), title="t", digits=3),
    "bars": lambda: plots.bars({"Christoffel 31/256": pd.Series([1, 2]), "Local window, equal edges": pd.Series([3, 4])},
                               x="x", y="y"),
    "masks": lambda: gallery.masks(PATTERNS, 32, layer=-1, head=-1),
    "everything": lambda: gallery.everything(32),
    "stack": lambda: gallery.stack(PATTERNS, 32, window=2),
    "offsets": lambda: gallery.offsets(PATTERNS, 32),
    "sequence": lambda: gallery.sequence(np.arange(10), np.where(np.arange(10) > 7, 3, -100)),
}


@pytest.mark.parametrize("name", FIGURES)
def test_when_a_figure_is_asked_for_then_it_is_drawn_and_pyplot_does_not_know_it(name):
    figure = FIGURES[name]()
    assert isinstance(figure, Figure) and figure.axes
    content = io.BytesIO()
    figure.savefig(content, format="png")
    assert content.getbuffer().nbytes > 2000
    assert pyplot.get_fignums() == []
    assert all(axes.get_xlabel() or not axes.get_visible() or name in ("cells", "masks", "everything", "stack", "bars")
               for axes in figure.axes), "an axis without a name"


def test_when_lines_are_drawn_then_their_values_are_the_tables():
    axes = plots.lines(LINES, x="x", y="y").axes[0]
    drawn = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    assert set(drawn) == set(MODELS)
    assert all(np.array_equal(drawn[name], LINES[name]) for name in MODELS)


def test_when_values_are_missing_then_the_line_skips_them_and_draws_no_zero():
    table = LINES.copy()
    table.loc[8, "Dense"] = np.nan
    line = next(line for line in plots.lines(table, x="x", y="y").axes[0].get_lines() if line.get_label() == "Dense")
    assert len(line.get_ydata()) == 3 and 0 not in line.get_ydata()


def test_when_ranges_are_drawn_then_bars_end_at_their_bounds_and_names_are_in_order():
    axes = plots.ranges(RANGES.drop(columns="group"), x="x").axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["Christoffel 31/256", "Dense"]        # first row on top
    drawn = {line.get_ydata()[0]: list(line.get_xdata()) for line in axes.get_lines()}
    assert drawn == {1: [0.0, 0.2], 0: [0.3, 0.5]}


def test_when_panels_list_names_in_other_orders_then_each_stands_in_its_own_row():
    table = pd.concat([RANGES.assign(group="a"), RANGES.iloc[::-1].assign(group="b")])
    left, right = plots.ranges(table, x="x").axes
    rows = [{line.get_ydata()[0]: list(line.get_xdata()) for line in axes.get_lines()} for axes in (left, right)]
    assert rows[0] == rows[1] == {1: [0.0, 0.2], 0: [0.3, 0.5]}


def test_when_models_are_of_one_family_then_they_keep_its_colour_everywhere():
    assert plots.look("Local window, equal edges, W=6").color == plots.look("Local window, W=64").color == plots.GREY
    assert plots.look("Fibonacci, linear ramp, W=8") == plots.look("Fibonacci, linear ramp")
    assert plots.look("Power law, sigma=0.5, B=32").color == plots.FAMILIES["power-law"]
    assert plots.look("Christoffel 31/256").color == plots.FAMILIES["christoffel"]


def test_when_several_share_a_figure_then_no_two_look_alike():
    crowd = [*MODELS, "Power law, sigma=0.7, B=32", "Power law, sigma=0.85, B=32",
             *(f"Fibonacci, linear ramp, W={w}" for w in (6, 8, 10, 12))]
    shown = plots.looks(crowd)
    assert len({(look.color, look.marker, look.dash) for look in shown.values()}) == len(crowd)


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


def test_when_numbers_are_large_then_they_are_short():
    numbers = {64: "64", 1024: "1024", 25_000: "25k", 263_168: "263k", 1.2e9: "1.2G", 3e12: "3T", 0.5: "0.5"}
    assert {value: plots.short(value) for value in numbers} == numbers


def test_when_a_gallery_is_drawn_then_every_pattern_is_in_it_and_dark_where_it_attends():
    titles = {axes.get_title().splitlines()[0] for axes in gallery.everything(32).axes if axes.get_visible()}
    assert titles == set(names())
    picture = gallery.masks({"ramp": PATTERNS["Fibonacci, linear ramp"]}, 32).axes[0].get_images()[0].get_array()
    assert np.array_equal(picture.astype(bool), PATTERNS["Fibonacci, linear ramp"].mask(0, 32)[0])


def test_when_a_stack_is_drawn_then_each_layer_shows_its_distances():
    pattern = PATTERNS["Fibonacci, linear ramp"]
    axes = gallery.stack({"ramp": pattern}, 32, window=2).axes[0]
    points = {(int(x), int(y)) for cloud in axes.collections for x, y in cloud.get_offsets()}
    assert points == {(d, layer) for layer in range(4) for d in pattern.plan(layer, 32).distances if d > 0}


def test_when_an_axis_counts_tokens_then_its_ticks_are_few_and_plain():
    table = pd.DataFrame({"Dense": [1.0, 2.0]}, index=[16_384_000, 425_984_000])       # with its margins up to 500 M
    fig = plots.panels({"published": table, "here": table}, x="tokens", y="perplexity")
    fig.canvas.draw()
    axis = fig.axes[0].xaxis
    shown = [label.get_text() for label in axis.get_ticklabels(which="both") if label.get_text()]
    low, high = axis.get_view_interval()
    within = [text for tick, text in zip(axis.get_majorticklocs(), [label.get_text() for label in axis.get_majorticklabels()],
                                         strict=True) if low <= tick <= high]
    assert within == ["20M", "50M", "100M", "200M", "500M"] and set(shown) >= set(within)
    assert not [text for text in shown if "10^" in text or "mathdefault" in text]
