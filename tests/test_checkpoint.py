"""A run that is killed, or whose files are damaged, ends as one that was left alone."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import multiprocessing
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from small_run import RECIPE, RUN, states_equal, stopped, trained, values, weights, with_recipe

from lib import checkpoint, training
from lib.config import RunConfig
from lib.errors import SuiteError
from lib.model import build_model
from lib.training import load_run, train_run

LONG = with_recipe(steps=120, eval_every=50)


def train_eagerly(run: RunConfig, folder: Path) -> None:
    training.CHECKPOINT_SHARE = math.inf
    trained(run, folder, checkpoint_every=0.0)


def kill_after_checkpoints(folder: Path, count: int) -> int:
    """Train LONG in another process, SIGKILL it after `count` checkpoints; the step that it had kept by then."""
    child = multiprocessing.get_context("spawn").Process(target=train_eagerly, args=(LONG, folder))
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


@pytest.mark.parametrize("damage", [flip_a_byte_of_weights, lambda path: path.write_bytes(path.read_bytes()[:1000]),
                                    lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("names", [("checkpoint.pt",), ("checkpoint.pt", "checkpoint.previous.pt")])
def test_when_checkpoints_are_damaged_then_they_are_set_aside_and_the_result_is_the_same(
        tmp_path, undisturbed, caplog, damage, names):
    stopped(tmp_path, 7)
    for name in names:
        damage(tmp_path / name)
    left = checkpoint.load_checkpoint(tmp_path, RUN)
    assert (left["state"]["step"] if left else 0) == (6 if len(names) == 1 else 0)
    assert all(f"{name} is damaged" in caplog.text and (tmp_path / f"{name}.damaged").exists() for name in names)
    result = trained(RUN, tmp_path)
    assert weights(tmp_path) == weights(undisturbed[0]) and values(result) == values(undisturbed[1])


def test_when_the_folder_holds_another_run_then_error_names_the_file(tmp_path):
    stopped(tmp_path, 3)
    with pytest.raises(SuiteError, match="checkpoint.pt belongs to a run with another configuration"):
        trained(with_recipe(seed=9), tmp_path)
    trained(RUN, tmp_path)
    with pytest.raises(SuiteError, match="model.safetensors belongs to a run with another configuration"):
        trained(with_recipe(seed=9), tmp_path)


def test_when_a_checkpoint_holds_code_or_is_not_there_then_nothing_is_executed_and_the_one_before_is_taken(tmp_path):
    stopped(tmp_path, 7)
    (tmp_path / "checkpoint.pt").unlink()                        # killed between the two renames
    assert checkpoint.load_checkpoint(tmp_path, RUN)["state"]["step"] == 6
    (tmp_path / "checkpoint.previous.pt").unlink()

    class Code:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)
    torch.save({"run": checkpoint.canonical(RUN), "state": Code()}, tmp_path / "checkpoint.pt")
    assert checkpoint.load_checkpoint(tmp_path, RUN) is None
    assert not (tmp_path / "executed").exists() and (tmp_path / "checkpoint.pt.damaged").exists()


def test_when_the_disk_is_full_then_error_says_what_is_needed_and_the_last_checkpoint_stays(tmp_path, monkeypatch):
    stopped(tmp_path, 4)
    before = (tmp_path / "checkpoint.pt").read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(training, "CHECKPOINT_SHARE", math.inf)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SuiteError, match=r"cannot be written \(No space left on device\): make room for 0\.\d MiB"):
        trained(RUN, tmp_path, checkpoint_every=0.0)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.previous.pt", "checkpoint.pt"]


def test_when_the_loss_is_not_finite_then_error_names_run_step_and_last_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SHARE", math.inf)
    run = with_recipe(lr=1e30, warmup=0)
    with pytest.raises(SuiteError, match=r"run wild \(learned, seed 1\) diverged at step 1 of 12: the .* is (nan|inf).*"
                                         r"lower lr = 1e\+30 .*last good checkpoint, step 1, is in .*wild"):
        trained(run, tmp_path / "wild", checkpoint_every=0.0)
    assert checkpoint.load_checkpoint(tmp_path / "wild", run)["state"]["step"] == 1


def test_when_a_run_is_finished_then_it_is_loaded_and_not_trained(tmp_path, undisturbed):
    folder, result = undisturbed

    def batch(*_):
        raise AssertionError("a finished run asked for data")
    loaded = train_run(RUN, SimpleNamespace(vocab=8, batch=batch), None, folder)
    assert states_equal(loaded.model, result.model) and values(loaded) == values(result)
    assert (loaded.seconds, loaded.tokens_per_s, loaded.peak_memory_mib) == (
        result.seconds, result.tokens_per_s, result.peak_memory_mib)
    assert load_run(RUN, tmp_path) is None


def test_when_final_weights_are_stored_then_the_tied_matrix_is_there_once_and_damage_means_to_train_again(
        tmp_path, undisturbed, caplog):
    with safe_open(undisturbed[0] / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["run"]) == json.loads(json.dumps(RUN.to_dict()))
        count = sum(file.get_tensor(name).numel() for name in file.keys())
    assert count == build_model(RUN).parameter_count()
    trained(RUN, tmp_path)
    flip_a_byte_of_weights(tmp_path / "model.safetensors")
    trained(RUN, tmp_path)
    assert weights(tmp_path) == weights(undisturbed[0])
    assert "model.safetensors is not the file that was written" in caplog.text
