"""Facts of the Fibonacci paper's published tables (suite/published): exact, no run of ours is needed."""

from __future__ import annotations

import ast

import numpy as np
import pandas as pd

from suite import published
from suite.claims.evidence import Measured
from suite.claims.measures import measure
from suite.study.frames import Study

SEED = 42


# perplexity.csv, length_extrapolation.csv, position_loss.csv

@measure("nats a token", exact=True)
def published_difference(study: Study | None, *, series: str, other: str, window: int, other_window: int = 0,
                         length: int = 0) -> Measured:
    """Log of the ratio of perplexities: a mean over the four datasets (seed 42, perplexity.csv), or at an evaluation
    length, a mean over the two of length_extrapolation.csv; Dense has no window."""
    table = (published.read("length_extrapolation").query("eval_length == @length") if length else
             published.read("perplexity").query("seed == @SEED"))
    value = log_mean(table, series, window) - log_mean(table, other, other_window or window)
    where = f"W = {window}" + (f", {length} tokens" if length else "")
    return Measured.fact(f"Published loss of {series} minus {other} at {where}", value)


@measure("nats a token", exact=True)
def published_growth(study: Study | None, *, series: str, window: int, other: str = "") -> Measured:
    """Log of perplexity at 4096 tokens over that at 1024, a mean over two datasets (length_extrapolation.csv); of
    `series`, or minus that of `other`."""
    value = growth(series, window) - (growth(other, window) if other else 0.0)
    whose = f"{series} minus {other}" if other else series
    return Measured.fact(f"Published growth of the loss of {whose} at W = {window}, 1024 to 4096 tokens", value)


@measure("nats a token", exact=True, every=True)
def published_growth_of_all(study: Study | None) -> Measured:
    """`published_growth` of every sparse model of the paper."""
    models = published.read("length_extrapolation").query("base != 'dense'")[["series", "window"]].drop_duplicates()
    return Measured.facts([(f"Published growth of the loss of {own.series} at W = {own.window:g}, 1024 to 4096 tokens",
                            growth(own.series, own.window)) for own in models.itertuples()])


@measure("nats a token", exact=True)
def published_largest_growth(study: Study | None) -> Measured:
    """The largest of `published_growth_of_all`."""
    return Measured((max(published_growth_of_all(study).parts, key=lambda part: part.estimate),))


@measure("nats a token", exact=True)
def published_gain_by_position(study: Study | None, *, window: int) -> Measured:
    """Gain of the ramp over fixed rungs from position 128 on minus before (position_loss.csv, two datasets or more)."""
    rows = published.read("position_loss").query("window == @window and base == 'fibonacci'")
    gain = rows.pivot_table(index="bin", columns="schedule", values="nll")
    gain = gain["fixed"] - gain["linear"]
    return Measured.fact(f"Published gain of the ramp from position 128 on minus before, W = {window}",
                      gain.iloc[1:].mean() - gain.iloc[0])


def log_mean(table: pd.DataFrame, series: str, window: float) -> float:
    at = table["window"].isna() if series == "Dense" else table["window"] == window
    rows = table[(table["series"] == series) & at]
    assert len(rows), f"nothing is published of {series} at W = {window}"
    return float(np.log(rows["perplexity"]).mean())


def growth(series: str, window: float) -> float:
    table = published.read("length_extrapolation")
    lengths = table["eval_length"]
    return log_mean(table[lengths == 4096], series, window) - log_mean(table[lengths == 1024], series, window)


# cost.csv and battery.csv

@measure("times", exact=True)
def published_cost(study: Study | None, *, inference: bool) -> Measured:
    """Time of a learned alpha over that of fixed rungs: training (cost.csv), or inference (battery.csv,
    flops_context)."""
    if not inference:
        return Measured.fact("Published training time of a learned alpha over fixed rungs", published.learned_cost())
    speed = published.read("battery").query("metric == 'tokens_per_sec_infer'").groupby("series")["value"].mean()
    return Measured.fact("Published inference time of a learned alpha over fixed rungs",
                      speed["Fibonacci, fixed"] / speed["Fibonacci, learned"])


