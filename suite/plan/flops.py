"""Counted floating-point operations of training and evaluation, and the memory of a training.

Operations: matrix products of the weights, and attention by attended pairs. Memory: what lies in it when it is fullest,
between the forward and the backward pass.
"""

from __future__ import annotations

from lib.config import ModelConfig, RunConfig

STATE_BYTES = 16            # a parameter: weight, gradient and AdamW's two moments, in float32
LOGITS = 2 ** 27            # logits of a slice of tokens on a GPU (`lib.fused.ops.cross_entropy`)


def parameters(model: ModelConfig) -> int:
    """All weights but the few that a pattern learns: those of products, and the gains of the norms."""
    return model.matrix_weights + (2 * model.layers + 1) * model.d_model


def attention_flops(model: ModelConfig, pairs: float) -> float:
    """Forward: a logit and a weighted value a pair and head, 2 operations an element each. pairs: summed over layers."""
    return 4.0 * model.heads * model.head_dim * pairs


def forward_flops(model: ModelConfig, pairs: float, length: int, tokens: float) -> float:
    """Forward over `tokens` in windows of `length`; `pairs` is of one such window."""
    return tokens / length * (2.0 * model.matrix_weights * length + attention_flops(model, pairs))


def training_flops(run: RunConfig, pairs: float, tokens: float | None = None) -> float:
    """Forward and backward (twice the forward) over `tokens` (all of the run's); `pairs` is of one window of its length."""
    return 3.0 * forward_flops(run.model, pairs, run.train.length, run.train.tokens if tokens is None else tokens)


def attention_training_flops(run: RunConfig, pairs: float, tokens: float | None = None) -> float:
    """The attention part of `training_flops`."""
    windows = (run.train.tokens if tokens is None else tokens) / run.train.length
    return 3.0 * windows * attention_flops(run.model, pairs)


def activation_bytes(model: ModelConfig, precision: str, tokens: int) -> int:
    """What the forward pass of a micro-batch of `tokens` keeps for the backward one, attention by the suite's kernels.

    A layer keeps, a token: the residual stream in float32 at each norm, and in the type of the products both norms' outputs,
    queries, keys and values before and after RoPE, attention's output and its logarithms, gate, up, silu(gate) and their
    product. After the layers: the last norm's, and the gradient that the loss has taken already.
    """
    item, C = item_bytes(precision), model.d_model
    heads = 3 * item * (model.heads + model.kv_heads) * model.head_dim
    layer = 2 * (4 + item) * C + heads + 4 * model.heads + 4 * item * model.hidden
    return tokens * (model.layers * layer + (4 + 2 * item) * C)


def peak_bytes(model: ModelConfig, precision: str, tokens: int) -> int:
    """Most memory that a training holds on a GPU: state, the weights in the type of the products, activations of a
    micro-batch of `tokens`, and the larger of what is there for a moment: logits of a slice with their softmax, or the
    gradients of the layer at work, twice what it keeps (as measured on a CPU)."""
    item, weights = item_bytes(precision), parameters(model)
    copies, activations = item * weights if item != 4 else 0, activation_bytes(model, precision, tokens)
    logits = (2 * item + 4) * min(LOGITS, tokens * model.vocab)
    return STATE_BYTES * weights + copies + activations + max(logits, 2 * activations // model.layers)


def item_bytes(precision: str) -> int:
    return 2 if precision == "bf16" else 4
