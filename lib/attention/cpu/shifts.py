"""Kernels for keys at distances: `i - s` for shifts s that all queries of a head share, and leading keys.

A task is a block of 64 queries (in `pull`, of keys) of one key/value head, for one query head of its group after the
other, so that keys and values are still in the cache. Scores are kept shift by shift, 64 queries side by side, and so
are weights in memory, `[B * H, C, Tp]`. Four queries at a time go through all shifts: their rows stay in registers, and
the keys of a shift are four rows in succession. Of a pair that does not exist the logit is -inf and the weight 0.

`pull` is the transpose: key j collects from the queries j + s that read it, so that no two threads write the same row.

row, pieces: how a row lies in memory. places: where the tensors lie (both: `lib.attention.cpu.vectors`). sizes: B, H,
G, T. The columns of a head are its shifts, int32 `[H or 1, N]`, ascending, `counts[h]` of them, and behind them
`leading[h]` leading keys. With a learned alpha, each of the first `plain` shifts is a column; the other columns are
rungs, int32 `[R, 2]`, each between two shifts, which are named by their places in `shifts`, at the fractions `[R]` of
the way.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lib.attention.cpu.blocks import (BLOCK, by_fraction, fetched, fill_absent,
                                      kept, softmax, spread, to_columns,
                                      to_dlogits, to_logits)
from lib.attention.cpu.vectors import dot4, fma, head_of, load, prefetch_rows, put4, store, zero


@njit
def within(i, T):
    return min(max(i, 0), T - 1)


@njit
def four(row, x, step, i):
    """Rows i to i + 3."""
    x += i * step
    return load(row, x), load(row, x + step), load(row, x + 2 * step), load(row, x + 3 * step)


@njit
def four_within(row, x, step, i, T):
    """Rows i to i + 3, in the place of those that do not exist the nearest."""
    return (load(row, x + within(i, T) * step), load(row, x + within(i + 1, T) * step),
            load(row, x + within(i + 2, T) * step), load(row, x + within(i + 3, T) * step))


@njit
def prefetch_four(row, pieces, x, step, i, T):
    """Ask for rows that the next block needs, four at a time between the products: so memory and arithmetic overlap."""
    if i + BLOCK + 3 < T:
        prefetch_rows(x, step, i + BLOCK, i + BLOCK + 4, pieces * row.nbytes)


@njit
def range_of(shifts, count, i, T):
    """The range of ascending shifts whose row `i - s` exists for at least one of rows i to i + 3."""
    first, last = 0, count
    while first < last and i - shifts[first] >= T:
        first += 1
    while first < last and i + 3 - shifts[last - 1] < 0:
        last -= 1
    return first, last


@njit
def dots(row, pieces, x, x_step, y, y_step, shifts, count, leading, i0, rows, T, S):
    """`S[n, r] = x[i0 + r] . y[i0 + r - shifts[n]]`, then `x[i0 + r] . y[n]` of leading keys; any number elsewhere."""
    N = len(shifts)
    for r in range(0, rows, 4):
        i = i0 + r
        prefetch_four(row, pieces, x, x_step, i, T)
        prefetch_four(row, pieces, y, y_step, i, T)
        first, last = range_of(shifts, count, i, T)
        for piece in range(pieces):
            at, more = piece * row.nbytes, piece > 0
            a = four_within(row, x + at, x_step, i, T)
            for n in range(first, last):
                j = i - shifts[n]
                if j >= 0 and j + 3 < T:
                    put4(S, n, r, dot4(a, four(row, y + at, y_step, j)), more)
                else:
                    put4(S, n, r, dot4(a, four_within(row, y + at, y_step, j, T)), more)
            for j in range(leading):
                b = load(row, y + at + j * y_step)
                put4(S, N + j, r, dot4(a, (b, b, b, b)), more)


@njit
def plus4(total, w, n, r, b):
    """`total[m] + w[n, r + m] * b[m]` for m = 0 to 3."""
    return (fma(total[0], w[n, r], b[0]), fma(total[1], w[n, r + 1], b[1]),
            fma(total[2], w[n, r + 2], b[2]), fma(total[3], w[n, r + 3], b[3]))


@njit
def store_within(row, out, step, i, T, total):
    """Four rows to places i to i + 3, as far as these exist."""
    out += i * step
    store(row, out, total[0])
    if i + 1 < T:
        store(row, out + step, total[1])
    if i + 2 < T:
        store(row, out + 2 * step, total[2])
    if i + 3 < T:
        store(row, out + 3 * step, total[3])


@njit
def mix(row, pieces, w, y, y_step, shifts, count, leading, i0, rows, T, out, out_step):
    """`out[i0 + r] = sum over n of w[n, r] y[i0 + r - shifts[n]]`, plus `w[N + j, r] y[j]` for leading keys."""
    N = len(shifts)
    for r in range(0, rows, 4):
        i = i0 + r
        prefetch_four(row, pieces, y, y_step, i, T)
        prefetch_four(row, pieces, out, out_step, i, T)
        first, last = range_of(shifts, count, i, T)
        for piece in range(pieces):
            at = piece * row.nbytes
            total = (zero(row), zero(row), zero(row), zero(row))
            for n in range(first, last):
                j = i - shifts[n]
                if j >= 0 and j + 3 < T:
                    total = plus4(total, w, n, r, four(row, y + at, y_step, j))
                else:
                    total = plus4(total, w, n, r, four_within(row, y + at, y_step, j, T))
            for j in range(leading):
                b = load(row, y + at + j * y_step)
                total = plus4(total, w, N + j, r, (b, b, b, b))
            store_within(row, out + at, out_step, i, T, total)


@njit(nogil=True, cache=True)
def forward(row, pieces, places, sizes, shifts, counts, leading, causal, plain, rungs, fractions, scale, bias, slopes,
            keep, P, far, begin, end):
    """Tasks `begin` to `end` of `out = softmax(logits) v`; places: q, k, v, out. P and far are kept where `keep`.

    bias `[H, plain + R]`, slopes `[H]` (of leading keys). P `[B * H, C, Tp]`, far `[B * H, R, Tp]`.
    """
    B, H, G, T = sizes
    C, R, blocks = P.shape[1], len(rungs), (T + BLOCK - 1) // BLOCK
    S = np.zeros((shifts.shape[1] + C - plain - R, BLOCK), P.dtype)
    L, W, gap = np.zeros((C, BLOCK), P.dtype), np.zeros_like(S), np.zeros((R, BLOCK), P.dtype)
    for task in range(begin, end):
        b, g, i0 = task // blocks // G, task // blocks % G, task % blocks * BLOCK
        rows = min(BLOCK, T - i0)
        k, k_step = head_of(places, 1, b, g)
        v, v_step = head_of(places, 2, b, g)
        for h in range(g * (H // G), (g + 1) * (H // G)):
            rule = h if len(shifts) > 1 else 0
            q, q_step = head_of(places, 0, b, h)
            out, out_step = head_of(places, 3, b, h)
            dots(row, pieces, q, q_step, k, k_step, shifts[rule], counts[rule], leading[rule], i0, rows, T, S)
            fill_absent(S, shifts[rule], counts[rule], leading[rule], causal, i0, T, -np.inf)
            to_logits(S, plain, rungs, fractions, shifts[rule], scale, bias[h], slopes[h], i0, L, gap)
            softmax(L)
            if keep:
                kept(L, rows, P[b * H + h], i0, T)
                kept(gap, rows, far[b * H + h], i0, T)
            weights = spread(L, plain, rungs, fractions, shifts[rule], i0, W)
            mix(row, pieces, weights, v, v_step, shifts[rule], counts[rule], leading[rule], i0, rows, T, out, out_step)


@njit(nogil=True, cache=True)
def backward(row, pieces, places, sizes, shifts, counts, leading, causal, plain, rungs, fractions, scale, P, far,
             dS, W, dbias, dt, base, begin, end):
    """Tasks `begin` to `end` of the queries' part; places: q, k, v, dout, dq.

    What `pull` needs, of the heads from number `base` on: dS `[heads, N + leading, Tp]`, derivatives by the integer
    products, and W, alike, the weights spread to integer shifts (not written without rungs: these are P). Sums over a
    block's queries: dbias `[B * H, blocks, C]` by the logits, where it is not empty, and dt `[B * H, blocks, R]` by the
    fractions.
    """
    B, H, G, T = sizes
    R, blocks = len(rungs), (T + BLOCK - 1) // BLOCK
    S, L = np.zeros((dS.shape[1], BLOCK), P.dtype), np.zeros((P.shape[1], BLOCK), P.dtype)
    gap = np.zeros((R, BLOCK), P.dtype)
    block_dS, block_W, block_P = np.zeros_like(S), np.zeros_like(S), np.zeros_like(L)
    for task in range(begin, end):
        b, g, block = task // blocks // G, task // blocks % G, task % blocks
        i0 = block * BLOCK
        rows = min(BLOCK, T - i0)
        k, k_step = head_of(places, 1, b, g)
        v, v_step = head_of(places, 2, b, g)
        for h in range(g * (H // G), (g + 1) * (H // G)):
            rule, at = h if len(shifts) > 1 else 0, b * H + h
            dout, dout_step = head_of(places, 3, b, h)
            dq, dq_step = head_of(places, 4, b, h)
            dots(row, pieces, dout, dout_step, v, v_step, shifts[rule], counts[rule], leading[rule], i0, rows, T, S)
            fill_absent(S, shifts[rule], counts[rule], leading[rule], causal, i0, T, 0)
            to_columns(S, plain, rungs, fractions, shifts[rule], i0, L, gap)
            fetched(P[at], i0, rows, block_P)
            to_dlogits(block_P, L)
            for c in range(dbias.shape[2]):
                dbias[at, block, c] = L[c].sum()
            for c in range(len(L)):
                for r in range(BLOCK):
                    L[c, r] *= scale
            for m in range(R):
                dt[at, block, m] = by_fraction(L[plain + m], far[at, m, i0:i0 + rows], block_P[plain + m], gap[m])
            products = spread(L, plain, rungs, fractions, shifts[rule], i0, block_dS)
            kept(products, rows, dS[at - base], i0, T)
            if R > 0:
                kept(spread(block_P, plain, rungs, fractions, shifts[rule], i0, block_W), rows, W[at - base], i0, T)
            mix(row, pieces, products, k, k_step, shifts[rule], counts[rule], leading[rule], i0, rows, T, dq, dq_step)


@njit
def plus4_within(total, w, n, i, T, b):
    """`plus4` of weights that are 0 where the query does not exist."""
    return (fma(total[0], weight(w, n, i, T), b[0]), fma(total[1], weight(w, n, i + 1, T), b[1]),
            fma(total[2], weight(w, n, i + 2, T), b[2]), fma(total[3], weight(w, n, i + 3, T), b[3]))


@njit
def weight(w, n, i, T):
    return w[n, i] if 0 <= i < T else w.dtype.type(0)


@njit
def from_all(row, total, w, n, x, x_step, T):
    """`total + sum over i of w[n, i] x[i]`."""
    for i in range(T):
        total = fma(total, w[n, i], load(row, x + i * x_step))
    return total


@njit
def plus_leading(row, total, w, n, leading, x, x_step, T):
    """What all queries give to up to four leading keys, whose weights are rows n, n + 1, ... of w."""
    a, b, c, d = total
    a = from_all(row, a, w, n, x, x_step, T)
    if leading > 1:
        b = from_all(row, b, w, n + 1, x, x_step, T)
    if leading > 2:
        c = from_all(row, c, w, n + 2, x, x_step, T)
    if leading > 3:
        d = from_all(row, d, w, n + 3, x, x_step, T)
    return a, b, c, d


@njit(nogil=True, cache=True)
def pull(row, pieces, places, sizes, shifts, counts, leading, causal, weights, base, begin, end):
    """Tasks `begin` to `end` of `out[j] = sum over heads and n of weights[n, j + shifts[n]] x[j + shifts[n]]`.

    places: x `[B, H, T, D]`, out `[B, G, T, D]`. weights `[heads, N + leading, Tp]`, of the heads from number `base`
    on; those of leading keys follow the shifts'.
    """
    B, H, G, T = sizes
    N, blocks = shifts.shape[1], (T + BLOCK - 1) // BLOCK
    for task in range(begin, end):
        b, g, j0 = task // blocks // G, task // blocks % G, task % blocks * BLOCK
        out, out_step = head_of(places, 1, b, g)
        for j in range(j0, min(j0 + BLOCK, T), 4):
            prefetch_four(row, pieces, out, out_step, j, T)
            for piece in range(pieces):
                at = piece * row.nbytes
                total = (zero(row), zero(row), zero(row), zero(row))
                for h in range(g * (H // G), (g + 1) * (H // G)):
                    rule, w = h if len(shifts) > 1 else 0, weights[b * H + h - base]
                    x, x_step = head_of(places, 0, b, h)
                    if counts[rule] > 0:                             # the farthest query is the first to be read
                        prefetch_four(row, pieces, x, x_step, j + shifts[rule, counts[rule] - 1], T)
                    for n in range(counts[rule]):
                        i = j + shifts[rule, n]
                        if i >= 0 and i + 3 < T:
                            total = plus4(total, w, n, i, four(row, x + at, x_step, i))
                        elif -4 < i < T:
                            total = plus4_within(total, w, n, i, T, four_within(row, x + at, x_step, i, T))
                    if j < leading[rule]:
                        total = plus_leading(row, total, w, N + j, leading[rule] - j, x + at, x_step, T)
                store_within(row, out + at, out_step, j, T, total)
