"""Long-range copying: a random string, a delay that fills the context, and the string again.

Source: the copy-memory task of Hochreiter and Schmidhuber (1997) and arxiv.org/abs/1511.06464 (Arjovsky et al.),
section 5.1, for a language model; the Christoffel document's "synthetic long-range copying task".
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from lib.registry import Positive
from suite.tasks.base import Task, blank

DELAY, RECALL, FIRST = 0, 1, 2      # tokens: delay, the mark that asks for the string, the first symbol


@dataclass(frozen=True, kw_only=True)
class Copying(Task):
    """`s_1 ... s_n`, delay, recall mark, `s_1 ... s_(n-1)`: scored are the mark and what follows it.

    Every answer stands exactly `length - string` tokens before the position that must give it.
    """
    name = "copying"
    source = "arxiv.org/abs/1511.06464, section 5.1"
    unit = "distance"

    string: Positive = 32                           # symbols to copy
    symbols: Annotated[int, Field(ge=2)] = 32       # size of their alphabet

    @property
    def vocab(self):
        return FIRST + self.symbols

    @property
    def chance(self):
        """A guess at a symbol. (Always saying the string's most frequent symbol is right a little more often.)"""
        return 1 / self.symbols

    @property
    def shortest(self):
        return 2 * self.string

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
