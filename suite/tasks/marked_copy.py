"""Marked copy: at a mark, say the token that stands a fixed distance back; the kind of mark tells which distance.

Source: the two-distance probe of arxiv.org/abs/2606.28560 (the Fibonacci paper), which needs both kinds of rung at
once. The paper gives the distances {200, 350}; the number of marks and the alphabet are ours (its chance is about
1/256).
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from lib.errors import require
from lib.registry import Positive
from suite.tasks.base import Task, blank, distinct, write


@dataclass(frozen=True, kw_only=True)
class MarkedCopy(Task):
    """Uniform random symbols; `marks` random positions at least `max(distances)` from the start hold a mark instead.

    Mark number k asks for the token `distances[k]` back. A mark that asks for another mark is removed, so that a
    context has at most `marks` questions. One distance alone is the paper's sweep.
    """
    name = "marked_copy"
    source = "arxiv.org/abs/2606.28560, two-distance probe"
    unit = "distance"

    distances: tuple[Positive, ...] = (200, 350)    # tokens
    marks: Positive = 32                            # marked positions of a context
    symbols: Annotated[int, Field(ge=2)] = 256      # size of the alphabet

    def __post_init__(self) -> None:
        super().__post_init__()
        different = 1 <= len(self.distances) == len(set(self.distances))
        require(different, "distances", self.distances, "one or more different distances in tokens")

    @property
    def vocab(self):
        return self.symbols + len(self.distances)

    @property
    def chance(self):
        """A guess at a symbol: all symbols are equally likely, and the marks tell nothing about them."""
        return 1 / self.symbols

    @property
    def shortest(self):
        return max(self.distances) + self.marks

    def draw(self, rng, size, length):
        first = max(self.distances)
        inputs = rng.integers(0, self.symbols, (size, length))
        targets, labels = blank(size, length)
        at = first + distinct(rng, size, self.marks, length - first)                # (B, marks)
        kind = rng.integers(0, len(self.distances), at.shape)
        distance = np.asarray(self.distances)[kind]
        marked = np.zeros((size, length), bool)
        write(marked, at, True)
        kept = ~np.take_along_axis(marked, at - distance, axis=1)
        rows = np.broadcast_to(np.arange(size)[:, None], at.shape)[kept]
        at, kind, distance = at[kept], kind[kept], distance[kept]
        targets[rows, at] = inputs[rows, at - distance]
        labels[rows, at] = distance
        inputs[rows, at] = self.symbols + kind
        return inputs, targets, labels
