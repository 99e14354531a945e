"""Blurred rungs: the attention against loops, and a training that is `learned`'s where nothing is blurred."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
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

KEYS = LearnedOffsets(2, (1, 2, 3, 5, 6, 8, 13, 21))       # at alpha = 0.6, 5 and 6 have the same floor
BLURRED = replace(RUN, pattern=PatternSpec.of("blurred", window=3, rungs=5, blur=4.0))


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
