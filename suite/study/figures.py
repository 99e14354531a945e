"""Figures of results, in one style. A family keeps its colour everywhere, and colours suit colour-blind readers.

`lines` draws values over a number, `intervals` estimates in rows and `interval_lines` over bins, the others one kind of
table each; pictures of patterns come last. Every function returns a matplotlib `Figure` that pyplot
does not know, so that a notebook shows it once: by `nb.show`.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
import yaml
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from lib.patterns import Pattern, names, pattern_class
from suite.study.graph import layer_distances

STYLE = mpl.rc_params_from_file(Path(__file__).with_name("suite.mplstyle"), use_default_template=False)
drawn = mpl.rc_context(STYLE)          # decorates the functions that draw
Tables = pd.DataFrame | Mapping[str, pd.DataFrame]      # one, or a table a panel by its title
WIDTH = 7.2                            # inches: the width of a page's text

# Okabe and Ito's colours, dealt out by family: Fibonacci blue and green, powers of two yellow, power law vermilion,
# Christoffel purple, comparators black and grey.
BLACK, GREY, LIGHT = "#000000", "#6e6e6e", "#a3a3a3"
SKY, BLUE, NAVY, GREEN, TEAL = "#56b4e9", "#0072b2", "#003f63", "#009e73", "#00614a"
AMBER, VERMILION, PURPLE, BROWN = "#e69f00", "#d55e00", "#cc79a7", "#8c6d46"
FAMILIES = {"scaled-base": BLUE, "power-law": VERMILION, "christoffel": PURPLE, "literature": BROWN, "comparator": GREY}

# What a table's `role` is called and coloured.
ROLES = {"model": ("proposal", BLUE), "control": ("control", GREY), "neighbour": ("literature", BROWN),
         "baseline": ("dense", BLACK)}


class Look(NamedTuple):
    color: str
    marker: str = "o"
    dash: str = "-"


LOOKS = {name: Look(globals().get(color, color), *rest) for name, (color, *rest) in
         yaml.safe_load(Path(__file__).with_name("looks.yaml").read_text("utf-8")).items()}
SHADES = {"Power law": ("#f4a582", VERMILION, "#8a3d00", "#e8762c", "#5c2900", "#f9c6ae"),
          "Christoffel": (PURPLE, "#7a3f60", "#e3aecb", "#54243f")}
OTHERS = (BROWN, "#b8945a", "#5c4327", "#d0b892")      # series without a look of their own
MARKERS, DASHES = "ovD^sP", ("-", "--", ":", "-.")


def look(name: str) -> Look:
    """Colour, marker and dash of a series by its name."""
    return LOOKS[max((known for known in LOOKS if name.startswith(known)), key=len)]


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Looks of several series in one figure; series of one look get shades of their family and other markers."""
    shown: dict[str, Look] = {}
    for name in names:
        own = look(name)
        alike = sum(look(other) == own for other in shown)
        shades = next((shades for start, shades in SHADES.items() if name.startswith(start)),
                      OTHERS if own.color == BROWN else (own.color,))
        if alike or shades[0] != own.color:
            own = Look(shades[alike % len(shades)], MARKERS[alike % len(MARKERS)], DASHES[alike % len(DASHES)])
        shown[name] = own
    return shown


def panels(count: int, height: float, columns: int = 1, y: str = "", **kwargs: Any) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, at most `columns` side by side, each row `height` inches high, and one label y."""
    rows = -(-count // columns)
    columns = -(-count // rows)                  # four panels are two rows of two, not three and one
    fig = Figure(figsize=(WIDTH, height * rows), layout="constrained")
    grid = fig.subplots(rows, columns, squeeze=False, **kwargs).ravel()
    for axes in grid[count:]:
        axes.set_visible(False)
    if y:
        fig.supylabel(y, fontsize=9)
    return fig, list(grid[:count])


def short(value: float, _: int = 0) -> str:
    """A number with at most three digits and a suffix: 25k, 1.2M, 3G."""
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and size > 1e3):
            return f"{value / size:.3g}{suffix}"
    return f"{value:g}"


def literal(name: str) -> str:
    """A name from outside, a domain's, of which Matplotlib makes no formula."""
    return name.replace("$", r"\$")


