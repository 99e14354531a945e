"""Backend `gpu`: what it says where it cannot run; its kernels interpreted, and compiled for an absent GPU; its plans.

The plans are read as the kernels read them: every pair once, both ways, in the ranges of its block.
"""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import paths
from lib.attention import gpu
from lib.attention.call import checked
from lib.attention.gpu import plans
from lib.patterns import EdgeTable, HeadOffsets, LearnedOffsets, Offsets, expand

has_triton = pytest.mark.skipif(gpu.importlib.util.find_spec("triton") is None, reason="triton exists for Linux only")


def python(*arguments, **variables):
    left_out = "TRITON_INTERPRET", "PYTEST_ADDOPTS"
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    return subprocess.run([sys.executable, *arguments], cwd=paths.ROOT, capture_output=True, text=True,
                          env={**inherited, "PYTHONPATH": str(paths.ROOT), "OMP_NUM_THREADS": "1", **variables})


@has_triton
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_when_kernels_are_interpreted_then_they_are_the_reference(which):
    done = python("-m", "pytest", "-n0", "-m", which, "-p", "no:cacheprovider", "tests/triton_kernels.py",
                  TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " skipped" not in done.stdout and " passed" in done.stdout


@pytest.mark.slow
@has_triton
def test_when_kernels_are_compiled_for_an_h200_then_registers_suffice(tmp_path):
    done = python("tests/triton_kernels.py", TRITON_CACHE_DIR=str(tmp_path))
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

    def supported():
        tensors = [torch.zeros(1, 1, 4, 8, dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.float64)]
        return [gpu.supports(checked(x, x, x, Offsets((0,)), 0, None, None, None)) for x in tensors]
    assert supported() == [True, True, False]                           # tensors on a CPU, in the interpreter alone
    monkeypatch.delenv("TRITON_INTERPRET")
    assert supported() == [False] * 3


def plan_of(keys, T, H=4, G=2, half=True, alpha=None):
    q, k = torch.zeros(1, H, T, 8), torch.zeros(1, G, T, 8)
    return plans.build(checked(q, k, k, keys, 0, alpha, None, None), half)


def listed(plan, T):
    """The key of each query in each column, `[heads, columns, T]`, or -1."""
    if plan.form == plans.TABLE:
        return plan.keys.numpy()
    a, o, first, ahead = np.moveaxis(plan.keys.numpy(), 2, 0)[..., None]
    j = a * np.arange(T) + o
    return np.where((first <= j) & (j < T) & (j <= np.arange(T) + ahead), j, -1)


def assert_whole(keys, T, **how):
    """Every pair is attended once, in the range of its block of queries; each listed one is read once by its key."""
    plan = plan_of(keys, T, **how)
    heads, table, d = len(plan.band_counts), listed(plan, T), np.subtract.outer(np.arange(T), np.arange(T))
    head, column, query = np.nonzero(table >= 0)
    key, counts = table[head, column, query], np.zeros((heads, T, T), int)
    for h in range(heads):
        for nearest, farthest, first in plan.bands[h, :plan.band_counts[h]].tolist():
            counts[h] += (nearest <= d) & (d <= farthest) & (np.arange(T) >= first)
    np.add.at(counts, (head, query, key), 1)
    assert np.array_equal(counts, expand(keys, T, heads).astype(int))
    begin, end = plan.query_ranges.numpy()[head, query // (plan.tiling.BM // plan.tiling.RP)].T
    assert ((begin <= column) & (column < end)).all() and plan.columns % 2 == 0    # the kernels take two at a time
    found, size = [], plan.tiling.KM // plan.tiling.RP
    if plan.form == plans.OFFSETS:
        for h, j in itertools.product(range(heads), range(T)):
            for c in range(*plan.key_ranges[h, j // size].tolist()):
                a, o, first, _ = plan.keys[h, c].tolist()
                if a == 1 and j >= first and 0 <= j - o < T:
                    found.append((h, c, j - o, j))
    if plan.pieces:
        starts, lengths, entries, firsts, places = plan.pieces
        for h, j in itertools.product(range(heads), range(T)):
            for at in range(*firsts[h, j:j + 2].tolist()):
                start, length = (int(x[h, places[at]]) for x in (starts, lengths))
                assert 0 < length <= plans.PIECE
                found += [(h, *entry, j) for entry in entries[start:start + length].tolist()]
        assert (lengths.diff(dim=1) <= 0).all()                 # longest first
    assert sorted(found) == sorted(zip(*(x.tolist() for x in (head, column, query, key)), strict=True))


@st.composite
def offsets(draw):
    causal = draw(st.booleans())
    distances = draw(st.sets(st.integers(0 if causal else -40, 40), max_size=12)) | set(range(draw(st.integers(0, 7))))
    return Offsets(tuple(sorted(distances | {0})), draw(st.integers(0, 5)), causal)


@settings(max_examples=50, deadline=None)
@given(heads=st.lists(offsets(), min_size=1, max_size=2), T=st.integers(1, 70), half=st.booleans(),
       G=st.sampled_from([1, 2]))
def test_when_keys_are_offsets_then_each_pair_is_planned_once_in_both_directions(heads, T, half, G):
    assert_whole(HeadOffsets(tuple(heads)) if len(heads) > 1 else heads[0], T, H=2, G=G, half=half)


@settings(max_examples=20, deadline=None)
@given(T=st.integers(1, 45), window=st.integers(0, 6), seed=st.integers(0, 99), half=st.booleans(),
       heads=st.sampled_from([1, 2]))
def test_when_a_table_holds_a_window_then_it_becomes_a_band_and_nothing_is_lost(T, window, seed, half, heads):
    random = np.random.default_rng(seed)
    mask = random.random((heads, T, T)) < 0.1
    i = np.arange(T)
    mask |= (i[:, None] - i >= 0) & (i[:, None] - i <= window)
    order = np.argsort(~mask, -1, kind="stable").astype(np.int32)
    table = np.where(np.take_along_axis(mask, order, -1), order, -1)
    table = EdgeTable(table if heads > 1 else table[0])
    assert_whole(table, T, H=2, half=half)
    if half and T > window >= 3:
        plan = plan_of(table, T, H=2)
        assert all([0, window] <= band[:2] or band[0] < 0 for band in plan.bands[:, 0].tolist())


def test_when_a_key_has_more_readers_than_a_piece_then_pieces_share_them(monkeypatch):
    monkeypatch.setattr(plans, "PIECE", 4)
    assert_whole(Offsets((0, 3), leading=3), 30)
    assert_whole(EdgeTable(np.stack([np.zeros(30), np.r_[-1, 1:30]], 1).astype(np.int32)), 30)
    plan = plan_of(Offsets((0, 3), leading=3), 30)
    assert plan.pieces[1].max() == 4 and len(plan.pieces[4]) == 8 + 8 + 7       # 30, 29 and 28 readers


@pytest.mark.parametrize(("half", "least"), [(True, 4), (False, 32)])
def test_when_distances_follow_one_another_then_enough_of_them_make_a_band(half, least):
    for n, bands in ((least - 1, 0), (least, 1)):
        plan = plan_of(Offsets((*range(n), 60)), 70, half=half)
        assert int(plan.band_counts) == bands and plan.columns == (2 if bands else n + 1)


def test_when_rungs_are_given_then_blocks_have_those_that_reach_them():
    T, rungs = 45, [[3, 3], [9, 8], [15, 13], [44, 37]]
    plan = plan_of(LearnedOffsets(1, (13, 8, 3, 37)), T, alpha=torch.tensor(1.2))
    assert plan.keys.tolist() == rungs and plan.bands[0].tolist() == [[0, 1, 0]] and plan.columns == 4
    size, key_size = (rows // plan.tiling.RP for rows in (plan.tiling.BM, plan.tiling.KM))
    for at, (lo, _) in enumerate(rungs):
        for i in range(lo, T):
            assert at in range(*plan.query_ranges[0, i // size])
            assert all(at in range(*plan.key_ranges[0, key // key_size]) for key in (i - lo, max(i - lo - 1, 0)))
    assert plan.query_ranges[0, 0, 1] == 3 and plan.key_ranges[0, -1, 1] == 2       # and not all to all


@pytest.mark.parametrize(("H", "G", "D", "R", "RP", "BM"), [
    (8, 2, 64, 4, 4, 64), (8, 8, 64, 1, 1, 64), (6, 2, 64, 3, 4, 64), (7, 1, 64, 1, 1, 64), (8, 1, 128, 4, 4, 64),
    (12, 2, 33, 3, 4, 64), (8, 2, 200, 2, 2, 32), (8, 2, 512, 1, 1, 16)])
def test_when_heads_share_keys_then_as_many_as_fit_lie_side_by_side(H, G, D, R, RP, BM):
    tiles = plans.tiling(H, G, D, by_head=False)
    assert tiles[:2] == (R, RP) and tiles.BM == BM and tiles.DP >= D and tiles.KM // RP >= 16
    assert plans.tiling(H, G, D, by_head=True).R == 1
