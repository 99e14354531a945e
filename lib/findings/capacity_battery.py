"""Notebook 6: the battery with chance and intervals, trained tasks, and the published battery; audit rows 16 and 17."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lib import published
from lib.conclusions import above_chance, listing
from lib.findings.christoffel import chances, say_tasks, task_table
from lib.statistics import Interval, wilson
from lib.tables import select

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
        found = wilson(sum(round(v * n) for v, n in zip(own["value"], trials, strict=True)), sum(trials))
        rows.append({"name": name, "group": task, "estimate": found.estimate, "low": found.low, "high": found.high,
                     "chance": float(np.mean([chance[key] for key in keys])), "items": sum(trials)})
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


def in_context(runs: pd.DataFrame) -> pd.DataFrame:
    """In-context score (nats; below 0 means that context helps), by model: mean over seeds of all domains."""
    rows = select(runs, "in_context_score", split="in_context")
    return rows.groupby("name")["value"].mean().sort_values().to_frame("in-context score, nats")


def say_in_context(table: pd.DataFrame) -> str:
    best, worst = table.index[0], table.index[-1]
    return (f"The in-context score is best for {best} ({table.iloc[0, 0]:+.3f} nats) and worst for {worst} "
            f"({table.iloc[-1, 0]:+.3f}); "
            "below 0 the loss late in the context is lower than early in it.")


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
    """Accuracy by model size: rows are parameters, columns task and series; only what was trained at several sizes."""
    rows = select(runs, "accuracy")
    rows = rows[rows["length"].isna() & ~rows["split"].str.contains("/")]
    sizes = rows.groupby("series")["parameters"].nunique()
    rows = rows[rows["series"].isin(sizes.index[sizes > 1])]
    rows = rows.assign(column=rows["series"] + ", " + rows["split"])
    return rows.pivot_table(index="parameters", columns="column", values="value")


def say_ladder(table: pd.DataFrame) -> str:
    if table.empty:
        return "One size of model was trained (`widths` is empty): no capacity ladder."
    rise = table.iloc[-1] - table.iloc[0]
    return (f"From {table.index[0]:,} to {table.index[-1]:,} parameters accuracy changes most for {rise.abs().idxmax()} "
            f"({rise[rise.abs().idxmax()]:+.2f}).")


def by_distance(runs: pd.DataFrame) -> pd.DataFrame:
    """Accuracy on trained tasks by distance to the answer: rows are first distances of octaves, columns models."""
    rows = runs[(runs["measure"] == "accuracy") & runs["step"].isna() & runs["split"].fillna("").str.startswith("distance=")]
    if rows.empty:
        return pd.DataFrame()
    first = rows["split"].str.extract(r"distance=(\d+)")[0].astype(int)
    names = rows["series"] + ("" if rows["setting"].nunique() == 1 else ", " + rows["setting"])
    return rows.assign(distance=first, name=names).pivot_table(index="distance", columns="name", values="value")


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
    """Mean, lowest and highest as estimates with a range, for `plots.ranges`."""
    return table.rename(columns={"mean": "estimate", "min": "low", "max": "high"})
