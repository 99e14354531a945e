"""Figures of results, in one style. A family of patterns keeps its colour everywhere, and colours suit colour-blind readers.

Every function returns a matplotlib `Figure` that pyplot does not know, so that a notebook shows it once: by `nb.show`.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLE = {
    "font.size": 9, "axes.titlesize": 9.5, "axes.labelsize": 9, "legend.fontsize": 8, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e6e6e6", "grid.linewidth": 0.6,
    "axes.axisbelow": True, "lines.linewidth": 1.6, "lines.markersize": 4.5, "figure.dpi": 110, "savefig.dpi": 150,
    "image.cmap": "cividis",
}
WIDTH = 7.2          # inches: the width of a page's text

# Okabe and Ito's colours, dealt out by family: Fibonacci blue and green, powers of two yellow, power law vermilion,
# Christoffel purple, comparators black and grey.
BLACK, GREY, LIGHT = "#000000", "#6e6e6e", "#a3a3a3"
SKY, BLUE, NAVY, GREEN, TEAL = "#56b4e9", "#0072b2", "#003f63", "#009e73", "#00614a"
AMBER, VERMILION, PURPLE, BROWN = "#e69f00", "#d55e00", "#cc79a7", "#8c6d46"
FAMILIES = {"scaled-base": BLUE, "power-law": VERMILION, "christoffel": PURPLE, "literature": BROWN, "comparator": GREY}


@dataclass(frozen=True)
class Look:
    color: str
    marker: str = "o"
    dash: Any = "-"


# The longest beginning of a series' name that stands here decides.
LOOKS = {
    "Dense": Look(BLACK, "s"), "Dense, ALiBi": Look(BLACK, "^", "--"), "Dense, no positions": Look(BLACK, "v", ":"),
    "Dense, rope=interpolation": Look(BROWN, "v", "--"), "Dense, rope=ntk": Look("#b8945a", "D", ":"),
    "Dense, rope=yarn": Look("#5c4327", "^", "-."),
    "Dense, mask=window": Look(GREY, "D", "--"), "Dense, mask=sinks": Look(LIGHT, "P", ":"),
    "Local window": Look(GREY, "D"), "Random offsets": Look(LIGHT, "X", "--"), "Random keys": Look(LIGHT, "P", ":"),
    "Fixed stride": Look(LIGHT, "*", "-."),
    "Fibonacci, fixed": Look(SKY), "Fibonacci, linear ramp": Look(BLUE), "Fibonacci, coprime ramp": Look(NAVY, "^", "--"),
    "Fibonacci, descending ramp": Look(BLUE, "v", "--"), "Fibonacci, permuted ramp": Look(NAVY, "P", ":"),
    "Fibonacci, learned": Look(GREEN, "P"), "Fibonacci, learned from the ramp": Look(TEAL, "X", "--"),
    "Powers of two": Look(AMBER, "s", "--"), "Matched powers of two": Look(AMBER, "D", ":"),
    "Power law": Look(VERMILION), "Christoffel": Look(PURPLE),
    "SDPA with a mask": Look(GREY, "D", "--"), "Materialised gather": Look(VERMILION, "v", ":"),
    "FlexAttention": Look(PURPLE, "P", "-."), "Reference": Look(LIGHT, "X", ":"),
    "Suite: torch": Look(SKY, "o", "--"), "Suite: compiled": Look(BLUE), "": Look(BROWN),
}
SHADES = {"Power law": ("#f4a582", VERMILION, "#8a3d00", "#e8762c", "#5c2900", "#f9c6ae"),
          "Christoffel": (PURPLE, "#7a3f60", "#e3aecb", "#54243f")}
OTHERS = (BROWN, "#b8945a", "#5c4327", "#d0b892")      # series without a look of their own
MARKERS = "ovD^sP"


def look(name: str) -> Look:
    """Colour, marker and dash of a series by its name."""
    return LOOKS[max((known for known in LOOKS if name.startswith(known)), key=len)]


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Looks of several series in one figure; those that would look alike get shades of their family and other markers."""
    names = list(names)
    found: dict[str, Look] = {}
    for name in names:
        own = look(name)
        alike = [other for other in found if look(other) == own]
        alone = OTHERS if own.color == BROWN else (own.color,)
        shades = next((shade for start, shade in SHADES.items() if name.startswith(start)), alone)
        if not alike and shades[0] == own.color:
            found[name] = own
        else:
            at = len(alike)
            found[name] = Look(shades[at % len(shades)], MARKERS[at % len(MARKERS)], ("-", "--", ":", "-.")[at % 4])
    return found


