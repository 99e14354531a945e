"""Every backend on every pattern against the reference in float64: values, and gradients of q, k, v, alpha and span.

Inputs are drawn anew in every run; a failure names its seed, and TEST_SEED=seed draws the same again.
"""

from __future__ import annotations

import itertools
import math
import os
import secrets

import numpy as np
import pytest
import torch

from lib import patterns
from lib.attention import BACKENDS, sparse_attention
from lib.attention.call import checked
from lib.attention.pytorch import plans
from lib.patterns import (EdgeTable, HeadOffsets, LearnedOffsets, Offsets,
                          SoftWindow)

torch.set_num_threads(1)
SEED = int(os.environ.get("TEST_SEED", secrets.randbelow(2 ** 31)))
FAST = [name for name, backend in BACKENDS.items() if name != "reference" and not backend.missing()]
LENGTHS = (1, 2, 7, 33, 100, 257)        # none of them a multiple of a block
# A dozen roundings in sums of some dozen terms; of bfloat16 the rounding of the result, as sums are in float32.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10, torch.bfloat16: 2 ** -8}
D = 7


def inputs(B, H, G, T, seed=0, head_size=D):
    """q, k, v and the gradient of the output: numbers that bfloat16 holds exactly, in float64."""
    random = torch.Generator().manual_seed(SEED + seed)
    return [torch.randn(B, heads, T, head_size, generator=random).bfloat16().double() for heads in (H, G, G, H)]


def run(data, keys, backend, dtype, layer=0, **learned):
    """Output and gradients: of q, k, v, and of alpha or span, which are float32 unless all is float64."""
    q, k, v, dout = (x.to(dtype, copy=True) for x in data)
    slopes, own = learned.pop("slopes", None), torch.float64 if dtype == torch.float64 else torch.float32
    learned = {name: torch.tensor(value, dtype=own, requires_grad=True) for name, value in learned.items()}
    wanted = [x.requires_grad_() for x in (q, k, v)] + list(learned.values())
    out = sparse_attention(q, k, v, keys, layer, slopes=slopes, backend=backend, **learned)
    grads = torch.autograd.grad(out, wanted, dout, allow_unused=True, materialize_grads=True)
    return [out.detach(), *grads]


def assert_close(found, expected, tolerance, size_of_learned=1.0):
    for name, a, b in zip(("out", "dq", "dk", "dv", "dlearned"), found, expected, strict=False):
        assert a.isfinite().all(), name
        error = float((a.double() - b).abs().max()) / max(size_of_learned if name == "dlearned" else 1.0, float(b.abs().max()))
        assert error < tolerance, f"{name}: {error:.1e}, TEST_SEED={SEED}"


def supported(backend, keys, data, layer, dtype, slopes=None, **learned):
    """Whether a backend offers this call: a mask has no interpolated keys, and kernels for a GPU no float64.

    Left out is SDPA in bfloat16, which rounds weights and scores too, by how much is torch's affair.
    """
    if backend == "masked" and dtype == torch.bfloat16:
        return False
    given = {"alpha": None, "span": None} | {name: torch.tensor(value, dtype=torch.float32) for name, value in learned.items()}
    return BACKENDS[backend].supports(checked(*(x.to(dtype) for x in data[:3]), keys, layer, slopes=slopes, **given))


def assert_agrees(keys, data, layer=0, backends=FAST, **learned):
    slopes = learned.pop("slopes", None)
    learned = {"slopes": slopes} | {name: torch.tensor(value, dtype=torch.float32).tolist() for name, value in learned.items()}
    expected = run(data, keys, "reference", torch.float64, layer, **learned)
    for backend, dtype in itertools.product(backends, TOLERANCE):
        if supported(backend, keys, data, layer, dtype, **learned):
            found = run(data, keys, backend, dtype, layer, **learned)
            assert_close(found, expected, TOLERANCE[dtype], size(keys, data, layer))


