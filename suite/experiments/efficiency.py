"""Experiment 7: what attention costs in time and memory, counted and measured, and what training at that cost is."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from lib.config import Evaluation
from suite.experiments import base
from suite.experiments.common import DENSE, RAMP, Recipe
from suite.settings.machine import machine
from suite.settings.parameters import Parameters
from suite.settings.profiles import Profile

if TYPE_CHECKING:
    from suite.bench.rows import Row


class Efficiency(base.Experiment):
    name = "07_efficiency"
    alone = True

    def plan(self, parameters, profile):
        recipe, W = Recipe(parameters, profile), parameters.window
        measure = (*recipe.perplexity(), Evaluation.of("attention_memory", lengths=parameters.lengths))
        models = [recipe.described(model, W) for model in parameters.models]
        models += recipe.controls(recipe.scaled(RAMP, W), W)
        return list(dict.fromkeys(recipe.jobs([DENSE], *measure) + recipe.jobs(models, *measure)))


def measured(parameters: Parameters, profile: Profile, say: Callable[[str], None]) -> "list[Row]":
    """What the last full `make bench` measured, if it was on this machine and of this code; else measured now, at these
    parameters, and kept as `outputs/bench/<profile>.json`. `say` hears what is being measured."""
    from suite.bench import rows
    from suite.bench.cases import Setting, step_runs
    from suite.bench.measure import Scope, code, measure
    known = rows.read()
    if known and {(row.machine, row.code) for row in known} == {(machine(), code())}:
        return known
    steps = step_runs(profile, parameters.step_length, parameters.window)
    scope = Scope(parameters.lengths, parameters.rounds, parameters.seconds, memory_lengths=parameters.lengths,
                  plan_length=parameters.pattern_length, pattern_length=parameters.pattern_length, steps=steps)
    found = measure(Setting.here(), scope, say)
    rows.write(found, profile.name)
    return found
