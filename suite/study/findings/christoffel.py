"""Notebook 5: the words as offsets, what masks reach, and the tables behind its figures."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lib.patterns import Pattern
from lib.patterns.christoffel import carry_word, coprime_neighbours
from suite.study import graph
from suite.study.frames import Model, Study


def offsets(m: int, k: int, window: int = 0) -> list[int]:
    """Distances of one period of the word m/k, the query itself and a window included."""
    return sorted({*range(window + 1), *np.flatnonzero(carry_word(m, k)).tolist()})


def residue_table(words: Mapping[str, tuple[int, int]], modulus: int = 8) -> pd.DataFrame:
    """Audit row 22: gcd, period, gaps and residue classes of each word."""
    rows = []
    for name, (m, k) in words.items():
        ones = np.flatnonzero(carry_word(m, k))
        rows.append({"word": name, "gcd": math.gcd(m, k), "period": k // math.gcd(m, k),
                     "gaps": ", ".join(map(str, np.unique(np.diff(ones)))),
                     f"residues mod {modulus}": len(set(ones % modulus)),
                     "coprime neighbours": str(coprime_neighbours(m, k))})
    return pd.DataFrame(rows).set_index("word")


def residue_counts(patterns: Mapping[str, Pattern], length: int, modulus: int = 8) -> dict[str, pd.Series]:
    """How many distances of the first layer fall into each residue class; the query itself left out."""
    distances = {name: np.array(graph.layer_distances(pattern, 0, length)) for name, pattern in patterns.items()}
    return {name: pd.Series(np.bincount(d[d != 0] % modulus, minlength=modulus)) for name, d in distances.items()}


def document_reach(depth: int = 4, length: int = 2048) -> pd.DataFrame:
    """Audit row 24 at the document's size, for masks of 64 keys of 512 (or near): the share of the distances below
    `length` that are sums of 1, 2, ... `depth` of a mask's (0 is one of them). Rows are depths, columns masks."""
    random = np.random.default_rng(0).choice(np.arange(1, 512), 64, replace=False)
    masks = {"Christoffel 64/512 (stride 8)": offsets(64, 512), "Christoffel 63/512": offsets(63, 512),
             "Christoffel 61/512": offsets(61, 512), "Christoffel 55/512, W=8": offsets(55, 512, window=8),
             "Random offsets, 64 of 512": [0, *random.tolist()], "Local window, W=64": range(65)}
    return by_layers({name: graph.reachable_distances([mask] * depth, length) for name, mask in masks.items()})


def by_layers(reached: Mapping[str, np.ndarray]) -> pd.DataFrame:
    shares = pd.DataFrame({name: rows.mean(axis=1) for name, rows in reached.items()})
    return shares.drop(index=0).rename_axis("layers")


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


def cost_table(study: Study) -> pd.DataFrame:
    """Counted memory of the scores and the operations of attention, by language model."""
    table = study.rows("attention_memory_ratio").groupby("name")[["value", "keys_per_query"]].mean()
    return table.set_axis(["score memory, dense / mask", "keys a query"], axis=1).sort_values(
        "score memory, dense / mask", ascending=False)
