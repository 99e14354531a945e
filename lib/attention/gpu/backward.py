"""The backward kernels, one for queries and two for keys. Nothing is added atomically: results repeat bit for bit.

The transpose of a shift is a shift: key j collects from the queries `j + d` that read it. For listed keys the first
kernel leaves weights p and logit gradients ds, `kept` `[B, units, columns, T, R, 2]` in the inputs' dtype, so that keys
need sums only; bands are computed anew on tensor cores. Keys that a table or a leading column names collect from
transposed lists.
"""

import triton
import triton.language as tl

from lib.attention.gpu.forward import (LOG2E, NOTHING, RUNGS, asking, band_logits, listed, load_rows, of_head,
                                       of_heads, offset, product, program, range_of, rows_of, rung, store_rows)


@triton.jit
def store_pair(column, row, p, ds, there):
    """p and ds of each row side by side, in one store."""
    pair = tl.join(p, ds).to(column.dtype.element_ty)
    tl.store(column + (row * 2)[:, None] + tl.arange(0, 2)[None, :], pair, mask=there[:, None])


@triton.jit
def load_pair(column, row, there):
    at = column + row * 2
    return tl.load(at, mask=there, other=0.0).to(tl.float32), tl.load(at + 1, mask=there, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["T", "blocks", "units", "columns", "n_bands"])
