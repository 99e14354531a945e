"""The one figure of all patterns: perplexity against attended pairs, drawn for a page's and for a telephone's width."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.report.summary import Series
from suite.study import figures as plots

PHONE = 4.0          # inches: what a telephone shows without making the letters too small


@dataclass(frozen=True)
class Chart:
    """`wide` and `narrow` are data URIs of the same points."""
    wide: str
    narrow: str
    alt: str
    caption: str


def chart(groups: Sequence[Sequence[Series]]) -> Chart:
    """The figure of groups of comparable series (`summary.recipes`), one panel a group."""
    return Chart(uri(draw(groups, plots.WIDTH * 1.15)), uri(draw(groups, PHONE)), alternative(groups), caption(groups))


@plots.drawn
def draw(groups: Sequence[Sequence[Series]], width: float) -> Figure:
    """Panels below one another; the legend beside them, or below them where the figure is narrow."""
    narrow = width <= PHONE
    names = list(dict.fromkeys(s.name for group in groups for s in sorted(group, key=lambda s: s.mean)))
    looks = plots.looks(names)
    legend_rows = -(-len(names) // 2) if narrow else 0
    fig = Figure(figsize=(width, 3.9 * len(groups) + 0.19 * legend_rows), layout="constrained")
    for axes, group in zip(fig.subplots(len(groups), 1, squeeze=False)[:, 0], groups, strict=True):
        _panel(axes, group, looks, title=recipe(group[0]) if len(groups) > 1 else "")
    handles = [mpl.lines.Line2D([], [], linestyle="", marker=own.marker, color=own.color, markersize=6, label=name)
               for name, own in looks.items()]
    if narrow:
        fig.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=7, columnspacing=0.8, handletextpad=0.1)
    else:
        fig.legend(handles=handles, loc="outside right upper", title="best first", alignment="left", handletextpad=0.1)
    return fig


def _panel(axes: Axes, group: Sequence[Series], looks: dict[str, plots.Look], title: str) -> None:
    best = frontier(group)
    if len(best) > 1:
        axes.step([s.pairs for s in best], [s.mean for s in best], where="post", color=plots.LIGHT, linewidth=1,
                  linestyle="--", zorder=1)
    for s in group:
        own = looks[s.name]
        axes.scatter(s.pairs, s.mean, color=own.color, marker=own.marker, s=44, zorder=3, linewidths=0.6, edgecolors="white")
        if s.spread is not None:
            axes.errorbar(s.pairs, s.mean, yerr=s.spread, color=own.color, linewidth=1, zorder=2)
    axes.set_xscale("log")
    axes.set(xlabel="attended pairs a training window, all layers", ylabel="perplexity, held-out text", title=title)
    axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(_short))
    axes.xaxis.set_minor_formatter(mpl.ticker.FuncFormatter(_short) if _decades(group) < 1.3 else mpl.ticker.NullFormatter())
    axes.xaxis.set_minor_locator(mpl.ticker.LogLocator(subs=(2, 5) if _decades(group) < 1.3 else (2, 3, 4, 5, 6, 7, 8, 9)))


def _decades(group: Sequence[Series]) -> float:
    return math.log10(max(s.pairs for s in group) / min(s.pairs for s in group))


def _short(value: float, _: int) -> str:
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"


def frontier(group: Sequence[Series]) -> list[Series]:
    """The series that no series with as few pairs beats, from few pairs to many."""
    best: list[Series] = []
    for s in sorted(group, key=lambda s: (s.pairs, s.mean)):
        if not best or s.mean < best[-1].mean:
            best.append(s)
    return best


def recipe(s: Series) -> str:
    """What a series must share with another to be compared."""
    return f"{s.train_tokens / 1e6:.2f} M tokens, windows of {s.train_length}, {s.parameters / 1e6:.2f} M parameters"


def caption(groups: Sequence[Sequence[Series]]) -> str:
    """What the figure shows; the dashed line is explained where there is one."""
    lines = any(len(frontier(group)) > 1 for group in groups)
    spread = any(s.spread is not None for group in groups for s in group)
    return ("Perplexity on held-out text (mean over domains) against attended pairs of a training window, a point a series."
            + (" Dashed: the best that any series reaches with at most so many pairs." if lines else "")
            + (" Bars: sample standard deviation over seeds." if spread else ""))


def alternative(groups: Sequence[Sequence[Series]]) -> str:
    """The figure in words: ranges, the best series, and dense."""
    parts = []
    for group in groups:
        ranked, pairs = sorted(group, key=lambda s: s.mean), [s.pairs for s in group]
        dense = next((s for s in ranked if s.pattern == "dense"), None)
        said = f"{named(ranked[0])} has the lowest, {ranked[0].mean:.2f}, with {ranked[0].pairs:,.0f} pairs"
        if len(ranked) > 1:
            said += f"; {named(ranked[-1])} the highest, {ranked[-1].mean:.2f}"
        if dense is not None and dense is not ranked[0]:
            said += f"; dense has {dense.mean:.2f} with {dense.pairs:,.0f}"
        parts.append(f"{len(group)} series trained on {recipe(group[0])}, with {min(pairs):,.0f} to "
                     f"{max(pairs):,.0f} pairs: {said}.")
    return "Scatter plot of perplexity against attended pairs. " + " ".join(parts) + " The table below has every value."


def named(s: Series) -> str:
    return f"{s.name} ({s.settings})" if s.settings else s.name


def uri(fig: Figure) -> str:
    """SVG with letters as outlines, so that it looks alike everywhere, and without a date, so that it is the same twice."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "suite", "svg.fonttype": "path"}):
        fig.savefig(buffer, format="svg", metadata={"Date": None})
    svg = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
