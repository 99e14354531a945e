"""A step over several processes, in parts and compiled, against one process that takes the batch at once."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
import torch.nn.functional as F
from shared_training import LONG, SCENARIOS, Source, perform
from small_run import RUN, trained, values, weights, with_recipe

from lib import checkpoint, resources, step, training
from lib.config import PatternSpec, RunConfig
from lib.errors import SuiteError
from lib.model import build_model
from lib.resources import Clock
from lib.step import Ranks, Step
from lib.training import build_optimizer, train_run
from suite.settings.fingerprints import run_fingerprint
from suite.tasks import make_source

EPS = torch.finfo(torch.float32).eps


def near(run) -> float:
    """A sum of a step's numbers in another order errs by EPS a number at most, and each step adds what it errs."""
    return run.train.steps * run.train.batch * run.train.length * EPS


def assert_near(state: dict, wanted: dict, run) -> None:
    for name, value in wanted.items():
        torch.testing.assert_close(torch.as_tensor(state[name]), torch.as_tensor(value), rtol=near(run),
                                   atol=run.train.lr * near(run), msg=lambda text, name=name: f"{name}: {text}")


# Two processes


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What each of two processes has seen of every scenario: {name: (first, second)}, and the folders."""
    folder = tmp_path_factory.mktemp("both")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "CHECKPOINT_SHARE", float("inf"))
        assert perform(replace(SCENARIOS["stopped"], run=LONG), folder / "handed", Ranks())["error"] == "stopped"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                   "OMP_NUM_THREADS": "1"}
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["even", "uneven", "parts", "memory"])
def test_when_two_processes_train_then_windows_curve_and_weights_are_those_of_one_within_rounding(both, tmp_path, name):
    scenario, (first, second) = SCENARIOS[name], both[0][name]
    one = perform(replace(scenario, at_once=(0, 0), fits=(100, 100)), tmp_path, Ranks())
    assert first["metrics"] == second["metrics"] and first["state"] == second["state"]
    for (*what, value), (*same, other) in zip(one["metrics"], first["metrics"], strict=True):
        assert what == same and other == pytest.approx(value, rel=near(scenario.run)), what
    assert_near(first["state"], one["state"], scenario.run)
    if name == "memory":                                            # one process alone takes fewer rows at once
        assert first["tried"] == [4] and second["tried"] == [1, 2, 4]
        return
    assert [at for at, _ in one["seen"]] == [0, *range(scenario.run.train.steps)]   # the first also to measure
    assert all([tuple(seen) for seen in process["seen"]] == one["seen"] for process in (first, second))


@pytest.mark.slow
def test_when_precision_is_bf16_then_two_processes_stay_near_one(both, tmp_path):
    one, (two, _) = perform(SCENARIOS["bf16"], tmp_path, Ranks()), both[0]["bf16"]
    alone, together = ([m[3] for m in seen["metrics"] if m[0] == "train_loss"] for seen in (one, two))
    assert alone == pytest.approx(together, abs=0.02)


@pytest.mark.slow
def test_when_two_processes_cannot_train_then_both_say_why(both):
    first, second = (process["error"] for process in both[0]["wild"])
    assert first == second.replace("there is no checkpoint yet", first.rpartition("; ")[2])
    assert "diverged at step 1 of 12" in first and "last good checkpoint, step 1" in first
    assert both[0]["too few"][1]["error"] == "batch = 1 is not valid: a window for each of the 2 processes, or more"


@pytest.mark.slow
def test_when_a_run_is_handed_between_one_process_and_two_then_it_ends_as_one_alone(both, tmp_path):
    seen, folder = both
    assert [process["error"] for process in seen["stopped"]] == ["stopped", "stopped"]
    assert [at for at, _ in seen["resumed"][1]["seen"]] == [23, *range(23, 40)]
    assert sorted(path.name for path in (folder / "resumed").iterdir()) == ["model.safetensors", "result.json"]
    assert seen["resumed"][0]["state"] == seen["resumed"][1]["state"]
    kept = checkpoint.load_checkpoint(folder / "stopped", LONG)
    assert kept["state"]["step"] == 23 and list(kept["model"]) == list(build_model(LONG).state_dict())
    undisturbed = perform(SCENARIOS["resumed"], tmp_path / "alone", Ranks())["state"]
    source = Source(LONG)
    from_two = train_run(LONG, source, None, folder / "stopped").model.state_dict()
    assert [at for at, _ in source.seen] == [23, *range(23, 40)]
    for state in (from_two, seen["handed"][0]["state"], seen["resumed"][0]["state"]):
        assert_near(state, undisturbed, LONG)


@pytest.mark.parametrize("batch, size", [(7, 3), (5, 5), (9, 2)])
def test_when_a_batch_is_divided_then_every_row_is_one_processs_and_parts_differ_by_one_at_most(batch, size):
    parts = [list(range(batch))[Ranks(rank, size).rows(batch)] for rank in range(size)]
    assert [row for part in parts for row in part] == list(range(batch))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_when_one_process_is_alone_then_nothing_is_sent_and_errors_are_its_own():
    assert Ranks().sum(1.5, 2.0) == (1.5, 2.0) and Ranks().of_first(lambda: 3) == 3
    with pytest.raises(SuiteError, match="mine"):
        Ranks().of_first(lambda: (_ for _ in ()).throw(SuiteError("mine")))


# Parts of a batch in one process


def gradients(run, at_once: int) -> tuple[float, dict]:
    """Loss and gradients of the first step in float64."""
    model = build_model(run).double()
    split = Step(model, run, Ranks(), "cpu")
    split.at_once = at_once
    loss = split.gradients(*Source(run, True).batch(1, 0, run.train.batch, run.train.length), Clock({}, "cpu"))
    return loss, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("at_once", [1, 3, 7, 100])
def test_when_a_batch_is_taken_in_parts_then_loss_and_gradients_are_those_of_its_mean(at_once):
    run = with_recipe(batch=7)
    model = build_model(run).double()
    inputs, targets = Source(run, True).batch(1, 0, 7, 16)
    wanted = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100)
    wanted.backward()
    loss, split = gradients(run, at_once)
    assert loss == pytest.approx(wanted.item(), rel=1e-12)
    for name, p in model.named_parameters():
        torch.testing.assert_close(split[name], p.grad, rtol=1e-10, atol=1e-14)


def test_when_a_batch_is_taken_at_once_then_its_loss_is_that_of_the_model_to_the_last_bit():
    model, again = build_model(RUN), build_model(RUN)
    batch = make_source(RUN.data, None).batch(1, 0, 4, 16)
    wanted = model.loss(*batch)
    wanted.backward()
    split = Step(again, RUN, Ranks(), "cpu")
    split.at_once = 4
    assert split.gradients(*batch, Clock({}, "cpu")) == wanted.item()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(again.parameters(), model.parameters(), strict=True))


def test_when_training_goes_in_parts_then_it_ends_as_at_once_within_rounding(tmp_path, monkeypatch):
    whole = trained(RUN, tmp_path / "whole").model.state_dict()
    for at_once in (4, 1):
        monkeypatch.setattr(step, "rows_at_once", lambda *_, at_once=at_once: at_once)
        assert_near(trained(RUN, tmp_path / str(at_once)).model.state_dict(), whole, RUN)
        assert (weights(tmp_path / "whole") == weights(tmp_path / str(at_once))) == (at_once == 4)


def limited(monkeypatch, fits: int, after: int = 0) -> list[int]:
    """A GPU without memory for more than `fits` rows, from call `after` on; the rows of all calls."""
    forward, calls = step.Loss.forward, []

    def attempt(self, inputs, targets, scored):
        calls.append(len(inputs))
        if len(calls) > after and len(inputs) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return forward(self, inputs, targets, scored)
    monkeypatch.setattr(step.Loss, "forward", attempt)
    return calls


@pytest.mark.parametrize("after, calls", [(0, [4, 2, 1, 1, 1, 1, 1, 1, 1]), (1, [4, 3, 2, 1, 1, 1, 1, 1, 1, 1])])
def test_when_memory_ends_then_the_step_is_taken_again_in_smaller_parts_and_counts_once(monkeypatch, after, calls):
    run = with_recipe(batch=7)
    _, wanted = gradients(run, 7)
    made = limited(monkeypatch, 1, after)
    _, split = gradients(run, 4)
    assert made == calls
    for name, gradient in wanted.items():
        torch.testing.assert_close(split[name], gradient, rtol=1e-10, atol=1e-14)


def test_when_one_window_does_not_fit_then_error_says_so(monkeypatch):
    limited(monkeypatch, 0)
    with pytest.raises(torch.OutOfMemoryError, match="memory ends with 1 of the 4 windows of 16 tokens at once; a GPU "
                                                     r"with more memory, or a shorter length \(CUDA out of memory"):
        gradients(RUN, 4)


# How many rows fit

IN, MIDDLE = 32, 48
A_ROW = 4 * (IN + 2 * MIDDLE)


class Two(torch.nn.Module):
    """A backward pass needs of each row the input, the sine's argument and its value; the weights exist anyway."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(IN, MIDDLE), torch.nn.Linear(MIDDLE, 1)
        self.calls = []

    def forward(self, rows: int) -> torch.Tensor:
        self.calls.append(rows)
        return self.down(torch.sin(self.up(torch.ones(rows, IN)))).sum()