@drawn
def lines(tables: Tables, *, x: str, y: str, title: str = "", log_x: bool = False, log_y: bool = False,
          mark: tuple[float, str] | None = None, zero: bool = False, ticks: Iterable[float] = (), markers: bool = True,
          levels: Mapping[str, float] | None = None) -> Figure:
    """One line a column of a table over its index; several tables (by title) are panels with one y axis.

    mark: a vertical line with words. zero: a line at y = 0. ticks: of the x axis. levels: horizontal lines by name.
    """
    tables = tables if isinstance(tables, Mapping) else {title: tables}
    shown = looks(dict.fromkeys(name for table in tables.values() for name in table.columns))
    fig, grid = panels(len(tables), 3.4, len(tables), y, sharey=True)
    for axes, (title, table) in zip(grid, tables.items(), strict=True):
        for name in table.columns:
            values, own = table[name].dropna(), shown[name]
            axes.plot(values.index, values.to_numpy(), color=own.color, linestyle=own.dash, label=name,
                      marker=own.marker if markers else None)
        for name, level in (levels or {}).items():
            axes.plot([table.index.min(), table.index.max()], [level, level], color=look(name).color,
                      linestyle=look(name).dash, linewidth=1, label=name)
        scales(axes, table.index, log_x, log_y, ticks)
        if zero:
            axes.axhline(0, color=GREY, linewidth=0.8)
        if mark is not None:
            axes.axvline(mark[0], color=GREY, linewidth=0.8, linestyle=":")
            axes.annotate(mark[1], (mark[0], 1), xycoords=("data", "axes fraction"), xytext=(3, -2), va="top",
                          fontsize=8, textcoords="offset points", color=GREY)
        axes.set(xlabel=x, title=title)
    named = {line.get_label(): line for axes in grid for line in axes.get_lines() if line.get_label()[0] != "_"}
    # The legend has the order of the lines' right ends, so that the eye finds them.
    order = sorted(named, key=lambda name: -float(named[name].get_ydata()[-1]) if len(named[name].get_ydata()) else 0.0)
    if len(named) > 1:
        fig.legend([named[name] for name in order], order, loc="outside right center")
    return fig


def scales(axes: Axes, index: Iterable[float], log_x: bool, log_y: bool, ticks: Iterable[float]) -> None:
    """Scales with plain numbers on them: lengths and perplexities are read, not exponents."""
    large = max(index) > 1e5
    if log_x:
        axes.set_xscale("symlog" if min(index) <= 0 else "log", base=10 if large else 2)
    if log_x or large:
        axes.xaxis.set_major_formatter(short)
    if log_x and large:                     # less than a decade of tokens has no power of ten but one
        subs = (1, 2, 5) if max(index) < 1e3 * min(index) else (1,)
        axes.xaxis.set_major_locator(mpl.ticker.LogLocator(base=10, subs=subs))
        axes.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())
    if chosen := sorted(set(ticks)):
        axes.set_xticks(chosen, [short(tick) for tick in chosen])
        axes.minorticks_off()
    if log_y:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        subs = (1, 1.5, 2, 3, 5, 7) if high < 40 * low else (1,)
        axes.yaxis.set_major_locator(mpl.ticker.LogLocator(base=10, subs=subs))
        axes.yaxis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
        axes.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())


