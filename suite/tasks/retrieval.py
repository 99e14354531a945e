"""Long-range retrieval: key-value pairs lie far back in a haystack, and the end of the context asks for some of them.

Source: the needle in a haystack of RULER, multi-key variant, arxiv.org/abs/2404.06654 (Hsieh et al.), section 3.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from lib.errors import require
from lib.registry import Positive
from suite.tasks.base import NOISE, Ranged, blank, distinct, octave, scatter, write


@dataclass(frozen=True, kw_only=True)
class Retrieval(Ranged):
    """Pairs `key value` at random places; the last `2 * queries` tokens alternate noise and an asked key.

    At an asked key the target is its value, which stands once in the context, at least `distance` tokens back. All keys
    of a context differ, and so do all values; a key is asked at most `ceil(queries / pairs)` times. `queries=1` is the
    single needle; more queries are more scored tokens, so that the task is learned in fewer steps.
    """
    name = "retrieval"
    source = "arxiv.org/abs/2404.06654, section 3"

    pairs: Annotated[int, Field(ge=2)] = 8      # needles in the context; one pair would need no key
    queries: Positive = 8                       # questions
    distance: Positive | None = None            # least tokens from a question back to its value; None: half the context
    keys: int = 64                              # alphabet of keys
    values: int = 64                            # alphabet of values

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
        return (4 * self.pairs if self.distance is None else 2 * self.pairs + self.distance - 1) + 2 * self.queries

    def draw(self, rng, size, length):
        asked = length - 2 * self.queries                                   # where the questions begin
        least = asked // 2 if self.distance is None else self.distance
        keys = NOISE + distinct(rng, size, self.pairs, self.keys)
        values = NOISE + self.keys + distinct(rng, size, self.pairs, self.values)
        at = scatter(rng, size, self.pairs, 2, asked + 2 - least)           # the first question is at asked + 1
        rounds = -(-self.queries // self.pairs)
        which = distinct(rng, size, rounds * self.pairs, rounds * self.pairs)[:, :self.queries] % self.pairs
        ask = np.broadcast_to(asked + 1 + 2 * np.arange(self.queries), which.shape)

        inputs = rng.integers(0, NOISE, (size, length))
        targets, labels = blank(size, length)
        write(inputs, at, keys)
        write(inputs, at + 1, values)
        write(inputs, ask, np.take_along_axis(keys, which, axis=1))
        write(targets, ask, np.take_along_axis(values, which, axis=1))
        write(labels, ask, octave(ask - np.take_along_axis(at + 1, which, axis=1)))
        return inputs, targets, labels
