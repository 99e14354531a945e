"""Marked copy: at a mark, say the token that stands a fixed distance back; the kind of mark tells which distance.

Source: the two-distance probe of arxiv.org/abs/2606.28560 (the Fibonacci paper), where both kinds of rung are wanted at
once. The paper gives the distances {200, 350}; number of marks and alphabet are chosen here (its chance is about 1/256).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lib.errors import require
from suite.tasks.base import Task, blank, distinct, write


@dataclass(frozen=True, kw_only=True)
class MarkedCopy(Task):
    """Uniform random symbols; `marks` random positions at least `max(distances)` from the start hold a mark instead.

    Mark number k asks for the token `distances[k]` back. A mark whose token is itself marked is taken away, so that a
    context has at most `marks` questions. One distance alone is the paper's sweep.
    """
    name = "marked_copy"
    source = "arxiv.org/abs/2606.28560, two-distance probe"
    unit = "distance"

    distances: tuple[int, ...] = (200, 350)
    marks: int = 32             # marked positions of a context
    symbols: int = 256          # alphabet

    def __post_init__(self) -> None:
        ok = len(self.distances) >= 1 and len(set(self.distances)) == len(self.distances) and min(self.distances) >= 1
        require(ok, "distances", self.distances, "one or more different integers of at least 1 (tokens)")
        require(self.marks >= 1, "marks", self.marks, "an integer of at least 1")
        require(self.symbols >= 2, "symbols", self.symbols, "an integer of at least 2 (size of the alphabet)")

    @property
    def vocab(self):
        return self.symbols + len(self.distances)

    @property
    def chance(self):
        """A guess at a symbol: all are alike, and the marks say nothing about them."""
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
