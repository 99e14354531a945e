"""Memory of attention scores beside dense attention's: counted from the pattern, not measured."""

from dataclasses import dataclass

from lib.model import build_pattern
from lib.registry import Positive
from suite.evals import EvalResult, Evaluator, Metric

BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, kw_only=True)
class AttentionMemory(Evaluator):
    """Bytes of the scores that attention over one sequence computes: pairs summed over layers, x heads x bytes a score.

    Dense causal attention has T (T + 1) / 2 pairs a layer; a score has 2 bytes in bf16 and 4 in fp32. Measures:
    `attention_bytes`, `dense_attention_bytes`, and `attention_memory_ratio` (dense / pattern: how many times less).
    """
    name = "attention_memory"

    lengths: tuple[Positive, ...] = ()      # tokens; empty: the training length

    def measure(self, model, run, corpus, device):
        L, H, size = run.model.layers, run.model.heads, BYTES[run.train.precision]
        pattern, metrics = build_pattern(run), []
        for T in self.lengths or (run.train.length,):
            sparse, dense = pattern.pairs(T) * H * size, L * T * (T + 1) / 2 * H * size
            measured = {"attention_bytes": sparse, "dense_attention_bytes": dense,
                        "attention_memory_ratio": dense / sparse}
            metrics += [Metric(measure, float(value), length=T) for measure, value in measured.items()]
        return EvalResult(metrics)
