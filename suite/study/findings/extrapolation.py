"""Notebook 3: what happens beyond the training length, and the published change of perplexity beside ours."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from lib import rope
from lib.patterns import Pattern
from suite import published
from suite.study.comparisons import context_gain
from suite.study.frames import Model, Study, as_table, per_cent

FROZEN = "rungs=frozen"         # the variant that keeps the rungs of the training length
Changed = Mapping[str, tuple[Model, str]]           # models as they are evaluated, by name: the model and the variant


def variants(study: Study, *series: str) -> Changed:
    """Every language model (or those of some series) as trained and as changed at evaluation, by name."""
    evaluated = [(model, dict(evaluation.parameters).get("variant", "")) for model in study.language_models
                 for evaluation in model.jobs[0].evaluations if evaluation.name == "perplexity"]
    return {", ".join(filter(None, (model.name, variant))): (model, variant) for model, variant in evaluated
            if not series or model.labels.series in series}


def rotated(x: torch.Tensor) -> torch.Tensor:
    """`x` `[B, H, T, D]` turned by RoPE at positions 0 ... T - 1, as the model does it."""
    turn = rope.turns(x.shape[2], x.shape[3], 10_000.0, "vanilla", None, torch.complex128, "cpu")
    return rope.rotate(x.transpose(1, 2), turn).transpose(1, 2)


def rungs_added(patterns: Mapping[str, Pattern], trained: int, length: int) -> pd.DataFrame:
    """Audit row 2: layers with distances at `length` that they do not have at `trained`, and the range of these."""
    rows = []
    for name, pattern in patterns.items():
        if pattern.name == "scaled_base":
            added = [set(pattern.plan(layer, length).distances) - set(pattern.plan(layer, trained).distances)
                     for layer in range(pattern.layers)]
            new = sorted(set().union(*added))
            rows.append({"name": name, "layers with untrained distances": sum(map(bool, added)),
                         "layers": pattern.layers, "untrained distances": f"{new[0]} to {new[-1]}" if new else "none"})
    return pd.DataFrame(rows).set_index("name") if rows else pd.DataFrame()


def curves(study: Study, chosen: Changed) -> pd.DataFrame:
    """Perplexity (exp of the mean loss over domains and seeds): rows are lengths, columns `chosen`."""
    loss = study.rows("nll").groupby(["name", "variant", "length"])["value"].mean()
    return pd.DataFrame({name: np.exp(loss[model.name, variant]) for name, (model, variant) in chosen.items()})


def growth_table(study: Study, chosen: Changed, length: int) -> pd.DataFrame:
    """Loss at `length` minus that of the unchanged model at the training length, on the same tokens (nats a token)."""
    return as_table({name: study.growth(model, length, variant)
                     for name, (model, variant) in chosen.items()}).sort_values("estimate")


def frozen_against_rebuilt(study: Study, length: int) -> pd.DataFrame:
    """Loss with the rungs of the training length minus that with rebuilt ones, for models whose rungs grow."""
    return as_table({model.name: study.difference(model, model, length=length, variant=FROZEN)
                     for model, variant in variants(study).values() if variant == FROZEN}).drop(columns="df")


def context_table(study: Study, chosen: Changed, control: Model, length: int) -> pd.DataFrame:
    """What context beyond the training length changes, of each model minus the same of the control (`context_gain`)."""
    return as_table({name: context_gain(study, model, control, length, variant) for name, (model, variant)
                     in chosen.items() if model != control}).sort_values("estimate")


def published_perplexity() -> pd.DataFrame:
    """Published perplexity on FineWeb-Edu: one row a series and window (dense: -1), one column a length."""
    table = published.read("length_extrapolation").query("dataset == 'fineweb_edu'").fillna({"window": -1})
    return table.pivot_table(index=["series", "window"], columns="eval_length", values="perplexity")


def published_table() -> pd.DataFrame:
    """Published perplexity at 1024, 2048 and 4096 tokens, with the change in per cent."""
    table = published_perplexity()
    table["change, %"] = 100 * (table[4096] / table[1024] - 1)
    names = [series if window < 0 else f"{series}, W={window:g}" for series, window in table.index]
    return table.set_axis(pd.Index(names, name="model")).sort_values("change, %")


def relative(study: Study, chosen: Changed) -> dict[str, pd.DataFrame]:
    """Perplexity over that at the training length, by length over training length: published models and ours."""
    def scaled(table: pd.DataFrame) -> pd.DataFrame:
        return (table / table.iloc[0]).set_axis(table.index / table.index[0])
    theirs = published_perplexity().query("window in (-1, 8)").droplevel("window").T
    return {"published, FineWeb-Edu, W = 8": scaled(theirs), "here, mean over domains": scaled(curves(study, chosen))}


def beside_published(study: Study, factors: Sequence[int], window: int) -> pd.DataFrame:
    """Change of perplexity from the training length, per cent: published (means over datasets, at our window or W = 8)
    and ours, with its interval; one row a series and factor."""
    table = published.read("length_extrapolation")
    table = table[(table["window"] == published.window(window)) | table["window"].isna()]
    logs = table.groupby(["series", "eval_length"])["nll"].mean()
    rows = []
    for model in study.language_models:
        series = model.labels.series
        for factor in [f for f in factors if f > 1 and (series, 1024 * f) in logs.index]:
            rows.append({"series": series, "times the length": factor,
                         "published, %": 100 * np.expm1(logs[series, 1024 * factor] - logs[series, 1024]),
                         **per_cent(study.growth(model, factor * model.length))})
    return pd.DataFrame(rows).set_index(["series", "times the length"])
