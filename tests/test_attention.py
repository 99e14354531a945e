"""Every backend on every pattern against the reference in float64: values, and gradients of q, k, v, alpha and span."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from attention_cases import FORMS, LEARNED, alibi, assert_close, inputs, run

from lib import patterns
from lib.attention import BACKENDS, pytorch, sparse_attention
from lib.patterns import EdgeTable, LearnedOffsets, Offsets

FAST = [name for name, backend in BACKENDS.items() if name != "reference" and not backend.missing()]
# A dozen roundings in sums of some dozen terms; of bfloat16 the rounding of the result, as sums are in float32.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10, torch.bfloat16: 2 ** -8}


def assert_agrees(keys, data, layer=0, backends=FAST, dtypes=tuple(TOLERANCE), **learned):
    """Size of alpha's gradient: a term of either sign a query, times each rung's base distance."""
    expected = run(data, keys, "reference", torch.float64, layer, **learned)
    plan = keys.plan(layer, data[0].shape[2]) if isinstance(keys, patterns.Pattern) else keys
    size = sum(plan.base) * math.sqrt(data[0].shape[:3].numel()) if isinstance(plan, LearnedOffsets) else 1.0
    for backend, dtype in itertools.product(backends, dtypes):
        # SDPA has no interpolated keys, and in bfloat16 it rounds weights and scores too
        if backend != "masked" or dtype != torch.bfloat16 and not isinstance(plan, LearnedOffsets):
            found = run(data, keys, backend, dtype, layer, **learned)
            assert_close(found, expected, TOLERANCE[dtype], size_of_learned=size)


EXAMPLES = [pytest.param(pattern, id=f"{name}-{n}") for name in patterns.names()
            for n, pattern in enumerate(patterns.pattern_class(name).examples())]


@pytest.mark.parametrize("pattern", EXAMPLES)
def test_when_a_pattern_is_attended_then_every_backend_agrees_with_the_rule(pattern):
    H = pattern.heads if pattern.heads > 1 else 4
    for at, T in enumerate((1, 2, 7, 33, 100, 257)):        # none of them a multiple of a block
        G = [g for g in (1, 2, H) if H % g == 0][at % (2 if H == 2 else 3)]
        learned = {"alpha": {"alpha": (1.0, 0.73, 1.5)[at % 3]}, "span": {"span": [0.6 * h * T % 7 for h in range(H)]}}
        chosen, slopes = learned.get(pattern.learned, {}), alibi(H) if at % 2 else None
        assert_agrees(pattern, inputs(2, H, G, T, seed=at), at % pattern.layers, slopes=slopes, **chosen)


@pytest.mark.parametrize("rows", [1, 40, 300])     # single units, part of the heads, several batch elements with a rest
@pytest.mark.parametrize("name", FORMS)
def test_when_a_call_is_cut_into_steps_then_no_form_loses_a_pair(name, rows, monkeypatch):
    monkeypatch.setattr(pytorch, "ROWS", rows)
    T = 35 if "table" in name else 19
    slopes = alibi(4) if rows == 40 else None
    assert_agrees(FORMS[name], inputs(5, 4, 2, T), 0, ["torch"], slopes=slopes, **LEARNED.get(name, {}))


# Kernels are compiled for 16, 32, 48 or 64 numbers: 80 are five times 16, 144 three times 48, 33 are filled up to 48.
@pytest.mark.parametrize(("head_size", "dtypes"), [
    (1, tuple(TOLERANCE)), (16, tuple(TOLERANCE)), (80, tuple(TOLERANCE)), (64, (torch.float32,)),
    *(pytest.param(size, tuple(TOLERANCE), marks=pytest.mark.slow) for size in (32, 33, 64, 144))])
def test_when_heads_have_any_size_then_every_form_of_keys_agrees(head_size, dtypes):
    for at, (name, keys) in enumerate(FORMS.items()):
        T = 35 if "table" in name else 70
        data = inputs(2, 4, (1, 2, 4)[at % 3], T, head_size, seed=at)
        assert_agrees(keys, data, dtypes=dtypes, slopes=alibi(4) if at % 2 else None, **LEARNED.get(name, {}))


def softmax_by_hand(q, keys, values):
    terms = [math.exp(float(q @ key) / math.sqrt(len(q))) for key in keys]
    return sum(term * value for term, value in zip(terms, values, strict=True)) / sum(terms)


def test_when_the_reference_attends_then_it_is_a_softmax_over_the_keys_of_the_rule():
    q, k, v, _ = inputs(1, 2, 1, 9)
    table = np.sort(np.where((d := np.arange(9)[:, None] - np.arange(4)) < 0, 9, d), 1)
    for keys in (patterns.build("local", window=3), Offsets((0, 1, 2, 3)), EdgeTable(np.where(table == 9, -1, table))):
        out = sparse_attention(q, k, v, keys, backend="reference").numpy()
        for h, i in np.ndindex(2, 9):
            near = slice(max(0, i - 3), i + 1)
            expected = softmax_by_hand(q[0, h, i].numpy(), k[0, 0, near].numpy(), v[0, 0, near].numpy())
            assert np.abs(out[0, h, i] - expected).max() < 1e-12


@pytest.mark.parametrize("alpha", [1.0, 0.6, 1.5, 1.37])
def test_when_alpha_is_learned_then_the_reference_blends_keys_and_values_as_the_design_says(alpha):
    W, base, T = 2, (1, 2, 3, 5, 6, 8, 13), 15         # at 0.6 the rungs 5 and 6 fall between the same two keys
    data = inputs(1, 1, 1, T)[:3]
    given = torch.tensor(alpha, dtype=torch.float64)
    out = sparse_attention(*data, LearnedOffsets(W, base), alpha=given, backend="reference").numpy()
    q, k, v = (x[0, 0].numpy() for x in data)
    rungs = {}
    for f in base:
        lo, t = int(alpha * f), alpha * f - int(alpha * f)
        if W < lo < T and lo not in rungs:
            rungs[lo] = t
    for i in range(T):
        blend = [[(1 - t) * x[i - lo] + t * x[max(0, i - lo - 1)] for lo, t in rungs.items() if lo <= i]
                 for x in (k, v)]
        near = [j for j in range(T) if 0 <= i - j <= W]
        expected = softmax_by_hand(q[i], [*k[near], *blend[0]], [*v[near], *blend[1]])
        assert np.abs(out[0, 0, i] - expected).max() < 1e-12, i


def test_when_alpha_is_an_integer_then_its_gradient_is_the_slope_to_the_right():
    random = torch.Generator().manual_seed(0)           # always the same: a slope that is not near 0
    keys = LearnedOffsets(1, (4, 8))
    data = [torch.randn(1, heads, 30, 7, generator=random).double() for heads in (2, 1, 1, 2)]
    gradient = run(data, keys, "reference", torch.float64, alpha=1.0)[4]
    still, near, far = (sparse_attention(*data[:3], keys, alpha=torch.tensor(1 + a * 1e-5, dtype=torch.float64),
                                         backend="reference") for a in (0, 1, 2))
    slope = float(((4 * near - 3 * still - far) * data[3]).sum()) / 2e-5            # of second order, from one side
    assert abs(slope) > 1 and abs(float(gradient) - slope) < 1e-5 * abs(slope)


@pytest.mark.parametrize("backend", ["reference", *FAST])
def test_when_autocast_is_on_then_the_result_is_in_its_dtype_and_mixed_inputs_are_taken(backend):
    q, k, v, _ = (x.float().requires_grad_() for x in inputs(2, 4, 2, 50))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = sparse_attention(q, k.bfloat16(), v, FORMS["far"], backend=backend)
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16 and q.grad.dtype == k.grad.dtype == torch.float32
    expected = sparse_attention(q, k, v, FORMS["far"], backend="reference")
    assert (out.float() - expected).abs().max() < 0.05


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_when_heads_lie_between_tokens_in_memory_then_the_result_is_the_same_and_keeps_that_order(backend):
    data = inputs(2, 4, 2, 33)
    results = (run(x, FORMS["far"], backend, torch.float64) for x in (data, [x.contiguous() for x in data]))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert sparse_attention(*data[:3], FORMS["far"], backend=backend).transpose(1, 2).is_contiguous()
