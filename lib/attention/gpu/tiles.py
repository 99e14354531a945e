"""What the kernels share: where a program's rows lie, which keys they list, and products in the right precision.

A tile has BM rows. A row is a query (or key) and a head of its unit, `row = i * RP + r`: the R heads that share keys
and values lie side by side, so that one line of K or V, once read, serves them all. RP is R rounded up to a power of
two, DP the head size. Logits are in base 2: the weight is `exp2(s)` with `s = q.k * scale * LOG2E`.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
NOTHING, OFFSETS, TABLE, RUNGS = (tl.constexpr(n) for n in range(4))      # what the list of keys holds beside bands


@triton.jit
def program(blocks, units):
    """Block of rows, unit and batch element of this program; blocks of a unit run side by side and share the cache."""
    n = tl.program_id(0)
    return n % blocks, (n // blocks) % units, (n // blocks // units).to(tl.int64)


@triton.jit
def rows_of(first, BM: tl.constexpr, RP: tl.constexpr):
    """Positions from `first` on, and heads of the unit, of the rows of a tile."""
    row = tl.arange(0, BM)
    return first + row // RP, row % RP


@triton.jit
def range_of(ranges, rule, blocks, block):
    """First column that a block has, and the one after its last; rule: whose lists, 0 where units share them."""
    at = ranges + (rule * blocks + block) * 2
    return tl.load(at), tl.load(at + 1)


@triton.jit
def offset(i, step, WIDE: tl.constexpr):
    """Where rows `i` begin; in 64 bits only where 32 do not reach, as each costs several instructions a row."""
    if WIDE:
        return i.to(tl.int64) * step
    else:
        return i * step


@triton.jit
def of_heads(head, i, step, WIDE: tl.constexpr):
    """Where rows `i` of heads begin in a batch element; step: numbers from batch element, head and row to the next."""
    return offset(head, step[1], WIDE) + offset(i, step[2], WIDE)


@triton.jit
def load_rows(base, at, there, D: tl.constexpr, DP: tl.constexpr):
    """Rows `[rows, DP]` of D numbers each at `base + at`; 0 where not `there` and beyond D."""
    column = tl.arange(0, DP)
    if D == DP:
        mask = there[:, None]
    else:
        mask = there[:, None] & (column < D)[None, :]
    return tl.load(base + at[:, None] + column[None, :], mask=mask, other=0.0)


@triton.jit
def store_rows(base, at, there, value, D: tl.constexpr, DP: tl.constexpr):
    column = tl.arange(0, DP)
    mask = there[:, None] & (column < D)[None, :]
    tl.store(base + at[:, None] + column[None, :], value.to(base.dtype.element_ty), mask=mask)


@triton.jit
def product(a, b, total, EXACT: tl.constexpr):
    """`total + a @ b` on tensor cores, or in true float32: the interpreter's products of bfloat16 are wrong."""
    if EXACT:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    else:
        return tl.dot(a.to(b.dtype), b, total)


@triton.jit
def listed(keys, unit, columns, c, i, there, T, FORM: tl.constexpr):
    """Key of the rows `i` in column c of the list, and whether it exists.

    OFFSETS: int32 `[units or 1, columns, 4]` of (a, o, first, ahead): key `a * i + o`, none before `first` or more than
    `ahead` positions after the query. TABLE: int32 `[units or 1, columns, T]`, -1 where there is none.
    """
    if FORM == TABLE:
        j = tl.load(keys + (unit * columns + c).to(tl.int64) * T + i, mask=there, other=-1)
        there = there & (j >= 0)
    else:
        entry = keys + (unit * columns + c) * 4
        j = tl.load(entry) * i + tl.load(entry + 1)
        there = there & (j >= tl.load(entry + 2)) & (j < T) & (j <= i + tl.load(entry + 3))
    return j, there


@triton.jit
def asking(keys, unit, columns, c, j, there, T):
    """The transpose of `listed` for distances: the query that reads the rows `j` by column c, and whether it exists."""
    entry = keys + (unit * columns + c) * 4
    i = j - tl.load(entry + 1)
    return i, there & (tl.load(entry) == 1) & (j >= tl.load(entry + 2)) & (i >= 0) & (i < T)


@triton.jit
def rung(rungs, c, alpha):
    """Nearer distance of rung c, int32 `[R, 2]`, and the fraction t that `alpha * f` lies beyond it."""
    lo = tl.load(rungs + c * 2)
    t = tl.load(alpha).to(tl.float64) * tl.load(rungs + c * 2 + 1).to(tl.float64) - lo.to(tl.float64)
    return lo, t.to(tl.float32)


@triton.jit
def band_logits(s, d, seen, slope, span, ramp, ALIBI: tl.constexpr, SOFT: tl.constexpr):
    """Logits (base 2) of a band with their bias, from logits without, distances d and `seen` pairs; -inf elsewhere."""
    if ALIBI:
        s -= slope * tl.abs(d).to(tl.float32)
    if SOFT:
        weight = tl.minimum((span - d.to(tl.float32) + ramp) / ramp, 1.0)
        seen = seen & (weight > 0)
        s += tl.log2(tl.where(seen, weight, 1.0))
    return tl.where(seen, s, float("-inf"))


@triton.jit
def finite(m):
    """A maximum that may be subtracted: 0 where no key was seen yet."""
    return tl.where(m == float("-inf"), 0.0, m)
