"""Attention over planned pairs: forward, and a backward written by hand.

It is made of two operations that torch has fused already: `dots`, a sampled matrix product
(`torch.sparse.sampled_addmm`), and `pull`, a weighted bag of rows (`embedding_bag`). Both read each listed row where it
lies: neither a `[T, T]` nor a `[T, C, D]` tensor is made. With 23 keys of 64 numbers they take a third and a quarter of
the time of elementwise products over shifted views (measured: one thread, float32, T = 1024).

With a learned alpha, rungs lie at real distances `d = alpha * f` between `lo = floor(d)` and `lo + 1`. A logit is
linear in the key: that of the interpolated key is `s_lo + t * (s_hi - s_lo)`, with `t = d - lo`, and its weight goes
back to the two integer values as `1 - t` and `t`. An interpolated key is never made.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch

from lib.attention.call import Call, arithmetic, first_order
from lib.attention.keys import span_bias
from lib.attention.pytorch.plans import Plan, plan_of, pull, steps

with warnings.catch_warnings():     # torch says once a process that its CSR tensors are in beta
    warnings.simplefilter("ignore", UserWarning)
    torch.sparse_csr_tensor([0, 1], [0], [1.0], size=(1, 1))


def attend(call: Call) -> torch.Tensor:
    """Attention `[B, H, T, D]` of a call; ALiBi counts a rung's real distance."""
    dtype, device = arithmetic(call.q), call.q.device
    plan, rungs = plan_of(call)
    t, f = (torch.tensor([rung[at] for rung in rungs], dtype=dtype, device=device) for at in (1, 2))
    by_head, C = None, plan.bias.shape[1]
    if call.span is not None:
        by_head = span_bias(call.span.to(dtype), call.keys.ramp, C)
    elif call.alpha is not None and call.slopes is not None:
        near = torch.arange(C - len(f), dtype=dtype, device=device)
        by_head = -call.slopes.to(dtype)[:, None] * torch.cat([near, call.alpha.to(dtype) * f])
    return PairAttention.apply(call.q, call.k, call.v, call.alpha, by_head, plan, Rungs(f, t), call.scale,
                               call.out_dtype)


