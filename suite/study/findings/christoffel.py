"""Notebook 5: the words as offsets, what masks reach, and the tables behind its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lib.patterns import Pattern
from lib.patterns.christoffel import carry_word, coprime_neighbours
from suite.study import graph
from suite.study.frames import Model, Study
from suite.study.tables import select

DOCUMENT_LENGTH = 2048


def offsets(m: int, k: int, length: int | None = None, window: int = 0) -> tuple[int, ...]:
    """Distances of the word m/k, its period repeated over `length`, the query itself and a window included."""
    word = carry_word(m, k, length)
    return tuple(sorted({*range(window + 1), *(o for o, carry in enumerate(word) if carry)}))


def residue_table(words: Mapping[str, tuple[int, int]], modulus: int = 8) -> pd.DataFrame:
    """Audit row 22: gcd, period, gaps and residue classes of each word."""
    rows = []
    for name, (m, k) in words.items():
        ones = [o for o, carry in enumerate(carry_word(m, k)) if carry]
        gaps = sorted({b - a for a, b in zip(ones[:-1], ones[1:], strict=True)})
        rows.append({"word": name, "gcd": math.gcd(m, k), "period": k // math.gcd(m, k),
                     "gaps": ", ".join(map(str, gaps)), f"residues mod {modulus}": len({o % modulus for o in ones}),
                     "coprime neighbours": str(coprime_neighbours(m, k))})
    return pd.DataFrame(rows).set_index("word")


def residue_counts(patterns: Mapping[str, Pattern], length: int, modulus: int = 8) -> dict[str, pd.Series]:
    """How many distances of the first layer fall into each residue class; the query itself left out."""
    def counts(pattern: Pattern) -> pd.Series:
        distances = [d for d in graph.layer_distances(pattern, 0, length) if d]
        return pd.Series(graph.residues(distances, modulus), index=range(modulus))
    return {name: counts(pattern) for name, pattern in patterns.items()}


def reach(distances: Sequence[int], depth: int, length: int) -> list[float]:
    """Share of the distances 0 ... length - 1 that are sums of 1, 2, ... depth of `distances` (0 is one of them)."""
    return graph.reachable_distances([distances] * depth, length)[1:].mean(axis=1).tolist()


def document_reach(depth: int = 4, length: int = DOCUMENT_LENGTH, seed: int = 0) -> pd.DataFrame:
    """Audit row 24 at the document's size: rows are depths, columns masks of 64 keys of 512 (or near)."""
    random = np.random.default_rng(seed).choice(np.arange(1, 512), 64, replace=False)
    masks = {"Christoffel 64/512 (stride 8)": offsets(64, 512), "Christoffel 63/512": offsets(63, 512),
             "Christoffel 61/512": offsets(61, 512), "Christoffel 55/512, W=8": offsets(55, 512, window=8),
             "Random offsets, 64 of 512": (0, *random.tolist()), "Local window, W=64": tuple(range(65))}
    return pd.DataFrame({name: reach(distances, depth, length) for name, distances in masks.items()},
                        index=pd.Index(range(1, depth + 1), name="layers"))


def stack_reach(patterns: Mapping[str, Pattern], length: int) -> pd.DataFrame:
    """The same for the masks trained here, layer after layer, each layer with its own offsets."""
    shares = {name: graph.stack_sums(pattern, length)[1:].mean(axis=1) for name, pattern in patterns.items()}
    return pd.DataFrame(shares).rename(index=lambda layer: layer + 1).rename_axis("layers")


def at_window(study: Study, window: int) -> dict[str, Model]:
    """The language models with a window W beside their word or control, and dense, by the name without W."""
    models = [model for model in study.language_models if model.labels.window in (None, window)]
    return {", ".join(filter(None, (model.labels.series, model.labels.setting))): model for model in models}


def by_window(study: Study, windows: Sequence[int]) -> dict[str, pd.DataFrame]:
    """`Study.against` the local window of equal edges, one table a window W."""
    tables = {}
    for window in windows:
        models = at_window(study, window)
        short = {model.name: name for name, model in models.items()}
        tables[f"W = {window}"] = study.against(study.reference(window), models.values()).rename(index=short)
    return tables


def gradient_norms(study: Study) -> pd.DataFrame:
    """Norm of the loss's gradient by layer at the end of training (mean over seeds): rows are layers, columns
    models."""
    return select(study.table, "gradient_norm").pivot_table(index="layer", columns="name", values="value")


def cost_table(study: Study) -> pd.DataFrame:
    """Counted memory of the scores and the operations of attention, by language model."""
    rows = select(study.table, "attention_memory_ratio")
    columns = {"score memory, dense / mask": ("value", "mean"), "keys a query": ("keys_per_query", "mean")}
    table = rows.groupby("name").agg(**columns)
    return table.sort_values("score memory, dense / mask", ascending=False)
