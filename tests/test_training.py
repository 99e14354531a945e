"""Training against a plain re-computation, what it records, and that a killed or damaged run ends as one left alone."""

import contextlib
import errno
import json
import math
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from small_run import RECIPE, RUN, eagerly, states_equal, stopped, trained, values, weights, with_recipe

from lib import checkpoint, training
from lib.config import DataConfig, PatternSpec, TrainConfig
from lib.errors import SuiteError
from lib.model import build_model
from lib.patterns import build
from lib.resources import PARTS
from lib.training import load_run, train_run
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
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    for every in (0, 1):                                            # evaluations, in place of one every 5 steps
        assert states_equal(trained(with_recipe(eval_every=every), tmp_path / str(every)).model, result.model)
    assert torch.equal(torch.random.get_rng_state(), state)
    paths = {(m.step, m.layer): m.value for m in result.metrics if m.measure == "alpha"}            # of step 0 too
    assert {step for step, _ in paths} == set(range(13))
    assert [paths[0, layer] for layer in (0, 1)] == [1.0, 1.0]
    assert [paths[12, layer] for layer in (0, 1)] == result.model.alphas() != [1.0, 1.0]


# Blurred rungs: a training that is `learned`'s where nothing is blurred

BLURRED = replace(RUN, pattern=PatternSpec.of("blurred", window=3, rungs=5, blur=4.0))


def test_when_training_goes_on_then_the_kernel_narrows_to_the_plain_blend():
    pattern = build("blurred", blur=17.0)
    assert [pattern.half_width(step, 5) for step in range(5)] == [17, 13, 9, 5, 1] and pattern.half_width(0, 1) == 1
    assert build("learned").half_width(0, 5) is None
    with pytest.raises(SuiteError, match="position = 'alibi' .* 'blurred'"):
        build_model(replace(BLURRED, model=replace(BLURRED.model, position="alibi")))


def test_when_nothing_is_blurred_then_training_and_values_are_those_of_learned_and_otherwise_they_differ(tmp_path):
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
    model, plain = build_model(BLURRED), build_model(BLURRED)
    tokens = torch.randint(0, 16, (2, 16), generator=torch.Generator().manual_seed(0))
    model.half_width = 4.0
    with torch.no_grad():
        assert torch.equal(model(tokens), plain(tokens))
    assert not torch.allclose(model(tokens), plain(tokens), atol=1e-4)
    model.half_width = 1.0
    torch.testing.assert_close(model(tokens), plain(tokens), rtol=1e-4, atol=1e-5)


# Checkpoints

LONG = with_recipe(steps=120, eval_every=50)


def kill_after_checkpoints(folder: Path, count: int) -> int:
    """Train LONG in another process, SIGKILL it after `count` checkpoints; the step that it had kept by then."""
    child = multiprocessing.get_context("spawn").Process(target=eagerly, args=(LONG, folder))
    child.start()
    seen = set()
    while len(seen) <= count and child.is_alive():
        with contextlib.suppress(FileNotFoundError):            # between the two renames of a checkpoint
            seen.add((folder / "checkpoint.pt").stat().st_mtime_ns)
        time.sleep(0.001)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL, "the training ended before it was killed: make it longer"
    return checkpoint.load_checkpoint(folder, LONG)["state"]["step"]


@pytest.mark.slow
def test_when_killed_twice_and_started_again_then_weights_and_metrics_are_those_of_an_undisturbed_run(tmp_path):
    undisturbed = trained(LONG, tmp_path / "undisturbed")
    first, second = (kill_after_checkpoints(tmp_path / "killed", count) for count in (5, 9))
    assert 0 < first < second < LONG.train.steps
    seconds = checkpoint.load_checkpoint(tmp_path / "killed", LONG)["state"]["seconds"]
    resumed = trained(LONG, tmp_path / "killed")
    assert weights(tmp_path / "killed") == weights(tmp_path / "undisturbed")
    assert values(resumed) == values(undisturbed) and resumed.seconds > seconds > 0
    assert sorted(p.name for p in (tmp_path / "killed").iterdir()) == ["model.safetensors", "result.json"]


def test_when_stopped_between_records_then_means_and_times_cover_what_was_before(tmp_path, undisturbed, monkeypatch):
    every = [m.value for m in undisturbed[1].metrics if m.measure == "train_loss"]
    monkeypatch.setattr(training, "RECORDS", 2)                  # a record every 6 steps
    seldom = values(trained(RUN, tmp_path / "undisturbed"))
    means = {step: loss for measure, _, _, step, loss in seldom if measure == "train_loss"}
    assert means == {6: pytest.approx(sum(every[:6]) / 6), 12: pytest.approx(sum(every[6:]) / 6)} and len(every) == 12
    stopped(tmp_path / "stopped", 9)
    state = checkpoint.load_checkpoint(tmp_path / "stopped", RUN)
    assert len(state["state"]["losses"]) == 3
    state["state"] |= {"seconds": 1000.0, "step_seconds": 500.0, "peak_memory_mib": 1e6}
    checkpoint.save_checkpoint(tmp_path / "stopped", RUN, state)
    resumed = trained(RUN, tmp_path / "stopped")
    assert values(resumed) == seldom
    assert 1000 < resumed.seconds < 1100 and resumed.peak_memory_mib == 1e6
    assert resumed.tokens_per_s == pytest.approx(RECIPE.tokens / 500, rel=0.1)