def test_when_a_model_is_known_then_what_it_keeps_is_measured_exactly_by_row_and_of_any_batch():
    model, fixed = Two(), torch.ones(1000, requires_grad=True)
    assert resources.kept_bytes(model, model, 8) == (0, A_ROW) and model.calls == [1, 2]
    assert resources.kept_bytes(model, model, 1) == (0, A_ROW) and model.calls == [1, 2, 1]
    assert resources.kept_bytes(lambda rows: model(rows) + (fixed * 2).square().sum(), model, 8) == (4000, A_ROW)


@pytest.mark.parametrize("fitting, rows", [(100, 16), (16, 16), (15.9, 8), (7.9, 6), (6, 6), (0.1, 1)])
def test_when_memory_is_short_then_the_batch_is_taken_in_parts_of_equal_size(monkeypatch, fitting, rows):
    model = Two()
    still = 3 * sum(p.nbytes for p in model.parameters())
    free = (fitting * A_ROW * (1.1 + 2) + still + resources.WORK["cpu"]) / resources.SHARE["cpu"]
    monkeypatch.setattr(resources, "free_memory", lambda device: free + 1)
    assert resources.rows_at_once(model, 16, model, 0, "cpu") == rows


def test_when_the_optimiser_holds_its_moments_already_then_they_are_not_set_aside_again(monkeypatch):
    model, asked = build_model(RUN), []
    optimizer, batch = build_optimizer(model, RUN.train), make_source(RUN.data, None).batch(1, 0, 4, 16)
    monkeypatch.setattr(step, "rows_at_once", lambda loss, rows, *more: asked.append(more[1:]) or rows)
    split = Step(model, RUN, Ranks(), "cpu")
    split.prepare(*batch, optimizer)
    assert asked.pop() == (0, "cpu", 3)
    model.loss(*batch).backward()
    optimizer.step()
    split.prepare(*batch, optimizer)
    moments = 2 * sum(p.nbytes for p in model.parameters())
    assert moments <= asked[0][0] <= moments + 8 * len(list(model.parameters()))           # and a counter each


