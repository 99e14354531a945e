"""Notebook 8: all patterns at equal pairs: their loss in and beyond the training length, their cost, and what predicts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from lib.patterns import EdgeTable, Pattern
from lib.patterns.base import offsets_of
from suite.plan.cost import attention_training_flops, training_flops
from suite.study import graph
from suite.study.conclusions import corrected_signs, listing
from suite.study.findings.shared import interval, row, stack_of
from suite.study.losses import Losses
from suite.study.stats import LEVEL, holm, seed_words
from suite.study.tables import job_names, mean_loss, named

EQUAL = ", equal edges"
RANK = "rank of the loss, 1 lowest"


def short(name: str) -> str:
    """A name in a figure where all models have equal edges."""
    return name.replace(EQUAL, "")


def shortened(table: pd.DataFrame) -> pd.DataFrame:
    return table.rename(index=short)


def head_counts(pattern: Pattern, length: int) -> np.ndarray:
    """Attended pairs at each distance d of every layer and head, float64 `[L, H, T]`."""
    counts, i = np.zeros((pattern.layers, pattern.heads, length)), np.arange(length)
    for layer in range(pattern.layers):
        plan = pattern.plan(layer, length)
        for head in range(pattern.heads):
            if isinstance(plan, EdgeTable):
                keys = plan.keys if plan.keys.ndim == 2 else plan.keys[head]                     # (T, C)
                counts[layer, head] = np.bincount((i[:, None] - keys)[keys >= 0], minlength=length)
                continue
            offsets = offsets_of(plan, head)
            near = np.array(offsets.distances)
            counts[layer, head, near] += length - near
            for leading in range(offsets.leading):                                              # what no distance reaches
                counts[layer, head, np.setdiff1d(i[:length - leading], near)] += 1
    return counts


def distance_counts(pattern: Pattern, length: int) -> np.ndarray:
    """Attended pairs at each distance d, float64 `[T]`: summed over layers, a mean over heads."""
    return head_counts(pattern, length).sum(axis=0).mean(axis=0)


def properties(patterns: Mapping[str, Pattern], length: int, window: int) -> pd.DataFrame:
    """What a pattern is like, one row a pattern: columns that might predict its loss."""
    rows = []
    for name, pattern in patterns.items():
        by_head, at = head_counts(pattern, length), np.arange(length)
        counts = by_head.sum(axis=(0, 1))
        hops = [graph.diameter(pattern, layer, length) or np.inf for layer in range(pattern.layers)]
        rows.append({"name": name, "mean distance, tokens": counts @ at / counts.sum(),
                     f"share of keys at distances up to {window}": counts[:window + 1].sum() / counts.sum(),
                     "keys a query of the narrowest head": by_head.sum(axis=-1).min() / length,
                     "distinct distances of the stack": len(graph.stack_distances(pattern, length)),
                     "share of pairs that the stack connects": graph.reach_by_depth(pattern, length)[-1],
                     "diameter of a layer, mean": float(np.mean(hops))})
    return pd.DataFrame(rows).set_index("name")


def predictors(table: pd.DataFrame, loss: pd.Series) -> pd.DataFrame:
    """Spearman's correlation of each property with the loss over patterns, and its p value corrected by Holm."""
    own = table.join(loss.rename("loss"), how="inner")
    kept = [column for column in table if own[column].nunique() > 1 and own["loss"].nunique() > 1 and len(own) > 3]
    found = [spearmanr(own[column], own["loss"]) for column in kept]
    return pd.DataFrame({"Spearman": [f.statistic for f in found], "p, Holm": holm([f.pvalue for f in found])}, index=kept)


def ranks(table: pd.DataFrame, loss: pd.Series, roles: pd.Series) -> pd.DataFrame:
    """The properties beside each model's role and the rank of its loss, 1 the lowest: what the correlation sees."""
    return table.assign(role=roles, **{RANK: loss.loc[table.index].rank()})


def say_predictors(table: pd.DataFrame, count: int, length: int) -> str:
    """Which properties go with a low loss."""
    sure = table[table["p, Holm"] < 1 - LEVEL].sort_values("Spearman", key=abs, ascending=False)
    if sure.empty:
        strongest = f" (strongest: {table['Spearman'].abs().idxmax()})" if len(table) else ""
        return f"At {length} tokens no property predicts the loss of the {count} sparse patterns{strongest}."
    said = [f"{name} ({'higher' if r['Spearman'] > 0 else 'lower'} loss with more of it, Spearman {r['Spearman']:+.2f})"
            for name, r in sure.iterrows()]
    return f"Over {count} sparse patterns the loss at {length} tokens goes with {listing(said)}; p below 0.05 after Holm."


def overview(runs: pd.DataFrame, jobs: Sequence[Any], lengths: Sequence[int]) -> pd.DataFrame:
    """One row a model, best first at the training length: keys a query, perplexity by length, and what it costs.

    Counted: the attention's operations of a training token, forward and backward, in millions, and their share of the whole
    model's. Measured: training tokens a second, one thread, while other runs trained beside it.
    """
    table = named(runs).groupby("name").agg(role=("role", "first"), keys=("keys_per_query", "mean"), pairs=("pairs", "mean"),
                                            speed=("run_tokens_per_s", "mean"))
    for length in lengths:
        table[perplexity_at(length)] = np.exp(mean_loss(runs, length))
    of = {name: job.run for name, job in zip(job_names(jobs), jobs, strict=True)}
    own = {name: attention_training_flops(of[name], table.loc[name, "pairs"], tokens=1) for name in table.index}
    whole = {name: training_flops(of[name], table.loc[name, "pairs"], tokens=1) for name in table.index}
    table["attention, Mflop a token"] = pd.Series(own) / 1e6
    table["attention's share, %"] = 100 * pd.Series(own) / pd.Series(whole)
    table = table.drop(columns="pairs").rename(columns={"keys": "keys a query", "speed": "tokens/s"})
    return table.sort_values(perplexity_at(lengths[0]))


