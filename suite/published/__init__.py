"""Numbers published with the Fibonacci paper (arxiv.org/abs/2606.28560, experiment database), and ours beside them.

They were measured at 426 M training tokens of other text with another tokeniser and a model of 61 M parameters:
the order and the size of differences can be compared with ours, the perplexities themselves cannot.
"""

from __future__ import annotations

from functools import lru_cache

import pandas as pd

from lib import paths
from lib.errors import one_of
from suite.experiments.common import BASES, SCHEDULES

FILES = ("battery", "cost", "length_extrapolation", "perplexity", "position_loss", "retrieval_probe", "training_curves")
REMARK = ("Published: 61 M parameters, 426 M tokens of web text, T = 1024, another tokeniser. "
          "Compare differences and directions, not perplexities.")
# What the paper's database calls a schedule, and what the suite does.
_SCHEDULES = {"staggered": "linear", "fixed": "fixed", "learned": "learned", "coprime": "coprime", "dense": "dense"}


@lru_cache(maxsize=None)
def _read(name: str) -> pd.DataFrame:
    return pd.read_csv(paths.PUBLISHED / f"{one_of(name, FILES, 'published table')}.csv")


def read(name: str) -> pd.DataFrame:
    """A published table, with the suite's names of schedules and a `series` column where rows are models."""
    table = _read(name).copy()
    if "schedule" in table:
        table["schedule"] = table["schedule"].map(_SCHEDULES)
        table["series"] = list(map(series, table["base"], table["schedule"]))
    return table


def series(base: str, schedule: str) -> str:
    """The name that the suite's figures give to a published model."""
    return "Dense" if base == "dense" else f"{BASES[base]}, {SCHEDULES[schedule]}"


def perplexities(window: int | None = None, seed: int = 42) -> pd.DataFrame:
    """Published perplexity: one row a (series, window), one column a dataset."""
    table = read("perplexity")
    table = table[table["seed"] == seed]
    if window is not None:
        table = table[table["window"] == window]
    return table.pivot_table(index=["series", "window"], columns="dataset", values="perplexity")


def degradation(dataset: str = "fineweb_edu") -> pd.DataFrame:
    """Published perplexity by length, and its change from the training length, in per cent, at the longest."""
    table = read("length_extrapolation").query("dataset == @dataset")
    wide = table.assign(window=table["window"].fillna(-1)).pivot_table(
        index=["series", "window"], columns="eval_length", values="perplexity")
    wide["change, %"] = 100 * (wide[wide.columns[-1]] / wide[wide.columns[0]] - 1)
    return wide


def relative_to(table: pd.Series, reference: object) -> pd.Series:
    """Each value against that of `reference`, in per cent: what can be compared across corpora."""
    return 100 * (table / table.loc[reference] - 1)


def spread_over_seeds() -> pd.DataFrame:
    """Published W = 12 replicates: mean over seeds, and both formulas of the standard deviation (audit row 18)."""
    table = read("perplexity").query("window == 12")
    replicated = table.groupby(["series", "dataset"]).filter(lambda g: g["seed"].nunique() > 1)
    found = replicated.groupby(["series", "dataset"])["perplexity"].agg(
        seeds="count", mean="mean", population_std=lambda v: v.std(ddof=0), sample_std=lambda v: v.std(ddof=1))
    return found.reset_index()


def learned_cost() -> float:
    """Published training time of learned runs over that of fixed ones, a mean over windows."""
    seconds = read("cost").groupby(["base", "schedule"])["wall_seconds"].mean()
    return float(seconds["fibonacci", "learned"] / seconds["fibonacci", "fixed"])


def dense_inference() -> float:
    """Published inference speed of dense attention over that of fixed keys, means over models."""
    rates = read("battery").query("metric == 'tokens_per_sec_infer'")
    dense, learned = rates["schedule"] == "dense", rates["schedule"] == "learned"
    return float(rates.loc[dense, "value"].mean() / rates.loc[~dense & ~learned, "value"].mean())


def marked_cells() -> pd.DataFrame:
    """Each cell of the published two-distance probe: mechanism, depth, start, seed, distance, accuracy, alphas."""
    table = read("retrieval_probe").query("experiment == 'marked' and kind == 'target'")
    columns = ["mechanism", "depth", "staggered_init", "seed", "distance", "accuracy", "alphas"]
    return table[columns].reset_index(drop=True)
