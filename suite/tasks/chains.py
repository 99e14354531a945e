"""Chains of assignments in random places: the value of a variable, or the sign of each (LEGO), is asked for at the end.

Sources: RULER's variable tracking, arxiv.org/abs/2404.06654 (Hsieh et al.), section 3. There the answer is the list of
all variables that hold a value; here it is the value of one variable, so that each question has one token to score.
LEGO, arxiv.org/abs/2206.04301 (Zhang et al.), with the group {+1, -1}. The sign of every clause is a fair coin, so that
an answer is + or - with probability 1/2 whatever part of the chain has been followed (the Fibonacci paper's models
mostly give one constant answer, and score 0.5028).
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from lib.errors import require
from lib.registry import Count, Positive
from suite.tasks import NOISE, Task, distinct, in_noise, pick, scatter

ASK, IS, FIRST = NOISE, NOISE + 1, NOISE + 2        # tokens: question mark, assignment, the first value
ONE, PLUS, VARIABLE = FIRST, FIRST + 1, FIRST + 3   # of LEGO: the constant 1; plus, and minus behind it; first variable


@dataclass(frozen=True, kw_only=True)
class VariableTracking(Task):
    """Statements `x = value` and `y = x` (three tokens each) at random places, the end asks `? y` for some variables.

    A chain is one value and `hops + 1` variables, each assigned after the one it is assigned from; the statements of
    different chains are interleaved at random. The label is the number of variable-to-variable assignments, 0 to hops.
    A guess is one of the context's values.
    """
    name = "variable_tracking"
    unit = "hops"
    statements = property(lambda self: self.chains * (self.hops + 1))
    vocab = property(lambda self: FIRST + self.values + self.variables)
    chance = property(lambda self: 1 / self.chains)
    shortest = property(lambda self: 3 * self.statements + 2 * self.queries)

    chains: Annotated[int, Field(ge=2)] = 4     # values in play; one chain would leave no choice
    hops: Count = 3                             # variable-to-variable assignments of a chain
    queries: Positive = 8                       # variables asked for
    values: int = 32                            # alphabet of values
    variables: int = 64                         # alphabet of names

    def __post_init__(self) -> None:
        super().__post_init__()
        count = f"chains * (hops + 1) = {self.statements}"
        require(self.queries <= self.statements, "queries", self.queries, f"1 to {count}")
        require(self.values >= self.chains, "values", self.values, f"at least chains = {self.chains}")
        require(self.variables >= self.statements, "variables", self.variables, f"at least {count}")

    def draw(self, rng, size, length):
        S, depth, asked = self.statements, self.hops + 1, length - 2 * self.queries
        values = FIRST + distinct(rng, size, self.chains, self.values)                        # (B, chains)
        names = FIRST + self.values + distinct(rng, size, S, self.variables)                  # (B, S): c * depth + hop
        right = np.roll(names, 1, axis=1)
        right[:, ::depth] = values
        at = scatter(rng, size, S, 3, asked)
        # A random sequence of chain numbers says whose next statement comes; a stable sort turns it into places.
        chains = np.tile(np.repeat(np.arange(self.chains), depth), (size, 1))
        turn = pick(chains, distinct(rng, size, S, S))
        place = pick(at, turn.argsort(axis=1, kind="stable"))                             # (B, S): where each stands
        which = distinct(rng, size, self.queries, S)
        ask = np.broadcast_to(asked + 2 * np.arange(self.queries), which.shape)
        placed = [(place, (names, IS, right)), (ask, (ASK, pick(names, which)))]
        return in_noise(rng, size, length, placed, ask + 1, pick(values, which // depth), which % depth)


@dataclass(frozen=True, kw_only=True)
class Lego(Task):
    """Clauses `a = + 1`, `b = - a`, `c = + b`, ... (four tokens each) at random places, then `? x` for every x.

    The label is the number of clauses that an answer needs, 1 to chain.
    """
    name = "lego"
    unit = "steps"
    vocab = property(lambda self: VARIABLE + self.variables)
    chance = 0.5
    shortest = property(lambda self: 6 * self.chain)

    chain: Positive = 6     # clauses, and variables to ask for
    variables: int = 32     # alphabet of names

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.variables >= self.chain, "variables", self.variables, f"at least chain = {self.chain}")

    def draw(self, rng, size, length):
        N, asked = self.chain, length - 2 * self.chain
        names = VARIABLE + distinct(rng, size, N, self.variables)           # (B, N) along the chain
        minus = rng.integers(0, 2, (size, N))
        answers = PLUS + minus.cumsum(axis=1) % 2
        right = np.roll(names, 1, axis=1)
        right[:, 0] = ONE
        place = pick(scatter(rng, size, N, 4, asked), distinct(rng, size, N, N))
        which = distinct(rng, size, N, N)
        ask = np.broadcast_to(asked + 2 * np.arange(N), which.shape)
        placed = [(place, (names, IS, PLUS + minus, right)), (ask, (ASK, pick(names, which)))]
        return in_noise(rng, size, length, placed, ask + 1, pick(answers, which), which + 1)
