"""Kernels for keys at distances: `i - s` for shifts s that all queries of a head share, and leading keys.

A task is a block of 64 queries (in `pull`, of keys) of one key/value head, for one query head of its group after the
other, so that keys and values are still in the cache. Scores are kept shift by shift, 64 queries side by side, and so
are weights in memory, `[B * H, C, Tp]`. Four queries at a time go through all shifts: their rows stay in registers, and
the keys of a shift are four rows in succession. Of a pair that does not exist the logit is -inf and the weight 0.

`pull` is the transpose: key j collects from the queries j + s that read it, so that no two threads write the same row.

row, pieces: how a row lies in memory. x, y, out: address of a head's first row, and bytes from row to row. places:
where the tensors lie (all: `lib.attention.cpu.vectors`). sizes: B, H, G, T. The columns of a head are its shifts, int32
`[H or 1, N]`, ascending, `counts[h]` of them, and behind them `leading[h]` leading keys; `keys` are all three of one
head. With a learned alpha, each of the first `plain` shifts is a column; the other columns are rungs, int32 `[R, 2]`,
each between two shifts, which are named by their places in `shifts`, at the fractions `[R]` of the way.

S holds products with the keys of integer shifts, `[N, 64]`, and behind them those with leading keys; L holds columns,
`[C, 64]`. Without rungs the two are alike, and one array.
"""

import numpy as np
from numba import njit

from lib.attention.cpu.vectors import BLOCK, dot4, exponential, fma, head_of, load, prefetch_rows, put4, store, zero

# Products and sums as one, and no more: of a loop that stores LLVM makes two versions, which must round alike.
FAST = {"contract"}


@njit
def within(i, T):
    return min(max(i, 0), T - 1)


@njit
def four(row, x, step, i, T):
    """Rows i to i + 3, in the place of those that do not exist the nearest."""
    return (load(row, x + within(i, T) * step), load(row, x + within(i + 1, T) * step),
            load(row, x + within(i + 2, T) * step), load(row, x + within(i + 3, T) * step))


@njit
def prefetch_four(row, pieces, x, i, T):
    """Ask for rows that the next block needs, four at a time between the products: so memory and arithmetic overlap."""
    if i + BLOCK + 3 < T:
        prefetch_rows(x, i + BLOCK, i + BLOCK + 4, pieces * row.nbytes)


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
def dots(row, pieces, x, y, keys, i0, T, S):
    """`S[n, r] = x[i0 + r] . y[i0 + r - shifts[n]]`, then `x[i0 + r] . y[n]` of leading keys; any number elsewhere."""
    shifts, count, leading = keys
    for i in range(i0, min(i0 + BLOCK, T), 4):
        r = i - i0
        prefetch_four(row, pieces, x, i, T)
        prefetch_four(row, pieces, y, i, T)
        first, last = range_of(shifts, count, i, T)
        for piece in range(pieces):
            at, more = piece * row.nbytes, piece > 0
            a = four(row, x[0] + at, x[1], i, T)
            for n in range(first, last):
                put4(S, n, r, dot4(a, four(row, y[0] + at, y[1], i - shifts[n], T)), more)
            for j in range(leading):
                b = load(row, y[0] + at + j * y[1])
                put4(S, len(shifts) + j, r, dot4(a, (b, b, b, b)), more)


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
def mix(row, pieces, w, y, keys, i0, T, out):
    """`out[i0 + r] = sum over n of w[n, r] y[i0 + r - shifts[n]]`, plus `w[N + j, r] y[j]` for leading keys."""
    shifts, count, leading = keys
    for i in range(i0, min(i0 + BLOCK, T), 4):
        r = i - i0
        prefetch_four(row, pieces, y, i, T)
        prefetch_four(row, pieces, out, i, T)
        first, last = range_of(shifts, count, i, T)
        for piece in range(pieces):
            at = piece * row.nbytes
            total = (zero(row), zero(row), zero(row), zero(row))
            for n in range(first, last):
                total = plus4(total, w, n, r, four(row, y[0] + at, y[1], i - shifts[n], T))
            for j in range(leading):
                b = load(row, y[0] + at + j * y[1])
                total = plus4(total, w, len(shifts) + j, r, (b, b, b, b))
            store_within(row, out[0] + at, out[1], i, T, total)


