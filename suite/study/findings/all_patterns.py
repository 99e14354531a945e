"""Notebook 8: every pattern at equal pairs: its perplexity, cost and properties, its loss beside the local window."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from lib.patterns import Pattern
from suite.plan.cost import attention_training_flops, training_flops
from suite.study import graph
from suite.study.frames import Model, Study
from suite.study.stats import corrected_signs, holm

WORDS = {"below": "lower loss", "above": "higher loss", "undecided": "not told apart"}


def short(name: str) -> str:
    """A name in a figure where all models have equal pairs."""
    return name.replace(", equal edges", "")


def sparse(study: Study) -> dict[str, Pattern]:
    """The pattern of each sparse model, by its name."""
    return {model.name: model.pattern for model in study.language_models if model.labels.role != "baseline"}


def overview(study: Study, lengths: Sequence[int]) -> pd.DataFrame:
    """One row a model, best first at the first length: keys a query, perplexity by length, and what it costs.

    Counted: the attention's operations of a training token, forward and backward, in millions, and their share of the
    whole model's. Measured: training tokens a second, one thread, while other runs trained beside it.
    """
    rows = []
    for model in study.language_models:
        attention = attention_training_flops(model.run, model.pairs)
        rows.append({"name": model.name, "role": model.labels.role,
                     "keys a query": model.pairs / (model.run.model.layers * model.length),
                     "attention, Mflop a token": attention / 1e6,
                     "attention's share, %": 100 * attention / training_flops(model.run, model.pairs, tokens=1)})
    table = pd.DataFrame(rows).set_index("name")
    speeds = study.rows("nll", length=lengths[0]).groupby("name")["run_tokens_per_s"].mean()
    table.insert(2, "tokens/s", speeds)
    for length in lengths:
        table[f"perplexity at {length}"] = np.exp(study.losses(length))
    return table.sort_values(f"perplexity at {lengths[0]}")


def by_domain(study: Study, reference: Model) -> pd.DataFrame:
    """`Study.against` by held-out domain: rows are models, best mean first; a cell is the estimate and whether it is
    told from zero, corrected by Holm over the patterns of its domain."""
    tables = {domain: study.against(reference, domains=[domain]) for domain in study.database.corpus.domains}
    cells = pd.DataFrame({domain: pd.Series([(estimate, sign != "undecided") for estimate, sign
                                             in zip(own["estimate"], corrected_signs(own), strict=True)], own.index)
                          for domain, own in tables.items()})
    return cells.loc[cells.map(lambda cell: cell[0]).mean(axis=1).sort_values().index]


def standing(study: Study, tables: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """How many sparse patterns have a lower or a higher loss than the reference, and which: a row a length of `tables`
    (each of `Study.against`), corrected by Holm within it."""
    rows = []
    for length, table in tables.items():
        rivals = table[table.index.isin(sparse(study))]
        signs = corrected_signs(rivals)
        lower = [short(name) for name, sign in zip(rivals.index, signs, strict=True) if sign == "below"]
        rows.append({"length": length, "patterns": len(rivals), "whose is lower": "; ".join(lower),
                     **{words: signs.count(sign) for sign, words in WORDS.items()}})
    return pd.DataFrame(rows).set_index("length")


def head_counts(pattern: Pattern, length: int) -> np.ndarray:
    """Attended pairs at each distance d of every layer and head, int64 `[L, H, T]`, counted in the masks."""
    masks = [pattern.mask(layer, length) for layer in range(pattern.layers)]
    return np.array([[np.bincount(np.subtract(*head.nonzero()), minlength=length) for head in heads]
                     for heads in masks])


def properties(patterns: Mapping[str, Pattern], length: int, window: int) -> pd.DataFrame:
    """What a causal pattern is like, one row a pattern: columns that might predict its loss."""
    rows = []
    for name, pattern in patterns.items():
        by_head = head_counts(pattern, length)
        counts = by_head.sum(axis=(0, 1))
        hops = [graph.diameter(pattern, layer, length) or np.inf for layer in range(pattern.layers)]
        rows.append({"name": name, "mean distance, tokens": counts @ np.arange(length) / counts.sum(),
                     f"share of keys at distances up to {window}": counts[:window + 1].sum() / counts.sum(),
                     "keys a query of the narrowest head": by_head.sum(axis=-1).min() / length,
                     "distinct distances of the stack": len(graph.stack_distances(pattern, length)),
                     "share of pairs that the stack connects": graph.reach_by_depth(pattern, length)[-1],
                     "diameter of a layer, mean": float(np.mean(hops))})
    return pd.DataFrame(rows).set_index("name")


def predictors(table: pd.DataFrame, loss: pd.Series) -> pd.DataFrame:
    """Spearman's correlation of each property with the loss over patterns, and its p value corrected by Holm."""
    loss = loss.reindex(table.index)
    varied = [column for column in table if table[column].nunique() > 1 and loss.nunique() > 1 and len(table) > 3]
    tests = [spearmanr(table[column], loss) for column in varied]
    return pd.DataFrame({"Spearman": [test.statistic for test in tests],
                         "p, Holm": holm([test.pvalue for test in tests])}, index=varied)
