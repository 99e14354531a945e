"""Torch's scaled dot product attention (SDPA): causal, full, or with a mask. Sparse patterns are compared with it."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from lib.attention.call import Call, cached, in_memory, mask_of, refuse_empty
from lib.patterns.base import LearnedOffsets, Offsets


def supports(call: Call) -> bool:
    return not isinstance(call.keys, LearnedOffsets)        # an interpolated key is no column of the mask


def attend(call: Call) -> torch.Tensor:
    """Backend `masked`: SDPA with a `[T, T]` mask that is built once; without one where the pattern is dense."""
    if call.q.device.type == "cpu" and call.out_dtype == torch.bfloat16:
        # On a CPU SDPA's backward takes five times as long in bfloat16 as in float32.
        with torch.autocast("cpu", enabled=False):
            return attend(replace(call, q=call.q.float(), k=call.k.float(), v=call.v.float())).to(torch.bfloat16)
    kind = dense_kind(call)
    kept = cached if in_memory(call.q) else lambda key, build: build()      # a meta or fake mask is for this call only
    mask = None if kind else _soft(call) if call.span is not None else kept(
        ("mask", call.identity, call.slope_values, call.q.dtype), lambda: _mask(call))
    return F.scaled_dot_product_attention(call.q, call.k, call.v, attn_mask=mask, is_causal=kind == "causal",
                                          enable_gqa=call.q.shape[1] != call.k.shape[1])


def dense_kind(call: Call) -> str | None:
    """`causal` or `full` when every query attends all keys before it, or all keys, without ALiBi; None otherwise."""
    keys, T = call.keys, call.q.shape[2]
    if not isinstance(keys, Offsets) or call.slopes is not None:
        return None
    wanted = range(T) if keys.causal else range(1 - T, T)
    covered = keys.leading >= T or (len(keys.distances) >= len(wanted) and set(wanted) <= set(keys.distances))
    return ("causal" if keys.causal else "full") if covered else None


def _mask(call: Call) -> torch.Tensor:
    """Boolean `[1, H or 1, T, T]`; with ALiBi the bias, -inf where not attended."""
    mask = mask_of(call.keys, call.q.shape[2], call.q.shape[1])
    refuse_empty(mask.any(-1))
    mask = torch.tensor(mask, device=call.q.device)[None]
    return mask if call.slopes is None else _alibi(call).masked_fill(~mask, float("-inf"))


def _alibi(call: Call) -> torch.Tensor:
    return -call.slopes.to(call.q.dtype)[None, :, None, None] * call.distances().abs()      # (1, H, T, T)


def _soft(call: Call) -> torch.Tensor:
    """The soft span's logarithmic weights `[1, H, T, T]`, built anew because the span learns."""
    keys, d = call.keys, call.distances()
    span = call.span.to(call.q.dtype)[None, :, None, None]
    weight = ((span + keys.ramp - d) / keys.ramp).clamp(0, 1)
    seen = (d >= 0) & (d <= keys.window) & (weight > 0)
    bias = torch.where(seen, weight, 1).log().masked_fill(~seen, float("-inf"))
    return bias if call.slopes is None else bias + _alibi(call)
