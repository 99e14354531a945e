"""Items of the battery: what a language model is asked, as text, without being trained for it."""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib.data import Corpus

OFFLINE = {"lambada": "lambada-offline", "blimp": "blimp-offline"}      # made from the suite's own text
OF_HUB = {"cloze": "factual_cloze"}                                     # facts of the world, not of the passage


@dataclass(frozen=True)
class Item:
    """A prompt and its candidate continuations. A single candidate must be what greedy decoding says."""
    prompt: str
    candidates: tuple[str, ...]
    answer: int                     # index of the right candidate
    chance: float                   # expected credit of a guess
    split: str                      # subgroup of the task, empty without one
    whole: bool = False             # the prompt must not be cut on the left to fit the model's context


def called(task: str, corpus: Corpus) -> str:
    """The name of a battery task in tables: it tells whose texts were asked, the hub's or the suite's own."""
    return (OFFLINE if corpus.evaluation(task) is None else OF_HUB).get(task, task)


def stream(task: str) -> np.random.Generator:
    """The random stream of one task's items."""
    return np.random.default_rng([0, zlib.crc32(task.encode())])


def shares(count: int, parts: int) -> list[int]:
    """`count` in equal parts, one more in the first ones where that does not divide."""
    return [count // parts + (part < count % parts) for part in range(parts)]


def rows(folder: Path, *fields: str) -> Iterator[tuple[str, ...]]:
    """The file's name and these fields of every line of the folder's .jsonl files, in order of their names."""
    for file in sorted(folder.glob("*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                yield file.stem, *(line[name].strip() for name in fields)
