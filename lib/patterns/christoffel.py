"""Christoffel word: offsets where the carry of `j * m / k` is 1. Source: Christoffel document."""

import math
import warnings
from typing import Literal

import numpy as np

from lib.errors import require
from lib.patterns.kinds import Knob, PerHead, Positive, Windowed


def carry_word(m: int, k: int, length: int | None = None) -> list[int]:
    """`c[j] = (j+1)*m//k - j*m//k` for `0 <= j < length` (default: one period, k), 1 in m of every k places."""
    return [(j + 1) * m // k - j * m // k for j in range(k if length is None else length)]


def coprime_neighbours(m: int, k: int, count: int = 2) -> tuple[int, ...]:
    """The `count` values nearest to `m`, itself left out, that are coprime to `k`: 63 and 65 for 64 of 512."""
    others = (n for n in range(1, k + 1) if n != m and math.gcd(n, k) == 1)
    return tuple(sorted(others, key=lambda n: (abs(n - m), n))[:count])


class Christoffel(Windowed):
    """Query `i` attends itself, `0 <= d <= window`, and `d = o` where `c[o] = 1`, that is `(o * m) mod k >= k - m`.

    The document's `i + o <= i` would leave every key set empty, so causal keys are `i - o`. The word is read once
    (`o < k`), or over the whole context with `repeat`. Bidirectional, by `sides`: `signed` attends `i - o` and `i + o`;
    `slopes` attends `i - o` by the word of m/k and `i + o` by that of (k-m)/k. With `gcd(m, k) = g > 1` the word has
    period k/g: a warning names coprime neighbours.
    """
    name = "christoffel"
    family = "christoffel"
    source = "Christoffel document; causal keys i - o instead of its i + o (audit, row 23)"

    m: Positive = 63
    k: Positive = 512
    window: PerHead = 0
    repeat: bool = False
    sides: Literal["signed", "slopes"] = "signed"       # of a bidirectional pattern

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.m <= self.k, "m", self.m, f"an integer from 1 to k = {self.k}")
        require(self.sides == "signed" or not self.causal, "sides", self.sides, "'signed' in a causal pattern")
        shared = math.gcd(self.m, self.k)
        if shared > 1 and self.m < self.k:
            warnings.warn(f"christoffel: m = {self.m} and k = {self.k} share {shared}: a word of period "
                          f"{self.k // shared}; coprime neighbours of m: {coprime_neighbours(self.m, self.k)}",
                          stacklevel=3)

    def far(self, layer, length, head, ahead=False):
        slope = self.k - self.m if ahead and self.sides == "slopes" else self.m
        word = carry_word(slope, self.k, length if self.repeat else min(length, self.k))
        return [o for o, carry in enumerate(word) if carry]

    def ahead(self, layer, length, head):
        return {*range(self.widths[layer][head] + 1), *self.far(layer, length, head, ahead=True)}

    def attends(self, i, j, layer, length, head):
        o = abs(i - j)
        read = self.repeat | (o < self.k)
        carries = o * self.m % self.k >= self.k - self.m
        if self.sides == "slopes":
            carries = np.where(j <= i, carries, o * (self.k - self.m) % self.k >= self.m)
        return (o <= self.widths[layer][head]) | (read & carries)

    def knobs(self, length):
        slopes = [m for m in range(1, self.k + 1) if math.gcd(m, self.k) == 1]
        return Knob("m", slopes), Knob("window", range(self.widest, length), "head")

    shown = [dict(m=3, k=8), dict(m=5, k=16, window=2, repeat=True), dict(m=3, k=8, repeat=True, causal=False),
             dict(m=5, k=16, repeat=True, sides="slopes", causal=False)]
