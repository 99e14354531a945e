"""The forward kernel, and what it shares with those of `backward`: where a program's rows lie, which keys they list.

A tile has BM rows. A row is a query (or key) and a head of its unit, `row = i * RP + r`: the R heads that share keys
and values lie side by side, so that one line of K or V, once read, serves them all. RP is R rounded up to a power of
two, DP the head size. Logits are in base 2: the weight is `exp2(s)` with `s = q.k * scale * LOG2E`.

A far key costs an elementwise product and a sum, which no matrix unit can do better: each query has a key of its own.
Bands of distances go to tensor cores. The two kinds of key have their own running maximum, sum and output, merged at
the end, as their tiles lie differently in registers.
"""

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
def of_head(values, head, there, GIVEN: tl.constexpr):
    """What the heads of rows have of `values`, float32; 0 where none are given."""
    if GIVEN:
        return tl.load(values + head, mask=there, other=0.0).to(tl.float32)
    else:
        return head * 0.0


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


@triton.jit(do_not_specialize=["T", "blocks", "units", "columns", "n_bands"])
def attend(q, k, v, out, lse, q_step, k_step, v_step, out_step, alpha, span, slopes, keys, ranges, bands, band_counts,
           T, blocks, units, columns, n_bands, scale, ramp,
           GROUP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr,
           BN: tl.constexpr, FORM: tl.constexpr, BANDS: tl.constexpr, BY_UNIT: tl.constexpr,
           ALIBI: tl.constexpr, SOFT: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr):
    """`out` and `lse` (base 2, `[B, units, T, R]`) of the rows of one tile."""
    block, unit, b = program(blocks, units)
    i, r = rows_of(block * (BM // RP), BM, RP)
    head, there = unit * R + r, (r < R) & (i < T)
    rule = unit * BY_UNIT                                           # whose list of keys
    k += b * k_step[0] + (unit * R // GROUP).to(tl.int64) * k_step[1]
    v += b * v_step[0] + (unit * R // GROUP).to(tl.int64) * v_step[1]
    rows_q = load_rows(q + b * q_step[0], of_heads(head, i, q_step, WIDE), there, D, DP)
    slope = of_head(slopes, head, there, ALIBI) * LOG2E
    most = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    sums = tl.zeros([BM, DP], tl.float32)

    if FORM != NOTHING:
        wide_q = rows_q.to(tl.float32) * (scale * LOG2E)
        begin, end = range_of(ranges, rule, blocks, block)
        for c in range(begin, end, 1 if FORM == RUNGS else 2):
            if FORM == RUNGS:                                       # a rung's two keys
                lo, t = rung(keys, c, alpha)
                j0, d0 = i - lo, lo.to(tl.float32) + t
                j1, seen0 = tl.maximum(j0 - 1, 0), there & (j0 >= 0)
                seen1 = seen0
            else:                                                   # two at once: more reads in flight, less rescaling
                j0, seen0 = listed(keys, rule, columns, c, i, there, T, FORM)
                j1, seen1 = listed(keys, rule, columns, c + 1, i, there, T, FORM)
                d0 = tl.abs(i - j0).to(tl.float32)
            k0 = load_rows(k, offset(j0, k_step[2], WIDE), seen0, D, DP).to(tl.float32)
            k1 = load_rows(k, offset(j1, k_step[2], WIDE), seen1, D, DP).to(tl.float32)
            v0 = load_rows(v, offset(j0, v_step[2], WIDE), seen0, D, DP).to(tl.float32)
            v1 = load_rows(v, offset(j1, v_step[2], WIDE), seen1, D, DP).to(tl.float32)
            if FORM == RUNGS:
                k0, v0 = k0 + t * (k1 - k0), v0 + t * (v1 - v0)
            s0, s1 = tl.sum(wide_q * k0, 1), tl.sum(wide_q * k1, 1)
            if ALIBI:
                s0, s1 = s0 - slope * d0, s1 - slope * tl.abs(i - j1).to(tl.float32)
            s0, s1 = tl.where(seen0, s0, float("-inf")), tl.where(seen1, s1, float("-inf"))
            higher = tl.maximum(most, s0 if FORM == RUNGS else tl.maximum(s0, s1))
            level = finite(higher)
            shrink, p0, p1 = tl.exp2(most - level), tl.exp2(s0 - level), tl.exp2(s1 - level)
            sums = sums * shrink[:, None] + p0[:, None] * v0
            total = total * shrink + p0
            if FORM != RUNGS:
                sums, total = sums + p1[:, None] * v1, total + p1
            most = higher

    if BANDS:
        spans = of_head(span, head, there, SOFT)
        band_most = tl.full([BM], float("-inf"), tl.float32)
        band_total = tl.zeros([BM], tl.float32)
        band_sums = tl.zeros([BM, DP], tl.float32)
        low, high = block * (BM // RP), tl.minimum(block * (BM // RP) + BM // RP, T) - 1
        for n in range(0, tl.load(band_counts + rule)):
            band = bands + (rule * n_bands + n) * 3
            nearest, farthest = tl.load(band), tl.load(band + 1)
            last = tl.minimum(high - nearest, T - 1)
            for j_first in range(tl.maximum(tl.load(band + 2), low - farthest), last + 1, BN):
                j = j_first + tl.arange(0, BN)
                rows_k = load_rows(k, offset(j, k_step[2], WIDE), j <= last, D, DP)
                rows_v = load_rows(v, offset(j, v_step[2], WIDE), j <= last, D, DP)
                s = product(rows_q, tl.trans(rows_k), tl.zeros([BM, BN], tl.float32), EXACT) * (scale * LOG2E)
                d = i[:, None] - j[None, :]
                seen = (d >= nearest) & (d <= farthest) & (j <= last)[None, :]
                s = band_logits(s, d, seen, slope[:, None], spans[:, None], ramp, ALIBI, SOFT)
                higher = tl.maximum(band_most, tl.max(s, 1))
                level = finite(higher)
                shrink, p = tl.exp2(band_most - level), tl.exp2(s - level[:, None])
                band_sums = product(p, rows_v, band_sums * shrink[:, None], EXACT)
                band_total = band_total * shrink + tl.sum(p, 1)
                band_most = higher
        higher = tl.maximum(most, band_most)
        level = finite(higher)
        sums = sums * tl.exp2(most - level)[:, None] + band_sums * tl.exp2(band_most - level)[:, None]
        total = total * tl.exp2(most - level) + band_total * tl.exp2(band_most - level)
        most = higher

    total = tl.where(there, total, 1.0)
    at = of_heads(head, i, out_step, WIDE)
    store_rows(out + b * out_step[0], at, there, sums / total[:, None], D, DP)
    tl.store(lse + ((b * units + unit) * T + i) * R + r, most + tl.log2(total), mask=there)
