"""Experiment 1: bases, schedules and windows of the Fibonacci paper (Section 3), with controls of equal edges."""

from __future__ import annotations

from lib.errors import require
from suite.experiments import base
from suite.experiments.common import Recipe, dense_jobs, model_labels, ordered
from suite.settings.parameters import Parameters


class WindowSweep(base.Experiment):
    name = "01_window_sweep"
    title = "Window sweep"
    question = "Does spreading the rungs over depth lower the loss, and more than a plain window of as many keys does?"

    def plan(self, parameters, profile):
        recipe = Recipe(parameters, profile)
        measure = recipe.perplexity()
        jobs = dense_jobs(recipe, *measure)
        for seed in parameters.seeds:
            for model, window in models_and_windows(parameters):
                jobs.append(base.Job.of(recipe.run(recipe.scaled(model, window), seed), *measure,
                                        **model_labels(model, window)))
            for window in parameters.windows:
                like = recipe.scaled(parameters.like, window)
                jobs += recipe.controls(parameters.controls, like, seed, measure, window)
        return ordered(jobs)


def models_and_windows(parameters: Parameters) -> list[tuple[str, int]]:
    """Every model at every window, then the extra ones."""
    listed = [(model, window) for window in parameters.windows for model in parameters.models]
    for entry in parameters.extra:
        model, _, window = entry.rpartition("/")
        require(window.isdigit() and "/" in model, "extra", entry, "base/schedule/window, for instance pow2/fixed/8")
        listed.append((model, int(window)))
    return list(dict.fromkeys(listed))
