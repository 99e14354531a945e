"""Choice of a backend, errors, caches, memory: all of the attention call but its numbers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lib import attention, patterns
from lib.attention import BACKENDS, sparse_attention
from lib.attention.call import CACHE, cached, checked
from lib.attention.pytorch import dots, dots_by_column
from lib.errors import SuiteError
from lib.patterns import EdgeTable, HeadOffsets, LearnedOffsets, Offsets, SoftWindow

torch.set_num_threads(1)
FAR = Offsets((0, 1, 2, 5, 13, 50))


def qkv(B=1, H=4, G=2, T=20, D=8, dtype=torch.float32):
    random = torch.Generator().manual_seed(0)
    return [torch.randn(B, heads, T, D, generator=random, dtype=dtype) for heads in (H, G, G)]


class Largest(TorchDispatchMode):
    """The most elements that any tensor made under it has."""
    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor) and x.layout == torch.strided:
                self.elements = max(self.elements, x.numel())
        return out


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("kind", ["offsets", "edges", "learned"])
def test_when_t_is_65536_then_nothing_as_large_as_all_pairs_or_gathered_keys_is_made(kind, backend):
    T, D = 65_536, 16
    q, k, v = (x.requires_grad_() for x in qkv(H=1, G=1, T=T, D=D))
    ladder = (1, 2, 3, 5, 8, 13, 987, 10_946)
    table = np.stack([np.arange(T) // 2, np.arange(T)], 1).astype(np.int32)
    table[0] = 0, -1
    keys = {"offsets": Offsets((0, *ladder)), "learned": LearnedOffsets(0, ladder), "edges": EdgeTable(table)}[kind]
    learned = {"alpha": torch.tensor(1.1, requires_grad=True)} if kind == "learned" else {}
    with Largest() as seen:
        sparse_attention(q, k, v, keys, backend=backend, **learned).sum().backward()
    assert q.grad.isfinite().all()
    assert seen.elements <= T * 18           # C + R columns at most, or D; [T, C, D] would be 128, [T, T] 65,536 wide


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_when_keys_number_more_than_16_bits_then_each_still_gets_its_own_gradient(backend):
    T = 70_000
    v = torch.arange(T, dtype=torch.float64).view(1, 1, T, 1).requires_grad_()
    backwards = EdgeTable(np.arange(T, dtype=np.int32)[::-1, None])
    out = sparse_attention(torch.ones_like(v), torch.ones_like(v), v, backwards, backend=backend)
    assert torch.equal(out, v.flip(2))
    gradient, = torch.autograd.grad(out, v, v.detach().clone())
    assert torch.equal(gradient, v.flip(2))


@pytest.mark.parametrize("backend", ["cpu", "torch", "masked"])
def test_when_the_same_call_is_made_twice_then_every_bit_is_the_same(backend):
    data = [x.requires_grad_() for x in qkv(T=200)]
    results = []
    for _ in range(2):
        out = sparse_attention(*data, FAR, backend=backend)
        results.append([out, *torch.autograd.grad(out.square().sum(), data)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(("keys", "learned"), [(FAR, {}), (LearnedOffsets(1, (4,)), {"alpha": torch.tensor(1.0)})])
def test_when_gradients_are_differentiated_again_then_it_is_refused_not_taken_for_constant(keys, learned):
    q, k, v = (x.requires_grad_() for x in qkv())
    out = sparse_attention(q, k, v, keys, backend="torch", **learned)
    with pytest.raises(SuiteError, match="create_graph = True.*first derivatives only"):
        torch.autograd.grad(out.sum(), q, create_graph=True)


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
    class Item:
        def __init__(self, megabytes):
            self.nbytes = megabytes * 2 ** 20
    made = []

    def get(key, megabytes):
        return cached(key, lambda: made.append(key) or Item(megabytes))
    CACHE.clear()
    first = get("a", 100)
    get("b", 100)
    assert get("a", 100) is first                 # now b is the oldest
    get("c", 100)
    assert get("a", 100) is first and made == ["a", "b", "c"] and set(CACHE) == {"a", "c"}
    huge = get("huge", 10 ** 4)
    assert set(CACHE) == {"huge"} and get("huge", 10 ** 4) is huge
    get("d", 1)
    assert set(CACHE) == {"d"}
    assert cached("d", lambda: Item(2), "new").nbytes == 2 ** 21 and len(CACHE) == 1


def chosen(pattern, T, B=1, H=4, dtype=torch.float32, **learned):
    q, k, v = qkv(B=B, H=H, T=T, dtype=dtype)
    given = {"alpha": None, "span": None, "slopes": None} | learned
    return attention.choose(checked(q, k, v, pattern, 0, **given))


@pytest.fixture
def without_numba(monkeypatch):
    monkeypatch.setattr(type(BACKENDS["cpu"]), "missing", lambda self: "numba was left out")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def test_when_auto_chooses_then_few_pairs_and_dense_patterns_go_to_sdpa_and_all_else_to_kernels():
    assert chosen(FAR, 512) == "cpu"
    assert chosen(FAR, 64) == "masked" and chosen(FAR, 128) == "cpu" and chosen(FAR, 64, B=8) == "cpu"
    assert chosen(FAR, 16, dtype=torch.bfloat16) == "cpu"
    assert chosen(FAR, 512, dtype=torch.float16) == "torch"
    assert chosen(Offsets(tuple(range(511))), 512) == "cpu"
    assert chosen(LearnedOffsets(2, (5,)), 8, alpha=torch.tensor(1.0)) == "cpu"
    assert chosen(patterns.build("dense"), 512) == "masked"
    assert chosen(patterns.build("dense"), 512, slopes=torch.ones(4)) == "cpu"


def test_when_there_is_no_numba_then_few_keys_go_to_torch_and_many_keys_or_few_pairs_to_a_mask(without_numba):
    assert chosen(FAR, 512) == "torch"
    assert chosen(FAR, 32) == "masked"
    assert chosen(FAR, 32, B=128) == "torch"
    assert chosen(Offsets(tuple(range(200))), 512) == "torch" and chosen(Offsets(tuple(range(300))), 512) == "masked"
    assert chosen(Offsets((0,), leading=300), 512) == "masked"
    assert chosen(HeadOffsets((FAR, FAR, FAR, Offsets(tuple(range(300))))), 512) == "masked"
    assert chosen(SoftWindow(20, 4), 512, span=torch.ones(4)) == "torch"
    assert chosen(EdgeTable(np.arange(512, dtype=np.int32)[:, None]), 512) == "torch"
    assert chosen(LearnedOffsets(2, (5,)), 8, alpha=torch.tensor(1.0)) == "torch"
    assert chosen(patterns.build("dense"), 512) == "masked"


@pytest.mark.parametrize("causal", [True, False])
def test_when_the_pattern_is_dense_then_no_mask_is_made(causal):
    data = qkv(T=64)
    CACHE.clear()
    out = sparse_attention(*data, patterns.build("dense", causal=causal))
    full = torch.nn.functional.scaled_dot_product_attention(*data, is_causal=causal, enable_gqa=True)
    assert torch.equal(out, full) and not CACHE


def test_when_a_backend_is_added_to_the_registry_then_it_is_used_by_name(monkeypatch):
    class Zero:
        lacks = ""

        def missing(self):
            return self.lacks

        def supports(self, call):
            return not isinstance(call.keys, EdgeTable)

        def __call__(self, call):
            return torch.zeros_like(call.q)
    monkeypatch.setitem(BACKENDS, "zero", Zero())
    q, k, v = qkv()
    assert not sparse_attention(q, k, v, FAR, backend="zero").any()
    with pytest.raises(SuiteError, match="'zero' cannot do EdgeTable in torch.float32 on cpu; use one of: auto, refer"):
        sparse_attention(q, k, v, EdgeTable(np.zeros((20, 1), np.int32)), backend="zero")
    monkeypatch.setattr(Zero, "lacks", "no abacus; buy one")
    with pytest.raises(SuiteError, match="backend 'zero' is not available: no abacus; buy one"):
        sparse_attention(q, k, v, FAR, backend="zero")


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
ONE = torch.tensor(1.0)
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
    "alpha unused": (dict(alpha=ONE), "alpha = .*not learned"),
    "span missing": (dict(pattern=SoftWindow(4, 2)), "span = None"),
    "span shape": (dict(pattern=SoftWindow(4, 2), span=torch.ones(2)), r"span = \(2,\).*\(4,\)"),
    "span too short": (dict(pattern=SoftWindow(4, 2), span=torch.tensor([0, 1, -2.0, 3])), "span = -2.0.*above -ramp"),
    "span unused": (dict(span=torch.ones(4)), "span = .*no soft span"),
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
MALFORMED = [([0, 20], "keys 0 to 20"), ([-2, 0], "keys -2 to"), ([3, 3], "ascend"), ([-1, 3], "ascend")]
EMPTY = {"offsets": Offsets((3,)), "table": EdgeTable(np.where(np.arange(20)[:, None] == 7, -1, 0).astype(np.int32)),
         "head": HeadOffsets((FAR, FAR, Offsets((1,)), FAR))}


@pytest.mark.parametrize("name", ERRORS)
def test_when_a_call_does_not_fit_then_the_error_names_what_and_how(name):
    given, message = ERRORS[name]
    with pytest.raises(SuiteError, match=message):
        sparse_attention(**({"q": X, "k": KV, "v": KV, "pattern": FAR} | given))


@pytest.mark.parametrize("backend", ["reference", "masked", "torch", "cpu"])
@pytest.mark.parametrize("name", EMPTY)
def test_when_a_query_has_no_key_then_it_is_refused_by_number_instead_of_not_a_number(name, backend):
    with pytest.raises(SuiteError, match=f"query {7 if name == 'table' else 0} attends no key"):
        sparse_attention(X, KV, KV, EMPTY[name], backend=backend)


@pytest.mark.parametrize("backend", ["reference", "masked", "torch", "cpu"])
@pytest.mark.parametrize(("row", "message"), MALFORMED)
def test_when_a_table_of_edges_is_malformed_then_it_is_refused(row, message, backend):
    with pytest.raises(SuiteError, match=message):
        sparse_attention(X, KV, KV, EdgeTable(np.array([row] * 20, np.int32)), backend=backend)


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_when_distances_repeat_then_they_are_refused_as_a_key_would_count_twice(backend):
    with pytest.raises(SuiteError, match="without repeats"):
        sparse_attention(X, KV, KV, Offsets((0, 1, 1)), backend=backend)
