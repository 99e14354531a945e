"""Runs on the machines of a Ray cluster. The suite's own process alone writes into the database.

Ray finds the machines, starts an `Agent` where a run's GPUs and CPUs are free, and says when one is lost. An agent has
one worker process and a folder of its own, in which that works as if it were alone. Checkpoints, weights and logs come
to the suite's outputs as the runs go on, so a run whose machine dies goes on elsewhere, and the machines need no shared
file system. docs/many_machines.md is for the person who uses it.
"""


import hashlib
import importlib.util
import json
import logging
import math
import os
import queue
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from lib import paths
from lib.config import RunConfig
from lib.data import Corpus
from lib.errors import SuiteError, one_of, require
from lib.files import write_atomically
from suite.run.database import Database, claim, unpacked
from suite.run.engine import Assignment
from suite.run.worker import TAIL, Events, Hosts, WorkerProcess
from suite.settings.entrance import THREADS
from suite.settings.machine import versions
from suite.settings.privacy import require_private

FETCH_SHARE = 0.05            # of a run's time, at most, to fetch checkpoints: large ones are fetched less often
LOOK_SECONDS = 2.0            # between two looks at the machines
ANSWER_SECONDS = 10.0         # for a cluster's address to answer
PROGRESS_SECONDS = 1.0        # between two reports of a run's step: enough for eyes, little for a network
RECORDS = ("record_start", "record_training", "record_evaluation", "record_failure")    # what a machine may call here
CHECKPOINT, WEIGHTS, RESULT, LOG = "checkpoint.pt", "model.safetensors", "result.json", "log.txt"
# Ray reads its own settings when it is imported. The first: no warning that this will be its default some day.
SETTINGS = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_USAGE_STATS_ENABLED": "0"}            # a cluster that is started here reports to nobody
CODE = ("lib", "suite", "data_prep", "pyproject.toml")          # what the machines are sent of this folder


class Ray(Hosts):
    """Room on a cluster: the one of `RAY_ADDRESS`, else one that this machine is part of, else this machine alone."""
    attempts = 4                                       # machines come and go: more often than a process dies here
    here = False
    command = ("-m", "suite", "worker")                # arguments of a machine's Python
    every = 60.0              # seconds between two fetched checkpoints of a run: what a machine that dies costs at most

    def __init__(self, cpus: int | None = None, gpus: float | None = None) -> None:
        """cpus, gpus: of each run; None: 1 GPU where the cluster has any, and 1 CPU. Raises `SuiteError` at once if Ray
        is not installed, no cluster answers at RAY_ADDRESS or a number makes no sense."""
        if importlib.util.find_spec("ray") is None:
            raise SuiteError("the engine ray needs Ray, which is not installed here; `make report ENGINE=ray` and "
                             "`python3 tools/bootstrap.py ray` install it")
        require(cpus is None or cpus >= 1, "--run-cpus", cpus, "1 or more")
        require(gpus is None or gpus >= 0 and (gpus < 1 or gpus == int(gpus)), "--run-gpus", gpus,
                "0, a part of one GPU (0.5: two runs share it) or a whole number")
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        reach(os.environ.get("RAY_ADDRESS", ""))
        self.cpus, self.gpus = cpus or 1, gpus
        self.transfers = threading.Lock()              # one checkpoint at a time: there is one network here
        self.looked, self.room, self.mine, self.sent = 0.0, 0, False, None

    def open(self, profile: str, corpus: Corpus | None, note: Callable[[str], None]) -> None:
        """Join the cluster. `SuiteError` if there is none at the address, or no machine has room for a run."""
        import ray
        self.corpus, log = corpus, paths.profile_outputs(profile) / "ray.log"
        if not ray.is_initialized():
            connect(log)
            self.mine = True
        machines = self.machines()
        cpus, gpus = (max((machine.get(kind, 0) for machine in machines), default=0) for kind in ("CPU", "GPU"))
        self.gpus = min(gpus, 1) if self.gpus is None else self.gpus
        share = f"{self.cpus} CPU{'s' * (self.cpus > 1)}"
        share = f"{self.gpus:g} GPU{'s' * (self.gpus > 1)} and {share}" if self.gpus else share
        if self.count() == 0:
            raise SuiteError(f"a run needs {share}, and no machine of the Ray cluster has as many (at most {cpus:g} "
                             f"CPUs and {gpus:g} GPUs on one of {len(machines)}): ask for fewer with --run-cpus and "
                             "--run-gpus, or add machines")
        note(f"Ray: {self.room} runs side by side, each on {share} (--run-cpus, --run-gpus), on {len(machines)} "
             f"machine{'s' * (len(machines) != 1)}; a run waits while others use them; Ray's messages: {log}")

    def machines(self) -> list[dict[str, float]]:
        import ray
        return [node["Resources"] for node in ray.nodes() if node["Alive"]]

    def count(self) -> int:
        """Runs that the machines now have room for, whether or not others use the machines too."""
        if time.monotonic() - self.looked > LOOK_SECONDS:
            shares = {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}
            self.looked = time.monotonic()
            self.room = sum(math.floor(min(machine.get(kind, 0) / share for kind, share in shares.items()))
                            for machine in self.machines())
        return self.room

    def start(self, events: Events) -> "RayWorker":
        import ray
        settings = dict.fromkeys(THREADS, str(self.cpus)) | ({} if self.gpus else {"CUDA_VISIBLE_DEVICES": ""})
        agent = ray.remote(Agent).options(num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0, max_concurrency=8,
                                          scheduling_strategy="SPREAD").remote(list(self.command), settings)
        return RayWorker(self, agent, events)

    def parcel(self) -> dict[str, Any]:
        """The corpus as Ray objects by file; put into Ray once, however many machines ask."""
        import ray
        with self.transfers:
            if self.sent is None:
                for name in self.corpus.manifest["files"]:         # whoever wrote the manifest, nothing else is sent
                    require(not {"/", ".."} & {*Path(name).parts}, f"{self.corpus.path}/manifest.json, files", name,
                            "a file of that folder; delete the folder, and it is built again")
                self.sent = {name: ray.put(np.fromfile(self.corpus.path / name, np.uint8))
                             for name in [*self.corpus.manifest["files"], "manifest.json"]}
        return self.sent

    def close(self) -> None:
        import ray
        self.sent = None
        if self.mine:
            ray.shutdown()


