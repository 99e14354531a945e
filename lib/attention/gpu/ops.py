"""The kernels as operators of torch: with gradients, shapes for the compiler, and clear refusals of what they cannot do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from lib.attention.call import CACHE, Call
from lib.attention.gpu import backward as kernels
from lib.attention.gpu.forward import attend
from lib.attention.gpu.plans import NOTHING, RUNGS, TABLE, Tiling, build
from lib.attention.rows import first_order
from lib.errors import SuiteError
from lib.patterns.base import LearnedOffsets, SoftWindow
from lib.patterns.learned import fractional_rungs

INTERPRETED = not isinstance(attend, triton.JITFunction)        # TRITON_INTERPRET=1 was set when this was imported
HALF = (torch.bfloat16, torch.float16)
REACH = 2**31           # numbers of a batch element from which on offsets take 64 bits


def run(call: Call) -> Tensor:
    """Attention `[B, H, T, D]` of a call; under autocast its inputs are cast to autocast's dtype first, as SDPA does."""
    B, H, G, T, D = call.shape
    q, k, v = (x.to(call.out_dtype) for x in (call.q, call.k, call.v))
    rungs: tuple[tuple[int, int], ...] = ()
    if isinstance(call.keys, LearnedOffsets):
        found = fractional_rungs(call.keys.base, call.keys.window, call.alpha_value, T)
        rungs = tuple(sorted((lo, f) for lo, _, f in found))
    half, rule = q.dtype in HALF, call.keys if call.pattern is None else call.pattern
    plan = CACHE.get(("gpu", rule, call.layer, H, G, T, D, half, q.device), lambda: build(call, half, rungs),
                     stale=lambda plan: plan.rungs != rungs)
    ramp = call.keys.ramp if isinstance(call.keys, SoftWindow) else 0
    learned = (None if x is None else x.to(q.device) for x in (call.alpha, call.span, call.slopes))
    return forward(q, k, v, *learned, plan.tensors(), plan.numbers(), ramp)[0]


