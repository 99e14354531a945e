"""Backend `gpu`: Triton kernels. Importing this needs neither triton nor a GPU; `missing` says which is absent."""

import importlib.util
import os
from functools import lru_cache

import torch

from lib.attention.call import Call

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST = 512           # head size: beyond it tiles do not fit into a multiprocessor
OLDEST = (8, 0)         # compute capability: bfloat16 on tensor cores


def interpreted() -> bool:
    """Whether Triton is to interpret kernels on CPU tensors, slowly, as tests do; settled when they are imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@lru_cache(maxsize=1)
def missing() -> str:
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install triton==3.7.1 on Linux, the version that torch 2.13.0 is made for"
    if interpreted():
        return ""
    if not torch.cuda.is_available():
        return ("torch sees no GPU: start where there is one, with a CUDA build of torch, or set TRITON_INTERPRET=1 "
                "before Python starts to run its kernels on the CPU, slowly")
    if torch.cuda.get_device_capability() < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"{torch.cuda.get_device_name()} is too old: compute capability {oldest} or later is needed"
    return ""


def supports(call: Call) -> bool:
    there = call.q.is_cuda or (interpreted() and call.q.device.type == "cpu")
    return there and call.out_dtype in DTYPES and call.q.shape[-1] <= LARGEST


def attend(call: Call) -> torch.Tensor:
    """All patterns, float32, bfloat16 or float16, summed in float32; head sizes to 512."""
    from lib.attention.gpu import ops           # imports triton, and settles whether it interprets
    return ops.run(call)
