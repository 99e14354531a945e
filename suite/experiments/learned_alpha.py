"""Experiment 2: does a learned alpha move, and does moving it help? (Fibonacci paper, Sections 3 and 4.)"""

from __future__ import annotations

from lib.config import DataConfig, Evaluation, PatternSpec
from lib.errors import require
from suite.experiments import base
from suite.experiments.common import ACCURACY, Recipe, TinyModel, dense_jobs, model_labels, ordered, rungs_within
from suite.settings.parameters import Parameters

STARTS = {"one": "fibonacci/learned", "ramp": "fibonacci/learned_ramp"}
PROBE = "copy probe"            # the task's label: the marked copy of two distances


class LearnedAlpha(base.Experiment):
    name = "02_learned_alpha"
    title = "Learned alpha"
    question = "Does a learned alpha move away from its start, does that help, and what does learning it cost?"

    def plan(self, parameters, profile):
        recipe = Recipe(parameters, profile)
        measure = recipe.perplexity()
        of_alpha = [Evaluation.of("alphas")]
        if parameters.landscape:
            of_alpha.append(Evaluation.of("alpha_landscape", tokens=parameters.landscape))
        jobs = dense_jobs(recipe, *measure)
        like = recipe.scaled("fibonacci/linear", parameters.window)
        for seed in parameters.seeds:
            for start, theta_lr in [(s, t) for t in parameters.theta_lr for s in parameters.starts]:
                run = recipe.run(recipe.scaled(STARTS[start], parameters.window), seed, theta_lr=theta_lr)
                jobs.append(base.Job.of(run, *measure, *of_alpha,
                                        **model_labels(STARTS[start], parameters.window, theta_lr=theta_lr)))
            jobs += [base.Job.of(recipe.run(recipe.scaled(model, parameters.window), seed), *measure,
                                 **model_labels(model, parameters.window)) for model in parameters.fixed]
            jobs += recipe.controls(parameters.controls, like, seed, measure, parameters.window)
        return ordered(jobs + probe_jobs(parameters, recipe))


def probe_jobs(parameters: Parameters, recipe: Recipe) -> list[base.Job]:
    """Models trained on the marked copy of two distances: between rungs at every rate of theta, on rungs at its own.

    A blur is for what lies between rungs: blurred models are not asked on rungs.
    """
    jobs = []
    for depth in parameters.probe_depths:
        tiny = TinyModel(parameters.probe_length, parameters.probe_steps, layers=depth)
        for model in parameters.probe_models + parameters.probe_blurred:
            spec, blurred = probe_spec(parameters, recipe, model), model in parameters.probe_blurred
            learned_rates = {"blurred": parameters.probe_blur_theta_lr, "learned": parameters.probe_theta_lr}
            rates = learned_rates.get(spec.name, (1.0,))
            wanted = [(parameters.probe_distances, theta_lr) for theta_lr in rates]
            wanted += [] if blurred else [(parameters.probe_rungs, 1.0)]
            for distances, theta_lr in wanted:
                data = DataConfig.of("marked_copy", distances=distances)
                labels = model_labels(model, parameters.window, task=PROBE, depth=depth, theta_lr=theta_lr)
                jobs += [base.Job.of(tiny.run(spec, data, seed, theta_lr=theta_lr), *measured(spec), **labels)
                         for seed in parameters.probe_seeds]
    return jobs


def probe_spec(parameters: Parameters, recipe: Recipe, model: str) -> PatternSpec:
    """The probe's pattern with as many rungs as its length has; a blurred one is a learned one and its kernel."""
    blurred, rungs = model in parameters.probe_blurred, rungs_within(parameters.probe_length)
    require(not blurred or "/blurred" in model, "probe_blurred", model, "fibonacci/blurred or fibonacci/blurred_ramp")
    spec = recipe.scaled(model.replace("/blurred", "/learned") if blurred else model, parameters.window, rungs)
    return PatternSpec.of("blurred", **dict(spec.parameters), blur=parameters.probe_blur) if blurred else spec


def measured(spec: PatternSpec) -> list[Evaluation]:
    """Accuracy of a probe's model, and its alphas where it has some."""
    return [ACCURACY, *([Evaluation.of("alphas")] if spec.name in ("learned", "blurred") else [])]
