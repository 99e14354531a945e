"""`suite.run.torchrun`: a plan's runs on two processes of torchrun, one of which is killed."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock
from shared_training import JOBS, LONG
from small_run import RUN, trained, with_recipe

from lib import paths
from lib.checkpoint import load_checkpoint
from lib.errors import SuiteError
from lib.step import Ranks
from suite.experiments.base import Job
from suite.run import torchrun as distributed
from suite.run.database import Database
from suite.run.worker import Worker
from suite.settings.fingerprints import run_fingerprint

HELPER = str(Path(__file__).with_name("shared_training.py"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
FIRST = run_fingerprint(JOBS[0].run, None)


def started(command: list[str], outputs: Path, **environment: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "SUITE_OUTPUTS": str(outputs), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([*command, HELPER], capture_output=True, text=True, timeout=240, cwd=paths.ROOT,
                          env=environment)


@pytest.mark.slow
def test_when_a_process_is_killed_then_all_end_and_fewer_processes_end_and_evaluate_the_runs(outputs):
    ended = started(TORCHRUN, outputs, KILL="17")
    assert ended.returncode == 1
    assert "rank      : 1" in ended.stderr and "Signal 9 (SIGKILL)" in ended.stderr
    stopped = rf"run {FIRST} \(learned, seed 1\) stopped: (one of the 2 processes ended|terminated)"
    assert re.search(stopped, ended.stderr)
    assert "it goes on from the last checkpoint" in ended.stderr
    assert load_checkpoint(paths.run_folder("tiny", FIRST), JOBS[0].run)["state"]["step"] == 17
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


def folder(job: Job) -> Path:
    return paths.run_folder("tiny", run_fingerprint(job.run, None))


def test_when_only_weights_are_asked_for_then_no_database_is_touched_and_the_next_lead_enters_them(lead):
    status, last, _ = lead([Job.of(RUN)], True)
    assert status == 0 and "1 of 1 runs finished" in last and not paths.database("tiny").exists()
    changed = (folder(Job.of(RUN)) / "model.safetensors").stat().st_mtime_ns
    status, last, _ = lead([Job.of(RUN)], False)
    assert status == 0 and Database("tiny").trained(RUN)
    assert (folder(Job.of(RUN)) / "model.safetensors").stat().st_mtime_ns == changed
    assert "0 of 0 runs finished" in lead([Job.of(RUN)], False)[1]
    runs = [with_recipe(steps=2, warmup=1, eval_every=0, lr=lr, seed=seed) for lr in (1e-3, 2e-3) for seed in (5, 6)]
    lead([Job.of(run) for run in runs], True)
    ended = sorted(runs, key=lambda run: (folder(Job.of(run)) / "result.json").stat().st_mtime_ns)
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
    folder(taken).mkdir(parents=True)
    with FileLock(folder(taken) / "lock"):
        status, last, said = lead([taken, wild, Job.of(with_recipe(seed=4)), good], weights_only)
    assert status == 1 and "1 of 4 runs finished" in last and "1 in the hands of another job" in last
    assert "FAILED: learned, seed 1: run" in said and "diverged at step" in said
    assert str(folder(wild) / "log.txt") in said and "FAILED: learned, seed 4: KeyError: 'broken'" in said
    assert not (folder(taken) / "result.json").exists() and (folder(good) / "result.json").exists()
