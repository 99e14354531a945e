"""Training against a plain re-computation, and what it records."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_run import RUN, states_equal, trained, values, weights, with_recipe

from lib import training
from lib.resources import PARTS
from lib.config import DataConfig, PatternSpec, TrainConfig
from lib.errors import SuiteError
from lib.model import build_model
from lib.training import train_run
from suite.tasks import make_source


def test_when_steps_pass_then_the_rate_rises_linearly_and_falls_by_a_cosine_to_a_tenth():
    recipe = TrainConfig()
    rates = [training.learning_rate(step, recipe) for step in range(recipe.steps)]
    assert rates[0] == pytest.approx(3e-4 / 301) and rates[150] == pytest.approx(3e-4 * 151 / 301)
    assert rates[300] == 3e-4 == max(rates)
    assert rates[300 + (12_999 - 300) // 2] == pytest.approx(3e-4 * 0.55, rel=1e-3)
    assert rates[-1] == pytest.approx(3e-5)
    assert sum(rates) == pytest.approx(2.1, abs=0.05)           # the furthest that theta can go at multiplier 1
    for recipe in (TrainConfig(steps=s, warmup=w) for s, w in ((1, 0), (1, 1), (5, 5))):
        assert all(0 < training.learning_rate(step, recipe) <= recipe.lr for step in range(recipe.steps))


def test_when_trained_plainly_then_weights_agree(tmp_path):
    """Groups, clipping and schedule written out, on gradients of the logits' cross-entropy."""
    run = with_recipe(steps=6, warmup=2, clip=0.05, theta_lr=7.0, eval_every=0)
    model, mine, source = trained(run, tmp_path).model, build_model(run), make_source(run.data, None)
    groups = [{"params": [p], "weight_decay": 0.1 if p.ndim == 2 else 0.0, "own": 7.0 if "theta" in name else 1.0}
              for name, p in mine.named_parameters()]
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    for step in range(6):
        inputs, targets = source.batch(1, step, 4, 16)
        adam.zero_grad()
        F.cross_entropy(mine(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100).backward()
        total = math.sqrt(sum(p.grad.square().sum().item() for p in mine.parameters()))
        assert total > 0.05
        for p in mine.parameters():
            p.grad *= 0.05 / total
        rate = 5e-3 * ((step + 1) / 3 if step < 2 else 0.1 + 0.9 * (1 + math.cos(math.pi * (step - 2) / 3)) / 2)
        for group in adam.param_groups:
            group["lr"] = rate * group["own"]
        adam.step()
    for (name, a), b in zip(model.named_parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_when_a_tiny_task_is_trained_then_its_loss_falls_and_its_accuracy_rises(tmp_path):
    run = replace(with_recipe(steps=400, batch=8, eval_every=0, lr=2e-2, warmup=20), pattern=PatternSpec("dense"))
    result = trained(run, tmp_path)
    losses = [m.value for m in result.metrics if m.measure == "train_loss"]
    accuracy = [m.value for m in result.metrics if m.measure == "accuracy"]
    assert losses[0] > 1.5 and losses[-1] < 0.3 and len(losses) == 50
    assert len(accuracy) == 1 and accuracy[0] > 0.9
    assert result.seconds > 0 and result.tokens_per_s > 0 and result.peak_memory_mib > 10
    assert set(result.spent) == set(PARTS) and all(seconds > 0 for seconds in result.spent.values())
    assert 0.5 * result.seconds < sum(result.spent.values()) <= result.seconds


def test_when_precision_is_bf16_then_losses_stay_near_float32_and_weights_are_float32(tmp_path):
    runs = {p: trained(with_recipe(precision=p, eval_every=0), tmp_path / p) for p in ("fp32", "bf16")}
    fp32, bf16 = ([m.value for m in r.metrics if m.measure == "train_loss"] for r in runs.values())
    assert fp32 != bf16 and fp32 == pytest.approx(bf16, abs=0.05)
    assert all(p.dtype == torch.float32 for p in runs["bf16"].model.parameters())


def test_when_alpha_is_learned_then_its_path_starts_at_step_zero_and_ends_at_the_models(undisturbed):
    _, result = undisturbed
    paths = {(m.step, m.layer): m.value for m in result.metrics if m.measure == "alpha"}
    assert {step for step, _ in paths} == set(range(13))
    assert [paths[0, layer] for layer in (0, 1)] == [1.0, 1.0]
    assert [paths[12, layer] for layer in (0, 1)] == result.model.alphas() != [1.0, 1.0]


def test_when_text_is_trained_then_each_domain_is_measured_on_its_held_out_windows(tmp_path):
    rng = np.random.default_rng(0)
    stored = {(split, d): rng.integers(0, 16, 900).astype(np.uint16) for split in ("train", "heldout") for d in "ab"}
    corpus = SimpleNamespace(domains=("a", "b"), vocab=16, tokens=lambda split, domain: stored[split, domain])
    run = replace(RUN, pattern=PatternSpec("dense"), data=DataConfig())
    result = train_run(run, make_source(run.data, corpus), corpus, tmp_path)
    found = {(m.step, m.split): m.value for m in result.metrics if m.measure == "nll"}
    assert sorted(found) == [(step, split) for step in (5, 10, 12) for split in "ab"]
    for split in "ab":
        part = torch.from_numpy(stored["heldout", split][:16 * 16 + 1].astype(np.int64))      # 16 windows of 16 tokens
        with torch.no_grad():
            logits = result.model(part[:-1].view(16, 16))
        assert found[12, split] == pytest.approx(F.cross_entropy(logits.flatten(0, 1), part[1:]).item(), rel=1e-5)
    with pytest.raises(SuiteError, match="needs its corpus"):
        train_run(run, make_source(run.data, corpus), None, tmp_path / "without")
    with pytest.raises(SuiteError, match="vocab of the model = 16 .* at least the data's 66"):
        train_run(RUN, make_source(DataConfig.of("copying", symbols=64), None), None, tmp_path / "without")


def test_when_evaluations_are_more_or_less_frequent_then_weights_and_the_random_stream_are_the_same(tmp_path):
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    models = [trained(with_recipe(eval_every=every), tmp_path / str(every)).model for every in (0, 5, 1)]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert states_equal(models[0], models[1]) and states_equal(models[0], models[2])


def test_when_seeds_differ_then_runs_do_and_when_equal_they_repeat_and_report_each_step(
        tmp_path, undisturbed, monkeypatch):
    monkeypatch.setattr(training, "PROGRESS_SECONDS", 0.0)
    (folder, result), seen = undisturbed, []
    again = trained(RUN, tmp_path / "again", progress=seen.append)
    assert [report["step"] for report in seen] == list(range(1, 13)) and seen[-1]["seconds_left"] == 0
    assert set(seen[-1]) == {"step", "steps", "loss", "tokens_per_s", "seconds_left"}
    assert all(report["tokens_per_s"] > 0 for report in seen)
    assert weights(tmp_path / "again") == weights(folder) and values(again) == values(result)
    assert not states_equal(trained(with_recipe(seed=2), tmp_path / "other").model, result.model)
