"""Fibottention: each head has a row of the Wythoff array as distances. Source: Rahimian et al. 2024."""

from math import isqrt

import numpy as np

from lib.patterns.kinds import Count, PerHead, Positive, Windowed


def wythoff_row(row: int, limit: int, modified: bool = False) -> list[int]:
    """Row `row` (from 1) of the Wythoff array up to `limit`: 1 2 3 5 8 …, 4 7 11 18 …; every number is in one row.

    modified: with the two numbers before, `row - 1` and `floor(row * phi)`.
    """
    a, b, out = row - 1, (row + isqrt(5 * row * row)) // 2, []          # in integers, as floats round
    if not modified:
        a, b = a + b, a + 2 * b
    while a <= limit:
        out.append(a)
        a, b = b, a + b
    return out


class Fibottention(Windowed):
    """Query `i` attends itself and `j` where d is in the Wythoff row of the head and `d <= w_h`; `|d|` in an encoder.

    `w_h` goes evenly from `nearest` (first row) to `farthest` (last row); None is the context. A seeded permutation
    deals the rows to the heads anew in each layer. `modified` adds the two numbers before each row's first. `window`
    adds `0 <= d <= window` (the paper leaves near keys out).
    """
    name = "fibottention"
    family = "literature"
    source = "arxiv.org/abs/2406.19391 (Fibottention), section 3 and its algorithm; here a query always attends itself"

    window: PerHead = 0
    nearest: Positive | None = None
    farthest: Positive | None = None
    modified: bool = False
    seed: Count = 0

    def row_and_limit(self, layer: int, length: int, head: int) -> tuple[int, int]:
        """Which row of the array (from 1) a head has in this layer, and its largest distance."""
        row = int(np.random.default_rng([self.seed, layer]).permutation(self.heads)[head])
        low, high = self.nearest or length, self.farthest or length
        return row + 1, low + (high - low) * row // max(1, self.heads - 1)

    def far(self, layer, length, head):
        return wythoff_row(*self.row_and_limit(layer, length, head), self.modified)

    def attends(self, i, j, layer, length, head):
        # Column c of row m is floor(m phi) F(c+1) + (m-1) F(c); the modified ones are c = 0 and -1
        d, (row, limit) = abs(i - j), self.row_and_limit(layer, length, head)
        wythoff = d < 0
        f, following = (1, 0) if self.modified else (1, 1)                      # F(-1), F(0) or F(1), F(2)
        while f < limit + 2:
            wythoff = wythoff | (d == int(row * (1 + 5 ** 0.5) / 2) * following + (row - 1) * f)
            f, following = following, f + following
        return (d <= self.widths[layer][head]) | (wythoff & (d <= limit))

    shown = [dict(heads=4, layers=4), dict(heads=4, layers=4, nearest=8, farthest=32, modified=True, window=1, seed=1),
             dict(heads=2, causal=False)]
