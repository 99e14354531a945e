"""The summary of all notebooks' tables, one row a model series. From results/*.csv only."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lib.errors import SuiteError
from suite.experiments.base import COLUMNS
from suite.study.stats import ENOUGH_SEEDS, mean_interval

_NUMBERS = ["seed", "train_length", "train_tokens", "parameters", "pairs", "keys_per_query", "length", "position",
            "layer", "step", "value", "run_seconds", "run_tokens_per_s", "run_peak_memory_mib"]
_PART = ["position", "layer", "step"]                   # empty in a measure of whole windows after training
_LABELS = ["series", "role", "pattern", "family", "base", "schedule", "window", "setting"]
_SHOWN = ["experiment", "run", "series", "window", "setting"]        # a row of each is enough to list it
ROWS = 100_000          # of a table that are read at a time


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
    runs: tuple[tuple[int, str], ...]     # (seed, fingerprint), by seed
    perplexity: dict[str, float]          # by domain, mean over seeds (of the loss)
    mean: float                           # exp of the mean loss over domains and seeds
    spread: float | None                  # sample standard deviation over seeds of a run's mean; None with one seed
    interval: tuple[float, float] | None  # Student's, of the mean loss over seeds, as perplexities; from three seeds on

    @property
    def recipe(self) -> str:
        """What a series must share with another to be compared."""
        return (f"{self.train_tokens / 1e6:.2f} M tokens, windows of {self.train_length}, "
                f"{self.parameters / 1e6:.2f} M parameters")

    def comparable(self, other: "Series") -> bool:
        """The same text, training length and tokens, and a model of the same size within 2 %."""
        return ((self.train_length, self.train_tokens) == (other.train_length, other.train_tokens)
                and set(self.perplexity) == set(other.perplexity)
                and abs(self.parameters - other.parameters) <= 0.02 * other.parameters)


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
        # All is text at first: a fingerprint such as 12e4567... is no number.
        with pd.read_csv(path, dtype=str, keep_default_na=False, chunksize=ROWS) as parts:
            kept = []
            for part in parts:
                if missing := [column for column in COLUMNS if column not in part.columns]:
                    raise ValueError(f"no column {', '.join(missing)}")
                kept.append(_kept(part))
        table = _kept(pd.concat(kept, ignore_index=True)).reset_index(drop=True)
        return table.assign(**{name: pd.to_numeric(table[name].replace("", np.nan)) for name in _NUMBERS})
    except ValueError as error:
        raise SuiteError(f"{path}: {str(error).strip()}; delete the file and run the report again") from error


def _kept(table: pd.DataFrame) -> pd.DataFrame:
    """Of a table of text: before its numbers are read, since most rows go."""
    return table[_perplexity(table) & (table[_PART] == "").all(axis=1) | ~table.duplicated(_SHOWN)]


def _perplexity(table: pd.DataFrame) -> pd.Series:
    return (table["measure"] == "perplexity") & (table["variant"] == "") & (table["split"] != "")


def whole_windows(table: pd.DataFrame) -> pd.DataFrame:
    """The perplexities of the unchanged model after the last step, at any length (none: the training length)."""
    rows = table[_perplexity(table) & table[_PART].isna().all(axis=1)]
    return rows.assign(length=rows["length"].fillna(rows["train_length"]))


def perplexities(table: pd.DataFrame) -> pd.DataFrame:
    """One row a run and domain: perplexity of the unchanged model at its training length, after the last step."""
    rows = whole_windows(table)
    rows = rows[rows["length"] == rows["train_length"]]
    return rows.drop_duplicates(["run", "split"])           # an experiment that shares the run tells the same number


def series_of(table: pd.DataFrame) -> list[Series]:
    """All series with a perplexity; by recipe, best first. A shared run is named by the first notebook."""
    rows = perplexities(table)
    if rows.empty:
        return []
    first = rows.drop_duplicates("run").set_index("run")[_LABELS]
    texts = rows.groupby("run")["split"].agg(lambda domains: " ".join(sorted(domains))).rename("text")
    rows = rows.drop(columns=_LABELS).join(first, on="run").join(texts, on="run")
    alike = [*_LABELS, "train_length", "train_tokens", "parameters", "pairs", "text"]
    series = [_series(group) for _, group in rows.groupby(alike, sort=False)]
    return sorted(series, key=lambda s: (s.train_length, s.train_tokens, s.mean, s.name))


def _series(group: pd.DataFrame) -> Series:
    first, loss = group.iloc[0], np.log(group.set_index(["run", "split"])["value"])
    runs = group.drop_duplicates("run").sort_values("seed", kind="stable")
    losses = loss.groupby(level="run").mean().reindex(runs["run"]).tolist()             # mean over domains
    perplexity = {str(domain): float(np.exp(own)) for domain, own in loss.groupby(level="split").mean().items()}
    over_seeds = mean_interval([np.reshape(losses, (-1, 1))]) if len(losses) >= ENOUGH_SEEDS else None
    return Series(
        name=first["series"] or first["pattern"], settings=settings(first),
        pairs=float(first["pairs"]), keys_per_query=float(first["keys_per_query"]),
        **{name: first[name] for name in ("role", "family", "pattern")},
        **{name: int(first[name]) for name in ("parameters", "train_length", "train_tokens")},
        runs=tuple((int(seed), str(run)) for seed, run in zip(runs["seed"], runs["run"], strict=True)),
        perplexity=perplexity, mean=float(np.exp(np.mean(np.log(list(perplexity.values()))))),
        spread=float(np.std(np.exp(losses), ddof=1)) if len(losses) > 1 else None,
        interval=(float(np.exp(over_seeds.low)), float(np.exp(over_seeds.high))) if over_seeds else None)


def settings(row: pd.Series) -> str:
    """Window and the other settings that tell a series from its neighbours; base and schedule are in its name."""
    window = str(row["window"])
    if window.replace(".", "", 1).isdigit():
        window = f"{float(window):g}"
    return " ".join(filter(None, (f"W={window}" if window else "", str(row["setting"]))))


def groups(series: Sequence[Series]) -> list[list[Series]]:
    """Series that may be compared (`Series.comparable`)."""
    found: list[list[Series]] = []
    for one in series:
        group = next((group for group in found if one.comparable(group[0])), None)
        group.append(one) if group is not None else found.append([one])
    return found


def best(group: Sequence[Series], domain: str) -> float | None:
    """The lowest perplexity of a domain, whatever its name; None where the group was not evaluated on it."""
    return min((own.perplexity[domain] for own in group if domain in own.perplexity), default=None)
