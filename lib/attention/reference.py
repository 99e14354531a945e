"""The definition of correct: every pair written out, in float64. It shares no arithmetic with the fast paths.

Fixed patterns are taken from their rule (`Pattern.mask`), not from the keys that the fast paths use.
"""

import math

import torch

from lib.attention.call import Call, mask_of, refuse_empty
from lib.patterns.base import LearnedOffsets


def attend(call: Call) -> torch.Tensor:
    """Backend `reference`: any call, `[B, H, T, T]` memory."""
    B, H, G, T, D = call.shape
    q = call.q.double()
    k, v = (x.double().repeat_interleave(H // G, dim=1) for x in (call.k, call.v))         # (B, H, T, D)
    slopes = torch.zeros(1, device=q.device) if call.slopes is None else call.slopes
    by_keys = _learned if isinstance(call.keys, LearnedOffsets) else _masked
    return by_keys(call, q, k, v, slopes.double()).to(call.out_dtype)


def _masked(call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Softmax over terms `exp(q.k / sqrt(D) - slope * |d|) * weight`; weight 0: not attended, below 1: soft span."""
    B, H, T, D = q.shape
    mask = mask_of(call.keys, T, H) if call.pattern is None else call.pattern.mask(call.layer, T)
    weights = torch.tensor(mask if len(mask) == H else mask[:1], device=q.device).double()  # (H or 1, T, T)
    d = call.distances().double()
    if call.span is not None:
        ramp = call.keys.ramp
        weights = weights * ((call.span.double()[:, None, None] + ramp - d) / ramp).clamp(0, 1)
    allowed = weights > 0
    refuse_empty(allowed.any(-1))
    scores = q @ k.mT / math.sqrt(D) - slopes[:, None, None] * d.abs()                      # (B, H, T, T)
    scores = scores.masked_fill(~allowed, -math.inf)
    terms = (scores - scores.amax(-1, keepdim=True).detach()).exp() * weights.masked_fill(~allowed, 0)
    return terms / terms.sum(-1, keepdim=True) @ v


def _learned(call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Keys at the distances d of the window and `d = alpha * f`: `(1-t) * x[i-lo] + t * x[i-lo-1]`, `t = d - lo`.

    Valid where `i >= lo`; the further index is clamped at 0. `lo = floor(d)` is an integer, so the derivative of `t` to
    alpha is f, at integer distances too.
    """
    B, H, T, D = q.shape
    keys, i, rungs = call.keys, torch.arange(T, device=q.device), {}
    for f in keys.base:
        d = call.alpha.to(q) * f
        if keys.window < math.floor(d.item()) < T:
            rungs.setdefault(math.floor(d.item()), d)
    distances = [*torch.arange(keys.window + 1, device=q.device).to(q), *rungs.values()]
    nearer = [*range(keys.window + 1), *rungs]
    columns: tuple[list[torch.Tensor], ...] = [], []
    for lo, d in zip(nearer, distances, strict=True):
        near, far = (i - lo).clamp(min=0), (i - lo - 1).clamp(min=0)
        for column, x in zip(columns, (k, v), strict=True):
            column.append((1 - (d - lo)) * x[:, :, near] + (d - lo) * x[:, :, far])
    keys_, values = (torch.stack(column, 3) for column in columns)                          # (B, H, T, C, D)
    scores = torch.einsum("bhtd,bhtcd->bhtc", q, keys_) / math.sqrt(D)
    scores = scores - slopes[:, None, None] * torch.stack(distances)
    exists = i[:, None] >= torch.tensor(nearer, device=q.device)                            # (T, C)
    return torch.einsum("bhtc,bhtcd->bhtd", scores.masked_fill(~exists, -math.inf).softmax(-1), values)
