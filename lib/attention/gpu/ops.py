"""The kernels as a function of torch with a derivative: memory, sizes and grids of a call."""

from typing import Any

import torch
import triton
from torch import Tensor

from lib.attention.call import Call, cached, in_rows
from lib.attention.gpu import backward as kernels
from lib.attention.gpu.forward import attend
from lib.attention.gpu.plans import NOTHING, RUNGS, TABLE, Plan, build
from lib.patterns.base import SoftWindow

INTERPRETED = not isinstance(attend, triton.JITFunction)        # TRITON_INTERPRET=1 was set when this was imported
HALF = (torch.bfloat16, torch.float16)
REACH = 2**31           # numbers of a batch element from which on offsets take 64 bits


def run(call: Call) -> Tensor:
    """Attention `[B, H, T, D]` of a call; under autocast, as in SDPA, inputs are first cast to autocast's dtype."""
    q, k, v = (in_rows(x.to(call.out_dtype)) for x in (call.q, call.k, call.v))
    half = q.dtype in HALF
    plan = cached(("gpu", call.identity, q.shape[3], half), lambda: build(call, half), call.steps)
    ramp = call.keys.ramp if isinstance(call.keys, SoftWindow) else 0
    learned = (None if x is None else x.to(q.device) for x in (call.alpha, call.span, call.slopes))
    return Attention.apply(q, k, v, *learned, plan, ramp)


class Attention(torch.autograd.Function):
    """Attention of q `[B, H, T, D]`, k and v `[B, G, T, D]`; alpha is 0-dim, span and slopes `[H]`.

    Kept for the derivative is the logarithm of each row's softmax denominator, base 2, `[B, units, T, R]`. The
    gradients of alpha and span are float32 sums.
    """

    @staticmethod
    def forward(ctx, q, k, v, alpha, span, slopes, plan, ramp):
        on = Launch((q, k, v), (alpha, span, slopes), plan, ramp)
        out, lse = _result_like(q), q.new_empty(on.B, on.units, on.T, plan.tiling.R, dtype=torch.float32)
        with torch.cuda.device_of(q):                       # triton launches on the current device
            attend[(on.queries,)](q, k, v, out, lse, *map(_steps, (q, k, v, out)), *on.lists(plan.query_ranges),
                                  *on.sizes(on.query_blocks), FORM=plan.form, BN=plan.band_tile or 16,
                                  **on.tiles(plan.tiling.BM, 32), **on.kinds)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, alpha, span, slopes, out, lse)
        ctx.plan, ctx.ramp = plan, ramp
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, alpha, span, slopes, out, lse = ctx.saved_tensors
        plan, dout = ctx.plan, in_rows(dout)
        on, rungs = Launch((q, k, v, dout), (alpha, span, slopes), plan, ctx.ramp), plan.form == RUNGS
        dq, dk, dv = map(_result_like, (q, k, v))
        delta = torch.empty_like(lse)
        kept = q.new_empty(on.B, on.units, plan.columns, on.T, plan.tiling.R, 2, dtype=_stored(q))
        dts = lse.new_zeros(on.queries, plan.columns if rungs else 0)
        dspans = lse.new_empty(0) if span is None else torch.empty_like(lse)
        with torch.cuda.device_of(q):
            kernels.query_gradients[(on.queries,)](
                q, k, v, out, dout, lse, delta, dq, kept, dts, dspans, *map(_steps, (q, k, v, out, dout, dq)),
                *on.lists(plan.query_ranges), *on.sizes(on.query_blocks), FORM=plan.form, BN=plan.band_tile or 16,
                **on.tiles(plan.tiling.BM, 16), **on.kinds)
            # The sums of the pieces, and where the pieces of a key are named; without pieces neither is read.
            sums, firsts, places = _sums_of_pieces(on, q, dout, kept) if plan.pieces else (lse, plan.keys, plan.keys)
            kernels.key_gradients[(on.key_blocks * on.G * on.B,)](
                q, k, v, dout, lse, delta, dk, dv, kept, sums, *map(_steps, (q, k, v, dout, dk, dv)),
                *on.lists(plan.key_ranges), firsts, places, *on.sizes(on.key_blocks, sums.shape[2]),
                FORM=NOTHING if plan.form == TABLE else plan.form, PIECES=bool(plan.pieces),
                **on.tiles(plan.tiling.KM, 16), **on.kinds)
        dalpha = dspan = None
        if alpha is not None:
            total = dts.sum(0, dtype=torch.float64) @ plan.keys[:, 1].double() if rungs else lse.new_zeros(())
            dalpha = total.float().to(alpha.dtype)
        if span is not None:
            dspan = dspans.sum((0, 2), dtype=torch.float64).flatten().float().to(span.dtype)
        return *(dx.to(q.dtype) for dx in (dq, dk, dv)), dalpha, dspan, None, None, None


