"""A step over several processes, in parts and compiled, against one process that takes the batch at once; and
`suite.run.torchrun`: a plan's runs on two processes of torchrun, one of which is killed."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import small_run
import torch
import torch.multiprocessing
import torch.nn.functional as F
from filelock import FileLock
from small_run import JOBS, LONG, RUN, SCENARIOS, Source, all_scenarios, limited, perform, stopped, trained, with_recipe

from lib import checkpoint, paths, resources, step
from lib.config import PatternSpec, RunConfig
from lib.errors import SuiteError
from lib.model import build_model
from lib.resources import Clock
from lib.step import Ranks, Step
from lib.training import build_optimizer
from suite.experiments.base import Job
from suite.run import torchrun as distributed
from suite.run.database import Database
from suite.run.worker import Worker
from suite.settings.fingerprints import run_fingerprint

EPS = torch.finfo(torch.float32).eps


def near(run) -> float:
    """A sum of a step's numbers in another order errs by EPS a number at most, and each step adds what it errs."""
    return run.train.tokens * EPS


def first_batch(run: RunConfig, uneven: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return Source(run, uneven).batch(1, 0, run.train.batch, run.train.length)


def assert_near(state: dict, wanted: dict, run) -> None:
    for name, value in wanted.items():
        torch.testing.assert_close(torch.as_tensor(state[name]), torch.as_tensor(value), rtol=near(run),
                                   atol=run.train.lr * near(run), msg=lambda text, name=name: f"{name}: {text}")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What each of two processes has seen of every scenario: {name: (first, second)}, and the folders."""
    folder = tmp_path_factory.mktemp("both")
    stopped(folder / "handed", 23, LONG)
    torch.multiprocessing.spawn(all_scenarios, (folder,), nprocs=2)
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
def test_when_two_processes_train_in_bf16_or_cannot_train_then_they_stay_near_one_or_both_say_why(both, tmp_path):
    one, (two, _) = perform(SCENARIOS["bf16"], tmp_path, Ranks()), both[0]["bf16"]
    alone, together = ([m[3] for m in seen["metrics"] if m[0] == "train_loss"] for seen in (one, two))
    assert alone == pytest.approx(together, abs=0.02)
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
    from_two = trained(LONG, folder / "stopped", source).model.state_dict()
    assert [at for at, _ in source.seen] == [23, *range(23, 40)]
    for state in (from_two, seen["handed"][0]["state"], seen["resumed"][0]["state"]):
        assert_near(state, undisturbed, LONG)


def test_when_a_batch_is_divided_then_every_row_is_one_processs_and_one_alone_sends_nothing():
    for batch, size in ((7, 3), (5, 5), (9, 2)):
        parts = [list(range(batch))[Ranks(rank, size).rows(batch)] for rank in range(size)]
        assert [row for part in parts for row in part] == list(range(batch))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert Ranks().sum(1.5, 2.0) == (1.5, 2.0) and Ranks().of_first(lambda: 3) == 3
    with pytest.raises(SuiteError, match="mine"):
        Ranks().of_first(lambda: (_ for _ in ()).throw(SuiteError("mine")))


def first_step(run: RunConfig, at_once: int = 0) -> tuple[Step, float, dict[str, torch.Tensor]]:
    """The first step as training takes it: loss and gradients. With `at_once` it takes parts of so many rows, in
    float64, and some targets are not scored."""
    model, batch = build_model(run), first_batch(run, bool(at_once))
    split = Step(model.double() if at_once else model, run, Ranks(), "cpu")
    if at_once:
        split.at_once = at_once
    else:
        split.prepare(*batch, build_optimizer(model, run.train))
    return split, split.gradients(*batch, Clock({}, "cpu")), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("at_once", [1, 3, 7, 100])
def test_when_a_batch_is_taken_in_parts_then_loss_and_gradients_are_those_of_its_mean(at_once):
    run = with_recipe(batch=7)
    model, (inputs, targets) = build_model(run).double(), first_batch(run, uneven=True)
    wanted = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100)
    wanted.backward()
    _, loss, split = first_step(run, at_once)
    assert loss == pytest.approx(wanted.item(), rel=1e-12)
    for name, p in model.named_parameters():
        torch.testing.assert_close(split[name], p.grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("after, calls", [(0, [4, 2, 1, 1, 1, 1, 1, 1, 1]), (1, [4, 3, 2, 1, 1, 1, 1, 1, 1, 1])])
def test_when_memory_ends_then_the_step_is_taken_again_in_smaller_parts_and_counts_once(monkeypatch, after, calls):
    run = with_recipe(batch=7)
    *_, wanted = first_step(run, 7)
    made = limited(monkeypatch, 1, after)
    *_, split = first_step(run, 4)
    assert made == calls
    for name, gradient in wanted.items():
        torch.testing.assert_close(split[name], gradient, rtol=1e-10, atol=1e-14)
    limited(monkeypatch, 0)
    with pytest.raises(torch.OutOfMemoryError, match="memory ends with 1 of the 7 windows of 16 tokens at once; a GPU "
                                                     r"with more memory, or a shorter length \(CUDA out of memory"):
        first_step(run, 4)


class Two(torch.nn.Module):
    """A backward pass needs of each row the input, the sine's argument and its value; the weights exist anyway."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.calls = torch.nn.Linear(32, 48), torch.nn.Linear(48, 1), []

    def forward(self, rows: int) -> torch.Tensor:
        self.calls.append(rows)
        return self.down(torch.sin(self.up(torch.ones(rows, 32)))).sum()


A_ROW = 4 * (32 + 2 * 48)


def test_when_a_model_is_known_then_what_it_keeps_is_measured_and_the_batch_is_taken_in_parts_that_fit(monkeypatch):
    model, fixed = Two(), torch.ones(1000, requires_grad=True)
    assert resources.kept_bytes(model, model, 8) == resources.kept_bytes(model, model, 1) == (0, A_ROW)
    assert model.calls == [1, 2, 1]
    assert resources.kept_bytes(lambda rows: model(rows) + (fixed * 2).square().sum(), model, 8) == (4000, A_ROW)
    still = 3 * sum(p.nbytes for p in model.parameters())
    for fitting, rows in ((100, 16), (16, 16), (15.9, 8), (7.9, 6), (6, 6), (0.1, 1)):      # parts of equal size
        free = (fitting * A_ROW * (1.1 + 2) + still + resources.WORK["cpu"]) / resources.SHARE["cpu"]
        monkeypatch.setattr(resources, "free_memory", lambda device, free=free: free + 1)
        assert resources.rows_at_once(model, 16, model, 0, "cpu") == rows


def test_when_the_optimiser_holds_its_moments_already_then_they_are_not_set_aside_again(monkeypatch):
    model, asked, batch = build_model(RUN), [], first_batch(RUN)
    optimizer, split = build_optimizer(model, RUN.train), Step(model, RUN, Ranks(), "cpu")
    monkeypatch.setattr(step, "rows_at_once", lambda loss, rows, *more: asked.append((rows, *more[1:])) or 3)
    split.prepare(*batch, optimizer)
    assert asked.pop() == (4, 0, "cpu", 3) and split.at_once == 3
    model.loss(*batch).backward()
    optimizer.step()
    split.prepare(*batch, optimizer)
    moments = 2 * sum(p.nbytes for p in model.parameters())
    assert moments <= asked[0][1] <= moments + 8 * len(list(model.parameters()))           # and a counter each


def test_when_a_batch_system_limits_memory_then_the_least_of_all_limits_counts(tmp_path, monkeypatch):
    root, own = tmp_path / "cgroup", tmp_path / "own"
    monkeypatch.setattr(resources, "CGROUPS", root)
    monkeypatch.setattr(resources, "OWN_CGROUP", own)
    (root / "1" / "2").mkdir(parents=True)
    for folder, limit, used in ((root, "max", 5), (root / "1", "3000", 1000), (root / "1" / "2", "5000", 1000)):
        stat = "anon 5\nactive_file 60\ninactive_file 40\nfile 999"     # 100 bytes of files, which can be dropped
        for file, text in (("max", limit), ("current", used), ("stat", stat)):
            (folder / f"memory.{file}").write_text(f"{text}\n")
    own.write_text("0::/1/2\n")
    assert sorted(resources.allowed()) == [2100, 4100] and resources.free_memory("cpu") == 2100
    own.write_text("0::/\n")
    assert resources.allowed() == []
    own.unlink()
    assert 0 < resources.free_memory("cpu") <= psutil.virtual_memory().total


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
    for name, x in plain.items():
        torch.testing.assert_close(compiled[name], x, rtol=rounding, atol=rounding * x.abs().max().item())


def test_when_compiling_fails_then_one_line_says_so_and_lack_of_memory_is_not_its_fault(monkeypatch, caplog):
    def program(hidden, dynamic):
        def call(tokens):
            if len(tokens) > 1:
                raise error
            return hidden(tokens)
        return call
    _, wanted, plain = first_step(RUN)
    monkeypatch.setenv("SUITE_COMPILE", "1")
    monkeypatch.setattr(torch, "compile", program)
    error = RuntimeError("\nno compiler is installed\nand much more")
    split, loss, found = first_step(RUN)
    model = build_model(RUN)
    at_once = model.loss(*first_batch(RUN))
    at_once.backward()
    assert loss == wanted == at_once.item() and split.at_once == 4                      # to the last bit
    assert all(torch.equal(found[name], plain[name]) and torch.equal(plain[name], p.grad)
               for name, p in model.named_parameters())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "torch.compile does not work here (RuntimeError: no compiler is installed): the run goes on without it; "
        "SUITE_COMPILE=0 does not try"]
    error = torch.OutOfMemoryError("simulated")
    split, _, _ = first_step(RUN)
    assert split.at_once == 1 and split.loss.hidden is not split.model.hidden


