"""Variable tracking: chains of assignments interleaved in a haystack; which value does a variable hold?

Source: RULER's variable tracking, arxiv.org/abs/2404.06654 (Hsieh et al.), section 3. There the answer is the list of
all variables that hold a value; here it is the value of one variable, so that each question has one token to score.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from lib.errors import require
from lib.registry import Count, Positive
from suite.tasks.base import NOISE, Task, blank, distinct, scatter, write

ASK, IS, FIRST = NOISE, NOISE + 1, NOISE + 2        # tokens: question mark, assignment, the first value


@dataclass(frozen=True, kw_only=True)
class VariableTracking(Task):
    """Statements `x = value` and `y = x` (three tokens each) at random places, the end asks `? y` for some variables.

    A chain is one value and `hops + 1` variables, each assigned after the one it is assigned from; the statements of
    different chains are interleaved at random. The label is the number of variable-to-variable assignments, 0 to hops.
    """
    name = "variable_tracking"
    source = "arxiv.org/abs/2404.06654, section 3"
    unit = "hops"

    chains: Annotated[int, Field(ge=2)] = 4     # values in play; one chain would leave no choice
    hops: Count = 3                             # variable-to-variable assignments of a chain
    queries: Positive = 8                       # variables asked for
    values: int = 32                            # alphabet of values
    variables: int = 64                         # alphabet of names

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.queries <= self.statements, "queries", self.queries,
                f"1 to chains * (hops + 1) = {self.statements}")
        require(self.values >= self.chains, "values", self.values, f"at least chains = {self.chains}")
        require(self.variables >= self.statements, "variables", self.variables,
                f"at least chains * (hops + 1) = {self.statements}")

    @property
    def statements(self) -> int:
        return self.chains * (self.hops + 1)

    @property
    def vocab(self):
        return FIRST + self.values + self.variables

    @property
    def chance(self):
        """A guess at one of the context's values."""
        return 1 / self.chains

    @property
    def shortest(self):
        return 3 * self.statements + 2 * self.queries

    def draw(self, rng, size, length):
        S, depth, asked = self.statements, self.hops + 1, length - 2 * self.queries
        values = FIRST + distinct(rng, size, self.chains, self.values)                        # (B, chains)
        names = FIRST + self.values + distinct(rng, size, S, self.variables)                  # (B, S): c * depth + hop
        right = np.roll(names, 1, axis=1)
        right[:, ::depth] = values
        at = scatter(rng, size, S, 3, asked)
        # A random sequence of chain numbers says whose next statement comes; a stable sort turns it into places.
        chains = np.tile(np.repeat(np.arange(self.chains), depth), (size, 1))
        turn = np.take_along_axis(chains, distinct(rng, size, S, S), axis=1)
        place = np.take_along_axis(at, turn.argsort(axis=1, kind="stable"), axis=1)       # (B, S): where each stands
        which = distinct(rng, size, self.queries, S)
        ask = np.broadcast_to(asked + 2 * np.arange(self.queries), which.shape)

        inputs = rng.integers(0, NOISE, (size, length))
        targets, labels = blank(size, length)
        for offset, token in enumerate((names, IS, right)):
            write(inputs, place + offset, token)
        write(inputs, ask, ASK)
        write(inputs, ask + 1, np.take_along_axis(names, which, axis=1))
        write(targets, ask + 1, np.take_along_axis(values, which // depth, axis=1))
        write(labels, ask + 1, which % depth)
        return inputs, targets, labels
