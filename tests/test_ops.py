"""Each element-wise part against its formula in float64, values and gradients, in every type and at odd sizes."""

from __future__ import annotations

import math

import numba
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lib import rope
from lib.attention.cpu.vectors import exponential
from lib.fused import kernels, ops

torch.set_num_threads(1)

# Largest relative error of storing a number, and of a few float32 operations on it (sums here are of up to 70 terms).
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0 ** -8, torch.float64: 0.0}
ARITHMETIC = {torch.float32: 2e-6, torch.bfloat16: 2e-6, torch.float64: 1e-12}
DTYPES = list(ROUNDING)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    return drawn.to(dtype).requires_grad_()


def agree(got: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    """`got`, stored as `dtype`, is the exact value up to one rounding and the arithmetic's error."""
    torch.testing.assert_close(got.double(), exact, rtol=ROUNDING[dtype] + ARITHMETIC[dtype],
                               atol=ARITHMETIC[dtype] * exact.abs().amax().item())


def compare(function, formula, inputs: list[torch.Tensor], out: torch.dtype) -> None:
    """Values, and gradients against a random direction, of `function` and of `formula` in float64."""
    wide = [x.detach().double().requires_grad_() for x in inputs]
    got, exact = function(*inputs), formula(*wide)
    agree(got, exact, out)
    along = numbers(*got.shape, seed=9, dtype=out).detach()
    assert got.dtype == out
    for x, mine, theirs in zip(inputs, torch.autograd.grad(got, inputs, along),
                               torch.autograd.grad(exact, wide, along.double()), strict=True):
        assert mine.dtype == x.dtype
        agree(mine, theirs, x.dtype)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 67, 37)])
def test_when_rms_norm_is_taken_then_it_agrees_with_the_formula(dtype, shape, autocast):
    def norm(x, gain):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return ops.rms_norm(x, gain, 0.1)
    def formula(x, gain):
        return gain * x / torch.sqrt(x.square().mean(-1, keepdim=True) + 0.1)
    compare(norm, formula, [numbers(*shape, dtype=dtype), numbers(shape[-1], seed=1, dtype=dtype)],
            torch.bfloat16 if autocast else dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 16, 37])
def test_when_swiglu_is_taken_then_it_agrees_with_the_formula(dtype, width):
    x = numbers(3, 5, 2 * width, dtype=dtype, scale=3.0)
    compare(ops.swiglu, lambda x: x[..., :width] / (1 + torch.exp(-x[..., :width])) * x[..., width:], [x], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("H, G, D", [(4, 1, 32), (6, 2, 10), (1, 1, 2)])
def test_when_heads_are_turned_then_each_pair_is_a_complex_product(dtype, H, G, D):
    B, T = 2, 19
    pairs = torch.arange(0, D, 2, dtype=torch.float64)
    angles = torch.arange(T, dtype=torch.float64)[:, None] * 10_000.0 ** (-pairs / D)

    def formula(qkv):
        x = qkv.view(B, T, H + 2 * G, D)
        a, b, cos, sin = x[..., ::2], x[..., 1::2], angles.cos()[:, None], angles.sin()[:, None]
        turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        return torch.cat([turned[..., :H + G, :], x[..., H + G:, :]], 2).transpose(1, 2)

    def mine(qkv):
        turn = rope.turns(T, D, dtype=torch.promote_types(torch.complex64, dtype))
        q, k, v = rope.heads(qkv, turn, H, G)
        assert q.shape == (B, H, T, D) and k.shape == v.shape == (B, G, T, D)
        return torch.cat([q, k, v], 1)
    qkv = numbers(B, T, (H + 2 * G) * D, dtype=dtype)
    compare(mine, formula, [qkv], dtype)
    assert torch.equal(torch.cat(rope.heads(qkv, None, H, G), 1).transpose(1, 2).flatten(2), qkv)       # nothing turns


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [2, 70])
def test_when_the_loss_of_logits_is_taken_then_it_and_its_gradient_are_the_formulas(dtype, vocab):
    logits, targets = numbers(9, vocab, dtype=dtype, scale=4.0), torch.arange(9) % vocab
    exact = logits.detach().double().requires_grad_()
    theirs = F.cross_entropy(exact, targets, reduction="none")
    losses, gradient = ops.surprise(logits.detach().clone(), targets)
    assert losses.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(losses.double(), theirs, rtol=ARITHMETIC[dtype], atol=ARITHMETIC[dtype])
    agree(gradient, torch.autograd.grad(theirs.sum(), exact)[0], dtype)


