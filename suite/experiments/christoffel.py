"""Experiment 5: Christoffel words as offsets, against masks of equal pairs (its document; audit rows 22 to 24)."""

import re
from itertools import product

from lib.config import DataConfig, Evaluation, PatternSpec
from lib.errors import one_of, require
from suite.experiments import base
from suite.experiments.common import CONTROLS, DENSE, Described, Recipe, TinyModel


class Christoffel(base.Experiment):
    name = "05_christoffel"

    def plan(self, parameters, profile):
        recipe = Recipe(parameters, profile, parameters.layers, parameters.width, parameters.length, parameters.domains)
        measures = (*recipe.perplexity(), Evaluation.of("gradient_flow", far=recipe.length // 4),
                    Evaluation.of("attention_memory"))
        require(len(parameters.words) > 0, "words", parameters.words, "one word or more")
        jobs, models = recipe.jobs([DENSE], *measures), []
        for window in parameters.windows:
            models += [described(word, window) for word in parameters.words]
            models += recipe.controls(word_spec(parameters.words[-1], window), window)
        jobs += recipe.jobs(models, *measures)
        # Models trained directly on long-range tasks, one a mask and window; controls have the pairs of the last word.
        tiny = TinyModel(parameters.task_length, parameters.task_steps)
        for task, window, mask in product(parameters.tasks, parameters.task_windows, parameters.task_masks):
            one_of(mask, {"dense", "word", "words", *CONTROLS}, "mask of a task")
            words = {"words": parameters.words, "word": parameters.words[-1:]}.get(mask, ())
            models = [described(word, window) for word in words]
            for model in models or [tiny.mask(mask, word_spec(parameters.words[-1], window), window)]:
                jobs += tiny.jobs(model, DataConfig.of(task), parameters.task_seeds, task=task)
        return list(dict.fromkeys(jobs))


def split_word(word: str) -> tuple[int, int]:
    """m and k of `m/k`."""
    parts = re.fullmatch("([0-9]{1,5})/([0-9]{1,5})", word)
    require(parts is not None, "words", word, "m/k with whole numbers of at most 5 digits, for instance 31/256")
    return int(parts[1]), int(parts[2])


def word_spec(word: str, window: int = 0) -> PatternSpec:
    m, k = split_word(word)
    return PatternSpec.of("christoffel", m=m, k=k, window=window)


def described(word: str, window: int) -> Described:
    return word_spec(word, window), {"series": f"Christoffel {word}", "role": "model", "window": window, "word": word}