@measure("parameters", exact=True)
def published_parameters(study: Study | None) -> Measured:
    """Parameters of the learned model minus those of the fixed one (cost.csv)."""
    sizes = published.read("cost").groupby("series")["parameters"].first()
    return Measured.fact("Published parameters of the learned model minus the fixed one",
                      sizes["Fibonacci, learned"] - sizes["Fibonacci, fixed"])


@measure("tasks", exact=True)
def published_tasks_missing(study: Study | None) -> Measured:
    """Tasks of the battery that a sparse model has and dense lacks (battery.csv)."""
    table = published.read("battery")
    dense = table["base"] == "dense"
    missing = set(table[~dense]["task"]) - set(table[dense]["task"])
    return Measured.fact("Tasks of the published battery that dense lacks", len(missing))


@measure("times", exact=True)
def published_lambada_ratio(study: Study | None, *, window: int) -> Measured:
    """Highest over lowest perplexity of LAMBADA's target among the sparse models of one W, means over seeds
    (battery.csv)."""
    rows = published.read("battery").query("task == 'lambada' and metric == 'target_ppl' and window == @window")
    means = rows.groupby("series")["value"].mean()
    return Measured.fact(f"LAMBADA's target perplexity, {means.idxmax()} over {means.idxmin()} at W = {window}",
                      means.max() / means.min())


@measure("times", exact=True)
def published_std_ratio(study: Study | None) -> Measured:
    """Sample standard deviation over the population formula, of the three published seeds (perplexity.csv, W = 12)."""
    spread = published.spread_over_seeds().query("seeds == 3")
    return Measured.fact("Sample standard deviation over the population formula",
                      float((spread["sample_std"] / spread["population_std"]).mean()))


# retrieval_probe.csv

@measure("in alpha", exact=True)
def published_alpha_move(study: Study | None, *, probes: str) -> Measured:
    """Largest move of an alpha from its start. probes: `marked` (two distances, uniform start), `sweep` (one distance,
    from the ramp; its ends are left out, as no theta is finite there)."""
    table = published.read("retrieval_probe")
    rows = table.query("experiment == 'marked' and mechanism == 'fib_blur' and staggered_init == 0"
                       if probes == "marked" else "mechanism == 'fib_blur_stag'")
    moved = []
    for text in rows["alphas"].unique():
        alphas = [a["alpha"] if isinstance(a, dict) else a for a in ast.literal_eval(text)]
        last = len(alphas) - 1
        starts = [1.0] * len(alphas) if probes == "marked" else [0.5 + at / last for at in range(len(alphas))]
        inner = range(len(alphas)) if probes == "marked" else range(1, last)
        moved += [abs(alphas[at] - starts[at]) for at in inner]
    return Measured.fact(f"Largest published move of alpha in the {probes} probes", max(moved))


@measure("in accuracy", exact=True)
def published_seed_spread(study: Study | None, *, depth: int) -> Measured:
    """Largest difference between two seeds of one cell of the marked probe from a uniform start."""
    rows = published.marked_cells().query("mechanism == 'fib_blur' and staggered_init == 0 and depth == @depth")
    spread = rows.groupby("distance")["accuracy"].agg(lambda own: own.max() - own.min())
    return Measured.fact(f"Difference between two published seeds at depth {depth}", spread.max())


@measure("of the answers", exact=True)
def published_probe_best(study: Study | None) -> Measured:
    """The best cell of the marked probe from a uniform start."""
    rows = published.marked_cells().query("mechanism == 'fib_blur' and staggered_init == 0")
    return Measured.fact("Best published cell of the marked probe from a uniform start", rows["accuracy"].max())


@measure("in accuracy", exact=True)
def published_probe_difference(study: Study | None) -> Measured:
    """Mean accuracy of the marked probe's cells from the ramp minus that from a uniform start."""
    rows = published.marked_cells().query("mechanism == 'fib_blur'").groupby("staggered_init")["accuracy"].mean()
    what = "Published accuracy of the marked probe from the ramp minus from a uniform start"
    return Measured.fact(what, rows[1] - rows[0])
