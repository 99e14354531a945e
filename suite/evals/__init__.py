"""Evaluations by name. Every file of this folder that defines an `Evaluator` is found; nothing else is to be edited.

This file imports no torch: planning and tables read it too.
"""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from lib.config import Metric
from lib.errors import SuiteError
from lib.registry import Registry, check

if TYPE_CHECKING:
    import numpy as np
    import torch

    from lib.config import Evaluation, RunConfig
    from lib.data import Corpus

__all__ = ["EvalResult", "Evaluator", "Metric", "build", "evaluate", "names"]


@dataclass(frozen=True)
class EvalResult:
    """Metrics for the tables, and the arrays they are means of (by window or item), for paired comparisons."""
    metrics: list[Metric]
    arrays: "dict[str, np.ndarray]" = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """One evaluation. A subclass is a frozen dataclass; its fields are its parameters.

    `measure(model, run, corpus, device)` is its `EvalResult` for a model in evaluation mode: deterministic, and without
    use of the global random stream.
    """
    name: ClassVar[str]

    def __post_init__(self) -> None:
        check(self)


_evaluations = Registry(__name__, Evaluator, "evaluation")
names = _evaluations.names


def build(name: str, **parameters: Any) -> Evaluator:
    """The evaluation `name`, its parameters checked: a plan calls it before anything is trained."""
    return _evaluations.build(name, parameters)


def evaluate(evaluation: "Evaluation", model: "torch.nn.Module", run: "RunConfig", corpus: "Corpus | None" = None,
             device: "torch.device | str" = "cpu") -> EvalResult:
    """The result of an evaluation of `model`, which lies on `device`; a `SuiteError` if a metric is not finite."""
    import torch
    evaluator, training = build(evaluation.name, **dict(evaluation.parameters)), model.training
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
