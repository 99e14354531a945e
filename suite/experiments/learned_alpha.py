"""Experiment 2: does a learned alpha move, and does moving it help? (Fibonacci paper, Sections 3 and 4.)"""

from lib.config import DataConfig, Evaluation, PatternSpec
from lib.errors import one_of, require
from suite.experiments import base
from suite.experiments.common import DENSE, RAMP, Recipe, TinyModel, model_labels, rungs_within
from suite.settings.parameters import Parameters

STARTS = {"one": "fibonacci/learned", "ramp": "fibonacci/learned_ramp"}
PROBE = "copy probe"            # the task's label: the marked copy of two distances


class LearnedAlpha(base.Experiment):
    name = "02_learned_alpha"

    def plan(self, parameters, profile):
        recipe, W = Recipe(parameters, profile), parameters.window
        measure, of_alpha = recipe.perplexity(), [Evaluation.of("alphas")]
        if parameters.landscape:
            of_alpha.append(Evaluation.of("alpha_landscape", tokens=parameters.landscape))
        learned = [recipe.described(STARTS[one_of(start, STARTS, "start")], W, theta_lr=theta_lr)
                   for theta_lr in parameters.theta_lr for start in parameters.starts]
        others = [*(recipe.described(model, W) for model in parameters.fixed),
                  *recipe.controls(recipe.scaled(RAMP, W), W)]
        jobs = recipe.jobs([DENSE], *measure)
        for seed in parameters.seeds:
            jobs += recipe.jobs(learned, *measure, *of_alpha, seeds=[seed])
            jobs += recipe.jobs(others, *measure, seeds=[seed])
        return list(dict.fromkeys(jobs + probe_jobs(parameters, recipe)))


def probe_jobs(parameters: Parameters, recipe: Recipe) -> list[base.Job]:
    """Models trained on the marked copy of two distances: between rungs at every rate of theta, on rungs at its own.

    They have as many rungs as the probe's length. A blur is for what lies between rungs: blurred models are not asked
    on rungs. Where there are alphas, they are read.
    """
    jobs, W, rungs = [], parameters.window, rungs_within(parameters.probe_length)
    for model in parameters.probe_blurred:
        require("/blurred" in model, "probe_blurred", model, "fibonacci/blurred or fibonacci/blurred_ramp")
    for depth in parameters.probe_depths:
        tiny = TinyModel(parameters.probe_length, parameters.probe_steps, layers=depth)
        for model in parameters.probe_models + parameters.probe_blurred:
            spec = recipe.scaled(model.replace("/blurred", "/learned"), W, rungs)
            if "/blurred" in model:
                spec = PatternSpec.of("blurred", **dict(spec.parameters), blur=parameters.probe_blur)
            learned_rates = {"blurred": parameters.probe_blur_theta_lr, "learned": parameters.probe_theta_lr}
            asked = [(parameters.probe_distances, theta_lr) for theta_lr in learned_rates.get(spec.name, (1.0,))]
            asked += [] if spec.name == "blurred" else [(parameters.probe_rungs, 1.0)]
            more = [Evaluation.of("alphas")] if spec.name in learned_rates else []
            for distances, theta_lr in asked:
                labels = model_labels(model, W, task=PROBE, depth=depth, theta_lr=theta_lr)
                jobs += tiny.jobs((spec, labels), DataConfig.of("marked_copy", distances=distances),
                                  parameters.probe_seeds, *more)
    return jobs
