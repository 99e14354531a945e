"""The summary of all notebooks' tables, one row a model series. From results/*.csv only."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib.errors import SuiteError
from suite.experiments.base import COLUMNS

_NUMBERS = ("seed", "train_length", "train_tokens", "parameters", "pairs", "keys_per_query", "length", "position", "layer",
            "step", "value", "run_seconds", "run_tokens_per_s", "run_peak_memory_mib")
_LABELS = ["series", "role", "pattern", "family", "base", "schedule", "window", "setting"]
_SHOWN = ["experiment", "run", "series", "window", "setting"]        # a row of each is enough to list it
ROWS = 100_000          # of a table that are read at a time
_RECIPE = ["train_length", "train_tokens"]


@dataclass(frozen=True)
class Series:
    """Runs that differ in their seed only. Perplexities are at the training length, on held-out text."""
    name: str
    role: str
    family: str
    pattern: str
    settings: str
    pairs: float                          # attended (query, key) pairs of one training window, over all layers
    keys_per_query: float
    parameters: int
    train_length: int
    train_tokens: int
    tokens_per_s: float                   # mean over the runs
    seeds: tuple[int, ...]
    runs: tuple[str, ...]                 # fingerprints, in the order of the seeds
    perplexity: dict[str, float]          # by domain, mean over seeds (of the loss)
    mean: float                           # exp of the mean loss over domains and seeds
    spread: float | None                  # sample standard deviation over seeds of a run's mean; None with one seed
    notebooks: tuple[str, ...]


def read_tables(folder: Path, notebooks: Iterable[str]) -> pd.DataFrame:
    """What the page needs of the tidy tables of `notebooks`, in their order: every perplexity of a whole window after
    training, and of each run of a series its first row. A notebook without a table adds nothing.

    So a page of thousands of runs needs no memory for their millions of other rows, which are read in parts.
    Raises `SuiteError` if a file lacks a column or holds text where a number belongs.
    """
    frames = [_read(path) for name in notebooks if (path := folder / f"{name}.csv").exists()]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(COLUMNS))


def _read(path: Path) -> pd.DataFrame:
    try:
        # A fingerprint such as 12e4567... is no number.
        with pd.read_csv(path, dtype=str, keep_default_na=False, chunksize=ROWS) as parts:
            table = _kept(pd.concat([_kept(_complete(part, path)) for part in parts], ignore_index=True))
        numbers = {name: pd.to_numeric(table[name].replace("", np.nan)) for name in _NUMBERS}
        return table.assign(**numbers).reset_index(drop=True)
    except SuiteError:
        raise
    except ValueError as error:
        raise SuiteError(f"{path}: {str(error).strip()}; delete the file and run the report again") from error


def _complete(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    missing = [column for column in COLUMNS if column not in table.columns]
    if missing:
        raise SuiteError(f"{path}: no column {', '.join(missing)}; delete the file and run the report again")
    return table


def _kept(table: pd.DataFrame) -> pd.DataFrame:
    """Of a table of text: before its numbers are read, since most rows go."""
    whole = (table[["position", "layer", "step"]] == "").all(axis=1)
    return table[_perplexity(table) & whole | ~table.duplicated(_SHOWN)]


def _perplexity(table: pd.DataFrame) -> pd.Series:
    return (table["measure"] == "perplexity") & (table["variant"] == "") & (table["split"] != "")


def whole_windows(table: pd.DataFrame) -> pd.Series:
    """Which rows are perplexities of the unchanged model after the last step, at any length."""
    return _perplexity(table) & table[["position", "layer", "step"]].isna().all(axis=1)


def perplexities(table: pd.DataFrame) -> pd.DataFrame:
    """One row a run and domain: perplexity of the unchanged model at its training length, after the last step."""
    at_length = table["length"].isna() | (table["length"] == table["train_length"])
    rows = table[whole_windows(table) & at_length]
    return rows.drop_duplicates(["run", "split"])           # an experiment that shares the run tells the same number


def series_of(table: pd.DataFrame) -> list[Series]:
    """All series that have a perplexity; by recipe, best first. A shared run is called what the first notebook calls it."""
    rows = perplexities(table)
    if rows.empty:
        return []
    labels = rows.drop_duplicates("run").set_index("run")[_LABELS]
    rows = rows.drop(columns=_LABELS).join(labels, on="run")
    rows = rows.join(rows.groupby("run")["split"].agg(lambda own: " ".join(sorted(own))).rename("text"), on="run")
    notebooks = table.groupby("run")["experiment"].unique()
    alike = [*_LABELS, *_RECIPE, "parameters", "pairs", "text"]
    found = [_series(group, notebooks) for _, group in rows.groupby(alike, sort=False)]
    return sorted(found, key=lambda s: (s.train_length, s.train_tokens, s.mean, s.name))


def _series(group: pd.DataFrame, notebooks: pd.Series) -> Series:
    first = group.iloc[0]
    runs = group.drop_duplicates("run").sort_values("seed", kind="stable")
    loss = np.log(group.set_index(["run", "split"])["value"])
    by_run = np.exp(loss.groupby(level="run").mean()).reindex(runs["run"]).tolist()
    by_domain = np.exp(loss.groupby(level="split").mean())
    return Series(
        name=first["series"] or first["pattern"], role=first["role"], family=first["family"], pattern=first["pattern"],
        settings=settings(first), pairs=float(first["pairs"]), keys_per_query=float(first["keys_per_query"]),
        parameters=int(first["parameters"]), train_length=int(first["train_length"]),
        train_tokens=int(first["train_tokens"]), tokens_per_s=float(runs["run_tokens_per_s"].mean()),
        seeds=tuple(int(s) for s in runs["seed"]), runs=tuple(runs["run"]),
        perplexity={str(k): float(v) for k, v in by_domain.items()}, mean=float(np.exp(by_domain.map(np.log).mean())),
        spread=statistics.stdev(by_run) if len(by_run) > 1 else None,
        notebooks=tuple(sorted({name for run in runs["run"] for name in notebooks[run]})))


def settings(row: pd.Series) -> str:
    """Window and the other settings that tell a series from its neighbours; base and schedule are in its name."""
    window = str(row["window"])
    if window:
        window = f"W={float(window):g}" if window.replace(".", "", 1).isdigit() else f"W={window}"
    return " ".join(part for part in (window, str(row["setting"])) if part)


def domains(series: Sequence[Series]) -> list[str]:
    """Held-out domains in the order in which they first appear."""
    return list(dict.fromkeys(domain for s in series for domain in s.perplexity))


def without_perplexity(table: pd.DataFrame) -> int:
    """How many runs have no perplexity on text: models of synthetic tasks, which their own sections show."""
    return len(set(table["run"]) - set(perplexities(table)["run"]) - {""})


def recipes(series: Sequence[Series]) -> list[list[Series]]:
    """Series that may be compared: the same text, training length and tokens, and a model of the same size within 2 %."""
    groups: list[list[Series]] = []
    for one in series:
        for group in groups:
            like = group[0]
            if (one.train_length, one.train_tokens) == (like.train_length, like.train_tokens) \
                    and set(one.perplexity) == set(like.perplexity) \
                    and abs(one.parameters - like.parameters) <= 0.02 * like.parameters:
                group.append(one)
                break
        else:
            groups.append([one])
    return groups
