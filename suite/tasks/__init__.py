"""Synthetic tasks by name: every file of this folder that defines a `Task` is found. What a task answers, and the draws
that several of them share.

A task is a source of training batches as a text is: at a scored position the target is what the model should say after
it has read the tokens up to and including that position; everywhere else the target is -100.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from lib.config import DataConfig
from lib.data import Corpus, Source, TextSource
from lib.errors import SuiteError, one_of, require
from lib.registry import Registry, check

if TYPE_CHECKING:
    import torch

__all__ = ["Task", "make_source", "names", "task"]

IGNORED = -100      # torch's cross entropy skips it
NOISE = 16          # tokens 0 to 15 are the haystack of the tasks that have one

Drawn = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One synthetic task. A subclass is a frozen dataclass; its fields are its parameters.

    `draw(rng, size, length)` makes a batch: inputs, targets and labels, int64 `[size, length]`. The label of a scored
    position says what makes it hard (the distance or the number of steps to the answer), in `unit`; elsewhere it is -1.
    """
    name: ClassVar[str]
    unit: ClassVar[str]             # what a label counts: distance | hops | steps
    vocab: ClassVar[Any]            # property: inputs and targets hold the tokens 0 to vocab - 1
    chance: ClassVar[Any]           # property: accuracy of a guess that ignores which of the answers is asked for
    shortest: ClassVar[Any]         # property: smallest length that the task needs, tokens

    def __post_init__(self) -> None:
        check(self)

    def split(self, label: int) -> str:
        """The name of the scored tokens with this label in tables."""
        return f"{self.unit}={label}"

    def labelled(self, seed: int, step: int, size: int, length: int) -> Drawn:
        """`batch` as numpy arrays, with the labels of the scored positions."""
        require(length >= self.shortest, f"length of task {self.name}", length, f"at least {self.shortest} tokens")
        return self.draw(np.random.default_rng([seed, step]), size, length)

    def batch(self, seed: int, step: int, size: int, length: int) -> "tuple[torch.Tensor, torch.Tensor]":
        """Inputs and targets, int64 `[size, length]`: a pure function of the four arguments and the parameters."""
        import torch
        inputs, targets, _ = self.labelled(seed, step, size, length)
        return torch.from_numpy(inputs), torch.from_numpy(targets)


def blank(size: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Targets and labels with nothing scored."""
    return np.full((size, length), IGNORED, np.int64), np.full((size, length), -1, np.int64)


def in_noise(rng: np.random.Generator, size: int, length: int, placed: list[tuple[np.ndarray, tuple]],
             ask: np.ndarray, answers: np.ndarray, labels: np.ndarray) -> Drawn:
    """A batch of noise with blocks of tokens from their first positions on; at `ask` the targets are the answers."""
    inputs = rng.integers(0, NOISE, (size, length))
    targets, scored = blank(size, length)
    for at, tokens in placed:
        for offset, token in enumerate(tokens):
            write(inputs, at + offset, token)
    write(targets, ask, answers)
    write(scored, ask, labels)
    return inputs, targets, scored


def distinct(rng: np.random.Generator, size: int, count: int, of: int) -> np.ndarray:
    """`[size, count]`: in each row, `count` different integers below `of` in random order."""
    return rng.random((size, of)).argsort(axis=1)[:, :count]


def scatter(rng: np.random.Generator, size: int, count: int, width: int, region: int) -> np.ndarray:
    """`[size, count]`, ascending: starts of `count` disjoint blocks of `width` tokens in the first `region` tokens.

    All placements are equally likely: choose `count` of the slots that remain when each block is shrunk to one token.
    """
    slots = region - count * (width - 1)
    return np.sort(distinct(rng, size, count, slots), axis=1) + (width - 1) * np.arange(count)


def pick(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """`values[b, at[b, n]]` for all rows b."""
    return np.take_along_axis(values, at, axis=1)


def write(into: np.ndarray, at: np.ndarray, values: np.ndarray | int) -> None:
    """`into[b, at[b, n]] = values[b, n]` for all rows b."""
    np.put_along_axis(into, at, np.broadcast_to(values, at.shape), axis=1)


_tasks = Registry(__name__, Task, "task")
names = _tasks.names


def task(name: str, **parameters: Any) -> Task:
    """The task `name`; unknown names and parameters and wrong values are a `SuiteError`."""
    return _tasks.build(name, parameters)


def make_source(data: DataConfig, corpus: Corpus | None) -> Source:
    """The source of training batches that a run's configuration names: `text` or a task.

    Parameters of `text`: `mixture`, pairs of domain and weight, or `domains`, some of the corpus with equal weights.
    """
    parameters = dict(data.parameters)
    if data.source != "text":
        return task(data.source, **parameters)
    if corpus is None:
        raise SuiteError("data source 'text' needs a corpus, and none was given")
    for name in parameters:
        one_of(name, ("mixture", "domains"), "parameter of data source 'text'")
    if "domains" in parameters:
        return TextSource(corpus, dict.fromkeys(parameters["domains"], 1.0))
    return TextSource(corpus, dict(parameters["mixture"]) if "mixture" in parameters else None)
