"""A step over several processes and in parts, against one process that takes the batch at once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from shared_training import LONG, SCENARIOS, Source, perform
from small_run import RUN, trained, weights, with_recipe

from lib import checkpoint, ranks, training
from lib.clock import Clock
from lib.errors import SuiteError
from lib.model import build_model
from lib.ranks import Ranks, Step
from lib.train_run import train_run
from suite.tasks import make_source

EPS = torch.finfo(torch.float32).eps


def near(run) -> float:
    """A sum of a step's numbers in another order errs by EPS a number at most, and each step adds what it errs."""
    return run.train.steps * run.train.batch * run.train.length * EPS


def alone(name: str, folder: Path) -> dict:
    return perform(replace(SCENARIOS[name], at_once=(0, 0), fits=(100, 100), stop=None), folder, Ranks())


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What each of two processes has seen of every scenario: {name: (first, second)}, and the folders."""
    folder = tmp_path_factory.mktemp("both")
    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as patch:
        patch.setattr(training, "CHECKPOINT_SHARE", float("inf"))
        assert perform(replace(SCENARIOS["stopped"], run=LONG), folder / "handed", Ranks())["error"] == "stopped"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("shared_training.py")), str(folder)]
    children = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
                for rank in (0, 1)]
    try:
        ended = [child.communicate(timeout=240)[1] for child in children]
    finally:
        for child in children:
            child.kill()
    assert [child.returncode for child in children] == [0, 0], "\n".join(ended)
    return {name: tuple(json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in (0, 1))
            for name in SCENARIOS}, folder


# Two processes


@pytest.mark.parametrize("name", ["even", "uneven", "parts", "memory"])
def test_when_two_processes_train_then_curve_and_weights_are_those_of_one_within_rounding(both, tmp_path, name):
    one, (first, second) = alone(name, tmp_path), both[0][name]
    run = SCENARIOS[name].run
    assert first["metrics"] == second["metrics"] and first["state"] == second["state"]
    for (*mine, value), (*theirs, other) in zip(one["metrics"], first["metrics"], strict=True):
        assert mine == theirs and other == pytest.approx(value, rel=near(run)), mine
    for key, values in one["state"].items():
        torch.testing.assert_close(torch.tensor(first["state"][key]), torch.tensor(values), rtol=near(run),
                                   atol=run.train.lr * near(run), msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", ["even", "uneven", "parts"])
def test_when_two_processes_train_then_each_draws_the_windows_of_one_in_the_same_order(both, tmp_path, name):
    one = alone(name, tmp_path)["seen"]
    assert [step for step, _ in one] == [0, *range(SCENARIOS[name].run.train.steps)]           # the first also to measure
    for process in both[0][name]:
        assert [tuple(seen) for seen in process["seen"]] == one


def test_when_precision_is_bf16_then_two_processes_stay_near_one(both, tmp_path):
    one, (first, _) = alone("bf16", tmp_path), both[0]["bf16"]
    losses = [[m[3] for m in found["metrics"] if m[0] == "train_loss"] for found in (one, first)]
    assert losses[0] == pytest.approx(losses[1], abs=0.02)


def test_when_one_process_has_less_memory_then_it_alone_takes_fewer_rows_at_once(both):
    first, second = both[0]["memory"]
    assert first["tried"] == [4] and second["tried"] == [1, 2, 4]


def test_when_two_processes_diverge_then_both_say_the_same_step_and_no_other_checkpoint_is_written(both):
    first, second = (found["error"] for found in both[0]["wild"])
    assert first == second.replace("there is no checkpoint yet", first.rpartition("; ")[2])
    assert "diverged at step 1 of 12" in first and "last good checkpoint, step 1" in first


def test_when_there_are_more_processes_than_windows_then_error_names_both(both):
    assert both[0]["too few"][1]["error"] == "batch = 1 is not valid: a window for each of the 2 processes, or more"


def test_when_two_processes_stop_and_go_on_then_the_weights_are_those_of_two_that_did_not(both, tmp_path):
    found, folder = both
    assert [process["error"] for process in found["stopped"]] == ["stopped", "stopped"]
    assert [step for step, _ in found["resumed"][1]["seen"]] == [23, *range(23, 40)]
    assert sorted(path.name for path in (folder / "resumed").iterdir()) == ["model.safetensors", "result.json"]
    assert found["resumed"][0]["state"] == found["resumed"][1]["state"]


def test_when_a_checkpoint_goes_from_two_processes_to_one_or_back_then_the_run_ends_as_one_alone(both, tmp_path):
    found, folder = both
    kept = checkpoint.load_checkpoint(folder / "stopped", LONG)
    assert kept["state"]["step"] == 23 and list(kept["model"]) == list(build_model(LONG).state_dict())
    undisturbed = perform(replace(SCENARIOS["resumed"]), tmp_path / "alone", Ranks())
    source = Source(LONG)
    from_two = train_run(LONG, source, None, folder / "stopped").model.state_dict()
    assert [step for step, _ in source.seen] == [23, *range(23, 40)]
    for name, values in undisturbed["state"].items():
        for other in (from_two[name].tolist(), found["handed"][0]["state"][name], found["resumed"][0]["state"][name]):
            torch.testing.assert_close(torch.tensor(other), torch.tensor(values), rtol=near(LONG),
                                       atol=LONG.train.lr * near(LONG))


# Parts of a batch in one process


def gradients(run, at_once: int, uneven: bool = True, ranks_: Ranks = Ranks()) -> tuple[float, dict]:
    """Loss and gradients of the first step in float64."""
    model = build_model(run).double()
    step = Step(model, run, ranks_, "cpu")
    step.at_once = at_once
    loss = step.gradients(*Source(run, uneven).batch(1, 0, run.train.batch, run.train.length), Clock({}, "cpu"))
    return loss, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 7, 100])
def test_when_a_batch_is_taken_in_parts_then_loss_and_gradients_are_those_of_its_mean(at_once):
    run = with_recipe(batch=7)
    model = build_model(run).double()
    inputs, targets = Source(run, True).batch(1, 0, 7, 16)
    wanted = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100)
    wanted.backward()
    loss, found = gradients(run, at_once)
    assert loss == pytest.approx(wanted.item(), rel=1e-12)
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], p.grad, rtol=1e-10, atol=1e-14, msg=lambda text, name=name: f"{name}: {text}")


def test_when_a_batch_is_taken_at_once_then_its_loss_is_that_of_the_model_to_the_last_bit():
    model = build_model(RUN)
    inputs, targets = make_source(RUN.data, None).batch(1, 0, 4, 16)
    wanted = model.loss(inputs, targets)
    wanted.backward()
    mine = build_model(RUN)
    step = Step(mine, RUN, Ranks(), "cpu")
    step.at_once = 4
    assert step.gradients(inputs, targets, Clock({}, "cpu")) == wanted.item()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(mine.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("at_once", [4, 1])
def test_when_training_goes_in_parts_then_it_ends_as_at_once_within_rounding(tmp_path, monkeypatch, at_once):
    whole = trained(RUN, tmp_path / "whole").model
    monkeypatch.setattr(ranks, "rows_at_once", lambda *_, **__: at_once)
    parts = trained(RUN, tmp_path / "parts").model
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=near(RUN), atol=RUN.train.lr * near(RUN))
    assert (weights(tmp_path / "whole") == weights(tmp_path / "parts")) == (at_once == 4)


def limited(monkeypatch, fits: int, after: int = 0) -> list[int]:
    """A GPU without memory for more than `fits` rows, from call `after` on; the rows of all calls."""
    forward, calls = ranks.Loss.forward, []

    def attempt(self, inputs, targets, scored):
        calls.append(len(inputs))
        if len(calls) > after and len(inputs) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return forward(self, inputs, targets, scored)
    monkeypatch.setattr(ranks.Loss, "forward", attempt)
    return calls


@pytest.mark.parametrize("after, calls", [(0, [4, 2, 1, 1, 1, 1, 1, 1, 1]), (1, [4, 3, 2, 1, 1, 1, 1, 1, 1, 1])])
def test_when_memory_ends_then_the_step_is_taken_again_in_smaller_parts_and_counts_once(monkeypatch, after, calls):
    run = with_recipe(batch=7)
    _, wanted = gradients(run, 7)
    made = limited(monkeypatch, 1, after)
    _, found = gradients(run, 4)
    assert made == calls
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-14)


def test_when_one_window_does_not_fit_then_error_says_so(monkeypatch):
    limited(monkeypatch, 0)
    with pytest.raises(torch.OutOfMemoryError, match="memory ends with 1 of the 4 windows of 16 tokens at once; a GPU with "
                                                     r"more memory, or a shorter length \(CUDA out of memory"):
        gradients(RUN, 4)


@pytest.mark.parametrize("batch, size", [(7, 3), (5, 5), (32, 8), (9, 2)])
def test_when_a_batch_is_divided_then_every_row_is_one_processs_and_parts_differ_by_one_at_most(batch, size):
    parts = [list(range(batch))[Ranks(rank, size).rows(batch)] for rank in range(size)]
    assert [row for part in parts for row in part] == list(range(batch))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_when_one_process_is_alone_then_nothing_is_sent_and_errors_are_its_own():
    assert Ranks().sum(1.5, 2.0) == (1.5, 2.0) and Ranks().of_first(lambda: 3) == 3
    with pytest.raises(SuiteError, match="mine"):
        Ranks().of_first(lambda: (_ for _ in ()).throw(SuiteError("mine")))
