"""Ray: its parts without a cluster, and runs on a head and two machines that are processes of this one."""

import hashlib
import json
import os
import queue
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from fake_jobs import FAKE, Quiet, folder, job, train, until
from fake_worker import Fake
from filelock import FileLock

from lib import paths
from lib.config import DataConfig, Evaluation
from lib.data import Corpus
from lib.errors import SuiteError
from lib.files import write_atomically
from suite.experiments.base import Job
from suite.run import ray_hosts
from suite.run.database import Database
from suite.run.engine import Assignment, EngineError, ensure
from suite.run.ray_hosts import SETTINGS, Agent, Ray, RayWorker
from suite.run.worker import Hosts, Worker
from suite.settings.machine import versions

os.environ.update(SETTINGS)                            # before Ray reads them
ray = pytest.importorskip("ray", reason="Ray is not installed: python3 tools/bootstrap.py ray")

# A dead machine is noticed within seconds, a slow one is given the time that a busy test machine takes.
QUICKLY = {"health_check_initial_delay_ms": 5000, "health_check_period_ms": 300, "health_check_failure_threshold": 5}
NODE = {"object_store_memory": 80 * 2 ** 20, "include_log_monitor": False}          # no more than the tests need


pytestmark = pytest.mark.usefixtures("outputs")


@pytest.fixture
def text(tmp_path, monkeypatch) -> Corpus:
    """A corpus whose path says nothing on another machine: it is relative to this test's folder."""
    files = {f"{split}-a.bin": np.random.default_rng(size).integers(1, 64, size).astype(np.uint16).tobytes()
             for split, size in (("train", 5000), ("heldout", 2000))}
    facts = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    manifest = {"config": {"vocab": 64}, "domains": {"a": {}}, "token_type": "uint16", "files": facts, "notes": []}
    for name, content in {**files, "manifest.json": json.dumps(manifest).encode()}.items():
        write_atomically(tmp_path / "text" / name, content)
    monkeypatch.chdir(tmp_path)
    return Corpus(Path("text"))


@pytest.fixture
def pair(monkeypatch) -> tuple[Agent, RayWorker]:
    """An agent and its worker in the driver, in this process: Ray passes on what it is given."""
    monkeypatch.setattr(ray, "put", lambda content: content)
    monkeypatch.setattr(ray, "get", lambda content: content)
    agent, worker = Agent.__new__(Agent), RayWorker.__new__(RayWorker)
    worker.cluster, worker.agent = Ray(), SimpleNamespace(changed=SimpleNamespace(remote=lambda: agent.changed()))
    return agent, worker


# Parts, without a cluster

@pytest.mark.parametrize(("cpus", "gpus", "room"), [
    (1, None, 4 + 0 + 1), (1, 0, 16 + 8 + 2), (4, 1, 4 + 0 + 0), (1, 0.5, 8 + 0 + 2), (2, 2, 2 + 0 + 0), (17, 0.5, 0)])
def test_when_machines_have_gpus_then_a_run_has_one_unless_the_person_says_otherwise(monkeypatch, cpus, gpus, room):
    machines = [{"CPU": 16.0, "GPU": 4.0}, {"CPU": 8.0}, {"CPU": 2.0, "GPU": 1.0}]
    monkeypatch.setattr(Ray, "machines", lambda self: machines)
    monkeypatch.setattr(ray_hosts, "connect", lambda log: None)
    cluster, told = Ray(cpus, gpus), []
    if room:
        cluster.open("tiny", None, told.append)
        assert cluster.count() == room and f"{room} runs side by side" in told[0]
    else:
        with pytest.raises(SuiteError, match="0.5 GPU and 17 CPUs, and no machine.*at most 16 CPUs and 4 GPUs"):
            cluster.open("tiny", None, told.append)


