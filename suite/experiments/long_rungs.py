"""Experiment 9: the suite's own question, where long rungs pay against a plain window of as many keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from lib.config import DataConfig, Evaluation, PatternSpec, RunConfig
from lib.errors import one_of, require
from suite.experiments import base
from suite.experiments.all_patterns import FAR, LIKE, Described, at_equal_edges, equal_to
from suite.experiments.common import (ACCURACY, CONTROLS, DENSE, DENSE_LABELS, Recipe, TinyModel, model_labels, ordered,
                                      rungs_within, shortened)
from suite.settings.parameters import Parameters

STRING = 32         # symbols of a planted copy


class LongRungs(base.Experiment):
    name = "09_long_rungs"
    title = "Long rungs"
    question = "Where do long rungs pay: at which number of training tokens, at which length, on which text?"

    def plan(self, parameters, profile):
        require(1.0 in parameters.fractions, "fractions", parameters.fractions, "shares of a run, 1.0 among them")
        whole = AtLength(parameters, Recipe(parameters, profile))
        names = ("local", *parameters.families)
        jobs = [job for seed in parameters.seeds for job in whole.jobs(names, seed)]
        jobs += whole.jobs(("dense", *parameters.others), parameters.seeds[0])
        shares = sorted({*parameters.fractions, parameters.length_fraction} - {1.0}, reverse=True)
        for seed in parameters.sweep_seeds:
            for share in shares:
                jobs += whole.jobs(names, seed, share)
            for length in parameters.lengths:
                other = AtLength(parameters, Recipe(parameters, profile, tokens_a_window=length))
                jobs += other.jobs(names, seed, parameters.length_fraction)
        return ordered(jobs + copy_jobs(parameters))


@dataclass(frozen=True)
class AtLength:
    """The models at one training length: their patterns at equal pairs there, with rungs up to that length."""
    parameters: Parameters
    recipe: Recipe

    @property
    def own(self) -> Recipe:
        """The recipe with as many rungs as the length holds; the profile's at its own length."""
        length, profile = self.recipe.length, self.recipe.profile
        if length == profile.train.length:
            return self.recipe
        return dataclasses.replace(self.recipe, profile=dataclasses.replace(profile, rungs=rungs_within(length)))

    def jobs(self, names: Sequence[str], seed: int, share: float = 1.0) -> list[base.Job]:
        return [self.job(name, seed, share) for name in names]

    def job(self, name: str, seed: int, share: float) -> base.Job:
        """A model trained on a share of the tokens; whole runs at the profile's length are asked for recurrence too."""
        spec, labels = self.described(name)
        at_home = self.recipe.length == self.recipe.profile.train.length
        measures = (*self.own.perplexity(), *([self.recurrence()] if at_home and share == 1.0 else []))
        return base.Job.of(part_of(self.own.run(spec, seed), share), *measures,
                           **labels | {"other_length": None if at_home else self.recipe.length,
                                       "share": None if share == 1.0 else share})

    def described(self, name: str) -> Described:
        if name == "dense":
            return DENSE, DENSE_LABELS
        return at_equal_edges(name, self.own, self.parameters.window, self.parameters.sigma)

    def recurrence(self) -> Evaluation:
        """Bins of recurrence distance: what one layer of the local window reaches, then octaves of that."""
        reach = self.own.pattern(self.described("local")[0]).widest
        return Evaluation.of("recurrence", tokens=self.recipe.profile.evaluation_tokens, n=self.parameters.context,
                             edges=recurrence_edges(reach, self.recipe.length))


def recurrence_edges(reach: int, length: int) -> tuple[int, ...]:
    """First distances of the bins: 0 to `reach` is one bin, then each ends at twice the distance of the one before."""
    edges, last = [0], reach
    while last + 1 < length:
        edges.append(last + 1)
        last *= 2
    return tuple(edges)


def part_of(run: RunConfig, share: float) -> RunConfig:
    """The run for a share of its tokens, with a whole schedule of its own."""
    if share == 1.0:
        return run
    require(0 < share < 1, "fractions", share, "above 0, up to 1")
    return dataclasses.replace(run, train=shortened(run.train, round(share * run.train.tokens)))


def copy_jobs(parameters: Parameters) -> list[base.Job]:
    """Small models trained to say a string again after a planted distance: one a mask, at the ramp's pairs."""
    jobs = []
    for distance in parameters.copy_distances:
        require(distance >= 8, "copy_distances", distance, "at least 8 (tokens)")
        string = min(STRING, distance)
        tiny, data = TinyModel(distance + string, parameters.copy_steps), DataConfig.of("copying", string=string)
        for mask in parameters.copy_masks:
            spec, labels = copy_mask(mask, tiny, parameters)
            labels = labels | {"task": "copying", "distance": distance}
            jobs += [base.Job.of(tiny.run(spec, data, seed), ACCURACY, **labels) for seed in parameters.sweep_seeds]
    return jobs


def copy_mask(mask: str, tiny: TinyModel, parameters: Parameters) -> Described:
    one_of(mask, {"dense", LIKE, *FAR, *CONTROLS}, "mask of a planted copy")
    ramp = PatternSpec.of("scaled_base", schedule="linear", window=parameters.window, rungs=rungs_within(tiny.length))
    if mask == "dense":
        return DENSE, DENSE_LABELS
    if mask == LIKE:
        return ramp, model_labels(LIKE, parameters.window)
    return equal_to(tiny.pattern(ramp), mask, tiny.length, parameters.window, parameters.sigma)
