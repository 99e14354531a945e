"""Held-out loss by the distance to where the context last stood: do tokens gain whose evidence lies far back?"""

from dataclasses import dataclass

import numpy as np

from lib.errors import require
from lib.registry import Positive
from suite.evals import EvalResult, Evaluator, Metric
from suite.evals.scoring import heldout_losses

KINDS = ("recurrence", "copy")


@dataclass(frozen=True, kw_only=True)
class Recurrence(Evaluator):
    """Windows of the training length over the first `tokens` tokens of each domain, by recurrence distance.

    At position t of a window the model has read x_0 ... x_t and is scored on what follows, the target. Its context is
    its last n tokens, x_(t-n+1) ... x_t. Where they stood before in the window, at the latest as x_(s-n+1) ... x_s with
    s < t (the two may overlap), the token that followed, x_(s+1), is the evidence: it lies `d = t - (s + 1)` tokens
    before the query, 0 <= d <= T - n - 1. Bin k holds `edges[k] <= d < edges[k + 1]`, the last one all further
    distances; tokens whose context stands in the window for the first time, the first n - 1 among them, have a bin of
    their own.

    Measures, by domain and by `position`, the first distance of a bin (the window's length: no earlier place):
    `recurrence_nll` (nats a token) and `recurrence_count` (tokens), whatever followed; `copy_nll` and `copy_count` of
    those tokens where the evidence is the target, so that copying it is right. Arrays: `recurrence.<domain>`,
    `copy.<domain>` (sums of nats) and `recurrence_count.<domain>`, `copy_count.<domain>`, each `[N, bins + 1]`, the
    last column without an earlier place.
    """
    name = "recurrence"

    tokens: Positive                # held-out tokens of each domain
    edges: tuple[int, ...]          # first distances of the bins, tokens; from 0, ascending
    n: Positive = 2                 # tokens of a context

    def __post_init__(self) -> None:
        super().__post_init__()
        rising = self.edges[:1] == (0,) and all(a < b for a, b in zip(self.edges, self.edges[1:], strict=False))
        require(rising, "edges", self.edges, "ascending distances from 0")

    def measure(self, model, run, corpus, device):
        length, metrics, arrays = run.train.length, [], {}
        for domain, inputs, targets, nll in heldout_losses(model, run, corpus, device, length, self.tokens):
            place, right = evidence(inputs.numpy(), targets.numpy(), self.n)
            shape, distance = (len(place), len(self.edges) + 1), np.arange(length) - place
            at = np.where(place < 0, len(self.edges), np.searchsorted(self.edges, distance, side="right") - 1)
            cells = (np.arange(len(place))[:, None] * shape[1] + at).ravel()            # window and bin of every token
            for kind, kept in zip(KINDS, (np.ones_like(right), right), strict=True):
                sums = np.bincount(cells, (nll * kept).ravel(), minlength=np.prod(shape)).reshape(shape)
                counts = np.bincount(cells[kept.ravel()], minlength=np.prod(shape)).reshape(shape)
                arrays |= {f"{kind}.{domain}": sums, f"{kind}_count.{domain}": counts}
                by_bin = (*self.edges, length), sums.sum(axis=0), counts.sum(axis=0)
                for first, total, count in zip(*by_bin, strict=True):
                    where = {"split": domain, "length": length, "position": first}
                    metrics.append(Metric(f"{kind}_count", float(count), **where))
                    if count:
                        metrics.append(Metric(f"{kind}_nll", float(total / count), **where))
        return EvalResult(metrics, arrays)


def evidence(inputs: np.ndarray, targets: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """For every token the place of what followed its context's latest earlier place (-1: none), and whether that is its
    target; int64 and bool `[N, T]`."""
    place, right = np.full(inputs.shape, -1, np.int64), np.zeros(inputs.shape, bool)
    for window, (tokens, aims) in enumerate(zip(inputs.tolist(), targets.tolist(), strict=True)):
        followed: dict[tuple[int, ...], int] = {}
        for t in range(n - 1, len(tokens)):
            context = tuple(tokens[t - n + 1:t + 1])
            at = followed.get(context)
            if at is not None:
                place[window, t], right[window, t] = at, tokens[at] == aims[t]
            followed[context] = t + 1
    return place, right
