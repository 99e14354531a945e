"""Counted floating-point operations of training: matrix products of the weights, and attention by attended pairs."""

from __future__ import annotations

from lib.config import ModelConfig, RunConfig


def matrix_weights(model: ModelConfig) -> int:
    """Weights that take part in a matrix product for every token; the embedding once, as the output matrix."""
    attention = model.d_model * model.head_dim * (2 * model.heads + 2 * model.kv_heads)
    return model.layers * (attention + 3 * model.d_model * model.hidden) + model.vocab * model.d_model


def attention_flops(model: ModelConfig, pairs: float) -> float:
    """Forward: a logit and a weighted value a pair and head, 2 operations an element each. pairs: summed over layers."""
    return 4.0 * model.heads * model.head_dim * pairs


def training_flops(run: RunConfig, pairs: float, tokens: float | None = None) -> float:
    """Forward and backward (twice the forward) over `tokens` (all of the run's); `pairs` is of one window of its length."""
    windows = (run.train.tokens if tokens is None else tokens) / run.train.length
    return 3.0 * windows * (2.0 * matrix_weights(run.model) * run.train.length + attention_flops(run.model, pairs))


def attention_training_flops(run: RunConfig, pairs: float, tokens: float | None = None) -> float:
    """The attention part of `training_flops`."""
    windows = (run.train.tokens if tokens is None else tokens) / run.train.length
    return 3.0 * windows * attention_flops(run.model, pairs)
