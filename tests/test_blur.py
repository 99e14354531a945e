"""Blurred rungs: the attention against loops, and a training that is `learned`'s where nothing is blurred."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from small_run import RUN, TASK, values, weights, with_recipe
from torch.nn.modules import module

from lib import blurred as blur
from lib import train_run as plain
from lib.attention import sparse_attention
from lib.config import PatternSpec
from lib.errors import SuiteError
from lib.model import build_model
from lib.patterns import build
from lib.patterns.base import LearnedOffsets
from suite.run.worker import Worker
from suite.settings.fingerprints import closure, training_modules
from suite.tasks import make_source

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


@pytest.mark.parametrize("alpha, half_width", [(1.0, 1.0), (0.93, 1.0), (1.21, 2.6), (0.77, 5.0), (1.0, 30.0), (1.0, 4.0)])
def test_when_rungs_are_blurred_then_values_and_gradients_are_those_of_the_definition(alpha, half_width):
    found, own = tensors(), torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    side = torch.randn(2, 4, 21, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    right = own + (1e-9 if alpha == 1 else 0)           # a kernel has corners: at whole distances, the derivative to the right
    ours, theirs = blur.blurred_attention(*found, KEYS, own, half_width), by_loops(*found, KEYS, right, half_width)
    close = {"rtol": 1e-6, "atol": 1e-6} if alpha == 1 else {"rtol": 1e-11, "atol": 1e-11}
    torch.testing.assert_close(ours, theirs, **close)
    for a, b in zip(*(torch.autograd.grad((x * side).sum(), [*found, own]) for x in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, **close)


@pytest.mark.parametrize("alpha", [1.0, 0.93, 1.37])
def test_when_the_half_width_is_one_token_then_it_is_the_plain_blend(alpha):
    found, own = tensors(), torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    ours = blur.blurred_attention(*found, KEYS, own, 1.0)
    theirs = sparse_attention(*found, KEYS, alpha=own)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for a, b in zip(*(torch.autograd.grad(x.square().sum(), [*found, own]) for x in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_when_a_later_token_changes_then_no_earlier_output_does():
    q, k, v = tensors()
    other = [x.detach().clone() for x in (q, k, v)]
    for x in other:
        x[:, :, 12:] += 1
    ours, changed = (blur.blurred_attention(*x, KEYS, torch.tensor(1.1, dtype=torch.float64), 9.0)
                     for x in ((q, k, v), other))
    torch.testing.assert_close(ours[:, :, :12], changed[:, :, :12], rtol=1e-12, atol=1e-12)
    assert (ours[:, :, 12] != changed[:, :, 12]).all()


def test_when_a_target_is_some_tokens_from_every_rung_then_only_a_wide_kernel_feels_it():
    T, target = 40, 17                                 # the rungs at alpha 1: 13 and 21
    q, k = torch.ones(1, 1, T, 2, dtype=torch.float64), torch.zeros(1, 1, T, 2, dtype=torch.float64)
    v = torch.zeros_like(k)
    v[:, :, T - 1 - target] = 1                        # what the last query is to find
    keys = LearnedOffsets(2, (13, 21))

    def slope(half_width: float, base: tuple[int, ...]) -> float:
        alpha = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        y = blur.blurred_attention(q, k, v, replace(keys, base=base), alpha, half_width)
        return float(torch.autograd.grad(y[0, 0, -1].sum(), alpha)[0])
    assert abs(slope(1.0, (13, 21))) < 1e-12
    assert slope(6.0, (13,)) > 1e-3 and slope(6.0, (21,)) < -1e-3   # the nearer rung is to go further, the further one nearer


def test_when_training_goes_on_then_the_kernel_narrows_to_the_plain_blend():
    pattern = build("blurred", blur=17.0)
    assert [pattern.half_width(step, 5) for step in range(5)] == [17, 13, 9, 5, 1]
    assert pattern.half_width(0, 1) == 1
    with pytest.raises(SuiteError, match="blur = 0.5"):
        build("blurred", blur=0.5)
    source = blur.Blur(BLURRED, make_source(TASK, None))
    inputs, targets = source.batch(1, BLURRED.train.steps - 1, 4, 16)
    again = make_source(TASK, None).batch(1, BLURRED.train.steps - 1, 4, 16)
    assert source.half_width == 1 and torch.equal(inputs, again[0]) and torch.equal(targets, again[1])


def train(run, folder, **options):
    own = blur if run.pattern.name == "blurred" else plain
    return own.train_run(run, make_source(run.data, None), None, folder, **options)


def test_when_nothing_is_blurred_then_the_training_is_that_of_learned(tmp_path):
    one = replace(BLURRED, pattern=PatternSpec.of("blurred", window=3, rungs=5, blur=1.0))
    found, expected = train(one, tmp_path / "one"), train(RUN, tmp_path / "learned")
    assert [value[:4] for value in values(found)] == [value[:4] for value in values(expected)]
    assert [value[4] for value in values(found)] == pytest.approx([value[4] for value in values(expected)], abs=2e-5)


def test_when_rungs_are_blurred_then_training_differs_and_leaves_no_hook_behind(tmp_path):
    found, expected = train(BLURRED, tmp_path / "blurred"), train(RUN, tmp_path / "learned")
    assert found.metrics[-3].measure == "alpha" and abs(found.metrics[-3].value - expected.metrics[-3].value) > 1e-4
    assert not module._global_forward_hooks


def test_when_a_blurred_training_is_interrupted_then_it_ends_with_the_same_weights(tmp_path):
    class Killed(Exception):
        pass

    def kill(state):
        if state["step"] >= 7:
            raise Killed
    run = with_recipe(BLURRED, steps=12)
    train(run, tmp_path / "whole")
    with pytest.raises(Killed):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lib.training.PROGRESS_SECONDS", 0.0)
            train(run, tmp_path / "killed", checkpoint_every=0.0, progress=kill)
    train(run, tmp_path / "killed")
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    assert train(run, tmp_path / "killed").seconds > 0                                  # finished: loaded, not trained


def test_when_a_run_is_identified_then_only_blurred_ones_depend_on_the_blur():
    assert "lib.blurred" in closure(training_modules(BLURRED)) and "lib.blurred" not in closure(training_modules(RUN))


def test_when_a_worker_trains_a_blurred_run_then_it_is_blurred(tmp_path):
    Worker(None).train(BLURRED, None, tmp_path / "worker", lambda state: None)
    train(BLURRED, tmp_path / "here")
    assert weights(tmp_path / "worker") == weights(tmp_path / "here")


def test_when_no_gradient_is_asked_for_then_the_rungs_are_plain():
    source = blur.Blur(BLURRED, make_source(TASK, None))
    model = build_model(BLURRED)
    x = torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(0))
    inputs = (x, model.pattern, model.position(x, "vanilla", None)[0], None, "auto")
    layer = model.blocks[0].attention
    with torch.no_grad():
        plain_output = layer(*inputs)
        assert source.attend(layer, inputs, plain_output) is None
    assert source.attend(model.norm, (x,), x) is None
    assert not torch.allclose(source.attend(layer, inputs, plain_output), plain_output, atol=1e-4)
    source.half_width = 1.0
    torch.testing.assert_close(source.attend(layer, inputs, plain_output), plain_output, rtol=1e-4, atol=1e-5)