@drawn
def intervals(tables: Tables, *, x: str, zero: bool = False, columns: int = 3, limit: float = 0.0) -> Figure:
    """Estimates (columns `estimate`, and `low` and `high` if known), a name a row, the first on top; in panels by the
    column `group`, or a table a panel. A column `chance` is a dotted line, zero a line at 0. limit: how many times its
    median end a panel shows; an estimate beyond is written at the edge."""
    if isinstance(tables, pd.DataFrame):
        tables = dict(list(tables.groupby("group", sort=False))) if "group" in tables else {"": tables}
    shown = looks(dict.fromkeys(name for table in tables.values() for name in table.index))
    names = list(shown)[::-1]
    fig, grid = panels(len(tables), 0.85 + 0.23 * len(names), columns, sharey=True)
    for axes, (title, table) in zip(grid, tables.items(), strict=True):
        end = limit * max(float(table[["low", "high"]].abs().max(axis=1).median()), 1e-3) if limit else np.inf
        for name, value in table["estimate"].items():
            at, own = names.index(name), shown[name]
            if abs(value) > end:
                axes.annotate(f"{value:+.2f}", (np.copysign(end, value), at), fontsize=7, va="center", color=own.color,
                              ha="right" if value > 0 else "left")
            else:
                axes.errorbar([value], [at], xerr=_spread(table.loc[[name]]), color=own.color, marker=own.marker,
                              markersize=5, linestyle="", elinewidth=1.8)
        axes.set(ylim=(-0.6, len(names) - 0.4), title=literal(textwrap.fill(title, 40)),
                 **({"xlim": (-1.05 * end, 1.05 * end)} if limit else {}))
        axes.set_yticks(range(len(names)), names)
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
        if "chance" in table:
            axes.axvline(table["chance"].mean(), color=VERMILION, linewidth=1, linestyle=":", label="chance")
        if zero:
            axes.axvline(0, color=GREY, linewidth=0.8)
    fig.supxlabel(x, fontsize=9)
    if "chance" in table:
        fig.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center")
    return fig


@drawn
def interval_lines(tables: pd.DataFrame | Mapping[str, Any], *, x: str, y: str, zero: bool = False,
                   chance: float | None = None, places: Mapping[str, float] | None = None) -> Figure:
    """Estimates with their intervals over bins at equal distances, a line a name, side by side within a bin.

    tables: a table a name with the bins as its index, or such tables by panel, or one of all with the names as its
    index and columns `bin` and `group` (the panel). chance, zero: lines. places: words at places between the bins.
    """
    if isinstance(tables, Mapping):
        nested = tables if isinstance(next(iter(tables.values())), Mapping) else {"": tables}
        tables = pd.concat({title: pd.concat(own) for title, own in nested.items()}, names=["group", "name", "bin"])
        tables = tables.reset_index(["group", "bin"])
    shown, by_panel = looks(tables.index.unique()), dict(list(tables.groupby("group", sort=False)))
    fig, grid = panels(len(by_panel), 3.5, len(by_panel), y, sharey=True)
    for axes, (title, table) in zip(grid, by_panel.items(), strict=True):
        bins, names = list(table["bin"].unique()), list(table.index.unique())
        bins = bins if isinstance(bins[0], str) else sorted(bins)
        for step, name in enumerate(names):
            rows, own = table.loc[[name]], shown[name]
            at = [bins.index(place) + 0.12 * (step - (len(names) - 1) / 2) for place in rows["bin"]]
            axes.errorbar(at, rows["estimate"], yerr=_spread(rows), color=own.color, linestyle=own.dash,
                          marker=own.marker, linewidth=1.2, label=name)
        words = [literal(place) if isinstance(place, str) else short(place) for place in bins]
        axes.set_xticks(range(len(bins)), words)
        if max(map(len, words)) > 5:
            axes.tick_params(axis="x", rotation=60, labelsize=7.5)
        if chance is not None:
            axes.axhline(chance, color=VERMILION, linewidth=1, linestyle=":", label="chance")
        if zero:
            axes.axhline(0, color=GREY, linewidth=0.8)
        for word, place in (places or {}).items():
            axes.axvline(place, color=BROWN, linewidth=0.9, linestyle=":")
            axes.annotate(word, (place, 1), xycoords=("data", "axes fraction"), xytext=(-2, -3), rotation=90,
                          ha="right", va="top", textcoords="offset points", fontsize=7, color=BROWN)
        axes.set_title(title)
    fig.supxlabel(x, fontsize=9)
    fig.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return fig


def _spread(table: pd.DataFrame) -> list[pd.Series]:
    """How far the interval reaches below and above the estimate, as `errorbar` wants it."""
    ends = table.reindex(columns=["estimate", "low", "high"]).astype(float)
    return [(ends["estimate"] - ends["low"]).clip(lower=0), (ends["high"] - ends["estimate"]).clip(lower=0)]