def test_when_share_or_address_is_wrong_then_it_is_said_within_seconds(monkeypatch):
    for share in ((0, None), (1, -1.0), (1, 1.5)):
        with pytest.raises(SuiteError, match="--run-"):
            Ray(*share)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))                  # it does not listen
        nobody = f"127.0.0.1:{silent.getsockname()[1]}"
        for address, words in ((nobody, "no Ray cluster answers at RAY_ADDRESS = .*refused.*unset RAY_ADDRESS"),
                               ("ray://somewhere:10001", "on a machine of the cluster")):
            monkeypatch.setenv("RAY_ADDRESS", address)
            with pytest.raises(SuiteError, match=words):
                ensure([job(1)], "tiny", None, shown=Quiet(), hosts=Ray())


def test_when_a_machine_has_other_versions_then_its_worker_is_refused(pair):
    _, worker = pair
    ready = {"event": "ready", "outputs": "there", "versions": {**versions(), "torch": "2.13.0+cu130"}}
    worker.meet(ready)
    assert worker.outputs == "there"
    with pytest.raises(SuiteError, match="numpy 1.0, this one"):
        worker.meet({**ready, "versions": {**versions(), "numpy": "1.0"}})


def test_when_a_corpus_arrives_damaged_then_it_is_refused_and_the_next_one_is_taken(monkeypatch, tmp_path, text, pair):
    monkeypatch.setattr(ray_hosts, "scratch", lambda: tmp_path / "scratch")
    agent, worker = pair
    worker.cluster.corpus = text
    files = worker.cluster.parcel()
    for damaged, words in ((files["train-a.bin"][:-1], "damaged"), (files["train-a.bin"] ^ 1, "not as its manifest")):
        with pytest.raises(SuiteError, match=f"train-a.bin.* is .*{words}"):
            agent.receive_text(text.fingerprint, {**files, "train-a.bin": damaged.copy()})
        assert not agent.has_text("nowhere", text.fingerprint)
    agent.receive_text(text.fingerprint, files)
    assert agent.has_text("nowhere", text.fingerprint)
    assert Corpus(Path(agent.text)).tokens("train", "a").shape == (5000,)
    assert agent.has_text(str(tmp_path / "text"), text.fingerprint) and agent.text == str(tmp_path / "text")


def test_when_a_run_s_files_change_elsewhere_then_the_driver_s_folder_follows(tmp_path, pair):
    agent, worker = pair
    agent.run, agent.sent, here = tmp_path / "there", {}, tmp_path / "here"

    def written(**content: str) -> dict[str, str]:
        for name, text in content.items():
            write_atomically(agent.run / name.replace("_", "."), text.encode())
        worker.fetch(here)
        return {path.name: path.read_text() for path in here.iterdir()}
    assert written(checkpoint_pt="step 1", log_txt="one") == {"checkpoint.pt": "step 1", "log.txt": "one"}
    (here / "checkpoint.pt").write_text("not sent again")
    assert written(log_txt="two") == {"checkpoint.pt": "not sent again", "log.txt": "two"}
    (agent.run / "checkpoint.pt").unlink()             # as between the renamings of `save_checkpoint`
    assert "checkpoint.pt" in written()
    assert written(checkpoint_pt="step 2")["checkpoint.pt"] == "step 2"
    (agent.run / "checkpoint.pt").unlink()
    (here / "checkpoint.previous.pt").write_text("of an earlier start, on this machine")
    assert set(written(model_safetensors="w", result_json="{}")) == {"model.safetensors", "result.json", "log.txt"}


