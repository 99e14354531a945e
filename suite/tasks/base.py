"""What a synthetic task answers, and the draws that several of them share.

A task is a source of training batches as a text is: at a scored position the target is what the model should say after
it has read the tokens up to and including that position; everywhere else the target is -100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from lib.errors import require
from lib.registry import check

if TYPE_CHECKING:
    import torch

IGNORED = -100      # torch's cross entropy skips it
NOISE = 16          # tokens 0 to 15 are the haystack of the tasks that have one

Drawn = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One synthetic task. A subclass is a frozen dataclass in a file of its own; its fields are its parameters.

    `draw` makes a batch: inputs, targets and labels, int64 `[size, length]`. The label of a scored position says what
    makes it hard (the distance or the number of steps to the answer), in `unit`; elsewhere it is -1.
    """
    name: ClassVar[str]
    source: ClassVar[str]           # paper, with its section or address
    unit: ClassVar[str]             # what a label counts: distance | hops | steps

    def __post_init__(self) -> None:
        check(self)

    @property
    def vocab(self) -> int:
        """Tokens that inputs and targets may hold: 0 to vocab - 1."""
        raise NotImplementedError(f"{type(self).__name__} does not define vocab")

    @property
    def chance(self) -> float:
        """Accuracy of a guess among the answers in the context, made without knowing which of them is asked for."""
        raise NotImplementedError(f"{type(self).__name__} does not define chance")

    @property
    def shortest(self) -> int:
        """Smallest length that the task needs, in tokens."""
        raise NotImplementedError(f"{type(self).__name__} does not define shortest")

    def draw(self, rng: np.random.Generator, size: int, length: int) -> Drawn:
        raise NotImplementedError(f"{type(self).__name__} does not define draw")

    def split(self, label: int) -> str:
        """The name of the scored tokens with this label in tables."""
        return f"{self.unit}={label}"

    def labelled(self, seed: int, step: int, size: int, length: int) -> Drawn:
        """`batch` as numpy arrays, with the labels of the scored positions."""
        limits = {"seed": (seed, 0), "step": (step, 0), "size": (size, 1), "length": (length, self.shortest)}
        for name, (value, least) in limits.items():
            require(value >= least, f"{name} of task {self.name}", value, f"an integer of at least {least}")
        return self.draw(np.random.default_rng([seed, step]), size, length)

    def batch(self, seed: int, step: int, size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets, int64 `[size, length]`: a pure function of the four arguments and the parameters."""
        import torch
        inputs, targets, _ = self.labelled(seed, step, size, length)
        return torch.from_numpy(inputs), torch.from_numpy(targets)


@dataclass(frozen=True, kw_only=True)
class Ranged(Task):
    """A task with many distances; tables group them by powers of two."""
    unit = "distance"

    def split(self, label):
        return f"distance={label}-{2 * label - 1}" if label > 1 else "distance=1"


def octave(distance: np.ndarray) -> np.ndarray:
    """The largest power of two that is no larger than each distance (at least 1)."""
    return 2 ** np.floor(np.log2(distance)).astype(np.int64)


def blank(size: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Targets and labels with nothing scored."""
    return np.full((size, length), IGNORED, np.int64), np.full((size, length), -1, np.int64)


def distinct(rng: np.random.Generator, size: int, count: int, of: int) -> np.ndarray:
    """`[size, count]`: in each row, `count` different integers below `of` in random order."""
    return rng.random((size, of)).argsort(axis=1)[:, :count]


def scatter(rng: np.random.Generator, size: int, count: int, width: int, region: int) -> np.ndarray:
    """`[size, count]`, ascending: starts of `count` disjoint blocks of `width` tokens in the first `region` tokens.

    All placements are equally likely: choose `count` of the slots that remain when each block is shrunk to one token.
    """
    slots = region - count * (width - 1)
    return np.sort(distinct(rng, size, count, slots), axis=1) + (width - 1) * np.arange(count)


def write(into: np.ndarray, at: np.ndarray, values: np.ndarray | int) -> None:
    """`into[b, at[b, n]] = values[b, n]` for all rows b."""
    np.put_along_axis(into, at, np.broadcast_to(values, at.shape), axis=1)
