"""Backend `cpu`: kernels compiled by numba, forward and backward: `shifts` and `edges`. `ops` calls them."""

import importlib.util

import torch

from lib.attention.call import Call


def missing() -> str:
    return "" if importlib.util.find_spec("numba") else "numba is not installed; pip install numba"


def supports(call: Call) -> bool:
    return call.q.device.type == "cpu" and call.out_dtype in (torch.float32, torch.float64, torch.bfloat16)


def attend(call: Call) -> torch.Tensor:
    """Only the listed pairs, in fused kernels: any pattern, on a CPU, in float32, float64 and bfloat16."""
    from lib.attention.cpu import ops           # numba is loaded where it is needed only
    return ops.attend(call)