@dataclass(frozen=True)
class Rungs:
    """R rungs, 0 without a learned alpha: the last R of C columns. Their further keys are pairs C to C + R - 1."""
    f: torch.Tensor        # (R) base distances
    t: torch.Tensor        # (R) fractions of alpha * f

    def blend(self, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of pairs (N, C + R): the columns (N, C), and further minus nearer (N, R)."""
        R = len(self.t)
        C = s.shape[1] - R
        far = s[:, C:] - s[:, C - R:C]
        out = s[:, :C].contiguous()
        out[:, C - R:].addcmul_(far, self.t)
        return out, far

    def spread(self, w: torch.Tensor) -> torch.Tensor:
        """The transpose of `blend`: weights (N, C) given back to the pairs (N, C + R)."""
        R, C = len(self.t), w.shape[1]
        if R == 0:
            return w
        out = w.new_empty(len(w), C + R)
        out[:, :C] = w
        torch.mul(w[:, C - R:], self.t, out=out[:, C:])
        out[:, C - R:C] -= out[:, C:]
        return out


class PairAttention(torch.autograd.Function):
    """`softmax(scale * q.k + bias) v` over the pairs of a plan; `by_head` `[H, C]` adds a bias that has a gradient."""

    @staticmethod
    def forward(ctx, q, k, v, alpha, by_head, plan: Plan, rungs: Rungs, scale: float, out_dtype: torch.dtype):
        dtype, bias, blended = arithmetic(q), plan.bias_with(by_head), alpha is not None
        out, kept = torch.empty_like(q, dtype=out_dtype), []
        for step in steps(q, plan):
            part = step.plan
            qs, ks, vs = slab(q, step.q, dtype), slab(k, step.kv, dtype), slab(v, step.kv, dtype)
            part_bias = bias[:len(qs)]
            start = torch.zeros_like(part.index, dtype=dtype) if blended else part_bias.clone()
            logits, far = rungs.blend(dots(part.starts, part.index, qs, ks, start, scale))              # (N, C), (N, R)
            weights = softmax(logits.add_(part_bias) if blended else logits)
            store(out, step.q, pull(part.starts, part.index, rungs.spread(weights), vs))
            if any(ctx.needs_input_grad):
                kept += [weights, far]
        ctx.plan, ctx.rungs, ctx.scale = plan, rungs, scale
        ctx.by_head = None if by_head is None else by_head.detach()
        ctx.save_for_backward(q, k, v, alpha, *kept)
        return out

    @staticmethod
    @first_order
    def backward(ctx, dout):
        q, k, v, alpha, *kept = ctx.saved_tensors
        plan, rungs, dtype = ctx.plan, ctx.rungs, arithmetic(q)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        dt = torch.zeros_like(rungs.t, dtype=torch.float64)             # terms of both signs cancel in these long sums
        dbias = None if ctx.by_head is None else torch.zeros_like(ctx.by_head)
        for step, weights, far in zip(steps(q, plan), kept[::2], kept[1::2], strict=True):
            part, C = step.plan, weights.shape[1]
            first = C - len(dt)                                         # the first rung's column
            qs, ks, vs, ds = (slab(x, at, dtype) for x, at in ((q, step.q), (k, step.kv), (v, step.kv), (dout, step.q)))
            store(dv, step.kv, part.pull_back(rungs.spread(weights), ds))
            dpairs = dots(part.starts, part.index, ds, vs, torch.zeros_like(part.index, dtype=dtype))
            dweights, far_v = rungs.blend(dpairs)
            dlogits = dweights.sub_((dweights * weights).sum(-1, keepdim=True)).mul_(weights)             # (N, C)
            dt += (dlogits[:, first:] * far).addcmul_(weights[:, first:], far_v).sum(0, dtype=torch.float64)
            if dbias is not None:
                dbias += dlogits.view(-1, len(dbias), q.shape[2], C).sum((0, 2))
            dpairs = rungs.spread(dlogits.mul_(ctx.scale))
            store(dq, step.q, pull(part.starts, part.index, dpairs, ks))
            store(dk, step.kv, part.pull_back(dpairs, qs))
        dalpha = None if alpha is None else (dt * rungs.f).sum().to(alpha.dtype)
        return dq, dk, dv, dalpha, dbias, None, None, None, None


def dots(starts: torch.Tensor, index: torch.Tensor, a: torch.Tensor, b: torch.Tensor, into: torch.Tensor,
         scale: float = 1.0) -> torch.Tensor:
    """`into[n, c] += scale * a[n] . b[index[n, c]]` in place; index `[N, C]` int32, starts `[N + 1]` = 0, C, 2C, …"""
    if a.device.type != "cpu":
        return dots_by_column(index, a, b, into, scale)
    size = len(a), len(b)
    pairs = torch.sparse_csr_tensor(starts, index.view(-1), into.view(-1), size=size, check_invariants=False)
    torch.sparse.sampled_addmm(pairs, a, b.t(), beta=1.0, alpha=scale, out=pairs)
    return into


def dots_by_column(index: torch.Tensor, a: torch.Tensor, b: torch.Tensor, into: torch.Tensor,
                   scale: float) -> torch.Tensor:
    """`dots` for accelerators, whose sampled product wants rows in order; slower on a CPU."""
    for c in range(index.shape[1]):
        into[:, c].add_((a * b.index_select(0, index[:, c])).sum(-1), alpha=scale)
    return into


def softmax(logits: torch.Tensor) -> torch.Tensor:
    """Softmax of every row. Below 16 columns torch's kernel for the last dimension is 6 times slower: transposed."""
    return torch.softmax(logits, -1) if logits.shape[1] >= 16 else torch.softmax(logits.t(), 0).t().contiguous()


def slab(x: torch.Tensor, part: tuple[slice, slice], dtype: torch.dtype) -> torch.Tensor:
    """The rows `[N, D]` of a slice of `[B, H, T, D]`, in the dtype of the arithmetic."""
    return x[part].to(dtype).reshape(-1, x.shape[-1])


def store(target: torch.Tensor, part: tuple[slice, slice], value: torch.Tensor) -> None:
    """Put rows `[N, D]` into a slice of `[B, H, T, D]`, in its dtype."""
    target[part].copy_(value.view(target[part].shape))
