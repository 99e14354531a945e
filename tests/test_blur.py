"""Blurred rungs: the attention against loops, and a training that is `learned`'s where nothing is blurred."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from small_run import RUN, stopped, trained, values, weights

from lib.attention import sparse_attention
from lib.attention.blurred import blurred_attention
from lib.config import PatternSpec
from lib.errors import SuiteError
from lib.model import build_model
from lib.patterns import build
from lib.patterns.base import LearnedOffsets

KEYS = LearnedOffsets(2, (1, 2, 3, 5, 8, 13))
BLURRED = replace(RUN, pattern=PatternSpec.of("blurred", window=3, rungs=5, blur=4.0))


def tensors(T: int = 21, H: int = 4, G: int = 2, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, n, T, 3, generator=generator, dtype=torch.float64, requires_grad=True) for n in (H, G, G)]


def by_loops(q, k, v, keys, alpha, half_width):
    """The definition, query by query, rung by rung, token by token."""
    B, H, T, D = q.shape
    out = torch.zeros_like(q)
    for b in range(B):
        for h in range(H):
            K, V = k[b, h // (H // k.shape[1])], v[b, h // (H // k.shape[1])]
            for i in range(T):
                kept = [(K[i - d], V[i - d]) for d in range(keys.window + 1) if d <= i]
                seen = set()
                for f in keys.base:
                    d = float(alpha.detach()) * f
                    if round(d) <= keys.window or math.floor(d) in seen or math.floor(d) > T - 1:
                        continue
                    seen.add(math.floor(d))
                    if i >= math.floor(d):
                        w = torch.stack([(1 - abs(i - j - alpha * f) / half_width).clamp(min=0) for j in range(i + 1)])
                        w = w / w.sum()
                        kept.append((w @ K[:i + 1], w @ V[:i + 1]))
                p = torch.softmax(torch.stack([q[b, h, i] @ key for key, _ in kept]) / math.sqrt(D), 0)
                out[b, h, i] = p @ torch.stack([value for _, value in kept])
    return out


@pytest.mark.parametrize("alpha, half_width", [(0.93, 1.0), (1.21, 2.6), (1.0, 30.0), (1.0, 4.0)])
def test_when_rungs_are_blurred_then_values_and_gradients_are_those_of_the_definition(alpha, half_width):
    qkv, learned = tensors(), torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    side = torch.randn(2, 4, 21, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    right = learned + (1e-9 if alpha == 1 else 0)           # a kernel has corners: the derivative to the right of one
    ours = blurred_attention(*qkv, KEYS, learned, half_width)
    theirs = by_loops(*qkv, KEYS, right, half_width)
    close = {"rtol": 1e-6, "atol": 1e-6} if alpha == 1 else {"rtol": 1e-11, "atol": 1e-11}
    torch.testing.assert_close(ours, theirs, **close)
    for a, b in zip(*(torch.autograd.grad((x * side).sum(), [*qkv, learned]) for x in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, **close)


@pytest.mark.parametrize("alpha", [1.0, 0.93, 1.37])
def test_when_the_half_width_is_one_token_then_it_is_the_plain_blend(alpha):
    qkv, learned = tensors(), torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    ours = blurred_attention(*qkv, KEYS, learned, 1.0)
    theirs = sparse_attention(*qkv, KEYS, alpha=learned)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for a, b in zip(*(torch.autograd.grad(x.square().sum(), [*qkv, learned]) for x in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_when_a_later_token_changes_then_no_earlier_output_does():
    qkv, alpha = tensors(), torch.tensor(1.1, dtype=torch.float64)
    other = [x.detach().clone() for x in qkv]
    for x in other:
        x[:, :, 12:] += 1
    ours, changed = (blurred_attention(*x, KEYS, alpha, 9.0) for x in (qkv, other))
    torch.testing.assert_close(ours[:, :, :12], changed[:, :, :12], rtol=1e-12, atol=1e-12)
    assert (ours[:, :, 12] != changed[:, :, 12]).all()


def test_when_a_target_is_some_tokens_from_every_rung_then_only_a_wide_kernel_feels_it():
    T, target = 40, 17                                  # the rungs at alpha 1: 13 and 21
    q, k = torch.ones(1, 1, T, 2, dtype=torch.float64), torch.zeros(1, 1, T, 2, dtype=torch.float64)
    v = torch.zeros_like(k)
    v[:, :, T - 1 - target] = 1                         # what the last query is to find

    def slope(half_width: float, base: tuple[int, ...]) -> float:
        alpha = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        y = blurred_attention(q, k, v, LearnedOffsets(2, base), alpha, half_width)
        return float(torch.autograd.grad(y[0, 0, -1].sum(), alpha)[0])
    assert abs(slope(1.0, (13, 21))) < 1e-12
    assert slope(6.0, (13,)) > 1e-3 and slope(6.0, (21,)) < -1e-3     # both rungs are to move towards it


def test_when_training_goes_on_then_the_kernel_narrows_to_the_plain_blend():
    pattern = build("blurred", blur=17.0)
    assert [pattern.half_width(step, 5) for step in range(5)] == [17, 13, 9, 5, 1] and pattern.half_width(0, 1) == 1
    assert build("learned").half_width(0, 5) is None
    with pytest.raises(SuiteError, match="position = 'alibi' .* 'blurred'"):
        build_model(replace(BLURRED, model=replace(BLURRED.model, position="alibi")))


def test_when_nothing_is_blurred_then_the_training_is_that_of_learned_and_otherwise_it_differs(tmp_path):
    plain = trained(RUN, tmp_path / "learned")
    one = trained(replace(RUN, pattern=PatternSpec.of("blurred", window=3, rungs=5, blur=1.0)), tmp_path / "one")
    wide = trained(BLURRED, tmp_path / "blurred")
    assert [value[:4] for value in values(one)] == [value[:4] for value in values(plain)]
    assert [value[4] for value in values(one)] == pytest.approx([value[4] for value in values(plain)], abs=2e-5)
    assert wide.metrics[-3].measure == "alpha" and abs(wide.metrics[-3].value - plain.metrics[-3].value) > 1e-4
    assert wide.model.half_width is None                                                # and it is a `learned` model
    stopped(tmp_path / "killed", 7, BLURRED)
    trained(BLURRED, tmp_path / "killed")
    assert weights(tmp_path / "killed") == weights(tmp_path / "blurred")


def test_when_no_gradient_is_asked_for_then_the_rungs_are_plain():
    model, plain = build_model(BLURRED), build_model(BLURRED)
    tokens = torch.randint(0, 16, (2, 16), generator=torch.Generator().manual_seed(0))
    model.half_width = 4.0
    with torch.no_grad():
        assert torch.equal(model(tokens), plain(tokens))
    assert not torch.allclose(model(tokens), plain(tokens), atol=1e-4)
    model.half_width = 1.0
    torch.testing.assert_close(model(tokens), plain(tokens), rtol=1e-4, atol=1e-5)
