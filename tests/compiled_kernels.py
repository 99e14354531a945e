"""Compile the Triton kernels for an H200 (sm_90) on a machine without any GPU, from real calls without the launch.

Run by tests/test_attention_gpu.py in a process of its own. The interpreter takes much that the compiler refuses. Prints
one line a kernel: name, registers, bytes of stack (more than 0: registers did not suffice), bytes of shared memory.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from lib.attention.call import checked
from lib.attention.gpu import ops
from lib.patterns import EdgeTable, HeadOffsets, LearnedOffsets, Offsets, SoftWindow

FAR = Offsets((*range(9), 13, 21, 34, 55))
TABLE = EdgeTable(np.arange(128)[:, None].astype(np.int32))


class Absent:
    """What the compiler asks the driver of a GPU that is not there."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers a thread, and bytes of stack."""
    tool = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", "cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        shown = subprocess.check_output([tool, "--dump-resource-usage", file.name], text=True)
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", shown).groups()
    return int(registers), int(stack)


def compile_only(run):
    def instead(kernel, *args, grid, warmup, **options):
        compiled = run(kernel, *args, grid=grid, warmup=True, **options)
        print(kernel.__name__, *resources(compiled.asm["cubin"]), compiled.metadata.shared, flush=True)
        return compiled
    return instead


def call(keys, dtype, D=64, slopes=None, **learned):
    q, k, v = (torch.zeros(1, 128, heads, D, dtype=dtype).transpose(1, 2).requires_grad_() for heads in (8, 2, 2))
    out = ops.run(checked(q, k, v, keys, 0, learned.get("alpha"), learned.get("span"), slopes))
    out.sum().backward()


if __name__ == "__main__":
    driver.set_active(Absent())
    jit.JITFunction.run = compile_only(jit.JITFunction.run)
    half, alpha = torch.bfloat16, torch.tensor(1.1, requires_grad=True)
    calls = {
        "offsets": lambda: call(FAR, half), "learned": lambda: call(LearnedOffsets(8, (13, 21, 34)), half, alpha=alpha),
        "table": lambda: call(TABLE, half),
        "float32": lambda: call(Offsets((*range(40), 60), leading=2), torch.float32),
        "soft": lambda: call(SoftWindow(32, 8), half, span=torch.ones(8, requires_grad=True), slopes=torch.ones(8)),
        "by head": lambda: call(HeadOffsets((FAR,) * 8), half, D=80, slopes=torch.ones(8))}
    for name in sys.argv[1:] or calls:
        calls[name]()
