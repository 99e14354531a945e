"""Experiment 6: auxiliary tasks on the models of experiment 1, and trained for directly (audit rows 16 and 17)."""

from itertools import product

from lib.config import DataConfig, Evaluation
from suite.experiments import base
from suite.experiments.common import CONTROLS, DENSE, RAMP, Recipe, TinyModel


class CapacityBattery(base.Experiment):
    name = "06_capacity_battery"

    def plan(self, parameters, profile):
        recipe, W = Recipe(parameters, profile), parameters.window
        battery = Evaluation.of("battery", tasks=parameters.tasks, count=parameters.items)
        ramp, labels = recipe.described(RAMP, W)
        models = [recipe.described(model, W) for model in parameters.models] + recipe.controls(ramp, W)
        jobs = recipe.jobs([DENSE], battery)
        for seed in parameters.seeds:
            jobs += recipe.jobs(models, battery, seeds=[seed])
            for width in parameters.widths:
                ladder = [(spec, own | {"width": width}) for spec, own in (DENSE, (ramp, labels))]
                jobs += Recipe(parameters, profile, width=width).jobs(ladder, battery, seeds=[seed])
        # Small models trained on a task itself, one a mask: `dense`, `base/schedule`, or a control of the ramp's pairs.
        tiny = TinyModel(parameters.trained_length, parameters.trained_steps, parameters.trained_layers, batch=32)
        pairs = max(2, tiny.length // 16)       # of associative recall, as many as a small model learns at this length
        sizes = {"mqar": {"pairs": pairs, "keys": 4 * pairs, "values": 4 * pairs}}
        masks = [tiny.mask(mask, ramp, W) if mask in ("dense", *CONTROLS) else recipe.described(mask, W)
                 for mask in parameters.trained_masks]
        for task, mask in product(parameters.trained, masks):
            jobs += tiny.jobs(mask, DataConfig.of(task, **sizes.get(task, {})), parameters.seeds, task=task)
        return list(dict.fromkeys(jobs))