def size(keys, data, layer):
    """Of alpha's gradient without cancellation: of every query a term of either sign, times each rung's base distance."""
    T = data[0].shape[2]
    plan = keys.plan(layer, T) if isinstance(keys, patterns.Pattern) else keys
    return sum(plan.base) * math.sqrt(data[0].shape[:3].numel()) if isinstance(plan, LearnedOffsets) else 1.0


def alibi(H):
    return torch.tensor([2.0 ** -(1 + h) for h in range(H)])


def examples():
    """Every example of every pattern there is, found by discovery."""
    for name in patterns.names():
        for number, pattern in enumerate(patterns.pattern_class(name).examples()):
            yield pytest.param(pattern, id=f"{name}-{number}")


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("pattern", list(examples()))
def test_when_a_pattern_is_attended_then_every_backend_agrees_with_the_rule(pattern, backend):
    H = pattern.heads if pattern.heads > 1 else 4
    for at, T in enumerate(LENGTHS):
        G = [g for g in (1, 2, H) if H % g == 0][at % (2 if H == 2 else 3)]
        layer = at % pattern.layers
        learned = {"alpha": {"alpha": (1.0, 0.73, 1.5)[at % 3]}, "span": {"span": [0.6 * h * T % 7 for h in range(H)]}}
        chosen = learned.get(pattern.learned, {})
        for slopes in (None, alibi(H)):
            assert_agrees(pattern, inputs(2, H, G, T, seed=at), layer, [backend], slopes=slopes, **chosen)


def random_table(H, T, C, seed=0):
    """A table of 1 to C random keys a query, past and future: rows of every length, keys that nobody reads."""
    random = np.random.default_rng(seed)
    table = np.full((H, T, C), -1, np.int32)
    for h, i in itertools.product(range(H), range(T)):
        chosen = random.choice(T, random.integers(1, min(C, T) + 1), replace=False)
        table[h, i, :len(chosen)] = np.sort(chosen)
    return table


FORMS = {
    "far": Offsets((0, 1, 2, 5, 13, 50, 400)),
    "leading": Offsets((0, 3, 8), leading=5),
    "only leading": Offsets((), leading=3),
    "both ways": Offsets((-40, -5, -1, 0, 3, 8), leading=4, causal=False),
    "twenty keys": Offsets(tuple(range(20))),
    "every other key": Offsets(tuple(range(0, 200, 2))),
    "by head": HeadOffsets((Offsets((0, 1)), Offsets((0, 2, 4), leading=1),
                            Offsets((0,)), Offsets((0, 5, 6, 7), leading=3))),
    "soft": SoftWindow(6, 3),
    "learned": LearnedOffsets(2, (1, 2, 3, 5, 8, 13, 21, 34)),
    "learned without rungs": LearnedOffsets(9, (1, 2, 3)),
}


@pytest.mark.parametrize("rows", [1, 40, 300])
@pytest.mark.parametrize("name", FORMS)
def test_when_a_call_is_cut_into_steps_then_no_form_loses_a_pair(name, rows, monkeypatch):
    monkeypatch.setattr(plans, "ROWS", rows)       # single units, part of the heads, and several batch elements with a rest
    learned = {"soft": {"span": [0.0, 1.5, -1.25, 4.0]}, "learned": {"alpha": 1.21}, "learned without rungs": {"alpha": 0.9}}
    for T, slopes in ((19, None), (33, alibi(4))):
        assert_agrees(FORMS[name], inputs(5, 4, 2, T), 0, ["torch"], slopes=slopes, **learned.get(name, {}))