def drawn(function: Callable[..., Figure]) -> Callable[..., Figure]:
    """The function with the style of the suite while it draws."""
    @functools.wraps(function)
    def styled(*args: Any, **kwargs: Any) -> Figure:
        with mpl.rc_context(STYLE):
            return function(*args, **kwargs)
    return styled


def figure(height: float, columns: int = 1, rows: int = 1, **kwargs: Any) -> tuple[Figure, Any]:
    fig = Figure(figsize=(WIDTH, height), layout="constrained")
    return fig, fig.subplots(rows, columns, **kwargs)


@drawn
def lines(table: pd.DataFrame, *, x: str, y: str, title: str = "", log_x: bool = False, log_y: bool = False,
          mark: tuple[float, str] | None = None, zero: bool = False, height: float = 3.4, ticks: Iterable[float] = (),
          markers: bool = True, levels: Mapping[str, float] | None = None) -> Figure:
    """One line a column of `table` over its index; `mark` draws a vertical line with words, `zero` one at y = 0, `levels`
    horizontal ones with their names in the legend."""
    fig, axes = figure(height)
    shown = looks(table.columns)
    for name, own in shown.items():
        values = table[name].dropna()
        axes.plot(values.index, values.to_numpy(), color=own.color, linestyle=own.dash, label=name,
                  marker=own.marker if markers else None)
    for name, level in (levels or {}).items():
        own = look(name)
        ends = [table.index.min(), table.index.max()]
        axes.plot(ends, [level, level], color=own.color, linestyle=own.dash, linewidth=1, label=name)
    scales(axes, table.index, log_x, log_y, ticks)
    if zero:
        axes.axhline(0, color=GREY, linewidth=0.8)
    if mark is not None:
        axes.axvline(mark[0], color=GREY, linewidth=0.8, linestyle=":")
        axes.annotate(mark[1], (mark[0], 1), xycoords=("data", "axes fraction"), xytext=(3, -2), textcoords="offset points",
                      va="top", fontsize=8, color=GREY)
    axes.set(xlabel=x, ylabel=y, title=title)
    handles(fig, axes, len(shown) + len(levels or {}))
    return fig


def scales(axes: Axes, index: Iterable[float], log_x: bool, log_y: bool, ticks: Iterable[float] = ()) -> None:
    """Scales with plain numbers on them: lengths and perplexities are read, not exponents. `ticks`: those of the x axis."""
    if log_x:
        axes.set_xscale("symlog" if min(index) <= 0 else "log", base=10 if max(index) > 1e5 else 2)
    if log_x or max(index) > 1e5:
        axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(short))
    if log_x and max(index) > 1e5:                 # less than a decade of tokens has no power of ten but one
        axes.xaxis.set_major_locator(mpl.ticker.LogLocator(base=10, subs=(1, 2, 5) if max(index) < 1e3 * min(index) else (1,)))
        axes.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())
    chosen = sorted(set(ticks))
    if chosen:
        axes.set_xticks(chosen, [short(tick) for tick in chosen])
        axes.minorticks_off()
    if log_y:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(mpl.ticker.LogLocator(base=10, subs=(1, 1.5, 2, 3, 5, 7) if high < 40 * low else (1,)))
        axes.yaxis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
        axes.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())


def short(value: float, _: int = 0) -> str:
    """A number with at most three digits and a suffix: 25k, 1.2M, 3G."""
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and size > 1e3):
            return f"{value / size:.3g}{suffix}"
    return f"{value:g}"


