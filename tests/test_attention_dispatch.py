"""Choice of a backend, errors, caches, memory, threads: all of the attention call but its numbers."""

import importlib
import math
import sys
import threading
import tracemalloc
from types import SimpleNamespace

import numba
import numpy as np
import pytest
import torch
from attention_cases import FAR, REFUSED, qkv, true_in_a_child
from torch.utils._python_dispatch import TorchDispatchMode

from lib import attention, patterns
from lib.attention import BACKENDS, cpu, sparse_attention
from lib.attention.call import CACHE, cached, checked
from lib.attention.cpu.vectors import RowType, load, store
from lib.attention.gpu import plans
from lib.attention.pytorch import dots, dots_by_column
from lib.errors import SuiteError
from lib.fused.ops import over_threads
from lib.patterns import EdgeTable, HeadOffsets, LearnedOffsets, Offsets, SoftWindow


class Largest(TorchDispatchMode):
    """The most elements that any tensor made under it has."""
    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor) and x.layout == torch.strided:
                self.elements = max(self.elements, x.numel())
        return out


LONGEST, LADDER = 131_072, (0, 1, 2, 3, 5, 8, 13, 987, 10_946)
I = np.arange(LONGEST)[:, None]
HALVES = np.hstack([(LONGEST - I) // 2, LONGEST - 1 - I // 3]).astype(np.int32)                  # past and future
HALVES[0] = 0, LONGEST - 1
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
    (keys, index), data = LONG[kind], [x.requires_grad_() for x in qkv(H=1, G=1, T=LONGEST, D=16)]
    learned = {"alpha": torch.tensor(1.1, requires_grad=True)} if kind == "learned" else {}
    tracemalloc.start()
    with Largest() as seen:
        out = sparse_attention(*data, keys, backend=backend, **learned)
        found = torch.autograd.grad(out.square().sum(), [*data, *learned.values()])
    assert tracemalloc.get_traced_memory()[1] < 40 * data[0].nbytes     # numpy's arrays: plans
    tracemalloc.stop()
    assert seen.elements <= LONGEST * 18    # C + R columns at most, or D; [T, C, D] would be 128, [T, T] 131,072 wide
    assert all(x.isfinite().all() and x.count_nonzero() > 0.6 * x.numel() for x in found)
    if index is not None:
        rows = [x.detach()[0, 0].requires_grad_() for x in data]
        expected = gathered(*rows, index)
        torch.testing.assert_close(out[0, 0], expected, rtol=1e-4, atol=1e-5)
        for a, b in zip(found, torch.autograd.grad(expected.square().sum(), rows), strict=True):
            torch.testing.assert_close(a[0, 0], b, rtol=1e-4, atol=1e-4)


def test_when_a_plan_is_kept_then_another_length_layer_slope_head_count_or_rung_does_not_get_it():
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
    (q, k, v), built = qkv(T=40), []                                # a plan of rungs, until alpha moves one
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


# Backend `cpu`: as a function of PyTorch, in threads, and the parts of its kernels

T = 150
THIRDS = np.stack([np.arange(T) // 3, np.arange(T)], 1).astype(np.int32)
THIRDS[0] = 0, -1
KEYS = {"offsets": Offsets((0, 1, 2, 5, 13, 50), leading=2), "learned": LearnedOffsets(1, (3, 5, 8, 90)),
        "table": EdgeTable(THIRDS), "soft": SoftWindow(5, 2)}


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
    assert P.shape[:2] == (8, 6) and torch.allclose(P[:, :, :T].sum(1), torch.ones(8, T))       # softmax's weights
    first, second = (torch.autograd.grad(out.square().sum(), q, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("heads", [1, 8])        # fewer key/value heads than threads, and more
@pytest.mark.parametrize("name", ["offsets", "learned", "table"])
def test_when_tasks_are_spread_over_threads_then_every_bit_is_the_same(name, heads, three_threads):
    several = results(name, B=1, H=heads, G=heads)
    torch.set_num_threads(1)
    assert same(several, results(name, B=1, H=heads, G=heads))


def test_when_several_threads_or_a_fork_of_the_process_call_then_each_gets_its_own_result_or_error(three_threads):
    expected, found = results("offsets"), []
    callers = [threading.Thread(target=lambda: found.append(results("offsets"))) for _ in range(4)]
    for act in (threading.Thread.start, threading.Thread.join):
        for caller in callers:
            act(caller)
    assert len(found) == 4 and all(same(one, expected) for one in found)

    def kernel(begin, end):
        if begin:
            raise ValueError(f"task {begin}")
    with pytest.raises(ValueError, match="task [12]"):              # the caller hears an error in a thread
        over_threads(kernel, tasks=3)
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
