"""Notebook 3: what happens beyond the training length; audit rows 1 to 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from lib import rope
from lib.patterns import Pattern, build
from suite import published
from suite.experiments.base import Job
from suite.study.conclusions import FLAT, compared, grown, listing
from suite.study.findings.shared import interval, row
from suite.study.losses import Losses
from suite.study.stats import Interval, mean_interval, paired_difference

Variants = dict[str, tuple[str, str]]


def variants(jobs: Sequence[Job], names: Sequence[str]) -> Variants:
    """Every model and changed model by the name that figures give it: the model's name and the variant's."""
    found: Variants = {}
    for job, name in zip(jobs, names, strict=True):
        for evaluation in job.evaluations:
            variant = dict(evaluation.parameters).get("variant", "")
            found[f"{name}, {variant}" if variant else name] = (name, variant)
    return found


def rungs_added(pattern: Pattern, trained: int, length: int) -> dict[int, tuple[int, ...]]:
    """Distances that each layer attends at `length` and does not have at `trained`, by layer; only layers with some."""
    added = {layer: sorted(set(pattern.plan(layer, length).distances) - set(pattern.plan(layer, trained).distances))
             for layer in range(pattern.layers)}
    return {layer: tuple(new) for layer, new in added.items() if new}


def say_rungs_added(name: str, added: dict[int, tuple[int, ...]], layers: int, factor: float) -> str:
    """Audit row 2: whether a pattern queries distances that training has not shown."""
    if not added:
        return f"{name} queries no untrained distance at {factor:g} times the training length."
    new = sorted({d for layer in added.values() for d in layer})
    return (f"{name} adds untrained distances at {factor:g} times the training length in {len(added)} of {layers} layers "
            f"({min(added)} to {max(added)}): {new[0]} to {new[-1]}.")


def paper_rungs(base: str, schedule: str, window: int = 8) -> str:
    """The same for the paper's own models, from 1024 to 4096 tokens."""
    pattern = build("scaled_base", layers=16, heads=8, base=base, schedule=schedule, window=window)
    name = f"The paper's {published.series(base, schedule)} (W = {window})"
    return say_rungs_added(name, rungs_added(pattern, 1024, 4096), 16, 4)


def growth_table(losses: Losses, shown: Variants, short: int, long: int) -> pd.DataFrame:
    """Loss at `long` minus that of the unchanged model at `short`, on the same tokens (nats), with intervals."""
    rows = [row(losses.growth(model, short, long, variant), name=name) for name, (model, variant) in shown.items()]
    return pd.DataFrame(rows).set_index("name").sort_values("estimate")


def say_growth(table: pd.DataFrame, factor: float, names: Sequence[str]) -> str:
    """One sentence a model: rises, stays flat, falls."""
    return " ".join(grown(name, interval(table.loc[name]), factor) for name in names if name in table.index)


def say_headline(table: pd.DataFrame, factor: float) -> str:
    """The paper's headline, and what the local control says of it (audit rows 2 to 4)."""
    signs = {name: interval(own).sign(FLAT) for name, own in table.iterrows()}
    kinds = {"above": f"rises by more than {FLAT} nats", "within": f"stays flat (within {FLAT} nats)",
             "below": f"falls by more than {FLAT} nats", "undecided": "cannot be placed"}
    parts = [f"the loss of {listing([name for name, own in signs.items() if own == sign])} {words}"
             for sign, words in kinds.items() if sign in signs.values()]
    return f"At {factor:g} times the training length {'; '.join(parts)}."


def say_controls(losses: Losses, proposals: Sequence[str], control: str, length: int) -> str:
    """Audit row 4: is a proposal better than a window of as many keys at the longest length?"""
    said = [compared(name, control, losses.difference(name, control, length=length))
            for name in proposals if name != control]
    return f"At {length} tokens: " + " ".join(said)


def best_rescue(table: pd.DataFrame, model: str = "Dense") -> str:
    """Which change at evaluation helps the dense model most."""
    own = table[[name == model or name.startswith(f"{model}, ") and "=" in name for name in table.index]]
    if len(own) < 2:
        return f"No change to {model} at evaluation was asked for."
    best = own["estimate"].idxmin()
    if own.loc[model, "low"] <= 0:
        return (f"{model} loses nothing measurable beyond its training length; lowest of it and {len(own) - 1} changes: "
                f"{best}.")
    if best == model:
        return f"No change at evaluation lowers the loss of {model}."
    saved = own.loc[model, "estimate"] - own.loc[best, "estimate"]
    return (f"Of {len(own) - 1} changes at evaluation, {best} helps {model} most: {saved:.3f} of the "
            f"{own.loc[model, 'estimate']:.3f} nats that it loses ({100 * saved / own.loc[model, 'estimate']:.0f} %).")


def frozen_against_rebuilt(losses: Losses, shown: Variants, length: int) -> pd.DataFrame:
    """Loss with the rungs of the training length minus that with rebuilt ones, for models whose rungs grow."""
    rows = [row(paired_difference(losses.windows(model, length, variant), losses.windows(model, length)), name=model)
            for model, variant in shown.values() if variant == "rungs=frozen"]
    return pd.DataFrame(rows, columns=["name", "estimate", "low", "high"]).set_index("name")


