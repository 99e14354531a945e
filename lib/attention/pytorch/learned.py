"""Learned alpha: rungs at real distances `d = alpha * f`, between two integer ones, `lo = floor(d)` and `lo + 1`.

A logit is linear in the key: that of the interpolated key is `s_lo + t * (s_hi - s_lo)`, with `t = d - lo`, and its weight
goes back to the two integer values as `(1 - t)` and `t`. An interpolated key is never made.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lib.attention.call import CACHE, Call
from lib.attention.rows import (arithmetic, dots, first_order, pull, slab,
                                softmax, store)
from lib.attention.pytorch.plans import (Plan, build, steps, unit_heads,
                                       units_at_once)
from lib.patterns.learned import fractional_rungs


@dataclass(frozen=True)
class Rungs:
    """R rungs: the last R columns of the logits `[N, C]`, followed by their further keys among the integer pairs."""
    f: torch.Tensor        # (R) base distances
    t: torch.Tensor        # (R) fractions of alpha * f

    def blend(self, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of integer pairs (N, C + R): the interpolated (N, C), and further minus nearer (N, R)."""
        R = len(self.t)
        C = s.shape[1] - R
        far = s[:, C:] - s[:, C - R:C]
        out = s[:, :C].contiguous()
        out[:, C - R:].addcmul_(far, self.t)
        return out, far

    def spread(self, w: torch.Tensor) -> torch.Tensor:
        """The transpose of `blend`: weights (N, C) given back to the integer pairs (N, C + R)."""
        R, C = len(self.t), w.shape[1]
        out = w.new_empty(len(w), C + R)
        out[:, :C] = w
        torch.mul(w[:, C - R:], self.t, out=out[:, C:])
        out[:, C - R:C] -= out[:, C:]
        return out


def attend(call: Call) -> torch.Tensor:
    """Attention `[B, H, T, D]` of a call whose keys are LearnedOffsets; ALiBi counts a rung's real distance."""
    dtype, device = arithmetic(call.q), call.q.device
    found = fractional_rungs(call.keys.base, call.keys.window, call.alpha_value, call.q.shape[2])
    lo = tuple(low for low, _, _ in found)
    heads = unit_heads(call, keys_by_head=False)
    units = units_at_once(call, heads)
    plan = CACHE.get(("learned", call.identity, units, dtype), lambda: _plan(call, heads, units, lo),
                     stale=lambda plan: plan.built_for != lo)
    t, f = (torch.tensor([rung[at] for rung in found], dtype=dtype, device=device) for at in (1, 2))
    by_head = None
    if call.slopes is not None:
        near = torch.arange(plan.bias.shape[1] - len(f), dtype=dtype, device=device)
        by_head = -call.slopes.to(dtype)[:, None] * torch.cat([near, call.alpha.to(dtype) * f])
    return LearnedAttention.apply(call.q, call.k, call.v, call.alpha, by_head, plan, Rungs(f, t), call.scale, call.out_dtype)


def _plan(call: Call, heads: int, units: int, lo: tuple[int, ...]) -> Plan:
    """The integer pairs: the window, the nearer keys, the further keys (valid with them, clamped at key 0)."""
    T = call.q.shape[2]
    near = torch.tensor([*range(min(call.keys.window, T - 1) + 1), *lo], dtype=torch.int32)
    key = torch.arange(T, dtype=torch.int32)[:, None] - near
    rungs = key[:, len(near) - len(lo):]
    pairs = torch.cat([key, (rungs - 1).clamp(min=0)], -1)
    valid = torch.cat([key, rungs], -1) >= 0
    return build(call, heads, units, pairs[None], valid[None], biased=len(near), built_for=lo)


class LearnedAttention(torch.autograd.Function):
    """`softmax(scale * q.k + bias) v` with interpolated rungs; `by_head` `[H, C]` adds a bias that has a gradient."""

    @staticmethod
    def forward(ctx, q, k, v, alpha, by_head, plan: Plan, rungs: Rungs, scale: float, out_dtype: torch.dtype):
        dtype, bias = arithmetic(q), plan.bias_with(by_head)
        out = torch.empty_like(q, dtype=out_dtype)
        kept = []
        for step in steps(q, plan):
            part = step.plan
            qs, ks, vs = slab(q, step.q, dtype), slab(k, step.kv, dtype), slab(v, step.kv, dtype)
            s = dots(part.starts, part.index, qs, ks, torch.zeros_like(part.index, dtype=dtype), scale)   # (N, C + R)
            logits, far = rungs.blend(s)
            weights = softmax(logits.add_(bias[:len(qs)]))                                      # (N, C)
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
        R = len(rungs.t)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        dt = torch.zeros(R, dtype=torch.float64, device=q.device)       # terms of both signs cancel in these long sums
        dbias = None if ctx.by_head is None else torch.zeros_like(ctx.by_head)
        for step, weights, far in zip(steps(q, plan), kept[::2], kept[1::2], strict=True):
            part = step.plan
            qs, ks, vs, ds = (slab(x, at, dtype) for x, at in ((q, step.q), (k, step.kv), (v, step.kv), (dout, step.q)))
            store(dv, step.kv, part.pull_back(rungs.spread(weights), ds))
            dweights, far_v = rungs.blend(dots(part.starts, part.index, ds, vs, torch.zeros_like(part.index, dtype=dtype)))
            dlogits = dweights.sub_((dweights * weights).sum(-1, keepdim=True)).mul_(weights)             # (N, C)
            C = dlogits.shape[1]
            dt += (dlogits[:, C - R:] * far).addcmul_(weights[:, C - R:], far_v).sum(0, dtype=torch.float64)
            if dbias is not None:
                dbias += dlogits.view(-1, len(dbias), q.shape[2], C).sum((0, 2))
            dpairs = rungs.spread(dlogits.mul_(ctx.scale))
            store(dq, step.q, pull(part.starts, part.index, dpairs, ks))
            store(dk, step.kv, part.pull_back(dpairs, qs))
        dalpha = (dt * rungs.f).sum().to(alpha.dtype)
        return dq, dk, dv, dalpha, dbias, None, None, None, None
