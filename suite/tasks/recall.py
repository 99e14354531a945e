"""Recall of a value by its key: MQAR, where the keys return soon, and retrieval, where the values lie far back.

Sources: MQAR, arxiv.org/abs/2312.04927 (Arora et al., Zoology: the definition and the appendix on its data); the needle
in a haystack of RULER, multi-key variant, arxiv.org/abs/2404.06654 (Hsieh et al.), section 3.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from lib.errors import require
from lib.registry import Positive
from suite.tasks import NOISE, Drawn, Task, distinct, in_noise, pick, scatter


@dataclass(frozen=True, kw_only=True)
class Recall(Task):
    """A task of keys and values, all different within a context; tables group its distances by powers of two.

    A guess is one of the context's values.
    """
    unit = "distance"
    vocab = property(lambda self: NOISE + self.keys + self.values)
    chance = property(lambda self: 1 / self.pairs)

    pairs: Annotated[int, Field(ge=2)] = 8      # keys with their values; one pair would need no key
    keys: int = 64                              # alphabet of keys
    values: int = 64                            # alphabet of values

    def __post_init__(self) -> None:
        super().__post_init__()
        for alphabet, size in (("keys", self.keys), ("values", self.values)):
            require(size >= self.pairs, alphabet, size, f"at least pairs = {self.pairs}")

    def split(self, label):
        return f"distance={label}-{2 * label - 1}" if label > 1 else "distance=1"

    def alphabets(self, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values, each `[size, pairs]`."""
        keys = NOISE + distinct(rng, size, self.pairs, self.keys)
        return keys, NOISE + self.keys + distinct(rng, size, self.pairs, self.values)

    def asked(self, rng: np.random.Generator, length: int, keys: np.ndarray, values: np.ndarray, at: np.ndarray,
              which: np.ndarray, ask: np.ndarray) -> Drawn:
        """Pairs that begin at `at` `[B, pairs]`, and the keys number `which` at `ask` `[B, Q]`. A label is the largest
        power of two that is no larger than the distance from the question back to the value."""
        octave = 2 ** np.floor(np.log2(ask - pick(at + 1, which))).astype(np.int64)
        placed = [(at, (keys, values)), (ask, (pick(keys, which),))]
        return in_noise(rng, len(keys), length, placed, ask, pick(values, which), octave)


@dataclass(frozen=True, kw_only=True)
class MQAR(Recall):
    """`k_1 v_1 ... k_P v_P`, then noise in which each key returns `returns` times; there the target is its value.

    A key returns in one of the two-token slots after the pairs, slot g (from 1) with probability proportional to
    `g^(power - 1)` among the free ones, in random order of the keys. The paper's keys return once; more returns are
    more scored tokens, and the task is learned in fewer steps.
    """
    name = "mqar"
    shortest = property(lambda self: 2 * self.pairs * (1 + self.returns))

    returns: Positive = 1                                   # times that each key is asked
    power: Annotated[float, Field(gt=0, le=1)] = 0.01       # near 0: most questions come soon; 1: evenly spread

    def draw(self, rng, size, length):
        P, Q = self.pairs, self.pairs * self.returns
        keys, values = self.alphabets(rng, size)
        slots = (length - 2 * P) // 2
        weight = (self.power - 1) * np.log(np.arange(1, slots + 1))
        chosen = (-weight - rng.gumbel(size=(size, slots))).argsort(axis=1)[:, :Q]      # Gumbel top-k: no replacement
        which = distinct(rng, size, Q, Q) % P           # top-k lists near slots first, so keys are dealt out separately
        at = np.broadcast_to(2 * np.arange(P), keys.shape)
        return self.asked(rng, length, keys, values, at, which, 2 * P + 2 * chosen)


@dataclass(frozen=True, kw_only=True)
class Retrieval(Recall):
    """Pairs `key value` at random places; the last `2 * queries` tokens alternate noise and an asked key.

    At an asked key the target is its value, which stands once in the context, at least `distance` tokens back. A key is
    asked at most `ceil(queries / pairs)` times. `queries=1` is the single needle; more queries are more scored tokens,
    so that the task is learned in fewer steps.
    """
    name = "retrieval"

    queries: Positive = 8                       # questions
    distance: Positive | None = None            # least tokens from a question back to its value; None: half the context

    @property
    def shortest(self):
        return (4 * self.pairs if self.distance is None else 2 * self.pairs + self.distance - 1) + 2 * self.queries

    def draw(self, rng, size, length):
        asked = length - 2 * self.queries                                   # where the questions begin
        least = asked // 2 if self.distance is None else self.distance
        keys, values = self.alphabets(rng, size)
        at = scatter(rng, size, self.pairs, 2, asked + 2 - least)           # the first question is at asked + 1
        dealt = -(-self.queries // self.pairs) * self.pairs
        which = distinct(rng, size, dealt, dealt)[:, :self.queries] % self.pairs
        ask = np.broadcast_to(asked + 1 + 2 * np.arange(self.queries), which.shape)
        return self.asked(rng, length, keys, values, at, which, ask)
