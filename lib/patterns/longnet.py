"""LongNet: dilated attention within segments, both growing, shifted by head. Source: Ding et al. 2023."""

from typing import Annotated

import numpy as np
from pydantic import Field

from lib.patterns.kinds import Knob, Positive, PositivePerHead, RowPattern


class LongNet(RowPattern):
    """Branch n has segments of `w = segment * factor^n` tokens and dilation `r = factor^n`; head h shifts by `h mod r`.

    Query `i` attends `j` where in some branch `i // w = j // w` and `(i mod w) mod r = (j mod w) mod r = h mod r`; and
    itself. The union of the branches: a key that two branches share counts once (the paper's weighted sum: twice).
    """
    name = "longnet"
    family = "literature"
    source = "arxiv.org/abs/2307.02486 (LongNet), sections 2.2 (segments, dilation, mixture) and 2.3 (heads)"
    by_head = "segment"

    segment: PositivePerHead = 8
    factor: Annotated[int, Field(ge=2)] = 2
    branches: Positive = 3

    def variant(self, layer, head):
        return self.widths[layer][head], head % self.factor ** (self.branches - 1)

    def _branches(self, layer: int, head: int) -> list[tuple[int, int]]:
        return [(self.widths[layer][head] * self.factor ** n, self.factor ** n) for n in range(self.branches)]

    def links(self, layer, length, head):
        i = np.arange(length)
        yield i, i
        for w, r in self._branches(layer, head):
            picked = i[i % w % r == head % r][:, None]
            yield picked, picked // w * w + np.arange(head % r, w, r)

    def attends(self, i, j, layer, length, head):
        allowed = i == j
        for w, r in self._branches(layer, head):
            allowed = allowed | ((i // w == j // w) & (i % w % r == head % r) & (j % w % r == head % r))
        return allowed

    def knobs(self, length):
        return (Knob("segment", range(1, length + 1), "head"),)

    shown = [dict(segment=4, heads=4), dict(segment=3, factor=3, branches=2, heads=2, causal=False)]