class RayWorker:
    """An agent on some machine, as the engine sees it (`suite.run.worker`). Its thread follows the runs."""

    def __init__(self, cluster: Ray, agent: Any, events: Events) -> None:
        self.cluster, self.agent, self.events = cluster, agent, events
        self.task: Assignment | None = None
        self.ready = False
        self.messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def give(self, task: Assignment, message: dict[str, Any]) -> None:
        self.task = task
        self.messages.put(message)

    def end(self) -> None:
        """At once; the machine's folder is tidied up if the machine answers."""
        import ray
        self.messages.put(None)
        if self.ready:
            ray.wait([self.agent.close.remote()], timeout=5)
        ray.kill(self.agent)
        self.thread.join(10)

    def serve(self) -> None:
        import ray
        try:
            first = ray.get(self.agent.ready.remote())
            self.meet(first)
            self.events.put((self, first))
            while (message := self.messages.get()) is not None:
                self.events.put((self, self.perform(message)))
        except Exception as error:                     # whatever it is, a thread that ends must say so
            words = re.sub(r"\b\d+(\.\d+){3}\b", "another machine", str(error)).splitlines()[-TAIL:]
            self.events.put((self, {"event": "died", "how": reason(error), "words": words}))

    def meet(self, first: dict[str, Any]) -> None:
        """The machine must have the versions of this one, or its results would not belong to the others."""
        for name, version in versions().items():
            other = first["versions"][name]
            if other.partition("+")[0] != version.partition("+")[0]:       # +cpu and +cu128 are one version
                raise SuiteError(f"a machine has {name} {other}, this one {version}: make the same environment there")
        self.outputs = first["outputs"]

    def perform(self, message: dict[str, Any]) -> dict[str, Any]:
        """A run brought to its end elsewhere; the event that says how it ended. The lock in its folder is held here."""
        import ray
        corpus, run, agent = self.cluster.corpus, RunConfig.from_dict(message["run"]), self.agent
        folder = paths.run_folder(message["profile"], message["fingerprint"])
        with claim(folder / "lock") as mine, closing(Database(message["profile"], corpus)) as database:
            if not mine:
                return {"event": "busy"}
            if message["corpus"] and not ray.get(agent.has_text.remote(message["corpus"], corpus.fingerprint)):
                ray.get(agent.receive_text.remote(corpus.fingerprint, self.cluster.parcel()))
            message = {**message, "slots": 0, "trained": database.trained(run)}
            earlier = {name: np.fromfile(folder / name, np.uint8) for name in (CHECKPOINT, WEIGHTS, RESULT, LOG)
                       if (folder / name).exists()}
            due = time.monotonic() + self.cluster.every
            for reference in agent.perform.remote(message, earlier):
                event = ray.get(reference)
                if event["event"] == "record":
                    if event["call"] == "record_training":
                        self.fetch(folder)             # as a worker here: first the weights, then their row
                    call = getattr(database, one_of(event["call"], RECORDS, "record"))
                    call(run, *json.loads(event["given"], object_hook=unpacked))
                elif event["event"] in ("progress", "recorded", "note"):
                    self.events.put((self, event))
                    if time.monotonic() >= due:
                        due = time.monotonic() + max(self.cluster.every, self.fetch(folder) / FETCH_SHARE)
            self.fetch(folder)                         # the last event says how the run ended
        if "error" in event:                           # the run's folder has another name here
            event["error"] = event["error"].replace(self.outputs, str(paths.outputs()))
        return event

    def fetch(self, folder: Path) -> float:
        """Bring the run's `folder` up to what the machine has; the seconds that it took."""
        import ray
        begin = time.monotonic()
        with self.cluster.transfers:
            changed = ray.get(self.agent.changed.remote())
            for name in (WEIGHTS, RESULT, LOG, CHECKPOINT):
                if name in changed:
                    write_atomically(folder / name, changed[name].data)
            if RESULT in changed:                      # the run is trained: as on that machine, without checkpoints
                for path in folder.glob("checkpoint*.pt"):
                    path.unlink()
        return time.monotonic() - begin


