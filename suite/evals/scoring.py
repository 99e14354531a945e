"""How evaluations run a model: chunks that bound memory, the run's precision, losses in float32, sums in float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from lib.config import RunConfig
from lib.data import Corpus
from lib.errors import SuiteError
from lib.fused.ops import IGNORED
from lib.model import Transformer
from lib.step import autocast

TOKENS = {"cpu": 2 ** 12, "cuda": 2 ** 16}       # most tokens of one forward pass by device, one window at least


@contextmanager
def running(run: RunConfig, device: torch.device) -> Iterator[None]:
    """No gradients, and the precision that the run was trained in."""
    with torch.inference_mode(), autocast(run.train, str(device)):
        yield


def need(corpus: Corpus | None, evaluation: str, run: RunConfig) -> Corpus:
    """`corpus`; a `SuiteError` unless the run is a language model and has the vocabulary of a corpus."""
    if run.data.source != "text":
        raise SuiteError(f"evaluation {evaluation} is for models of text; this one was trained on {run.data.source!r}")
    if corpus is None:
        raise SuiteError(f"evaluation {evaluation} needs a corpus and came without one")
    if corpus.vocab != run.model.vocab:
        raise SuiteError(f"the corpus {corpus.path} has vocab = {corpus.vocab}, the model {run.model.vocab}")
    return corpus


def chunks(count: int, length: int, device: torch.device) -> Iterator[slice]:
    """Slices of `count` sequences of `length` tokens, small enough for one forward pass."""
    rows = max(1, TOKENS.get(device.type, TOKENS["cpu"]) // length)
    return (slice(first, first + rows) for first in range(0, count, rows))


def token_nll(model: Transformer, inputs: torch.Tensor, targets: torch.Tensor, device: torch.device,
              **how: Any) -> np.ndarray:
    """Negative log-likelihood (nats) of every target, float64 `[N, T]`; 0 where the target is not scored."""
    losses = torch.cat([model.token_losses(inputs[part].to(device), targets[part].to(device), **how)
                        for part in chunks(*inputs.shape, device)])
    # Only targets that are not scored become 0: the NaN of a broken model must remain.
    return losses.double().cpu().masked_fill(targets == IGNORED, 0.0).numpy()


def logits_at(model: Transformer, tokens: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """float32 logits `[n, V]` at the positions where the Boolean `at` `[B, T]` is True, row after row."""
    return F.linear(model.hidden(tokens)[at], model.embedding.weight).float()


def position_bins(length: int) -> np.ndarray:
    """Edges of the bins of positions: 0, 8, 16, 32, 64, 128, then every 128, and `length`."""
    edges = [e for e in (0, 8, 16, 32, 64) if e < length] + list(range(128, length, 128))
    return np.array([*edges, length])
