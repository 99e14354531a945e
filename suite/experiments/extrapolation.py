"""Experiment 3: losses beyond the training length, and whether more context helps (Fibonacci paper, Section 4)."""

from lib.config import Evaluation, Items
from lib.errors import one_of
from suite.experiments import base
from suite.experiments.common import DENSE, RAMP, Recipe

POSITIONS = {"alibi": "Dense, ALiBi", "nope": "Dense, no positions"}


class Extrapolation(base.Experiment):
    name = "03_extrapolation"

    def plan(self, parameters, profile):
        recipe, W = Recipe(parameters, profile), parameters.window
        lengths = [factor * recipe.length for factor in parameters.factors]
        plain, beyond = recipe.perplexity(*lengths), [length for length in lengths if length > recipe.length]
        jobs = recipe.named([("dense", DENSE)], *plain, *rescued(recipe, beyond))
        for model in parameters.models:
            jobs += recipe.named([(model, recipe.described(model, W))], *plain, *frozen(recipe, model, beyond))
        controls = recipe.controls(recipe.scaled(RAMP, W), W)
        jobs += recipe.named(zip(parameters.controls, controls, strict=True), *plain)
        for name in parameters.positions:
            model = DENSE[0], DENSE[1] | {"series": POSITIONS[one_of(name, POSITIONS, "position")]}
            jobs += Recipe(parameters, profile, position=name).named([(name, model)], *plain)
        return list(dict.fromkeys(jobs))


def rescued(recipe: Recipe, lengths: list[int]) -> list[Evaluation]:
    """The dense model beyond its training length, helped by a changed RoPE, or by a mask that hides far keys."""
    parameters, reach = recipe.parameters, recipe.length - 1                # distances that training has shown
    found = [e for rope in parameters.ropes for e in recipe.perplexity(*lengths, rope=rope, variant=f"rope={rope}")]
    masks: dict[str, tuple[str, Items]] = {
        "window": ("local", (("window", reach),)),
        "sinks": ("streaming_sinks", (("sinks", parameters.sinks), ("window", reach - parameters.sinks))),
    }
    for name in parameters.masks:
        found += recipe.perplexity(*lengths, pattern=masks[one_of(name, masks, "mask")], variant=f"mask={name}")
    return found


def frozen(recipe: Recipe, model: str, lengths: list[int]) -> list[Evaluation]:
    """The rungs of the training length at those lengths where the pattern would add distances in some layer."""
    spec, trained = recipe.scaled(model, recipe.parameters.window), recipe.length
    if not recipe.parameters.frozen or spec.name != "scaled_base":
        return []
    rebuilt = recipe.pattern(spec)
    held = (spec.name, tuple(sorted({**dict(spec.parameters), "trained_length": trained}.items())))
    return [e for length in lengths
            if any(rebuilt.plan(layer, length) != rebuilt.plan(layer, trained) for layer in range(rebuilt.layers))
            for e in recipe.perplexity(length, pattern=held, variant="rungs=frozen")]
