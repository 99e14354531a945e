"""Notebook 6: the battery with chance and intervals, trained tasks, and the published battery; audit rows 16 and 17."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from suite import published
from suite.study.conclusions import above_chance, listing
from suite.study.findings.christoffel import (chances, of_sequences, say_tasks,
                                              task_table)
from suite.study.findings.shared import interval, row
from suite.study.stats import Interval, mean_interval, seed_words, wilson
from suite.study.tables import select

if TYPE_CHECKING:
    from suite.experiments.base import Job
    from suite.run.database import Database

__all__ = ["chances", "say_tasks", "task_table", "wilson"]      # the notebook asks them of this module


def battery_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Accuracy of each model at each whole task (not its subgroups), Wilson's interval, chance and number of items."""
    asked = select(runs, "accuracy")
    asked = asked[(asked["setting"].fillna("") != asked["split"]) & ~asked["split"].str.contains("/")]
    asked = asked[asked["length"].isna()]              # a trained task's accuracy has a length, the battery's has none
    chance = select(runs, "chance").drop_duplicates(["run", "split"]).set_index(["run", "split"])["value"]
    count = select(runs, "count").drop_duplicates(["run", "split"]).set_index(["run", "split"])["value"]
    rows = []
    for (task, name), own in asked.groupby(["split", "name"], sort=False):
        keys = list(zip(own["run"], own["split"], strict=True))
        trials = [int(count[key]) for key in keys]
        found = wilson(float(own["value"].mean()) * trials[0], trials[0], len(own))        # the same items for all seeds
        rows.append({"name": name, "group": task, "estimate": found.estimate, "low": found.low, "high": found.high,
                     "chance": float(np.mean([chance[key] for key in keys])), "items": trials[0],
                     "seeds": len(own)})
    return pd.DataFrame(rows).set_index("name")


def interval_of(row: pd.Series) -> Interval:
    return Interval(row["estimate"], row["low"], row["high"], int(row["items"]))


def say_battery(table: pd.DataFrame) -> str:
    """Which tasks no model does better than a guess."""
    standing = {task: {above_chance(interval_of(row), row["chance"]) for _, row in own.iterrows()}
                for task, own in table.groupby("group", sort=False)}
    above = [task for task, found in standing.items() if found == {"above chance"}]
    none = [task for task, found in standing.items() if "above chance" not in found]
    mixed = [task for task in standing if task not in above + none]
    kinds = {"Above chance for every model": above, "for some models": mixed, "for no model": none}
    parts = [f"{words}: {listing(tasks)}" for words, tasks in kinds.items() if tasks]
    return "; ".join(parts)[0].upper() + "; ".join(parts)[1:] + "."


def say_separation(table: pd.DataFrame) -> str:
    """Which tasks tell any two models apart: the best one's interval lies above the worst one's."""
    apart = []
    for task, own in table.groupby("group", sort=False):
        best, worst = own.loc[own["estimate"].idxmax()], own.loc[own["estimate"].idxmin()]
        if best["low"] > worst["high"]:
            apart.append(f"{task} ({best.name} {best['estimate']:.2f}, {worst.name} {worst['estimate']:.2f})")
    total = table["group"].nunique()
    listed = f": {listing(apart)}" if apart else ""
    return f"Of {total} tasks asked without training, {len(apart)} separate the models{listed}."


def items(jobs: Sequence[Job], names: Sequence[str], database: Database, array: str) -> dict[str, np.ndarray]:
    """An array of the battery by item (or window) of every model that was asked, `[S, N]` of S seeds."""
    found: dict[str, list[np.ndarray]] = {}
    for job, name in zip(jobs, names, strict=True):
        asked = [e for e in job.evaluations if e.name == "battery"]
        if asked:
            found.setdefault(name, []).append(np.asarray(database.array(job, asked[0], array), dtype=float))
    return {name: np.stack(own) for name, own in found.items()}


def in_context(jobs: Sequence[Job], names: Sequence[str], database: Database) -> pd.DataFrame:
    """In-context score (nats; below 0 means that context helps) by model, best first, with its interval over windows."""
    domains = len(database.corpus.domains)
    rows = [row(mean_interval(np.split(own, domains, axis=1)), name=name)
            for name, own in items(jobs, names, database, "in_context").items()]
    return pd.DataFrame(rows).set_index("name").sort_values("estimate")


def say_in_context(table: pd.DataFrame) -> str:
    best, worst, seeds = table.iloc[0], table.iloc[-1], seed_words(int(table["seeds"].min()))
    return (f"The in-context score is best for {best.name} ({interval(best).text()} nats) and worst for {worst.name} "
            f"({interval(worst).text()}); below 0 the loss late in the context is lower than early in it. Their intervals "
            f"{'do not overlap' if best['high'] < worst['low'] else 'overlap'}{f' ({seeds})' if seeds else ''}.")


def published_battery(window: int = 12) -> pd.DataFrame:
    """The published battery at one window and seed 42: rows are task and metric, columns series."""
    table = published.read("battery")
    rows = table[((table["window"] == window) | table["window"].isna()) & (table["seed"] == 42)]
    rows = rows[~rows["metric"].str.startswith(("n_", "params", "flops", "tokens")) & (rows["metric"] != "n")]
    return rows.pivot_table(index=["task", "metric"], columns="series", values="value")


