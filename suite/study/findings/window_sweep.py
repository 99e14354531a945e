"""Notebook 1: what the sweep says of schedules, bases and windows, and of the audit's rows 1, 5, 12 to 15, 18 and 25."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lib.config import PatternSpec, TrainConfig
from lib.errors import SuiteError
from lib.patterns import Pattern, build
from suite import published
from suite.study.conclusions import compared, correlation, listing, ordered
from suite.study.findings.shared import bins, by_bin, find, has, interval
from suite.study.graph import (layer_distances, reachable_distances,
                               stack_distances)
from suite.study.losses import Losses

FIXED, RAMP, POW2 = "Fibonacci, fixed", "Fibonacci, linear ramp", "Powers of two, linear ramp"


def paper_pattern(base: str = "fibonacci", schedule: str = "fixed", window: int = 8) -> Pattern:
    """A pattern of the paper at its depth of 16 layers and 8 heads."""
    return build("scaled_base", layers=16, heads=8, base=base, schedule=schedule, window=window)


def reach_table(length: int = 1024) -> pd.DataFrame:
    """Audit row 1: reach and keys of the paper's base and of its powers-of-two control, W = 8."""
    rows = []
    for base in ("fibonacci", "pow2", "matched_pow2"):
        distances = paper_pattern(base).plan(0, length).distances
        rows.append({"base": base, "keys a query": len(distances), "beyond the window": sum(d > 8 for d in distances),
                     "reach": max(distances)})
    return pd.DataFrame(rows).set_index("base")


def say_reach(table: pd.DataFrame) -> str:
    fibonacci, pow2 = table.loc["fibonacci"], table.loc["pow2"]
    match = "matches" if fibonacci["reach"] == pow2["reach"] else "does not match"
    return (f"The paper's powers-of-two control {match} the reach of the Fibonacci base: {pow2['reach']} against "
            f"{fibonacci['reach']} tokens at T = 1024, with {pow2['keys a query']} keys a query against "
            f"{fibonacci['keys a query']}. "
            f"The base `matched_pow2` reaches {table.loc['matched_pow2', 'reach']}.")


def say_union(length: int = 1024, window: int = 8) -> str:
    """Audit row 12: distances of one layer and of the stack at the paper's size."""
    one = paper_pattern(window=window).plan(0, length).distances
    union = stack_distances(paper_pattern(schedule="linear", window=window), length)
    return (f"At the paper's size (W = {window}, T = {length}) the fixed pattern has {len(one)} distances, the window "
            f"included "
            f"({sum(d > window for d in one)} beyond it); the ramp's 16 layers together have {len(union)}. "
            f"The paper says about 19 beyond the window and about 75 in the union.")


def say_depths(deepest: int = 16) -> str:
    """Audit row 25: depths for which the coprime schedule has no stride."""
    without = []
    for layers in range(2, deepest + 1):
        try:
            build("scaled_base", layers=layers, schedule="coprime")
        except SuiteError:
            without.append(str(layers))
    return f"The coprime schedule has no stride at the depths {listing(without)} (of 2 to {deepest}): there it is an error."


def stack_table(patterns: dict[str, Pattern], length: int, hops: int = 2) -> pd.DataFrame:
    """Distinct distances of a layer (mean), of the stack, and of sums of `hops` of the stack's distances. Learned
    ones, which depend on the training, are left out."""
    rows = []
    for name, pattern in patterns.items():
        if not pattern.learned:
            layers = [len(layer_distances(pattern, layer, length)) for layer in range(pattern.layers)]
            union = stack_distances(pattern, length)
            rows.append({"name": name, "a layer": float(np.mean(layers)), "stack": len(union),
                         f"sums of {hops}": int(reachable_distances([union] * hops, length)[-1].sum()), "of": length})
    return pd.DataFrame(rows).set_index("name")


def say_stack(table: pd.DataFrame, loss: pd.Series) -> str:
    """Whether more distinct distances in the stack go with a lower loss."""
    shared = [name for name in table.index if name in loss.index]
    return correlation(table.loc[shared, "stack"], loss.loc[shared], "the number of distinct distances in the stack",
                       "The loss")


def say_ramp(runs: pd.DataFrame, losses: Losses, windows: Sequence[int]) -> str:
    """The paper's first claim: spreading the rungs over depth lowers the loss. One sentence a window."""
    if not has(runs, FIXED, RAMP):
        return "Fixed and linear ramp were not both trained: no comparison."
    return " ".join(compared(name, other, losses.difference(name, other)) for name, other in
                    ((find(runs, RAMP, window), find(runs, FIXED, window)) for window in windows))


