"""An item of the battery, and how a language model answers it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from lib.errors import SuiteError
from lib.model import Transformer
from suite.evals.scoring import chunks, logits_at

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROUND = 64          # sequences are padded on the right to a multiple of it: causal models do not see the padding


@dataclass(frozen=True)
class Item:
    """A prompt and its candidate continuations. One candidate alone must be the model's own first choice, token by token."""
    prompt: str
    candidates: tuple[str, ...]
    answer: int                     # index of the right candidate
    chance: float                   # what a guess is worth
    split: str                      # subgroup of the task, empty without one
    whole: bool = False             # the prompt must not be cut on the left to fit the model's context


@dataclass(frozen=True)
class Request:
    """Tokens to read, and how many of the tokens that end the continuation they predict."""
    read: tuple[int, ...]
    say: tuple[int, ...]


def stream(seed: int, task: str) -> np.random.Generator:
    """The random stream of one task's items."""
    return np.random.default_rng([seed, zlib.crc32(task.encode())])


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def continued(tokenizer: Tokenizer, prompt: str, candidate: str) -> list[int]:
    """The pieces of `candidate` after `prompt`: a tokeniser may write a word's space otherwise at the beginning of a text."""
    before, whole = encode(tokenizer, prompt), encode(tokenizer, prompt + candidate)
    return whole[len(before):] if before and whole[:len(before)] == before else encode(tokenizer, candidate)


def requests(tokenizer: Tokenizer, item: Item, start: int, limit: int) -> list[Request]:
    """One request a candidate, of at most `limit` tokens; an empty prompt is the token `start`."""
    prompt = encode(tokenizer, item.prompt) or [start]
    made = []
    for candidate in item.candidates:
        say = continued(tokenizer, item.prompt, candidate)
        room = limit - len(say) + 1
        if room < 1 or (item.whole and len(prompt) > room):
            raise SuiteError(f"a battery item needs {len(prompt) + len(say) - 1} tokens, the model was trained on {limit}: "
                             f"{item.prompt[:60]!r}...; leave that task out, or train on longer windows")
        made.append(Request((*prompt[-room:], *say[:-1]), tuple(say)))
    return made


def answer(model: Transformer, asked: Sequence[Request], limit: int, device: torch.device) -> tuple[np.ndarray, np.ndarray]:
    """Negative log-likelihood (nats) of every continuation, and whether greedy decoding would say it; `[len(asked)]`.

    Requests that read the same tokens (candidates of one token each) share one sequence.
    """
    by_read: dict[tuple[int, ...], list[int]] = {}
    for index, request in enumerate(asked):
        by_read.setdefault(request.read, []).append(index)
    nll, greedy = np.zeros(len(asked)), np.zeros(len(asked), bool)
    by_length: dict[int, list[tuple[int, ...]]] = {}
    for read in by_read:
        by_length.setdefault(min(-(-len(read) // ROUND) * ROUND, limit), []).append(read)
    for length, reads in sorted(by_length.items()):
        for part in chunks(len(reads), length, device):
            words = last_words(model, reads[part], by_read, asked, length, device)
            for read, spoken in zip(reads[part], words, strict=True):
                for index in by_read[read]:
                    say = torch.tensor(asked[index].say, device=device)
                    nll[index] = -float(spoken[-len(say):].gather(1, say[:, None]).double().sum())
                    greedy[index] = bool((spoken[-len(say):].argmax(-1) == say).all())
    return nll, greedy


def last_words(model: Transformer, reads: Sequence[tuple[int, ...]], by_read: Mapping[tuple[int, ...], list[int]],
               asked: Sequence[Request], length: int, device: torch.device) -> list[torch.Tensor]:
    """Log-probabilities `[n, V]` after the last n tokens of each sequence, n the longest continuation asked of it."""
    spans = [max(len(asked[index].say) for index in by_read[read]) for read in reads]
    at = torch.zeros(len(reads), length, dtype=torch.bool)
    for row, (read, span) in enumerate(zip(reads, spans, strict=True)):
        at[row, len(read) - span:len(read)] = True
    tokens = torch.tensor([[*read, *[0] * (length - len(read))] for read in reads])
    return list(logits_at(model, tokens.to(device), at.to(device)).log_softmax(-1).split(spans))


def grade(items: Sequence[Item], nll: np.ndarray, greedy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Credit of each item (0 to 1) and negative log-likelihood of its right answer; ties share the credit."""
    credit, target, at = np.zeros(len(items)), np.zeros(len(items)), 0
    for index, item in enumerate(items):
        mine = nll[at:at + len(item.candidates)]
        target[index] = mine[item.answer]
        best = mine == mine.min()
        credit[index] = float(greedy[at]) if len(mine) == 1 else float(best[item.answer]) / best.sum()
        at += len(mine)
    return credit, target