def test_when_a_run_was_made_elsewhere_then_what_is_recorded_here_is_the_same(pair, monkeypatch, outputs):
    """The events of a worker for another machine's database reach the driver at once."""
    one, said, (_, worker) = job(1, 1, 0), [], pair
    fake = Fake(SimpleNamespace(say=lambda event, **content: said.append({"event": event, **content})))

    def perform(message, files):
        assert files["checkpoint.pt"].tobytes() == b"2"
        with monkeypatch.context() as patch:
            patch.setenv("SUITE_OUTPUTS", str(outputs / "there"))
            fake.perform(json.loads(json.dumps(message)))
        said[-1]["error"] += str(outputs / "there")
        return said
    worker.cluster.corpus, worker.outputs, worker.events, fetched = None, str(outputs / "there"), queue.Queue(), []
    worker.agent.perform, worker.fetch = SimpleNamespace(remote=perform), lambda path: fetched.append(len(said)) or 0.0
    write_atomically(folder(one) / "checkpoint.pt", b"2")
    message = Assignment(one, folder(one).name).message("tiny", None, 1)
    with FileLock(folder(one) / "lock"):
        assert worker.perform(message) == {"event": "busy"} and not said
    ended = worker.perform(message)
    assert ended["error"] == f"evaluation task: ValueError: nothing to count{outputs}" and len(fetched) == 2
    train(job(2, 1))
    tables = [Database("tiny").metrics(job(seed, 1)).drop(columns="run") for seed in (1, 2)]
    pd.testing.assert_frame_equal(*tables)
    assert Database("tiny").array(one, one.evaluations[0], "right").tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(("cpus", "gpus", "hidden"), [(1, 1, False), (3, 0, True)])
def test_when_a_worker_is_started_then_it_sees_no_more_than_its_share(monkeypatch, cpus, gpus, hidden):
    told = {}

    def remote(agent):
        return SimpleNamespace(options=lambda **options: told.update(options) or SimpleNamespace(
            remote=lambda command, settings: told.update(settings)))
    monkeypatch.setattr(ray, "remote", remote)
    monkeypatch.setattr(ray_hosts, "RayWorker", lambda *given: None)
    Ray(cpus, gpus).start(queue.Queue())
    assert (told["num_cpus"], told["num_gpus"], told["OMP_NUM_THREADS"]) == (cpus, gpus, str(cpus))
    assert (told.get("CUDA_VISIBLE_DEVICES") == "") == hidden
    monkeypatch.setenv("OMP_NUM_THREADS", str(cpus))
    Worker(None)
    assert torch.get_num_threads() == cpus
    torch.set_num_threads(1)


def test_when_a_worker_s_process_was_killed_then_its_folder_is_deleted_by_the_next(tmp_path):
    kept, lock = ray_hosts.own_folder(tmp_path)
    (tmp_path / "left" / "outputs").mkdir(parents=True)
    own, _ = ray_hosts.own_folder(tmp_path)
    assert {path for path in tmp_path.iterdir() if path.is_dir()} == {kept, own} and lock.is_locked


# A cluster

def patiently(start):
    """Ray gives up on its own helpers that need more than 15 seconds to start (ray-project/ray#65983), which is the
    rule on a machine whose cores are all taken several times over."""
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


def log(one: Job, start: str = "", corpus: Corpus | None = None) -> list[str]:
    lines = (folder(one, corpus) / "log.txt").read_text().splitlines()
    return [line for line in lines if line.startswith(start)]


def on_ray(*jobs: Job, more: tuple[str, ...] = (), corpus: Corpus | None = None, shown: Quiet | None = None) -> None:
    hosts = Ray(cpus=1, gpus=0)
    hosts.command, hosts.every = (*FAKE[1:], *more), 0.1
    ensure(jobs, "tiny", corpus, shown=shown or Quiet(), hosts=hosts)


def results(*jobs: Job, corpus: Corpus) -> list:
    """All that the database and the folders have of what the runs computed."""
    database, times = Database("tiny", corpus), ["run_seconds", "run_tokens_per_s", "run_peak_memory_mib"]
    return [(database.metrics(one).drop(columns=times).to_csv(),
             database.array(one, one.evaluations[0], "nll.a.64").tobytes(),
             (folder(one, corpus) / "model.safetensors").read_bytes()) for one in jobs]


