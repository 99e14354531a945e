"""Multi-query associative recall (MQAR): pairs first, then the keys again at gaps that follow a power law.

Source: arxiv.org/abs/2312.04927 (Arora et al., Zoology: the definition of MQAR and the appendix on its data).
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from lib.errors import require
from lib.registry import Positive
from suite.tasks.base import NOISE, Ranged, blank, distinct, octave, write


@dataclass(frozen=True, kw_only=True)
class MQAR(Ranged):
    """`k_1 v_1 ... k_P v_P`, then noise in which each key returns `returns` times; there the target is its value.

    A key returns in one of the two-token slots after the pairs, slot g (from 1) with probability proportional to
    `g^(power - 1)` among the free ones, in random order of the keys. Keys and values are different within a context.
    The paper's keys return once; more returns are more scored tokens, and the task is learned in fewer steps.
    """
    name = "mqar"
    source = "arxiv.org/abs/2312.04927 (MQAR and its synthetic data)"

    pairs: Annotated[int, Field(ge=2)] = 8                  # key-value pairs; one pair would need no key
    returns: Positive = 1                                   # times that each key is asked
    keys: int = 64                                          # alphabet of keys
    values: int = 64                                        # alphabet of values
    power: Annotated[float, Field(gt=0, le=1)] = 0.01       # near 0: most questions come soon; 1: evenly spread

    def __post_init__(self) -> None:
        super().__post_init__()
        for alphabet, size in (("keys", self.keys), ("values", self.values)):
            require(size >= self.pairs, alphabet, size, f"at least pairs = {self.pairs}")

    @property
    def vocab(self):
        return NOISE + self.keys + self.values

    @property
    def chance(self):
        """A guess at one of the context's values."""
        return 1 / self.pairs

    @property
    def shortest(self):
        return 2 * self.pairs * (1 + self.returns)

    def draw(self, rng, size, length):
        P, Q = self.pairs, self.pairs * self.returns
        keys = NOISE + distinct(rng, size, P, self.keys)
        values = NOISE + self.keys + distinct(rng, size, P, self.values)
        slots = (length - 2 * P) // 2
        weight = (self.power - 1) * np.log(np.arange(1, slots + 1))
        chosen = (-weight - rng.gumbel(size=(size, slots))).argsort(axis=1)[:, :Q]      # Gumbel top-k: no replacement
        which = distinct(rng, size, Q, Q) % P           # top-k lists near slots first, so keys are dealt out separately
        ask = 2 * P + 2 * chosen

        inputs = rng.integers(0, NOISE, (size, length))
        targets, labels = blank(size, length)
        inputs[:, 0:2 * P:2], inputs[:, 1:2 * P:2] = keys, values
        write(inputs, ask, np.take_along_axis(keys, which, axis=1))
        write(targets, ask, np.take_along_axis(values, which, axis=1))
        write(labels, ask, octave(ask - (1 + 2 * which)))
        return inputs, targets, labels
