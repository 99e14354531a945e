"""The Triton kernels through Triton's interpreter, on CPU tensors, against the reference in float64.

Run by tests/test_attention_gpu.py in a process of its own, as TRITON_INTERPRET=1 must be set before triton is imported,
and changes what other tests of the process would see.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_cases import FORMS, LEARNED, alibi, assert_close, inputs, run

from lib import patterns
from lib.attention import sparse_attention
from lib.attention.call import CACHE
from lib.attention.gpu import ops, plans
from lib.errors import SuiteError
from lib.patterns import EdgeTable, LearnedOffsets, Offsets

# Of the output, of gradients, and of those of alpha and span, long sums of terms with both signs. Float32: a dozen
# roundings of sums of a few dozen terms. Half precision: outputs are rounded to 8 (11) bits, and gradients follow.
TOLERANCE = {torch.float32: (1e-5, 1e-5, 1e-5), torch.bfloat16: (2 ** -8, 2 ** -6, 2 ** -5),
             torch.float16: (2 ** -11, 2 ** -9, 2 ** -8)}
FAR, SHAPE = FORMS["far"], (1, 4, 2, 35, 4)


def assert_agrees(keys, shape=SHAPE, dtype=torch.float32, layer=0, seed=0, **learned):
    """keys: a form's name, or keys."""
    if isinstance(keys, str):
        learned, keys = LEARNED.get(keys, {}) | learned, FORMS[keys]
    CACHE.clear()                       # plans that were made with other numbers of `plans`
    data = inputs(*shape, seed, dtype)
    expected = run(data, keys, "reference", torch.float64, layer, **learned)
    assert_close(run(data, keys, "gpu", dtype, layer, **learned), expected, *TOLERANCE[dtype])


def small(H=4, G=2, T=20, D=8):
    return [x.float() for x in inputs(1, H, G, T, D, dtype=torch.float32)]


@pytest.mark.parametrize("name", ["leading and a window", "learned", "table", "soft"])
def test_when_keys_are_of_a_kind_then_values_and_gradients_are_those_of_the_reference(name):
    assert_agrees(name, (1, 4, 1, 35 if name == "table" else 20, 4), slopes=alibi(4))       # two blocks of 16 queries


def test_when_gradients_are_differentiated_then_it_is_refused():
    q, k, v, _ = (x.requires_grad_() for x in small(1, 1, 9, 4))
    with pytest.raises(SuiteError, match="create_graph = True.*first derivatives only"):
        torch.autograd.grad(sparse_attention(q, k, v, FAR, backend="gpu").sum(), q, create_graph=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_when_keys_have_a_form_then_values_and_gradients_are_those_of_the_reference(name, dtype):
    B, half = 2 if name in ("window and far", "learned") else 1, dtype == torch.bfloat16
    shape = (B, 4, 1, 21, 7) if half and "table" not in name else (B, 4, 2, 35, 7)      # two blocks of 16 or 32 queries
    assert_agrees(name, shape, dtype, slopes=alibi(4) if half else None)


WINDOWS = [sorted({*range(max(0, i - 3), i + 1), *(j for j in row if j >= 0)}) for i, row in
           enumerate(FORMS["table"].keys)]              # a window in every row: the plan finds it
WINDOWS = EdgeTable(np.array([row + [-1] * (11 - len(row)) for row in WINDOWS], np.int32))


@pytest.mark.slow
@pytest.mark.parametrize("keys", ["window and far", "leading and a window", "windows both ways", "by head", "learned",
                                  pytest.param(WINDOWS, id="table")])
def test_when_bands_are_short_then_float32_takes_them_exactly(keys, monkeypatch):
    monkeypatch.setitem(plans.BAND, False, 2)
    assert_agrees(keys, (1, 4, 4, 35, 16), slopes=alibi(4))


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "options"), [
    # T small or a block: no key is lost
    *((name, {"shape": (1, 4, 2, T, 5), "dtype": torch.float16, "seed": T}) for T in (1, 16, 17)
      for name in ("window and far", "both ways", "learned", "soft")),
    # three heads a key/value head (a row in four is empty), five (one at a time), eight (two units of four), one; large
    *((Offsets((*range(5), 11), leading=1), {"shape": (1, H, G, 17, D), "dtype": torch.bfloat16})
      for H, G, D in ((3, 1, 9), (5, 1, 4), (8, 1, 3), (2, 2, 1), (2, 1, 130), (2, 1, 260))),
    # alpha at an end, and whole distances
    *((LearnedOffsets(1, (2, 4, 8, 16)), {"shape": (2, 2, 1, 23, 4), "alpha": alpha, "slopes": alibi(2)})
      for alpha in (1.0, 0.5, 1.5)),
    # a layer of a pattern
    (patterns.build("scaled_base", window=2, rungs=6, schedule="linear", layers=4, heads=4),
     {"shape": (1, 4, 2, 27, 4), "layer": 3})])
