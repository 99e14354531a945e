"""Questions to a tidy table (`suite.experiments.COLUMNS`): what a figure or a sentence needs of it, and nothing
else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import SuiteError, one_of


def unique_names(described: Sequence[tuple[str, Any, Any]]) -> list[str]:
    """A name for each (series, window, setting): the series, and what tells it from others of the same series."""
    windows: dict[str, set[Any]] = {}
    for series, window, _ in described:
        windows.setdefault(series, set()).add(window)
    parts = [(series, f"W={window:g}" if len(windows[series]) > 1 else "", setting or "")
             for series, window, setting in described]
    return [", ".join(filter(None, words)) for words in parts]


def named(runs: pd.DataFrame) -> pd.DataFrame:
    """The table with a column `name` (`unique_names`), thought of once for each model and not for each row."""
    described = pd.DataFrame({"series": runs["series"], "window": runs["window"].fillna(-1),
                              "setting": runs["setting"].fillna("")}, index=runs.index)
    which = described.groupby(list(described), sort=False).ngroup().to_numpy()
    names = unique_names(list(described.drop_duplicates().itertuples(index=False, name=None)))
    return runs.assign(name=np.array(names, dtype=object)[which])


def job_names(jobs: Sequence[Any]) -> list[str]:
    """The names that the rows of these jobs have in the table."""
    labels = [job.labels for job in jobs]
    return unique_names([(own.series, -1 if own.window is None else own.window, own.setting) for own in labels])


def select(runs: pd.DataFrame, measure: str, **where: Any) -> pd.DataFrame:
    """Rows of one measure at the end of training (`step` empty) that equal every value of `where`; never empty."""
    one_of(measure, set(runs["measure"].dropna()), "measure")
    rows = named(runs)
    rows = rows[rows["measure"] == measure]
    if "step" not in where:
        rows = rows[rows["step"].isna()]
    for column, value in where.items():
        if value is not any:
            rows = rows[rows[column] == value] if value is not None else rows[rows[column].isna()]
    if rows.empty:
        raise SuiteError(f"no {measure} with {where} in the table of {sorted(set(runs['experiment'].dropna()))}")
    return rows


def mean_loss(runs: pd.DataFrame, length: int | None = None, variant: str = "") -> pd.Series:
    """Nats a token by name: mean over held-out domains, then over seeds. `length`: the training length without one."""
    rows = select(runs, "nll", variant=variant, **({} if length is None else {"length": length}))
    if length is None:
        rows = rows[rows["length"] == rows["train_length"]]
    return rows.groupby("name")["value"].mean().sort_values()


def summary(runs: pd.DataFrame, length: int | None = None, variant: str = "") -> pd.DataFrame:
    """One row a model, best first: attended pairs, perplexity by domain, and `mean` (exp of the mean loss over
    domains)."""
    rows = select(runs, "nll", variant=variant, **({} if length is None else {"length": length}))
    if length is None:
        rows = rows[rows["length"] == rows["train_length"]]
    loss = rows.groupby(["name", "split"])["value"].mean().unstack()
    described = rows.groupby("name").agg(role=("role", "first"), pairs=("pairs", "mean"),
                                         keys_per_query=("keys_per_query", "mean"), parameters=("parameters", "first"))
    table = described.join(np.exp(loss)).assign(mean=np.exp(loss.mean(axis=1)))
    return table.sort_values("mean")


def by_position(runs: pd.DataFrame, length: int, variant: str = "") -> pd.DataFrame:
    """Loss of each bin of positions (nats): rows are first positions, columns names; mean over domains and seeds."""
    rows = select(runs, "position_nll", length=length, variant=variant)
    return rows.pivot_table(index="position", columns="name", values="value", aggfunc="mean")
