"""Experiment 1: bases, schedules and windows of the Fibonacci paper (Section 3), with controls of equal edges."""

from lib.errors import require
from suite.experiments import base
from suite.experiments.common import DENSE, Recipe


class WindowSweep(base.Experiment):
    name = "01_window_sweep"

    def plan(self, parameters, profile):
        recipe = Recipe(parameters, profile)
        listed = [(model, window) for window in parameters.windows for model in parameters.models]
        for entry in parameters.extra:
            model, _, window = entry.rpartition("/")
            require(window.isdigit() and "/" in model, "extra", entry,
                    "base/schedule/window, for instance pow2/fixed/8")
            listed.append((model, int(window)))
        models = [recipe.described(model, window) for model, window in listed]
        for window in parameters.windows:
            models += recipe.controls(recipe.scaled(parameters.like, window), window)
        measure = recipe.perplexity()
        return list(dict.fromkeys(recipe.jobs([DENSE], *measure) + recipe.jobs(models, *measure)))
