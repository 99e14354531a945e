"""Information flow: which distances a stack can bridge, how fast its graph connects, how evenly its offsets lie.

A layer's graph has an edge from query i to key j where any head attends; a learned form counts as it starts (alpha 1,
full span). Distances are `d = i - j` in tokens; T is the length.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import connected_components, shortest_path
from scipy.sparse.linalg import eigsh

from lib.errors import require
from lib.patterns import EdgeTable, Pattern
from lib.patterns.base import expand, offsets_by_head

DENSE_SPECTRUM = 512        # up to this many tokens all eigenvalues are computed, beyond it the largest two


def edges(pattern: Pattern, layer: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys `(i, j)` of a layer, int64 each, by query, then key; a pair of several heads counts once."""
    return expand(pattern.plan(layer, length), length, pattern.heads).any(axis=0).nonzero()


def adjacency(pattern: Pattern, layer: int, length: int) -> scipy.sparse.csr_array:
    """The layer's graph as a sparse `[T, T]` of ones, float32: row i has the keys of query i."""
    i, j = edges(pattern, layer, length)
    return scipy.sparse.csr_array((np.ones(len(i), np.float32), (i, j)), shape=(length, length))


def layer_distances(pattern: Pattern, layer: int, length: int) -> tuple[int, ...]:
    """Distinct distances of one layer, ascending (negative ones are keys in the future)."""
    plan = pattern.plan(layer, length)
    heads = () if isinstance(plan, EdgeTable) else offsets_by_head(plan)
    if heads and not any(offsets.leading for offsets in heads):
        return tuple(sorted({d for offsets in heads for d in offsets.distances if abs(d) < length}))
    return tuple(np.unique(np.subtract(*edges(pattern, layer, length))).tolist())


def stack_distances(pattern: Pattern, length: int) -> tuple[int, ...]:
    """Distinct distances of all layers together: 133 for the paper's 16-layer linear stagger at W = 8, T = 1024."""
    return tuple(sorted({d for layer in range(pattern.layers) for d in layer_distances(pattern, layer, length)}))


def reachable_distances(steps: Sequence[Iterable[int]], limit: int) -> np.ndarray:
    """Which distances `0 <= d < limit` are sums of one distance from each of the first n sets: Boolean, row n for n.

    Exact, on a text without an end; the sets hold distances >= 0 (0 is the query itself).
    """
    rows = [np.arange(limit) == 0]
    for step in steps:
        reached = np.zeros(limit, bool)
        for d in step:
            require(d >= 0, "steps", d, "distances of at least 0 (causal)")
            reached[d:] |= rows[-1][:max(limit - d, 0)]
        rows.append(reached)
    return np.array(rows)


def stack_sums(pattern: Pattern, length: int) -> np.ndarray:
    """`reachable_distances` of a causal pattern's own layers, Boolean `[L + 1, T]`: row n is what n layers bridge."""
    return reachable_distances([layer_distances(pattern, layer, length) for layer in range(pattern.layers)], length)


def reach_by_depth(pattern: Pattern, length: int, depth: int | None = None) -> np.ndarray:
    """Share of (query, token) pairs (j <= i of a causal pattern) that 1, 2, … `depth` layers connect, float64
    `[depth]`; default: all layers. Layers are used in order, then from the first."""
    pairs = length * (length + 1) // 2 if pattern.causal else length ** 2
    reach, shares = np.eye(length, dtype=np.float32), []                     # (T, T): row i is what query i reaches
    for n in range(depth or pattern.layers):
        reach = (adjacency(pattern, n % pattern.layers, length) @ reach > 0).astype(np.float32)
        shares.append(reach.sum(dtype=np.float64) / pairs)
    return np.array(shares)


def diameter(pattern: Pattern, layer: int, length: int) -> int | None:
    """Most hops between any two tokens in a layer's graph, edges taken both ways; None where it is not connected."""
    hops = shortest_path(adjacency(pattern, layer, length), directed=False, unweighted=True).max()
    return int(hops) if np.isfinite(hops) else None


def spectral_gap(pattern: Pattern, layer: int, length: int) -> float:
    """Second smallest eigenvalue of the normalised Laplacian `I - D^-1/2 A D^-1/2` of a layer's mask, of T >= 2 tokens.

    A has weight 1 where either token attends the other, and no self-loops. 0 where the graph is not connected.
    """
    attended = adjacency(pattern, layer, length).astype(np.float64)
    either = attended.maximum(attended.T)
    either.setdiag(0.0)
    if connected_components(either, directed=False)[0] > 1:
        return 0.0
    scale = scipy.sparse.diags_array(1 / np.sqrt(either.sum(axis=1)))
    normal = scale @ either @ scale
    if length <= DENSE_SPECTRUM:
        values = np.linalg.eigvalsh(normal.toarray())
    else:
        start = np.random.default_rng(0).random(length)     # the same on every run, so that the result is
        values = np.sort(eigsh(normal, k=2, which="LA", v0=start, return_eigenvectors=False))
    return float(1 - values[-2])


def prefix_discrepancy(word: Sequence[int], slope: Fraction) -> Fraction:
    """Largest distance of the ones in a prefix from `slope` times its length; below 1 for a Christoffel word."""
    return max(abs(ones - n * slope) for n, ones in enumerate(np.cumsum(word).tolist(), 1))
