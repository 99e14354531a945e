"""The Triton kernels through Triton's interpreter, on CPU tensors, against the reference in float64.

Run by tests/test_attention_gpu.py in a process of its own, as TRITON_INTERPRET=1 must be set before triton is imported, and
changes what other tests of the process would see.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lib import attention, patterns
from lib.attention import sparse_attention
from lib.attention.call import CACHE, checked
from lib.attention.gpu import Gpu, ops, plans
from lib.errors import SuiteError
from lib.patterns import (EdgeTable, HeadOffsets, LearnedOffsets, Offsets,
                          SoftWindow)

torch.set_num_threads(1)
# Of the output, of gradients, and of those of alpha and span, long sums of terms with both signs. Float32: a dozen roundings of
# sums of a few dozen terms. Half precision: outputs are rounded to 8 (11) bits, gradients follow from the rounded output.
TOLERANCE = {torch.float32: (1e-5, 1e-5, 1e-5), torch.bfloat16: (2 ** -8, 2 ** -6, 2 ** -5),
             torch.float16: (2 ** -11, 2 ** -9, 2 ** -8)}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(attention.BACKENDS, "gpu", Gpu())
    CACHE.clear()


def inputs(B, H, G, T, D, dtype, seed):
    """q, k, v and the gradient of the output, in numbers that `dtype` holds, float64; laid out as the model's are."""
    random = torch.Generator().manual_seed(seed)
    whole = torch.randn(B, T, H + 2 * G, D, generator=random).to(dtype).double()
    q, k, v = (x.transpose(1, 2) for x in whole.split([H, G, G], dim=2))
    return q, k, v, torch.randn(B, T, H, D, generator=random).to(dtype).double().transpose(1, 2)


def run(data, keys, backend, dtype, layer=0, slopes=None, **learned):
    """Output and gradients: of q, k, v, and of alpha or span (float32 there, as in a model)."""
    q, k, v, dout = (x.to(dtype) for x in data)
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    learned = {name: torch.tensor(value, dtype=torch.float32).to(kind).requires_grad_() for name, value in learned.items()}
    wanted = [x.requires_grad_() for x in (q, k, v)] + list(learned.values())
    out = sparse_attention(q, k, v, keys, layer, slopes=slopes, backend=backend, **learned)
    return [out.detach(), *torch.autograd.grad(out, wanted, dout, allow_unused=True, materialize_grads=True)]


def assert_agrees(keys, shape, dtype=torch.float32, layer=0, seed=0, **learned):
    B, H, G, T, D = shape
    data = inputs(B, H, G, T, D, dtype, seed)
    expected = run([x.detach() for x in data], keys, "reference", torch.float64, layer, **learned)
    found = run([x.detach() for x in data], keys, "gpu", dtype, layer, **learned)
    for name, a, b in zip(("out", "dq", "dk", "dv", "dlearned"), found, expected, strict=False):
        assert a.isfinite().all(), name
        error = float((a.double() - b).abs().max()) / max(1.0, float(b.abs().max()))
        assert error < TOLERANCE[dtype][{"out": 0, "dlearned": 2}.get(name, 1)], f"{name}: {error:.1e}"


def alibi(H):
    return torch.tensor([2.0 ** -(1 + h) for h in range(H)])


def random_table(H, T, C, seed=0):
    """1 to C random keys a query, past and future; every query reads key 3 too."""
    random = np.random.default_rng(seed)
    table = np.full((H, T, C + 1), -1, np.int32)
    for h in range(H):
        for i in range(T):
            chosen = np.union1d(random.choice(T, random.integers(1, min(C, T) + 1), replace=False), [3])
            table[h, i, :len(chosen)] = chosen
    return table


FORMS = {
    "far": Offsets((0, 1, 2, 5, 13, 22, 400)),
    "window and far": Offsets((*range(6), 9, 17, 30)),
    "odd leading": Offsets((0, 3, 8), leading=5),
    "leading and a window": Offsets((*range(7), 19), leading=3),
    "only leading": Offsets((), leading=3),
    "both ways": Offsets((-30, -5, -1, 0, 3, 8), leading=4, causal=False),
    "windows both ways": Offsets((-21, -20, -19, -18, *range(-2, 3), 25), causal=False),
    "future only": Offsets((-2, 0)),                       # causal: the key ahead does not exist
    "by head": HeadOffsets((Offsets((0, 1)), Offsets((0, 2, 4), leading=1), Offsets((*range(5), 11)),
                            Offsets((0, 5, 6, 7), leading=3))),
    "soft": SoftWindow(6, 3),
    "learned": LearnedOffsets(2, (1, 2, 3, 5, 8, 13, 21, 34)),
    "learned, in any order": LearnedOffsets(0, (21, 3, 8)),
    "learned without rungs": LearnedOffsets(9, (1, 2, 3)),
    "table": EdgeTable(random_table(1, 35, 5)[0]),
    "table by head": EdgeTable(random_table(4, 35, 5)),
}
LEARNED = {"soft": {"span": [0.0, 1.5, -1.25, 4.0]}, "learned": {"alpha": 1.21}, "learned, in any order": {"alpha": 0.71},
           "learned without rungs": {"alpha": 0.9}}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_when_keys_have_a_form_then_values_and_gradients_are_those_of_the_reference(name, dtype):
    B, half = 2 if name in ("window and far", "learned") else 1, dtype == torch.bfloat16
    shape = (B, 4, 1, 21, 7) if half and "table" not in name else (B, 4, 2, 35, 7)         # two blocks of 16 or 32 queries
    assert_agrees(FORMS[name], shape, dtype, slopes=alibi(4) if half else None, **LEARNED.get(name, {}))


