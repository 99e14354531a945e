"""The kernels as a function of torch with a derivative: memory, sizes and grids of a call."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from lib.attention.call import Call, cached, first_order
from lib.attention.gpu import backward as kernels
from lib.attention.gpu.forward import attend
from lib.attention.gpu.plans import NOTHING, RUNGS, TABLE, Plan, build
from lib.errors import SuiteError
from lib.patterns.base import LearnedOffsets, SoftWindow
from lib.patterns.learned import fractional_rungs

INTERPRETED = not isinstance(attend, triton.JITFunction)        # TRITON_INTERPRET=1 was set when this was imported
HALF = (torch.bfloat16, torch.float16)
REACH = 2**31           # numbers of a batch element from which on offsets take 64 bits


def run(call: Call) -> Tensor:
    """Attention `[B, H, T, D]` of a call; under autocast, as in SDPA, inputs are first cast to autocast's dtype."""
    B, H, G, T, D = call.shape
    q, k, v = (x.to(call.out_dtype) for x in (call.q, call.k, call.v))
    rungs: tuple[tuple[int, int], ...] = ()
    if isinstance(call.keys, LearnedOffsets):
        fractional = fractional_rungs(call.keys.base, call.keys.window, call.alpha_value, T)
        rungs = tuple(sorted((lo, f) for lo, _, f in fractional))
    half, rule = q.dtype in HALF, call.keys if call.pattern is None else call.pattern
    plan = cached(("gpu", rule, call.layer, H, G, T, D, half, q.device), lambda: build(call, half, rungs),
                  stale=lambda plan: plan.rungs != rungs)
    ramp = call.keys.ramp if isinstance(call.keys, SoftWindow) else 0
    learned = (None if x is None else x.to(q.device) for x in (call.alpha, call.span, call.slopes))
    return Attention.apply(q, k, v, *learned, plan, ramp)[0]


class Attention(torch.autograd.Function):
    """Attention of q `[B, H, T, D]`, k and v `[B, G, T, D]`, and the logarithm of each row's softmax denominator.

    The logarithms are base 2, `[B, units, T, R]`. alpha is 0-dim, span and slopes `[H]`; their gradients are float32
    sums.
    """

    @staticmethod
    def forward(q, k, v, alpha, span, slopes, plan, ramp):
        q, k, v = map(_in_rows, (q, k, v))
        on = Launch((q, k, v), (alpha, span, slopes), plan, ramp)
        out, lse = _like(q), q.new_empty(on.rows, dtype=torch.float32)
        with torch.cuda.device_of(q):                       # triton launches on the current device
            attend[(on.queries(),)](q, k, v, out, lse, *map(_steps, (q, k, v, out)), *on.lists(plan.query_ranges),
                                    *on.sizes(on.query_blocks), FORM=plan.form, BN=plan.band_tile or 16,
                                    **on.tiles(plan.tiling.BM, 32), **on.kinds())
        return out.to(q.dtype), lse

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.plan, ctx.ramp = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    @first_order
    def backward(ctx, dout, _):
        if dout is None:
            return (None,) * 8
        q, k, v, alpha, span, slopes, out, lse = ctx.saved_tensors
        q, k, v, dout = map(_in_rows, (q, k, v, dout))
        plan = ctx.plan
        on, rungs = Launch((q, k, v, dout), (alpha, span, slopes), plan, ctx.ramp), plan.form == RUNGS
        dq, dk, dv = map(_like, (q, k, v))
        delta = torch.empty_like(lse)
        kept = q.new_empty(on.B, on.units, plan.columns, on.T, plan.tiling.R, 2, dtype=_stored(q))
        dts = lse.new_zeros(on.queries(), plan.columns if rungs else 0)
        dspans = lse.new_empty(0) if span is None else torch.empty_like(lse)
        with torch.cuda.device_of(q):
            kernels.query_gradients[(on.queries(),)](
                q, k, v, out, dout, lse, delta, dq, kept, dts, dspans, *map(_steps, (q, k, v, out, dout, dq)),
                *on.lists(plan.query_ranges), *on.sizes(on.query_blocks), FORM=plan.form, BN=plan.band_tile or 16,
                **on.tiles(plan.tiling.BM, 16), **on.kinds())
            # The sums of the pieces, and where the pieces of a key are named; without pieces neither is read.
            sums, firsts, places = _sums_of_pieces(on, q, dout, kept) if plan.pieces else (lse, plan.keys, plan.keys)
            kernels.key_gradients[(on.key_blocks * on.G * on.B,)](
                q, k, v, dout, lse, delta, dk, dv, kept, sums, *map(_steps, (q, k, v, dout, dk, dv)),
                *on.lists(plan.key_ranges), firsts, places, *on.sizes(on.key_blocks, sums.shape[2]),
                FORM=NOTHING if plan.form == TABLE else plan.form, PIECES=bool(plan.pieces),
                **on.tiles(plan.tiling.KM, 16), **on.kinds())
        dalpha = dspan = None
        if alpha is not None:
            total = dts.sum(0, dtype=torch.float64) @ plan.keys[:, 1].double() if rungs else lse.new_zeros(())
            dalpha = total.float().to(alpha.dtype)
        if span is not None:
            dspan = dspans.sum((0, 2), dtype=torch.float64).flatten().float().to(span.dtype)
        return *(dx.to(q.dtype) for dx in (dq, dk, dv)), dalpha, dspan, None, None, None

    @staticmethod
    def vmap(info, in_dims, *arguments):
        raise SuiteError("torch.vmap over backend 'gpu' is not valid: make the mapped dimension the batch, "
                         "or use backend='torch'")