@drawn
def against_pairs(table: pd.DataFrame, *, title: str) -> Figure:
    """Perplexity (`mean`) of each model against its attended `pairs` (log scale), named in a legend, the best first."""
    shown, ordered = looks(table.sort_values("mean").index), table.sort_values(["pairs", "mean"])
    best = ordered[ordered["mean"] < ordered["mean"].cummin().shift(fill_value=np.inf)]
    fig, (axes,) = panels(1, 3.7)
    if len(best) > 1:                       # rows that no row with as few pairs beats
        axes.step(best["pairs"], best["mean"], where="post", color=LIGHT, linewidth=1, linestyle="--", zorder=1)
    for name, row in table.iterrows():
        axes.errorbar(row["pairs"], row["mean"], color=shown[name].color, linewidth=1, marker=shown[name].marker,
                      markersize=6, zorder=3)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(short)
    axes.xaxis.set_minor_formatter(short)
    axes.xaxis.set_minor_locator(mpl.ticker.LogLocator(subs=(2, 5)))
    axes.set(xlabel="attended pairs a training window, all layers", ylabel="perplexity", title=title)
    marks = [_mark(own.color, name, own.color, own.marker) for name, own in shown.items()]
    marks.append(mpl.lines.Line2D([], [], color=LIGHT, linewidth=1, linestyle="--", label="best with as few pairs"))
    fig.legend(handles=marks, loc="outside right upper", title="best first", alignment="left")
    return fig


@drawn
def alpha_paths(paths: Mapping[str, pd.DataFrame]) -> Figure:
    """Alpha of each layer by optimiser step, one panel a model; early layers dark, late layers light."""
    fig, grid = panels(len(paths), 2.6, 3, "alpha", sharey=True)
    for axes, (name, path) in zip(grid, paths.items(), strict=True):
        shades = mpl.colormaps["viridis"](np.linspace(0, 0.85, path.shape[1]))
        for layer, shade in zip(path.columns, shades, strict=True):
            axes.plot(path.index, path[layer], color=shade, label=f"{layer:g}")
        axes.set(title=textwrap.fill(name, 24), xlabel="step", ylim=(0.45, 1.55))
    deepest = max(grid, key=lambda axes: len(axes.get_lines()))
    fig.legend(*deepest.get_legend_handles_labels(), loc="outside right center", title="layer")
    return fig


@drawn
def cells(table: pd.DataFrame, *, title: str, x: str, y: str = "", high: float = 1.0, digits: int = 2) -> Figure:
    """Every cell of a table as a shade with its number."""
    return _shaded(table, table.map(f"{{:.{digits}f}}".format), title, x, y, vmin=0.0, vmax=high, cmap="cividis")


@drawn
def difference_cells(table: pd.DataFrame, *, title: str = "") -> Figure:
    """Differences (pairs: estimate, whether it is certain) as shaded cells with their numbers, blue below zero."""
    values = table.map(lambda cell: cell[0]).astype(float).rename(columns=literal)
    words = table.map(lambda cell: f"{cell[0]:+.3f}{' •' if cell[1] else '  '}")
    end = float(values.abs().stack().quantile(0.9)) or 1.0
    return _shaded(values, words, title, "", "", center=0, vmin=-end, vmax=end, cmap="RdBu_r")


def _shaded(values: pd.DataFrame, words: pd.DataFrame, title: str, x: str, y: str, **colours: Any) -> Figure:
    import seaborn as sns
    fig, (axes,) = panels(1, 0.9 + 0.24 * len(values))
    sns.heatmap(values, ax=axes, annot=words, fmt="", linewidths=0.5, cbar=False, annot_kws={"fontsize": 7.5},
                **colours)
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.tick_params(axis="y", rotation=0)
    return fig


