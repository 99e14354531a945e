"""Facts of the Fibonacci paper's published tables (suite/published): exact, no run of ours is needed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np
import pandas as pd

from suite import published
from suite.claims.measures import Part, fact, measure
from suite.study.frames import Study

SEED = 42


# perplexity.csv, length_extrapolation.csv, position_loss.csv

@measure("nats a token", exact=True)
def published_difference(study: Study, *, series: str, other: str, window: int, other_window: int = 0,
                         length: int = 0) -> Iterator[Part]:
    """Log of the ratio of perplexities: a mean over the four datasets (seed 42, perplexity.csv), or at an evaluation
    length, a mean over the two of length_extrapolation.csv; Dense has no window."""
    table = (published.read("length_extrapolation").query("eval_length == @length") if length else
             published.read("perplexity").query("seed == @SEED"))
    where = f"W = {window}" + (f", {length} tokens" if length else "")
    yield Part(f"Published loss of {series} minus {other} at {where}",
               log_mean(table, series, window) - log_mean(table, other, other_window or window))


@measure("nats a token", exact=True)
def published_growth(study: Study, *, series: str, window: float, other: str = "") -> Iterator[Part]:
    """Log of perplexity at 4096 tokens over that at 1024, a mean over two datasets (length_extrapolation.csv); of
    `series`, or minus that of `other`."""
    whose = f"{series} minus {other}" if other else series
    yield Part(f"Published growth of the loss of {whose} at W = {window:g}, 1024 to 4096 tokens",
               growth(series, window) - (growth(other, window) if other else 0.0))


@measure("nats a token", exact=True, every=True)
def published_growth_of_all(study: Study) -> Iterator[Part]:
    """`published_growth` of every sparse model of the paper."""
    models = published.read("length_extrapolation").query("base != 'dense'")[["series", "window"]].drop_duplicates()
    for own in models.itertuples():
        yield from published_growth(study, series=own.series, window=own.window)


@measure("nats a token", exact=True)
def published_largest_growth(study: Study) -> Iterator[Part]:
    """The largest of `published_growth_of_all`."""
    yield max(published_growth_of_all(study), key=lambda part: part.estimate)


@fact("nats a token", "Published gain of the ramp from position 128 on minus before, W = {window}")
def published_gain_by_position(*, window: int) -> float:
    """Over fixed rungs (position_loss.csv, two datasets or more)."""
    rows = published.read("position_loss").query("window == @window and base == 'fibonacci'")
    losses = rows.pivot_table(index="bin", columns="schedule", values="nll")
    gain = losses["fixed"] - losses["linear"]
    return gain.iloc[1:].mean() - gain.iloc[0]


def log_mean(table: pd.DataFrame, series: str, window: float) -> float:
    at = table["window"].isna() if series == "Dense" else table["window"] == window
    rows = table[(table["series"] == series) & at]
    assert len(rows), f"nothing is published of {series} at W = {window}"
    return float(np.log(rows["perplexity"]).mean())


def growth(series: str, window: float) -> float:
    table = published.read("length_extrapolation")
    near, far = (log_mean(table[table["eval_length"] == length], series, window) for length in (1024, 4096))
    return far - near


# cost.csv and battery.csv

@measure("times", exact=True)
def published_cost(study: Study, *, inference: bool) -> Iterator[Part]:
    """Time of a learned alpha over that of fixed rungs: training (cost.csv), or inference (battery.csv,
    flops_context)."""
    speed = published.read("battery").query("metric == 'tokens_per_sec_infer'").groupby("series")["value"].mean()
    ratio = speed["Fibonacci, fixed"] / speed["Fibonacci, learned"] if inference else published.learned_cost()
    yield Part(f"Published {'inference' if inference else 'training'} time of a learned alpha over fixed rungs", ratio)


@fact("parameters", "Published parameters of the learned model minus the fixed one")
def published_parameters() -> int:
    """In cost.csv."""
    sizes = published.read("cost").groupby("series")["parameters"].first()
    return sizes["Fibonacci, learned"] - sizes["Fibonacci, fixed"]


@fact("tasks", "Tasks of the published battery that dense lacks")
def published_tasks_missing() -> int:
    """And that a sparse model has (battery.csv)."""
    table = published.read("battery")
    dense = table["base"] == "dense"
    return len(set(table[~dense]["task"]) - set(table[dense]["task"]))


@measure("times", exact=True)
def published_lambada_ratio(study: Study, *, window: int) -> Iterator[Part]:
    """Highest over lowest perplexity of LAMBADA's target among the sparse models of one W, means over seeds
    (battery.csv)."""
    rows = published.read("battery").query("task == 'lambada' and metric == 'target_ppl' and window == @window")
    means = rows.groupby("series")["value"].mean()
    yield Part(f"LAMBADA's target perplexity, {means.idxmax()} over {means.idxmin()} at W = {window}",
               means.max() / means.min())


@fact("times", "Sample standard deviation over the population formula")
def published_std_ratio() -> float:
    """Of the three published seeds (perplexity.csv, W = 12)."""
    spread = published.spread_over_seeds().query("seeds == 3")
    return (spread["sample_std"] / spread["population_std"]).mean()


# retrieval_probe.csv

@fact("in alpha", "Largest published move of alpha in the {probes} probes")
def published_alpha_move(*, probes: str) -> float:
    """From its start. probes: `marked` (two distances, uniform start), `sweep` (one distance, from the ramp; its ends
    are left out, as no theta is finite there)."""
    table = published.read("retrieval_probe")
    rows = table.query("experiment == 'marked' and mechanism == 'fib_blur' and staggered_init == 0"
                       if probes == "marked" else "mechanism == 'fib_blur_stag'")
    moved = []
    for text in rows["alphas"].unique():
        alphas = [a["alpha"] if isinstance(a, dict) else a for a in ast.literal_eval(text)]
        starts = [1.0] * len(alphas) if probes == "marked" else 0.5 + np.arange(len(alphas)) / (len(alphas) - 1)
        moves = np.abs(np.array(alphas) - starts)
        moved += [*(moves if probes == "marked" else moves[1:-1])]
    return max(moved)


@fact("in accuracy", "Difference between two published seeds at depth {depth}")
def published_seed_spread(*, depth: int) -> float:
    """The largest of one cell of the marked probe from a uniform start."""
    rows = published.marked_cells().query("mechanism == 'fib_blur' and staggered_init == 0 and depth == @depth")
    return rows.groupby("distance")["accuracy"].agg(lambda own: own.max() - own.min()).max()


@fact("of the answers", "Best published cell of the marked probe from a uniform start")
def published_probe_best() -> float:
    return published.marked_cells().query("mechanism == 'fib_blur' and staggered_init == 0")["accuracy"].max()


@fact("in accuracy", "Published accuracy of the marked probe from the ramp minus from a uniform start")
def published_probe_difference() -> float:
    """Means over its cells."""
    rows = published.marked_cells().query("mechanism == 'fib_blur'").groupby("staggered_init")["accuracy"].mean()
    return rows[1] - rows[0]