@pytest.mark.parametrize("rows", [1, 40, 300])
def test_when_a_table_of_edges_is_attended_then_it_may_differ_by_query_and_by_head(rows, monkeypatch):
    monkeypatch.setattr(plans, "ROWS", rows)
    for T, slopes in ((1, None), (19, None), (33, alibi(4))):
        table = random_table(4, T, 6)
        assert_agrees(EdgeTable(table), inputs(5, 4, 2, T), backends=["torch"], slopes=slopes)
        assert_agrees(EdgeTable(table[1]), inputs(5, 4, 2, T), backends=["torch"], slopes=slopes)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("head_size", [1, 16, 33, 64, 80, 144])
def test_when_heads_have_any_size_then_every_form_of_keys_agrees(backend, head_size):
    learned = {"soft": {"span": [0.0, 1.5, -1.25, 4.0]}, "learned": {"alpha": 1.21}, "learned without rungs": {"alpha": 0.9}}
    table = random_table(4, 70, 6)
    forms = FORMS | {"table": EdgeTable(table[1]), "table by head": EdgeTable(table)}
    for at, (name, keys) in enumerate(forms.items()):
        data = inputs(2, 4, (1, 2, 4)[at % 3], 70, seed=at, head_size=head_size)
        assert_agrees(keys, data, 0, [backend], slopes=alibi(4) if at % 2 else None, **learned.get(name, {}))


def softmax_by_hand(q, keys, values):
    terms = [math.exp(float(q @ key) / math.sqrt(len(q))) for key in keys]
    return sum(term * value for term, value in zip(terms, values, strict=True)) / sum(terms)


def test_when_the_reference_attends_then_it_is_a_softmax_over_the_keys_of_the_rule():
    pattern = patterns.build("local", window=3)
    q, k, v, _ = (x.numpy() for x in inputs(1, 2, 1, 9))
    out = sparse_attention(*(torch.from_numpy(x) for x in (q, k, v)), pattern, backend="reference").numpy()
    for h, i in itertools.product(range(2), range(9)):
        near = [j for j in range(9) if 0 <= i - j <= 3]
        expected = softmax_by_hand(q[0, h, i], [k[0, 0, j] for j in near], [v[0, 0, j] for j in near])
        assert np.abs(out[0, h, i] - expected).max() < 1e-12


@pytest.mark.parametrize("alpha", [1.0, 0.6, 1.5, 1.37])
def test_when_alpha_is_learned_then_the_reference_blends_keys_and_values_as_the_design_says(alpha):
    W, base, T = 2, (1, 2, 3, 5, 6, 8, 13), 15         # at 0.6 the rungs 5 and 6 fall between the same two keys
    q, k, v, _ = (x.numpy() for x in inputs(1, 1, 1, T))
    given = torch.tensor(alpha, dtype=torch.float64)
    tensors = (torch.from_numpy(x) for x in (q, k, v))
    out = sparse_attention(*tensors, LearnedOffsets(W, base), alpha=given, backend="reference").numpy()
    q, k, v = q[0, 0], k[0, 0], v[0, 0]
    rungs = {}
    for f in base:
        lo, t = int(alpha * f), alpha * f - int(alpha * f)
        if round(alpha * f) > W and lo < T and lo not in rungs:
            rungs[lo] = t
    for i in range(T):
        blend = [[(1 - t) * x[i - lo] + t * x[max(0, i - lo - 1)] for lo, t in rungs.items() if lo <= i] for x in (k, v)]
        near = [j for j in range(T) if 0 <= i - j <= W]
        expected = softmax_by_hand(q[i], [*k[near], *blend[0]], [*v[near], *blend[1]])
        assert np.abs(out[0, 0, i] - expected).max() < 1e-12, i


@pytest.mark.parametrize("backend", ["torch", "cpu"])
@pytest.mark.parametrize("name", FORMS)
def test_when_inputs_move_a_little_then_the_output_moves_by_the_gradient(name, backend):
    learned = {"soft": ("span", [0.2, 1.3]), "learned": ("alpha", 1.21), "learned without rungs": ("alpha", 0.9)}.get(name)
    keys = FORMS[name] if name != "by head" else HeadOffsets(FORMS[name].heads[2:])
    q, k, v, _ = (x.requires_grad_() for x in inputs(1, 2, 1, 15, head_size=2))

    def attend(q, k, v, *rest):
        return sparse_attention(q, k, v, keys, backend=backend, **({learned[0]: rest[0]} if learned else {}))

    rest = [torch.tensor(learned[1], dtype=torch.float64, requires_grad=True)] if learned else []
    assert torch.autograd.gradcheck(attend, (q, k, v, *rest), fast_mode=True)