@drawn
def bars(tables: Mapping[str, pd.Series], *, x: str, y: str) -> Figure:
    """Small histograms side by side: one panel a series of counts or shares over its index."""
    fig, grid = panels(len(tables), 2.1, 5, y, sharey=True, sharex=True)
    for axes, (name, values) in zip(grid, tables.items(), strict=True):
        axes.bar(values.index, values.to_numpy(), color=look(name).color, width=0.9)
        axes.set_title(textwrap.fill(name, 18), fontsize=8.5)
    fig.supxlabel(x, fontsize=9)
    return fig


@drawn
def dumbbells(table: pd.DataFrame, columns: Sequence[str], *, x: str) -> Figure:
    """One row a model, coloured by its `role`, the first on top: a full mark for the first column, open ones for the
    others, on one log axis."""
    names, fills = list(table.index)[::-1], dict(zip(columns, (None, "white", "#d9d9d9"), strict=False))
    fig, (axes,) = panels(1, 0.9 + 0.21 * len(names))
    for at, name in enumerate(names):
        values, color = table.loc[name, list(columns)].astype(float), ROLES[table.loc[name, "role"]][1]
        axes.plot([values.min(), values.max()], [at, at], color=color, linewidth=1, alpha=0.5)
        for column, fill in fills.items():
            axes.scatter(values[column], at, facecolor=fill or color, edgecolor=color, s=30, zorder=3)
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(short)
    axes.xaxis.set_minor_locator(mpl.ticker.MaxNLocator(6))
    axes.xaxis.set_major_locator(mpl.ticker.NullLocator())
    axes.set(xlabel=x, ylim=(-0.6, len(names) - 0.4))
    axes.set_yticks(range(len(names)), names)
    marks = [*_role_marks(table), *(_mark(GREY, column, fill or GREY) for column, fill in fills.items())]
    fig.legend(handles=marks, loc="outside right center")
    return fig


def _mark(color: str, label: str, fill: str, marker: str = "o") -> mpl.lines.Line2D:
    return mpl.lines.Line2D([], [], color=color, marker=marker, linestyle="", markerfacecolor=fill, label=label)


def _role_marks(table: pd.DataFrame) -> list[mpl.lines.Line2D]:
    return [_mark(color, words, color) for role, (words, color) in ROLES.items() if role in set(table["role"])]


@drawn
def scatters(table: pd.DataFrame, y: str) -> Figure:
    """A panel a column of `table` against its column `y`: one point a model, coloured by its `role`."""
    shown = [column for column in table if column not in (y, "role")]
    colors = table["role"].map({role: color for role, (_, color) in ROLES.items()})
    fig, grid = panels(len(shown), 2.4, 3, y, sharey=True)
    for axes, column in zip(grid, shown, strict=True):
        values = table[column].replace(np.inf, np.nan).dropna()
        axes.scatter(values, table.loc[values.index, y], color=colors[values.index], s=20, zorder=3)
        if (values > 0).all() and values.max() > 20 * values.min():
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(short)
            axes.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())
        axes.set_xlabel(textwrap.fill(column, 30))
    fig.legend(handles=_role_marks(table), loc="outside upper center", ncols=len(ROLES))
    return fig


@drawn
def trend(points: pd.DataFrame, line: pd.DataFrame, curves: pd.DataFrame, *, y: str, mark: tuple[float, str]) -> Figure:
    """Differences of whole runs (points: `tokens` and an interval), what runs logged on the way (curves: a column a
    run, index tokens), and a fitted line with its band (line: intervals, index tokens)."""
    fig, (axes,) = panels(1, 3.4)
    for name in curves:
        values = curves[name].dropna()
        label = "logged inside the runs" if name == curves.columns[0] else None
        axes.plot(values.index, values.to_numpy(), color=LIGHT, linewidth=0.9, label=label)
    if len(line):
        axes.fill_between(line.index, line["low"], line["high"], color=BLUE, alpha=0.15, linewidth=0,
                          label="95 % prediction of the line")
        axes.plot(line.index, line["estimate"], color=BLUE, linestyle="--", label="line in log tokens")
    axes.errorbar(points["tokens"], points["estimate"], yerr=_spread(points), color=BLUE, linestyle="", marker="o",
                  linewidth=1.2, capsize=2, label="whole runs", zorder=4)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.axvline(mark[0], color=VERMILION, linewidth=0.8, linestyle=":", label=mark[1])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(short)
    axes.set(xlabel="training tokens", ylabel=y)
    fig.legend(loc="outside right center")
    return fig


