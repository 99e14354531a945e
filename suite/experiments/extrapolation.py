"""Experiment 3: losses beyond the training length, and whether more context helps (Fibonacci paper, Section 4)."""

from __future__ import annotations

from lib.config import Evaluation, Items
from lib.errors import one_of
from lib.patterns import Pattern
from suite.experiments import base
from suite.experiments.common import DENSE, DENSE_LABELS, Recipe, dense_jobs, model_labels, ordered
from suite.settings.parameters import Parameters

POSITIONS = {"alibi": "Dense, ALiBi", "nope": "Dense, no positions"}


class Extrapolation(base.Experiment):
    name = "03_extrapolation"
    title = "Extrapolation"
    question = "Which models keep their loss beyond the training length, and does the extra context help them at all?"

    def plan(self, parameters, profile):
        recipe = Recipe(parameters, profile)
        lengths = [factor * recipe.length for factor in parameters.factors]
        plain, beyond = recipe.perplexity(*lengths), [length for length in lengths if length > recipe.length]
        jobs = dense_jobs(recipe, *plain, *rescued(parameters, recipe, beyond))
        for seed in parameters.seeds:
            jobs += [base.Job.of(recipe.run(recipe.scaled(model, parameters.window), seed), *plain,
                                 *frozen(parameters, recipe, model, beyond), **model_labels(model, parameters.window))
                     for model in parameters.models]
            like = recipe.scaled("fibonacci/linear", parameters.window)
            jobs += recipe.controls(parameters.controls, like, seed, plain, parameters.window)
            jobs += [base.Job.of(recipe.run(DENSE, seed, model={"position": position}), *plain,
                                 **DENSE_LABELS | {"series": POSITIONS[position]}) for position in parameters.positions]
        return ordered(jobs)


def rescued(parameters: Parameters, recipe: Recipe, lengths: list[int]) -> list[Evaluation]:
    """The dense model beyond its training length, helped by a changed RoPE, or by a mask that hides far keys."""
    found = [e for rope in parameters.ropes for e in recipe.perplexity(*lengths, rope=rope, variant=f"rope={rope}")]
    reach = recipe.length - 1                                 # distances that training has shown
    masks: dict[str, tuple[str, Items]] = {
        "window": ("local", (("window", reach),)),
        "sinks": ("streaming_sinks", (("sinks", parameters.sinks), ("window", reach - parameters.sinks))),
    }
    for name in parameters.masks:
        found += recipe.perplexity(*lengths, pattern=masks[one_of(name, masks, "mask")], variant=f"mask={name}")
    return found


def frozen(parameters: Parameters, recipe: Recipe, model: str, lengths: list[int]) -> list[Evaluation]:
    """The rungs of the training length at any length, where the pattern would add rungs beyond it."""
    spec = recipe.scaled(model, parameters.window)
    rebuilt = recipe.pattern(spec)
    if not parameters.frozen or spec.name != "scaled_base":
        return []
    held = (spec.name, tuple(sorted({**dict(spec.parameters), "trained_length": recipe.length}.items())))
    return [e for length in lengths if grows(rebuilt, recipe.length, length)
            for e in recipe.perplexity(length, pattern=held, variant="rungs=frozen")]


def grows(pattern: Pattern, trained: int, length: int) -> bool:
    """Whether some layer attends distances at `length` that it does not at `trained`."""
    return any(pattern.plan(layer, length) != pattern.plan(layer, trained) for layer in range(pattern.layers))
