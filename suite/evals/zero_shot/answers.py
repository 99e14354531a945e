"""How a language model answers items: continuations by their likelihood, or by what greedy decoding says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from lib.errors import SuiteError
from lib.model import Transformer
from suite.evals.scoring import chunks, logits_at
from suite.evals.zero_shot import Item

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROUND = 64          # sequences are padded on the right to a multiple of it: causal models do not see the padding


class Request(NamedTuple):
    """Tokens to read, and the tokens that the last of them are to predict."""
    read: tuple[int, ...]
    say: tuple[int, ...]


def requests(tokenizer: Tokenizer, item: Item, start: int, limit: int) -> list[Request]:
    """One request a candidate, of at most `limit` tokens; an empty prompt is the token `start`."""
    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids
    before, made = encode(item.prompt), []
    prompt = before or [start]
    for candidate in item.candidates:
        whole = encode(item.prompt + candidate)         # a tokeniser may treat a space differently where a text begins
        say = whole[len(before):] if before and whole[:len(before)] == before else encode(candidate)
        room = limit - len(say) + 1
        if room < 1 or (item.whole and len(prompt) > room):
            raise SuiteError(f"a battery item needs {len(prompt) + len(say) - 1} tokens, the model was trained on "
                             f"{limit}: {item.prompt[:60]!r}...; leave that task out, or train on longer windows")
        made.append(Request((*prompt[-room:], *say[:-1]), tuple(say)))
    return made


def answer(model: Transformer, asked: Sequence[Request], limit: int,
           device: torch.device) -> tuple[np.ndarray, np.ndarray]:
    """Negative log-likelihood (nats) of every continuation, and whether greedy decoding would say it: `[len(asked)]`.

    Requests that read the same tokens (candidates of one token each) share one sequence.
    """
    by_read: dict[tuple[int, ...], list[int]] = {}
    for index, request in enumerate(asked):
        by_read.setdefault(request.read, []).append(index)

    def padded(read: tuple[int, ...]) -> int:
        return min(-(-len(read) // ROUND) * ROUND, limit)
    nll, greedy = np.zeros(len(asked)), np.zeros(len(asked), bool)
    for length, group in groupby(sorted(by_read, key=padded), padded):
        reads = list(group)
        for part in chunks(len(reads), length, device):
            spans = [max(len(asked[index].say) for index in by_read[read]) for read in reads[part]]
            for read, spoken in zip(reads[part], last_words(model, reads[part], spans, length, device), strict=True):
                for index in by_read[read]:
                    say = torch.tensor(asked[index].say, device=device)
                    nll[index] = -float(spoken[-len(say):].gather(1, say[:, None]).double().sum())
                    greedy[index] = bool((spoken[-len(say):].argmax(-1) == say).all())
    return nll, greedy


def last_words(model: Transformer, reads: Sequence[tuple[int, ...]], spans: Sequence[int], length: int,
               device: torch.device) -> list[torch.Tensor]:
    """Log-probabilities `[n, V]` after the last n tokens of each sequence, by its span n."""
    tokens, at = torch.zeros(len(reads), length, dtype=torch.long), torch.zeros(len(reads), length, dtype=torch.bool)
    for row, (read, span) in enumerate(zip(reads, spans, strict=True)):
        tokens[row, :len(read)] = torch.tensor(read)
        at[row, len(read) - span:len(read)] = True
    return list(logits_at(model, tokens.to(device), at.to(device)).log_softmax(-1).split(spans))


def grade(items: Sequence[Item], nll: np.ndarray, greedy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Credit of each item (0 to 1) and negative log-likelihood of its right answer; ties share the credit."""
    credit, target, at = np.zeros(len(items)), np.zeros(len(items)), 0
    for index, item in enumerate(items):
        losses = nll[at:at + len(item.candidates)]
        target[index] = losses[item.answer]
        best = losses == losses.min()
        credit[index] = float(greedy[at]) if len(losses) == 1 else float(best[item.answer]) / best.sum()
        at += len(losses)
    return credit, target