def test_when_memory_is_short_then_what_a_part_keeps_fits_into_it(monkeypatch):
    """By the layers' own count: 2 layers of some KiB a token cannot be taken 64 windows at once in 8 MiB."""
    run, room = with_recipe(batch=64, length=128), 8 * 2 ** 20
    model, batch = build_model(run), make_source(run.data, None).batch(1, 0, 64, 128)
    monkeypatch.setattr(resources, "free_memory", lambda device: 2 * (room + resources.WORK["cpu"]))
    split = Step(model, run, Ranks(), "cpu")
    split.prepare(*batch, build_optimizer(model, run.train))
    assert 1 <= split.at_once < 64
    assert resources.kept_by(lambda: split.forward(*(x[:split.at_once] for x in batch)), model) < room
    assert resources.kept_by(lambda: split.forward(*batch), model) > room


def groups(folder, monkeypatch, *limits: tuple[str, int]):
    """Control groups one in another, each with a limit and bytes in use, 100 of which are files that can be dropped."""
    name = ""
    monkeypatch.setattr(resources, "CGROUPS", folder / "cgroup")
    monkeypatch.setattr(resources, "OWN_CGROUP", folder / "own")
    for number, (limit, used) in enumerate(limits):
        name += f"/{number}" if number else ""
        here = folder / "cgroup" / name.lstrip("/")
        here.mkdir(parents=True, exist_ok=True)
        stat = "anon 5\nactive_file 60\ninactive_file 40\nfile 999\n"
        for file, text in (("max", limit), ("current", used), ("stat", stat)):
            (here / f"memory.{file}").write_text(f"{text}\n")
    (folder / "own").write_text(f"0::{name or '/'}\n")


def test_when_a_batch_system_limits_memory_then_the_least_of_all_limits_counts(tmp_path, monkeypatch):
    groups(tmp_path / "all", monkeypatch, ("max", 5), ("3000", 1000), ("5000", 1000))
    assert sorted(resources.allowed()) == [2100, 4100] and resources.free_memory("cpu") == 2100
    groups(tmp_path / "none", monkeypatch, ("max", 5))
    assert resources.allowed() == []
    monkeypatch.setattr(resources, "OWN_CGROUP", tmp_path / "absent")
    assert 0 < resources.free_memory("cpu") <= psutil.virtual_memory().total


