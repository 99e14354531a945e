"""Notebook 6: accuracies of the battery, by size and by distance, and the published battery."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from suite import published
from suite.study.comparisons import task_accuracy, task_difference
from suite.study.frames import Model, Study, as_table, at_end, row
from suite.study.stats import Windows

FIXED, RAMP = "Fibonacci, fixed", "Fibonacci, linear ramp"
# Published task and metric, and our tasks that ask for the like; the offline ones are made from our own text.
ALIKE = {("blimp", "accuracy"): ("blimp", "blimp-offline"), ("lambada", "top1_acc"): ("lambada", "lambada-offline"),
         ("factual_cloze", "top1_acc"): ("factual_cloze", "cloze"), ("assoc_recall", "exact_acc"): ("mqar",),
         ("lego", "acc_overall"): ("lego",), ("ruler_vt", "acc_overall"): ("variable_tracking",)}


def battery_table(study: Study) -> pd.DataFrame:
    """Accuracy of each model at each task (`group`), with its interval over items (and seeds), and chance."""
    rows = []
    for model in [model for model in study.language_models if model.asked("battery")]:
        found = at_end(study.metrics(model.jobs[0]), "accuracy")
        for task in found.loc[~found["split"].str.contains("/"), "split"]:               # whole tasks, no subgroups
            rows.append(row(task_accuracy(study, model, task), name=model.name, group=task,
                            chance=study.value(model.jobs[0], "chance", split=task), series=model.labels.series,
                            parameters=int(found["parameters"].iloc[0])))
    return pd.DataFrame(rows).sort_values("group", kind="stable").set_index("name")


def in_context(study: Study) -> pd.DataFrame:
    """In-context score by model, nats a token: loss late in the context minus early in it; best first."""
    def scores(model: Model, seeds: Sequence[int]) -> Windows:
        found = study.arrays([model.by_seed[seed] for seed in seeds], "battery", "in_context").astype(float)
        return np.split(found, len(study.database.corpus.domains), axis=1)                      # (S, windows) a domain
    return as_table({model.name: study.measured(model, scores) for model in study.language_models
                     if model.asked("battery")}).sort_values("estimate")


def ladder(battery: pd.DataFrame) -> pd.DataFrame:
    """The battery's accuracy by number of parameters, of the series that are trained at several sizes."""
    several = battery.groupby("series")["parameters"].transform("nunique") > 1
    rows = battery[several].sort_values(["group", "series", "parameters"])
    return rows.set_index(["group", "series", "parameters"])[["estimate", "low", "high", "chance"]]


def by_distance(study: Study) -> pd.DataFrame:
    """Accuracy on trained tasks (`group`) by the distance to the answer in tokens (`bin`, the first of an octave)."""
    rows = []
    for model in [model for model in study.models if not model.text]:
        splits = at_end(study.metrics(model.jobs[0]), "accuracy")["split"]
        for split in splits[splits.str.startswith("distance=")]:
            rows.append(row(task_accuracy(study, model, split), name=model.labels.series,
                            group=model.labels.task, bin=int(split.removeprefix("distance=").partition("-")[0])))
    return pd.DataFrame(rows).sort_values("bin", kind="stable").set_index("name") if rows else pd.DataFrame()


def published_battery() -> pd.DataFrame:
    """The published battery at W = 12, seed 42: rows are task and metric, columns series."""
    table = published.read("battery").query("(window == 12 or window != window) and seed == 42")
    rows = table[~table["metric"].str.startswith(("n_", "params", "flops", "tokens")) & (table["metric"] != "n")]
    return rows.pivot_table(index=["task", "metric"], columns="series", values="value")


def lambada_table() -> pd.DataFrame:
    """Audit row 17: published perplexity of LAMBADA's target at W = 12: mean, lowest and highest seed."""
    table = published.read("battery").query("task == 'lambada' and metric == 'target_ppl' and window == 12")
    values = table.groupby("series")["value"]
    return values.agg(estimate="mean", low="min", high="max", seeds="count").sort_values("estimate")


def ramp_against_fixed(study: Study) -> pd.DataFrame:
    """Accuracy of the ramp minus that of fixed rungs by task: published (W = 12, means over seeds), and ours."""
    table = published.read("battery").query("window == 12")
    theirs = table.pivot_table(index=["task", "metric"], columns="series", values="value")
    rows = []
    if study.has(FIXED, RAMP):
        fixed, ramp = study.find(FIXED)[0], study.find(RAMP)[0]
        there = set(battery_table(study)["group"])
        rows = [row(task_difference(study, ramp, fixed, task), task=task,
                    published=theirs.loc[key, RAMP] - theirs.loc[key, FIXED])
                for key, names in ALIKE.items() for task in there.intersection(names)]
    return pd.DataFrame(rows, columns=["task", "published", "estimate", "low", "high", "seeds"]).set_index("task")
