"""The one picture of all: every pattern at equal attended pairs, ranked by perplexity, with its cost beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.report.chart import PHONE, Chart, uri
from suite.report.summary import settings, whole_windows
from suite.study import figures as plots
from suite.study.stats import LEVEL

NOTEBOOK = "08_all_patterns"
EQUAL = 0.05          # a series whose pairs differ by more from the others' is named in the caption: dense attention
OFF_SCALE = 1.35      # times the median at the training length: beyond, a perplexity is written instead of drawn
SHARED = ", equal edges"      # what the names of controls end in; here it holds of all
FAMILIES = {"scaled-base": "Fibonacci and powers of two", "power-law": "power law", "christoffel": "Christoffel",
            "literature": "literature", "comparator": "control"}
DENSE = "dense attention"


@dataclass(frozen=True)
class Place:
    """One row: a series, its seeds put together. Perplexities are exp of the mean loss over held-out domains and seeds."""
    name: str
    family: str
    pairs: float                             # attended (query, key) pairs of one training window, over all layers
    keys: float                              # a query
    near: float                              # perplexity at the training length
    far: float                               # at the longest length evaluated; nan: not evaluated beyond
    interval: tuple[float, float] | None     # of `near`, over seeds; None with one seed
    traced: tuple[tuple[int, str], ...]      # (seed, fingerprint) of its runs
    speed: float                             # training tokens a second over those of dense attention; nan without dense

    @property
    def seeds(self) -> int:
        return len(self.traced)

    @property
    def color(self) -> str:
        return plots.BLACK if self.family == DENSE else plots.FAMILIES[self.family]


@dataclass(frozen=True)
class Overview:
    """All places, best first, with the lengths in tokens that `near` and `far` mean."""
    places: tuple[Place, ...]
    length: int
    longest: int

    @property
    def equal(self) -> list[Place]:
        """The places at equal pairs: dense attention, for one, attends more."""
        middle = float(np.median([place.pairs for place in self.places]))
        return [place for place in self.places if abs(place.pairs - middle) <= EQUAL * middle]


def overview(table: pd.DataFrame) -> Overview | None:
    """From the tidy tables (`summary.read_tables`); None where the notebook's rows are not among them."""
    rows = table[(table["experiment"] == NOTEBOOK) & whole_windows(table)]
    if rows.empty:
        return None
    rows = rows.assign(loss=np.log(rows["value"]), length=rows["length"].fillna(rows["train_length"]), name=_names(rows))
    length, longest = int(rows["train_length"].iloc[0]), int(rows["length"].max())
    dense = rows.loc[rows["pattern"] == "dense", "run_tokens_per_s"].mean()
    places = [_place(str(name), own, length, longest, dense) for name, own in rows.groupby("name", sort=False)]
    return Overview(tuple(sorted(places, key=lambda place: (place.near, place.name))), length, longest)


def _names(rows: pd.DataFrame) -> pd.Series:
    """The series, and its settings where several rows have one name."""
    own = rows.apply(settings, axis=1)
    several = own.groupby(rows["series"]).transform("nunique") > 1
    return rows["series"].where(~several, rows["series"] + ", " + own)


def _place(name: str, rows: pd.DataFrame, length: int, longest: int, dense: float) -> Place:
    by_run = rows[rows["length"] == length].groupby("run")["loss"].mean()
    beyond = rows[rows["length"] == longest].groupby("run")["loss"].mean() if longest > length else pd.Series(dtype=float)
    first, runs = rows.iloc[0], rows.drop_duplicates("run").sort_values("seed", kind="stable")
    traced = tuple((int(seed), str(run)) for seed, run in zip(runs["seed"], runs["run"], strict=True))
    return Place(name, DENSE if first["pattern"] == "dense" else first["family"], float(first["pairs"]),
                 float(first["keys_per_query"]), float(np.exp(by_run.mean())), float(np.exp(beyond.mean())),
                 _over_seeds(by_run.to_numpy()), traced, float(runs["run_tokens_per_s"].mean() / dense))


def _over_seeds(losses: np.ndarray) -> tuple[float, float] | None:
    """Student's interval of the mean loss, as perplexities."""
    from scipy import stats
    if len(losses) < 2:
        return None
    if np.ptp(losses) == 0:                                # nothing varies: the interval is the value
        return float(np.exp(losses[0])), float(np.exp(losses[0]))
    low, high = stats.t.interval(LEVEL, len(losses) - 1, loc=losses.mean(), scale=stats.sem(losses))
    return float(np.exp(low)), float(np.exp(high))


def picture(found: Overview) -> Chart:
    return Chart(uri(draw(found, plots.WIDTH * 1.15)), uri(draw(found, PHONE)), alternative(found), caption(found))


@plots.drawn
def draw(found: Overview, width: float) -> Figure:
    """Perplexity to the left, cost to the right; on a telephone the cost is written, as there is no room for a panel."""
    narrow = width <= PHONE
    fig = Figure(figsize=(width, (1.0 if narrow else 0.9) + 0.235 * len(found.places)), layout="constrained")
    axes, cost = fig.subplots(1, 2, sharey=True, width_ratios=(1, 0.01) if narrow else (2.6, 1))
    _perplexities(axes, found, narrow)
    _written(cost, found, speed=narrow) if narrow else _costs(cost, found)
    seen = list(dict.fromkeys(place.family for place in found.places))
    colors = {place.family: place.color for place in found.places}
    marks = [mpl.lines.Line2D([], [], linestyle="", marker="s", color=colors[family], markersize=5,
                              label=FAMILIES.get(family, family)) for family in [*FAMILIES, DENSE] if family in seen]
    fig.legend(handles=marks, loc="outside lower center", ncols=2 if narrow else len(marks), fontsize=7 if narrow else 8,
               columnspacing=1, handletextpad=0.2)
    return fig


