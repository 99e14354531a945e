"""Copying over a distance: a whole string after a delay, or single tokens at marks that tell how far back they stand.

Sources: the copy-memory task of Hochreiter and Schmidhuber (1997) and arxiv.org/abs/1511.06464 (Arjovsky et al.),
section 5.1, for a language model, the Christoffel document's "synthetic long-range copying task"; and the two-distance
probe of arxiv.org/abs/2606.28560 (the Fibonacci paper), which needs both kinds of rung at once. The paper gives the
distances {200, 350}; the number of marks and the alphabet are ours (its chance is about 1/256).
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from lib.errors import require
from lib.registry import Positive
from suite.tasks import Task, blank, distinct, pick, write

DELAY, RECALL, FIRST = 0, 1, 2      # tokens: delay, the mark that asks for the string, the first symbol


@dataclass(frozen=True, kw_only=True)
class Copying(Task):
    """`s_1 ... s_n`, delay, recall mark, `s_1 ... s_(n-1)`: scored are the mark and what follows it.

    Every answer stands exactly `length - string` tokens before the position that must give it. A guess is a symbol.
    (Always saying the string's most frequent symbol is right a little more often.)
    """
    name = "copying"
    unit = "distance"
    vocab = property(lambda self: FIRST + self.symbols)
    chance = property(lambda self: 1 / self.symbols)
    shortest = property(lambda self: 2 * self.string)

    string: Positive = 32                           # symbols to copy
    symbols: Annotated[int, Field(ge=2)] = 32       # size of their alphabet

    def draw(self, rng, size, length):
        n, ask = self.string, length - self.string
        string = rng.integers(FIRST, self.vocab, (size, n))
        inputs = np.full((size, length), DELAY, np.int64)
        targets, labels = blank(size, length)
        inputs[:, :n] = string
        inputs[:, ask] = RECALL
        inputs[:, ask + 1:] = string[:, :-1]
        targets[:, ask:] = string
        labels[:, ask:] = ask
        return inputs, targets, labels


@dataclass(frozen=True, kw_only=True)
class MarkedCopy(Task):
    """Uniform random symbols; `marks` random positions at least `max(distances)` from the start hold a mark instead.

    Mark number k asks for the token `distances[k]` back. A mark that asks for another mark is removed, so that a
    context has at most `marks` questions. One distance alone is the paper's sweep. A guess is a symbol: all are equally
    likely, and the marks tell nothing about them.
    """
    name = "marked_copy"
    unit = "distance"
    vocab = property(lambda self: self.symbols + len(self.distances))
    chance = property(lambda self: 1 / self.symbols)
    shortest = property(lambda self: max(self.distances) + self.marks)

    distances: tuple[Positive, ...] = (200, 350)    # tokens
    marks: Positive = 32                            # marked positions of a context
    symbols: Annotated[int, Field(ge=2)] = 256      # size of the alphabet

    def __post_init__(self) -> None:
        super().__post_init__()
        different = 1 <= len(self.distances) == len(set(self.distances))
        require(different, "distances", self.distances, "one or more different distances in tokens")

    def draw(self, rng, size, length):
        first = max(self.distances)
        inputs = rng.integers(0, self.symbols, (size, length))
        targets, labels = blank(size, length)
        at = first + distinct(rng, size, self.marks, length - first)                # (B, marks)
        kind = rng.integers(0, len(self.distances), at.shape)
        distance = np.asarray(self.distances)[kind]
        marked = np.zeros((size, length), bool)
        write(marked, at, True)
        kept = ~pick(marked, at - distance)
        rows = np.broadcast_to(np.arange(size)[:, None], at.shape)[kept]
        at, kind, distance = at[kept], kind[kept], distance[kept]
        targets[rows, at] = inputs[rows, at - distance]
        labels[rows, at] = distance
        inputs[rows, at] = self.symbols + kind
        return inputs, targets, labels
