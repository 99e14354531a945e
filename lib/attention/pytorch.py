"""Backend `torch`: plain torch, only the listed pairs; forward, and a backward written by hand.

It is made of two operations that torch has fused already: `dots`, a sampled matrix product
(`torch.sparse.sampled_addmm`), and `pull`, a weighted bag of rows (`embedding_bag`). Both read each listed row where it
lies: neither a `[T, T]` nor a `[T, C, D]` tensor is made. With 23 keys of 64 numbers they take a third and a quarter of
the time of elementwise products over shifted views (measured: one thread, float32, T = 1024). A plan lists the pairs in
both directions, built once for a pattern, layer and length.

With a learned alpha, rungs lie at real distances `d = alpha * f` between `lo = floor(d)` and `lo + 1`. A logit is
linear in the key: that of the interpolated key is `s_lo + t * (s_hi - s_lo)`, with `t = d - lo`, and its weight goes
back to the two integer values as `1 - t` and `t`. An interpolated key is never made. The R rungs are the last of C
columns; their further keys are the pairs C to C + R - 1.
"""

import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lib.attention.call import (Call, arithmetic, by_key, cached, checked_table, distances_at, keys_by_head,
                                refuse_empty, span_bias)
from lib.errors import require
from lib.patterns.base import EdgeTable, LearnedOffsets, offsets_by_head

ROWS = 4096       # query rows at once: the fastest of 1024 … 65,536 measured, and intermediate tensors stay small

with warnings.catch_warnings():     # torch says once a process that its CSR tensors are in beta
    warnings.simplefilter("ignore", UserWarning)
    torch.sparse_csr_tensor([0, 1], [0], [1.0], size=(1, 1), device="cpu")


def attend(call: Call) -> Tensor:
    """Only the listed pairs, with a hand-written backward; any pattern, any device."""
    dtype, device, plan = arithmetic(call.q), call.q.device, plan_of(call)
    t, f = (torch.tensor([rung[at] for rung in call.rungs], dtype=dtype, device=device) for at in (1, 2))
    by_head, C = None, plan.bias.shape[1]
    if call.span is not None:
        by_head = span_bias(call.span.to(dtype), call.keys.ramp, C)
    elif call.alpha is not None and call.slopes is not None:        # ALiBi counts a rung's real distance
        near = torch.arange(C - len(f), dtype=dtype, device=device)
        by_head = -call.slopes.to(dtype)[:, None] * torch.cat([near, call.alpha.to(dtype) * f])
    return PairAttention.apply(call.q, call.k, call.v, call.alpha, by_head, plan, t, f, call.out_dtype)


