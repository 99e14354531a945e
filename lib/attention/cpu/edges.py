"""Kernels for edge tables: keys that differ from query to query.

A task is a block of 64 queries (in `pull`, of keys) of one key/value head, for one query head of its group after the
other. A query's row stays in registers while four of its keys at a time meet it. Weights lie query by query in memory,
`[B * H, T, Cp]`. `pull` reads the table's transpose: of each key the queries that attend it, and the place of the key
in their rows, so that no two threads write the same row.

row, pieces, places: `lib.attention.cpu.vectors`. x, y: address of a head's first row, and bytes from row to row. sizes:
B, H, G, T. keys int32 `[H or 1, T, C]`, counts int32 `[H or 1, T]`.
"""

import numpy as np
from numba import njit

from lib.attention.cpu.vectors import BLOCK, dot4, exponential, fma, head_of, load, prefetch_rows, put4, store, zero

SUMS = {"reassoc", "contract", "nsz"}       # in any order; infinities and NaN keep their meaning
SOON = 16           # rows ahead that are prefetched


@njit
def dots(row, pieces, x, y, keys, count, S):
    """`S[0, c] = x . y[keys[c]]` of the query's row at the address x, for c < count; rounded up to fours."""
    for piece in range(pieces):
        at = piece * row.nbytes
        a, y0, last = load(row, x + at), y[0] + at, count - 1
        for c in range(0, count, 4):
            b = (load(row, y0 + keys[c] * y[1]), load(row, y0 + keys[min(c + 1, last)] * y[1]),
                 load(row, y0 + keys[min(c + 2, last)] * y[1]), load(row, y0 + keys[min(c + 3, last)] * y[1]))
            put4(S, 0, c, dot4((a, a, a, a), b), piece > 0)


@njit
def mix(row, pieces, w, y, keys, count, out):
    """`sum over c < count of w[c] y[keys[c]]` to the address out, in two sums: an addition waits for the one before."""
    for piece in range(pieces):
        at = piece * row.nbytes
        even, odd = zero(row), zero(row)
        for c in range(0, count - 1, 2):
            even = fma(even, w[c], load(row, y[0] + at + keys[c] * y[1]))
            odd = fma(odd, w[c + 1], load(row, y[0] + at + keys[c + 1] * y[1]))
        if count % 2:
            even = fma(even, w[count - 1], load(row, y[0] + at + keys[count - 1] * y[1]))
        store(row, out + at, fma(even, w.dtype.type(1), odd))


@njit(fastmath=SUMS)
def softmax(S, scale, slope, i, keys, count, P):
    """Weights of a query's keys, `P [Cp]`, from its products."""
    top = S.dtype.type(-np.inf)
    for c in range(count):
        P[c] = S[0, c] * scale - slope * abs(i - keys[c])
        top = max(top, P[c])
    total = S.dtype.type(0)
    for c in range(count):
        P[c] = exponential(P[c] - top)
        total += P[c]
    for c in range(count):
        P[c] /= total


@njit(fastmath=SUMS)
def to_dproducts(S, P, scale, count, dS):
    """From the derivatives by the weights, S, those by the products."""
    mean = S.dtype.type(0)
    for c in range(count):
        mean += P[c] * S[0, c]
    for c in range(count):
        dS[c] = scale * P[c] * (S[0, c] - mean)


