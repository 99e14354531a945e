"""Notebook 2, the marked copy probe. A cell is one model, one seed and one of the two distances that it copies from."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import pandas as pd

from lib.patterns.rungs import base_rungs
from suite import published
from suite.experiments.common import title
from suite.experiments.learned_alpha import PROBE
from suite.study import comparisons
from suite.study.frames import Model, Study
from suite.study.stats import accuracy

FOUND = 0.5             # a cell is found where more than half of the answers are right
CELL = ["depth", "start", "seed", "place"]          # place: 0 and 1, the nearer and the further distance
COLUMNS = ["series", "theta rate", *CELL, "distance", "accuracy", "low", "high", "rung there", "blur"]


def models(study: Study, distances: Sequence[int]) -> list[Model]:
    """The probe's models that are asked for these distances."""
    return [model for model in study.models if model.labels.task == PROBE
            and dict(model.run.data.parameters)["distances"] == tuple(distances)]


def cells(study: Study, distances: Sequence[int]) -> pd.DataFrame:
    """One row a cell at these distances: accuracy with its interval over sequences, and whether a rung is there."""
    rows = []
    for model, seed, job in [(model, *own) for model in models(study, distances) for own in model.by_seed.items()]:
        alphas = comparisons.alphas(study, job) if model.labels.start else [1.0]
        for place, distance in enumerate(sorted(distances)):
            split = f"distance={distance}" if len(distances) > 1 else job.run.data.source
            right = accuracy(comparisons.sequences(study, [job], split))
            rows.append([model.labels.series, model.labels.theta_lr, model.labels.depth, model.labels.start, seed,
                         place, distance, right.estimate, right.low, right.high,
                         lands(alphas, distance, model.length), model.run.pattern.name == "blurred"])
    return pd.DataFrame(rows, columns=COLUMNS)


def lands(alphas: Sequence[float], distance: int, length: int) -> bool:
    """Whether some layer's alpha puts a rung of the Fibonacci base within one token of a distance."""
    return any(abs(alpha * f - distance) < 1 for alpha in alphas for f in base_rungs("fibonacci", 15, length))


def published_cells() -> pd.DataFrame:
    """The published cells in the same form: a learned alpha with a blur, 1024 tokens; without rate and intervals."""
    table = published.marked_cells().query("mechanism == 'fib_blur'")
    there = [lands(ast.literal_eval(text), distance, 1024)
             for text, distance in zip(table["alphas"], table["distance"], strict=True)]
    series = {0: title("fibonacci/blurred"), 1: title("fibonacci/blurred_ramp")}
    return table.assign(**{
        "series": table["staggered_init"].map(series), "start": table["staggered_init"].map({0: "one", 1: "ramp"}),
        "place": table["distance"].rank(method="dense").astype(int) - 1, "rung there": there, "blur": True,
    }).reindex(columns=COLUMNS)


def grid(table: pd.DataFrame) -> pd.DataFrame:
    """Accuracy of every cell: one row a model and seed, one column a distance."""
    names = [f"{row.series}, {f'rate x{rate:g}, ' if rate == rate else ''}depth {row.depth}, seed {row.seed}"
             for row, rate in zip(table.itertuples(), table["theta rate"], strict=True)]
    return table.assign(model=names).pivot_table(index="model", columns="distance", values="accuracy", sort=False)


def outcomes(table: pd.DataFrame) -> pd.DataFrame:
    """By series and rate of theta: models with a rung at one of their distances, cells found, and the best cell."""
    rows = []
    for (series, rate), group in table.groupby(["series", "theta rate"], dropna=False, sort=False):
        there, best = group.groupby(["depth", "seed"])["rung there"].any(), group.loc[group["accuracy"].idxmax()]
        rows.append((series, rate, len(there), int(there.sum()), len(group), int((group["accuracy"] > FOUND).sum()),
                     *best[["accuracy", "low", "high"]]))
    columns = ["series", "theta rate", "models", "with a rung there", "cells", "found", "best cell", "low", "high"]
    return pd.DataFrame(rows, columns=columns).set_index("series")


def beside_published(table: pd.DataFrame) -> pd.DataFrame:
    """Published accuracy of every cell, and that of our learned models of the same depth, start and number of seed."""
    theirs = published_cells().set_index(CELL)["accuracy"].rename("published, blur")
    learned = table[table["start"].notna()]
    names = [f"here, {'blur' if blur else 'no blur'}, rate x{rate:g}"
             for blur, rate in zip(learned["blur"], learned["theta rate"], strict=True)]
    ours = learned.assign(name=names).pivot_table(index=CELL, columns="name", values="accuracy")
    return ours.join(theirs, how="left") if len(ours) else theirs.to_frame()