# Pictures of patterns: masks, the distances of a stack by layer, and the gallery of everything that is discovered

@drawn
def masks(patterns: Mapping[str, Pattern], length: int, *, layer: int = 0, head: int = 0, columns: int = 5) -> Figure:
    """Small masks, one a pattern, of one layer and head (-1: the last): a row is a query, a column a key."""
    fig, grid = panels(len(patterns), WIDTH / min(columns, len(patterns)) + 0.35, columns)
    for axes, (name, pattern) in zip(grid, patterns.items(), strict=True):
        picture = pattern.mask(range(pattern.layers)[layer], length)[head]
        axes.imshow(picture, cmap=ListedColormap(["#f4f4f4", FAMILIES[pattern.family]]), interpolation="nearest",
                    vmin=0, vmax=1)
        axes.set_title(f"{textwrap.fill(name, 18)}\n{picture.sum() / length:.1f} keys a query", fontsize=7.5)
        axes.set(xticks=[], yticks=[])
    return fig


def everything(length: int = 64) -> Figure:
    """The first example of every pattern, last layer and head; a new file in lib/patterns appears here by itself."""
    examples = {name: pattern_class(name).examples()[0] for name in names()}
    ranked = sorted(examples, key=lambda name: (list(FAMILIES).index(examples[name].family), name))
    return masks({name: examples[name] for name in ranked}, length, layer=-1, head=-1)


@drawn
def stack(patterns: Mapping[str, Pattern], length: int, *, window: int = -1) -> Figure:
    """Distances that each layer attends, one panel a pattern: a row is a layer, log scale; the window in grey."""
    fig, grid = panels(len(patterns), 0.5 + 0.26 * max(p.layers for p in patterns.values()), 2, "layer", sharex=True)
    for axes, (name, pattern) in zip(grid, patterns.items(), strict=True):
        for layer in range(pattern.layers):
            distances = np.array([d for d in layer_distances(pattern, layer, length) if d > 0])
            for shown, size, color in ((distances[distances <= window], 5, GREY),
                                       (distances[distances > window], 9, FAMILIES[pattern.family])):
                axes.scatter(shown, np.full(len(shown), layer), s=size, color=color)
        axes.set_xscale("log", base=2)
        axes.set(title=name)
        axes.xaxis.set_major_formatter(short)
    fig.supxlabel("distance d = i - j, tokens", fontsize=9)
    return fig


@drawn
def offsets(patterns: Mapping[str, Pattern], length: int) -> Figure:
    """Offsets of the first layer as marks on a line, one row a pattern."""
    fig, (axes,) = panels(1, 0.7 + 0.3 * len(patterns))
    rows = list(patterns)[::-1]
    for at, name in enumerate(rows):
        distances, color = layer_distances(patterns[name], 0, length), FAMILIES[patterns[name].family]
        axes.scatter(distances, [at] * len(distances), s=26, marker="|", color=color, linewidths=1.1)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel="distance d = i - j, tokens", xlim=(-1, length))
    return fig


@drawn
def sequence(inputs: np.ndarray, targets: np.ndarray) -> Figure:
    """One sequence of a task: what is read, and below it what is to be said where it is asked (elsewhere -100)."""
    fig, (axes,) = panels(1, 1.3)
    box = {"facecolor": BLUE, "edgecolor": BLUE, "pad": 1.5}
    for at, (token, target) in enumerate(zip(inputs.tolist(), targets.tolist(), strict=True)):
        axes.text(at, 1, token, ha="center", va="center", fontsize=7)
        if target >= 0:
            axes.text(at, 0, target, ha="center", va="center", fontsize=7, color="white", bbox=box)
    axes.set(xlim=(-1, len(inputs)), ylim=(-0.6, 1.6), yticks=[0, 1], yticklabels=["say", "read"], xlabel="position")
    axes.grid(False)
    return fig
