"""Experiment 8: every family's proposal and every pattern of the literature at the attended pairs of one of them."""

from lib.errors import SuiteError, one_of, require
from lib.patterns import Pattern
from lib.patterns.matching import match_edges
from suite.experiments import base
from suite.experiments.common import (CONTROLS, DENSE, RAMP, TOLERANCE, Described, Recipe, equal_edges, spec_of,
                                      split_model, title)
from suite.settings.parameters import Parameters
from suite.settings.profiles import Profile

FAR = ("power_law", "christoffel")
LITERATURE = {"sparse_fixed": "Sparse Transformer, fixed", "sparse_strided": "Sparse Transformer, strided",
              "log_sparse": "LogSparse", "longformer": "Longformer", "bigbird": "BigBird", "longnet": "LongNet",
              "dilate_former": "DilateFormer", "power_attention": "PowerAttention", "fibottention": "Fibottention",
              "mswa": "MSWA", "streaming_sinks": "StreamingLLM", "adaptive_span": "Adaptive span"}


class AllPatterns(base.Experiment):
    name = "08_all_patterns"

    def plan(self, parameters, profile):
        require(1 in parameters.factors, "factors", parameters.factors,
                "multiples of the training length, 1 among them")
        recipe = Recipe(parameters, profile)
        measure = recipe.perplexity(*(factor * recipe.length for factor in parameters.factors))
        return list(dict.fromkeys(recipe.named([("dense", DENSE), *matched(recipe)[0].items()], *measure)))


def matched(recipe: Recipe) -> tuple[dict[str, Described], dict[str, str]]:
    """The patterns at the pairs of the ramp, and why others cannot attend so many, by name."""
    models, left_out = {}, {}
    for name in recipe.parameters.patterns:
        if "/" in name:
            split_model(name)
        else:
            one_of(name, (*FAR, *CONTROLS, *LITERATURE, RAMP), "pattern")
        try:
            models[name] = at_equal_edges(name, recipe)
        except SuiteError as error:
            left_out[name] = str(error)
    return models, left_out


def left_out(parameters: Parameters, profile: Profile) -> dict[str, str]:
    """Patterns that cannot attend as many pairs as the ramp, by name, with the nearest that they can."""
    return matched(Recipe(parameters, profile))[1]


def at_equal_edges(name: str, recipe: Recipe) -> Described:
    """The pattern `name` with the attended pairs of the ramp at the recipe's length, within 1 %.

    A model of the Fibonacci paper that has as many by itself stays as it is, so that other experiments share its runs.
    A pattern that cannot have as many is a `SuiteError`.
    """
    T, window = recipe.length, recipe.parameters.window
    like = recipe.pattern(recipe.scaled(RAMP, window))
    if "/" not in name:
        return equal_to(like, name, T, window, recipe.parameters.sigma)
    (spec, labels), pairs = recipe.described(name, window), like.pairs(T)
    if abs(recipe.pattern(spec).pairs(T) - pairs) <= TOLERANCE * pairs:
        return spec, labels
    own = {parameter: value for parameter, value in spec.parameters if parameter != "window"}
    matched_spec = spec_of(match_edges(spec.name, like, T, TOLERANCE, **own))
    return matched_spec, {**labels, "series": f"{title(name)}, equal edges", "equal_pairs": pairs}


def equal_to(like: Pattern, name: str, length: int, window: int, sigma: float) -> Described:
    """A control, a pattern of the literature, the power law or a Christoffel word, with the pairs of `like`."""
    if name in CONTROLS:
        return equal_edges(name, like, length, window)
    pairs = like.pairs(length)
    keys = pairs / (length * like.layers)       # of BigBird's, window : global : random are 3 : 2 : 3, as in the paper
    own = {"power_law": {"sigma": sigma, "window": window}, "christoffel": {"k": length, "m": 1, "window": window},
           "bigbird": {"window": max(0, round(keys * 3 / 8) - 1), "global_tokens": max(1, round(keys * 2 / 8))}}
    spec = spec_of(match_edges(name, like, length, TOLERANCE, **own.get(name, {})))
    labels = {"role": "model" if name in FAR else "neighbour", "window": window, "equal_pairs": pairs}
    if name == "power_law":
        return spec, {"series": "Power law", "sigma": sigma, **labels}
    if name == "christoffel":
        return spec, {"series": "Christoffel word", "word": f"{dict(spec.parameters)['m']}/{length}", **labels}
    return spec, {"series": f"{LITERATURE[name]}, equal edges", **labels}
