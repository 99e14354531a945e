"""A block of 64 queries between its products: from scores to weights and back. No rows here, numbers side by side only.

S holds products with the keys of integer shifts, `[N, 64]`, and behind them those with leading keys; L holds columns,
`[C, 64]`: the first `plain` shifts, rungs, leading keys. The words are those of `lib.attention.cpu.shifts`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lib.attention.cpu.vectors import exponential, prefetch_rows

BLOCK = 64
# Products and sums as one, and no more: of a loop that stores LLVM makes two versions, which must round alike.
FAST = {"contract"}


@njit
def fill_absent(S, shifts, count, leading, causal, i0, T, value):
    """Put `value` where no pair is, and where a shift reaches a leading key that has a column of its own."""
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


@njit
def copied(S, first, last, L, to):
    """Copy columns `first` to `last - 1` of S to L, from column `to` on."""
    for c in range(first, last):
        for r in range(BLOCK):
            L[to + c - first, r] = S[c, r]


@njit
def kept(L, rows, P, i0, T):
    """Copy a block's columns into those of the head, `P [C, Tp]`, 0 behind T; prefetch the next block's places."""
    for c in range(len(L)):
        for r in range(rows):
            P[c, i0 + r] = L[c, r]
        if i0 + rows < T:
            prefetch_rows(P[c, i0 + rows:].ctypes.data, 0, 0, 1, BLOCK * P.itemsize)
        else:
            P[c, T:] = 0


@njit(fastmath=FAST)
def to_logits(S, plain, rungs, fractions, shifts, scale, bias, slope, i0, L, far):
    """Logits of the columns, L, from the products with integer shifts, S; and what alpha's gradient needs, far."""
    N, R = len(shifts), len(rungs)
    for c in range(plain):
        for r in range(BLOCK):
            L[c, r] = S[c, r] * scale + bias[c]
    blend(S, plain, rungs, fractions, shifts, i0, L, far)
    for c in range(plain, plain + R):
        for r in range(BLOCK):
            L[c, r] = L[c, r] * scale + bias[c]
    for j in range(len(S) - N):
        for r in range(BLOCK):
            L[plain + R + j, r] = S[N + j, r] * scale - slope * abs(i0 + r - j)


@njit(fastmath=FAST)
def to_columns(S, plain, rungs, fractions, shifts, i0, L, far):
    """Derivatives of the columns, L, from those of the integer products, S."""
    copied(S, 0, plain, L, 0)
    blend(S, plain, rungs, fractions, shifts, i0, L, far)
    copied(S, len(shifts), len(S), L, plain + len(rungs))


@njit(fastmath=FAST)
def blend(S, plain, rungs, fractions, shifts, i0, L, far):
    """Rungs between two shifts: `near + t (farther - near)`; where the farther key is missing, the near one alone."""
    for m in range(len(rungs)):
        near, beyond = S[rungs[m, 0]], S[rungs[m, 1]]
        t, reach = fractions[m], shifts[rungs[m, 1]] - i0
        for r in range(BLOCK):
            difference = beyond[r] - near[r] if r >= reach else S.dtype.type(0)
            far[m, r] = difference
            L[plain + m, r] = near[r] + t * difference


@njit(fastmath=FAST)
def spread(L, plain, rungs, fractions, shifts, i0, W):
    """The transpose of `blend`: weights of the columns given back to the integer shifts, W; without rungs L itself."""
    if len(rungs) == 0:
        return L
    copied(L, 0, plain, W, 0)
    W[plain:] = 0
    for m in range(len(rungs)):
        near, beyond = W[rungs[m, 0]], W[rungs[m, 1]]
        t, reach = fractions[m], shifts[rungs[m, 1]] - i0
        for r in range(BLOCK):
            part = t * L[plain + m, r] if r >= reach else L.dtype.type(0)
            beyond[r] += part
            near[r] += L[plain + m, r] - part
    return W


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
def fetched(P, i0, rows, L):
    """The transpose of `kept`; 0 in the place of queries that do not exist."""
    for c in range(len(L)):
        for r in range(rows):
            L[c, r] = P[c, i0 + r]
        for r in range(rows, BLOCK):
            L[c, r] = 0


@njit
def by_fraction(dlogits, far, weights, far_values):
    """The derivative by a rung's fraction: it moves the logit by `far` and the value by `far_values`."""
    total = 0.0                                # float64: terms of both signs cancel in these sums
    for r in range(len(far)):
        total += dlogits[r] * far[r] + weights[r] * far_values[r]
    return total
