"""The loss as a function of one layer's alpha, the others as they were learned: is it flat?

Source: the Fibonacci document, on why the scalar does not move ("a flat loss landscape in the dilation multiplier").
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import nn

from lib.data import domains_of, heldout_windows
from lib.errors import SuiteError, require
from lib.registry import Positive
from suite.evals.base import EvalResult, Evaluator, Metric
from suite.evals.scoring import need, running, token_nll


@dataclass(frozen=True, kw_only=True)
class AlphaLandscape(Evaluator):
    """Measure `alpha_nll_change` by layer and value (`variant`, for instance `alpha=0.8`).

    It counts nats per token above the loss of the model as it was learned, the mean over the domains. Array: `change`
    `[layers, alphas, windows]`.
    """
    name = "alpha_landscape"

    alphas: tuple[Annotated[float, Field(gt=0.5, lt=1.5)], ...] = (0.6, 0.8, 1.0, 1.2, 1.4)     # of (0.5, 1.5)
    tokens: Positive = 4096         # held-out tokens of each domain, in windows of the training length

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.alphas) >= 1, "alphas", self.alphas, "at least one number")

    def measure(self, model, run, corpus, device):
        if not model.alphas():
            raise SuiteError(f"evaluation {self.name} needs a pattern that learns alpha; {run.pattern.name!r} has none")
        corpus = need(corpus, self.name, run)
        T = run.train.length
        windows = [heldout_windows(corpus, domain, T, max(self.tokens, T)) for domain in domains_of(run.data, corpus)]

        def losses() -> np.ndarray:
            """Mean loss of each window, domain after domain."""
            with running(run, device):
                return np.concatenate([token_nll(model, *pair, device).mean(axis=1) for pair in windows])
        learned, metrics, changes = losses(), [], []
        for layer, block in enumerate(model.blocks):
            for alpha in self.alphas:
                with held(block.attention.theta, math.log((alpha - 0.5) / (1.5 - alpha))):
                    changes.append(losses() - learned)
                change = float(changes[-1].mean())
                metrics.append(Metric("alpha_nll_change", change, variant=f"alpha={alpha:g}", layer=layer))
        return EvalResult(metrics, {"change": np.stack(changes).reshape(len(model.blocks), len(self.alphas), -1)})


@contextmanager
def held(theta: nn.Parameter, value: float) -> Iterator[None]:
    """`theta` at another value for a while."""
    before = theta.detach().clone()
    with torch.no_grad():
        theta.fill_(value)
    try:
        yield
    finally:
        with torch.no_grad():
            theta.copy_(before)
