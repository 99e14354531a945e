"""The parts of the Ray engine, without a cluster: shares, addresses, versions, files and texts on their way."""

from __future__ import annotations

import queue
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock
from fake_jobs import Quiet, job
from test_ray import (folder,  # noqa: F401  (two of them are fixtures)
                      outputs, ray, text)

from lib.data import Corpus
from lib.errors import SuiteError
from lib.files import write_atomically
from suite.run.engine import Assignment, ensure
from suite.run import ray_agent, ray_hosts
from suite.run.ray_hosts import Ray
from suite.run.worker import Worker
from suite.settings.machine import versions


@pytest.mark.parametrize(("cpus", "gpus", "room"), [
    (1, None, 4 + 0 + 1), (1, 0, 16 + 8 + 2), (4, 1, 4 + 0 + 0), (1, 0.5, 8 + 0 + 2), (1, 0.1, 16 + 0 + 2), (2, 2, 2 + 0 + 0)])
def test_when_machines_have_gpus_then_a_run_has_one_unless_the_person_says_otherwise(monkeypatch, cpus, gpus, room):
    machines = [{"CPU": 16.0, "GPU": 4.0}, {"CPU": 8.0}, {"CPU": 2.0, "GPU": 1.0}]
    monkeypatch.setattr(Ray, "machines", lambda self: machines)
    monkeypatch.setattr(ray_hosts, "connect", lambda log: None)
    cluster, told = Ray(cpus, gpus), []
    cluster.open("tiny", None, told.append)
    assert cluster.count() == room and f"{room} runs side by side" in told[0]


@pytest.mark.parametrize("numbers", [{"cpus": 0}, {"gpus": -1.0}, {"gpus": 1.5}])
def test_when_a_run_is_to_have_an_impossible_share_then_it_is_refused(numbers):
    with pytest.raises(SuiteError, match="--run-"):
        Ray(**numbers)


def test_when_nobody_answers_at_the_address_then_it_is_said_within_seconds(monkeypatch):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))                  # it does not listen
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(SuiteError, match="no Ray cluster answers at RAY_ADDRESS = .*refused.*unset RAY_ADDRESS"):
            ensure([job(1)], "tiny", None, shown=Quiet(), hosts=Ray())


def test_when_the_address_is_that_of_a_client_then_the_error_says_where_to_start(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://somewhere:10001")
    with pytest.raises(SuiteError, match="on a machine of the cluster"):
        ensure([job(1)], "tiny", None, shown=Quiet(), hosts=Ray())


def test_when_a_machine_has_other_versions_then_its_worker_is_refused():
    worker = ray_hosts.RayWorker.__new__(ray_hosts.RayWorker)
    ready = {"event": "ready", "words": (), "outputs": "there", "versions": {**versions(), "torch": "2.13.0+cu130"}}
    worker.meet(ready)
    assert worker.outputs == "there"
    with pytest.raises(ray_hosts.Lost, match="numpy 1.0, this one"):
        worker.meet({**ready, "versions": {**versions(), "numpy": "1.0"}})


def test_when_a_corpus_arrives_damaged_then_it_is_refused_and_the_next_one_is_taken(monkeypatch, tmp_path, text):
    monkeypatch.setattr(ray_agent, "scratch", lambda: tmp_path / "scratch")
    monkeypatch.setattr(ray, "put", lambda content: content)
    monkeypatch.setattr(ray, "get", lambda content: content)
    monkeypatch.setattr(ray_hosts, "PART", 999)
    agent, cluster = ray_agent.Agent.__new__(ray_agent.Agent), Ray()
    cluster.corpus = text
    files, sums = cluster.parcel()
    with pytest.raises(SuiteError, match="train-a.bin of the corpus is not as its manifest says"):
        agent.receive_text(text.fingerprint, {**files, "train-a.bin": files["train-a.bin"][:-1]}, sums)
    assert not agent.has_text("nowhere", text.fingerprint)
    agent.receive_text(text.fingerprint, files, sums)
    assert agent.has_text("nowhere", text.fingerprint) and Corpus(Path(agent.text)).tokens("train", "a").shape == (5000,)
    assert agent.has_text(str(tmp_path / "text"), text.fingerprint) and agent.text == str(tmp_path / "text")


def test_when_a_run_s_files_change_elsewhere_then_the_driver_s_folder_follows(monkeypatch, tmp_path):
    monkeypatch.setattr(ray, "get", lambda content: content)
    there, here, cluster = tmp_path / "there", tmp_path / "here", Ray(every=3600)
    there.mkdir()
    agent = ray_agent.Agent.__new__(ray_agent.Agent)
    agent.run, sent = there, []

    def changed(known):
        sent.append(agent.changed(known))
        return sent[-1]
    mirror = ray_hosts.Mirror(SimpleNamespace(changed=SimpleNamespace(remote=changed)), here, cluster)

    def written(**content: str) -> set[str]:
        for name, text in content.items():
            write_atomically(there / name.replace("_", "."), text.encode())
        mirror.fetch()
        return {path.name for path in here.iterdir()}
    assert written(checkpoint_pt="step 1", log_txt="one\n") == {"checkpoint.pt", "log.txt"}
    assert written(log_txt="two\n") == {"checkpoint.pt", "log.txt"} and set(sent[-1]) == {"log.txt"}
    (there / "checkpoint.pt").unlink()                 # as between the renamings of `save_checkpoint`
    assert "checkpoint.pt" in written() and bytes(mirror.files()["checkpoint.pt"]) == b"step 1"
    written(checkpoint_pt="step 2")
    assert bytes(mirror.files()["checkpoint.pt"]) == b"step 2"
    mirror.fetch_if_due()
    assert len(sent) == 4                              # it is not: an hour has not passed
    (there / "checkpoint.pt").unlink()
    (here / "checkpoint.previous.pt").write_text("of an earlier start, on this machine")
    assert written(model_safetensors="weights", result_json="{}") == {"model.safetensors", "result.json", "log.txt"}


def test_when_a_run_is_in_another_suite_s_hands_then_it_is_busy():
    one = job(1)
    folder(one).mkdir(parents=True)
    with FileLock(folder(one) / "lock"):
        worker = ray_hosts.RayWorker.__new__(ray_hosts.RayWorker)
        assert worker.perform(Assignment(one, folder(one).name, ""), {"profile": "tiny"}) == {"event": "busy"}


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
    kept, lock = ray_agent.own_folder(tmp_path)
    (tmp_path / "left" / "outputs").mkdir(parents=True)
    own, _ = ray_agent.own_folder(tmp_path)
    assert {path for path in tmp_path.iterdir() if path.is_dir()} == {kept, own} and lock.is_locked