def flip_a_byte_of_weights(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def put_code(path: Path) -> None:
    class Code:
        def __reduce__(self):
            return os.mkdir, (str(path.with_name("executed")),)
    torch.save({"run": checkpoint.canonical(RUN), "state": Code()}, path)


def put_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [flip_a_byte_of_weights, lambda path: path.write_bytes(path.read_bytes()[:1000]),
                                    lambda path: path.write_bytes(b""), put_code, put_folder, Path.unlink,
                                    lambda path: torch.save([1], path), lambda path: torch.save({"run": ""}, path)])
@pytest.mark.parametrize("names", [("checkpoint.pt",), ("checkpoint.pt", "checkpoint.previous.pt")])
def test_when_checkpoints_are_damaged_hold_code_or_are_lost_then_they_are_set_aside_and_the_result_is_the_same(
        tmp_path, undisturbed, caplog, damage, names):
    stopped(tmp_path, 7)
    for name in names:
        damage(tmp_path / name)
    left = checkpoint.load_checkpoint(tmp_path, RUN)
    assert (left["state"]["step"] if left else 0) == (6 if len(names) == 1 else 0)
    for name in names:
        assert damage == Path.unlink or f"{name} is damaged" in caplog.text and (tmp_path / f"{name}.damaged").exists()
    result = trained(RUN, tmp_path)
    assert weights(tmp_path) == weights(undisturbed[0]) and values(result) == values(undisturbed[1])
    assert not (tmp_path / "executed").exists()


def test_when_the_folder_holds_another_run_then_error_names_the_file(tmp_path):
    stopped(tmp_path, 3)
    for file in ("checkpoint.pt", "model.safetensors"):
        with pytest.raises(SuiteError, match=f"{file} belongs to a run with another configuration"):
            trained(with_recipe(seed=9), tmp_path)
        trained(RUN, tmp_path)


def test_when_the_disk_is_full_then_error_says_what_is_needed_and_the_last_checkpoint_stays(tmp_path, monkeypatch):
    stopped(tmp_path, 4)
    before = (tmp_path / "checkpoint.pt").read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SuiteError, match=r"cannot be written \(No space left on device\): make room on its disk"):
        eagerly(RUN, tmp_path)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.previous.pt", "checkpoint.pt"]


def test_when_the_loss_is_not_finite_then_error_names_run_step_and_last_checkpoint(tmp_path):
    run = with_recipe(lr=1e30, warmup=0)
    with pytest.raises(SuiteError, match=r"run wild \(learned, seed 1\) diverged at step 1 of 12: the .* is (nan|inf).*"
                                         r"lower lr = 1e\+30 .*last good checkpoint, step 1, is in .*wild"):
        eagerly(run, tmp_path / "wild")
    assert checkpoint.load_checkpoint(tmp_path / "wild", run)["state"]["step"] == 1


def test_when_a_run_is_finished_then_it_is_loaded_and_not_trained_unless_its_weights_are_damaged(
        tmp_path, undisturbed, caplog):
    folder, result = undisturbed

    loaded = train_run(RUN, SimpleNamespace(vocab=8), None, folder)                     # it does not ask for data
    assert states_equal(loaded.model, result.model) and values(loaded) == values(result)
    assert (loaded.seconds, loaded.tokens_per_s, loaded.peak_memory_mib) == (
        result.seconds, result.tokens_per_s, result.peak_memory_mib)
    assert load_run(RUN, tmp_path) is None
    with safe_open(folder / "model.safetensors", "pt") as file:         # the tied matrix is there once
        assert json.loads(file.metadata()["run"]) == json.loads(json.dumps(RUN.to_dict()))
        count = sum(file.get_tensor(name).numel() for name in file.keys())
    assert count == sum(p.numel() for p in build_model(RUN).parameters())
    trained(RUN, tmp_path)
    for name, damage, said in (
            ("model.safetensors", flip_a_byte_of_weights, "model.safetensors is not the file that was written"),
            ("result.json", lambda path: path.write_text("[1]"), "result.json is damaged ('str' object"),
            ("result.json", lambda path: path.write_bytes(b"\xff"), "result.json is damaged ('utf-8' codec")):
        damage(tmp_path / name)
        trained(RUN, tmp_path)
        assert weights(tmp_path) == weights(folder) and said in caplog.text