BANDED = ["window and far", "leading and a window", "windows both ways", "by head", "learned", "table"]


@pytest.mark.parametrize("name", BANDED)
def test_when_bands_are_short_then_float32_takes_them_exactly(name, monkeypatch):
    monkeypatch.setitem(plans.BAND, False, 2)
    keys = FORMS[name]
    if name == "table":             # a window in every row: the plan finds it
        table = FORMS["table"].keys
        rows = [sorted({*range(max(0, i - 3), i + 1), *(j for j in table[i] if j >= 0)}) for i in range(35)]
        keys = EdgeTable(np.array([row + [-1] * (10 - len(row)) for row in rows], np.int32))
    assert_agrees(keys, (1, 4, 4, 35, 16), slopes=alibi(4), **LEARNED.get(name, {}))


@pytest.mark.parametrize("T", [1, 16, 17])
@pytest.mark.parametrize("name", ["window and far", "both ways", "learned", "soft"])
def test_when_t_is_small_or_a_block_then_no_key_is_lost(name, T):
    assert_agrees(FORMS[name], (1, 4, 2, T, 5), torch.float16, seed=T, **LEARNED.get(name, {}))


# H and G: three heads a key/value head (a row in four is empty), five (one at a time), eight (two units of four), one
@pytest.mark.parametrize(("H", "G", "D"), [(3, 1, 9), (5, 1, 4), (8, 1, 3), (2, 2, 1), (2, 1, 130), (2, 1, 260)])
def test_when_heads_share_keys_or_are_large_then_the_result_is_the_same(H, G, D):
    assert_agrees(Offsets((*range(5), 11), leading=1), (1, H, G, 17, D), torch.bfloat16)


def test_when_a_key_has_many_readers_then_its_list_is_cut_into_pieces(monkeypatch):
    monkeypatch.setattr(plans, "PIECE", 3)
    assert_agrees(FORMS["table"], (1, 4, 2, 35, 4))
    assert_agrees(FORMS["table by head"], (1, 4, 4, 35, 4))
    assert_agrees(FORMS["odd leading"], (1, 4, 1, 35, 4))


@pytest.mark.parametrize("name", ["leading and a window", "learned", "table"])
def test_when_tensors_are_huge_then_offsets_of_64_bits_find_the_same_rows(name, monkeypatch):
    monkeypatch.setattr(ops, "REACH", 0)
    assert_agrees(FORMS[name], (1, 4, 2, 35, 4), torch.bfloat16, **LEARNED.get(name, {}))


@pytest.mark.parametrize("alpha", [1.0, 0.5, 1.5])
def test_when_alpha_is_at_an_end_or_distances_are_integers_then_its_gradient_is_right(alpha):
    assert_agrees(LearnedOffsets(1, (2, 4, 8, 16)), (2, 2, 1, 23, 4), alpha=alpha, slopes=alibi(2))


# In the second case the nearer distance 7 is that of base 13, then that of base 10
@pytest.mark.parametrize(("T", "keys", "alphas"), [(30, LearnedOffsets(0, (5, 6, 13)), (1.0, 1.01, 0.62, 1.4)),
                                                   (9, LearnedOffsets(5, (10, 13)), (0.54, 0.72))])
def test_when_alpha_moves_then_the_plan_follows(T, keys, alphas):
    q, k, v, _ = (x.float() for x in inputs(1, 2, 1, T, 4, torch.float32, 0))
    for alpha in alphas:
        expected = sparse_attention(q, k, v, keys, alpha=torch.tensor(alpha), backend="reference")
        found = sparse_attention(q, k, v, keys, alpha=torch.tensor(alpha), backend="gpu")
        assert (found - expected).abs().max() < 1e-5, alpha


def test_when_a_pattern_is_given_then_its_layer_counts():
    pattern = patterns.build("scaled_base", window=2, rungs=6, schedule="linear", layers=4, heads=4)
    for layer in (0, 3):
        assert_agrees(pattern, (1, 4, 2, 27, 4), layer=layer)


