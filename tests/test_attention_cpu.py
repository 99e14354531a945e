"""Backend `cpu` beyond its numbers: as a function of PyTorch, in threads, and the parts of its kernels."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
import threading

import numba
import numpy as np
import pytest
import torch
from attention_cases import qkv

from lib.attention import cpu, sparse_attention
from lib.attention.cpu.vectors import RowType, exponential, load, store
from lib.errors import SuiteError
from lib.fused.ops import over_threads
from lib.patterns import EdgeTable, LearnedOffsets, Offsets, SoftWindow

torch.set_num_threads(1)
T, FAR = 150, Offsets((0, 1, 2, 5, 13, 50), leading=2)
TABLE = np.stack([np.arange(T) // 3, np.arange(T)], 1).astype(np.int32)
TABLE[0] = 0, -1
KEYS = {"offsets": FAR, "learned": LearnedOffsets(1, (3, 5, 8, 90)), "table": EdgeTable(TABLE),
        "soft": SoftWindow(5, 2)}


def learned(name):
    if name == "learned":
        return {"alpha": torch.tensor(1.1, requires_grad=True)}
    return {"span": torch.tensor([0.5, 1, 2, 4], requires_grad=True)} if name == "soft" else {}


def results(name, call=sparse_attention, **shape):
    data, more = [x.requires_grad_() for x in qkv(**{"B": 2, "T": T, **shape})], learned(name)
    out = call(*data, KEYS[name], backend="cpu", **more)
    return [out, *torch.autograd.grad(out.square().sum(), [*data, *more.values()])]


def same(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", KEYS)
def test_when_a_program_is_compiled_around_the_call_then_values_and_gradients_stay(name):
    def program(q, k, v, keys, **more):
        return sparse_attention(q * 2, k, v, keys, **more) + 1
    assert same(results(name, torch.compile(program, backend="aot_eager")), results(name, program))


def test_when_gradients_are_wanted_or_not_then_weights_are_kept_for_two_readings_or_not_at_all():
    q, k, v = (x.requires_grad_() for x in qkv(2, T=T))
    with torch.no_grad():
        assert sparse_attention(q, k, v, FAR, backend="cpu").grad_fn is None
    out = sparse_attention(q, k, v, FAR, backend="cpu")
    P = out.grad_fn.saved_tensors[5]
    assert P.shape[:2] == (8, 8) and torch.allclose(P[:, :, :T].sum(1), torch.ones(8, T))       # softmax's weights
    first, second = (torch.autograd.grad(out.square().sum(), q, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.fixture
def three_threads():
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("heads", [1, 8])        # fewer key/value heads than threads, and more
@pytest.mark.parametrize("name", ["offsets", "learned", "table"])
def test_when_tasks_are_spread_over_threads_then_every_bit_is_the_same(name, heads, three_threads):
    several = results(name, B=1, H=heads, G=heads)
    torch.set_num_threads(1)
    assert same(several, results(name, B=1, H=heads, G=heads))


def test_when_a_kernel_fails_in_a_thread_then_the_caller_hears_it(three_threads):
    def kernel(begin, end):
        if begin:
            raise ValueError(f"task {begin}")
    with pytest.raises(ValueError, match="task [12]"):
        over_threads(kernel, tasks=3)


def true_in_a_child(statement):
    """Whether a function returns True in a fork of this process, which may spoil what it likes."""
    if not hasattr(os, "fork"):
        pytest.skip("a process cannot be forked here")
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os._exit(0 if statement() else 1)
        os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def test_when_several_threads_or_a_fork_of_the_process_call_then_each_gets_its_own_result(three_threads):
    expected, found = results("offsets"), []
    callers = [threading.Thread(target=lambda: found.append(results("offsets"))) for _ in range(4)]
    for act in (threading.Thread.start, threading.Thread.join):
        for caller in callers:
            act(caller)
    assert len(found) == 4 and all(same(one, expected) for one in found)
    wanted = expected[0].detach()
    assert true_in_a_child(lambda: torch.equal(results("offsets")[0], wanted))      # which has threads of its own


def test_when_a_number_is_nan_then_the_result_says_so_for_its_readers_only():
    q, k, v = qkv(2, T=T)
    k[0, 0, 30, 0] = math.nan
    for name, readers in (("offsets", {30 + d for d in FAR.distances}), ("table", {30, 90, 91, 92})):
        out = sparse_attention(q, k, v, KEYS[name], backend="cpu")
        assert {int(i) for i in out[0, 0].isnan().any(-1).nonzero()} == readers
        assert not out[1].isnan().any() and not out[0, 2:].isnan().any()


def test_when_numba_is_missing_then_auto_says_so_once_and_cpu_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(cpu.importlib.util, "find_spec", lambda name: None)
    q, k, v = qkv(T=400)
    with pytest.raises(SuiteError, match="backend 'cpu' is not available: numba is not installed; pip install numba"):
        sparse_attention(q, k, v, FAR, backend="cpu")
    with pytest.warns(UserWarning, match="without its fast backend 'cpu': numba is not installed"):
        out = sparse_attention(q, k, v, FAR)
    assert torch.equal(out, sparse_attention(q, k, v, FAR, backend="torch"))


def test_when_numba_or_triton_is_not_there_then_the_attention_and_the_formulas_still_import():
    def imports():
        for name in [name for name in sys.modules if name.partition(".")[0] in ("lib", "numba", "triton")]:
            del sys.modules[name]
        sys.modules["numba"] = sys.modules["triton"] = None
        ops, attention, rope = (importlib.import_module(f"lib.{name}") for name in ("fused.ops", "attention", "rope"))
        x = torch.linspace(-3, 3, 120).view(1, 5, 24).requires_grad_()
        q, k, v = rope.heads(ops.rms_norm(x, torch.ones(24), 0.1), rope.turns(5, 6), 2, 1)
        loss = ops.cross_entropy(ops.swiglu(x), torch.eye(12), torch.arange(5)[None]) + (q * k + v).sum()
        x.grad, = torch.autograd.grad(loss, x)
        return ops.kernels is None and bool(x.grad.isfinite().all()) and "pip install" in attention.gpu.missing()
    assert true_in_a_child(imports)


@numba.njit
def exponentials(x, out):
    for n in range(len(x)):
        out[n] = exponential(x[n])


def test_when_exponentials_are_taken_then_they_are_right_to_two_units_in_the_last_place():
    x = -np.geomspace(1e-8, 86.9, 200_001).astype(np.float32)
    out = np.empty_like(x)
    exponentials(x, out)
    assert np.abs(out / np.exp(x.astype(np.float64)) - 1).max() < 2 * 2 ** -23
    ends = np.array([0, -87.1, -np.inf, np.nan], np.float32)
    exponentials(ends, out)
    assert out[:3].tolist() == [1, 0, 0] and np.isnan(out[3])


@numba.njit
def rounding(source_row, target_row, source, target, count):
    for n in range(count):
        store(target_row, target + n * target_row.nbytes, load(source_row, source + n * source_row.nbytes))


def test_when_numbers_are_stored_in_bfloat16_then_they_are_rounded_as_pytorch_does():
    bits = torch.randint(-2 ** 31, 2 ** 31 - 1, (4096, 16), generator=torch.Generator().manual_seed(0)).int()
    halves = [0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7F800001, -1, 1]
    bits[0, :8] = torch.tensor(halves).int()         # ties, the largest number, infinity, NaNs
    numbers, stored = bits.view(torch.float32), torch.empty(4096, 16, dtype=torch.bfloat16)
    rounding(RowType(16, "float32"), RowType(16, "bfloat16"), numbers.data_ptr(), stored.data_ptr(), 4096)
    expected = numbers.bfloat16()
    assert torch.equal(stored.isnan(), expected.isnan())
    assert torch.equal(stored.nan_to_num(0), expected.nan_to_num(0))
    again = torch.empty(4096, 16)
    rounding(RowType(16, "bfloat16"), RowType(16, "float32"), stored.data_ptr(), again.data_ptr(), 4096)
    assert torch.equal(again.nan_to_num(0), stored.float().nan_to_num(0))


def test_when_a_file_of_the_kernels_changes_then_compiled_ones_are_not_found_in_the_cache():
    assert RowType(16, "float32") != RowType(16, "float32", "another stamp")
