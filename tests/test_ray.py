"""Runs on a Ray cluster: a head and two machines, that are processes of this one. One of them is killed in the middle."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from fake_jobs import Quiet, job

from lib import paths
from lib.config import DataConfig, Evaluation
from lib.data import Corpus
from lib.errors import SuiteError
from suite.experiments.base import Job
from suite.run.database import Database
from suite.run.engine import EngineError, ensure
from suite.run.hosts import Local
from suite.run.ray_hosts import SETTINGS, Ray
from suite.settings.fingerprints import run_fingerprint

os.environ.update(SETTINGS)                            # before Ray reads them
ray = pytest.importorskip("ray", reason="Ray is not installed: python3 tools/bootstrap.py ray")

pytestmark = pytest.mark.slow
HERE = Path(__file__).resolve().parent
FAKE, QUICK = (str(HERE / "fake_worker.py"),), (str(HERE / "quick_worker.py"),)
# A dead machine is noticed within seconds, a slow one is given the time that a busy test machine takes.
QUICKLY = {"health_check_initial_delay_ms": 5000, "health_check_period_ms": 300, "health_check_failure_threshold": 5}
NODE = {"object_store_memory": 80 * 2 ** 20, "include_log_monitor": False}          # no more than the tests need


def patiently(start):
    """Ray gives up on helpers of its own that need more than 15 seconds to start (ray-project/ray#65983): on a machine whose
    cores are all taken several times over, that is the rule."""
    for _ in range(3):
        try:
            return start()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    pytest.skip("this machine is too busy for Ray, which gives its helpers 15 seconds to start")


@pytest.fixture(scope="module")
def machines():
    """A head without CPUs, where the driver is, and two machines of one CPU each."""
    from ray.cluster_utils import Cluster
    head = {"num_cpus": 0, "include_dashboard": False, "no_monitor": True, "_system_config": QUICKLY, **NODE}
    cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        for _ in range(2):
            patiently(lambda: cluster.add_node(num_cpus=1, **NODE))
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        del os.environ["RAY_ADDRESS"]


@pytest.fixture(autouse=True)
def outputs(tmp_path, monkeypatch):
    monkeypatch.setenv("SUITE_OUTPUTS", str(tmp_path / "driver"))
    return tmp_path


def folder(one: Job, corpus: Corpus | None = None) -> Path:
    return paths.run_folder("tiny", run_fingerprint(one.run, corpus))


def log(one: Job, corpus: Corpus | None = None) -> list[str]:
    return (folder(one, corpus) / "log.txt").read_text().splitlines()


def on_ray(*jobs: Job, command: tuple[str, ...] = FAKE, corpus: Corpus | None = None, shown: Quiet | None = None) -> None:
    ensure(jobs, "tiny", corpus, shown=shown or Quiet(), hosts=Ray(cpus=1, gpus=0, command=command, every=0.1))


def results(*jobs: Job, corpus: Corpus) -> list:
    """All that the database and the folders have of what the runs computed."""
    found, database = [], Database("tiny", corpus)
    for one in jobs:
        metrics = database.metrics(one)
        found += [metrics[[c for c in metrics if c not in ("run_seconds", "run_tokens_per_s", "run_peak_memory_mib")]].to_csv()]
        weights = (folder(one, corpus) / "model.safetensors").read_bytes()
        found += [database.array(one, one.evaluations[0], "nll.a.64").tobytes(), weights]
    database.close()
    return found


@pytest.fixture
def text(tmp_path, monkeypatch) -> Corpus:
    """A corpus whose path says nothing on another machine: it is relative to this test's folder."""
    files = {f"{split}-a.bin": np.random.default_rng(size).integers(1, 64, size).astype(np.uint16).tobytes()
             for split, size in (("train", 5000), ("heldout", 2000))}
    facts = {name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()} for name, content in files.items()}
    manifest = {"config": {"vocab": 64}, "domains": {"a": {}}, "token_type": "uint16", "files": facts, "notes": []}
    (tmp_path / "text").mkdir()
    for name, content in {**files, "manifest.json": json.dumps(manifest).encode()}.items():
        (tmp_path / "text" / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    return Corpus(Path("text"))


def on_text(seed: int, steps: int) -> Job:
    run = replace(job(seed, steps=steps).run, data=DataConfig.of("text"))
    return Job.of(run, Evaluation.of("perplexity", tokens=512))


class Killer(Quiet):
    """A display that kills one of the machines, once the driver has checkpoints of both runs."""

    def __init__(self, cluster, *folders: Path):
        super().__init__()
        self.cluster, self.folders, self.killed = cluster, folders, False

    def show(self, snapshot):
        super().show(snapshot)
        if not self.killed and all((path / "checkpoint.pt").exists() for path in self.folders):
            self.killed = True
            self.cluster.remove_node(next(iter(self.cluster.worker_nodes)), allow_graceful=False)


def test_when_a_machine_is_killed_then_its_run_goes_on_elsewhere_and_the_results_are_those_of_this_machine(
        machines, monkeypatch, outputs, text):
    jobs = [on_text(seed, 60) for seed in (1, 2)]
    shown = Killer(machines, *(folder(one, text) for one in jobs))
    on_ray(*jobs, command=QUICK, corpus=text, shown=shown)
    begun = [[int(line.split()[-1]) for line in log(one, text) if line.startswith("from step")] for one in jobs]
    assert shown.killed and sorted(map(len, begun)) == [1, 2]                       # one of them had to go on
    assert [steps[0] for steps in begun] == [0, 0] and 0 < max(begun, key=len)[1] < 60
    assert any(a.stage == "training" and a.steps == 60 and a.loss for s in shown.snapshots for a in s.active)
    assert shown.summary.startswith("2 runs finished") and not list(paths.outputs().rglob("checkpoint*"))
    elsewhere = results(*jobs, corpus=text)
    monkeypatch.setenv("SUITE_OUTPUTS", str(outputs / "local"))
    ensure(jobs, "tiny", Corpus(text.path.resolve()), shown=Quiet(), hosts=Local(1))
    assert elsewhere == results(*jobs, corpus=text)


def test_when_runs_fail_or_their_processes_die_then_the_others_go_on_and_the_error_has_their_logs(machines, monkeypatch):
    monkeypatch.setattr(Ray, "attempts", 2)
    with pytest.raises(EngineError) as error:
        on_ray(job(1, behaviour="raise", pause=0.05), job(2, behaviour="die", pause=0.05), job(3, 1, 0), job(4))
    text = str(error.value)
    assert "3 runs failed" in text and "local, seed 1: ValueError: no such luck" in text
    assert "local, seed 2: its process died twice (killed by signal 9" in text and "| about to be killed" in text
    assert "local, seed 3: evaluation task: ValueError: nothing to count" in text
    assert [line for line in log(job(2, behaviour="die", pause=0.05)) if line.startswith("train ")] == [
        "train 2 from 0", "train 2 from 2"]                                         # the second from the first's checkpoint
    assert "Traceback (most recent call last):" in log(job(1, behaviour="raise", pause=0.05))
    database = Database("tiny")
    row = database.facts(run_fingerprint(job(1, behaviour="raise", pause=0.05).run, None))
    assert (row["status"], row["error"]) == ("failed", "ValueError: no such luck")
    assert database.missing([job(3, 1), job(4)]) == []
    assert database.array(job(4), Evaluation.of("task", count=1), "right").tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


SUITE = """
import sys
sys.path.insert(0, "tests")
from test_ray import job, on_ray
on_ray(job(1, pause=0.05, steps=STEPS))
"""


def test_when_the_driver_is_killed_then_the_cluster_stops_its_runs_and_the_next_start_goes_on(machines):
    one, trained_here = job(1, pause=0.05, steps=60), job(2, 1)
    ensure([trained_here], "tiny", None, shown=Quiet(), hosts=Local(1, (sys.executable, *FAKE)))
    row = dict(Database("tiny").facts(run_fingerprint(trained_here.run, None)))
    suite = subprocess.Popen([sys.executable, "-c", SUITE.replace("STEPS", "60")], cwd=paths.ROOT)
    deadline = time.monotonic() + 120
    while not (folder(one) / "checkpoint.pt").exists():
        assert time.monotonic() < deadline and suite.poll() is None
        time.sleep(0.05)
    worker = psutil.Process(int(log(one)[0].split()[-1]))              # a log begins with the number of the process
    suite.kill()
    suite.wait()
    worker.wait(20)
    on_ray(one, job(2, 1, 5))
    (first, second) = [int(line.split()[-1]) for line in log(one) if line.startswith("train 1 from")]
    assert first == 0 < second < 60
    assert dict(Database("tiny").facts(row["run"])) == row and "load 2 from 4" in log(trained_here)     # evaluated there
    assert Database("tiny").missing([job(2, 1, 5)]) == []


def test_when_no_machine_has_what_a_run_asks_for_then_it_is_said_at_once(machines):
    for asked, words in (({"cpus": 3}, "3 CPUs.*at most 1 CPUs and 0 GPUs"), ({"gpus": 0.5}, "0.5 GPU and 1 CPU")):
        with pytest.raises(SuiteError, match=words):
            ensure([job(1)], "tiny", None, shown=Quiet(), hosts=Ray(**asked, command=FAKE))