def test_when_autocast_is_on_then_inputs_of_any_dtype_give_its_dtype_and_gradients_of_their_own():
    q, k, v, _ = (x.float().detach().requires_grad_() for x in inputs(1, 4, 2, 20, 8, torch.float32, 0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = sparse_attention(q, k.bfloat16(), v, FORMS["far"], backend="gpu")
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16 and q.grad.dtype == k.grad.dtype == torch.float32
    assert (out.float() - sparse_attention(q, k, v, FORMS["far"], backend="reference")).abs().max() < 0.05


def test_when_heads_lie_between_tokens_then_so_they_do_in_results():
    q, k, v, dout = (x.float().detach() for x in inputs(1, 4, 2, 20, 8, torch.float32, 0))
    out = sparse_attention(q, k, v, FORMS["far"], backend="gpu")
    assert out.transpose(1, 2).is_contiguous()
    assert sparse_attention(*(x.contiguous() for x in (q, k, v)), FORMS["far"], backend="gpu").is_contiguous()


def test_when_numbers_of_a_row_lie_apart_or_repeat_then_they_are_still_read_right():
    q, k, v, _ = (x.float().detach() for x in inputs(1, 2, 1, 20, 8, torch.float32, 0))
    apart = [x.mT.contiguous().mT for x in (q, k, v)]
    expected = sparse_attention(q, k, v, FORMS["far"], backend="gpu")
    assert torch.equal(sparse_attention(*apart, FORMS["far"], backend="gpu"), expected)
    q.requires_grad_()
    gradients = [torch.autograd.grad(sparse_attention(q, k, v, FORMS["far"], backend="gpu"), q, dout)[0]
                 for dout in (torch.ones(()).expand(q.shape), torch.ones(q.shape))]
    assert torch.equal(*gradients)


def test_when_the_same_call_is_made_twice_then_every_bit_is_the_same():
    data = [x.detach() for x in inputs(1, 4, 2, 35, 8, torch.float32, 0)]
    first, second = (run(data, FORMS["table"], "gpu", torch.float32) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def op_arguments(name, T=9):
    q, k, v, dout = (x.float().detach() for x in inputs(1, 4, 4, T, 4, torch.float32, 0))
    learned = {key: torch.tensor(value, requires_grad=True) for key, value in LEARNED.get(name, {}).items()}
    call = checked(*(x.requires_grad_() for x in (q, k, v)), FORMS[name], 0, learned.get("alpha"), learned.get("span"), None)
    rungs = ((3, 3), (6, 5)) if name == "learned" else ()
    plan = plans.build(call, False, rungs)
    return q, k, v, call.alpha, call.span, None, plan.tensors(), plan.numbers(), 3, dout


@pytest.mark.parametrize("name", ["odd leading", "soft", "learned"])
def test_when_the_operators_are_checked_by_torch_then_they_pass(name):
    *given, dout = op_arguments(name)
    torch.library.opcheck(ops.forward, given)
    out, lse = ops.forward(*given)
    q, k, v, alpha, span = (None if x is None else x.detach() for x in given[:5])
    torch.library.opcheck(ops.backward, (q, k, v, alpha, span, None, out.detach(), lse.detach(), dout, *given[6:]))


def test_when_a_compiler_traces_the_operator_then_values_and_gradients_stay():
    *given, dout = op_arguments("odd leading")
    q = given[0]
    compiled = torch.compile(lambda q: ops.forward(q, *given[1:])[0] * 2, backend="aot_eager", fullgraph=True)
    found, expected = compiled(q), ops.forward(*given)[0] * 2
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(out, q, dout)[0] for out in (found, expected)))


def test_when_gradients_are_differentiated_or_mapped_then_it_is_refused():
    q, k, v, _ = (x.float().detach().requires_grad_() for x in inputs(2, 2, 1, 9, 4, torch.float32, 0))
    out = sparse_attention(q, k, v, FORMS["far"], backend="gpu")
    with pytest.raises(SuiteError, match="create_graph = True.*first derivatives only"):
        torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(SuiteError, match="vmap over backend 'gpu'"):
        torch.vmap(lambda q: sparse_attention(q[None], k[:1], v[:1], FORMS["far"], backend="gpu"))(q.detach())


@pytest.mark.parametrize(("keys", "message"), [
    (Offsets((3,)), "query 0 attends no key"), (Offsets((-3, -2), causal=False), "query 18 attends no key"),
    (HeadOffsets((Offsets((0,)), Offsets((1,)))), "query 0 attends no key"), (Offsets((0, 1, 1)), "without repeats"),
    (EdgeTable(np.where(np.arange(20)[:, None] == 7, -1, 0).astype(np.int32)), "query 7 attends no key"),
    (EdgeTable(np.array([[3, 3]] * 20, np.int32)), "ascend")])
def test_when_keys_are_wrong_then_they_are_refused_before_any_kernel_runs(keys, message):
    q, k, v, _ = (x.float() for x in inputs(1, 2, 1, 20, 4, torch.float32, 0))
    with pytest.raises(SuiteError, match=message):
        sparse_attention(q, k, v, keys, backend="gpu")


def test_when_inputs_are_float64_then_other_backends_are_named():
    q, k, v, _ = inputs(1, 2, 1, 20, 4, torch.float32, 0)
    with pytest.raises(SuiteError, match="backend 'gpu' cannot do"):
        sparse_attention(q, k, v, FORMS["far"], backend="gpu")
