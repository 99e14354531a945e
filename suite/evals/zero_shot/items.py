"""An item of the battery, and how a language model answers it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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
    """A prompt and its candidate continuations. A single candidate must be what greedy decoding says."""
    prompt: str
    candidates: tuple[str, ...]
    answer: int                     # index of the right candidate
    chance: float                   # expected credit of a guess
    split: str                      # subgroup of the task, empty without one
    whole: bool = False             # the prompt must not be cut on the left to fit the model's context


@dataclass(frozen=True)
class Request:
    """Tokens to read, and the tokens that the last of them are to predict."""
    read: tuple[int, ...]
    say: tuple[int, ...]


def stream(seed: int, task: str) -> np.random.Generator:
    """The random stream of one task's items."""
    return np.random.default_rng([seed, zlib.crc32(task.encode())])


def files(folder: Path, task: str) -> list[Path]:
    """The .jsonl files of a folder of `task`, in order of their names; a `SuiteError` if there is none."""
    found = sorted(folder.glob("*.jsonl"))
    if not found:
        raise SuiteError(f"{task}_folder = {str(folder)!r} is not valid: a folder with the task's .jsonl files")
    return found


def rows(file: Path, *fields: str) -> Iterator[tuple[str, ...]]:
    """These fields of every line of a .jsonl file, without white space at their ends."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                yield tuple(row[name].strip() for name in fields)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise SuiteError(f"{file}, line {number}: no JSON object with {' and '.join(fields)} "
                                 f"({error!r})") from error


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def continued(tokenizer: Tokenizer, prompt: str, candidate: str) -> list[int]:
    """The pieces of `candidate` after `prompt`, since a tokeniser may treat a space differently where a text begins."""
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
        losses = nll[at:at + len(item.candidates)]
        target[index] = losses[item.answer]
        best = losses == losses.min()
        credit[index] = float(greedy[at]) if len(losses) == 1 else float(best[item.answer]) / best.sum()
        at += len(losses)
    return credit, target
