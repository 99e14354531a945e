"""Backend `gpu`: what it says where it cannot run; its kernels interpreted, and compiled for an absent GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from lib import paths
from lib.attention import gpu
from lib.attention.call import checked
from lib.patterns import Offsets

has_triton = pytest.mark.skipif(gpu.importlib.util.find_spec("triton") is None, reason="triton exists for Linux only")


def python(*arguments, **variables):
    left_out = "TRITON_INTERPRET", "PYTEST_ADDOPTS"
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    return subprocess.run([sys.executable, *arguments], cwd=paths.ROOT, capture_output=True, text=True,
                          env={**inherited, "PYTHONPATH": str(paths.ROOT), "OMP_NUM_THREADS": "1", **variables})


@has_triton
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_when_kernels_are_interpreted_then_they_are_the_reference(which):
    done = python("-m", "pytest", "-n0", "-m", which, "-p", "no:cacheprovider", "tests/interpreted_kernels.py",
                  TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " skipped" not in done.stdout and " passed" in done.stdout


@pytest.mark.slow
@has_triton
def test_when_kernels_are_compiled_for_an_h200_then_registers_suffice(tmp_path):
    done = python("tests/compiled_kernels.py", TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    kernels = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, *_ in kernels} == {"attend", "query_gradients", "piece_sums", "key_gradients"}
    assert len(kernels) == 13
    for name, registers, stack, shared in kernels:
        assert int(registers) < 255 and int(stack) == 0 and int(shared) <= 100 * 1024, name


def test_when_something_is_missing_then_it_is_said_how_to_get_it(monkeypatch):
    """From a machine with triton and an H200, as far as `missing` looks, to one without any."""
    def missing(owner, name, value):
        monkeypatch.setattr(owner, name, lambda *_: value)
        gpu.missing.cache_clear()
        return gpu.missing()
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "the GPU")
    assert missing(torch.cuda, "get_device_capability", (9, 0)) == ""
    old = missing(torch.cuda, "get_device_capability", (7, 5))
    assert "the GPU is too old: compute capability 8.0" in old
    absent = missing(torch.cuda, "is_available", False)
    assert "torch sees no GPU" in absent and "TRITON_INTERPRET=1" in absent
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert missing(torch.cuda, "is_available", False) == ""
    assert "pip install triton==3.7.1" in missing(gpu.importlib.util, "find_spec", None)
    gpu.missing.cache_clear()


def test_when_tensors_are_on_a_cpu_then_only_the_interpreter_supports_them(monkeypatch):
    def call(dtype):
        return checked(*[torch.zeros(1, 1, 4, 8, dtype=dtype)] * 3, Offsets((0,)), 0, None, None, None)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert not gpu.supports(call(torch.float32))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert gpu.supports(call(torch.float32)) and gpu.supports(call(torch.bfloat16))
    assert not gpu.supports(call(torch.float64))
