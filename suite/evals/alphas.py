"""What learning has made of each layer's alpha: its value, and the loss as a function of it.

Source: the Fibonacci document, on why the scalar does not move ("a flat loss landscape in the dilation multiplier").
"""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from lib.errors import SuiteError
from lib.registry import Positive
from suite.evals import EvalResult, Evaluator, Metric
from suite.evals.scoring import heldout_losses


@dataclass(frozen=True, kw_only=True)
class Alphas(Evaluator):
    """Measure `alpha`, one a layer."""
    name = "alphas"

    def measure(self, model, run, corpus, device):
        metrics = [Metric("alpha", float(alpha), layer=layer) for layer, alpha in enumerate(model.alphas())]
        if not metrics:
            raise SuiteError(f"evaluation {self.name} needs a pattern that learns alpha; {run.pattern.name!r} has none")
        return EvalResult(metrics)


@dataclass(frozen=True, kw_only=True)
class AlphaLandscape(Alphas):
    """Measure `alpha_nll_change` by layer and value of its alpha (`variant`, for instance `alpha=0.8`).

    It counts nats per token above the loss of the model as it was learned, the mean over the domains. Array: `change`
    `[layers, alphas, windows]`.
    """
    name = "alpha_landscape"

    alphas: Annotated[tuple[Annotated[float, Field(gt=0.5, lt=1.5)], ...], Field(min_length=1)] = (
        0.6, 0.8, 1.0, 1.2, 1.4)    # of (0.5, 1.5)
    tokens: Positive = 4096         # held-out tokens of each domain, in windows of the training length

    def measure(self, model, run, corpus, device):
        super().measure(model, run, corpus, device)
        T = run.train.length

        def losses() -> np.ndarray:
            """Mean loss of each window, domain after domain."""
            found = heldout_losses(model, run, corpus, device, T, max(self.tokens, T))
            return np.concatenate([nll.mean(axis=1) for *_, nll in found])
        before, metrics, changes = losses(), [], []
        for layer, block in enumerate(model.blocks):
            theta = block.attention.theta.data
            learned = theta.clone()
            try:
                for alpha in self.alphas:
                    theta.fill_(math.log((alpha - 0.5) / (1.5 - alpha)))
                    changes.append(losses() - before)
                    change = float(changes[-1].mean())
                    metrics.append(Metric("alpha_nll_change", change, variant=f"alpha={alpha:g}", layer=layer))
            finally:
                theta.copy_(learned)
        return EvalResult(metrics, {"change": np.stack(changes).reshape(len(model.blocks), len(self.alphas), -1)})
