"""Counted memory of attention scores against dense attention: arithmetic on the pattern, nothing is measured."""

from __future__ import annotations

from dataclasses import dataclass

from lib.errors import require
from lib.patterns import build
from suite.evals.base import EvalResult, Evaluator, Metric

BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, kw_only=True)
class AttentionMemory(Evaluator):
    """Bytes of the scores that attention over one sequence computes: pairs summed over layers x heads x bytes a score.

    Dense causal attention has T (T + 1) / 2 pairs a layer; a score has 2 bytes in bf16 and 4 in fp32. Measures:
    `attention_bytes`, `dense_attention_bytes`, and `attention_memory_ratio` (dense / pattern: how many times less).
    """
    name = "attention_memory"

    lengths: tuple[int, ...] = ()       # tokens; empty: the training length

    def __post_init__(self) -> None:
        require(all(length >= 1 for length in self.lengths), "lengths", self.lengths, "integers of at least 1 (tokens)")

    def measure(self, model, run, corpus, device):
        L, H, size = run.model.layers, run.model.heads, BYTES[run.train.precision]
        pattern = build(run.pattern.name, layers=L, heads=H, **dict(run.pattern.parameters))
        metrics = []
        for T in self.lengths or (run.train.length,):
            sparse, dense = pattern.pairs(T) * H * size, L * T * (T + 1) / 2 * H * size
            metrics += [Metric("attention_bytes", float(sparse), length=T),
                        Metric("dense_attention_bytes", float(dense), length=T),
                        Metric("attention_memory_ratio", float(dense / sparse), length=T)]
        return EvalResult(metrics)
