"""Every backend on every pattern against the reference in float64: values, and gradients of q, k, v, alpha and span."""

import itertools
import math

import numpy as np
import pytest
import torch
from attention_cases import EXAMPLES, FORMS, LEARNED, alibi, assert_close, inputs, qkv, run

from lib import patterns
from lib.attention import BACKENDS, pytorch, sparse_attention
from lib.attention.blurred import blurred_attention
from lib.patterns import LearnedOffsets

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


@pytest.mark.parametrize("backend", ["reference", *FAST])
def test_when_autocast_is_on_then_the_result_is_in_its_dtype_and_mixed_inputs_are_taken(backend, T=50):
    q, k, v = (x.requires_grad_() for x in qkv(2, T=T))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = sparse_attention(q, k.bfloat16(), v, FORMS["far"], backend=backend)
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16 and q.grad.dtype == k.grad.dtype == torch.float32
    expected = sparse_attention(q, k, v, FORMS["far"], backend="reference")
    assert (out.float() - expected).abs().max() < 0.05


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_when_numbers_lie_in_another_order_then_the_result_is_the_same_and_keeps_the_order_of_q(backend):
    data, results = qkv(2, H=2, G=1), []                            # heads lie between tokens
    orders = data, [x.contiguous() for x in data], [x.mT.contiguous().mT for x in data]
    one = torch.ones(())
    for order, dout in itertools.product(orders, (one.expand(2, 2, 20, 8), one.repeat(2, 2, 20, 8))):
        q, k, v = (x.detach().requires_grad_() for x in order)
        out = sparse_attention(q, k, v, FORMS["odd leading"], backend=backend)
        results.append([out, *torch.autograd.grad(out, (q, k, v), dout)])
        assert order is orders[2] or out.stride() == q.stride()
    for found in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found, results[0], strict=True))


# Rungs between tokens

KEYS = LearnedOffsets(2, (1, 2, 3, 5, 6, 8, 13, 21))       # at alpha = 0.6, 5 and 6 have the same floor


def by_loops(q, k, v, keys, alpha, half_width):
    """The definition, query by query, rung by rung, token by token."""
    B, H, T, D = q.shape
    out = torch.zeros_like(q)
    for b, h, i in np.ndindex(B, H, T):
        K, V = k[b, h // (H // k.shape[1]), :i + 1], v[b, h // (H // k.shape[1]), :i + 1]
        kept, seen = [(K[i - d], V[i - d]) for d in range(min(keys.window, i) + 1)], set()
        for f in keys.base:
            lo = math.floor(float(alpha.detach()) * f)
            if lo > keys.window and lo not in seen and i >= lo:
                w = torch.stack([(1 - abs(i - j - alpha * f) / half_width).clamp(min=0) for j in range(i + 1)])
                kept.append((w @ K / w.sum(), w @ V / w.sum()))
            seen.add(lo)
        p = torch.softmax(torch.stack([q[b, h, i] @ key for key, _ in kept]) / math.sqrt(D), 0)
        out[b, h, i] = p @ torch.stack([value for _, value in kept])
    return out


@pytest.mark.parametrize("alpha, half_width", [(0.6, 1), (0.93, 1), (1.0, 1), (1.5, 1), (1.21, 2.6), (1.0, 4.0)])
def test_when_rungs_are_plain_or_blurred_then_values_and_gradients_are_those_of_the_definition(alpha, half_width):
    random = torch.Generator().manual_seed(0)
    *qkv, side = (torch.randn(2, heads, 21, 3, generator=random, dtype=torch.float64) for heads in (4, 2, 2, 4))
    *qkv, learned = (x.requires_grad_() for x in (*qkv, torch.tensor(alpha, dtype=torch.float64)))
    right = learned + 1e-9                  # where a rung has a corner: the derivative to the right of it
    theirs = by_loops(*qkv, KEYS, right, half_width)
    ours = [blurred_attention(*qkv, KEYS, learned, half_width)]
    if half_width == 1:                     # the plain blend of `learned`
        ours.append(sparse_attention(*qkv, KEYS, alpha=learned, backend="reference"))
    for out in ours:
        torch.testing.assert_close(out, theirs, rtol=1e-6, atol=1e-6)
        gradients = [torch.autograd.grad((x * side).sum(), [*qkv, learned], retain_graph=True) for x in (out, theirs)]
        torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)
