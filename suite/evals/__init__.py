"""Evaluations by name. Every file of this folder that defines an `Evaluator` is found; nothing else is to be edited."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lib.errors import SuiteError
from lib.registry import Registry
from suite.evals.base import EvalResult, Evaluator, Metric

if TYPE_CHECKING:
    import torch

    from lib.config import Evaluation, RunConfig
    from lib.data import Corpus

__all__ = ["EvalResult", "Evaluator", "Metric", "build", "evaluate", "names"]


_evaluations = Registry(__name__, Evaluator, "evaluation")
names = _evaluations.names


def build(name: str, **parameters: Any) -> Evaluator:
    """The evaluation `name`, its parameters checked: a plan calls it before anything is trained."""
    return _evaluations.build(name, parameters)


def evaluate(evaluation: Evaluation, model: torch.nn.Module, run: RunConfig, corpus: Corpus | None = None,
             device: torch.device | str = "cpu") -> EvalResult:
    """The result of an evaluation of `model`, which lies on `device`; a `SuiteError` if a metric is not finite."""
    import torch
    evaluator = build(evaluation.name, **dict(evaluation.parameters))
    training = model.training
    model.eval()
    try:
        result = evaluator.measure(model, run, corpus, torch.device(device))
    finally:
        model.train(training)
    for metric in result.metrics:
        if not math.isfinite(metric.value):
            raise SuiteError(f"evaluation {evaluation.name} of pattern {run.pattern.name}: {metric.measure} "
                             f"{metric.split} = {metric.value}; the model's outputs are not finite (did it diverge?)")
    return result
