"""Experiment 6: auxiliary tasks on the models of experiment 1, and trained for directly (audit rows 16 and 17)."""

from __future__ import annotations

from lib.config import DataConfig, Evaluation
from suite.experiments import base
from suite.experiments.common import (ACCURACY, CONTROLS, DENSE, DENSE_LABELS, Recipe, TinyModel, dense_jobs,
                                      model_labels, ordered)
from suite.settings.parameters import Parameters


class CapacityBattery(base.Experiment):
    name = "06_capacity_battery"
    title = "Capacity-limited battery"
    question = "Do auxiliary tasks separate the patterns, asked of language models and trained for directly?"

    def plan(self, parameters, profile):
        recipe = Recipe(parameters, profile)
        battery = Evaluation.of("battery", tasks=parameters.tasks, count=parameters.items)
        jobs = dense_jobs(recipe, battery)
        like = recipe.scaled("fibonacci/linear", parameters.window)
        for seed in parameters.seeds:
            jobs += [base.Job.of(recipe.run(recipe.scaled(model, parameters.window), seed), battery,
                                 **model_labels(model, parameters.window)) for model in parameters.models]
            jobs += recipe.controls(parameters.controls, like, seed, (battery,), parameters.window)
            for width in parameters.widths:
                sized = Recipe(parameters, profile, width=width)
                jobs += [base.Job.of(sized.run(spec, seed), battery, **labels | {"width": width})
                         for spec, labels in ((DENSE, DENSE_LABELS),
                                              (like, model_labels("fibonacci/linear", parameters.window)))]
        return ordered(jobs + trained_jobs(parameters, recipe))


def trained_jobs(parameters: Parameters, recipe: Recipe) -> list[base.Job]:
    """Small models trained on a task itself, one a mask: `dense`, `base/schedule`, or a control of the ramp's pairs."""
    tiny = TinyModel(parameters.trained_length, parameters.trained_steps, parameters.trained_layers, batch=64, lr=3e-3)
    jobs = []
    like = recipe.scaled("fibonacci/linear", parameters.window)
    for task in parameters.trained:
        for mask in parameters.trained_masks:
            if mask in CONTROLS:
                spec, labels = tiny.control(mask, like, parameters.window)
            elif mask == "dense":
                spec, labels = DENSE, DENSE_LABELS
            else:
                spec, labels = recipe.scaled(mask, parameters.window), model_labels(mask, parameters.window)
            data = data_of(task, parameters.trained_length)
            jobs += [base.Job.of(tiny.run(spec, data, seed), ACCURACY,
                                 **labels | {"task": task}) for seed in parameters.seeds]
    return jobs


def data_of(task: str, length: int) -> DataConfig:
    """A task at a size that a small model learns at this length: associative recall has a pair for every 16 tokens."""
    if task != "mqar":
        return DataConfig.of(task)
    pairs = max(2, length // 16)
    return DataConfig.of(task, pairs=pairs, keys=4 * pairs, values=4 * pairs)
