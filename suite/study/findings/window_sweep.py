"""Notebook 1: distances of a stack, and the published sweep beside ours."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lib.patterns import Pattern
from suite import published
from suite.study.frames import Study, per_cent
from suite.study.graph import layer_distances, reachable_distances, stack_distances

FIXED = "Fibonacci, fixed"


def stack_table(patterns: Mapping[str, Pattern], length: int) -> pd.DataFrame:
    """Distinct distances below `length` tokens of one layer (mean), of the stack, and of sums of two of the stack's;
    without those that are learned."""
    rows = []
    for name, pattern in patterns.items():
        if not pattern.learned:
            layers = [len(layer_distances(pattern, layer, length)) for layer in range(pattern.layers)]
            union = stack_distances(pattern, length)
            rows.append({"name": name, "a layer": float(np.mean(layers)), "stack": len(union),
                         "sums of two": int(reachable_distances([union] * 2, length)[-1].sum())})
    return pd.DataFrame(rows).set_index("name")


def beside_published(study: Study, window: int) -> pd.DataFrame:
    """Perplexity against fixed rungs, per cent: published (mean over datasets), and ours with its interval."""
    table = published.read("perplexity").query(f"window == {published.window(window)} and seed == 42")
    logs = table.pivot_table(index="series", columns="dataset", values="nll")
    theirs = np.exp(logs.mean(axis=1)).sort_values()

    def ours(series: str) -> dict[str, Any]:
        if series == FIXED or not study.has(series, FIXED):
            return {}
        fixed = study.model(FIXED, window=window)
        return per_cent(study.difference(study.partner(fixed, series), fixed))
    rows = [{"series": series, "published perplexity": theirs[series],
             "published, %": 100 * (theirs[series] / theirs[FIXED] - 1), **ours(series)} for series in theirs.index]
    return pd.DataFrame(rows).set_index("series")


def relative_curves(study: Study, window: int) -> dict[str, pd.DataFrame]:
    """Perplexity over that of fixed rungs by training tokens, published and ours: rows are tokens, columns series."""
    at = published.window(window)
    table = published.read("training_curves").query("window == @at and seed == 42")
    logs = table.pivot_table(index="step", columns="series", values="nll")
    theirs = np.exp(logs.sub(logs[FIXED], axis=0)).drop(columns=FIXED)
    panels = {f"published, W = {at}": theirs.set_axis(theirs.index * published.TOKENS_A_STEP)}
    if study.has(FIXED):
        fixed = study.model(FIXED, window=window)
        models = {series: study.partner(fixed, series) for series in theirs if study.has(series)}
        ours = study.curves(fixed, *models.values())
        ours = np.exp(ours.sub(ours.pop(fixed.name), axis=0)).set_axis(list(models), axis=1)
        panels[f"here, W = {window}"] = ours.set_axis(ours.index * fixed.run.train.batch * fixed.length)
    return panels


def seed_spread(study: Study) -> pd.DataFrame:
    """Sample standard deviation of perplexity over seeds, per cent: published (W = 12, mean over datasets), ours."""
    table = published.spread_over_seeds()
    theirs = (100 * table["sample_std"] / table["mean"]).groupby(table["series"]).mean()
    ours = {}
    for model in study.language_models:
        losses = np.mean([domain.mean(axis=1) for domain in study.windows(model)], axis=0)          # (S)
        if len(losses) > 1:
            ours.setdefault(model.labels.series, []).append(100 * np.std(losses, ddof=1))
    spread = pd.DataFrame({"published, %": theirs, "ours, %": {name: np.mean(found) for name, found in ours.items()}})
    return spread.rename_axis("series").sort_values("published, %")
