"""The picture of the first page: every pattern at equal pairs, with its cost."""

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


@dataclass(frozen=True)
class Place:
    """One row of the ranking."""
    name: str
    series: Series
    near: float           # perplexity at the training length
    far: float            # perplexity at the longest length; nan: not evaluated beyond the training length
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
    places = [Place(s.name if names.count(s.name) == 1 else f"{s.name}, {s.settings}", s, s.mean,
                    float(np.exp(far[far.index.isin([run for _, run in s.runs])].mean())),
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
               + ". To the right keys a query, the cost.")
    best, worst = found.places[0], found.places[-1]
    alt = (f"Ranked rows of {len(found.places)} series. At {found.length} tokens {best.name} has the lowest "
           f"perplexity, {best.near:,.2f}; {worst.name} the highest, {worst.near:,.2f}.")
    if beyond := [place for place in found.places if place.far == place.far]:
        kept = min(beyond, key=lambda place: place.far)
        alt += f" At {found.longest} tokens {kept.name} has the lowest, {kept.far:,.2f}."
    return picture(draw_ranking(found), alt, caption)


@plots.drawn
def draw_ranking(found: Ranking) -> Figure:
    """Perplexity, a row a place; keys a query at the right edge. The axis ends at the largest value not far off."""
    rows = list(enumerate(reversed(found.places)))
    values = [value for place in found.places for value in (place.near, place.far) if value == value]
    off = OFF_SCALE * float(np.median([place.near for place in found.places]))
    seen = [value for value in values if value <= off]
    limit = max(seen) + 0.12 * (max(seen) - min(seen)) * (len(seen) < len(values))
    fig = Figure(figsize=(WIDE, 0.9 + 0.235 * len(rows)), layout="constrained")
    axes = fig.subplots()
    for at, place in rows:
        _place(axes, at, place, limit)
        axes.annotate(f"{place.series.keys_per_query:.0f}", (1, at), **KEYS)
    axes.annotate("keys", (1, len(rows) - 0.15), color=plots.GREY, **KEYS)
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
