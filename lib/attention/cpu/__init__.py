"""Backend `cpu`: kernels compiled by numba, forward and backward."""

from __future__ import annotations

import importlib.util

import torch

from lib.attention.call import Call
from lib.attention.rows import arithmetic


class Cpu:
    """Only the listed pairs, in fused kernels: any pattern, on a CPU, in float32, float64 and bfloat16."""

    def missing(self) -> str:
        return "" if importlib.util.find_spec("numba") else "numba is not installed; pip install numba"

    def supports(self, call: Call) -> bool:
        return call.q.device.type == "cpu" and call.out_dtype in (torch.float32, torch.float64, torch.bfloat16)

    def __call__(self, call: Call) -> torch.Tensor:
        from lib.attention.cpu.ops import attend
        from lib.attention.cpu.rules import number_of
        q, k, v = (x.to(call.out_dtype) for x in (call.q, call.k, call.v))
        bias = None if call.span is None else soft_bias(call)
        alpha = call.alpha
        learning = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, alpha, bias))
        return attend(q, k, v, alpha, bias, number_of(call), learning)[0]


def soft_bias(call: Call) -> torch.Tensor:
    """Logarithm of the soft span's weights, `[H, C]`, -inf where a weight is 0 (no gradient there)."""
    keys, span = call.keys, call.span.to(arithmetic(call.q))
    C = min(keys.window, call.q.shape[2] - 1) + 1
    weight = ((span[:, None] + keys.ramp - torch.arange(C)) / keys.ramp).clamp(0, 1)
    return torch.where(weight > 0, weight, 1).log().masked_fill(weight <= 0, float("-inf"))
