"""Notebook 1: published perplexities, training curves and spread over seeds beside ours, all against fixed rungs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from suite import published
from suite.study.conclusions import listing
from suite.study.findings.shared import find, has
from suite.study.findings.window_sweep import FIXED
from suite.study.losses import Losses
from suite.study.stats import Interval, sample_std, seed_words
from suite.study.tables import by_step, select

TOKENS_A_STEP = 32_768          # of the published runs
PAPER_WINDOWS = (6, 8, 10, 12)


def published_window(window: int) -> int:
    """The published window that is put beside ours: the same where the paper has it, else 8."""
    return window if window in PAPER_WINDOWS else 8


def beside_published(runs: pd.DataFrame, losses: Losses, window: int) -> pd.DataFrame:
    """Perplexity against fixed rungs, per cent: published (mean over datasets, one seed) and ours (mean over domains, with the
    interval over windows), and the difference of the two in percentage points."""
    table = published.perplexities(published_window(window)).reset_index("window", drop=True)
    theirs = np.exp(np.log(table).mean(axis=1))
    relative = published.relative_to(theirs, FIXED) if FIXED in theirs else theirs * np.nan
    rows = []
    for series in theirs.index:
        own = against_fixed(runs, losses, series, window)
        rows.append({"series": series, "published perplexity": theirs[series], "published, %": relative[series],
                     "ours, %": own.estimate, "low": own.low, "high": own.high, "seeds": own.seeds,
                     "ours - published": own.estimate - relative[series]})
    return pd.DataFrame(rows).set_index("series").sort_values("published perplexity")


def against_fixed(runs: pd.DataFrame, losses: Losses, series: str, window: int) -> Interval:
    """Perplexity of a series against that of fixed rungs, in per cent, with its interval; nan where it was not trained."""
    if series == FIXED or not has(runs, series, FIXED):
        nothing = 0.0 if series == FIXED and has(runs, FIXED) else float("nan")
        return Interval(nothing, nothing, nothing, 0)
    found = losses.difference(find(runs, series, window), find(runs, FIXED, window))
    ends = (100 * float(np.expm1(value)) for value in (found.estimate, found.low, found.high))
    return Interval(*ends, found.count, found.seeds)


def directions(ours: pd.DataFrame, theirs: pd.Series) -> dict[str, list[str]]:
    """Which series have the published direction, the opposite one, or an interval that holds 0."""
    found: dict[str, list[str]] = {"same": [], "opposite": [], "undecided": []}
    for series, own in ours.drop(FIXED, errors="ignore").dropna(subset="ours, %").iterrows():
        if series in theirs.index and np.isfinite(theirs[series]):
            decided = own["low"] > 0 or own["high"] < 0
            same = (own["ours, %"] > 0) == (theirs[series] > 0)
            found["undecided" if not decided else "same" if same else "opposite"].append(str(series))
    return found


def counted(found: dict[str, list[str]]) -> str:
    kinds = {"same": "have the same direction here", "opposite": "the opposite", "undecided": "are undecided"}
    listed = {kind: f" ({listing(names)})" if names else "" for kind, names in found.items()}
    return listing([f"{len(found[kind])} {words}{listed[kind]}" for kind, words in kinds.items()])


def say_published(table: pd.DataFrame) -> str:
    """How many published directions ours share, where our interval decides one."""
    found = directions(table, table["published, %"])
    total = sum(map(len, found.values()))
    if not total:
        return "No published model was trained here: nothing to compare."
    seeds = seed_words(int(table["seeds"].max()))
    return f"Of {total} published differences against fixed rungs, {counted(found)}{f' ({seeds})' if seeds else ''}."


def curves(runs: pd.DataFrame, window: int, tokens_a_step: int) -> dict[str, pd.DataFrame]:
    """Perplexity over that of fixed rungs by training tokens, published and ours (light evaluations, mean over domains and
    seeds): rows are tokens, columns series."""
    at = published_window(window)
    table = published.read("training_curves").query("window == @at and seed == 42")
    logs = table.assign(nll=np.log(table["perplexity"])).pivot_table(index="step", columns="series", values="nll")
    theirs = np.exp(logs.sub(logs[FIXED], axis=0))
    found = {f"published, W = {at}": theirs.set_axis(theirs.index * TOKENS_A_STEP).drop(columns=FIXED)}
    paths = by_step(runs, "nll")
    if not has(runs, FIXED) or find(runs, FIXED, window) not in paths:
        return found
    names = {find(runs, series, window): series for series in theirs.columns if has(runs, series)}
    own = np.exp(paths[list(names)].sub(paths[find(runs, FIXED, window)], axis=0)).rename(columns=names).drop(columns=FIXED)
    return found | {f"here, W = {window}": own.set_axis(own.index * tokens_a_step)}


def say_curves(paths: dict[str, pd.DataFrame], table: pd.DataFrame) -> str:
    """Whether our end agrees with the published beginning or with the published end."""
    if len(paths) < 2:
        return "Fixed rungs were not trained: no curve to compare."
    theirs, own = paths.values()
    first, last = directions(table, theirs.iloc[0] - 1), directions(table, theirs.iloc[-1] - 1)
    total = sum(map(len, first.values()))
    ends = [f"{tokens / 1e6:.3g} M" for tokens in (own.index[-1], theirs.index[0], theirs.index[-1])]
    turned = int(((theirs.iloc[0] > 1) != (theirs.iloc[-1] > 1)).sum())
    return (f"After our {ends[0]} tokens, of {total} series against fixed rungs {len(first['same'])} have the direction of "
            f"the first published point ({ends[1]} tokens) and {len(last['same'])} that of the last ({ends[2]}); "
            f"{len(first['undecided'])} are undecided. The published sign itself changes between the two in {turned} of "
            f"{theirs.shape[1]} series.")


def seed_spread(runs: pd.DataFrame) -> pd.DataFrame:
    """Spread of perplexity over seeds, sample formula, per cent: published (W = 12, mean over datasets) and ours."""
    table = published.spread_over_seeds()
    theirs = (100 * table["sample_std"] / table["mean"]).groupby(table["series"]).mean()
    rows = select(runs, "nll", variant="")
    rows = rows[rows["length"] == rows["train_length"]]
    by_seed = rows.groupby(["series", "name", "seed"])["value"].mean()
    spread = {name: 100 * sample_std(list(own)) for name, own in by_seed.groupby("name") if len(own) > 1}
    ours = {series: np.mean([spread.get(name, np.nan) for name in own.index.get_level_values("name").unique()])
            for series, own in by_seed.groupby("series")}
    seeds = rows.groupby("series")["seed"].nunique()
    found = pd.DataFrame({"published, %": theirs, "published seeds": table.groupby("series")["seeds"].max(),
                          "ours, %": pd.Series(ours, dtype=float), "our seeds": seeds})
    return found.rename_axis("series").sort_values("published, %")


def say_spread(table: pd.DataFrame) -> str:
    """What another seed changes, published and here: a difference below that is no finding of one seed."""
    theirs, own = table["published, %"].dropna(), table["ours, %"].dropna()
    here = (f"here {own.min():.2f} to {own.max():.2f} % ({len(own)} series)" if len(own) else
            f"here one seed was trained ({len(table['our seeds'].dropna())} series): no spread, and no difference below that "
            f"is a finding")
    return (f"Standard deviation of perplexity over seeds: published {theirs.min():.2f} to {theirs.max():.2f} % "
            f"({len(theirs)} series, {int(table['published seeds'].max())} seeds); {here}.")