def perplexity_at(length: int) -> str:
    return f"perplexity at {length}"


def say_ranks(table: pd.DataFrame, lengths: Sequence[int], local: str, ramp: str) -> str:
    """Who is first among the sparse ones, and where the local window and the ramp stand."""
    sparse = table[table["role"] != "baseline"]
    said = []
    for length in lengths:
        ranked = sparse[perplexity_at(length)].sort_values()
        places = [f"{name} is number {ranked.index.get_loc(name) + 1}" for name in (local, ramp) if name in ranked.index[1:]]
        said.append(f"at {length} tokens the lowest perplexity of {len(ranked)} sparse patterns has {ranked.index[0]} "
                    f"({ranked.iloc[0]:.2f}){'; ' if places else ''}{' and '.join(places)}")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def by_domain(losses: Losses, reference: str, names: Iterable[str], domains: Sequence[str], length: int) -> pd.DataFrame:
    """Loss minus that of `reference` by held-out domain, with intervals; rows are models, `group` is the domain."""
    return pd.DataFrame([row(losses.difference(name, reference, length=length, domains=(domain,)), name=name, group=domain)
                         for domain in domains for name in names]).set_index("name")


def domain_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Models by domain, in order of their mean difference: a pair of the estimate and whether its interval leaves 0 out."""
    cells = pd.Series(list(zip(table["estimate"], [interval(r).sign() != "undecided" for _, r in table.iterrows()],
                               strict=True)), index=[table.index.map(short), table["group"]])
    order = table.groupby(table.index.map(short))["estimate"].mean().sort_values().index
    return cells.unstack(sort=False).loc[order]


def say_domains(table: pd.DataFrame, reference: str, named_at_most: int = 3) -> str:
    """By domain: how many patterns have a lower loss than the reference, corrected over all patterns of it, and the best."""
    said = []
    for domain, own in table.groupby("group", sort=False):
        signs = corrected_signs([interval(r) for _, r in own.iterrows()])
        better = own["estimate"][[sign == "below" for sign in signs]].sort_values()
        first = listing([f"{short(name)} ({value:+.3f})" for name, value in better.head(named_at_most).items()])
        most = "the lowest: " if len(better) > named_at_most else ""
        said.append(f"{domain}: {len(better)} of {len(own)}{f' ({most}{first})' if len(better) else ''}")
    return f"Models with a lower loss than {reference} by domain, Holm-corrected within each — {'; '.join(said)}."


def say_answer(tables: Mapping[int, pd.DataFrame], roles: Mapping[str, str], reference: str) -> str:
    """The closing sentence: at each length, how many patterns are better than the local window, and whose they are."""
    said = []
    for length, table in tables.items():
        own = table[[roles[name] != "baseline" for name in table.index]]
        signs = pd.Series(corrected_signs([interval(r) for _, r in own.iterrows()]), index=own.index)
        better = signs.index[signs == "below"]
        proposed = sum(roles[name] == "model" for name in better)
        told = f" ({listing(list(map(short, better)))}), {proposed} of them a document's proposal" if len(better) else ""
        said.append(f"at {length} tokens {len(better)} of {len(own)} patterns have a lower loss than {short(reference)}{told}"
                    f", and {int((signs == 'above').sum())} a higher one")
    seeds = seed_words(int(min(table["seeds"].min() for table in tables.values())))
    note = ", ".join(filter(None, ["equal attended pairs", "Holm-corrected at each length", seeds]))
    text = "; ".join(said)
    return f"**Which keys?** {text[0].upper()}{text[1:]} ({note})."


def sparse(jobs: Sequence[Any]) -> dict[str, Pattern]:
    """Each sparse model's pattern by its name."""
    return {name: stack_of(job.run) for name, job in zip(job_names(jobs), jobs, strict=True)
            if job.labels.role != "baseline"}


def say_cost(table: pd.DataFrame) -> str:
    """Counted and measured cost of the sparse models, and what dense attention costs beside them."""
    sparse_ones, dense = table[table["role"] != "baseline"], table[table["role"] == "baseline"]
    speed = sparse_ones["tokens/s"].sort_values()
    flops = "attention, Mflop a token"
    text = (f"Measured in training, the fastest of {len(speed)} sparse patterns is {short(speed.index[-1])} "
            f"({speed.iloc[-1]:,.0f} tokens/s), the slowest {short(speed.index[0])} ({speed.iloc[0]:,.0f})")
    if len(dense):
        text += (f"; dense attention trains {dense['tokens/s'].iloc[0]:,.0f} tokens/s and counts "
                 f"{dense[flops].iloc[0] / sparse_ones[flops].mean():.1f} times their attention operations")
    return f"{text}. Speeds are of one thread beside other runs; notebook 7 measures them alone."
