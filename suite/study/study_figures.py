"""Figures of the two notebooks that ask the suite's own questions: many patterns at once, and trends beyond the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from suite.study.figures import (BLACK, BLUE, BROWN, GREY, LIGHT, VERMILION,
                                 drawn, figure, in_lines, look, looks, short)

ROLES = {"model": ("proposal", BLUE), "control": ("control", GREY), "neighbour": ("literature", BROWN),
         "baseline": ("dense", BLACK)}             # what a table's `role` is called and coloured
FILLS = (None, "white", "#d9d9d9")                  # inside of a mark: its own colour for the first column, then these


@drawn
def dumbbells(table: pd.DataFrame, columns: Sequence[str], *, x: str) -> Figure:
    """One row a model, the first on top: a full mark for the first column, open ones for the others, on one log axis.

    `table` has a column `role` for the colours.
    """
    names = list(table.index)[::-1]
    fig, axes = figure(0.9 + 0.21 * len(names))
    for at, name in enumerate(names):
        values, color = table.loc[name, list(columns)].astype(float), ROLES[table.loc[name, "role"]][1]
        axes.plot([values.min(), values.max()], [at, at], color=color, linewidth=1, alpha=0.5)
        for column, fill in zip(columns, FILLS, strict=False):
            axes.scatter(values[column], at, facecolor=fill or color, edgecolor=color, s=30, zorder=3)
    axes.set_xscale("log")
    for which in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        which(mpl.ticker.FuncFormatter(short))
    axes.xaxis.set_minor_locator(mpl.ticker.MaxNLocator(6))
    axes.xaxis.set_major_locator(mpl.ticker.NullLocator())
    axes.set(xlabel=x, ylim=(-0.6, len(names) - 0.4))
    axes.set_yticks(range(len(names)), names)
    marks = [mpl.lines.Line2D([], [], color=color, marker="o", linestyle="", label=words)
             for role, (words, color) in ROLES.items() if role in set(table["role"])]
    marks += [mpl.lines.Line2D([], [], color=GREY, marker="o", linestyle="", markerfacecolor=fill or GREY, label=column)
              for column, fill in zip(columns, FILLS, strict=False)]
    fig.legend(handles=marks, loc="outside right center")
    return fig


@drawn
def scatters(table: pd.DataFrame, y: str, *, columns: int = 3) -> Figure:
    """A panel a column of `table` against its column `y`: one point a model, coloured by its `role`; rank is what counts."""
    shown = [column for column in table if column not in (y, "role")]
    across, rows = min(columns, len(shown)), -(-len(shown) // columns)
    fig, grid = figure(0.4 + 2.3 * rows, columns=across, rows=rows, squeeze=False, sharey=True)
    for axes, column in zip(grid.ravel(), shown, strict=False):
        values = table[column].replace(np.inf, np.nan)
        for role in [role for role in ROLES if role in set(table["role"])]:
            at, (words, color) = table["role"] == role, ROLES[role]
            axes.scatter(values[at], table.loc[at, y], color=color, s=20, label=words, zorder=3)
        if (values.dropna() > 0).all() and values.max() > 20 * values.min():
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(short))
            axes.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())
        axes.set_xlabel(in_lines(column, 30))
    for axes in grid[:, 0]:
        axes.set_ylabel(y)
    for axes in grid.ravel()[len(shown):]:
        axes.set_visible(False)
    fig.legend(*grid[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=len(ROLES))
    return fig


@drawn
def trend(points: pd.DataFrame, line: pd.DataFrame, curves: pd.DataFrame, *, y: str, mark: tuple[float, str]) -> Figure:
    """Differences of whole runs with intervals, what runs logged on the way, and a fitted line with its prediction band.

    points: `tokens`, `estimate`, `low`, `high`. line: index tokens, the same three. curves: index tokens, a column a run.
    """
    fig, axes = figure(3.4)
    for name in curves:
        values = curves[name].dropna()
        axes.plot(values.index, values.to_numpy(), color=LIGHT, linewidth=0.9,
                  label="logged inside the runs" if name == curves.columns[0] else None)
    if len(line):
        axes.fill_between(line.index, line["low"], line["high"], color=BLUE, alpha=0.15, linewidth=0,
                          label="95 % prediction of the line")
        axes.plot(line.index, line["estimate"], color=BLUE, linestyle="--", label="line in log tokens")
    axes.errorbar(points["tokens"], points["estimate"], color=BLUE, linestyle="", marker="o", linewidth=1.2, capsize=2,
                  yerr=[points["estimate"] - points["low"], points["high"] - points["estimate"]], label="whole runs", zorder=4)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.axvline(mark[0], color=VERMILION, linewidth=0.8, linestyle=":", label=mark[1])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(short))
    axes.set(xlabel="training tokens", ylabel=y)
    fig.legend(loc="outside right center")
    return fig


@drawn
def band_panels(panels: Mapping[str, Mapping[str, pd.DataFrame]], *, x: str, y: str,
                marks: Mapping[str, float] | None = None) -> Figure:
    """Estimates with intervals over ordered bins, a panel a group and a line a model; `marks`: words at a place between bins.

    Each table: index what a tick says, columns `estimate`, `low`, `high`; all tables of all panels have the same bins.
    """
    names = list(dict.fromkeys(name for tables in panels.values() for name in tables))
    shown: dict[str, Any] = looks(names)
    fig, grid = figure(3.5, columns=len(panels), squeeze=False, sharey=True)
    for axes, (title, tables) in zip(grid[0], panels.items(), strict=True):
        for step, (name, table) in enumerate(tables.items()):
            at, own = np.arange(len(table)) + 0.12 * (step - (len(tables) - 1) / 2), shown[name]
            axes.errorbar(at, table["estimate"], color=own.color, linestyle=own.dash, marker=own.marker, linewidth=1.2,
                          yerr=[table["estimate"] - table["low"], table["high"] - table["estimate"]], label=name)
            axes.set_xticks(range(len(table)), list(table.index), rotation=60, ha="right", fontsize=7.5)
        for words, place in (marks or {}).items():
            axes.axvline(place, color=BROWN, linewidth=0.9, linestyle=":")
            axes.annotate(words, (place, 1), xycoords=("data", "axes fraction"), xytext=(-2, -3), textcoords="offset points",
                          rotation=90, ha="right", va="top", fontsize=7, color=BROWN)
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.set(title=title, xlabel=x)
    grid[0][0].set_ylabel(y)
    fig.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return fig


@drawn
def rates(tables: Mapping[str, pd.DataFrame], *, x: str, y: str, level: tuple[float, str]) -> Figure:
    """Shares with intervals over a number: one line a model; `level`: a horizontal line with its name, chance say."""
    fig, axes = figure(3.0)
    for name, table in tables.items():
        own = look(name)
        axes.errorbar(table.index, table["estimate"], color=own.color, linestyle=own.dash, marker=own.marker, capsize=2,
                      yerr=[table["estimate"] - table["low"], table["high"] - table["estimate"]], label=name)
    axes.axhline(level[0], color=VERMILION, linewidth=1, linestyle=":", label=level[1])
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({at for table in tables.values() for at in table.index}))
    axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(short))
    axes.set(xlabel=x, ylabel=y, ylim=(-0.05, 1.05))
    fig.legend(loc="outside right center")
    return fig


@drawn
def differences(tables: Mapping[Any, pd.DataFrame], *, x: str) -> Figure:
    """Differences with intervals in the order of the first table: a panel a length (key), one row a model, a line at 0.

    The axis of a panel ends at three times its median difference, so that one broken model does not hide the others.
    """
    names = list(next(iter(tables.values())).index)[::-1]
    fig, grid = figure(0.9 + 0.19 * len(names), columns=len(tables), squeeze=False, sharey=True)
    for axes, (length, table) in zip(grid[0], tables.items(), strict=True):
        end = 3 * max(float(table[["low", "high"]].abs().max(axis=1).median()), 1e-3)
        for at, name in enumerate(names):
            own, seen = table.loc[name], look(name)
            if abs(own["estimate"]) > end:
                axes.annotate(f"{own['estimate']:+.2f}", (np.copysign(end, own["estimate"]), at), fontsize=7, va="center",
                              ha="right" if own["estimate"] > 0 else "left", color=seen.color)
                continue
            axes.plot(np.clip([own["low"], own["high"]], -end, end), [at, at], color=seen.color, linewidth=2, alpha=0.6)
            axes.scatter(own["estimate"], at, color=seen.color, marker=seen.marker, s=22, zorder=3)
        axes.axvline(0, color=GREY, linewidth=0.8)
        axes.set(title=f"{length} tokens", ylim=(-0.6, len(names) - 0.4), xlim=(-1.05 * end, 1.05 * end))
        axes.set_yticks(range(len(names)), [name.replace(", equal edges", "") for name in names])
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
    fig.supxlabel(x, fontsize=9)
    return fig


@drawn
def grid(cells: pd.DataFrame, *, title: str = "") -> Figure:
    """Differences as shaded cells with their numbers, blue below zero; a cell is a pair (estimate, whether it is certain)."""
    import seaborn as sns
    values = cells.map(lambda cell: cell[0]).astype(float)
    words = cells.map(lambda cell: f"{cell[0]:+.3f}{' •' if cell[1] else '  '}")
    end = float(values.abs().stack().quantile(0.9)) or 1.0
    fig, axes = figure(1.0 + 0.2 * len(cells))
    sns.heatmap(values, ax=axes, annot=words, fmt="", center=0, vmin=-end, vmax=end, cmap="RdBu_r", linewidths=0.5, cbar=False,
                annot_kws={"fontsize": 7.5})
    axes.set(title=title, xlabel="", ylabel="")
    axes.tick_params(axis="y", rotation=0)
    return fig