@njit(nogil=True, cache=True)
def forward(row, pieces, places, sizes, keys, counts, scale, slopes, keep, P, begin, end):
    """Tasks `begin` to `end` of `out = softmax(logits) v`; places: q, k, v, out. P `[B * H, T, Cp]`, kept if `keep`."""
    B, H, G, T = sizes
    blocks, nbytes = (T + BLOCK - 1) // BLOCK, pieces * row.nbytes
    S, spare = np.zeros((1, P.shape[2]), P.dtype), np.zeros(P.shape[2], P.dtype)
    for task in range(begin, end):
        b, g, i0 = task // blocks // G, task // blocks % G, task % blocks * BLOCK
        k, v = head_of(places, 1, b, g), head_of(places, 2, b, g)
        for h in range(g * (H // G), (g + 1) * (H // G)):
            rule = h if len(keys) > 1 else 0
            q, out = head_of(places, 0, b, h), head_of(places, 3, b, h)
            for i in range(i0, min(i0 + BLOCK, T)):
                soon = min(i + SOON, T - 1)
                prefetch_rows(q, soon, soon + 1, nbytes)
                prefetch_rows(out, soon, soon + 1, nbytes)
                weights, count = P[b * H + h, i] if keep else spare, counts[rule, i]
                dots(row, pieces, q[0] + i * q[1], k, keys[rule, i], count, S)
                softmax(S, scale, slopes[h], i, keys[rule, i], count, weights)
                mix(row, pieces, weights, v, keys[rule, i], count, out[0] + i * out[1])


@njit(nogil=True, cache=True)
def backward(row, pieces, places, sizes, keys, counts, scale, P, dS, base, begin, end):
    """Tasks `begin` to `end` of the queries' part; places: q, k, v, dout, dq. dS `[heads, T, Cp]`: derivatives by
    the products, of the heads from number `base` on."""
    B, H, G, T = sizes
    blocks, nbytes = (T + BLOCK - 1) // BLOCK, pieces * row.nbytes
    S = np.zeros((1, P.shape[2]), P.dtype)
    for task in range(begin, end):
        b, g, i0 = task // blocks // G, task // blocks % G, task % blocks * BLOCK
        k, v = head_of(places, 1, b, g), head_of(places, 2, b, g)
        for h in range(g * (H // G), (g + 1) * (H // G)):
            rule, at = h if len(keys) > 1 else 0, b * H + h
            dout, dq = head_of(places, 3, b, h), head_of(places, 4, b, h)
            for i in range(i0, min(i0 + BLOCK, T)):
                soon = min(i + SOON, T - 1)
                prefetch_rows(dout, soon, soon + 1, nbytes)
                prefetch_rows(dq, soon, soon + 1, nbytes)
                count = counts[rule, i]
                dots(row, pieces, dout[0] + i * dout[1], v, keys[rule, i], count, S)
                to_dproducts(S, P[at, i], scale, count, dS[at - base, i])
                mix(row, pieces, dS[at - base, i], k, keys[rule, i], count, dq[0] + i * dq[1])


@njit(nogil=True, cache=True)
def pull(row, pieces, places, sizes, starts, queries, slots, P, dS, base, begin, end):
    """Tasks `begin` to `end` of dk and dv; places: q, dout, dk, dv. dS as in `backward`.

    Key j of head h is attended by `queries[e]`, as their key number `slots[e]`, for `starts[n] <= e < starts[n + 1]`:
    n is j, or `h * T + j` where heads have keys of their own.
    """
    B, H, G, T = sizes
    blocks = (T + BLOCK - 1) // BLOCK
    for task in range(begin, end):
        b, g, j0 = task // blocks // G, task // blocks % G, task % blocks * BLOCK
        dk, dv = head_of(places, 2, b, g), head_of(places, 3, b, g)
        for j in range(j0, min(j0 + BLOCK, T)):
            for piece in range(pieces):
                at = piece * row.nbytes
                total_k, total_v = zero(row), zero(row)
                for h in range(g * (H // G), (g + 1) * (H // G)):
                    n, w, dw = h * T + j if len(starts) > T + 1 else j, P[b * H + h], dS[b * H + h - base]
                    q, dout = head_of(places, 0, b, h), head_of(places, 1, b, h)
                    for e in range(starts[n], starts[n + 1]):
                        i, c = queries[e], slots[e]
                        total_k = fma(total_k, dw[i, c], load(row, q[0] + at + i * q[1]))
                        total_v = fma(total_v, w[i, c], load(row, dout[0] + at + i * dout[1]))
                store(row, dk[0] + at + j * dk[1], total_k)
                store(row, dv[0] + at + j * dv[1], total_v)
