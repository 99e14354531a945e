"""Information flow: which distances a stack can bridge, how fast its graph connects, how evenly its offsets lie.

A layer's graph has an edge from query i to key j where any head attends; a learned form counts as it starts (alpha 1,
full span).
Distances are `d = i - j` in tokens; T is the length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh

from lib.errors import require
from lib.patterns import EdgeTable, Pattern
from lib.patterns.base import offsets_of

DENSE_SPECTRUM = 512        # up to this many tokens all eigenvalues are computed, beyond it the largest two
ROWS = 256                  # queries whose keys' reach is combined at once (bounds memory)


def edges(pattern: Pattern, layer: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys `(i, j)` of a layer, int64 each, by query, then key; a pair that several heads have counts once."""
    plan = pattern.plan(layer, length)
    if isinstance(plan, EdgeTable):
        i = np.broadcast_to(np.arange(length)[:, None], plan.keys.shape)
        codes = (i * length + plan.keys)[plan.keys >= 0]
    else:
        codes = np.concatenate([_offset_codes(plan, head, length) for head in range(pattern.heads)])
    codes = np.unique(codes)
    return codes // length, codes % length


def _offset_codes(plan, head: int, length: int) -> np.ndarray:
    offsets, i = offsets_of(plan, head), np.arange(length)[:, None]
    leading = np.broadcast_to(np.arange(offsets.leading), (length, offsets.leading))
    j = np.concatenate([i - np.array(offsets.distances), leading], axis=1)                 # (T, C)
    there = (j >= 0) & (j < length) & ((j <= i) | (not offsets.causal))
    return (i * length + j)[there]


def layer_distances(pattern: Pattern, layer: int, length: int) -> tuple[int, ...]:
    """Distinct distances of one layer, ascending (negative ones are keys in the future)."""
    plan = pattern.plan(layer, length)
    heads = [] if isinstance(plan, EdgeTable) else [offsets_of(plan, head) for head in range(pattern.heads)]
    if heads and not any(offsets.leading for offsets in heads):
        return tuple(sorted({d for offsets in heads for d in offsets.distances if abs(d) < length}))
    i, j = edges(pattern, layer, length)
    return tuple(np.unique(i - j).tolist())


def stack_distances(pattern: Pattern, length: int) -> tuple[int, ...]:
    """Distinct distances of all layers together: 133 for the paper's 16-layer linear stagger at W = 8, T = 1024."""
    return tuple(sorted({d for layer in range(pattern.layers) for d in layer_distances(pattern, layer, length)}))


def offset_histogram(pattern: Pattern, length: int) -> np.ndarray:
    """Attended pairs at each distance |d|, int64 `[T]`, summed over layers (heads together)."""
    counts = np.zeros(length, np.int64)
    for layer in range(pattern.layers):
        i, j = edges(pattern, layer, length)
        counts += np.bincount(abs(i - j), minlength=length)
    return counts


def reachable_distances(steps: Sequence[Iterable[int]], limit: int) -> np.ndarray:
    """Which distances `0 <= d < limit` are sums of one distance from each of the first n sets: Boolean, a row for each n.

    Row 0 is distance 0 alone. Exact, on a text without an end; the sets hold distances >= 0 (0 is the query itself).
    """
    require(limit >= 1, "limit", limit, "an integer of at least 1")
    reached, rows = 1, [1]                                  # bit d of an integer: distance d is reached
    for step in steps:
        further = 0
        for d in step:
            require(d >= 0, "steps", d, "distances of at least 0 (causal)")
            further |= reached << d if d < limit else 0
        reached = further & ((1 << limit) - 1)
        rows.append(reached)
    return np.array([np.frombuffer(np.binary_repr(bits, limit).encode(), np.uint8)[::-1] == ord("1") for bits in rows])


def stack_sums(pattern: Pattern, length: int) -> np.ndarray:
    """`reachable_distances` of a causal pattern's own layers, Boolean `[L + 1, T]`: row n is what n layers bridge."""
    return reachable_distances([layer_distances(pattern, layer, length) for layer in range(pattern.layers)], length)


def separate_classes(distances: Iterable[int]) -> int:
    """How many residue classes never exchange anything, however deep the stack: the common divisor of the distances."""
    return math.gcd(*distances)


def residues(distances: Iterable[int], modulus: int) -> np.ndarray:
    """How many distances are 0, 1, … modulo `modulus`, int64 `[modulus]`."""
    require(modulus >= 1, "modulus", modulus, "an integer of at least 1")
    return np.bincount(np.array(list(distances), np.int64) % modulus, minlength=modulus)