def test_when_a_run_is_long_enough_and_on_a_gpu_then_it_is_compiled_unless_the_variable_says_otherwise(
        caplog, monkeypatch):
    paper = RunConfig(PatternSpec("dense"))
    for run, device, asked, reason in (
            (paper, "cuda", "", ""), (paper, "cuda", "0", "SUITE_COMPILE=0"), (paper, "cpu", "1", ""),
            (RUN, "cuda", "1", ""), (with_recipe(paper, steps=300), "cuda", "", "too short"),
            (replace(paper, pattern=PatternSpec("blurred")), "cuda", "1", "changes from step to step")):
        why = step.why_not(run, device, asked)
        assert reason in why and bool(reason) == bool(why)
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


@pytest.mark.skipif(not resources.RESET.exists(), reason="this system does not let the peak of memory be measured")
def test_when_memory_is_given_back_then_the_peak_still_counts_it_until_the_next_is_measured():
    first, held = resources.PeakMemory(), psutil.Process().memory_info().rss / 2 ** 20
    torch.ones(2 ** 24).sum()
    assert 60 < first.mib() - held < 100 and resources.PeakMemory().mib() - held < 40


# A plan's runs on two processes of torchrun

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
FIRST = run_fingerprint(JOBS[0].run, None)


def started(command: list[str], outputs: Path, **environment: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "SUITE_OUTPUTS": str(outputs), "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": str(paths.ROOT), **environment}
    return subprocess.run([*command, small_run.__file__], capture_output=True, text=True, timeout=240, env=environment)