def ramp_by_position(runs: pd.DataFrame, losses: Losses, window: int, length: int) -> pd.DataFrame:
    """Audit row 5: what the ramp gains over fixed rungs (nats), by fine bins of positions."""
    return by_bin(losses, find(runs, FIXED, window), find(runs, RAMP, window), bins(length))


def say_positions(table: pd.DataFrame) -> str:
    first, last = interval(table.iloc[0]), interval(table.iloc[-1])
    word = ("is larger at the end of the window than at its start" if last.low > first.high else
            "is smaller at the end of the window than at its start" if last.high < first.low else
            "at the end of the window cannot be told from that at its start")
    return (f"The ramp's gain over fixed rungs {word}: {first.text()} nats from position {table.index[0]} on, "
            f"{last.text()} from position {table.index[-1]} on. The paper's bins of 128 tokens hide the first ones.")


def published_gain(window: int = 8) -> pd.DataFrame:
    """The published gain of the ramp over fixed rungs (nats), by 8 bins of 128 positions; one column a dataset."""
    table = published.read("position_loss").query("window == @window and base == 'fibonacci'")
    wide = table.pivot_table(index="bin", columns=["schedule", "dataset"], values="nll")
    gain = wide["fixed"] - wide["linear"]
    gain.index = pd.Index(128 * gain.index, name="position")
    return gain


def recipe_facts(train: TrainConfig, model: Any) -> pd.DataFrame:
    """Audit rows 13, 14, 15 and 18: where the paper's text and its code differ, and what the suite does; computed."""
    spread = published.spread_over_seeds().query("seeds == 3")
    ratio = float((spread["sample_std"] / spread["population_std"]).mean())
    rows = [(13, "same seed, same initialisation", "the published code builds the model before it sets the seed",
             f"two seeds give {'different' if seeds_differ(model) else 'equal'} first weights here, one seed the same"),
            (14, "AdamW", "8-bit AdamW where that library imports", f"torch's AdamW, betas {train.beta1}, {train.beta2}"),
            (15, "cosine decay", "to 10 % of the peak", f"to {100 * train.final_lr:.0f} % of {train.lr:g}"),
            (18, "std over seeds", f"population formula; the sample's is {100 * (ratio - 1):.0f} % larger", "the sample's")]
    return pd.DataFrame(rows, columns=["audit row", "said", "found", "here"]).set_index("audit row")


def seeds_differ(model: Any) -> bool:
    """Whether the seed governs the initialisation: same seed, same weights; another seed, other weights."""
    import torch

    from lib.config import RunConfig
    from lib.model import build_model

    def first(seed: int) -> torch.Tensor:
        torch.manual_seed(7)                                    # the global stream must not matter
        run = RunConfig(PatternSpec.of("dense"), model, TrainConfig(seed=seed))
        return next(build_model(run).parameters()).detach()
    assert torch.equal(first(42), first(42)), "one seed gave two initialisations"
    return not torch.equal(first(42), first(43))


def say_best(table: pd.DataFrame) -> str:
    """Best and worst perplexity of a summary, and where dense stands."""
    mean = table["mean"]
    dense = ""
    if "Dense" in mean.index[1:]:
        times = table.loc["Dense", "pairs"] / table["pairs"].min()
        dense = f"; dense has {mean['Dense']:.2f} with {times:.0f} times the fewest pairs"
    return ordered(mean.to_dict(), "perplexity (mean over domains)")[:-1] + f"{dense}."


def say_domains(table: pd.DataFrame, domains: Sequence[str]) -> str:
    """Whether the domains agree on the best model."""
    best = {domain: table[domain].idxmin() for domain in domains}
    if len(set(best.values())) == 1:
        return f"{next(iter(best.values()))} has the lowest perplexity in every domain."
    listed = "; ".join(f"{domain} {name}" for domain, name in best.items())
    return f"The domains do not agree on the best model: {listed}."


def say_published_positions(gain: pd.DataFrame) -> str:
    """Is the published gain flat over bins of 128 positions?"""
    mean = gain.mean(axis=1)
    rest = mean.iloc[1:]
    return (f"Published: {mean.iloc[0]:.3f} nats in the first 128 positions, {rest.min():.3f} to {rest.max():.3f} in "
            f"the seven bins after it "
            f"(means over {gain.shape[1]} datasets).")