class Plan(NamedTuple):
    """The pairs of `units` units: key/value heads with their query heads or, where heads differ, batch elements.

    Rows are numbered head by head, `h * T + t`, unit after unit; index tensors are int32.
    A pair that does not exist has a bias of -inf, hence weight and gradient 0, and may point at any row.
    """
    units: int
    heads: int                         # query heads of a unit
    kv_heads: int                      # key/value heads of a unit
    index: Tensor                      # (N, C + R) key row of each pair; N = units * heads * T
    bias: Tensor                       # (N, C) added to the logits
    starts: Tensor                     # (N + 1) 0, C + R, 2 (C + R), …
    back_starts: Tensor                # (M + 1) where the list of each key begins; M = units * kv_heads * T
    back_index: Tensor                 # query row of each entry of these lists
    back_slots: Tensor                 # its place in the flattened pairs

    def pull_back(self, weights: Tensor, x: Tensor) -> Tensor:
        """Transpose of `pull`: `out[m] = sum weights[n, c] x[n]` over the pairs of key m; (N, C), (N, D) -> (M, D)."""
        return pull(self.back_starts, self.back_index, weights.view(-1).index_select(0, self.back_slots), x)

    def slices(self, q: Tensor) -> Iterator[tuple[tuple[slice, slice], ...]]:
        """The parts of a call, as slices of batch and heads of q, and of k and v."""
        per_batch = q.shape[1] // self.heads
        batches, units = max(1, self.units // per_batch), min(self.units, per_batch)
        for b in range(0, len(q), batches):
            for u in range(0, per_batch, units):
                yield tuple((slice(b, b + batches), slice(u * heads, (u + units) * heads))
                            for heads in (self.heads, self.kv_heads))


def plan_of(call: Call) -> Plan:
    """The plan of a call, kept for the next one: of as many units as have `ROWS` rows and go into the call evenly."""
    B, H, G, T, D = call.shape
    shared = call.slopes is None and call.span is None and not keys_by_head(call.keys)
    heads = H // G if shared else H
    per_batch, most = H // heads, max(1, ROWS // (heads * T))           # whole batch elements, or some heads of one
    units = divisor(B, most // per_batch) * per_batch if most >= per_batch else divisor(per_batch, most)
    key = "torch", call.identity, call.slope_values, units, arithmetic(call.q)
    return cached(key, lambda: build(call, heads, units), call.steps)


def divisor(n: int, most: int) -> int:
    return max(d for d in range(1, min(n, most) + 1) if n % d == 0)


def build(call: Call, heads: int, units: int) -> Plan:
    """The plan of `units` units of so many query heads.

    The bias holds ALiBi's `-slope * |t - key|`, but for learned offsets, whose distances move with alpha.
    """
    B, H, G, T, D = call.shape
    key, valid = _pairs(call)                                           # (heads or 1, T, C + R)
    refuse_empty(valid.any(-1))
    kv_heads, C, device, dtype = heads * G // H, key.shape[-1], call.q.device, arithmetic(call.q)
    N, M = heads * T, kv_heads * T
    require(units * N * C < 2**31, "pattern", f"{units * N * C} pairs at once", "below 2^31 pairs in one batch element")
    bias = torch.zeros(heads, T, C, dtype=dtype)
    if call.slopes is not None and not isinstance(call.keys, LearnedOffsets):
        bias -= call.slopes.to("cpu", dtype)[:, None, None] * (torch.arange(T)[:, None] - key).abs()
    bias = bias.masked_fill_(~valid, float("-inf"))[..., :C - len(call.rungs)]
    head = torch.arange(heads, dtype=torch.int32)[:, None, None]
    index = (key.where(valid, 0) + head // (heads // kv_heads) * T).view(N, C)
    slots = valid.expand(heads, T, C).reshape(-1).nonzero()[:, 0]
    order, starts = map(torch.from_numpy, by_key(index.view(-1)[slots].numpy(), M))
    slots = slots[order].int()                                          # key by key, queries ascending

    def tiled(x: Tensor, step: int) -> Tensor:
        """A copy for each unit, one below the other, `step` added from each to the next."""
        shift = torch.arange(units, dtype=x.dtype).mul_(step).view(-1, *[1] * x.ndim)
        return (x + shift).flatten(0, 1).to(device)
    return Plan(units, heads, kv_heads, index=tiled(index, M), bias=tiled(bias.reshape(N, -1), 0),
                starts=(torch.arange(units * N + 1, dtype=torch.int32) * C).to(device),
                back_starts=F.pad(starts.diff().repeat(units).cumsum(0), (1, 0)).int().to(device),
                back_index=tiled(slots // C, N), back_slots=tiled(slots, N * C))


def _pairs(call: Call) -> tuple[Tensor, Tensor]:
    """Key of each pair, int32, and whether it exists, `[H or 1, T, C + R]`."""
    T = call.q.shape[2]
    if isinstance(call.keys, EdgeTable):
        key = torch.from_numpy(checked_table(call.keys, T)[..., :T])    # torch's sampled product is T wide at most
        return key, key >= 0
    if isinstance(call.keys, LearnedOffsets):       # window, nearer keys, further keys (as valid, clamped at key 0)
        window = range(min(call.keys.window, T - 1) + 1)
        near = torch.tensor([*window, *(lo for lo, _ in call.steps)], dtype=torch.int32)
        key = torch.arange(T, dtype=torch.int32)[:, None] - near
        rungs = key[:, len(window):]
        return torch.cat([key, (rungs - 1).clamp(min=0)], -1)[None], (torch.cat([key, rungs], -1) >= 0)[None]
    heads = offsets_by_head(call.keys)
    distances = [torch.from_numpy(distances_at(offsets, T)).int() for offsets in heads]
    leading = [torch.arange(min(offsets.leading, T), dtype=torch.int32) for offsets in heads]
    C = max(len(near) + len(lead) for near, lead in zip(distances, leading, strict=True))
    t = torch.arange(T, dtype=torch.int32)[:, None]
    key = torch.full((len(heads), T, C), -1, dtype=torch.int32)
    for row, near, lead in zip(key, distances, leading, strict=True):
        row[:, :len(near)] = t - near
        # a leading key that a distance reaches already counts once
        row[:, len(near):len(near) + len(lead)] = lead.where(~torch.isin(t - lead, near), -1)
    return key, (key >= 0) & (key < T) & ((key <= t) | (not heads[0].causal))


class PairAttention(torch.autograd.Function):
    """`softmax(scale * q.k + bias) v` over the pairs of a plan; `by_head` `[H, C]` adds a bias that has a gradient.

    t, f `[R]`: fractions and base distances of the rungs.
    """

    @staticmethod
    def forward(ctx, q, k, v, alpha, by_head, plan: Plan, t: Tensor, f: Tensor, out_dtype: torch.dtype):
        dtype, bias, scale = arithmetic(q), plan.bias, q.shape[-1] ** -0.5
        if by_head is not None:                                         # units are batch elements then
            bias = bias.view(plan.units, len(by_head), -1, bias.shape[1]) + by_head.to(dtype)[:, None]
            bias = bias.view(plan.bias.shape)
        out, kept = torch.empty_like(q, dtype=out_dtype), []
        for at, kv in plan.slices(q):
            qs, ks, vs = slab(q, at, dtype), slab(k, kv, dtype), slab(v, kv, dtype)
            start = bias.clone() if alpha is None else torch.zeros_like(plan.index, dtype=dtype)
            logits, far = blend(dots(plan.starts, plan.index, qs, ks, start, scale), t)                 # (N, C), (N, R)
            logits = logits if alpha is None else logits.add_(bias)
            # below 16 columns torch's kernel for the last dimension is 6 times slower: transposed
            weights = logits.softmax(-1) if bias.shape[1] >= 16 else logits.t().softmax(0).t().contiguous()
            store(out, at, pull(plan.starts, plan.index, spread(weights, t), vs))
            if any(ctx.needs_input_grad):
                kept += [weights, far]
        ctx.plan, ctx.t, ctx.f, ctx.scale = plan, t, f, scale
        ctx.by_head = None if by_head is None else by_head.detach()
        ctx.save_for_backward(q, k, v, alpha, *kept)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, alpha, *kept = ctx.saved_tensors
        plan, t, dtype = ctx.plan, ctx.t, arithmetic(q)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        dt = torch.zeros_like(t, dtype=torch.float64)                   # terms of both signs cancel in these long sums
        dbias = None if ctx.by_head is None else torch.zeros_like(ctx.by_head)
        for (at, kv), weights, far in zip(plan.slices(q), kept[::2], kept[1::2], strict=True):
            C = weights.shape[1]
            first = C - len(dt)                                         # the first rung's column
            qs, ks, vs, ds = (slab(x, part, dtype) for x, part in ((q, at), (k, kv), (v, kv), (dout, at)))
            store(dv, kv, plan.pull_back(spread(weights, t), ds))
            dpairs = dots(plan.starts, plan.index, ds, vs, torch.zeros_like(plan.index, dtype=dtype))
            dweights, far_v = blend(dpairs, t)
            dlogits = dweights.sub_((dweights * weights).sum(-1, keepdim=True)).mul_(weights)             # (N, C)
            dt += (dlogits[:, first:] * far).addcmul_(weights[:, first:], far_v).sum(0, dtype=torch.float64)
            if dbias is not None:
                dbias += dlogits.view(-1, len(dbias), q.shape[2], C).sum((0, 2))
            dpairs = spread(dlogits.mul_(ctx.scale), t)
            store(dq, at, pull(plan.starts, plan.index, dpairs, ks))
            store(dk, kv, plan.pull_back(dpairs, qs))
        dalpha = None if alpha is None else (dt * ctx.f).sum().to(alpha.dtype)
        return dq, dk, dv, dalpha, dbias, None, None, None, None


def blend(s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Of pairs (N, C + R): the columns (N, C), and further minus nearer (N, R)."""
    R, C = len(t), s.shape[1] - len(t)
    far = s[:, C:] - s[:, C - R:C]
    out = s[:, :C].contiguous()
    out[:, C - R:].addcmul_(far, t)
    return out, far


def spread(w: Tensor, t: Tensor) -> Tensor:
    """The transpose of `blend`: weights (N, C) given back to the pairs (N, C + R)."""
    R, C = len(t), w.shape[1]
    if R == 0:
        return w
    further = w[:, C - R:] * t
    return torch.cat([w[:, :C - R], w[:, C - R:] - further, further], 1)


def dots(starts: Tensor, index: Tensor, a: Tensor, b: Tensor, into: Tensor, scale: float = 1.0) -> Tensor:
    """`into[n, c] += scale * a[n] . b[index[n, c]]` in place; index `[N, C]` int32, starts `[N + 1]` = 0, C, 2C, …"""
    if a.device.type != "cpu":
        return dots_by_column(index, a, b, into, scale)
    pairs = torch.sparse_csr_tensor(starts, index.view(-1), into.view(-1), (len(a), len(b)), device=a.device,
                                    check_invariants=False)
    torch.sparse.sampled_addmm(pairs, a, b.t(), beta=1.0, alpha=scale, out=pairs)
    return into


def dots_by_column(index: Tensor, a: Tensor, b: Tensor, into: Tensor, scale: float) -> Tensor:
    """`dots` for accelerators, whose sampled product wants rows in order; slower on a CPU."""
    for c in range(index.shape[1]):
        into[:, c].add_((a * b.index_select(0, index[:, c])).sum(-1), alpha=scale)
    return into


def pull(starts: Tensor, index: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    """`out[n] = sum_e weights[e] * x[index[e]]` over the entries `starts[n] <= e < starts[n + 1]`."""
    return F.embedding_bag(index.view(-1), x, starts, mode="sum", per_sample_weights=weights.view(-1),
                           include_last_offset=True)


def slab(x: Tensor, part: tuple[slice, slice], dtype: torch.dtype) -> Tensor:
    """The rows `[N, D]` of a slice of `[B, H, T, D]`, in the dtype of the arithmetic."""
    return x[part].to(dtype).reshape(-1, x.shape[-1])


def store(target: Tensor, part: tuple[slice, slice], value: Tensor) -> None:
    """Put rows `[N, D]` into a slice of `[B, H, T, D]`, in its dtype."""
    target[part].copy_(value.view(target[part].shape))