def say_published() -> str:
    """Audit row 16: what was logged for dense, how many BLiMP pairs, and LEGO's accuracy."""
    table = published.read("battery")
    dense = sorted(set(table.loc[table["base"] == "dense", "task"]))
    everything = sorted(set(table["task"]))
    pairs = int(table.loc[(table["task"] == "blimp") & (table["metric"] == "n_pairs"), "value"].max())
    lego = table[(table["task"] == "lego") & (table["metric"] == "acc_overall")]["value"].round(4)
    commonest = lego.mode().iloc[0]
    return (f"The published battery has {len(everything)} tasks, and for dense only {listing(dense)}; BLiMP has "
            f"{pairs} pairs "
            f"({pairs // 200} of its 8 subsets of 200); LEGO's accuracy is {commonest:.4f} in "
            f"{(lego == commonest).sum()} of {len(lego)} runs, "
            "which is what a constant answer scores.")


def lambada_table(window: int = 12) -> pd.DataFrame:
    """Audit row 17: published perplexity of LAMBADA's target at one window; mean over seeds, and the spread."""
    table = published.read("battery").query("task == 'lambada' and metric == 'target_ppl' and window == @window")
    return table.groupby("series")["value"].agg(["mean", "min", "max", "count"]).sort_values("mean")


def say_lambada(table: pd.DataFrame) -> str:
    best, worst = table.iloc[0], table.iloc[-1]
    word = "does separate" if best["max"] < worst["min"] else "does not clearly separate"
    return (f"Published, LAMBADA's target perplexity {word} the patterns: {best['mean']:.0f} for {best.name}, "
            f"{worst['mean']:.0f} for {worst.name} (means over {int(best['count'])} and {int(worst['count'])} seeds).")


def ladder(runs: pd.DataFrame) -> pd.DataFrame:
    """Accuracy by model size with Wilson's interval and chance: rows are task, series and parameters; only series that were
    trained at several sizes."""
    battery = battery_table(runs).reset_index()
    sized = select(runs, "accuracy").groupby("name")[["series", "parameters"]].first()
    battery = battery.join(sized, on="name")
    several = battery.groupby("series")["parameters"].transform("nunique") > 1
    rows = battery[several].sort_values(["group", "series", "parameters"])
    return rows.set_index(["group", "series", "parameters"])[["estimate", "low", "high", "chance"]]


def say_ladder(table: pd.DataFrame) -> str:
    """Where the largest model is better than the smallest: their intervals do not overlap."""
    if table.empty:
        return "One size of model was trained (`widths` is empty): no capacity ladder."
    ends = {key: (own.iloc[0], own.iloc[-1]) for key, own in table.groupby(level=["group", "series"], sort=False)}
    sizes = table.index.get_level_values("parameters")
    apart = [f"{task}, {series} ({small['estimate']:.2f} to {large['estimate']:.2f})"
             for (task, series), (small, large) in ends.items() if small["high"] < large["low"]]
    worse = sum(large["high"] < small["low"] for small, large in ends.values())
    listed = f" ({listing(apart)})" if apart else ""
    return (f"From {sizes.min():,} to {sizes.max():,} parameters accuracy rises beyond its intervals in {len(apart)} of "
            f"{len(ends)} pairs of task and model{listed} and falls in {worse}.")


def by_distance(runs: pd.DataFrame) -> pd.DataFrame:
    """Accuracy on trained tasks by distance to the answer: rows are first distances of octaves, columns models."""
    rows = runs[(runs["measure"] == "accuracy") & runs["step"].isna() & runs["split"].fillna("").str.startswith("distance=")]
    if rows.empty:
        return pd.DataFrame()
    first = rows["split"].str.extract(r"distance=(\d+)")[0].astype(int)
    names = rows["series"] + ("" if rows["setting"].nunique() == 1 else ", " + rows["setting"])
    return rows.assign(distance=first, name=names).pivot_table(index="distance", columns="name", values="value")


def distance_table(runs: pd.DataFrame) -> pd.DataFrame:
    """The same cells in words: accuracy with its interval (`of_sequences`), a mean over seeds."""
    rows = runs[runs["step"].isna() & runs["split"].fillna("").str.startswith("distance=")]
    if rows.empty:
        return pd.DataFrame()
    rows = rows[rows["measure"].isin(("accuracy", "count"))]
    wide = rows.pivot_table(index=["series", "setting", "split", "run"], columns="measure", values="value")
    cells = wide.groupby(level=["series", "setting", "split"], sort=False)
    said = {key: of_sequences(list(own["accuracy"]), [int(n) for n in own["count"]]) for key, own in cells}
    table = pd.DataFrame([(*key, f"{i.estimate:.3f} ({i.low:.3f} to {i.high:.3f})") for key, i in said.items()],
                         columns=["series", "setting", "split", "text"])
    table["first"] = table["split"].str.extract(r"distance=(\d+)")[0].astype(int)
    found = table.pivot(index=["setting", "first"], columns="series", values="text")
    return found.rename_axis(index=["task", "distance from"])


def say_by_distance(table: pd.DataFrame) -> str:
    """How far each mask recalls: the longest distances at which it is right more often than not."""
    if table.empty:
        return "No task with distances was trained for directly."
    said = []
    for name in table:
        far = table.index[table[name] > 0.5]
        said.append(f"{name} {f'up to {2 * far.max() - 1}' if len(far) else 'at none'}")
    return f"Distances (tokens) at which more than half of the answers are right: {'; '.join(said)}."


def as_ranges(table: pd.DataFrame) -> pd.DataFrame:
    """Mean, lowest and highest as estimates with a range, for `plots.intervals`."""
    return table.rename(columns={"mean": "estimate", "min": "low", "max": "high"})
