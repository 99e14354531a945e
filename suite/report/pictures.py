"""The pictures of the first page: every series by its pairs, and every pattern at equal pairs with its cost."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.report import summary
from suite.report.summary import Series
from suite.study import figures as plots
from suite.study.stats import LEVEL

WIDE = plots.WIDTH * 1.15                      # inches
ALL_PATTERNS = "08_all_patterns"               # the notebook that trains every pattern at equal pairs
EQUAL = 0.05          # a series whose pairs differ by more from the others' is named in the caption: dense attention
OFF_SCALE = 1.35      # times the median at the training length: beyond, a perplexity is written instead of drawn
SHARED = ", equal edges"      # what the names of controls end in; here it holds of all
FAMILIES = {"scaled-base": "Fibonacci and powers of two", "power-law": "power law", "christoffel": "Christoffel",
            "literature": "literature", "comparator": "control", "dense": "dense attention"}
COLORS = {**plots.FAMILIES, "dense": plots.BLACK}
KEYS = {"xycoords": ("axes fraction", "data"), "xytext": (26, 0), "textcoords": "offset points", "ha": "right",
        "va": "center", "fontsize": 7.5, "annotation_clip": False}        # numbers in a column at the right edge


def picture(figure: Figure, alt: str, caption: str) -> dict[str, str]:
    """`uri`: the figure as SVG, its letters as outlines, so that it looks alike everywhere, without a date, so that it
    is the same twice. `alt`: what it shows, in words. `caption`: as given."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "suite", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    uri = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    return {"uri": uri, "alt": f"{alt} The table below has every value.", "caption": caption}


# Every series by its attended pairs

def chart(groups: Sequence[Sequence[Series]]) -> dict[str, str]:
    """Perplexity against attended pairs of comparable series (`summary.groups`), one panel a group."""
    tables = {group[0].recipe if len(groups) > 1 else "": pd.DataFrame(
        {"pairs": [s.pairs for s in group], "mean": [s.mean for s in group],
         "spread": [s.spread or np.nan for s in group]}, index=[s.name for s in group]) for group in groups}
    lines = any(len(plots.frontier(table)) > 1 for table in tables.values())
    spread = any(table["spread"].notna().any() for table in tables.values())
    caption = ("Perplexity on held-out text (mean over domains) against attended pairs of a training window, "
               "a point a series."
               + (" Dashed: the best that any series reaches with at most so many pairs." if lines else "")
               + (" Bars: sample standard deviation over seeds." if spread else ""))
    alt = " ".join(["Scatter plot of perplexity against attended pairs.", *map(_in_words, groups)])
    return picture(plots.against_pairs(tables, y="perplexity, held-out text"), alt, caption)


def _in_words(group: Sequence[Series]) -> str:
    """Ranges of a group, its best series, and dense."""
    ranked, pairs = sorted(group, key=lambda s: s.mean), [s.pairs for s in group]
    names = [f"{s.name} ({s.settings})" if s.settings else s.name for s in ranked]
    best, dense = ranked[0], next((s for s in ranked if s.pattern == "dense"), ranked[0])
    said = f"{names[0]} has the lowest, {best.mean:.2f}, with {best.pairs:,.0f} pairs"
    if len(ranked) > 1:
        said += f"; {names[-1]} the highest, {ranked[-1].mean:.2f}"
    if dense is not best:
        said += f"; dense has {dense.mean:.2f} with {dense.pairs:,.0f}"
    return f"{len(group)} series trained on {best.recipe}, with {min(pairs):,.0f} to {max(pairs):,.0f} pairs: {said}."


# Every pattern at equal pairs

@dataclass(frozen=True)
class Place:
    """One row of the ranking."""
    name: str
    series: Series
    near: float           # perplexity at the training length
    far: float            # perplexity at the longest length; nan: not evaluated beyond the training length
    speed: float          # training tokens a second over those of dense attention; nan without dense
    family: str           # of FAMILIES


@dataclass(frozen=True)
class Ranking:
    """All places, best first, with the lengths in tokens that `near` and `far` mean."""
    places: Sequence[Place]
    length: int
    longest: int


def ranking(table: pd.DataFrame) -> Ranking | None:
    """From the tidy tables (`summary.read_tables`); None where the notebook of all patterns is not among them."""
    table = table[table["experiment"] == ALL_PATTERNS]
    series, rows = summary.series_of(table), summary.whole_windows(table)
    if not series:
        return None
    names = [s.name for s in series]
    length, longest = series[0].train_length, int(rows["length"].max())
    far = np.log(rows[rows["length"] == max(longest, length + 1)].set_index("run")["value"])
    dense = np.mean([s.tokens_per_s for s in series if s.pattern == "dense"] or [np.nan])
    places = [Place(s.name if names.count(s.name) == 1 else f"{s.name}, {s.settings}", s, s.mean,
                    float(np.exp(far[far.index.isin([run for _, run in s.runs])].mean())), s.tokens_per_s / dense,
                    "dense" if s.pattern == "dense" else s.family) for s in series]
    return Ranking(sorted(places, key=lambda place: (place.near, place.name)), length, longest)