def _sums_of_pieces(on: Launch, q: Tensor, dout: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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
        self.B, self.H, self.T, self.D = q.shape
        self.G, self.plan, self.ramp = k.shape[1], plan, float(ramp)
        self.learned = [q if x is None else x for x in learned]         # one that is not given is not read
        self.soft, self.alibi = learned[1] is not None, learned[2] is not None
        self.units = self.H // plan.tiling.R
        self.query_blocks, self.key_blocks = plan.query_ranges.shape[1], plan.key_ranges.shape[1]
        self.exact = INTERPRETED or q.dtype not in HALF
        self.wide = max(map(_extent, tensors)) >= REACH

    @property
    def rows(self) -> tuple[int, ...]:
        """Shape of what is kept of each row."""
        return self.B, self.units, self.T, self.plan.tiling.R

    def queries(self) -> int:
        """Programs of a kernel that goes over queries."""
        return self.query_blocks * self.units * self.B

    def lists(self, ranges: Tensor) -> tuple[Tensor, ...]:
        return *self.learned, self.plan.keys, ranges, self.plan.bands, self.plan.band_counts

    def sizes(self, blocks: int, *more: int) -> tuple[int | float, ...]:
        return (self.T, blocks, self.units, self.plan.columns, self.plan.bands.shape[1], *more, self.D ** -0.5,
                self.ramp)

    def tiles(self, rows: int, numbers: int) -> dict[str, Any]:
        """What a kernel is compiled for, with tiles of so many rows, and so many of their numbers a thread."""
        R, RP, DP, _, _ = self.plan.tiling
        return dict(R=R, RP=RP, D=self.D, DP=DP, BM=rows, BY_UNIT=self.plan.by_head, WIDE=self.wide,
                    num_warps=min(16, max(4, rows * DP // (32 * numbers))), num_stages=3 if DP <= 256 else 2)

    def kinds(self) -> dict[str, Any]:
        return dict(GROUP=self.H // self.G, BANDS=self.plan.band_tile > 0, ALIBI=self.alibi, SOFT=self.soft,
                    EXACT=self.exact)


def _extent(x: Tensor) -> int:
    """Numbers from the first of a batch element to its last, of x or of a tensor like it without gaps."""
    return max(x[0].numel(), 1 + sum((n - 1) * step for n, step in zip(x.shape[1:], x.stride()[1:], strict=True)))


def _steps(x: Tensor) -> tuple[int, ...]:
    return x.stride()[:3]


def _in_rows(x: Tensor) -> Tensor:
    """x, with the numbers of a row side by side."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 and x.numel() else x.contiguous()


def _like(x: Tensor) -> Tensor:
    """An empty tensor for a result like x `[B, H, T, D]`, without gaps, heads between tokens where they are so in x."""
    B, H, T, D = x.shape
    if x.stride(1) < x.stride(2):
        return x.new_empty(B, T, H, D, dtype=_stored(x)).transpose(1, 2)
    return x.new_empty(B, H, T, D, dtype=_stored(x))


def _stored(x: Tensor) -> torch.dtype:
    """The dtype that a kernel stores for x: float32 in the interpreter, which truncates where it should round."""
    return torch.float32 if INTERPRETED else x.dtype
