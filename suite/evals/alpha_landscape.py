"""The loss as a function of one layer's alpha, the others as they were learned: is it flat?

Source: the Fibonacci document, on why the scalar does not move ("a flat loss landscape in the dilation multiplier").
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from lib.data import domains_of, heldout_windows
from lib.errors import SuiteError, require
from suite.evals.base import EvalResult, Evaluator, Metric
from suite.evals.scoring import need, running, token_nll


@dataclass(frozen=True, kw_only=True)
class AlphaLandscape(Evaluator):
    """Measure `alpha_nll_change` by layer and value (`variant`, for instance `alpha=0.8`): nats a token above the loss of
    the model as it was learned, a mean over the domains. Array: `change` `[layers, alphas, windows]`.
    """
    name = "alpha_landscape"

    alphas: tuple[float, ...] = (0.6, 0.8, 1.0, 1.2, 1.4)
    tokens: int = 4096              # held-out tokens of each domain, in windows of the training length

    def __post_init__(self) -> None:
        require(len(self.alphas) >= 1 and all(0.5 < a < 1.5 for a in self.alphas), "alphas", self.alphas,
                "numbers above 0.5 and below 1.5, the ends that no theta reaches")
        require(self.tokens >= 1, "tokens", self.tokens, "an integer of at least 1")

    def measure(self, model, run, corpus, device):
        if not model.alphas():
            raise SuiteError(f"evaluation {self.name} needs a pattern with an alpha a layer; {run.pattern.name!r} has none")
        corpus = need(corpus, self.name, run)
        T = run.train.length
        windows = [heldout_windows(corpus, domain, T, max(self.tokens, T)) for domain in domains_of(run.data, corpus)]

        def losses() -> np.ndarray:
            """Mean loss of every window, the domains one after the other."""
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