def test_when_a_target_is_no_row_of_the_table_then_it_is_an_error_and_a_far_one_costs_its_whole_gap():
    for target in (-1, 7):
        with pytest.raises(IndexError, match="outside the vocabulary"):
            ops.cross_entropy(numbers(1, 3), numbers(7, 3, seed=1), torch.tensor([target]))
    assert ops.cross_entropy(torch.tensor([[300.0]]), torch.tensor([[1.0], [-1.0]]), torch.tensor([1])) == 600


def test_when_numbers_are_on_a_cpu_then_the_kernels_compute_unless_they_cannot():
    assert ops.fused(torch.ones(1)) and ops.fused(torch.ones(1, dtype=torch.bfloat16))
    assert not ops.fused(torch.ones(1, dtype=torch.float64)) and not ops.fused(torch.ones(1, device="meta"))
    with torch.autocast("cpu", torch.float16):
        assert not ops.fused(torch.ones(1))


def test_when_torch_has_more_threads_then_results_are_the_same_bit_for_bit(three_threads):
    x, gain, turn = numbers(3, 67, 48), numbers(48, seed=1), rope.turns(67, 12)

    def results() -> list[torch.Tensor]:
        outputs = [ops.rms_norm(x, gain, 0.1), ops.swiglu(x), *rope.heads(x, turn, 2, 1)]
        gradients = torch.autograd.grad(outputs, (x, gain), [out.detach() + 1 for out in outputs])
        return [*outputs, *gradients, *ops.surprise(x.detach().view(-1, 48).clone(), torch.arange(201) % 48)]
    several = results()
    torch.set_num_threads(1)
    one = results()
    assert kernels.ROWS < 201 and all(torch.equal(a, b) for a, b in zip(one, several, strict=True))


def test_when_a_number_is_far_from_zero_or_not_finite_then_the_result_is_right_or_says_so():
    """So that training stops: a loss that looks fine would let a diverged run go on."""
    x = torch.tensor([[300.0, -300.0, 2.0, 3.0]], requires_grad=True)
    out, nothing = ops.swiglu(x), pytest.approx(0, abs=1e-30)
    assert out.tolist() == [[600.0, nothing]]
    assert torch.autograd.grad(out.sum(), x)[0].tolist() == [[2.0, nothing, 300.0, nothing]]
    for bad in (math.nan, math.inf):
        x = torch.tensor([[1.0] * 40, [1.0] * 33 + [bad] + [1.0] * 6])
        assert ops.surprise(x.clone(), torch.tensor([0, 0]))[0].isnan().tolist() == [False, True]
        for result in (ops.swiglu(x), ops.rms_norm(x, torch.ones(40), 0.0)):
            assert torch.isfinite(result).all(-1).tolist() == [True, False]


@pytest.mark.parametrize("exp, greatest, error", [
    (kernels.exp, 88, 3 * 2.0 ** -24), (numba.njit(lambda x: exponential(x)), 0, 2 * 2.0 ** -23)])
def test_when_the_exponential_is_approximated_then_it_is_exact_to_a_few_units_in_the_last_place(exp, greatest, error):
    x = np.linspace(-87, greatest, 20_011, dtype=np.float32)
    found = np.array([exp(value) for value in x])
    assert np.abs(found / np.exp(x.astype(np.float64)) - 1).max() < error
    assert [exp(np.float32(end)) for end in (0, -87.1, -math.inf)] == [1, 0, 0]
    assert math.isnan(exp(np.float32(math.nan)))


@pytest.mark.parametrize("function, inputs", [
    (lambda x: ops.rms_norm(x, torch.ones(8), 0.1), [(3, 8)]), (ops.swiglu, [(3, 8)]),
    (lambda x: rope.heads(x, rope.turns(3, 2), 2, 1)[0], [(1, 3, 8)]),
])
def test_when_a_gradient_of_a_gradient_is_asked_for_then_it_is_refused(function, inputs):
    x = numbers(*inputs[0])
    first, = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable|differentiat"):
        first.sum().backward()


def test_when_compiled_then_the_formulas_are_traced_and_agree():
    def block(x, gain):
        return ops.swiglu(ops.rms_norm(x, gain, 0.1))
    x, gain = numbers(4, 10), numbers(10, seed=1)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, gain), block(x, gain))
    mine, theirs = (torch.autograd.grad(f(x, gain).square().sum(), (x, gain)) for f in (block, compiled))
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
