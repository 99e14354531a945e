"""What an evaluation of a finished run answers. This file imports no torch: planning and tables read it too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from lib.config import Metric
from lib.registry import check

if TYPE_CHECKING:
    import numpy as np
    import torch

    from lib.config import RunConfig
    from lib.data import Corpus

__all__ = ["EvalResult", "Evaluator", "Metric"]


@dataclass(frozen=True)
class EvalResult:
    """Metrics for the tables, and the arrays they are means of (by window or item), for paired comparisons."""
    metrics: list[Metric]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """One evaluation. A subclass is a frozen dataclass in a file of its own; its fields are its parameters."""
    name: ClassVar[str]

    def __post_init__(self) -> None:
        check(self)

    def measure(self, model: torch.nn.Module, run: RunConfig, corpus: Corpus | None,
                device: torch.device) -> EvalResult:
        """The result for a model in evaluation mode: deterministic, and without use of the global random stream."""
        raise NotImplementedError(f"{type(self).__name__} does not define measure")
