"""Perplexity on held-out text by domain, length and position, as trained or with another RoPE or another mask."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lib.errors import require
from lib.fused.ops import IGNORED
from lib.patterns import build
from lib.registry import Positive
from suite.evals import EvalResult, Evaluator, Metric
from suite.evals.scoring import heldout_losses


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
    variant: str = ""                           # what tables call a change of `rope` or `pattern`
    rope: Literal["vanilla", "interpolation", "ntk", "yarn"] = "vanilla"
    pattern: tuple[str, tuple] | None = None    # (name, ((parameter, value), ...)): another mask at evaluation

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.tokens >= max(self.lengths, default=1), "tokens", self.tokens,
                f"at least one window of {self.lengths}")

    def measure(self, model, run, corpus, device):
        how = {"pattern": None, "rope": self.rope, "trained_length": run.train.length}
        if self.pattern is not None:
            name, parameters = self.pattern
            how["pattern"] = build(name, layers=run.model.layers, heads=run.model.heads, **dict(parameters))
        metrics, arrays = [], {}
        for length in self.lengths or (run.train.length,):
            firsts = [at for at in (0, 8, 16, 32, 64, *range(128, length, 128)) if at < length]     # of the bins
            edges = arrays[f"edges.{length}"] = np.array([*firsts, length])
            for domain, _, targets, nll in heldout_losses(model, run, corpus, device, length, self.tokens, **how):
                sums = np.add.reduceat(nll, edges[:-1], axis=1)                                      # (N, bins)
                counts = np.add.reduceat((targets != IGNORED).numpy().astype(np.int64), edges[:-1], axis=1)
                arrays |= {f"nll.{domain}.{length}": sums, f"count.{domain}.{length}": counts}
                mean, by_bin = float(sums.sum() / counts.sum()), (edges[:-1], sums.sum(axis=0), counts.sum(axis=0))
                rows = [("nll", mean, None), ("perplexity", np.exp(mean), None), ("count", counts.sum(), None)]
                rows += [("position_nll", total / count, int(first)) for first, total, count in zip(*by_bin) if count]
                metrics += [Metric(measure, float(value), domain, self.variant, length, position)
                            for measure, value, position in rows]
        return EvalResult(metrics, arrays)