# On a machine of the cluster

def scratch() -> Path:
    """What a machine keeps for the suite: texts, and a folder per worker. `TMPDIR` of `ray start` moves it."""
    return Path(tempfile.gettempdir()) / f"sparse-attention-suite-{os.getuid()}"


class Agent:
    """A Ray actor. `perform` gives a run's events; the suite asks for `changed` files meanwhile."""

    def __init__(self, command: Sequence[str], settings: Mapping[str, str]) -> None:
        self.home, self.lock = own_folder(scratch() / "places")
        os.environ["SUITE_OUTPUTS"] = str(self.home / "outputs")
        self.events: Events = queue.Queue()
        self.process = WorkerProcess([sys.executable, *command], self.events, settings)
        self.run, self.sent, self.text = paths.outputs(), {}, ""

    def ready(self) -> dict[str, Any]:
        """Waits for the worker's first word: `ready`, or `died` with the reason."""
        return {**self.events.get()[1], "versions": versions(), "outputs": str(paths.outputs())}

    def perform(self, message: dict[str, Any], files: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
        """The events of one run, which goes on from `files`, until `done`, `failed` or `died`."""
        folder = paths.run_folder(message["profile"], message["fingerprint"])
        shutil.rmtree(folder.parent, ignore_errors=True)               # the run before, which the suite has fetched
        for name, content in files.items():
            write_atomically(folder / name, content.data)
        self.run, self.sent, due, stage, event = folder, {}, 0.0, "", {"event": ""}
        self.process.give(None, {**message, "corpus": self.text if message["corpus"] else None})
        while event["event"] not in ("done", "failed", "died"):
            _, event = self.events.get()
            if event["event"] != "progress" or event["stage"] != stage or time.monotonic() >= due:
                due, stage = time.monotonic() + PROGRESS_SECONDS, event.get("stage", "")
                yield event

    def changed(self) -> dict[str, np.ndarray]:
        """The files of the present run that changed since the last call, read in an order that leaves no gap: where the
        checkpoint is gone, result and weights are there."""
        files = {}
        for name in (CHECKPOINT, RESULT, WEIGHTS, LOG):
            with suppress(FileNotFoundError), open(self.run / name, "rb") as file:
                facts = os.fstat(file.fileno())        # of the file that is read, though it may be replaced meanwhile
                signature = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
                if signature != self.sent.get(name):
                    self.sent[name], files[name] = signature, np.fromfile(file, np.uint8)
        return files

    def has_text(self, path: str, fingerprint: str) -> bool:
        """Whether the corpus is here: at the suite's path, if the machines share a file system, or sent before."""
        for folder in (Path(path), scratch() / "texts" / fingerprint):
            with suppress(SuiteError, OSError):
                if Corpus(folder).fingerprint == fingerprint:
                    self.text = str(folder)
                    return True
        return False

    def receive_text(self, fingerprint: str, files: Mapping[str, Any]) -> None:
        """Write the corpus from its files (Ray objects); the workers of a machine share one copy."""
        import ray
        folder = scratch() / "texts" / fingerprint
        partial = folder.with_suffix(".partial")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if self.has_text("", fingerprint):
                return                                 # another worker of this machine has just received it
            shutil.rmtree(partial, ignore_errors=True)
            for name, reference in files.items():
                write_atomically(partial / name, ray.get(reference).data)
            for name, facts in Corpus(partial).manifest["files"].items():
                with open(partial / name, "rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != facts["sha256"]:
                        raise SuiteError(f"{name} of the corpus is not as its manifest says: delete the corpus's "
                                         "folder, and it is built again")
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
        self.text = str(folder)

    def close(self) -> None:
        """End the worker and leave nothing behind but the texts."""
        self.process.end()
        shutil.rmtree(self.home, ignore_errors=True)


def own_folder(folder: Path) -> tuple[Path, FileLock]:
    """A new folder in `folder`, locked while this process lives. The folders of killed processes are deleted."""
    for made in (folder.parent, folder):
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_private("TMPDIR", folder.parent)           # its name can be foretold, and /tmp is everybody's
    with FileLock(folder / "lock"):
        for other in [path for path in folder.iterdir() if path.is_dir()]:
            with claim(other / "lock") as abandoned:
                if abandoned:
                    shutil.rmtree(other, ignore_errors=True)
        own = Path(tempfile.mkdtemp(dir=folder))
        lock = FileLock(own / "lock", thread_local=False)
        lock.acquire()
    return own, lock


# The cluster

def connect(log: Path) -> None:
    """Join the cluster; what Ray has to say goes to the file `log`, since its bursts would tear the display."""
    import ray
    import ray._private.worker as internals
    log.parent.mkdir(parents=True, exist_ok=True)

    def keep(data: dict[str, Any], *_: Any, **__: Any) -> None:
        with open(log, "a", encoding="utf-8") as file:
            start = f"{time.strftime('%H:%M:%S')} ({data.get('pid')}) "
            file.writelines(f"{start}{line}\n" for line in data.get("lines", ()))
    if hasattr(internals, "print_to_stdstream"):       # it prints whatever `log_to_driver` says, without a switch
        internals.print_to_stdstream = keep
    others = [f"/{path.name}" for path in paths.ROOT.iterdir() if path.name not in CODE]
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR,
                 runtime_env={"working_dir": str(paths.ROOT), "excludes": [*others, "__pycache__"]})
    except Exception as error:                         # Ray raises whatever occurs to it, plain `Exception` among them
        raise no_cluster(os.environ.get("RAY_ADDRESS", ""), error) from error


def reach(address: str) -> None:
    """Raise a `SuiteError` unless a cluster answers at this RAY_ADDRESS (empty: none is named); it is not joined yet.
    Ray itself would try for minutes, and print its attempts."""
    if address.startswith("ray://"):
        raise SuiteError(f"RAY_ADDRESS = {address!r} is not valid: start the suite on a machine of the cluster (its "
                         "first one, for instance), with RAY_ADDRESS=auto")
    if address in ("", "local"):
        return
    from ray._private.services import canonicalize_bootstrap_address
    try:
        host, _, port = canonicalize_bootstrap_address(address).rpartition(":")
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
    except Exception as error:
        raise no_cluster(address, error) from None


def no_cluster(address: str, error: Exception) -> SuiteError:
    what = f"no Ray cluster answers at RAY_ADDRESS = {address!r}" if address else "Ray does not start here"
    return SuiteError(f"{what} ({first_line(error)}): start one with `ray start --head` and name its address, or unset "
                      "RAY_ADDRESS to use this machine alone")



def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def reason(error: Exception) -> str:
    from ray.exceptions import RayActorError, RayTaskError
    if isinstance(error, RayActorError):
        return "its machine is gone" if "node" in str(error).lower() else "its process on that machine is gone"
    return first_line(error.cause if isinstance(error, RayTaskError) else error)