def handles(fig: Figure, axes: Axes, count: int) -> None:
    """The legend beside the axes, in the order of the lines' right ends, so that the eye finds them."""
    own = [(line, line.get_label()) for line in axes.get_lines() if not line.get_label().startswith("_")]
    own.sort(key=lambda pair: -float(pair[0].get_ydata()[-1]) if len(pair[0].get_ydata()) else 0.0)
    if count > 1:
        fig.legend([line for line, _ in own], [label for _, label in own], loc="outside right center")


@drawn
def against_pairs(summary: pd.DataFrame, *, value: str = "mean", y: str = "perplexity", title: str = "") -> Figure:
    """Each model's value against its attended pairs (log scale), named in a legend from best to worst."""
    fig, axes = figure(3.6)
    shown = looks(summary.index)
    for name, row in summary.iterrows():
        own = shown[name]
        axes.scatter(row["pairs"], row[value], color=own.color, marker=own.marker, s=42, label=name, zorder=3)
    axes.set_xscale("log")
    for which in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        which(mpl.ticker.FuncFormatter(short))
    axes.xaxis.set_minor_locator(mpl.ticker.LogLocator(subs=(2, 3, 5)))
    axes.set(xlabel="attended pairs a training window, all layers", ylabel=y, title=title)
    fig.legend(loc="outside right center", title="best first", alignment="left")
    return fig


@drawn
def ranking(summary: pd.DataFrame, columns: Iterable[str], *, x: str = "perplexity", title: str = "") -> Figure:
    """One panel a column (a domain, say), one row a model: values as points, so that small differences are seen."""
    columns, names = list(columns), list(summary.index)[::-1]
    fig, panels = figure(0.9 + 0.24 * len(names), columns=len(columns), sharey=True, squeeze=False)
    shown = looks(names)
    for axes, column in zip(panels[0], columns, strict=True):
        for at, name in enumerate(names):
            axes.scatter(summary.loc[name, column], at, color=shown[name].color, marker=shown[name].marker, s=30, zorder=3)
        axes.set(title=column, xlabel=x, ylim=(-0.6, len(names) - 0.4))
        axes.set_yticks(range(len(names)), names)
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(3))
    if title:
        fig.suptitle(title)
    return fig