@njit
def fill_absent(S, keys, causal, i0, T, value):
    """Put `value` where no pair is, and where a shift reaches a leading key that has a column of its own."""
    shifts, count, leading = keys
    N = len(shifts)
    for n in range(N):
        first = BLOCK if n >= count else min(max(shifts[n] - i0, 0), BLOCK)
        last = min(max(T + shifts[n] - i0, first), BLOCK)
        S[n, :first] = value
        S[n, last:] = value
    for j in range(len(S) - N):
        if j >= leading:
            S[N + j] = value
            continue
        if causal and j > i0:
            S[N + j, :min(j - i0, BLOCK)] = value
        for n in range(count):
            r = j + shifts[n] - i0
            if 0 <= r < BLOCK:
                S[N + j, r] = value


@njit(fastmath=FAST)
def blend(S, plain, rungs, fractions, shifts, i0, L, far):
    """The columns of integer products: without rungs S itself, else the first `plain` of them and the rungs, in L.

    A rung is `near + t (farther - near)`; where the farther key is missing, the near one alone. far: the differences.
    """
    if len(rungs) == 0:
        return S
    L[:plain] = S[:plain]
    for m in range(len(rungs)):
        near, beyond = S[rungs[m, 0]], S[rungs[m, 1]]
        t, reach = fractions[m], shifts[rungs[m, 1]] - i0
        for r in range(BLOCK):
            difference = beyond[r] - near[r] if r >= reach else S.dtype.type(0)
            far[m, r] = difference
            L[plain + m, r] = near[r] + t * difference
    return L


@njit(fastmath=FAST)
def spread(L, plain, rungs, fractions, shifts, i0, S):
    """The transpose of `blend`: weights of the columns given back to the integer shifts; without rungs S is L."""
    if len(rungs) == 0:
        return
    S[:plain] = L[:plain]
    S[plain:] = 0
    for m in range(len(rungs)):
        near, beyond = S[rungs[m, 0]], S[rungs[m, 1]]
        t, reach = fractions[m], shifts[rungs[m, 1]] - i0
        for r in range(BLOCK):
            part = t * L[plain + m, r] if r >= reach else L.dtype.type(0)
            beyond[r] += part
            near[r] += L[plain + m, r] - part


@njit(fastmath=FAST)
def to_logits(L, scale, bias, slope, i0):
    """Logits of the columns from their products, in place; bias: of all but the leading keys."""
    for c in range(len(bias)):
        for r in range(BLOCK):
            L[c, r] = L[c, r] * scale + bias[c]
    for j in range(len(L) - len(bias)):
        for r in range(BLOCK):
            L[len(bias) + j, r] = L[len(bias) + j, r] * scale - slope * abs(i0 + r - j)


@njit(fastmath=FAST)
def softmax(L):
    """Every query's softmax over the columns, in place."""
    top, total = L[0].copy(), np.zeros_like(L[0])
    for c in range(1, len(L)):
        for r in range(BLOCK):
            top[r] = max(top[r], L[c, r])
    for c in range(len(L)):
        for r in range(BLOCK):
            L[c, r] = exponential(L[c, r] - top[r])
            total[r] += L[c, r]
    for r in range(BLOCK):
        total[r] = 1 / total[r]
    for c in range(len(L)):
        for r in range(BLOCK):
            L[c, r] *= total[r]


@njit(fastmath=FAST)
def to_dlogits(P, L):
    """From the derivatives by the weights P, in L, those by the logits, in place."""
    mean = np.zeros_like(L[0])
    for c in range(len(L)):
        for r in range(BLOCK):
            mean[r] += P[c, r] * L[c, r]
    for c in range(len(L)):
        for r in range(BLOCK):
            L[c, r] = P[c, r] * (L[c, r] - mean[r])


@njit
def by_fraction(dlogits, far, weights, far_values):
    """The derivative by a rung's fraction: it moves the logit by `far` and the value by `far_values`."""
    total = 0.0                                # float64: terms of both signs cancel in these sums
    for r in range(len(far)):
        total += dlogits[r] * far[r] + weights[r] * far_values[r]
    return total


