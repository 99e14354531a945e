"""Experiment 9: the suite's own question, where long rungs pay against a plain window of as many keys."""

import dataclasses
import itertools
from collections.abc import Sequence

from lib.config import DataConfig, Evaluation, PatternSpec
from lib.errors import one_of, require
from suite.experiments import base
from suite.experiments.all_patterns import FAR, at_equal_edges, equal_to
from suite.experiments.common import (CONTROLS, DENSE, RAMP, Recipe, TinyModel, model_labels, rungs_within,
                                      shortened)
from suite.settings.parameters import Parameters

STRING = 32         # symbols of a planted copy


class LongRungs(base.Experiment):
    name = "09_long_rungs"

    def plan(self, parameters, profile):
        require(1.0 in parameters.fractions, "fractions", parameters.fractions, "shares of a run, 1.0 among them")
        whole, names = Recipe(parameters, profile), ("local", *parameters.families)
        jobs = [job for seed in parameters.seeds for job in jobs_of(whole, names, seed)]
        jobs += [job for seed in parameters.sweep_seeds for job in jobs_of(whole, ("dense", *parameters.others), seed)]
        shares = sorted({*parameters.fractions, parameters.length_fraction} - {1.0}, reverse=True)
        for seed in parameters.sweep_seeds:
            for share in shares:
                jobs += jobs_of(whole, names, seed, share)
            for length in parameters.lengths:
                other = dataclasses.replace(profile, rungs=rungs_within(length))    # as many rungs as the length holds
                recipe = whole if length == whole.length else Recipe(parameters, other, tokens_a_window=length)
                jobs += jobs_of(recipe, names, seed, parameters.length_fraction)
            for width in parameters.widths:
                wide = Recipe(parameters, profile, width=width)
                jobs += jobs_of(wide, ("dense", "local", RAMP), seed, parameters.length_fraction)
        return list(dict.fromkeys(jobs + copy_jobs(parameters)))


def jobs_of(recipe: Recipe, names: Sequence[str], seed: int, share: float = 1.0) -> list[base.Job]:
    """Models at equal pairs, trained on a share of the tokens with a whole schedule of its own; whole runs at the
    profile's length are asked for recurrence too, from what one layer of the local window reaches on."""
    require(share > 0, "fractions", share, "above 0")
    more = {"other_length": recipe.tokens_a_window or None, "width": recipe.width or None,
            "share": None if share == 1.0 else share}
    jobs, measures = [], [*recipe.perplexity()]
    if set(more.values()) == {None}:
        edges = recurrence_edges(recipe.pattern(at_equal_edges("local", recipe)[0]).widest, recipe.length)
        measures.append(Evaluation.of("recurrence", tokens=recipe.profile.evaluation_tokens,
                                      n=recipe.parameters.context, edges=edges))
    for name in names:
        spec, labels = DENSE if name == "dense" else at_equal_edges(name, recipe)
        run = recipe.run(spec, seed)
        if share != 1:
            run = dataclasses.replace(run, train=shortened(run.train, round(share * run.train.tokens)))
        jobs.append(base.Job.of(run, *measures, **labels | more))
    return jobs


def recurrence_edges(reach: int, length: int) -> tuple[int, ...]:
    """First distances of the bins: 0 to `reach` is one bin, then each ends at twice the distance of the one before."""
    firsts = (reach * 2 ** octave + 1 for octave in itertools.count())
    return 0, *itertools.takewhile(lambda first: first < length, firsts)


def copy_jobs(parameters: Parameters) -> list[base.Job]:
    """Small models trained to say a string again after a planted distance: one a mask, at the ramp's pairs."""
    jobs, W = [], parameters.window
    for distance, mask in itertools.product(parameters.copy_distances, parameters.copy_masks):
        require(distance >= 8, "copy_distances", distance, "at least 8 (tokens)")
        one_of(mask, {"dense", RAMP, *FAR, *CONTROLS}, "mask of a planted copy")
        string = min(STRING, distance)
        tiny, data = TinyModel(distance + string, parameters.copy_steps), DataConfig.of("copying", string=string)
        ramp = PatternSpec.of("scaled_base", schedule="linear", window=W, rungs=rungs_within(tiny.length))
        if mask == RAMP:
            model = ramp, model_labels(RAMP, W)
        elif mask in FAR:
            model = equal_to(tiny.pattern(ramp), mask, tiny.length, W, parameters.sigma)
        else:
            model = tiny.mask(mask, ramp, W)
        jobs += tiny.jobs(model, data, parameters.copy_seeds, task="copying", distance=distance)
    return jobs
