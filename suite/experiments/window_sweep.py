"""Experiment 1: bases, schedules and windows of the Fibonacci paper (Section 3), with controls of equal edges."""

import re
from itertools import product

from lib.errors import require
from suite.experiments import base
from suite.experiments.common import DENSE, Recipe


class WindowSweep(base.Experiment):
    name = "01_window_sweep"

    def plan(self, parameters, profile):
        recipe = Recipe(parameters, profile)
        listed = list(product(parameters.models, parameters.windows))
        for entry in parameters.extra:
            model, _, window = entry.rpartition("/")
            require(bool(re.fullmatch("[0-9]{1,5}", window)) and "/" in model, "extra", entry,
                    "base/schedule/window, for instance pow2/fixed/8")
            listed.append((model, int(window)))
        models = [("dense", DENSE), *((model, recipe.described(model, window)) for model, window in listed)]
        for window in parameters.windows:
            models += zip(parameters.controls, recipe.controls(recipe.scaled(parameters.like, window), window),
                          strict=True)
        return list(dict.fromkeys(recipe.named(models, *recipe.perplexity())))
