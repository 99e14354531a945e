"""Experiment 4: the exponent of power-law edges, at equal pairs (power-law document; audit rows 19 to 21)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lib.config import Evaluation, PatternSpec
from lib.errors import require
from lib.patterns.power_law import PowerLaw
from suite.experiments import base
from suite.experiments.common import Recipe, dense_jobs, ordered


class PowerLawSigma(base.Experiment):
    name = "04_power_law_sigma"
    title = "Power-law sigma"
    question = "Is there a best exponent of power-law edges, and do they beat a local window of as many keys?"

    def plan(self, parameters, profile):
        recipe = Recipe(parameters, profile, parameters.layers, domains=parameters.domains)
        far = parameters.far or recipe.length // 4
        measures = (*recipe.perplexity(), Evaluation.of("gradient_flow", far=far), Evaluation.of("attention_memory"))
        jobs = dense_jobs(recipe, *measures)
        for seed in parameters.seeds:
            for budget in parameters.budgets:
                jobs += [base.Job.of(recipe.run(power_law(sigma, budget, parameters.radius), seed), *measures,
                                     series="Power law", role="model", sigma=float(sigma), budget=budget)
                         for sigma in parameters.sigmas]
                for sigma in parameters.draws_sigmas:
                    spec = drawn(sigma, budget, parameters.radius, recipe.length)
                    jobs.append(base.Job.of(recipe.run(spec, seed), *measures, series="Power law, draws", role="model",
                                            sigma=float(sigma), budget=budget, draws=dict(spec.parameters)["draws"]))
                like = power_law(parameters.sigmas[0], budget, parameters.radius)
                jobs += recipe.controls(parameters.controls, like, seed, measures, budget=budget)
        return ordered(jobs)


def power_law(sigma: float, budget: int, radius: int) -> PatternSpec:
    """Exactly `budget` neighbours a query, itself and the window included."""
    return PatternSpec.of("power_law", sigma=float(sigma), budget=budget, window=radius)


def drawn(sigma: float, budget: int, radius: int, length: int) -> PatternSpec:
    """The document's own rule, m draws with replacement, with the m that gives the pairs of `power_law` at `length`."""
    return PatternSpec.of("power_law", mode="draws", sigma=float(sigma), window=radius,
                          draws=draws_for(float(sigma), budget, radius, length))


@lru_cache(maxsize=None)
def draws_for(sigma: float, budget: int, radius: int, length: int) -> int:
    """The number of draws whose expected pairs, repeats merged and window included, are nearest the budget's pairs."""
    wanted = float(np.minimum(budget, np.arange(length) + 1).sum())
    require(budget >= radius + 1, "budgets", budget, f"at least the window's {radius + 1} keys")

    def pairs(m: int) -> float:
        return PowerLaw(mode="draws", sigma=sigma, draws=m, window=radius).expected_pairs(length)
    low, high = 0, 1
    while pairs(high) < wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if pairs(middle) < wanted else (low, middle)
    return min((low, high), key=lambda m: abs(pairs(m) - wanted))
