"""Notebook 2, the marked copy probe: every cell with its interval, with and without a blur, beside the published cells."""

from __future__ import annotations

import ast
from typing import Any

import pandas as pd

from suite import published
from suite.study.conclusions import listing
from suite.experiments.common import SEQUENCES
from suite.study.findings.learned_alpha import lands
from suite.study.stats import wilson

FOUND = 0.5             # a cell is found where more than half of the answers are right
BLUR = "learned with a blur"
CELL = ["depth", "start", "seed", "place"]          # place: 0 and 1, the nearer and the further distance between rungs
STARTS = {"one": "alpha = 1", "ramp": "the ramp"}


def cells(runs: pd.DataFrame, parameters: Any) -> pd.DataFrame:
    """One row a cell between rungs: mechanism, depth, start, seed, rate of theta, distance, accuracy with Wilson's interval,
    and whether some layer has a rung within one token of the distance."""
    rows = runs[runs["setting"].fillna("").str.startswith("copy probe") & runs["step"].isna()]
    value = rows.set_index(["measure", "run", "split"])["value"]
    alphas = rows[rows["measure"] == "alpha"].groupby("run")["value"].apply(list)
    found = []
    for row in rows[rows["measure"] == "accuracy"].itertuples():
        distance = int(row.split.removeprefix("distance=")) if row.split.startswith("distance=") else None
        if distance in parameters.probe_distances:
            answers = int(value["count", row.run, row.split])
            right = wilson(row.value * min(SEQUENCES, answers), min(SEQUENCES, answers), 1)
            _, depth, *rate = row.setting.split(", ")
            found.append({
                "mechanism": row.series.removeprefix("Fibonacci, ").removesuffix(" from the ramp"),
                "depth": int(depth.removeprefix("depth ")), "start": "ramp" if row.series.endswith("the ramp") else "one",
                "seed": row.seed, "theta rate": float(rate[0].partition("x")[2]) if rate else 1.0,
                "place": sorted(parameters.probe_distances).index(distance), "distance": distance, "accuracy": row.value,
                "low": right.low, "high": right.high, "answers": answers,
                "rung there": lands(alphas.get(row.run, [1.0]), distance, parameters.probe_length)})
    columns = ["mechanism", "depth", "start", "seed", "theta rate", "place", "distance", "accuracy", "low", "high", "answers",
               "rung there"]
    return pd.DataFrame(found, columns=columns).sort_values(columns[:6], ignore_index=True)


def published_cells() -> pd.DataFrame:
    """The published cells in the same form; their mechanism is the learned alpha with a blur."""
    table = published.marked_cells().query("mechanism == 'fib_blur'")
    alphas = [ast.literal_eval(text) for text in table["alphas"]]
    there = [lands(own, distance, 1024) for own, distance in zip(alphas, table["distance"], strict=True)]
    columns = table[["depth", "seed", "distance", "accuracy"]]
    start = table["staggered_init"].map({0: "one", 1: "ramp"})
    return columns.assign(**{"mechanism": BLUR, "start": start, "rung there": there,
                             "place": (table["distance"] == table["distance"].max()).astype(int)})


def beside_published(ours: pd.DataFrame) -> pd.DataFrame:
    """Published accuracy of every cell, and ours at the same depth, start and number of the seed, with and without a blur."""
    theirs = published_cells().set_index(CELL)["accuracy"].rename("published, blur")
    own = ours[ours["mechanism"].str.startswith("learned")]
    if own.empty:
        return theirs.to_frame()
    names = ["ours, " + ("blur" if m == BLUR else "no blur") + f", theta rate x{r:g}"
             for m, r in zip(own["mechanism"], own["theta rate"], strict=True)]
    wide = own.assign(name=names).pivot_table(index=CELL, columns="name", values="accuracy")
    return wide.join(theirs, how="left")[["published, blur", *wide.columns]]


def say_blur(ours: pd.DataFrame, parameters: Any) -> str:
    """What the blur does: how many models get a rung onto a distance that is asked for, and how many cells are found."""
    starts = ours.loc[ours["mechanism"] == BLUR, "start"].unique()
    if not len(starts):
        return "No model with a blur was trained (probe_blurred is empty)."
    own = ours[ours["start"].isin(starts)]
    parts = []
    for start in starts:
        with_it, without = (own[(own["mechanism"] == m) & (own["start"] == start)] for m in (BLUR, "learned"))
        best = with_it.loc[with_it["accuracy"].idxmax()]
        parts.append(f"from {STARTS[start]}, {landed(with_it)} with it and {landed(without)} without; best cell with it "
                     f"{best['accuracy']:.3f} (95 % interval {best['low']:.3f} to {best['high']:.3f}), without "
                     f"{without['accuracy'].max():.3f}" if len(without) else
                     f"from {STARTS[start]}, {landed(with_it)} with it; best cell {best['accuracy']:.3f}")
    seeds = ours["seed"].nunique()
    return (f"With a kernel of {parameters.probe_blur:g} tokens that narrows to the plain blend, models that get a rung "
            f"within one token of a distance asked for: {'; '.join(parts)} "
            f"({'one seed' if seeds == 1 else f'{seeds} seeds'}).")


def landed(own: pd.DataFrame) -> str:
    """How many models have a rung on one of their distances or more."""
    by_model = own.groupby(["depth", "start", "seed", "theta rate"] if "theta rate" in own else CELL[:3])["rung there"].any()
    return f"{int(by_model.sum())} of {len(by_model)}"


def say_beside(ours: pd.DataFrame) -> str:
    """Whether ours and the published models with a blur agree: cell by cell, and on whether alpha finds a distance."""
    theirs, own = published_cells(), ours[ours["mechanism"] == BLUR]
    both = own.merge(theirs, on=CELL, suffixes=("", " published"))
    if both.empty:
        return "No published cell has a counterpart here."
    agree = int(((both["accuracy"] > FOUND) == (both["accuracy published"] > FOUND)).sum())
    alike = theirs.merge(own[CELL[:2]].drop_duplicates(), on=CELL[:2])
    starts = listing([STARTS[start] for start in both["start"].unique()])
    return (f"Of {len(both)} cells with a blur that have a published counterpart (depth, start, number of the seed; the sizes "
            f"of model and context differ), {agree} agree on whether more than half of the answers are right. A rung lies on "
            f"a distance asked for in {landed(alike)} published models of these depths that start at {starts}, and in "
            f"{landed(own)} here.")