def test_when_shapes_are_odd_then_the_result_is_that_of_the_reference(keys, options):
    assert_agrees(keys, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "G"), [("table", 2), ("table by head", 4), ("odd leading", 1)])
def test_when_a_key_has_many_readers_then_its_list_is_cut_into_pieces(name, G, monkeypatch):
    monkeypatch.setattr(plans, "PIECE", 3)
    assert_agrees(name, (1, 4, G, 35, 4))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["leading and a window", "learned", "table"])
def test_when_tensors_are_huge_then_offsets_of_64_bits_find_the_same_rows(name, monkeypatch):
    monkeypatch.setattr(ops, "REACH", 0)
    assert_agrees(name, dtype=torch.bfloat16)


# In the second case the nearer distance 7 is that of base 13, then that of base 10
@pytest.mark.slow
@pytest.mark.parametrize(("T", "keys", "alphas"), [(30, LearnedOffsets(0, (5, 6, 13)), (1.0, 1.01, 0.62, 1.4)),
                                                   (9, LearnedOffsets(5, (10, 13)), (0.54, 0.72))])
def test_when_alpha_moves_then_the_plan_follows(T, keys, alphas):
    for alpha in alphas:
        assert_agrees(keys, (1, 2, 1, T, 4), alpha=alpha)


@pytest.mark.slow
def test_when_autocast_is_on_then_inputs_of_any_dtype_give_its_dtype_and_gradients_of_their_own():
    q, k, v, _ = (x.requires_grad_() for x in small())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = sparse_attention(q, k.bfloat16(), v, FAR, backend="gpu")
    assert out.dtype == torch.bfloat16 and torch.autograd.grad(out.float().sum(), k)[0].dtype == torch.float32
    assert (out.float() - sparse_attention(q, k, v, FAR, backend="reference")).abs().max() < 0.05


@pytest.mark.slow
def test_when_numbers_lie_in_another_order_then_they_are_read_right_and_results_keep_the_order():
    q, k, v, _ = small(2, 1)
    expected = sparse_attention(q, k, v, FAR, backend="gpu")
    assert expected.transpose(1, 2).is_contiguous()
    contiguous = sparse_attention(*(x.contiguous() for x in (q, k, v)), FAR, backend="gpu")
    assert contiguous.is_contiguous() and torch.equal(contiguous, expected)
    assert torch.equal(sparse_attention(*(x.mT.contiguous().mT for x in (q, k, v)), FAR, backend="gpu"), expected)
    q.requires_grad_()
    gradients = [torch.autograd.grad(sparse_attention(q, k, v, FORMS["odd leading"], backend="gpu"), q, dout)[0]
                 for dout in (torch.ones(()).expand(q.shape), torch.ones(q.shape))]     # numbers that repeat in memory
    assert torch.equal(*gradients)                                                      # and bits that repeat
