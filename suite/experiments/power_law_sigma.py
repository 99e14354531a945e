"""Experiment 4: the exponent of power-law edges, at equal pairs (power-law document; audit rows 19 to 21)."""

from bisect import bisect_left
from functools import lru_cache

import numpy as np

from lib.config import Evaluation, PatternSpec
from lib.errors import require
from lib.patterns.power_law import PowerLaw
from suite.experiments import base
from suite.experiments.common import DENSE, Recipe

MOST_LENGTH = 2 ** 14           # of a pattern whose drawn pairs are counted
MOST_DRAWS = 2 ** 16            # of a query


class PowerLawSigma(base.Experiment):
    name = "04_power_law_sigma"

    def plan(self, parameters, profile):
        recipe, radius = Recipe(parameters, profile, parameters.layers, domains=parameters.domains), parameters.radius
        far = parameters.far or recipe.length // 4
        measures = (*recipe.perplexity(), Evaluation.of("gradient_flow", far=far), Evaluation.of("attention_memory"))
        require(len(parameters.sigmas) > 0, "sigmas", parameters.sigmas, "one exponent or more")
        models = []
        for budget in parameters.budgets:
            labels = {"role": "model", "budget": budget}
            models += [(power_law(sigma, budget, radius), labels | {"series": "Power law", "sigma": float(sigma)})
                       for sigma in parameters.sigmas]
            for sigma in map(float, parameters.draws_sigmas):      # the document's own rule, at the same pairs
                draws = draws_for(sigma, budget, radius, recipe.length)
                models.append((PatternSpec.of("power_law", mode="draws", sigma=sigma, window=radius, draws=draws),
                               labels | {"series": "Power law, draws", "sigma": sigma, "draws": draws}))
            models += recipe.controls(power_law(parameters.sigmas[0], budget, radius), budget=budget)
        return list(dict.fromkeys(recipe.jobs([DENSE], *measures) + recipe.jobs(models, *measures)))


def power_law(sigma: float, budget: int, radius: int) -> PatternSpec:
    """Exactly `budget` neighbours a query, itself and the window included."""
    return PatternSpec.of("power_law", sigma=float(sigma), budget=budget, window=radius)


@lru_cache(maxsize=None)
def draws_for(sigma: float, budget: int, radius: int, length: int) -> int:
    """The number of draws with replacement whose expected pairs at `length`, repeats merged and window included, are
    nearest the budget's pairs."""
    wanted = float(np.minimum(budget, np.arange(length) + 1).sum())
    require(budget >= radius + 1, "budgets", budget, f"at least the window's {radius + 1} keys")
    require(length <= MOST_LENGTH, "draws_sigmas", sigma, f"none beyond {MOST_LENGTH:,} tokens: all pairs are counted")

    def pairs(m: int) -> float:
        return PowerLaw(mode="draws", sigma=sigma, draws=m, window=radius).expected_pairs(length)
    most = 1
    while pairs(most) < wanted:
        require(most < MOST_DRAWS, "draws_sigmas", sigma, f"one that reaches budget = {budget} in {MOST_DRAWS:,} draws")
        most *= 2
    first = max(1, bisect_left(range(most), wanted, lo=most // 2, key=pairs))       # the first m with as many
    return min((first - 1, first), key=lambda m: abs(pairs(m) - wanted))
