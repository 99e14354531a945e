"""Attention over planned pairs at fixed places: forward, and a backward written by hand."""

from __future__ import annotations

import torch

from lib.attention.rows import (arithmetic, dots, first_order, pull, slab,
                                softmax, store)
from lib.attention.pytorch.plans import Plan, steps


class PairAttention(torch.autograd.Function):
    """`softmax(scale * q.k + bias) v` over the pairs of a plan; `by_head` `[H, C]` adds a bias that has a gradient."""

    @staticmethod
    def forward(ctx, q, k, v, by_head, plan: Plan, scale: float, out_dtype: torch.dtype):
        dtype, bias = arithmetic(q), plan.bias_with(by_head)
        out = torch.empty_like(q, dtype=out_dtype)
        kept = []
        for step in steps(q, plan):
            part = step.plan
            qs, ks, vs = slab(q, step.q, dtype), slab(k, step.kv, dtype), slab(v, step.kv, dtype)
            logits = dots(part.starts, part.index, qs, ks, bias[:len(qs)].clone(), scale)        # (N, C)
            weights = softmax(logits)
            store(out, step.q, pull(part.starts, part.index, weights, vs))
            if any(ctx.needs_input_grad):
                kept.append(weights)
        ctx.plan, ctx.scale = plan, scale
        ctx.by_head = None if by_head is None else by_head.detach()
        ctx.save_for_backward(q, k, v, *kept)
        return out

    @staticmethod
    @first_order
    def backward(ctx, dout):
        q, k, v, *kept = ctx.saved_tensors
        dtype = arithmetic(q)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        dbias = None if ctx.by_head is None else torch.zeros_like(ctx.by_head)
        for step, weights in zip(steps(q, ctx.plan), kept, strict=True):
            part = step.plan
            qs, ks, vs, ds = (slab(x, at, dtype) for x, at in ((q, step.q), (k, step.kv), (v, step.kv), (dout, step.q)))
            store(dv, step.kv, part.pull_back(weights, ds))
            dlogits = dots(part.starts, part.index, ds, vs, torch.zeros_like(weights))           # d weights, (N, C)
            dlogits.sub_((dlogits * weights).sum(-1, keepdim=True)).mul_(weights)
            if dbias is not None:
                dbias += dlogits.view(-1, len(dbias), q.shape[2], dbias.shape[1]).sum((0, 2))
            dlogits.mul_(ctx.scale)
            store(dq, step.q, pull(part.starts, part.index, dlogits, ks))
            store(dk, step.kv, part.pull_back(dlogits, qs))
        return dq, dk, dv, dbias, None, None, None