def _perplexities(axes: Axes, found: Overview, narrow: bool) -> None:
    """A filled mark at the training length, an open one at the longest, with a line between; what is far off is written."""
    limit = _limit(found)
    for at, place in enumerate(reversed(found.places)):
        known = [value for value in (place.near, place.far) if value == value]
        axes.plot([min(value, limit) for value in known], [at] * len(known), color=place.color, linewidth=1, alpha=0.6)
        if place.interval is not None and place.near <= limit:
            ends = [min(end, limit) for end in place.interval]
            axes.plot(ends, [at, at], color=place.color, linewidth=4, alpha=0.3, zorder=1)
        for value, face in ((place.near, place.color), (place.far, "white")):
            if value <= limit:
                axes.scatter(value, at, s=26, facecolors=face, edgecolors=place.color, linewidths=1.2, zorder=3)
        off = [f"{value:,.0f}" for value in known if value > limit]
        if off:
            axes.scatter(limit, at, marker=">", s=22, color=place.color, zorder=3)
            axes.annotate(", ".join(off), (limit, at), xytext=(-6, 0), textcoords="offset points", ha="right", va="center",
                          fontsize=7, color=place.color, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    names = [place.name.replace(SHARED, "") for place in reversed(found.places)]
    axes.set_yticks(range(len(names)), [plots.in_lines(name, 22) if narrow else name for name in names],
                    fontsize=6.5 if narrow else 8, linespacing=0.85)
    axes.set_ylim(-0.7, len(names) - 0.3)
    lengths = f"filled: {found.length} tokens" + (f", open: {found.longest}" if found.longest > found.length else "")
    axes.set_xlabel(f"perplexity, held-out text\n{lengths}", fontsize=7.5 if narrow else 9)
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4 if narrow else 7))
    axes.tick_params(axis="x", labelsize=7 if narrow else 9)


def _limit(found: Overview) -> float:
    """Where the axis ends: at the largest perplexity that is not far off, and some room for those that are."""
    values = [value for place in found.places for value in (place.near, place.far) if value == value]
    seen = [value for value in values if value <= OFF_SCALE * float(np.median([place.near for place in found.places]))]
    return max(seen) if len(seen) == len(values) else max(seen) + 0.12 * (max(seen) - min(seen))


def _costs(axes: Axes, found: Overview) -> None:
    for at, place in enumerate(reversed(found.places)):
        axes.plot([1, place.speed], [at, at], color=place.color, linewidth=1, alpha=0.6, zorder=2)
        axes.scatter(place.speed, at, s=26, color=place.color, zorder=3)
    axes.axvline(1, color=plots.GREY, linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("training tokens a second,\ndense = 1")
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
    _written(axes, found, speed=False)


def _written(axes: Axes, found: Overview, speed: bool) -> None:
    """Numbers in columns at the right edge: keys a query, and on a telephone the speed too."""
    if speed:
        axes.set_axis_off()
    columns = [("speed", lambda place: f"{place.speed:.2f}x")] if speed else []
    columns.append(("keys", lambda place: f"{place.keys:.0f}"))
    for number, (title, text) in enumerate(columns):
        for at, words in [(len(found.places) - 0.15, title),
                          *((at, text(place)) for at, place in enumerate(reversed(found.places)))]:
            axes.annotate(words, (1, at), xycoords=("axes fraction", "data"), xytext=(26 + 26 * number, 0), ha="right",
                          va="center", textcoords="offset points", fontsize=6.5 if speed else 7.5,
                          color=plots.GREY if words == title else plots.BLACK, annotation_clip=False)


def caption(found: Overview) -> str:
    """What is equal and how many pairs that is, computed; what is not equal is named."""
    equal, more = found.equal, [place for place in found.places if place not in found.equal]
    pairs = [place.pairs for place in equal]
    apart = 100 * (max(pairs) / min(pairs) - 1)
    seeds = sorted({place.seeds for place in found.places})
    return (f"Every pattern at equal attended pairs, best first: {len(equal)} series attend {np.mean(pairs):,.0f} pairs a "
            f"training window of {found.length:,} tokens, over all layers (equal within {apart:.1f} %)"
            + "".join(f"; {place.name} attends {place.pairs:,.0f}" for place in more)
            + ". Perplexity is the exponential of the mean loss over held-out domains, at the training length"
            + (f" and at {found.longest:,} tokens" if found.longest > found.length else "")
            + (f"; shaded: {100 * LEVEL:.0f} % interval of the mean over {_listed(seeds)} seeds" if seeds[-1] > 1 else
               "; one seed")
            + ". To the right the cost: training throughput relative to dense attention, and keys a query.")


def _listed(seeds: Sequence[int]) -> str:
    return f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"


def alternative(found: Overview) -> str:
    """The picture in words; the table below it has every value."""
    best, worst = found.places[0], found.places[-1]
    said = (f"Ranked rows of {len(found.places)} series. At {found.length} tokens {best.name} has the lowest perplexity, "
            f"{best.near:,.2f}; {worst.name} the highest, {worst.near:,.2f}.")
    beyond = [place for place in found.places if place.far == place.far]
    if beyond:
        kept = min(beyond, key=lambda place: place.far)
        said += f" At {found.longest} tokens {kept.name} has the lowest, {kept.far:,.2f}."
    return said + " The table below has every value."
