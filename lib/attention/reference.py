"""The definition of correct: every pair written out, in float64. It shares no arithmetic with the fast paths.

Fixed patterns are taken from their rule (`Pattern.mask`), not from the keys that the fast paths use.
"""

from __future__ import annotations

import math

import torch

from lib.attention.call import Call
from lib.attention.keys import check_table, keys_by_head, refuse_empty
from lib.patterns.base import EdgeTable, LearnedOffsets, expand


class Reference:
    """Backend `reference`: any call, `[B, H, T, T]` memory."""

    def missing(self) -> str:
        return ""

    def supports(self, call: Call) -> bool:
        return True

    def __call__(self, call: Call) -> torch.Tensor:
        B, H, G, T, D = call.shape
        q = call.q.double()
        k, v = (x.double().repeat_interleave(H // G, dim=1) for x in (call.k, call.v))     # (B, H, T, D)
        if isinstance(call.keys, LearnedOffsets):
            out = _learned(q, k, v, call.keys, call.alpha, call.slopes)
        else:
            out = _masked(q, k, v, *_weights_and_bias(call))
        return out.to(call.out_dtype)


def _masked(q, k, v, weights: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Softmax over terms `exp(q.k / sqrt(D) + bias) * weights`; weights `[H, T, T]`, 0 where not attended."""
    allowed = weights > 0
    refuse_empty(allowed.any(-1))
    scores = (q @ k.mT / math.sqrt(q.shape[-1]) + bias).masked_fill(~allowed, -math.inf)    # (B, H, T, T)
    scores = scores - scores.amax(-1, keepdim=True).detach()
    terms = scores.exp() * weights.masked_fill(~allowed, 0)
    return terms / terms.sum(-1, keepdim=True) @ v


def _weights_and_bias(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """`[H or 1, T, T]`: the weight of each pair (0: not attended, below 1: soft span), and ALiBi's `-slope * |d|`."""
    B, H, G, T, D = call.shape
    if isinstance(call.keys, EdgeTable):
        check_table(call.keys, T)
    if call.pattern is not None:
        mask = call.pattern.mask(call.layer, T)
    else:
        mask = expand(call.keys, T, H if keys_by_head(call.keys) else 1)
    weights = torch.tensor(mask if len(mask) == H else mask[:1]).to(call.q.device).double()
    i = torch.arange(T, device=call.q.device)
    d = (i[:, None] - i[None, :]).double()
    if call.span is not None:
        ramp = call.keys.ramp
        weights = weights * ((call.span.double()[:, None, None] + ramp - d) / ramp).clamp(0, 1)
    slopes = torch.zeros(1, dtype=torch.double, device=d.device) if call.slopes is None else call.slopes.double()
    return weights, -slopes[:, None, None] * d.abs()


def _learned(q, k, v, keys: LearnedOffsets, alpha: torch.Tensor, slopes: torch.Tensor | None) -> torch.Tensor:
    """Rungs at `d = alpha * f`: key and value `(1-t) * x[i-lo] + t * x[i-lo-1]`, `lo = floor(d)`, `t = d - lo`.

    Valid where `i >= lo`; the further index is clamped at 0. `lo` is an integer, so the derivative of `t` to alpha is
    f, at integer distances too.
    """
    B, H, T, D = q.shape
    i = torch.arange(T, device=q.device)
    window = i[:, None] - torch.arange(keys.window + 1, device=q.device)               # (T, W+1)
    distances = [*range(keys.window + 1)]
    columns_k, columns_v, valid = [k[:, :, window.clamp(min=0)]], [v[:, :, window.clamp(min=0)]], [window >= 0]
    taken: set[int] = set()
    for f in keys.base:
        d = alpha.double() * f
        lo = math.floor(d.item())
        if round(d.item()) <= keys.window or lo > T - 1 or lo in taken:
            continue
        taken.add(lo)
        t = d - lo
        near, far = (i - lo).clamp(min=0), (i - lo - 1).clamp(min=0)
        columns_k.append(((1 - t) * k[:, :, near] + t * k[:, :, far])[:, :, :, None])
        columns_v.append(((1 - t) * v[:, :, near] + t * v[:, :, far])[:, :, :, None])
        valid.append((i >= lo)[:, None])
        distances.append(d)
    keys_, values = torch.cat(columns_k, 3), torch.cat(columns_v, 3)                   # (B, H, T, C, D)
    scores = torch.einsum("bhtd,bhtcd->bhtc", q, keys_) / math.sqrt(D)
    if slopes is not None:
        apart = torch.stack([torch.as_tensor(d, dtype=q.dtype, device=q.device) for d in distances])
        scores = scores - slopes.double()[:, None, None] * apart
    scores = scores.masked_fill(~torch.cat(valid, 1), -math.inf)
    return torch.einsum("bhtc,bhtcd->bhtd", scores.softmax(-1), values)
