"""How strongly far tokens influence a prediction, and how gradients are spread over layers.

Source: the power-law document's "attention-gradient influence between tokens separated by at least 256 positions", and
the Christoffel document's "gradient norms".
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch.nn import functional as F

from lib.config import RunConfig
from lib.data import Corpus, domains_of, heldout_windows
from lib.errors import require
from lib.model import Transformer
from lib.registry import Positive
from suite.evals import EvalResult, Evaluator, Metric
from suite.evals.scoring import need
from suite.evals.task import HELD_OUT
from suite.tasks import task


@dataclass(frozen=True, kw_only=True)
class GradientFlow(Evaluator):
    """Influence of token j on the prediction at i: the norm of d logit_i / d embedding_j, for the largest logit.

    Measures, means over windows and queries i (`queries` evenly spaced positions from `far` to the end):
    `far_influence_share`: share of the influence that comes from i - j >= far; `far_influence`: mean influence of such
    a token; `influence_share`: share by distance, bins 0, 1, 2-3, 4-7, ... named by their first distance in `position`;
    `gradient_norm`: L2 norm of the gradient of the mean loss over windows, by layer. In float32. Arrays: `influence`
    `[windows, queries, bins]` and `edges`.
    """
    name = "gradient_flow"

    far: Positive = 256         # least distance of the far tokens
    windows: Positive = 4       # held-out windows of the training length, spread over the domains; or task sequences
    queries: Positive = 8       # positions whose logit is followed back, one backward pass each

    def measure(self, model, run, corpus, device):
        T = run.train.length
        require(self.far < T, "far", self.far, f"below the training length {T}: no two tokens are further apart")
        inputs, targets = (x.to(device) for x in self.sequences(run, corpus))
        influence, positions = self.influence(model, inputs)                                # (N, Q, T)
        distance = positions[:, None] - np.arange(T)[None, :]                               # (Q, T)
        total = influence.sum(axis=2)                                                       # (N, Q)
        edges = [0, *(2 ** k for k in range((T - 1).bit_length())), T]
        bins = np.stack([(influence * ((distance >= a) & (distance < b))).sum(axis=2)
                         for a, b in pairwise(edges)], axis=2)                              # (N, Q, bins)
        shares = (bins / total[..., None]).mean(axis=(0, 1))
        far = distance >= self.far
        from_far = (influence * far).sum(axis=2)                                            # (N, Q)
        metrics = [Metric("far_influence_share", float((from_far / total).mean()), position=self.far),
                   Metric("far_influence", float(from_far.mean() / far.sum(axis=1).mean()), position=self.far),
                   *(Metric("influence_share", float(share), position=first)
                     for first, share in zip(edges[:-1], shares, strict=True))]
        layers = [list(block.parameters()) for block in model.blocks]
        with torch.enable_grad():
            gradients = iter(torch.autograd.grad(model.loss(inputs, targets), sum(layers, []), materialize_grads=True))
        for at, layer in enumerate(layers):
            square = sum(float(next(gradients).double().square().sum()) for _ in layer)
            metrics.append(Metric("gradient_norm", math.sqrt(square), layer=at))
        return EvalResult(metrics, {"influence": bins, "edges": np.array(edges)})

    def sequences(self, run: RunConfig, corpus: Corpus | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets `[windows, T]`."""
        T = run.train.length
        if run.data.source != "text":
            return task(run.data.source, **dict(run.data.parameters)).batch(HELD_OUT, 0, self.windows, T)
        corpus = need(corpus, run)
        domains = domains_of(run.data, corpus)
        each = math.ceil(self.windows / len(domains))
        parts = [list(zip(*heldout_windows(corpus, domain, T, each * T), strict=True)) for domain in domains]
        # Round robin over the domains, so that any number of windows is spread as evenly as it can be.
        order = [part[w] for w in range(each) for part in parts if w < len(part)][:self.windows]
        return tuple(torch.stack(kind) for kind in zip(*order, strict=True))

    def influence(self, model: Transformer, inputs: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Influence float64 `[N, Q, T]` and the queries' positions `[Q]`."""
        positions = np.unique(np.linspace(self.far, inputs.shape[1] - 1, self.queries).round().astype(int))
        table = model.embedding.weight.detach()
        embedded = F.embedding(inputs, table).requires_grad_()                              # (N, T, d_model)
        with torch.enable_grad():
            logits = F.linear(model.states(embedded)[:, positions], table)                  # (N, Q, V)
            followed = logits.amax(dim=2).sum(dim=0)             # (Q): a sum over windows, which do not mix
        by_query = [torch.autograd.grad(value, embedded, retain_graph=True)[0].norm(dim=2) for value in followed]
        return torch.stack(by_query, dim=1).double().cpu().numpy(), positions
