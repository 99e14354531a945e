"""Choice of a backend, errors, caches, memory: all of the attention call but its numbers."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from attention_cases import FAR, REFUSED, qkv
from torch.utils._python_dispatch import TorchDispatchMode

from lib import attention, patterns
from lib.attention import BACKENDS, sparse_attention
from lib.attention.call import CACHE, cached, checked
from lib.attention.gpu import plans
from lib.attention.pytorch import dots, dots_by_column
from lib.errors import SuiteError
from lib.patterns import EdgeTable, HeadOffsets, LearnedOffsets, Offsets, SoftWindow

torch.set_num_threads(1)


class Largest(TorchDispatchMode):
    """The most elements that any tensor made under it has."""
    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor) and x.layout == torch.strided:
                self.elements = max(self.elements, x.numel())
        return out


T, LADDER = 131_072, (0, 1, 2, 3, 5, 8, 13, 987, 10_946)
I = np.arange(T)[:, None]
HALVES = np.where(I > 0, np.hstack([(T - I) // 2, T - 1 - I // 3]), (0, T - 1)).astype(np.int32)      # past and future
LONG = {"offsets": (Offsets(LADDER), np.where(I >= LADDER, I - LADDER, -1)), "edges": (EdgeTable(HALVES), HALVES),
        "learned": (LearnedOffsets(0, LADDER[1:]), None)}


def gathered(q, k, v, index):
    """Attention of `[T, D]` over the keys of an index `[T, C]`; -1: none."""
    at = torch.from_numpy(index).clamp(min=0)
    scores = (q[:, None] * k[at]).sum(-1) / q.shape[1] ** 0.5
    return (scores.masked_fill(torch.from_numpy(index) < 0, -torch.inf).softmax(-1)[..., None] * v[at]).sum(1)


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("kind", LONG)
def test_when_t_is_131072_then_results_are_right_and_nothing_as_large_as_all_pairs_or_gathered_keys_is_made(kind,
                                                                                                        backend):
    (keys, index), data = LONG[kind], [x.requires_grad_() for x in qkv(H=1, G=1, T=T, D=16)]
    learned = {"alpha": torch.tensor(1.1, requires_grad=True)} if kind == "learned" else {}
    tracemalloc.start()
    with Largest() as seen:
        out = sparse_attention(*data, keys, backend=backend, **learned)
        found = torch.autograd.grad(out.square().sum(), [*data, *learned.values()])
    assert tracemalloc.get_traced_memory()[1] < 40 * data[0].nbytes     # numpy's arrays: plans
    tracemalloc.stop()
    assert seen.elements <= T * 18          # C + R columns at most, or D; [T, C, D] would be 128, [T, T] 131,072 wide
    assert all(x.isfinite().all() and x.count_nonzero() > 0.6 * x.numel() for x in found)
    if index is not None:
        rows = [x.detach()[0, 0].requires_grad_() for x in data]
        expected = gathered(*rows, index)
        torch.testing.assert_close(out[0, 0], expected, rtol=1e-4, atol=1e-5)
        for a, b in zip(found, torch.autograd.grad(expected.square().sum(), rows), strict=True):
            torch.testing.assert_close(a[0, 0], b, rtol=1e-4, atol=1e-4)


def test_when_a_plan_is_kept_then_another_length_layer_slope_or_head_count_does_not_get_it():
    pattern = patterns.build("local", window=(1, 2, 3), layers=3)
    calls = [(5, 0, 4, None), (9, 0, 4, None), (9, 2, 4, None), (9, 2, 2, None), (9, 2, 4, 0.5), (9, 2, 4, 0.25),
             (5, 0, 4, None)]
    CACHE.clear()
    for T, layer, H, slope in calls:
        data = qkv(H=H, T=T)
        slopes = None if slope is None else torch.full((H,), slope)
        expected = sparse_attention(*data, pattern, layer, slopes=slopes, backend="reference")
        for backend in ("torch", "masked"):
            found = sparse_attention(*data, pattern, layer, slopes=slopes, backend=backend)
            assert (found - expected).abs().max() < 1e-5, (T, layer, H, slope, backend)


def test_when_alpha_moves_a_rung_then_the_plan_is_made_anew_and_otherwise_kept():
    q, k, v = qkv(T=40)
    built = []
    CACHE.clear()
    for alpha in (1.0, 1.01, 1.2, 1.0):
        call = {"alpha": torch.tensor(alpha), "pattern": LearnedOffsets(1, (4, 8))}
        expected = sparse_attention(q, k, v, backend="reference", **call)
        assert (sparse_attention(q, k, v, backend="torch", **call) - expected).abs().max() < 1e-5
        built.append(next(iter(CACHE.values()))[1])
    assert len(CACHE) == 1
    assert [a is b for a, b in zip(built, built[1:], strict=False)] == [True, False, False]


def test_when_the_cache_is_full_then_the_oldest_goes_and_the_newest_stays():
    def get(key, megabytes, version=None):
        return cached(key, lambda: SimpleNamespace(nbytes=megabytes * 2 ** 20), version)
    CACHE.clear()
    first, _ = get("a", 100), get("b", 100)
    assert get("a", 100) is first                 # now b is the oldest
    get("c", 100)
    assert set(CACHE) == {"a", "c"} and get("a", 100) is first
    huge = get("huge", 10 ** 4)
    assert set(CACHE) == {"huge"} and get("huge", 1) is huge
    assert get("huge", 1, "another version").nbytes == 2 ** 20 and len(CACHE) == 1


def chosen(pattern, T, B=1, dtype=torch.float32, **learned):
    given = {"alpha": None, "span": None, "slopes": None} | learned
    return attention.choose(checked(*qkv(B=B, T=T, dtype=dtype), pattern, 0, **given))


ONE = torch.tensor(1.0)
CHOICES = [         # pattern, T, further arguments; with numba, without
    (FAR, 512, {}, "cpu", "torch"), (FAR, 32, {}, "masked", "masked"), (FAR, 64, {}, "masked", "masked"),
    (FAR, 128, {}, "cpu", "masked"), (FAR, 64, {"B": 8}, "cpu", "torch"), (FAR, 32, {"B": 128}, "cpu", "torch"),
    (FAR, 16, {"dtype": torch.bfloat16}, "cpu", "masked"), (FAR, 512, {"dtype": torch.float16}, "torch", "torch"),
    (Offsets(tuple(range(511))), 512, {}, "cpu", "masked"), (Offsets(tuple(range(200))), 512, {}, "cpu", "torch"),
    (Offsets((0,), leading=300), 512, {}, "cpu", "masked"),
    (HeadOffsets((FAR, FAR, FAR, Offsets(tuple(range(300))))), 512, {}, "cpu", "masked"),
    (SoftWindow(20, 4), 512, {"span": torch.ones(4)}, "cpu", "torch"),
    (EdgeTable(np.arange(512, dtype=np.int32)[:, None]), 512, {}, "cpu", "torch"),
    (LearnedOffsets(2, (5,)), 8, {"alpha": ONE}, "cpu", "torch"),
    (patterns.build("dense"), 512, {}, "masked", "masked"),
    (patterns.build("dense"), 512, {"slopes": torch.ones(4)}, "cpu", "masked")]


@pytest.mark.filterwarnings("ignore:attention without its fast backend")
def test_when_auto_chooses_then_few_pairs_and_dense_patterns_go_to_sdpa_and_all_else_to_kernels(monkeypatch):
    assert [chosen(pattern, T, **more) for pattern, T, more, *_ in CHOICES] == [there for *_, there, _ in CHOICES]
    monkeypatch.setitem(BACKENDS, "cpu", BACKENDS["cpu"]._replace(missing=lambda: "numba was left out"))
    assert [chosen(pattern, T, **more) for pattern, T, more, *_ in CHOICES] == [gone for *_, gone in CHOICES]


@pytest.mark.parametrize("causal", [True, False])
def test_when_the_pattern_is_dense_then_no_mask_is_made(causal):
    data = qkv(T=64)
    CACHE.clear()
    out = sparse_attention(*data, patterns.build("dense", causal=causal))
    full = torch.nn.functional.scaled_dot_product_attention(*data, is_causal=causal, enable_gqa=True)
    assert torch.equal(out, full) and not CACHE


def test_when_an_accelerator_has_no_sampled_product_then_columns_one_by_one_give_the_same():
    random = torch.Generator().manual_seed(0)
    a, b, into = (torch.randn(n, 6, generator=random, dtype=torch.float64) for n in (40, 30, 40))
    index = torch.randint(30, (40, 6), generator=random, dtype=torch.int32)
    starts = torch.arange(41, dtype=torch.int32) * 6
    expected = into + 0.5 * torch.einsum("nd,ncd->nc", a, b[index.long()])
    assert (dots(starts, index, a, b, into.clone(), 0.5) - expected).abs().max() < 1e-12
    assert (dots_by_column(index, a, b, into.clone(), 0.5) - expected).abs().max() < 1e-12


X = torch.zeros(1, 4, 20, 8)
KV = torch.zeros(1, 2, 20, 8)
TABLE = np.zeros((20, 1), np.int32)
ERRORS = {
    "three dimensions": (dict(q=X[0]), r"q = \(4, 20, 8\).*four dimensions"),
    "integers": (dict(q=X.long()), "q = torch.int64.*floating"),
    "dtypes": (dict(k=KV.double()), "k = torch.float64.*dtype of q, torch.float32"),
    "no token": (dict(q=X[:, :, :0], k=KV[:, :, :0], v=KV[:, :, :0]), "q = .*at least 1"),
    "v unlike k": (dict(v=KV[:, :1]), "v = .*shape of k"),
    "length": (dict(k=KV[:, :, :19], v=KV[:, :, :19]), r"k = .*\[1, G, 20, 8\]"),
    "groups": (dict(q=X[:, :3]), "k = .*divisor of the 3 query heads"),
    "no pattern": (dict(pattern="local"), "pattern = 'str'"),
    "layer": (dict(pattern=patterns.build("local"), layer=1), "layer = 1"),
    "alpha missing": (dict(pattern=LearnedOffsets(1, (4,))), "alpha = None"),
    "alpha shape": (dict(pattern=LearnedOffsets(1, (4,)), alpha=torch.ones(1)), r"alpha = \(1,\)"),
    "alpha range": (dict(pattern=LearnedOffsets(1, (4,)), alpha=ONE * float("nan")), "alpha = nan.*0.5 to 1.5"),
    "alpha unused": (dict(alpha=ONE), r"alpha = .*learns none"),
    "span missing": (dict(pattern=SoftWindow(4, 2)), "span = None"),
    "span shape": (dict(pattern=SoftWindow(4, 2), span=torch.ones(2)), r"span = \(2,\).*\(4,\)"),
    "span too short": (dict(pattern=SoftWindow(4, 2), span=torch.tensor([0, 1, -2.0, 3])), "span = -2.0.*above -ramp"),
    "span unused": (dict(span=torch.ones(4)), "span = .*learns none"),
    "slopes shape": (dict(slopes=torch.ones(3)), r"slopes = \(3,\)"),
    "slopes learned": (dict(slopes=torch.ones(4, requires_grad=True)), "slopes = 'requires_grad'"),
    "head count": (dict(pattern=HeadOffsets((FAR, FAR))), r"pattern\.heads = 2.*query heads, 4"),
    "table length": (dict(pattern=EdgeTable(TABLE[:19])), r"edge table \(19, 1\).*T = 20"),
    "table heads": (dict(pattern=EdgeTable(np.stack([TABLE] * 3))), r"pattern\.heads = 3"),
    "backend": (dict(backend="torhc"), "unknown backend 'torhc'; did you mean 'torch'"),
}
ERRORS["interpolated keys in a mask"] = (
    dict(pattern=LearnedOffsets(1, (4,)), alpha=ONE, backend="masked"),
    "'masked' cannot do LearnedOffsets in torch.float32 on cpu; use one of: auto, reference")


@pytest.mark.parametrize("name", ERRORS)
def test_when_a_call_does_not_fit_then_the_error_names_what_and_how(name):
    given, message = ERRORS[name]
    with pytest.raises(SuiteError, match=message):
        sparse_attention(**({"q": X, "k": KV, "v": KV, "pattern": FAR} | given))


@pytest.mark.parametrize("name", REFUSED)
def test_when_keys_are_malformed_or_leave_a_query_without_any_then_they_are_refused(name):
    keys, message = REFUSED[name]
    masks = [] if name == "a key twice" else ["reference", "masked"]            # a mask holds it once
    for backend in ("torch", "cpu", *masks):
        with pytest.raises(SuiteError, match=message):
            sparse_attention(X, KV, KV, keys, backend=backend)
    with pytest.raises(SuiteError, match=message):                      # before any kernel of a GPU runs
        plans.build(checked(X, KV, KV, keys, 0, None, None, None), half=True)
