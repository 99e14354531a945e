"""Sparse Transformer, fixed: a query's block, and the last c places of each. Source: Child et al. 2019, section 4.3."""

from math import isqrt

import numpy as np

from lib.errors import require
from lib.patterns.kinds import Knob, Positive, PositivePerHead, RowPattern
from lib.patterns.sparse_strided import Arrangement, factors, split


class SparseFixed(RowPattern):
    """Query `i` attends itself; near factor: `j // block = i // block`; far factor: `j mod block >= block - summary`.

    `arrange`: each head has both factors (`merged`), or one, in turn by `layers` or by `heads`.
    """
    name = "sparse_fixed"
    family = "literature"
    source = "arxiv.org/abs/1904.10509 (Sparse Transformer), sections 4.3 (fixed) and 5.1 (arrange)"
    by_head = "summary"

    block: Positive = 16                # the paper's stride l
    summary: PositivePerHead = 1        # the paper's c: places that summarise a block
    arrange: Arrangement = "merged"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.widest <= self.block, "summary", self.summary, f"1 to block = {self.block}")

    def variant(self, layer, head):
        return factors(self.arrange, layer, head), self.widths[layer][head]

    def links(self, layer, length, head):
        near, far = factors(self.arrange, layer, head)
        i, places = np.arange(length)[:, None], np.arange(length)
        yield i, i
        if near:
            yield i, i - i % self.block + np.arange(self.block)
        if far:
            yield i, places[places % self.block >= self.block - self.widths[layer][head]]

    def attends(self, i, j, layer, length, head):
        near, far = factors(self.arrange, layer, head)
        same = i // self.block == j // self.block
        return (i == j) | (near & same) | (far & (j % self.block >= self.block - self.widths[layer][head]))

    def knobs(self, length):
        # A longer block has fewer summaries but more keys of its own: pairs grow from about the root of the length on
        cheapest = max(self.widest, isqrt(length))
        blocks = Knob("block", range(cheapest, max(cheapest, length) + 1))
        return Knob("arrange", split(self)), blocks, Knob("summary", range(self.widest, self.block + 1), "head")

    shown = [dict(block=6, summary=2), dict(block=5, arrange="layers", layers=4),
             dict(block=5, summary=((1, 2), 1, 3, 1), arrange="heads", heads=2, layers=4), dict(block=6, causal=False)]
