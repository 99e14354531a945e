"""Perplexity on held-out text by domain, length and position, as trained or with another RoPE or another mask."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lib.config import RunConfig
from lib.data import domains_of, heldout_windows
from lib.errors import require
from lib.fused.ops import IGNORED
from lib.patterns import Pattern, build
from lib.registry import Positive
from suite.evals.base import EvalResult, Evaluator, Metric
from suite.evals.scoring import need, position_bins, running, token_nll


@dataclass(frozen=True, kw_only=True)
class Perplexity(Evaluator):
    """Non-overlapping windows over the first `tokens` tokens of each domain; every token has the same weight.

    Measures: `nll` (nats a token), `perplexity` (its exponential), `count` (scored tokens), and `position_nll` by bin
    of positions. Arrays, for each domain and length: `nll.<domain>.<length>` and `count.<domain>.<length>` `[N, bins]`,
    sums over the tokens of each window in each bin, and `edges.<length>` `[bins + 1]`.
    """
    name = "perplexity"

    lengths: tuple[Positive, ...] = ()          # evaluation lengths, tokens; empty: the training length
    tokens: int                                 # held-out tokens of each domain
    variant: str = ""                           # name of the change in tables; empty: from `rope` and `pattern`
    rope: Literal["vanilla", "interpolation", "ntk", "yarn"] = "vanilla"
    pattern: tuple[str, tuple] | None = None    # (name, ((parameter, value), ...)): another mask at evaluation

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.tokens >= max(self.lengths, default=1), "tokens", self.tokens,
                f"at least one window of {self.lengths}")

    @property
    def label(self) -> str:
        changes = [f"rope={self.rope}"] if self.rope != "vanilla" else []
        changes += [f"pattern={self.pattern[0]}"] if self.pattern else []
        return self.variant or ", ".join(changes)

    def mask(self, run: RunConfig) -> Pattern | None:
        if self.pattern is None:
            return None
        return build(self.pattern[0], layers=run.model.layers, heads=run.model.heads, **dict(self.pattern[1]))

    def measure(self, model, run, corpus, device):
        corpus = need(corpus, self.name, run)
        how = {"pattern": self.mask(run), "rope": self.rope, "trained_length": run.train.length}
        metrics, arrays = [], {}
        for length in self.lengths or (run.train.length,):
            edges = position_bins(length)
            arrays[f"edges.{length}"] = edges
            for domain in domains_of(run.data, corpus):
                inputs, targets = heldout_windows(corpus, domain, length, self.tokens)
                with running(run, device):
                    nll = token_nll(model, inputs, targets, device, **how)                           # (N, T)
                sums = np.add.reduceat(nll, edges[:-1], axis=1)                                      # (N, bins)
                counts = np.add.reduceat((targets != IGNORED).numpy().astype(np.int64), edges[:-1], axis=1)
                arrays[f"nll.{domain}.{length}"], arrays[f"count.{domain}.{length}"] = sums, counts
                metrics += self.metrics(sums, counts, edges, domain, length)
        return EvalResult(metrics, arrays)

    def metrics(self, sums: np.ndarray, counts: np.ndarray, edges: np.ndarray, domain: str,
                length: int) -> list[Metric]:
        where = {"split": domain, "variant": self.label, "length": length}
        nll = float(sums.sum() / counts.sum())
        scored = counts.sum(axis=0) > 0
        by_bin = sums.sum(axis=0)[scored] / counts.sum(axis=0)[scored]
        return [Metric("nll", nll, **where), Metric("perplexity", float(np.exp(nll)), **where),
                Metric("count", float(counts.sum()), **where),
                *(Metric("position_nll", float(value), position=int(first), **where)
                  for first, value in zip(edges[:-1][scored], by_bin, strict=True))]