@drawn
def ranges(table: pd.DataFrame, *, x: str, marks: Mapping[str, float] | None = None, zero: bool = False,
           columns: int = 3) -> Figure:
    """Estimates with intervals: index the names, columns `estimate`, `low`, `high`, and `group` for panels (optional).

    marks: chance, a vertical line in the panel of each group. zero: a line at 0.
    """
    groups = {"": table} if "group" not in table else dict(list(table.groupby("group", sort=False)))
    names = list(dict.fromkeys(table.index))[::-1]                  # one order for all panels, the first name on top
    columns, rows = min(columns, len(groups)), -(-len(groups) // columns)
    fig, grid = figure(rows * (0.75 + 0.24 * len(names)) + 0.2, columns=columns, rows=rows, squeeze=False, sharey=True)
    for axes, (group, own) in zip(grid.ravel(), groups.items(), strict=False):
        for name, row in own.iterrows():
            seen, at = look(str(name)), names.index(name)
            axes.plot([row["low"], row["high"]], [at, at], color=seen.color, linewidth=2, alpha=0.6)
            axes.scatter(row["estimate"], at, color=seen.color, marker=seen.marker, s=26, zorder=3)
        if marks and group in marks:
            axes.axvline(marks[group], color=VERMILION, linewidth=1, linestyle=":", label="chance")
        if zero:
            axes.axvline(0, color=GREY, linewidth=0.8)
        axes.set(title=group, xlabel=x, ylim=(-0.6, len(names) - 0.4))
        axes.set_yticks(range(len(names)), names)
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
    for axes in grid.ravel()[len(groups):]:
        axes.set_visible(False)
    if marks:
        fig.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower right")
    return fig


@drawn
def band(tables: Mapping[str, pd.DataFrame], *, x: str, y: str, title: str = "") -> Figure:
    """Estimates with intervals over positions: one line a table (index first positions; `estimate`, `low`, `high`)."""
    fig, axes = figure(3.0)
    for (name, table), color in zip(tables.items(), (BLUE, GREY, VERMILION, GREEN), strict=False):
        at = np.arange(len(table))
        axes.fill_between(at, table["low"], table["high"], color=color, alpha=0.2, linewidth=0)
        axes.plot(at, table["estimate"], color=color, marker="o", label=name)
        axes.set_xticks(at, [f"{position:g}" for position in table.index])
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set(xlabel=x, ylabel=y, title=title)
    handles(fig, axes, len(tables))
    return fig


@drawn
def alpha_paths(paths: Mapping[str, pd.DataFrame], *, columns: int = 3) -> Figure:
    """Alpha of each layer by optimiser step, one panel a model; early layers dark, late layers light."""
    columns, rows = min(columns, len(paths)), -(-len(paths) // columns)
    fig, panels = figure(0.5 + 2.4 * rows, columns=columns, rows=rows, squeeze=False, sharey=True)
    for axes, (name, path) in zip(panels.ravel(), paths.items(), strict=False):
        shades = mpl.colormaps["viridis"](np.linspace(0, 0.85, path.shape[1]))
        for layer, shade in zip(path.columns, shades, strict=True):
            axes.plot(path.index, path[layer], color=shade, label=f"{layer:g}")
        axes.set(title=in_lines(name), xlabel="step", ylim=(0.45, 1.55))
    for axes in panels.ravel()[len(paths):]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("alpha")
    deepest = max(range(len(paths)), key=lambda at: list(paths.values())[at].shape[1])
    fig.legend(*panels.ravel()[deepest].get_legend_handles_labels(), loc="outside right center", title="layer")
    return fig


def in_lines(name: str, width: int = 24) -> str:
    """A name for the title of a narrow panel, in lines of at most `width` letters."""
    return "\n".join(textwrap.wrap(name, width))


@drawn
def panels(tables: Mapping[str, pd.DataFrame], *, x: str, y: str, log_y: bool = False,
           ticks: Iterable[float] = ()) -> Figure:
    """`lines` side by side with one y axis and one legend; a column is drawn alike in every panel."""
    names = list(dict.fromkeys(name for table in tables.values() for name in table.columns))
    shown, drawn_lines = looks(names), {}
    fig, grid = figure(3.2, columns=len(tables), squeeze=False, sharey=True)
    for axes, (title, table) in zip(grid[0], tables.items(), strict=True):
        for name in table.columns:
            own = shown[name]
            drawn_lines[name], = axes.plot(table.index, table[name], color=own.color, linestyle=own.dash, marker=own.marker)
        scales(axes, table.index, True, log_y, ticks)
        axes.set(title=title, xlabel=x)
    grid[0][0].set_ylabel(y)
    fig.legend(list(drawn_lines.values()), list(drawn_lines), loc="outside right center")
    return fig


@drawn
def cells(table: pd.DataFrame, *, title: str = "", low: float = 0.0, high: float = 1.0, digits: int = 2, x: str = "",
          y: str = "") -> Figure:
    """Every cell of a table as a shade with its number: nothing is averaged away."""
    import seaborn as sns
    fig, axes = figure(0.9 + 0.26 * len(table))
    sns.heatmap(table, ax=axes, annot=True, fmt=f".{digits}f", vmin=low, vmax=high, cmap="cividis", linewidths=0.5,
                cbar=False)
    axes.set(title=title, ylabel=y, xlabel=x)
    axes.tick_params(axis="y", rotation=0)
    return fig


@drawn
def bars(tables: Mapping[str, pd.Series], *, x: str, y: str, columns: int = 5) -> Figure:
    """Small histograms side by side: one panel a series of counts or shares over its index."""
    rows = -(-len(tables) // columns)
    fig, panels = figure(2.1 * rows, columns=min(columns, len(tables)), rows=rows, squeeze=False, sharey=True, sharex=True)
    for axes, (name, values) in zip(panels.ravel(), tables.items(), strict=False):
        axes.bar(values.index, values.to_numpy(), color=look(name).color, width=0.9)
        axes.set_title(in_lines(name, 18), fontsize=8.5)
    for axes in panels.ravel()[len(tables):]:
        axes.set_visible(False)
    for axes in panels[-1]:
        axes.set_xlabel(x)
    for axes in panels[:, 0]:
        axes.set_ylabel(y)
    return fig
