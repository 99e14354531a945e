"""LEGO: a chain of signed assignments in random order; which sign does each variable have?

Source: arxiv.org/abs/2206.04301 (Zhang et al.), the definition of LEGO, with the group {+1, -1}. The sign of every
clause is a fair coin, so that an answer is + or - with probability 1/2 whatever part of the chain has been followed
(the Fibonacci paper's models mostly give one constant answer, and score 0.5028).
"""

from dataclasses import dataclass

import numpy as np

from lib.errors import require
from lib.registry import Positive
from suite.tasks.base import NOISE, Task, blank, distinct, scatter, write

ASK, IS, ONE = NOISE, NOISE + 1, NOISE + 2          # tokens: question mark, assignment, the constant 1
PLUS = NOISE + 3                                    # PLUS and PLUS + 1 (minus): signs of clauses, and the two answers
FIRST = NOISE + 5                                   # the first variable


@dataclass(frozen=True, kw_only=True)
class Lego(Task):
    """Clauses `a = + 1`, `b = - a`, `c = + b`, ... (four tokens each) at random places, then `? x` for every x.

    The label is the number of clauses that an answer needs, 1 to chain.
    """
    name = "lego"
    source = "arxiv.org/abs/2206.04301 (LEGO)"
    unit = "steps"

    chain: Positive = 6     # clauses, and variables to ask for
    variables: int = 32     # alphabet of names

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.variables >= self.chain, "variables", self.variables, f"at least chain = {self.chain}")

    @property
    def vocab(self):
        return FIRST + self.variables

    @property
    def chance(self):
        return 0.5

    @property
    def shortest(self):
        return 6 * self.chain

    def draw(self, rng, size, length):
        N, asked = self.chain, length - 2 * self.chain
        names = FIRST + distinct(rng, size, N, self.variables)              # (B, N) along the chain
        minus = rng.integers(0, 2, (size, N))
        answers = PLUS + minus.cumsum(axis=1) % 2
        right = np.roll(names, 1, axis=1)
        right[:, 0] = ONE
        place = np.take_along_axis(scatter(rng, size, N, 4, asked), distinct(rng, size, N, N), axis=1)
        which = distinct(rng, size, N, N)
        ask = np.broadcast_to(asked + 2 * np.arange(N), which.shape)

        inputs = rng.integers(0, NOISE, (size, length))
        targets, labels = blank(size, length)
        for offset, token in enumerate((names, IS, PLUS + minus, right)):
            write(inputs, place + offset, token)
        write(inputs, ask, ASK)
        write(inputs, ask + 1, np.take_along_axis(names, which, axis=1))
        write(targets, ask + 1, np.take_along_axis(answers, which, axis=1))
        write(labels, ask + 1, which + 1)
        return inputs, targets, labels
