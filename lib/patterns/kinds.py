"""The kinds of pattern that the families are made from: by distance, with a window, by row, and with a learned part."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lib.patterns.base import EdgeTable, HeadOffsets, Knob, Offsets, Pattern, PerHead, per_head

PARTS = 1024            # `extra` of a random pattern counts queries out of this many


@dataclass(frozen=True, kw_only=True)
class OffsetPattern(Pattern):
    """Keys depend on the distance alone (and on whether they lead). The query itself is always a key."""
    bidirectional = True

    def distances(self, layer: int, length: int, head: int) -> Iterable[int]:
        """Distances back, in any order; repeats and those beyond `length - 1` are dropped."""
        raise NotImplementedError(f"{type(self).__name__} does not define distances")

    def ahead(self, layer: int, length: int, head: int) -> Iterable[int]:
        """Distances into the future of a bidirectional pattern: by default the distances back, mirrored."""
        return self.distances(layer, length, head)

    @property
    def leads(self) -> int:
        """How many leading tokens every later query sees."""
        return 0

    def keys(self, layer, length):
        offsets = tuple(self._offsets(layer, length, head) for head in range(self.heads))
        return offsets[0] if len(set(offsets)) == 1 else HeadOffsets(offsets)

    def _offsets(self, layer: int, length: int, head: int) -> Offsets:
        signed = {0, *self.distances(layer, length, head)}
        if not self.causal:
            signed |= {-d for d in self.ahead(layer, length, head)}
        return Offsets(tuple(sorted(d for d in signed if abs(d) < length)), min(self.leads, length), self.causal)


@dataclass(frozen=True, kw_only=True)
class Windowed(OffsetPattern):
    """A window `0 <= d <= W` and far distances. W may differ by layer and head, which lets `match_edges` come close."""
    window: PerHead = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.widths

    @cached_property
    def widths(self) -> tuple[tuple[int, ...], ...]:
        """W of each layer and head, `[layers][heads]`."""
        return per_head(self.window, self.layers, self.heads, "window")

    @property
    def widest(self) -> int:
        return max(map(max, self.widths))

    def far(self, layer: int, length: int, head: int) -> Iterable[int]:
        """Distances beyond the window; distances within it do no harm."""
        return ()

    def distances(self, layer, length, head):
        near = range(min(self.widths[layer][head], length - 1) + 1)
        return {*near, *self.far(layer, length, head)}

    def knobs(self, length):
        return (Knob("window", range(length), "head"),)


Link = tuple[np.ndarray | int, np.ndarray | list[int]]


@dataclass(frozen=True, kw_only=True)
class RowPattern(Pattern):
    """Keys differ from query to query: an edge table."""
    bidirectional = True

    def links(self, layer: int, length: int, head: int) -> Iterable[Link]:
        """Queries and keys `(i, j)`, arrays that broadcast; repeats, and keys ahead or outside the text, are
        dropped."""
        raise NotImplementedError(f"{type(self).__name__} does not define links")

    def variant(self, layer: int, head: int) -> Hashable:
        """The part of layer and head that the keys depend on: by default the layer alone, as heads share their keys."""
        return layer

    def drawn(self, i: np.ndarray, j: np.ndarray, layer: int, length: int, head: int) -> np.ndarray:
        """Whether `links` joins `i` and `j`: the rule of a random pattern, whose draw is part of it."""
        joined = np.zeros((length, length), bool)
        for query, keys in self.links(layer, length, head):
            joined[query, keys] = True
        return joined[i, j]

    def keys(self, layer, length):
        variants = [self.variant(layer, head) for head in range(self.heads)]
        tables = {variant: self._codes(layer, length, head) for head, variant in enumerate(variants)
                  if variants.index(variant) == head}
        if len(tables) == 1:
            return edge_table([tables[variants[0]]], length)
        return edge_table([tables[variant] for variant in variants], length)

    def layer_pairs(self, layer, length):
        total = 0
        for head in range(self.heads):
            of = self.variant(layer, head), length
            if of not in self._counts:
                self._counts[of] = len(self._codes(layer, length, head))
            total += self._counts[of]
        return total / self.heads

    @cached_property
    def _counts(self) -> dict[tuple[Hashable, int], int]:
        return {}

    def _codes(self, layer: int, length: int, head: int) -> np.ndarray:
        return link_codes(self.links(layer, length, head), length, self.causal)


@dataclass(frozen=True, kw_only=True)
class LearnedPattern(Pattern):
    """A pattern with a part that the model learns, beside a window."""
    window: PerHead = 8             # one for all layers, or one a layer

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.widths

    @property
    def widths(self) -> tuple[int, ...]:
        """W of each layer."""
        return tuple(row[0] for row in per_head(self.window, self.layers, 1, "window"))

    def knobs(self, length):
        return (Knob("window", range(length), "layer"),)


def row_budgets(budget: int, extra: int, i: np.ndarray | int) -> np.ndarray | int:
    """Keys of query `i`: `budget`, and one more for `extra` of every 1024 queries, spread evenly."""
    return budget + (i + 1) * extra // PARTS - i * extra // PARTS


def link_codes(links: Iterable[Link], length: int, causal: bool) -> np.ndarray:
    """Ascending numbers `i * length + j` of the pairs that exist, each once."""
    codes = []
    for i, j in links:
        i, j = np.broadcast_arrays(np.asarray(i, np.int64), np.asarray(j, np.int64))
        exists = (j >= 0) & (j < length) & ((j <= i) | (not causal))
        codes.append(i[exists] * length + j[exists])
    return np.unique(np.concatenate(codes))


def edge_table(heads: Sequence[np.ndarray], length: int) -> EdgeTable:
    """The table of each head's codes (`link_codes`): `[H, T, C]`, or `[T, C]` for one head."""
    sizes = [np.bincount(codes // length, minlength=length) for codes in heads]     # (H, T)
    keys = np.full((len(heads), length, max(map(max, sizes))), -1, np.int32)        # (H, T, C)
    for head, codes in enumerate(heads):
        i, j = codes // length, codes % length
        keys[head, i, np.arange(len(codes)) - (np.cumsum(sizes[head]) - sizes[head])[i]] = j
    return EdgeTable(keys[0] if len(heads) == 1 else keys)