def ranked(found: Ranking) -> dict[str, str]:
    """What is equal and how many pairs that is, computed; what is not equal is named."""
    middle = float(np.median([place.series.pairs for place in found.places]))
    unequal = [place for place in found.places if abs(place.series.pairs - middle) > EQUAL * middle]
    pairs = [place.series.pairs for place in found.places if place not in unequal]
    seeds = sorted({len(place.series.runs) for place in found.places})
    over = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
    caption = (f"Every pattern at equal attended pairs, best first: {len(pairs)} series attend "
               f"{np.mean(pairs):,.0f} pairs a training window of {found.length:,} tokens, over all layers (equal "
               f"within {100 * (max(pairs) / min(pairs) - 1):.1f} %)"
               + "".join(f"; {place.name} attends {place.series.pairs:,.0f}" for place in unequal)
               + ". Perplexity is the exponential of the mean loss over held-out domains, at the training length"
               + (f" and at {found.longest:,} tokens" if found.longest > found.length else "")
               + (f"; shaded: {100 * LEVEL:.0f} % interval of the mean over {over} seeds"
                  if seeds[-1] > 1 else "; one seed")
               + ". To the right the cost: training throughput relative to dense attention, and keys a query.")
    best, worst = found.places[0], found.places[-1]
    alt = (f"Ranked rows of {len(found.places)} series. At {found.length} tokens {best.name} has the lowest "
           f"perplexity, {best.near:,.2f}; {worst.name} the highest, {worst.near:,.2f}.")
    if beyond := [place for place in found.places if place.far == place.far]:
        kept = min(beyond, key=lambda place: place.far)
        alt += f" At {found.longest} tokens {kept.name} has the lowest, {kept.far:,.2f}."
    return picture(draw_ranking(found), alt, caption)


@plots.drawn
def draw_ranking(found: Ranking) -> Figure:
    """Perplexity to the left, cost to the right, a row a place. The axis ends at the largest value not far off."""
    rows = list(enumerate(reversed(found.places)))
    values = [value for place in found.places for value in (place.near, place.far) if value == value]
    off = OFF_SCALE * float(np.median([place.near for place in found.places]))
    seen = [value for value in values if value <= off]
    limit = max(seen) + 0.12 * (max(seen) - min(seen)) * (len(seen) < len(values))
    fig = Figure(figsize=(WIDE, 0.9 + 0.235 * len(rows)), layout="constrained")
    axes, cost = fig.subplots(1, 2, sharey=True, width_ratios=(2.6, 1))
    for at, place in rows:
        _place(axes, at, place, limit)
        cost.plot([1, place.speed], [at, at], color=COLORS[place.family], linewidth=1, alpha=0.6, marker="o",
                  markevery=[1])
        cost.annotate(f"{place.series.keys_per_query:.0f}", (1, at), **KEYS)
    cost.annotate("keys", (1, len(rows) - 0.15), color=plots.GREY, **KEYS)
    cost.axvline(1, color=plots.GREY, linewidth=0.8)
    cost.tick_params(axis="y", length=0)
    cost.set_xlabel("training tokens a second,\ndense = 1")
    cost.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
    axes.set_yticks(range(len(rows)), [place.name.replace(SHARED, "") for _, place in rows], fontsize=8)
    lengths = f"filled: {found.length} tokens" + (f", open: {found.longest}" if found.longest > found.length else "")
    axes.set(ylim=(-0.7, len(rows) - 0.3), xlabel=f"perplexity, held-out text\n{lengths}")
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(7))
    there = {place.family for place in found.places}
    marks = [mpl.lines.Line2D([], [], linestyle="", marker="s", color=COLORS[family], markersize=5, label=words)
             for family, words in FAMILIES.items() if family in there]
    fig.legend(handles=marks, loc="outside lower center", ncols=len(marks), columnspacing=1, handletextpad=0.2)
    return fig


def _place(axes: Axes, at: int, place: Place, limit: float) -> None:
    """A filled mark at the training length, an open one at the longest, a line between; what is far off is written."""
    color, known = COLORS[place.family], [value for value in (place.near, place.far) if value == value]
    axes.plot([min(value, limit) for value in known], [at] * len(known), color=color, linewidth=1, alpha=0.6)
    if place.series.interval is not None and place.near <= limit:
        ends = [min(end, limit) for end in place.series.interval]
        axes.plot(ends, [at, at], color=color, linewidth=4, alpha=0.3, zorder=1)
    for value, face in ((place.near, color), (place.far, "white")):
        if value <= limit:
            axes.scatter(value, at, s=26, facecolors=face, edgecolors=color, linewidths=1.2, zorder=3)
    if off := [f"{value:,.0f}" for value in known if value > limit]:
        axes.scatter(limit, at, marker=">", s=22, color=color, zorder=3)
        axes.annotate(", ".join(off), (limit, at), xytext=(-6, 0), textcoords="offset points", ha="right", va="center",
                      fontsize=7, color=color, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})
