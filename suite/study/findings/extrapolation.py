"""Notebook 3: what happens beyond the training length, and the published change of perplexity beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from lib import rope
from lib.patterns import Pattern
from suite import published
from suite.study.comparisons import context_gain
from suite.study.frames import Model, Study, row
from suite.study.tables import select

FROZEN = "rungs=frozen"         # the variant that keeps the rungs of the training length
Changed = Mapping[str, tuple[Model, str]]           # models as they are evaluated, by name: the model and the variant


def variants(study: Study, *series: str) -> Changed:
    """Every language model (or those of some series) as trained and as changed at evaluation, by the name in
    figures."""
    models = [model for model in study.language_models if not series or model.labels.series in series]
    named = {}
    for model in models:
        for evaluation in model.jobs[0].evaluations:
            if evaluation.name == "perplexity":
                variant = dict(evaluation.parameters).get("variant", "")
                named[", ".join(filter(None, (model.name, variant)))] = model, variant
    return named


def rotated(x: torch.Tensor) -> torch.Tensor:
    """`x` `[B, H, T, D]` turned by RoPE at positions 0 ... T - 1, as the model does it."""
    turn = rope.turns(x.shape[2], x.shape[3], 10_000.0, "vanilla", None, torch.complex128, "cpu")
    return rope.rotate(x.transpose(1, 2), turn).transpose(1, 2)


def rungs_added(patterns: Mapping[str, Pattern], trained: int, length: int) -> pd.DataFrame:
    """Audit row 2: layers that attend distances at `length` which they do not have at `trained`, and the range of
    these."""
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
    """Perplexity (exp of the mean loss over domains and seeds): rows are lengths, columns models with their
    variants."""
    rows = select(study.table, "nll")
    loss = rows.assign(variant=rows["variant"].fillna("")).groupby(["name", "variant", "length"])["value"].mean()
    return pd.DataFrame({name: np.exp(loss[model.name, variant]) for name, (model, variant) in chosen.items()})


def growth_table(study: Study, chosen: Changed, length: int) -> pd.DataFrame:
    """Loss at `length` minus that of the unchanged model at the training length, on the same tokens (nats a token)."""
    rows = [row(study.growth(model, length, variant), name=name) for name, (model, variant) in chosen.items()]
    return pd.DataFrame(rows).set_index("name").sort_values("estimate")


def frozen_against_rebuilt(study: Study, length: int) -> pd.DataFrame:
    """Loss with the rungs of the training length minus that with rebuilt ones, for models whose rungs grow."""
    rows = [row(study.difference(model, model, length=length, variant=FROZEN), name=model.name)
            for model, variant in variants(study).values() if variant == FROZEN]
    return pd.DataFrame(rows, columns=["name", "estimate", "low", "high", "seeds"]).set_index("name")


def context_table(study: Study, chosen: Changed, control: Model, length: int) -> pd.DataFrame:
    """What context beyond the training length changes, of each model minus the same of the control (`context_gain`)."""
    rows = [row(context_gain(study, model, control, length, variant), name=name)
            for name, (model, variant) in chosen.items() if model != control]
    return pd.DataFrame(rows).set_index("name").sort_values("estimate")


# Published

def published_table(dataset: str = "fineweb_edu") -> pd.DataFrame:
    """Published perplexity at 1024, 2048 and 4096 tokens, with the change in per cent."""
    table = published.degradation(dataset).reset_index()
    table["model"] = [s if w < 0 else f"{s}, W={w:g}" for s, w in zip(table["series"], table["window"], strict=True)]
    return table.drop(columns=["series", "window"]).set_index("model").sort_values("change, %")


def relative(study: Study, chosen: Changed, window: int = 8) -> dict[str, pd.DataFrame]:
    """Perplexity over that at the training length, by length over training length: published models and ours."""
    def scaled(table: pd.DataFrame) -> pd.DataFrame:
        return (table / table.iloc[0]).set_axis(table.index / table.index[0])
    table = published.degradation().drop(columns="change, %").reset_index()
    theirs = table[table["window"].isin([-1, window])].drop(columns="window").set_index("series").T
    ours = scaled(curves(study, chosen))
    return {f"published, FineWeb-Edu, W = {window}": scaled(theirs), "here, mean over domains": ours}


def beside_published(study: Study, factors: Sequence[int], window: int) -> pd.DataFrame:
    """Change of perplexity from the training length, per cent: published (means over datasets, at our window or W = 8)
    and ours, with its interval; one row a series and factor."""
    table = published.read("length_extrapolation")
    at = window if window in set(table["window"]) else 8
    table = table[(table["window"] == at) | table["window"].isna()]
    logs = table.assign(nll=np.log(table["perplexity"])).groupby(["series", "eval_length"])["nll"].mean()
    rows = []
    for model in [model for model in study.language_models if (model.labels.series, 1024) in logs.index]:
        for factor in [f for f in factors if f > 1 and (model.labels.series, 1024 * f) in logs.index]:
            theirs = logs[model.labels.series, 1024 * factor] - logs[model.labels.series, 1024]
            ours = study.growth(model, factor * model.length)
            rows.append({"series": model.labels.series, "times the length": factor,
                         "published, %": 100 * np.expm1(theirs), "ours, %": 100 * np.expm1(ours.estimate),
                         "low": 100 * np.expm1(ours.low), "high": 100 * np.expm1(ours.high), "seeds": ours.seeds})
    return pd.DataFrame(rows).set_index(["series", "times the length"])