def reach_by_depth(pattern: Pattern, length: int, depth: int | None = None) -> np.ndarray:
    """Share of (query, token) pairs that 1, 2, … `depth` layers connect, float64 `[depth]` (default: the pattern's layers).

    Counts pairs j <= i of a causal pattern, all pairs of a bidirectional one. Layers are used in order, then from the first.
    """
    depth = pattern.layers if depth is None else depth
    require(depth >= 1, "depth", depth, "an integer of at least 1")
    reach, shares = np.packbits(np.eye(length, dtype=bool), axis=1), []
    for n in range(depth):
        reach = _hop(reach, *edges(pattern, n % pattern.layers, length))
        shares.append(_pairs(reach) / _all_pairs(pattern, length))
    return np.array(shares)


def layers_to_connect(pattern: Pattern, length: int) -> int | None:
    """Fewest layers, in order and then from the first again, that connect all pairs of `reach_by_depth`; None if none do."""
    reach, before, n = np.packbits(np.eye(length, dtype=bool), axis=1), 0, 0
    while _pairs(reach) < _all_pairs(pattern, length):
        if n % pattern.layers == 0:                         # a whole round that adds nothing will never add more
            if _pairs(reach) == before:
                return None
            before = _pairs(reach)
        reach, n = _hop(reach, *edges(pattern, n % pattern.layers, length)), n + 1
    return n


def diameter(pattern: Pattern, layer: int, length: int) -> int | None:
    """Most hops between any two tokens in a layer's graph, edges taken both ways; None where it is not connected."""
    i, j = _undirected(pattern, layer, length).nonzero()
    i, j = np.concatenate([i, np.arange(length)]), np.concatenate([j, np.arange(length)])
    order = np.lexsort((j, i))
    reach, hops, before = np.packbits(np.eye(length, dtype=bool), axis=1), 0, 0
    while before < _pairs(reach) < length ** 2:
        before = _pairs(reach)
        reach, hops = _hop(reach, i[order], j[order]), hops + 1
    return hops if _pairs(reach) == length ** 2 else None


def spectral_gap(pattern: Pattern, layer: int, length: int) -> float:
    """Second smallest eigenvalue of the normalised Laplacian `I - D^-1/2 A D^-1/2` of a layer's mask.

    A has weight 1 where either token attends the other, and no self-loops. 0 where the graph is not connected; needs T >= 2.
    """
    require(length >= 2, "length", length, "an integer of at least 2 (a gap needs two tokens)")
    adjacency = _undirected(pattern, layer, length)
    if connected_components(adjacency, directed=False)[0] > 1:
        return 0.0
    scale = scipy.sparse.diags_array(1 / np.sqrt(adjacency.sum(axis=1)))
    normal = scale @ adjacency @ scale
    if length <= DENSE_SPECTRUM:
        values = np.linalg.eigvalsh(normal.toarray())
    else:
        start = np.random.default_rng(0).random(length)     # the same on every run, so that the result is
        values = np.sort(eigsh(normal, k=2, which="LA", v0=start, return_eigenvectors=False))
    return float(1 - values[-2])


def prefix_discrepancy(word: Sequence[int], slope: Fraction) -> Fraction:
    """Largest distance of the ones in a prefix from `slope` times its length, exactly; below 1 for a Christoffel word."""
    ones, worst = 0, Fraction(0)
    for n, letter in enumerate(word, 1):
        ones += letter
        worst = max(worst, abs(ones - n * slope))
    return worst


def imbalance(word: Sequence[int]) -> int:
    """Largest difference in ones between two equally long stretches of the word repeated for ever; 0 or 1: balanced."""
    k, below = len(word), np.concatenate([[0], np.cumsum(np.tile(word, 2))])
    return max((int(np.ptp(below[n:n + k] - below[:k])) for n in range(1, k + 1)), default=0)


def _hop(reach: np.ndarray, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    """What each query reaches through its keys: the union of their reach, packed bits `[T, T/8]`; every query has a key."""
    length, out = len(reach), np.empty_like(reach)
    starts = np.searchsorted(i, np.arange(length + 1))
    for first in range(0, length, ROWS):
        last = min(first + ROWS, length)
        rows = reach[j[starts[first]:starts[last]]]
        out[first:last] = np.bitwise_or.reduceat(rows, starts[first:last] - starts[first], axis=0)
    return out


def _pairs(reach: np.ndarray) -> int:
    return int(np.bitwise_count(reach).sum())


def _all_pairs(pattern: Pattern, length: int) -> int:
    return length * (length + 1) // 2 if pattern.causal else length ** 2


def _undirected(pattern: Pattern, layer: int, length: int) -> scipy.sparse.csr_array:
    """Adjacency with an edge where either token attends the other, without self-loops, float64 `[T, T]`."""
    i, j = edges(pattern, layer, length)
    i, j = i[i != j], j[i != j]
    both = np.concatenate([i, j]), np.concatenate([j, i])
    adjacency = scipy.sparse.csr_array((np.ones(2 * len(i)), both), shape=(length, length))
    adjacency.data[:] = 1.0                                 # a pair that attends both ways was added up
    return adjacency
