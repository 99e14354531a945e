"""Notebook 2: how far alpha can move and how far it has moved, and the loss by each layer's alpha."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from lib.config import TrainConfig
from lib.patterns import build
from lib.patterns.learned import alpha_of, fractional_rungs
from lib.patterns.rungs import base_rungs
from suite.study import comparisons
from suite.study.frames import Model, Study

FIXED, LEARNED = "Fibonacci, fixed", "Fibonacci, learned"


def source_rows(window: int = 8, rungs: int = 15, length: int = 1024, alpha: float = 0.997) -> tuple[int, int]:
    """Audit row 11: key rows that a query reads with blended rungs, and with integer ones."""
    blended = fractional_rungs(base_rungs("fibonacci", rungs, length), window, alpha, length)
    fixed = build("scaled_base", window=window, rungs=rungs).plan(0, length).distances
    return window + 1 + sum(1 + (t > 0) for _, t, _ in blended), len(fixed)


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
    rows = [(model.name, seed, comparisons.alpha_travel(study, Model(model.name, (job,))),
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
