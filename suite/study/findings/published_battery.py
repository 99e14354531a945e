"""Notebook 6: the published battery beside ours, task by task, and whether ramp and fixed rungs differ alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from suite import published
from suite.study.findings.capacity_battery import battery_table, items
from suite.study.stats import accuracy_difference, seed_words

if TYPE_CHECKING:
    from suite.experiments.base import Job
    from suite.run.database import Database

FIXED, RAMP = "Fibonacci, fixed", "Fibonacci, linear ramp"
# Published task and metric, and the task of ours that asks for the like; the offline ones are made from our own text.
ALIKE = {("blimp", "accuracy"): ("blimp", "blimp-offline"), ("lambada", "top1_acc"): ("lambada", "lambada-offline"),
         ("factual_cloze", "top1_acc"): ("factual_cloze", "cloze"), ("assoc_recall", "exact_acc"): ("mqar",),
         ("lego", "acc_overall"): ("lego",), ("ruler_vt", "acc_overall"): ("variable_tracking",)}


def values(window: int) -> pd.DataFrame:
    """Published values at a window (dense has none), means over seeds: rows are task and metric, columns series."""
    table = published.read("battery")
    rows = table[(table["window"] == window) | table["window"].isna()]
    return rows.pivot_table(index=["task", "metric"], columns="series", values="value", aggfunc="mean")


def beside(runs: pd.DataFrame, window: int = 12) -> pd.DataFrame:
    """Accuracy of each task and series: published at a window, ours with Wilson's interval and chance, and the difference."""
    theirs, battery, rows = values(window), battery_table(runs).reset_index(), []
    for (task, metric), ours in ALIKE.items():
        for own in battery[battery["group"].isin(ours) & battery["name"].isin(set(runs["series"]))].itertuples():
            value = theirs.loc[task, metric].get(own.name, np.nan)
            rows.append({"task": own.group, "published task": f"{task} {metric}", "series": own.name, "published": value,
                         "ours": own.estimate, "low": own.low, "high": own.high, "chance": own.chance,
                         "ours - published": own.estimate - value})
    columns = ["task", "published task", "series", "published", "ours", "low", "high", "chance", "ours - published"]
    return pd.DataFrame(rows, columns=columns).set_index(["task", "published task", "series"])


def ramp_against_fixed(jobs: Sequence[Job], names: Sequence[str], database: Database, runs: pd.DataFrame,
                       window: int = 12) -> pd.DataFrame:
    """Accuracy of the ramp minus that of fixed rungs: published (means over seeds), and ours, paired by item."""
    theirs, rows = values(window), []
    there = set(battery_table(runs)["group"]) if {FIXED, RAMP} <= set(names) else set()
    for (task, metric), ours in ALIKE.items():
        for own in sorted(there.intersection(ours)):
            right = items(jobs, names, database, f"correct.{own}")
            found = accuracy_difference(right[RAMP], right[FIXED])
            rows.append({"task": own, "published": theirs.loc[(task, metric), RAMP] - theirs.loc[(task, metric), FIXED],
                         "ours": found.estimate, "low": found.low, "high": found.high, "seeds": found.seeds})
    return pd.DataFrame(rows, columns=["task", "published", "ours", "low", "high", "seeds"]).set_index("task")


def say_beside(table: pd.DataFrame, window: int = 12) -> str:
    """Whether the ramp's published advantage or disadvantage at a task is seen here."""
    if table.empty:
        return "Ramp and fixed rungs were not both asked: no published difference to compare."
    decided = table[(table["low"] > 0) | (table["high"] < 0)]
    same = decided[np.sign(decided["ours"]) == np.sign(decided["published"])]
    how = ", ".join(filter(None, ["intervals over items", seed_words(int(table["seeds"].min()))]))
    return (f"Ramp minus fixed rungs, published at W = {window} and here: of {len(table)} tasks {len(decided)} are decided "
            f"here ({how}), {len(same)} of them in the published direction. The tasks are made from other text and have other "
            f"chance levels, so only directions compare.")
