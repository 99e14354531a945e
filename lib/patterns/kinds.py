"""The kinds of pattern that the families are made from: by distance, with a window, by row, and with a learned part.

A file with a pattern imports all that it needs from here.
"""

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from lib.patterns.base import (EdgeTable, HeadOffsets, Knob, LearnedOffsets, Offsets, Pattern, PerHead, PerLayer,
                               PositivePerHead, SoftWindow)
from lib.registry import Count, Positive

__all__ = ["PARTS", "Count", "DrawnPattern", "Knob", "LearnedOffsets", "LearnedPattern", "OffsetPattern", "Pattern",
           "PerHead", "PerLayer", "Positive", "PositivePerHead", "RowPattern", "SoftWindow", "Windowed", "edge_table",
           "link_codes"]

PARTS = 1024            # `extra` of a random pattern counts queries out of this many


class OffsetPattern(Pattern):
    """Keys depend on the distance alone (and on whether they lead). The query itself is always a key."""
    bidirectional = True
    leads = 0               # how many leading tokens every later query sees

    def distances(self, layer: int, length: int, head: int) -> Iterable[int]:
        """Distances back, in any order; repeats and those beyond `length - 1` are dropped."""
        raise NotImplementedError(f"{type(self).__name__} does not define distances")

    def ahead(self, layer: int, length: int, head: int) -> Iterable[int]:
        """Distances into the future of a bidirectional pattern: by default the distances back, mirrored."""
        return self.distances(layer, length, head)

    def keys(self, layer, length):
        heads = []
        for head in range(self.heads):
            signed = {0, *self.distances(layer, length, head)}
            if not self.causal:
                signed |= {-d for d in self.ahead(layer, length, head)}
            inside = tuple(sorted(d for d in signed if abs(d) < length))
            heads.append(Offsets(inside, min(self.leads, length), self.causal))
        return heads[0] if len(set(heads)) == 1 else HeadOffsets(tuple(heads))


class Windowed(OffsetPattern):
    """A window `0 <= d <= W` and far distances. W may differ by layer and head, which lets `match_edges` come close."""
    by_head = "window"
    window: PerHead = 8

    def band(self, layer: int, head: int) -> tuple[int, int]:
        """W and dilation r of a layer and head: the window is `d = r * n`, `0 <= n <= W`."""
        return self.widths[layer][head], 1

    def far(self, layer: int, length: int, head: int) -> Iterable[int]:
        """Distances beyond the window; distances within it do no harm."""
        return ()

    def distances(self, layer, length, head):
        width, dilation = self.band(layer, head)
        return {*range(0, min(dilation * width, length - 1) + 1, dilation), *self.far(layer, length, head)}

    def knobs(self, length):
        return (Knob("window", range(length), "head"),)


class RowPattern(Pattern):
    """Keys differ from query to query: an edge table."""
    bidirectional = True

    def links(self, layer: int, length: int, head: int) -> Iterable[tuple[Any, Any]]:
        """Queries and keys `(i, j)`, arrays that broadcast; repeats and keys ahead or outside the text are dropped."""
        raise NotImplementedError(f"{type(self).__name__} does not define links")

    def variant(self, layer: int, head: int) -> Hashable:
        """What the keys depend on: the head's width, or the layer where no width differs, as heads share their keys."""
        return self.widths[layer][head] if self.by_head else layer

    def keys(self, layer, length):
        variants = [self.variant(layer, head) for head in range(self.heads)]
        codes = {variant: link_codes(self, layer, length, variants.index(variant)) for variant in set(variants)}
        return edge_table([codes[variant] for variant in variants], length)

    def layer_pairs(self, layer, length):
        total = 0
        for head in range(self.heads):
            of = self.variant(layer, head), length
            if of not in self._counts:
                self._counts[of] = len(link_codes(self, layer, length, head))
            total += self._counts[of]
        return total / self.heads

    @cached_property
    def _counts(self) -> dict[tuple[Hashable, int], int]:
        return {}


class DrawnPattern(RowPattern):
    """A window, and keys that every query draws at random. The draw is part of the rule."""
    window: Count = 0
    extra: Annotated[int, Field(ge=0, lt=PARTS)] = 0    # queries out of 1024 that have one key more, spread evenly
    per_layer: bool = True                              # whether each layer has a draw of its own
    seed: Count = 0

    @property
    def near(self) -> int:
        """Keys of the window, the query included."""
        return self.window * (1 if self.causal else 2) + 1

    def rng(self, layer: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, layer if self.per_layer else 0])

    def with_extra(self, budget: int, i: np.ndarray | int) -> np.ndarray | int:
        """`budget` of query `i`, and one more for `extra` of every 1024 queries."""
        return budget + (i + 1) * self.extra // PARTS - i * self.extra // PARTS

    def drawn(self, i: np.ndarray, j: np.ndarray, layer: int, length: int, head: int) -> np.ndarray:
        """Whether `links` joins `i` and `j`."""
        joined = np.zeros((length, length), bool)
        for query, keys in self.links(layer, length, head):
            joined[query, keys] = True
        return joined[i, j]

    def knobs(self, length):
        return Knob("budget", range(self.near, self.near + length)), Knob("extra", range(PARTS))


class LearnedPattern(Pattern):
    """A window, and a part that the model learns: from `theta` of each layer, which starts as `thetas`."""
    by_head = "window"
    window: PerLayer = 8

    def knobs(self, length):
        return (Knob("window", range(length), "layer"),)


def link_codes(pattern: Pattern, layer: int, length: int, head: int) -> np.ndarray:
    """Ascending numbers `i * length + j` of the pairs of the pattern's `links` that exist, each once."""
    codes = []
    for i, j in pattern.links(layer, length, head):
        i, j = np.broadcast_arrays(np.asarray(i, np.int64), np.asarray(j, np.int64))
        exists = (j >= 0) & (j < length) & ((j <= i) | (not pattern.causal))
        codes.append(i[exists] * length + j[exists])
    return np.unique(np.concatenate(codes))


def edge_table(heads: Sequence[np.ndarray], length: int) -> EdgeTable:
    """The table of each head's codes (`link_codes`): `[H, T, C]`, or `[T, C]` where heads share their keys."""
    if all(np.array_equal(heads[0], other) for other in heads[1:]):
        heads = heads[:1]
    sizes = [np.bincount(codes // length, minlength=length) for codes in heads]     # (H, T)
    keys = np.full((len(heads), length, max(map(max, sizes))), -1, np.int32)        # (H, T, C)
    for head, codes in enumerate(heads):
        i, j = codes // length, codes % length
        keys[head, i, np.arange(len(codes)) - (np.cumsum(sizes[head]) - sizes[head])[i]] = j
    return EdgeTable(keys[0] if len(heads) == 1 else keys)
