"""Notebook 6: accuracies of the battery, by size and by distance, and the published battery."""

from __future__ import annotations

import numpy as np
import pandas as pd

from suite import published
from suite.study.comparisons import items, sequences
from suite.study.frames import Model, Study, row
from suite.study.stats import accuracy, accuracy_difference, mean_interval

FIXED, RAMP = "Fibonacci, fixed", "Fibonacci, linear ramp"
# Published task and metric, and our tasks that ask for the like; the offline ones are made from our own text.
ALIKE = {("blimp", "accuracy"): ("blimp", "blimp-offline"), ("lambada", "top1_acc"): ("lambada", "lambada-offline"),
         ("factual_cloze", "top1_acc"): ("factual_cloze", "cloze"), ("assoc_recall", "exact_acc"): ("mqar",),
         ("lego", "acc_overall"): ("lego",), ("ruler_vt", "acc_overall"): ("variable_tracking",)}


def asked(study: Study) -> list[Model]:
    """The language models that are asked the battery."""
    return [model for model in study.language_models if any(own.name == "battery" for own in model.jobs[0].evaluations)]


def battery_table(study: Study) -> pd.DataFrame:
    """Accuracy of each model at each task (`group`), with its interval over items (and seeds, from three on) and
    chance."""
    rows = []
    for model in asked(study):
        metrics = study.metrics(model.jobs[0])
        metrics = metrics[metrics["step"].isna() & ~metrics["split"].str.contains("/")]     # whole tasks, no subgroups
        for task in metrics.loc[metrics["measure"] == "accuracy", "split"]:
            rows.append(row(accuracy(items(study, model.jobs, task)), name=model.name, group=task,
                            chance=study.value(model.jobs[0], "chance", split=task), series=model.labels.series,
                            parameters=int(metrics["parameters"].iloc[0])))
    return pd.DataFrame(rows).sort_values("group", kind="stable").set_index("name")


def in_context(study: Study) -> pd.DataFrame:
    """In-context score by model (nats a token; below 0 the loss late in the context is lower than early in it), best
    first, with its interval over windows (and seeds)."""
    domains, rows = len(study.database.corpus.domains), []
    for model in asked(study):
        scores = np.stack([study.array(job, "battery", "in_context") for job in model.jobs])         # (S, windows)
        rows.append(row(mean_interval(np.split(scores.astype(float), domains, axis=1)), name=model.name))
    return pd.DataFrame(rows).set_index("name").sort_values("estimate")


def ladder(battery: pd.DataFrame) -> pd.DataFrame:
    """The battery's accuracy by number of parameters, of the series that are trained at several sizes."""
    several = battery.groupby("series")["parameters"].transform("nunique") > 1
    rows = battery[several].sort_values(["group", "series", "parameters"])
    return rows.set_index(["group", "series", "parameters"])[["estimate", "low", "high", "chance"]]


def by_distance(study: Study) -> pd.DataFrame:
    """Accuracy on trained tasks by the distance to the answer, tokens (first of the octave), with intervals: one row a
    model and distance (`bin`), the task as `group`."""
    rows = []
    for model in [model for model in study.models if not model.text]:
        metrics = study.metrics(model.jobs[0])
        splits = metrics.loc[(metrics["measure"] == "accuracy") & metrics["split"].str.startswith("distance="), "split"]
        for split in splits:
            rows.append(row(accuracy(sequences(study, model.jobs, split)), name=model.labels.series,
                            group=model.labels.task, bin=int(split.removeprefix("distance=").partition("-")[0])))
    return pd.DataFrame(rows).sort_values("bin", kind="stable").set_index("name") if rows else pd.DataFrame()


# Published

def published_battery(window: int = 12) -> pd.DataFrame:
    """The published battery at one window, seed 42: rows are task and metric, columns series."""
    table = published.read("battery")
    rows = table[((table["window"] == window) | table["window"].isna()) & (table["seed"] == 42)]
    rows = rows[~rows["metric"].str.startswith(("n_", "params", "flops", "tokens")) & (rows["metric"] != "n")]
    return rows.pivot_table(index=["task", "metric"], columns="series", values="value")


def lambada_table(window: int = 12) -> pd.DataFrame:
    """Audit row 17: published perplexity of LAMBADA's target at one window: mean, lowest and highest seed."""
    table = published.read("battery").query("task == 'lambada' and metric == 'target_ppl' and window == @window")
    values = table.groupby("series")["value"]
    return values.agg(estimate="mean", low="min", high="max", seeds="count").sort_values("estimate")


def ramp_against_fixed(study: Study, window: int = 12) -> pd.DataFrame:
    """Accuracy of the ramp minus that of fixed rungs by task: published (means over seeds), and ours, paired by
    item."""
    table = published.read("battery")
    theirs = table[table["window"] == window].pivot_table(index=["task", "metric"], columns="series", values="value")
    columns, rows = ["task", "published", "estimate", "low", "high", "seeds"], []
    if study.has(FIXED, RAMP):
        fixed, ramp = study.find(FIXED)[0], study.find(RAMP)[0]
        jobs, there = list(zip(*study.paired(ramp, fixed), strict=True)), set(battery_table(study)["group"])
        for key, names in ALIKE.items():
            for task in there.intersection(names):
                difference = accuracy_difference(*(items(study, own, task) for own in jobs))
                rows.append(row(difference, task=task, published=theirs.loc[key, RAMP] - theirs.loc[key, FIXED]))
    return pd.DataFrame(rows, columns=columns).set_index("task")