@njit
def kept(L, i0, P, T):
    """Copy a block's columns into those of the head, `P [C, Tp]`; prefetch the next block's places."""
    rows = min(BLOCK, T - i0)
    for c in range(len(L)):
        for r in range(rows):
            P[c, i0 + r] = L[c, r]
        if i0 + rows < T:
            prefetch_rows((P[c, i0 + rows:].ctypes.data, 0), 0, 1, BLOCK * P.itemsize)


@njit
def fetched(P, i0, L, T):
    """The transpose of `kept`; 0 in the place of queries that do not exist."""
    rows = min(BLOCK, T - i0)
    for c in range(len(L)):
        for r in range(rows):
            L[c, r] = P[c, i0 + r]
        for r in range(rows, BLOCK):
            L[c, r] = 0


@njit(nogil=True, cache=True)
def forward(row, pieces, places, sizes, shifts, counts, leading, causal, plain, rungs, fractions, bias, scale, slopes,
            keep, P, far, begin, end):
    """Tasks `begin` to `end` of `out = softmax(logits) v`; places: q, k, v, out. P and far are kept where `keep`.

    bias `[H, plain + R]`, slopes `[H]` (of leading keys). P `[B * H, C, Tp]`, far `[B * H, R, Tp]`.
    """
    B, H, G, T = sizes
    C, R, blocks = P.shape[1], len(rungs), (T + BLOCK - 1) // BLOCK
    S = np.zeros((shifts.shape[1] + C - plain - R, BLOCK), P.dtype)
    columns, gap = np.zeros((C, BLOCK), P.dtype), np.zeros((R, BLOCK), P.dtype)
    for task in range(begin, end):
        b, g, i0 = task // blocks // G, task // blocks % G, task % blocks * BLOCK
        k, v = head_of(places, 1, b, g), head_of(places, 2, b, g)
        for h in range(g * (H // G), (g + 1) * (H // G)):
            rule = h if len(shifts) > 1 else 0
            keys = shifts[rule], counts[rule], leading[rule]
            dots(row, pieces, head_of(places, 0, b, h), k, keys, i0, T, S)
            fill_absent(S, keys, causal, i0, T, -np.inf)
            L = blend(S, plain, rungs, fractions, shifts[rule], i0, columns, gap)
            to_logits(L, scale, bias[h], slopes[h], i0)
            softmax(L)
            if keep:
                kept(L, i0, P[b * H + h], T)
                kept(gap, i0, far[b * H + h], T)
            spread(L, plain, rungs, fractions, shifts[rule], i0, S)
            mix(row, pieces, S, v, keys, i0, T, head_of(places, 3, b, h))


@njit(nogil=True, cache=True)
def backward(row, pieces, places, sizes, shifts, counts, leading, causal, plain, rungs, fractions, scale, P, far,
             dS, W, dbias, dt, base, begin, end):
    """Tasks `begin` to `end` of the queries' part; places: q, k, v, dout, dq.

    What `pull` needs, of the heads from number `base` on: dS `[heads, N + leading, Tp]`, derivatives by the integer
    products, and W, alike, the weights spread to integer shifts (not written without rungs: these are P). Sums over a
    block's queries: dbias `[B * H, blocks, C]` by the logits, where it is not empty, and dt `[B * H, blocks, R]` by the
    fractions. P and far as `forward` left them.
    """
    B, H, G, T = sizes
    R, blocks = len(rungs), (T + BLOCK - 1) // BLOCK
    S, columns = np.zeros((dS.shape[1], BLOCK), P.dtype), np.zeros((P.shape[1], BLOCK), P.dtype)
    weights, gap = np.zeros_like(columns), np.zeros((R, BLOCK), P.dtype)
    for task in range(begin, end):
        b, g, block = task // blocks // G, task // blocks % G, task % blocks
        i0, last = block * BLOCK, min(block * BLOCK + BLOCK, T)
        k, v = head_of(places, 1, b, g), head_of(places, 2, b, g)
        for h in range(g * (H // G), (g + 1) * (H // G)):
            rule, at = h if len(shifts) > 1 else 0, b * H + h
            keys = shifts[rule], counts[rule], leading[rule]
            dots(row, pieces, head_of(places, 3, b, h), v, keys, i0, T, S)
            fill_absent(S, keys, causal, i0, T, 0)
            L = blend(S, plain, rungs, fractions, shifts[rule], i0, columns, gap)
            fetched(P[at], i0, weights, T)
            to_dlogits(weights, L)
            for c in range(dbias.shape[2]):
                dbias[at, block, c] = L[c].sum()
            L *= scale
            for m in range(R):
                dt[at, block, m] = by_fraction(L[plain + m], far[at, m, i0:last], weights[plain + m], gap[m])
            if R > 0:
                spread(weights, plain, rungs, fractions, shifts[rule], i0, S)
                kept(S, i0, W[at - base], T)
            spread(L, plain, rungs, fractions, shifts[rule], i0, S)
            kept(S, i0, dS[at - base], T)
            mix(row, pieces, S, k, keys, i0, T, head_of(places, 4, b, h))


@njit
def weight(w, n, i, T):
    return w[n, i] if 0 <= i < T else w.dtype.type(0)


@njit
def plus4_within(total, w, n, i, T, b):
    """`plus4` of weights that are 0 where the query does not exist."""
    return (fma(total[0], weight(w, n, i, T), b[0]), fma(total[1], weight(w, n, i + 1, T), b[1]),
            fma(total[2], weight(w, n, i + 2, T), b[2]), fma(total[3], weight(w, n, i + 3, T), b[3]))


@njit
def from_all(row, total, w, n, x, step, T):
    """`total + sum over i < T of w[n, i] x[i]`."""
    for i in range(T):
        total = fma(total, w[n, i], load(row, x + i * step))
    return total


@njit(nogil=True, cache=True)
def pull(row, pieces, places, sizes, shifts, counts, leading, weights, base, begin, end):
    """Tasks `begin` to `end` of `out[j] = sum over heads and n of weights[n, j + shifts[n]] x[j + shifts[n]]`.

    places: x `[B, H, T, D]`, out `[B, G, T, D]`. weights `[heads, N + leading, Tp]`, of the heads from number `base`
    on; those of leading keys follow the shifts'.
    """
    B, H, G, T = sizes
    N, blocks = shifts.shape[1], (T + BLOCK - 1) // BLOCK
    for task in range(begin, end):
        b, g, j0 = task // blocks // G, task // blocks % G, task % blocks * BLOCK
        out = head_of(places, 1, b, g)
        for j in range(j0, min(j0 + BLOCK, T), 4):
            prefetch_four(row, pieces, out, j, T)
            for piece in range(pieces):
                at = piece * row.nbytes
                total = (zero(row), zero(row), zero(row), zero(row))
                for h in range(g * (H // G), (g + 1) * (H // G)):
                    rule, w, x = h if len(shifts) > 1 else 0, weights[b * H + h - base], head_of(places, 0, b, h)
                    if counts[rule] > 0:                             # the farthest query is the first to be read
                        prefetch_four(row, pieces, x, j + shifts[rule, counts[rule] - 1], T)
                    for n in range(counts[rule]):
                        i = j + shifts[rule, n]
                        if i >= 0 and i + 3 < T:
                            total = plus4(total, w, n, i, four(row, x[0] + at, x[1], i, T))
                        elif -4 < i < T:
                            total = plus4_within(total, w, n, i, T, four(row, x[0] + at, x[1], i, T))
                    if j < leading[rule]:                            # all queries give to leading keys
                        left, y, step = leading[rule] - j, x[0] + at, x[1]
                        total = (from_all(row, total[0], w, N + j, y, step, T),
                                 from_all(row, total[1], w, N + j + 1, y, step, T if left > 1 else 0),
                                 from_all(row, total[2], w, N + j + 2, y, step, T if left > 2 else 0),
                                 from_all(row, total[3], w, N + j + 3, y, step, T if left > 3 else 0))
                store_within(row, out[0] + at, out[1], j, T, total)