@pytest.mark.slow
def test_when_a_process_is_killed_then_all_end_and_fewer_processes_end_and_evaluate_the_runs(outputs):
    ended = started(TORCHRUN, outputs, KILL="17")
    assert ended.returncode == 1
    assert "rank      : 1" in ended.stderr and "Signal 9 (SIGKILL)" in ended.stderr
    assert re.search(rf"run {FIRST} \(learned, seed 1\) stopped: (one of the 2 processes ended|terminated).*"
                     "it goes on from the last checkpoint", ended.stderr)
    assert checkpoint.load_checkpoint(paths.run_folder("tiny", FIRST), JOBS[0].run)["state"]["step"] == 17
    ended = started([sys.executable], outputs, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="2",
                    MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    assert ended.returncode == 0, ended.stderr
    assert "2 of 2 runs finished" in ended.stderr and "make report PROFILE=tiny" in ended.stderr
    database = Database("tiny")
    assert database.missing(JOBS) == []
    tolerance = LONG.train.tokens * 1.2e-7
    for job in JOBS:
        wanted = {(m.measure, m.step): m.value for m in trained(job.run, outputs / str(job.run.train.seed)).metrics}
        rows = database.metrics(job).query("step == step")
        found = {(row.measure, row.step): row.value for row in rows.itertuples() if row.measure == "train_loss"}
        assert len(found) == 40 and found == {key: pytest.approx(wanted[key], rel=tolerance) for key in found}
    assert (database.facts(FIRST)["device"], database.facts(FIRST)["status"]) == ("cpu", "done")


def test_when_it_is_not_started_by_torchrun_then_error_says_how(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SuiteError, match="started by torchrun: torchrun --nproc-per-node 2 -m suite.run.torchrun"):
        distributed.joined()


@pytest.fixture
def lead(outputs, monkeypatch, capfd):
    """`lead(jobs, weights_only)`: exit status, the last line that was shown, and the log of all."""
    def of(jobs: list[Job], weights_only: bool) -> tuple[int, str, str]:
        monkeypatch.setattr(distributed, "planned", lambda profile, name: SimpleNamespace(jobs=jobs))
        member = distributed.Member(Ranks(), "cpu")
        status = distributed.lead(SimpleNamespace(name="tiny"), None, ["any"], member, weights_only)
        said = capfd.readouterr().err
        return status, said.splitlines()[-1], said
    return of


def folder_of(job: Job) -> Path:
    return paths.run_folder("tiny", run_fingerprint(job.run, None))


def test_when_only_weights_are_asked_for_then_no_database_is_touched_and_the_next_lead_enters_them(lead):
    status, last, _ = lead([Job.of(RUN)], True)
    assert status == 0 and "1 of 1 runs finished" in last and not paths.database("tiny").exists()
    changed = (folder_of(Job.of(RUN)) / "model.safetensors").stat().st_mtime_ns
    status, last, _ = lead([Job.of(RUN)], False)
    assert status == 0 and Database("tiny").trained(RUN)
    assert (folder_of(Job.of(RUN)) / "model.safetensors").stat().st_mtime_ns == changed
    assert "0 of 0 runs finished" in lead([Job.of(RUN)], False)[1]
    runs = [with_recipe(steps=2, warmup=1, eval_every=0, lr=lr, seed=seed) for lr in (1e-3, 2e-3) for seed in (5, 6)]
    lead([Job.of(run) for run in runs], True)
    ended = sorted(runs, key=lambda run: (folder_of(Job.of(run)) / "result.json").stat().st_mtime_ns)
    assert [run.train.seed for run in ended] == [5, 5, 6, 6]                # all first seeds before second ones


@pytest.mark.parametrize("weights_only", [True, False])
def test_when_another_job_has_a_run_then_it_is_left_to_it_and_runs_that_fail_or_break_are_named(
        lead, weights_only, monkeypatch):
    taken, wild, good = Job.of(RUN), Job.of(with_recipe(lr=1e30, warmup=0)), Job.of(with_recipe(seed=3))
    train = Worker.train

    def broken(member, run, *given, **more):
        if run.train.seed == 4:
            raise KeyError("broken")
        return train(member, run, *given, **more)
    monkeypatch.setattr(Worker, "train", broken)
    folder_of(taken).mkdir(parents=True)
    with FileLock(folder_of(taken) / "lock"):
        status, last, said = lead([taken, wild, Job.of(with_recipe(seed=4)), good], weights_only)
    assert status == 1 and "1 of 4 runs finished" in last and "1 in the hands of another job" in last
    assert "FAILED: learned, seed 1: run" in said and "diverged at step" in said
    assert str(folder_of(wild) / "log.txt") in said and "FAILED: learned, seed 4: KeyError: 'broken'" in said
    assert not (folder_of(taken) / "result.json").exists() and (folder_of(good) / "result.json").exists()
