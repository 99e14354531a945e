"""The two pictures of the first page, drawn for a page's width and for a telephone's: `chart` has every series by its
attended pairs, `ranking` every pattern at equal pairs with its cost."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.report import summary
from suite.report.summary import Series
from suite.study import figures as plots
from suite.study.stats import LEVEL

WIDE, PHONE = plots.WIDTH * 1.15, 4.0          # inches; a telephone shows the second without making the letters too small
ALL_PATTERNS = "08_all_patterns"               # the notebook that trains every pattern at equal pairs
EQUAL = 0.05          # a series whose pairs differ by more from the others' is named in the caption: dense attention
OFF_SCALE = 1.35      # times the median at the training length: beyond, a perplexity is written instead of drawn
SHARED = ", equal edges"      # what the names of controls end in; here it holds of all
FAMILIES = {"scaled-base": "Fibonacci and powers of two", "power-law": "power law", "christoffel": "Christoffel",
            "literature": "literature", "comparator": "control"}
DENSE = "dense attention"


@dataclass(frozen=True)
class Picture:
    """`wide` and `narrow` are data URIs of the same points; `alt` is the picture in words."""
    wide: str
    narrow: str
    alt: str
    caption: str


def picture(draw: Callable[[float], Figure], alt: str, caption: str) -> Picture:
    """draw: the figure at a width in inches."""
    return Picture(uri(draw(WIDE)), uri(draw(PHONE)), f"{alt} The table below has every value.", caption)


def uri(fig: Figure) -> str:
    """SVG with letters as outlines, so that it looks alike everywhere, and without a date, so that it is the same twice."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "suite", "svg.fonttype": "path"}):
        fig.savefig(buffer, format="svg", metadata={"Date": None})
    svg = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


# Every series by its attended pairs

def chart(groups: Sequence[Sequence[Series]]) -> Picture:
    """Perplexity against attended pairs of comparable series (`summary.groups`), one panel a group."""
    lines = any(len(frontier(group)) > 1 for group in groups)
    spread = any(s.spread is not None for group in groups for s in group)
    caption = ("Perplexity on held-out text (mean over domains) against attended pairs of a training window, a point a series."
               + (" Dashed: the best that any series reaches with at most so many pairs." if lines else "")
               + (" Bars: sample standard deviation over seeds." if spread else ""))
    alt = " ".join(["Scatter plot of perplexity against attended pairs.", *map(_in_words, groups)])
    return picture(lambda width: draw_chart(groups, width), alt, caption)


