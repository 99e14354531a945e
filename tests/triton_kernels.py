"""The Triton kernels: as tests interpreted on CPU tensors, against the reference in float64; as a program compiled for
an H200 (sm_90) without any GPU, as the interpreter takes much that the compiler refuses.

Run by tests/test_attention_gpu.py, each in its own process: TRITON_INTERPRET=1 must be set before triton is imported,
and both change what other tests of the process would see.
"""

import os
import re
import subprocess
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
import test_attention as every_backend
import torch
import triton
from attention_cases import FORMS, LEARNED, alibi, assert_close, inputs, run
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from lib import patterns
from lib.attention.call import CACHE, checked
from lib.attention.gpu import ops, plans
from lib.patterns import EdgeTable, HeadOffsets, LearnedOffsets, Offsets

# Of the output, of gradients, and of those of alpha and span, long sums of terms with both signs. Float32: a dozen
# roundings of sums of a few dozen terms. Half precision: outputs are rounded to 8 (11) bits, and gradients follow.
TOLERANCE = {torch.float32: (1e-5, 1e-5, 1e-5), torch.bfloat16: (2 ** -8, 2 ** -6, 2 ** -5),
             torch.float16: (2 ** -11, 2 ** -9, 2 ** -8)}


def assert_agrees(keys, shape=(1, 4, 2, 35, 4), dtype=torch.float32, layer=0, seed=0, **learned):
    """keys: a form's name, or keys."""
    if isinstance(keys, str):
        learned, keys = LEARNED.get(keys, {}) | learned, FORMS[keys]
    CACHE.clear()                       # plans that were made with other numbers of `plans`
    data = inputs(*shape, seed, dtype)
    expected = run(data, keys, "reference", torch.float64, layer, **learned)
    assert_close(run(data, keys, "gpu", dtype, layer, **learned), expected, *TOLERANCE[dtype])


QUICK = "leading and a window", "learned", "table", "soft"


@pytest.mark.parametrize(("name", "dtype"), [
    pytest.param(name, dtype, marks=[] if name in QUICK and dtype == torch.float32 else pytest.mark.slow)
    for name in FORMS for dtype in (torch.float32, torch.bfloat16)])
def test_when_keys_have_a_form_then_values_and_gradients_are_those_of_the_reference(name, dtype):
    B, half = 2 if name == "window and far" else 1, dtype == torch.bfloat16
    shape = (B, 4, 1, 21, 7) if half and "table" not in name else (B, 4, 2, 35, 7)      # two blocks of 16 or 32 queries
    assert_agrees(name, shape, dtype, slopes=alibi(4) if half or name in QUICK else None)


WINDOWS = [sorted({*range(max(0, i - 3), i + 1), *(j for j in row if j >= 0)}) for i, row in
           enumerate(FORMS["table"].keys)]              # a window in every row: the plan finds it
WINDOWS = EdgeTable(np.array([row + [-1] * (11 - len(row)) for row in WINDOWS], np.int32))


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "options"), [
    # T small or a block: no key is lost
    *((name, {"shape": (1, 4, 2, T, 5), "dtype": torch.float16, "seed": T}) for T in (1, 16, 17)
      for name in ("window and far", "both ways", "learned", "soft")),
    # three heads a key/value head (a row in four is empty), five (one at a time), eight (two units of four), one; large
    *((Offsets((*range(5), 11), leading=1), {"shape": (1, H, G, 17, D), "dtype": torch.bfloat16})
      for H, G, D in ((3, 1, 9), (5, 1, 4), (8, 1, 3), (2, 2, 1), (2, 1, 130), (2, 1, 260))),
    # alpha at an end, and whole distances; elsewhere; the nearer distance 7 is that of base 13, then that of base 10
    *((LearnedOffsets(1, (2, 4, 8, 16)), {"shape": (2, 2, 1, 23, 4), "alpha": alpha, "slopes": alibi(2)})
      for alpha in (1.0, 0.5, 1.5)),
    *((LearnedOffsets(0, (5, 6, 13)), {"shape": (1, 2, 1, 30, 4), "alpha": alpha}) for alpha in (1.01, 0.62, 1.4)),
    *((LearnedOffsets(5, (10, 13)), {"shape": (1, 2, 1, 9, 4), "alpha": alpha}) for alpha in (0.54, 0.72)),
    # a layer of a pattern
    (patterns.build("scaled_base", window=2, rungs=6, schedule="linear", layers=4, heads=4),
     {"shape": (1, 4, 2, 27, 4), "layer": 3})])
def test_when_shapes_are_odd_then_the_result_is_that_of_the_reference(keys, options):
    assert_agrees(keys, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "constant", "value", "keys", "options"), [
    # float32 takes short bands exactly
    *((plans, "BAND", {True: 4, False: 2}, keys, {"shape": (1, 4, 4, 35, 16), "slopes": alibi(4)})
      for keys in ("window and far", "leading and a window", "windows both ways", "by head", "learned", WINDOWS)),
    # the list of a key with many readers is cut into pieces
    *((plans, "PIECE", 3, name, {"shape": (1, 4, G, 35, 4)})
      for name, G in (("table", 2), ("table by head", 4), ("odd leading", 1))),
    # huge tensors: offsets of 64 bits find the same rows
    *((ops, "REACH", 0, name, {"dtype": torch.bfloat16}) for name in ("leading and a window", "learned", "table"))])
def test_when_a_limit_is_low_then_the_result_is_that_of_the_reference(
        owner, constant, value, keys, options, monkeypatch):
    monkeypatch.setattr(owner, constant, value)
    assert_agrees(keys, **options)


@pytest.mark.slow
@pytest.mark.parametrize("test, shape", [
    (every_backend.test_when_autocast_is_on_then_the_result_is_in_its_dtype_and_mixed_inputs_are_taken, {"T": 20}),
    (every_backend.test_when_numbers_lie_in_another_order_then_the_result_is_the_same_and_keeps_the_order_of_q, {})])
def test_when_a_test_is_of_any_backend_then_this_one_passes_it(test, shape):
    test("gpu", **shape)


# Compiled without a GPU

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
    """Calls without their launch. Prints name, registers, bytes of stack (0 if they suffice) and of shared memory."""
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