@pytest.mark.parametrize("backend", ["reference", "torch", "cpu"])
def test_when_alpha_is_an_integer_then_its_gradient_is_the_slope_to_the_right(backend):
    keys, data = LearnedOffsets(1, (4, 8)), inputs(1, 2, 1, 30, seed=-SEED)     # always the same: a slope that is not near 0
    gradient = run(data, keys, backend, torch.float64, alpha=1.0)[4]
    dout, step = data[3], 1e-5
    still, near, far = (run(data, keys, "reference", torch.float64, alpha=1 + a * step)[0] for a in (0, 1, 2))
    slope = float(((4 * near - 3 * still - far) * dout).sum()) / (2 * step)        # of second order, from one side
    assert abs(slope) > 1
    assert abs(float(gradient) - slope) < 1e-5 * abs(slope)


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_when_alpha_is_one_then_learned_is_the_fixed_pattern(backend):
    data, fixed = inputs(2, 4, 2, 100), Offsets((0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89))
    learned = run(data, LearnedOffsets(2, (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)), backend, torch.float64, alpha=1.0)
    assert_close(learned[:4], run(data, fixed, backend, torch.float64), 1e-12)


@pytest.mark.parametrize("backend", ["cpu", "torch", "masked", "reference", "auto"])
@pytest.mark.parametrize("T", [1, 2, 7, 33])
def test_when_the_window_covers_all_then_it_is_full_causal_attention(backend, T):
    q, k, v, _ = inputs(2, 4, 2, T)
    full = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    for window in (T - 1, T, T + 5):
        out = sparse_attention(q, k, v, patterns.build("local", window=window), backend=backend)
        assert (out - full).abs().max() < 1e-12


@pytest.mark.parametrize("backend", ["torch", "cpu"])
@pytest.mark.parametrize("name", ["far", "soft", "learned"])
def test_when_inputs_are_bfloat16_then_only_the_rounding_of_the_result_is_lost(name, backend):
    data = [x.to(torch.bfloat16).double() for x in inputs(2, 4, 2, 70)]
    learned = {"soft": {"span": [0.0, 1.5, -1.25, 4.0]}, "learned": {"alpha": 1.25}}.get(name, {})
    expected = run(data, FORMS[name], "reference", torch.float64, **learned)
    found = run(data, FORMS[name], backend, torch.bfloat16, **learned)
    assert {x.dtype for x in found[:4]} == {torch.bfloat16}
    assert_close(found[:4], expected[:4], 2 ** -8)


@pytest.mark.parametrize("backend", ["reference", *FAST])
def test_when_autocast_is_on_then_the_result_is_in_its_dtype_and_mixed_inputs_are_taken(backend):
    q, k, v, _ = (x.float() for x in inputs(2, 4, 2, 50))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = sparse_attention(q, k.bfloat16(), v, FORMS["far"], backend=backend)
    assert out.dtype == torch.bfloat16
    expected = sparse_attention(q, k, v, FORMS["far"], backend="reference")
    assert (out.float() - expected).abs().max() < 0.05


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_when_heads_lie_between_tokens_in_memory_then_the_result_is_the_same_and_keeps_that_order(backend):
    data = inputs(2, 4, 2, 33)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in data]
    results = (run(x, FORMS["far"], backend, torch.float64) for x in (data, turned))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert sparse_attention(*turned[:3], FORMS["far"], backend=backend).transpose(1, 2).is_contiguous()