@pytest.mark.slow
def test_when_a_machine_is_killed_then_its_run_goes_on_elsewhere_and_the_results_are_those_of_this_machine(
        machines, monkeypatch, outputs, text):
    runs = [replace(job(seed, steps=60).run, data=DataConfig.of("text")) for seed in (1, 2)]
    jobs, killed = [Job.of(run, Evaluation.of("perplexity", tokens=512)) for run in runs], []

    class Killer(Quiet):
        """Kills one of the machines, once the driver has checkpoints of both runs."""
        def show(self, snapshot):
            super().show(snapshot)
            if not killed and all((folder(one, text) / "checkpoint.pt").exists() for one in jobs):
                killed.append(next(iter(machines.worker_nodes)))
                machines.remove_node(killed[0], allow_graceful=False)
    shown = Killer()
    on_ray(*jobs, more=("slow",), corpus=text, shown=shown)
    begun = [[int(line.split()[-1]) for line in log(one, "from step", text)] for one in jobs]
    assert killed and sorted(map(len, begun)) == [1, 2]                       # one of them had to go on
    assert [steps[0] for steps in begun] == [0, 0] and 0 < max(begun, key=len)[1] < 60
    assert any(a.stage == "training" and a.steps == 60 and a.loss for s in shown.snapshots for a in s.active)
    assert shown.summary.startswith("2 runs finished") and not list(paths.outputs().rglob("checkpoint*"))
    elsewhere = results(*jobs, corpus=text)
    monkeypatch.setenv("SUITE_OUTPUTS", str(outputs / "local"))
    ensure(jobs, "tiny", Corpus(text.path.resolve()), shown=Quiet(), hosts=Hosts(1))
    assert elsewhere == results(*jobs, corpus=text)


@pytest.mark.slow
def test_when_runs_fail_or_processes_die_then_the_others_go_on_and_the_error_has_their_logs(machines, monkeypatch):
    monkeypatch.setattr(Ray, "attempts", 2)
    raising, dying = (job(seed, behaviour=how, pause=0.05) for seed, how in ((1, "raise"), (2, "die")))
    with pytest.raises(EngineError) as error:
        on_ray(raising, dying, job(3, 1, 0), job(4))
    text, database = str(error.value), Database("tiny")
    assert "3 runs failed" in text and "seed 1: ValueError: no such luck" in text and "nothing to count" in text
    assert "local, seed 2: its process died twice (killed by signal 9" in text and "| about to be killed" in text
    assert log(dying, "train ") == ["train 2 from 0", "train 2 from 2"]             # from the checkpoint of the first
    assert log(raising, "Traceback") == ["Traceback (most recent call last):"]
    row = database.facts(folder(raising).name)
    assert (row["status"], row["error"]) == ("failed", "ValueError: no such luck")
    assert database.missing([job(3, 1), job(4)]) == []


SUITE = """
import sys
sys.path.insert(0, "tests")
from test_ray import job, on_ray
on_ray(job(1, pause=0.05, steps=60))
"""


@pytest.mark.slow
def test_when_the_driver_is_killed_then_the_cluster_stops_its_runs_and_the_next_start_goes_on(machines):
    one, trained_here = job(1, pause=0.05, steps=60), job(2, 1)
    ensure([trained_here], "tiny", None, shown=Quiet(), hosts=Hosts(1, FAKE))
    row = dict(Database("tiny").facts(folder(trained_here).name))
    suite = subprocess.Popen([sys.executable, "-c", SUITE], cwd=paths.ROOT)
    until((folder(one) / "checkpoint.pt").exists, suite)
    worker = psutil.Process(int(log(one)[0].split()[-1]))              # a log begins with the number of the process
    suite.kill()
    suite.wait()
    worker.wait(20)
    on_ray(one, job(2, 1, 5))
    first, second = (int(line.split()[-1]) for line in log(one, "train 1 from"))
    assert first == 0 < second < 60
    assert dict(Database("tiny").facts(row["run"])) == row
    assert log(trained_here, "load 2 from 4")                          # evaluated there
    assert Database("tiny").missing([job(2, 1, 5)]) == []