def _sums_of_pieces(on: "Launch", q: Tensor, dout: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sums of each piece of a key's list, and where the pieces of a key are named."""
    starts, lengths, entries, firsts, places = on.plan.pieces
    pieces, rows = starts.shape[1], on.plan.tiling.BM
    tiles = triton.cdiv(pieces, rows // on.plan.tiling.RP)
    sums = q.new_empty(on.B, on.units, pieces, 2, on.D, dtype=torch.float32)
    kernels.piece_sums[(tiles * on.units * on.B,)](
        q, dout, kept, sums, _steps(q), _steps(dout), starts, lengths, entries, on.T, on.units, on.plan.columns, pieces,
        tiles, **on.tiles(rows, 32))
    return sums, firsts, places


class Launch:
    """Grid and arguments that the kernels of one call have in common."""

    def __init__(self, tensors: tuple[Tensor, ...], learned: tuple[Tensor | None, ...], plan: Plan, ramp: int) -> None:
        """tensors: q, k, and what else is read; learned: alpha, span and slopes."""
        q, k, *_ = tensors
        self.B, H, self.T, self.D = q.shape
        self.G, self.plan, self.ramp = k.shape[1], plan, float(ramp)
        self.learned = [q if x is None else x for x in learned]         # one that is not given is not read
        self.units = H // plan.tiling.R
        self.query_blocks, self.key_blocks = plan.query_ranges.shape[1], plan.key_ranges.shape[1]
        self.queries = self.query_blocks * self.units * self.B          # programs of a kernel that goes over queries
        self.wide = max(map(_extent, tensors)) >= REACH
        self.kinds = {"GROUP": H // self.G, "BANDS": plan.band_tile > 0, "ALIBI": learned[2] is not None,
                      "SOFT": learned[1] is not None, "EXACT": INTERPRETED or q.dtype not in HALF}

    def lists(self, ranges: Tensor) -> tuple[Tensor, ...]:
        return *self.learned, self.plan.keys, ranges, self.plan.bands, self.plan.band_counts

    def sizes(self, blocks: int, *more: int) -> tuple[int | float, ...]:
        return (self.T, blocks, self.units, self.plan.columns, self.plan.bands.shape[1], *more, self.D ** -0.5,
                self.ramp)

    def tiles(self, rows: int, numbers: int) -> dict[str, Any]:
        """What a kernel is compiled for, with tiles of so many rows, and so many of their numbers a thread."""
        R, RP, DP, _, _ = self.plan.tiling
        return {"R": R, "RP": RP, "D": self.D, "DP": DP, "BM": rows, "BY_UNIT": self.plan.by_head, "WIDE": self.wide,
                "num_warps": min(16, max(4, rows * DP // (32 * numbers))), "num_stages": 3 if DP <= 256 else 2}


def _extent(x: Tensor) -> int:
    """Numbers from the first of a batch element to its last, of x or of a tensor like it without gaps."""
    return max(x[0].numel(), 1 + sum((n - 1) * step for n, step in zip(x.shape[1:], x.stride()[1:], strict=True)))


def _steps(x: Tensor) -> tuple[int, ...]:
    return x.stride()[:3]


def _result_like(x: Tensor) -> Tensor:
    """An empty tensor for a result like x, without gaps, heads between tokens where they are so in x."""
    return torch.empty_like(x, dtype=_stored(x))


def _stored(x: Tensor) -> torch.dtype:
    """The dtype that a kernel stores for x: float32 in the interpreter, which truncates where it should round."""
    return torch.float32 if INTERPRETED else x.dtype
