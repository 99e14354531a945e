"""How evaluations run a model: chunks that bound memory, the run's precision, losses in float32, sums in float64."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from lib.config import RunConfig
from lib.data import Corpus, domains_of, heldout_windows
from lib.errors import require
from lib.fused.ops import IGNORED
from lib.model import Transformer
from lib.step import autocast

TOKENS = {"cpu": 2 ** 12, "cuda": 2 ** 16}       # most tokens of one forward pass by device, one window at least


def need(corpus: Corpus | None, run: RunConfig) -> Corpus:
    """`corpus`; a `SuiteError` unless the run is a language model and has the vocabulary of a corpus."""
    require(run.data.source == "text" and corpus is not None, "data.source", run.data.source,
            "this evaluation is for models of text, and needs a corpus")
    require(corpus.vocab == run.model.vocab, "model.vocab", run.model.vocab, f"{corpus.path} has {corpus.vocab}")
    return corpus


def heldout_losses(model: Transformer, run: RunConfig, corpus: Corpus | None, device: torch.device, length: int,
                   tokens: int, **how: Any) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, np.ndarray]]:
    """Name, inputs, targets and losses (nats, float64), each `[N, length]`, of the first `tokens` of every domain.

    The loss is 0 where the target is not scored.
    """
    corpus = need(corpus, run)
    for domain in domains_of(run.data, corpus):
        inputs, targets = heldout_windows(corpus, domain, length, tokens)
        with torch.inference_mode(), autocast(run.train, str(device)):
            losses = torch.cat([model.token_losses(inputs[part].to(device), targets[part].to(device), **how)
                                for part in chunks(*inputs.shape, device)])
        # Only targets that are not scored become 0: the NaN of a broken model must remain.
        yield domain, inputs, targets, losses.double().cpu().masked_fill(targets == IGNORED, 0.0).numpy()


def chunks(count: int, length: int, device: torch.device) -> Iterator[slice]:
    """Slices of `count` sequences of `length` tokens, small enough for one forward pass."""
    rows = max(1, TOKENS.get(device.type, TOKENS["cpu"]) // length)
    return (slice(first, first + rows) for first in range(0, count, rows))


def logits_at(model: Transformer, run: RunConfig, tokens: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """float32 logits `[n, V]` at the positions where the Boolean `at` `[B, T]` is True, row after row."""
    with torch.inference_mode(), autocast(run.train, str(tokens.device)):
        return F.linear(model.hidden(tokens)[at], model.embedding.weight).float()