def query_gradients(q, k, v, out, dout, lse, delta, dq, kept, dts, dspans,
                    q_step, k_step, v_step, out_step, dout_step, dq_step, alpha, span, slopes, keys, ranges, bands,
                    band_counts, T, blocks, units, columns, n_bands, scale, ramp,
                    GROUP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
                    BM: tl.constexpr, BN: tl.constexpr, FORM: tl.constexpr, BANDS: tl.constexpr, BY_UNIT: tl.constexpr,
                    ALIBI: tl.constexpr, SOFT: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr):
    """`dq`, `delta` (out . dout of each row) and `kept` (weights and logit gradients of listed keys).

    Also the gradients of the rungs' fractions, summed by program (`dts` `[programs, columns]`), and of the span, by row
    (`dspans`, as `delta`).
    """
    block, unit, b = program(blocks, units)
    i, r = rows_of(block * (BM // RP), BM, RP)
    head, there = unit * R + r, (r < R) & (i < T)
    rule = unit * BY_UNIT
    k += b * k_step[0] + (unit * R // GROUP).to(tl.int64) * k_step[1]
    v += b * v_step[0] + (unit * R // GROUP).to(tl.int64) * v_step[1]
    rows_q = load_rows(q + b * q_step[0], of_heads(head, i, q_step, WIDE), there, D, DP)
    rows_do = load_rows(dout + b * dout_step[0], of_heads(head, i, dout_step, WIDE), there, D, DP)
    rows_out = load_rows(out + b * out_step[0], of_heads(head, i, out_step, WIDE), there, D, DP)
    place = ((b * units + unit) * T + i) * R + r
    level = tl.load(lse + place, mask=there, other=0.0)
    along = tl.sum(rows_out.to(tl.float32) * rows_do.to(tl.float32), 1)
    tl.store(delta + place, along, mask=there)
    slope = of_head(slopes, head, there, ALIBI)
    sums = tl.zeros([BM, DP], tl.float32)

    if FORM != NOTHING:
        wide_q, wide_do = rows_q.to(tl.float32) * (scale * LOG2E), rows_do.to(tl.float32)
        column = (b * units + unit) * columns                       # the first of this unit
        begin, end = range_of(ranges, rule, blocks, block)
        for c in range(begin, end):
            if FORM == RUNGS:
                lo, t = rung(keys, c, alpha)
                j, d = i - lo, lo.to(tl.float32) + t
                seen = there & (j >= 0)
            else:
                j, seen = listed(keys, rule, columns, c, i, there, T, FORM)
                d = tl.abs(i - j).to(tl.float32)
            rows_k = load_rows(k, offset(j, k_step[2], WIDE), seen, D, DP).to(tl.float32)
            rows_v = load_rows(v, offset(j, v_step[2], WIDE), seen, D, DP).to(tl.float32)
            s, dp = tl.sum(wide_q * rows_k, 1), tl.sum(wide_do * rows_v, 1)
            if FORM == RUNGS:
                far = tl.maximum(j - 1, 0)
                more_k = load_rows(k, offset(far, k_step[2], WIDE), seen, D, DP).to(tl.float32) - rows_k
                more_v = load_rows(v, offset(far, v_step[2], WIDE), seen, D, DP).to(tl.float32) - rows_v
                ds_dt, dp_dt = tl.sum(wide_q * more_k, 1), tl.sum(wide_do * more_v, 1)      # base 2, like s
                s, dp, rows_k = s + t * ds_dt, dp + t * dp_dt, rows_k + t * more_k
            if ALIBI:
                s -= slope * LOG2E * d
            p = tl.exp2(tl.where(seen, s, float("-inf")) - level)
            ds = p * (dp - along)
            store_pair(kept + (column + c) * T * R * 2, i * R + r, p, ds, seen)
            if FORM == RUNGS:
                dt = ds * (ds_dt / LOG2E - slope) + p * dp_dt
                tl.store(dts + tl.program_id(0).to(tl.int64) * columns + c, tl.sum(tl.where(seen, dt, 0.0), 0))
            sums += ds[:, None] * rows_k

    if BANDS:
        spans, dspan = of_head(span, head, there, SOFT), tl.zeros([BM], tl.float32)
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
                seen = (d >= nearest) & (d <= farthest) & (j <= last)[None, :] & there[:, None]
                s = band_logits(s, d, seen, slope[:, None] * LOG2E, spans[:, None], ramp, ALIBI, SOFT)
                dp = product(rows_do, tl.trans(rows_v), tl.zeros([BM, BN], tl.float32), EXACT)
                ds = tl.exp2(s - level[:, None]) * (dp - along[:, None])
                if SOFT:                                        # logarithm of (span + ramp - d) / ramp, where below 1
                    x = spans[:, None] - d.to(tl.float32)
                    sloped = (x <= 0) & (x + ramp > 0)
                    dspan += tl.sum(tl.where(sloped, ds / tl.where(sloped, x + ramp, 1.0), 0.0), 1)
                band_sums = product(ds, rows_k, band_sums, EXACT)
        sums = sums + band_sums
        if SOFT:
            tl.store(dspans + ((b * units + unit) * T + i) * R + r, dspan, mask=there)

    store_rows(dq + b * dq_step[0], of_heads(head, i, dq_step, WIDE), there, sums * scale, D, DP)


@triton.jit(do_not_specialize=["T", "units", "columns", "pieces", "tiles"])
def piece_sums(q, dout, kept, sums, q_step, dout_step, starts, lengths, entries, T, units, columns, pieces, tiles,
               R: tl.constexpr, RP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr,
               BY_UNIT: tl.constexpr, WIDE: tl.constexpr):
    """`sums` `[B, units, pieces, 2, D]` float32: of each piece of a key's list, `sum ds * q` and `sum p * dout`.

    starts, lengths int32 `[units or 1, pieces]`, longest first in every tile; entries int32 `[n, 2]`: column and query.
    """
    tile, unit, b = program(tiles, units)
    piece, r = rows_of(tile * (BM // RP), BM, RP)
    there = (r < R) & (piece < pieces)
    rule = unit * BY_UNIT
    head = unit * R + r
    start = tl.load(starts + rule * pieces + piece, mask=there, other=0)
    length = tl.load(lengths + rule * pieces + piece, mask=there, other=0)
    q += b * q_step[0]
    dout += b * dout_step[0]
    kept += (b * units + unit) * columns * T * R * 2
    dk, dv = tl.zeros([BM, DP], tl.float32), tl.zeros([BM, DP], tl.float32)
    for n in range(0, tl.max(length, 0)):
        seen = n < length
        entry = entries + (start + n).to(tl.int64) * 2
        c, i = tl.load(entry, mask=seen, other=0), tl.load(entry + 1, mask=seen, other=0)
        p, ds = load_pair(kept, (c.to(tl.int64) * T + i) * R + r, seen)
        dk += ds[:, None] * load_rows(q, of_heads(head, i, q_step, WIDE), seen, D, DP).to(tl.float32)
        dv += p[:, None] * load_rows(dout, of_heads(head, i, dout_step, WIDE), seen, D, DP).to(tl.float32)
    dk = tl.sum(tl.reshape(dk, [BM // RP, RP, DP]), 1)
    dv = tl.sum(tl.reshape(dv, [BM // RP, RP, DP]), 1)
    piece = tile * (BM // RP) + tl.arange(0, BM // RP)
    at = ((b * units + unit) * pieces + piece) * 2 * D
    store_rows(sums, at, piece < pieces, dk, D, DP)
    store_rows(sums, at + D, piece < pieces, dv, D, DP)


@triton.jit(do_not_specialize=["T", "blocks", "units", "columns", "n_bands", "pieces"])
def key_gradients(q, k, v, dout, lse, delta, dk, dv, kept, sums,
                  q_step, k_step, v_step, dout_step, dk_step, dv_step, alpha, span, slopes, keys, ranges, bands,
                  band_counts, firsts, places, T, blocks, units, columns, n_bands, pieces, scale, ramp,
                  GROUP: tl.constexpr, R: tl.constexpr, RP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
                  BM: tl.constexpr, FORM: tl.constexpr, BANDS: tl.constexpr, PIECES: tl.constexpr,
                  BY_UNIT: tl.constexpr, ALIBI: tl.constexpr, SOFT: tl.constexpr, EXACT: tl.constexpr,
                  WIDE: tl.constexpr):
    """`dk` and `dv` of a block of keys, from all units of the key/value head (`units` in all, GROUP // R a head)."""
    BK: tl.constexpr = BM // RP
    block, kv_head, b = program(blocks, units * R // GROUP)
    j_tile = block * BK + tl.arange(0, BK)
    q += b * q_step[0]
    dout += b * dout_step[0]
    sum_k, sum_v = tl.zeros([BK, DP], tl.float32), tl.zeros([BK, DP], tl.float32)

    if FORM != NOTHING:
        j, r = rows_of(block * BK, BM, RP)
        there = (r < R) & (j < T)
        rows_dk, rows_dv = tl.zeros([BM, DP], tl.float32), tl.zeros([BM, DP], tl.float32)
        for sub in range(0, GROUP // R):
            unit = kv_head * (GROUP // R) + sub
            rule, head = unit * BY_UNIT, unit * R + r
            column = (b * units + unit) * columns                   # the first of this unit
            begin, end = range_of(ranges, rule, blocks, block)
            for c in range(begin, end, 1 if FORM == RUNGS else 2):
                if FORM == RUNGS:                                   # as the nearer key, then as the further one
                    lo, t = rung(keys, c, alpha)
                    i0, i1 = j + lo, j + lo + 1
                    seen0, seen1 = there & (i0 < T), there & (i1 < T)
                    share0, share1 = tl.where(j == 0, 1.0, 1 - t), j * 0.0 + t      # query lo has key 0 at both ends
                    kept0 = kept + (column + c) * T * R * 2
                    kept1 = kept0
                else:                                               # two columns
                    i0, seen0 = asking(keys, rule, columns, c, j, there, T)
                    i1, seen1 = asking(keys, rule, columns, c + 1, j, there, T)
                    share0, share1 = 1.0, 1.0
                    kept0, kept1 = kept + (column + c) * T * R * 2, kept + (column + c + 1) * T * R * 2
                q0 = load_rows(q, of_heads(head, i0, q_step, WIDE), seen0, D, DP)
                do0 = load_rows(dout, of_heads(head, i0, dout_step, WIDE), seen0, D, DP)
                q1 = load_rows(q, of_heads(head, i1, q_step, WIDE), seen1, D, DP)
                do1 = load_rows(dout, of_heads(head, i1, dout_step, WIDE), seen1, D, DP)
                p0, ds0 = load_pair(kept0, i0 * R + r, seen0)
                p1, ds1 = load_pair(kept1, i1 * R + r, seen1)
                rows_dk += (share0 * ds0)[:, None] * q0.to(tl.float32) + (share1 * ds1)[:, None] * q1.to(tl.float32)
                rows_dv += (share0 * p0)[:, None] * do0.to(tl.float32) + (share1 * p1)[:, None] * do1.to(tl.float32)
        sum_k += tl.sum(tl.reshape(rows_dk, [BK, RP, DP]), 1)
        sum_v += tl.sum(tl.reshape(rows_dv, [BK, RP, DP]), 1)

    if BANDS:
        wide = kv_head.to(tl.int64)
        rows_k = load_rows(k + b * k_step[0] + wide * k_step[1], offset(j_tile, k_step[2], WIDE), j_tile < T, D, DP)
        rows_v = load_rows(v + b * v_step[0] + wide * v_step[1], offset(j_tile, v_step[2], WIDE), j_tile < T, D, DP)
        last_key = tl.minimum(block * BK + BK, T) - 1
        for sub in range(0, GROUP // R):
            unit = kv_head * (GROUP // R) + sub
            rule = unit * BY_UNIT
            for n in range(0, tl.load(band_counts + rule)):
                band = bands + (rule * n_bands + n) * 3
                nearest, farthest, first_key = tl.load(band), tl.load(band + 1), tl.load(band + 2)
                last = tl.minimum(last_key + farthest, T - 1)
                for i_first in range(tl.maximum(block * BK + nearest, 0), last + 1, BM // RP):
                    i, r = rows_of(i_first, BM, RP)
                    there = (r < R) & (i <= last)
                    head = unit * R + r
                    rows_q = load_rows(q, of_heads(head, i, q_step, WIDE), there, D, DP)
                    rows_do = load_rows(dout, of_heads(head, i, dout_step, WIDE), there, D, DP)
                    place = ((b * units + unit) * T + i) * R + r
                    level = tl.load(lse + place, mask=there, other=0.0)
                    along = tl.load(delta + place, mask=there, other=0.0)
                    slope, spans = of_head(slopes, head, there, ALIBI) * LOG2E, of_head(span, head, there, SOFT)
                    s = product(rows_k, tl.trans(rows_q), tl.zeros([BK, BM], tl.float32), EXACT) * (scale * LOG2E)
                    d = i[None, :] - j_tile[:, None]
                    seen = (d >= nearest) & (d <= farthest) & (j_tile >= first_key)[:, None] & there[None, :]
                    s = band_logits(s, d, seen, slope[None, :], spans[None, :], ramp, ALIBI, SOFT)
                    p = tl.exp2(s - level[None, :])
                    dp = product(rows_v, tl.trans(rows_do), tl.zeros([BK, BM], tl.float32), EXACT)
                    ds = p * (dp - along[None, :])
                    sum_v = product(p, rows_do, sum_v, EXACT)
                    sum_k = product(ds, rows_q, sum_k, EXACT)

    if PIECES:
        for sub in range(0, GROUP // R):
            unit = kv_head * (GROUP // R) + sub
            rule = unit * BY_UNIT
            begin = tl.load(firsts + rule * (T + 1) + j_tile, mask=j_tile < T, other=0)
            end = tl.load(firsts + rule * (T + 1) + j_tile + 1, mask=j_tile < T, other=0)
            for n in range(0, tl.max(end - begin, 0)):
                seen = begin + n < end
                piece = tl.load(places + begin + n, mask=seen, other=0)
                at = ((b * units + unit) * pieces + piece) * 2 * D
                sum_k += load_rows(sums, at, seen, D, DP)
                sum_v += load_rows(sums, at + D, seen, D, DP)

    at = kv_head.to(tl.int64) * dk_step[1] + offset(j_tile, dk_step[2], WIDE)
    store_rows(dk + b * dk_step[0], at, j_tile < T, sum_k * scale, D, DP)
    at = kv_head.to(tl.int64) * dv_step[1] + offset(j_tile, dv_step[2], WIDE)
    store_rows(dv + b * dv_step[0], at, j_tile < T, sum_v, D, DP)