def say_frozen(table: pd.DataFrame) -> str:
    """The paper's explanation, tested: do the untrained rungs hurt?"""
    if table.empty:
        return "No pattern here gains rungs beyond the training length, so frozen and rebuilt rungs are the same."
    said = []
    for name, own in table.iterrows():
        found = interval(own)
        word = {"below": "hurt", "above": "help"}.get(found.sign(), "make no measurable difference to")
        slightly = ", slightly" if found.sign() != "undecided" and abs(found.estimate) < FLAT else ""
        said.append(f"the untrained rungs {word} {name}{slightly} (frozen minus rebuilt: {found.text()} nats)")
    sentence = "; ".join(said)
    return sentence[0].upper() + sentence[1:] + "."


def context_gain(losses: Losses, shown: Variants, trained: int, long: int) -> pd.DataFrame:
    """Does context beyond the training length help? Loss at positions from `trained` on, minus that in the half window
    before, in the same windows of `long` tokens (nats). What the text itself adds is alike for all models."""
    rows = []
    for name, (model, variant) in shown.items():
        beyond = losses.windows(model, long, variant, (trained, long))
        before = losses.windows(model, long, variant, (trained // 2, trained))
        rows.append(row(paired_difference(beyond, before), name=name))
    return pd.DataFrame(rows).set_index("name").sort_values("estimate")


def say_contexts(losses: Losses, shown: Variants, control: str, trained: int, long: int) -> str:
    """Whether context beyond the training length lowers the loss of each model, measured against a control to which it is
    invisible, so that what the text itself does at those positions cancels."""
    def gain(of: str) -> list[np.ndarray]:
        model, variant = shown[of]
        pairs = zip(losses.windows(model, long, variant, (trained, long)),
                    losses.windows(model, long, variant, (trained // 2, trained)), strict=True)
        return [beyond - before for beyond, before in pairs]
    theirs, groups = gain(control), {"lowers": [], "raises": [], "does not measurably change": []}
    for name in shown:
        if name != control:
            found: Interval = mean_interval([a - b for a, b in zip(gain(name), theirs, strict=True)])
            word = {"below": "lowers", "above": "raises"}.get(found.sign(), "does not measurably change")
            groups[word].append(f"{name} ({found.text()})")
    parts = [f"{word} the loss of {listing(names)}" for word, names in groups.items() if names]
    return f"Context beyond the training length, measured against {control} (nats a token): it {'; it '.join(parts)}."


def rotated(x: torch.Tensor) -> torch.Tensor:
    """`x` `[B, H, T, D]` turned by RoPE at positions 0 ... T - 1, as the model does it."""
    turn = rope.turns(x.shape[2], x.shape[3], 10_000.0, "vanilla", None, torch.complex128, "cpu")
    return rope.rotate(x.transpose(1, 2), turn).transpose(1, 2)


def of_model(everything: Variants, model: str) -> Variants:
    """One model, as it is and changed at evaluation."""
    return {name: own for name, own in everything.items() if own[0] == model}


def relative(runs: pd.DataFrame, names: Sequence[str], published_table: pd.DataFrame,
             window: int = 8) -> dict[str, pd.DataFrame]:
    """Perplexity over that at the training length, by length over training length: published models and ours."""
    def scaled(table: pd.DataFrame) -> pd.DataFrame:
        return (table / table.iloc[0]).set_axis(table.index / table.index[0])
    theirs = published_table.drop(columns="change, %")
    theirs = theirs[[name == "Dense" or name.endswith(f"W={window}") for name in theirs.index]].T
    theirs = theirs.rename(columns=lambda name: name.removesuffix(f", W={window}"))
    return {f"published, FineWeb-Edu, W = {window}": scaled(theirs),
            "here, mean over domains": scaled(curves(runs, names))}


def published_table(dataset: str = "fineweb_edu") -> pd.DataFrame:
    """Published perplexity at 1024, 2048 and 4096 tokens, with the change in per cent."""
    table = published.degradation(dataset).reset_index()
    table["model"] = [s if w < 0 else f"{s}, W={w:g}" for s, w in zip(table["series"], table["window"], strict=True)]
    return table.drop(columns=["series", "window"]).set_index("model").sort_values("change, %")


def say_published(table: pd.DataFrame, limit: float = 2.0) -> str:
    """Audit row 3: which published sparse models do degrade."""
    change = table["change, %"].drop("Dense")
    worse = change[change > limit]
    listed = listing([f"{name} ({value:+.1f} %)" for name, value in worse.items()])
    return (f"Published, at 4 times the training length: dense {table.loc['Dense', 'change, %']:+.0f} %; of "
            f"{len(change)} sparse models "
            f"{len(worse)} rise by more than {limit:g} %: {listed}.")


def curves(runs: pd.DataFrame, names: Sequence[str] = ()) -> pd.DataFrame:
    """Perplexity (exp of the mean loss over domains and seeds): rows are lengths, columns models with their variants."""
    from suite.study.tables import select
    rows = select(runs, "nll")
    variant = rows["variant"].fillna("")
    rows = rows.assign(name=rows["name"] + variant.where(variant == "", ", " + variant))
    table = np.exp(rows.groupby(["length", "name"])["value"].mean().unstack())
    return table[list(names)] if len(names) else table


def shown_of(everything: Variants, **kinds: Any) -> Variants:
    """A part of the variants: `rope=True` those of the rotary embedding, `plain=True` the unchanged models, and so on."""
    def kind(variant: str) -> str:
        return variant.partition("=")[0] or "plain"
    return {name: own for name, own in everything.items() if kinds.get(kind(own[1]), False)}