@plots.drawn
def draw_chart(groups: Sequence[Sequence[Series]], width: float) -> Figure:
    """Panels below one another; the legend beside them, or below them where the figure is narrow."""
    narrow = width <= PHONE
    looks = plots.looks(dict.fromkeys(s.name for group in groups for s in sorted(group, key=lambda s: s.mean)))
    height = 3.9 * len(groups) + (0.19 * -(-len(looks) // 2) if narrow else 0)
    fig = Figure(figsize=(width, height), layout="constrained")
    for axes, group in zip(fig.subplots(len(groups), 1, squeeze=False)[:, 0], groups, strict=True):
        best = frontier(group)
        if len(best) > 1:
            axes.step([s.pairs for s in best], [s.mean for s in best], where="post", color=plots.LIGHT, linewidth=1,
                      linestyle="--", zorder=1)
        for s in group:
            axes.errorbar(s.pairs, s.mean, yerr=s.spread, color=looks[s.name].color, marker=looks[s.name].marker,
                          markersize=6.5, linewidth=1, linestyle="", markeredgecolor="white", markeredgewidth=0.6, zorder=3)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(plots.short)
        axes.xaxis.set_minor_formatter(plots.short)
        axes.xaxis.set_minor_locator(mpl.ticker.LogLocator(subs=(2, 5)))
        axes.set(xlabel="attended pairs a training window, all layers", ylabel="perplexity, held-out text",
                 title=group[0].recipe if len(groups) > 1 else "")
    marks = [mpl.lines.Line2D([], [], linestyle="", marker=look.marker, color=look.color, markersize=6, label=name)
             for name, look in looks.items()]
    place = {"loc": "outside lower center", "ncols": 2, "fontsize": 7, "columnspacing": 0.8} if narrow else \
        {"loc": "outside right upper", "title": "best first", "alignment": "left"}
    fig.legend(handles=marks, handletextpad=0.1, **place)
    return fig


def frontier(group: Sequence[Series]) -> list[Series]:
    """The series that no series with as few pairs beats, from few pairs to many."""
    best: list[Series] = []
    for s in sorted(group, key=lambda s: (s.pairs, s.mean)):
        if not best or s.mean < best[-1].mean:
            best.append(s)
    return best


def _in_words(group: Sequence[Series]) -> str:
    """Ranges of a group, its best series, and dense."""
    ranked, pairs = sorted(group, key=lambda s: s.mean), [s.pairs for s in group]
    best, worst, dense = ranked[0], ranked[-1], next((s for s in ranked if s.pattern == "dense"), None)
    said = f"{_named(best)} has the lowest, {best.mean:.2f}, with {best.pairs:,.0f} pairs"
    if worst is not best:
        said += f"; {_named(worst)} the highest, {worst.mean:.2f}"
    if dense is not None and dense is not best:
        said += f"; dense has {dense.mean:.2f} with {dense.pairs:,.0f}"
    return (f"{len(group)} series trained on {best.recipe}, with {min(pairs):,.0f} to {max(pairs):,.0f} pairs: {said}.")


def _named(s: Series) -> str:
    return f"{s.name} ({s.settings})" if s.settings else s.name


# Every pattern at equal pairs

@dataclass(frozen=True)
class Place:
    """One row of the ranking: a series, with its perplexities at the training length and at the longest evaluated one."""
    name: str
    series: Series
    far: float            # perplexity at the longest length; nan: not evaluated beyond the training length
    speed: float          # training tokens a second over those of dense attention; nan without dense

    @property
    def near(self) -> float:
        return self.series.mean

    @property
    def family(self) -> str:
        return DENSE if self.series.pattern == "dense" else self.series.family

    @property
    def color(self) -> str:
        return plots.BLACK if self.family == DENSE else plots.FAMILIES[self.family]


@dataclass(frozen=True)
class Ranking:
    """All places, best first, with the lengths in tokens that `near` and `far` mean."""
    places: tuple[Place, ...]
    length: int
    longest: int

    @cached_property
    def limit(self) -> float:
        """Where the axis ends: at the largest perplexity that is not far off, and some room for those that are."""
        values = [value for place in self.places for value in (place.near, place.far) if value == value]
        seen = [value for value in values if value <= OFF_SCALE * float(np.median([place.near for place in self.places]))]
        return max(seen) if len(seen) == len(values) else max(seen) + 0.12 * (max(seen) - min(seen))


def ranking(table: pd.DataFrame) -> Ranking | None:
    """From the tidy tables (`summary.read_tables`); None where the notebook of all patterns is not among them."""
    table = table[table["experiment"] == ALL_PATTERNS]
    series, rows = summary.series_of(table), summary.whole_windows(table)
    if not series:
        return None
    names = [s.name for s in series]
    length, longest = series[0].train_length, int(rows["length"].max())
    far = np.log(rows[rows["length"] == longest].set_index("run")["value"]) if longest > length else pd.Series(dtype=float)
    dense = np.mean([s.tokens_per_s for s in series if s.pattern == "dense"] or [np.nan])
    places = [Place(s.name if names.count(s.name) == 1 else f"{s.name}, {s.settings}", s,
                    float(np.exp(far[far.index.isin([run for _, run in s.runs])].mean())), s.tokens_per_s / dense)
              for s in series]
    return Ranking(tuple(sorted(places, key=lambda place: (place.near, place.name))), length, longest)


def ranked(found: Ranking) -> Picture:
    """What is equal and how many pairs that is, computed; what is not equal is named."""
    middle = float(np.median([place.series.pairs for place in found.places]))
    unequal = [place for place in found.places if abs(place.series.pairs - middle) > EQUAL * middle]
    pairs, seeds = ([place.series.pairs for place in found.places if place not in unequal],
                    sorted({len(place.series.runs) for place in found.places}))
    over = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    caption = (f"Every pattern at equal attended pairs, best first: {len(pairs)} series attend {np.mean(pairs):,.0f} pairs a "
               f"training window of {found.length:,} tokens, over all layers (equal within "
               f"{100 * (max(pairs) / min(pairs) - 1):.1f} %)"
               + "".join(f"; {place.name} attends {place.series.pairs:,.0f}" for place in unequal)
               + ". Perplexity is the exponential of the mean loss over held-out domains, at the training length"
               + (f" and at {found.longest:,} tokens" if found.longest > found.length else "")
               + (f"; shaded: {100 * LEVEL:.0f} % interval of the mean over {over} seeds" if seeds[-1] > 1 else "; one seed")
               + ". To the right the cost: training throughput relative to dense attention, and keys a query.")
    best, worst = found.places[0], found.places[-1]
    alt = (f"Ranked rows of {len(found.places)} series. At {found.length} tokens {best.name} has the lowest perplexity, "
           f"{best.near:,.2f}; {worst.name} the highest, {worst.near:,.2f}.")
    if beyond := [place for place in found.places if place.far == place.far]:
        kept = min(beyond, key=lambda place: place.far)
        alt += f" At {found.longest} tokens {kept.name} has the lowest, {kept.far:,.2f}."
    return picture(lambda width: draw_ranking(found, width), alt, caption)


@plots.drawn
def draw_ranking(found: Ranking, width: float) -> Figure:
    """Perplexity to the left, cost to the right; on a telephone the cost is written, as there is no room for a panel."""
    narrow, rows = width <= PHONE, list(enumerate(reversed(found.places)))
    fig = Figure(figsize=(width, (1.0 if narrow else 0.9) + 0.235 * len(rows)), layout="constrained")
    axes, cost = fig.subplots(1, 2, sharey=True, width_ratios=(1, 0.01) if narrow else (2.6, 1))
    for at, place in rows:
        _place(axes, at, place, found.limit)
    names = [place.name.replace(SHARED, "") for _, place in rows]
    axes.set_yticks(range(len(names)), [plots.in_lines(name, 22) if narrow else name for name in names],
                    fontsize=6.5 if narrow else 8, linespacing=0.85)
    lengths = f"filled: {found.length} tokens" + (f", open: {found.longest}" if found.longest > found.length else "")
    axes.set(ylim=(-0.7, len(names) - 0.3), xlabel=f"perplexity, held-out text\n{lengths}")
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4 if narrow else 7))
    columns = {"keys": {at: f"{place.series.keys_per_query:.0f}" for at, place in rows}}
    if narrow:
        cost.set_axis_off()
        columns = {"speed": {at: f"{place.speed:.2f}x" for at, place in rows}, **columns}
    else:
        for at, place in rows:
            cost.plot([1, place.speed], [at, at], color=place.color, linewidth=1, alpha=0.6, marker="o", markevery=[1])
        cost.axvline(1, color=plots.GREY, linewidth=0.8)
        cost.tick_params(axis="y", length=0)
        cost.set_xlabel("training tokens a second,\ndense = 1")
        cost.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
    for number, (title, words) in enumerate(columns.items()):        # numbers in columns at the right edge
        for at, text in {len(rows) - 0.15: title, **words}.items():
            cost.annotate(text, (1, at), xycoords=("axes fraction", "data"), xytext=(26 + 26 * number, 0), ha="right",
                          va="center", textcoords="offset points", fontsize=6.5 if narrow else 7.5,
                          color=plots.GREY if text == title else plots.BLACK, annotation_clip=False)
    colors = {place.family: place.color for place in found.places}
    marks = [mpl.lines.Line2D([], [], linestyle="", marker="s", color=colors[family], markersize=5,
                              label=FAMILIES.get(family, family)) for family in [*FAMILIES, DENSE] if family in colors]
    fig.legend(handles=marks, loc="outside lower center", ncols=2 if narrow else len(marks), fontsize=7 if narrow else 8,
               columnspacing=1, handletextpad=0.2)
    return fig


def _place(axes: Axes, at: int, place: Place, limit: float) -> None:
    """A filled mark at the training length, an open one at the longest, with a line between; what is far off is written."""
    known = [value for value in (place.near, place.far) if value == value]
    axes.plot([min(value, limit) for value in known], [at] * len(known), color=place.color, linewidth=1, alpha=0.6)
    if place.series.interval is not None and place.near <= limit:
        ends = [min(end, limit) for end in place.series.interval]
        axes.plot(ends, [at, at], color=place.color, linewidth=4, alpha=0.3, zorder=1)
    for value, face in ((place.near, place.color), (place.far, "white")):
        if value <= limit:
            axes.scatter(value, at, s=26, facecolors=face, edgecolors=place.color, linewidths=1.2, zorder=3)
    off = [f"{value:,.0f}" for value in known if value > limit]
    if off:
        axes.scatter(limit, at, marker=">", s=22, color=place.color, zorder=3)
        axes.annotate(", ".join(off), (limit, at), xytext=(-6, 0), textcoords="offset points", ha="right", va="center",
                      fontsize=7, color=place.color, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})