# Compiled


def first_step(run: RunConfig) -> tuple[Step, float, dict[str, torch.Tensor]]:
    """The first step as training takes it: loss and gradients."""
    model, batch = build_model(run), make_source(run.data, None).batch(1, 0, run.train.batch, run.train.length)
    split = Step(model, run, Ranks(), "cpu")
    split.prepare(*batch, build_optimizer(model, run.train))
    return split, split.gradients(*batch, Clock({}, "cpu")), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and there is no g++")
def test_when_a_step_is_compiled_then_loss_gradients_and_names_of_weights_are_those_without_it(monkeypatch):
    _, wanted, plain = first_step(RUN)
    monkeypatch.setenv("SUITE_COMPILE", "1")
    split, loss, compiled = first_step(RUN)
    assert split.loss.hidden is not split.model.hidden, "it was not compiled"
    assert list(split.model.state_dict()) == list(build_model(RUN).state_dict())
    rounding = 4 * RUN.train.batch * RUN.train.length * EPS         # the sums over tokens, in another order
    assert loss == pytest.approx(wanted, rel=rounding)
    for name, gradient in plain.items():
        atol = rounding * gradient.abs().max().item()
        torch.testing.assert_close(compiled[name], gradient, rtol=rounding, atol=atol)


def test_when_compiling_fails_then_one_line_says_so_and_the_run_is_the_one_without_it(tmp_path, monkeypatch, caplog):
    def broken(model, dynamic):
        def call(*_):
            raise RuntimeError("\nno compiler is installed\nand much more")
        return call
    plain = trained(RUN, tmp_path / "plain")
    monkeypatch.setenv("SUITE_COMPILE", "1")
    monkeypatch.setattr(torch, "compile", broken)
    result = trained(RUN, tmp_path / "broken")
    assert weights(tmp_path / "broken") == weights(tmp_path / "plain") and values(result) == values(plain)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "torch.compile does not work here (RuntimeError: no compiler is installed): the run goes on without it; "
        "SUITE_COMPILE=0 does not try"]


def test_when_memory_ends_in_a_compiled_program_then_it_is_not_the_compilers_fault(monkeypatch):
    def small(hidden, dynamic):
        def call(tokens):
            if len(tokens) > 1:
                raise torch.OutOfMemoryError("simulated")
            return hidden(tokens)
        return call
    monkeypatch.setenv("SUITE_COMPILE", "1")
    monkeypatch.setattr(torch, "compile", small)
    split, _, _ = first_step(RUN)
    assert split.at_once == 1 and split.loss.hidden is not split.model.hidden


PAPER = RunConfig(PatternSpec("dense"))


@pytest.mark.parametrize("run, device, asked, reason", [
    (PAPER, "cuda", "", ""), (PAPER, "cuda", "0", "SUITE_COMPILE=0"), (PAPER, "cpu", "1", ""),
    (PAPER, "cpu", "", "on a cpu the suite has kernels of its own"), (RUN, "cuda", "", "too short"),
    (RUN, "cuda", "1", ""), (with_recipe(PAPER, steps=300), "cuda", "", "too short"),
    (replace(PAPER, pattern=PatternSpec("blurred")), "cuda", "1", "changes from step to step")])
def test_when_a_run_is_long_enough_and_on_a_gpu_then_it_is_compiled_unless_the_variable_says_otherwise(
        run, device, asked, reason):
    why = step.why_not(run, device, asked)
    assert reason in why if reason else why == ""


def test_when_a_run_is_not_compiled_then_the_log_says_why_and_its_fingerprint_is_the_same(caplog, monkeypatch):
    monkeypatch.delenv("SUITE_COMPILE", raising=False)
    with caplog.at_level(logging.INFO):
        assert step.compiled(build_model(RUN), RUN, "cpu") is None
    assert caplog.messages == ["run without torch.compile: on a cpu the suite has kernels of its own; "
                               "SUITE_COMPILE=1 compiles all the same"]
    before = run_fingerprint(RUN, None)
    monkeypatch.setenv("SUITE_COMPILE", "1")
    assert run_fingerprint(RUN, None) == before
    with pytest.raises(SuiteError, match="unknown value of SUITE_COMPILE 'yes'"):
        step.why_not(RUN, "cuda", "yes")