class Launch:
    """Grid and arguments that the kernels of one call have in common."""

    def __init__(self, tensors: Sequence[Tensor], learned: Sequence[Tensor | None], plan: Sequence[Tensor],
                 numbers: Sequence[int], ramp: int) -> None:
        """tensors: q, k, and what else is read; learned: alpha, span and slopes."""
        q, k, *_ = tensors
        self.B, self.H, self.T, self.D = q.shape
        self.G = k.shape[1]
        self.form, self.by_head, self.columns, self.band_tile = numbers[:4]
        self.tiling = Tiling(*numbers[4:])
        self.keys, self.query_ranges, self.key_ranges, self.bands, self.band_counts, *self.pieces = plan
        self.learned = [q if x is None else x for x in learned]         # one that is not given is not read
        self.soft, self.alibi, self.ramp = learned[1] is not None, learned[2] is not None, float(ramp)
        self.units = self.H // self.tiling.R
        self.query_blocks, self.key_blocks = self.query_ranges.shape[1], self.key_ranges.shape[1]
        self.exact = INTERPRETED or q.dtype not in HALF
        self.wide = max(map(_extent, tensors)) >= REACH

    @property
    def rows(self) -> tuple[int, ...]:
        """Shape of what is kept of each row."""
        return self.B, self.units, self.T, self.tiling.R

    def queries(self) -> int:
        """Programs of a kernel that goes over queries."""
        return self.query_blocks * self.units * self.B

    def lists(self, ranges: Tensor) -> tuple[Tensor, ...]:
        return *self.learned, self.keys, ranges, self.bands, self.band_counts

    def sizes(self, blocks: int, *more: int) -> tuple[int | float, ...]:
        return self.T, blocks, self.units, self.columns, self.bands.shape[1], *more, self.D ** -0.5, self.ramp

    def tiles(self, rows: int, numbers: int) -> dict[str, Any]:
        """What a kernel is compiled for, with tiles of so many rows, and so many of their numbers a thread."""
        R, RP, DP, _, _ = self.tiling
        return dict(R=R, RP=RP, D=self.D, DP=DP, BM=rows, BY_UNIT=self.by_head, WIDE=self.wide,
                    num_warps=min(16, max(4, rows * DP // (32 * numbers))), num_stages=3 if DP <= 256 else 2)

    def kinds(self) -> dict[str, Any]:
        return dict(GROUP=self.H // self.G, BANDS=self.band_tile > 0, ALIBI=self.alibi, SOFT=self.soft, EXACT=self.exact)


def _extent(x: Tensor) -> int:
    """Numbers from the first of a batch element to its last, of x or of a tensor like it without gaps."""
    return max(x[0].numel(), 1 + sum((n - 1) * step for n, step in zip(x.shape[1:], x.stride()[1:], strict=True)))


def _steps(x: Tensor) -> tuple[int, ...]:
    return x.stride()[:3]


def _in_rows(x: Tensor) -> Tensor:
    """x, with the numbers of a row side by side."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 and x.numel() else x.contiguous()


def _like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An empty tensor of the shape of x `[B, H, T, D]` without gaps, heads between tokens where they are so in x."""
    B, H, T, D = x.shape
    in_turn = x.stride(1) < x.stride(2)
    return x.new_empty(B, T, H, D, dtype=dtype).transpose(1, 2) if in_turn else x.new_empty(B, H, T, D, dtype=dtype)


def _stored(x: Tensor) -> torch.dtype:
    """What a kernel stores of a tensor like x: the interpreter cuts off the digits that it should round, so float32 there."""
    return torch.float32 if INTERPRETED else x.dtype


@torch.library.custom_op("sparse_attention::gpu_forward", mutates_args=())
def forward(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, span: Tensor | None, slopes: Tensor | None,
            plan: Sequence[Tensor], numbers: Sequence[int], ramp: int) -> tuple[Tensor, Tensor]:
    """Output, and of each row the logarithm of its softmax's denominator `[B, units, T, R]`, base 2."""
    q, k, v = map(_in_rows, (q, k, v))
    on = Launch((q, k, v), (alpha, span, slopes), plan, numbers, ramp)
    out, lse = _like(q, _stored(q)), q.new_empty(on.rows, dtype=torch.float32)
    with torch.cuda.device_of(q):                       # triton launches on the current device
        attend[(on.queries(),)](q, k, v, out, lse, *map(_steps, (q, k, v, out)), *on.lists(on.query_ranges),
                                *on.sizes(on.query_blocks), FORM=on.form, BN=on.band_tile or 16,
                                **on.tiles(on.tiling.BM, 32), **on.kinds())
    return out.to(q.dtype), lse


@forward.register_fake
def _(q, k, v, alpha, span, slopes, plan, numbers, ramp):
    R = numbers[4]
    return _like(q), q.new_empty(len(q), q.shape[1] // R, q.shape[2], R, dtype=torch.float32)


@torch.library.custom_op("sparse_attention::gpu_backward", mutates_args=())
def backward(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, span: Tensor | None, slopes: Tensor | None,
             out: Tensor, lse: Tensor, dout: Tensor, plan: Sequence[Tensor], numbers: Sequence[int],
             ramp: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv, and of alpha (0-dim) and span `[H]`, where they are given, the gradients in float32 (else empty)."""
    q, k, v, dout = map(_in_rows, (q, k, v, dout))
    on, rungs = Launch((q, k, v, dout), (alpha, span, slopes), plan, numbers, ramp), numbers[0] == RUNGS
    dq, dk, dv = (_like(x, _stored(x)) for x in (q, k, v))
    delta, kept = torch.empty_like(lse), q.new_empty(on.B, on.units, on.columns, on.T, on.tiling.R, 2, dtype=_stored(q))
    dts = lse.new_zeros(on.queries(), on.columns if rungs else 0)
    dspans = torch.empty_like(lse) if on.soft else lse.new_empty(0)
    with torch.cuda.device_of(q):
        kernels.query_gradients[(on.queries(),)](
            q, k, v, out, dout, lse, delta, dq, kept, dts, dspans, *map(_steps, (q, k, v, out, dout, dq)),
            *on.lists(on.query_ranges), *on.sizes(on.query_blocks), FORM=on.form, BN=on.band_tile or 16,
            **on.tiles(on.tiling.BM, 16), **on.kinds())
        sums, firsts, places = _sums_of_pieces(on, q, dout, kept) if on.pieces else (lse, on.keys, on.keys)     # not read
        kernels.key_gradients[(on.key_blocks * on.G * on.B,)](
            q, k, v, dout, lse, delta, dk, dv, kept, sums, *map(_steps, (q, k, v, dout, dk, dv)), *on.lists(on.key_ranges),
            firsts, places, *on.sizes(on.key_blocks, sums.shape[2]), FORM=NOTHING if on.form == TABLE else on.form,
            PIECES=bool(on.pieces), **on.tiles(on.tiling.KM, 16), **on.kinds())
    dalpha = (dts.sum(0, dtype=torch.float64) @ on.keys[:, 1].double()).float() if rungs else lse.new_zeros(())
    dspan = dspans.sum((0, 2), dtype=torch.float64).flatten().float() if on.soft else lse.new_empty(0)
    return *(dx.to(q.dtype) for dx in (dq, dk, dv)), dalpha, dspan


def _sums_of_pieces(on: Launch, q: Tensor, dout: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sums of each piece of a key's list, and where the pieces of a key are named."""
    starts, lengths, entries, firsts, places = on.pieces
    pieces, rows = starts.shape[1], on.tiling.BM
    tiles = triton.cdiv(pieces, rows // on.tiling.RP)
    sums = q.new_empty(on.B, on.units, pieces, 2, on.D, dtype=torch.float32)
    kernels.piece_sums[(tiles * on.units * on.B,)](
        q, dout, kept, sums, _steps(q), _steps(dout), starts, lengths, entries, on.T, on.units, on.columns, pieces, tiles,
        **on.tiles(rows, 32))
    return sums, firsts, places


@backward.register_fake
def _(q, k, v, alpha, span, slopes, out, lse, dout, plan, numbers, ramp):
    return _like(q), _like(k), _like(v), lse.new_empty(()), lse.new_empty(0 if span is None else q.shape[1])


def _setup(ctx, inputs, output):
    q, k, v, alpha, span, slopes, plan, ctx.numbers, ctx.ramp = inputs
    ctx.save_for_backward(q, k, v, alpha, span, slopes, *output, *plan)
    ctx.mark_non_differentiable(output[1])


@first_order
def _backward(ctx, dout, _):
    q, k, v, alpha, span, slopes, out, lse, *plan = ctx.saved_tensors
    dq, dk, dv, dalpha, dspan = backward(q, k, v, alpha, span, slopes, out, lse, dout, plan, ctx.numbers, ctx.ramp)
    dalpha, dspan = (None if x is None else dx.to(x.dtype) for x, dx in ((alpha, dalpha), (span, dspan)))
    return dq, dk, dv, dalpha, dspan, None, [None] * len(plan), None, None


forward.register_autograd(_backward, setup_context=_setup)


def _no_vmap(info, in_dims, *args):
    raise SuiteError("torch.vmap over backend 'gpu' is not valid: make the mapped dimension the batch, or use backend='torch'")


for op in (forward, backward):
    op.register_vmap(_no_vmap)
