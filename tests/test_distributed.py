"""`lib.distributed`: a plan's runs on two processes of torchrun, one of which is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from shared_training import JOBS, LONG
from small_run import trained

from lib import distributed, paths
from lib.checkpoint import load_checkpoint
from lib.database import Database
from lib.errors import SuiteError
from lib.identity import run_fingerprint

HELPER = str(Path(__file__).with_name("shared_training.py"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
FIRST, SECOND = (run_fingerprint(job.run, None) for job in JOBS)


def started(command: list[str], outputs: Path, *options: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([*command, HELPER, "lead", *options], capture_output=True, text=True, timeout=240, cwd=paths.ROOT,
                          env={**os.environ, "SUITE_OUTPUTS": str(outputs), "OMP_NUM_THREADS": "1", **environment})


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The outputs of two processes, the second of which is killed in the first run, and what was said."""
    outputs = tmp_path_factory.mktemp("outputs")
    return outputs, started(TORCHRUN, outputs, KILL="17")


@pytest.fixture
def outputs(killed, monkeypatch):
    monkeypatch.setenv("SUITE_OUTPUTS", str(killed[0]))
    return killed[0]


def test_when_a_process_is_killed_then_all_end_and_the_error_names_it_and_the_run(killed, outputs):
    ended = killed[1]
    assert ended.returncode == 1
    assert "rank      : 1" in ended.stderr and "Signal 9 (SIGKILL)" in ended.stderr
    assert f"run {FIRST} (learned, seed 1) stopped: one of the 2 processes ended" in ended.stderr
    assert "it goes on from the last checkpoint" in ended.stderr
    assert load_checkpoint(paths.run_folder("tiny", FIRST), JOBS[0].run)["state"]["step"] == 17


def test_when_the_command_is_given_again_then_another_number_of_processes_ends_the_runs_and_evaluates_them(killed, outputs):
    alone = dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    ended = started([sys.executable], outputs, **alone)
    assert ended.returncode == 0, ended.stderr
    assert "2 of 2 runs finished" in ended.stderr and "make report PROFILE=tiny" in ended.stderr
    database = Database("tiny")
    assert database.missing(JOBS) == []
    tolerance = LONG.train.steps * LONG.train.batch * LONG.train.length * 1.2e-7
    for job in JOBS:
        wanted = {(m.measure, m.step): m.value for m in trained(job.run, outputs / str(job.run.train.seed)).metrics}
        rows = database.metrics(job).query("step == step")
        found = {(row.measure, row.step): row.value for row in rows.itertuples() if row.measure == "train_loss"}
        assert len(found) == 40 and found == {key: pytest.approx(wanted[key], rel=tolerance) for key in found}
    assert (database.facts(FIRST)["device"], database.facts(FIRST)["status"]) == ("cpu", "done")


def test_when_it_is_not_started_by_torchrun_then_error_says_how(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SuiteError, match="started by torchrun: torchrun --nproc-per-node 2 -m lib.distributed"):
        distributed.joined()
