"""131,072 tokens on a CPU: forward and backward in memory that grows with the text, not with its square."""

from __future__ import annotations

import resource
import tracemalloc
from contextlib import contextmanager

import numpy as np
import psutil
import pytest
import torch

from lib.attention import sparse_attention
from lib.resources import RESET, PeakMemory
from lib.patterns import build
from lib.patterns.base import EdgeTable

pytestmark = pytest.mark.slow
T, D = 131_072, 16
Q_MIB = T * D * 4 / 2 ** 20
OFFSETS = build("scaled_base", layers=1, heads=1, window=4, rungs=20).plan(0, T)
LEARNED = build("learned", layers=1, heads=1, window=4, rungs=20).plan(0, T)


def table() -> EdgeTable:
    """A window of four and six far keys of each query, which ever further back grow rarer."""
    gaps = np.random.default_rng(0).integers(1, 4 ** np.arange(1, 7) * 4, (T, 6))
    keys = np.arange(T)[:, None] - np.concatenate([np.broadcast_to(np.arange(4), (T, 4)), 3 + gaps.cumsum(1)], axis=1)
    keys = np.sort(np.where(keys < 0, T, keys), axis=1)
    return EdgeTable(np.where(keys == T, -1, keys).astype(np.int32))


@contextmanager
def no_more_than(mib: float):
    """A request for more memory fails; and no more is held at any moment."""
    process, limits = psutil.Process(), resource.getrlimit(resource.RLIMIT_AS)
    before = process.memory_info()
    resource.setrlimit(resource.RLIMIT_AS, (before.vms + 2 ** 31, limits[1]))          # a [T, T] of bits would be 2 GiB
    peak = PeakMemory()
    try:
        yield
        assert peak.mib() - before.rss / 2 ** 20 < mib
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def attend(keys, backend: str, alpha: torch.Tensor | None = None, length: int = T) -> tuple[torch.Tensor, ...]:
    """q, k, v and the attention, after the backward pass of its sum of squares."""
    draws = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, length, D, generator=draws).requires_grad_() for _ in range(3))
    out = sparse_attention(q, k, v, keys, 0, alpha=alpha, backend=backend)
    out.square().sum().backward()
    return q, k, v, out.detach()


@pytest.mark.skipif(not RESET.exists(), reason="this system does not let the peak of memory be measured")
@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("name", ["offsets", "learned", "table"])
def test_when_a_text_is_long_then_memory_is_some_copies_of_the_queries_and_the_values_are_right(name, backend):
    keys = {"offsets": OFFSETS, "learned": LEARNED, "table": table()}[name]
    alpha = torch.tensor(1.03, requires_grad=True) if name == "learned" else None
    short = EdgeTable(np.arange(64, dtype=np.int32)[:, None]) if name == "table" else keys
    attend(short, backend, alpha, length=64)                    # kernels are compiled before memory is measured
    with no_more_than(40 * Q_MIB):
        q, k, v, out = attend(keys, backend, alpha)
    assert all(x.grad.isfinite().all() and x.grad.count_nonzero() > 0.99 * x.numel() for x in (q, k, v))
    if alpha is not None:
        assert alpha.grad.isfinite() and alpha.grad != 0
        return
    for i in (0, 3, 70_001, T - 1):
        at = i - np.array(OFFSETS.distances) if name == "offsets" else keys.keys[i]
        at = torch.from_numpy(at[at >= 0])
        weights = torch.softmax(k[0, 0, at] @ q[0, 0, i] / D ** 0.5, 0)
        torch.testing.assert_close(out[0, 0, i], (weights @ v[0, 0, at]).detach(), rtol=1e-4, atol=1e-5)


def test_when_a_power_law_graph_is_drawn_then_memory_grows_with_its_edges():
    peaks = []
    for length in (1024, 4096):
        tracemalloc.start()
        build("power_law", layers=1, heads=1, window=2, budget=8).plan(0, length)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 5 * peaks[0] and peaks[1] < 4096 ** 2 / 4         # four times the edges; bits of all pairs: 2 MiB
