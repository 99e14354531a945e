"""Notebook 2: how far alpha can move and has moved, the loss by each layer's alpha, and the marked copy probe."""

import ast
from collections.abc import Mapping, Sequence

import pandas as pd

from lib.config import TrainConfig
from lib.patterns.learned import alpha_of
from lib.patterns.rungs import base_rungs
from suite import published
from suite.experiments.common import title
from suite.experiments.learned_alpha import PROBE
from suite.study import comparisons
from suite.study.frames import Model, Study
from suite.study.stats import accuracy

FIXED, LEARNED = "Fibonacci, fixed", "Fibonacci, learned"
FOUND = 0.5             # a cell is found where more than half of the answers are right
CELL = ["depth", "start", "seed", "place"]          # place: 0 and 1, the nearer and the further distance
COLUMNS = ["series", "theta rate", *CELL, "distance", "accuracy", "low", "high", "rung there", "blur"]


def travel(recipe: TrainConfig) -> float:
    """How far a recipe can move theta: a step of Adam is at most about the learning rate, so the sum of the rates."""
    from lib.training import learning_rate                      # imports torch, which the ledger does without
    return recipe.theta_lr * sum(learning_rate(step, recipe) for step in range(recipe.steps))


def reach_table(recipes: Mapping[str, TrainConfig]) -> pd.DataFrame:
    """How far each recipe can move theta, and alpha from 1."""
    rows = [{"recipe": name, "steps": recipe.steps, "theta, at most": travel(recipe),
             "lowest alpha": alpha_of(-travel(recipe)), "highest alpha": alpha_of(travel(recipe))}
            for name, recipe in recipes.items()]
    return pd.DataFrame(rows).set_index("recipe")


def learned(study: Study) -> list[Model]:
    """The language models that learn alpha."""
    return [model for model in study.language_models if model.labels.start]


def paths(study: Study, models: Sequence[Model]) -> dict[str, pd.DataFrame]:
    """Alpha in training, by the model's name: rows are optimiser steps, columns layers; the first seed's run."""
    return {model.name: study.metrics(model.jobs[0]).query("measure == 'alpha'").dropna(subset="step").pivot_table(
        index="step", columns="layer", values="value") for model in models}


def moves(study: Study, models: Sequence[Model]) -> pd.DataFrame:
    """How far alpha moved in each run: the layer that moved most, and the lowest and highest alpha at the end."""
    rows = [(model.name, seed, comparisons.alpha_travel(study, Model(model.name, (job,))).estimate,
             min(comparisons.alphas(study, job)), max(comparisons.alphas(study, job)))
            for model in models for seed, job in model.by_seed.items()]
    columns = ["name", "seed", "largest move", "lowest alpha", "highest alpha"]
    return pd.DataFrame(rows, columns=columns).set_index("name")


def landscape(study: Study, model: Model) -> pd.DataFrame:
    """Loss with one layer's alpha at another value minus the loss as learned (nats a token, mean over seeds), by alpha
    and layer."""
    changes, variants = comparisons.landscape(study, model)                                     # (S, L, A, windows)
    values = [float(variant.removeprefix("alpha=")) for variant in variants]
    return pd.DataFrame(changes.mean(axis=(0, 3)).T, index=pd.Index(values, name="alpha")).rename_axis(columns="layer")


# The copy probe: a cell is one model, one seed and one of the two distances that it copies from

def probes(study: Study, distances: Sequence[int]) -> list[Model]:
    """The probe's models that are asked for these distances."""
    return [model for model in study.models if model.labels.task == PROBE
            and dict(model.run.data.parameters)["distances"] == tuple(distances)]


def cells(study: Study, distances: Sequence[int]) -> pd.DataFrame:
    """One row a cell at these distances: accuracy with its interval over sequences, and whether a rung is there."""
    rows = []
    for model, seed, job in [(model, *own) for model in probes(study, distances) for own in model.by_seed.items()]:
        alphas = comparisons.alphas(study, job) if model.labels.start else [1.0]
        for place, distance in enumerate(sorted(distances)):
            split = f"distance={distance}" if len(distances) > 1 else job.run.data.source
            right = accuracy(comparisons.answers(study, [job], split))
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
    series, starts = (title("fibonacci/blurred"), title("fibonacci/blurred_ramp")), ("one", "ramp")
    return table.assign(
        series=table["staggered_init"].map(dict(enumerate(series))), blur=True, **{"rung there": there},
        start=table["staggered_init"].map(dict(enumerate(starts))),
        place=table["distance"].rank(method="dense").astype(int) - 1).reindex(columns=COLUMNS)


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
