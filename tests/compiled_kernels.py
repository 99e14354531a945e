"""Compile the Triton kernels for an H200 (sm_90) on a machine without any GPU, from real calls without the launch.

Run by tests/test_attention_gpu.py in a process of its own. The interpreter takes much that the compiler refuses. Prints
one line a kernel: name, registers, bytes of stack (more than 0: registers did not suffice), bytes of shared memory.
"""

import os
import re
import subprocess
import tempfile
from types import SimpleNamespace

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from lib.attention.call import checked
from lib.attention.gpu import ops
from lib.patterns import EdgeTable, HeadOffsets, LearnedOffsets, Offsets

FAR = Offsets((*range(9), 13, 21, 34, 55))
# keys, head size, and which of alpha and slopes there are
CALLS = [(FAR, 64, ""), (LearnedOffsets(8, (13, 21, 34)), 64, "alpha"),
         (EdgeTable(np.arange(128)[:, None].astype(np.int32)), 64, ""), (HeadOffsets((FAR,) * 8), 80, "slopes")]
# What the compiler asks the driver of a GPU that is not there
ABSENT = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0,
                         get_current_stream=lambda device: 0)


def resources(cubin: bytes) -> tuple[str, ...]:
    """Registers a thread, and bytes of stack."""
    tool = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", "cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        shown = subprocess.check_output([tool, "--dump-resource-usage", file.name], text=True)
    return re.search(r"REG:(\d+) STACK:(\d+)", shown).groups()


def compile_only(run):
    def instead(kernel, *args, grid, warmup, **options):
        compiled = run(kernel, *args, grid=grid, warmup=True, **options)
        print(kernel.__name__, *resources(compiled.asm["cubin"]), compiled.metadata.shared, flush=True)
        return compiled
    return instead


if __name__ == "__main__":
    driver.set_active(ABSENT)
    jit.JITFunction.run = compile_only(jit.JITFunction.run)
    for keys, D, more in CALLS:
        q, k, v = (torch.zeros(1, 128, heads, D, dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
                   for heads in (8, 2, 2))
        alpha = torch.tensor(1.1, requires_grad=True) if more == "alpha" else None
        slopes = torch.ones(8) if more == "slopes" else None
        ops.run(checked(q, k, v, keys, 0, alpha, None, slopes)).sum().backward()
