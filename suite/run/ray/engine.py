"""Runs on the machines of a Ray cluster. The driver, which is the suite itself, alone writes into the database.

Ray finds the machines, starts a worker where a run's GPUs and CPUs are free, and says when one is lost. Checkpoints,
weights and logs come to the driver's outputs as the runs go on, so that a run whose machine dies goes on elsewhere, and
the machines need share no file system. `docs/many_machines.md` is for the person who uses it.
"""

from __future__ import annotations

import base64
import importlib.util
import math
import os
import pickle
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout

from lib import paths
from lib.errors import SuiteError, require
from lib.files import write_atomically
from suite.run.database import Database
from suite.run.places import TAIL, THREADS, Events
from suite.run.ray.agent import (CHECKPOINT, LOG, RESULT, WEIGHTS, Agent,
                                 Signature, read)
from suite.run.ray.connection import SETTINGS, connect, reason
from suite.settings.machine import versions

if TYPE_CHECKING:
    from lib.data import Corpus
    from suite.run.engine import Task

FETCH_SECONDS = 60.0          # between two checkpoints of a run that are fetched: what a machine that dies costs at most
FETCH_SHARE = 0.05            # of the time, at most: large ones are fetched less often
LOOK_SECONDS = 2.0            # between two looks at which machines there are
WAIT_SECONDS = 60.0           # without any worker, before the person is told what may be the matter
PART = 2 ** 26                # bytes of a corpus that are one Ray object


class Lost(Exception):
    """A worker is gone: the reason in a few words, and what was heard last."""

    def __init__(self, reason: str, words: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.words = tuple(words)[-TAIL:]


class Ray:
    """Room on a cluster: that of `RAY_ADDRESS`, else one that this machine is part of, else this machine alone."""
    attempts = 4                                       # machines come and go: more often than a process dies here
    here = False

    def __init__(self, cpus: int | None = None, gpus: float | None = None, command: Sequence[str] = ("-m", "suite.run.worker"),
                 every: float = FETCH_SECONDS) -> None:
        """cpus, gpus: of each run; None: 1 GPU where the cluster has any, and 1 CPU. every: `FETCH_SECONDS`.

        Raises `SuiteError` at once where Ray is not installed or a number makes no sense.
        """
        if importlib.util.find_spec("ray") is None:
            raise SuiteError("the engine ray needs Ray, which is not installed here; `make report ENGINE=ray` and "
                             "`python3 tools/bootstrap.py ray` install it")
        require(cpus is None or cpus >= 1, "--run-cpus", cpus, "1 or more")
        require(gpus is None or gpus >= 0 and (gpus < 1 or gpus == int(gpus)), "--run-gpus", gpus,
                "0, a part of one GPU (0.5: two runs share it) or a whole number")
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        self.cpus, self.gpus, self.command, self.every = cpus or 1, gpus, command, every
        self.transfers = threading.Lock()              # one checkpoint at a time: the driver's network is one
        self.looked, self.room, self.started, self.told = 0.0, 0, [], False
        self.mine, self.parts = False, None

    def open(self, profile: str, corpus: Corpus | None, note: Callable[[str], None]) -> None:
        """Join the cluster. `SuiteError` if there is none at the address, or none of its machines has room for a run."""
        import ray
        self.profile, self.corpus, self.note = profile, corpus, note
        if not ray.is_initialized():
            connect(paths.profile_outputs(profile) / "ray.log")
            self.mine = True
        machines = self.machines()
        if self.gpus is None:
            self.gpus = 1 if any(machine.get("GPU") for machine in machines) else 0
        if self.count() == 0:
            most = {kind: max((machine.get(kind, 0) for machine in machines), default=0) for kind in ("CPU", "GPU")}
            raise SuiteError(f"a run needs {self.share()}, and no machine of the Ray cluster has as many (at most "
                             f"{most['CPU']:g} CPUs and {most['GPU']:g} GPUs on one of {len(machines)}): "
                             "ask for fewer with --run-cpus and --run-gpus, or add machines")
        note(f"Ray: {self.room} runs side by side, each on {self.share()} (--run-cpus, --run-gpus), on "
             f"{'1 machine' if len(machines) == 1 else f'{len(machines)} machines'}; its messages: "
             f"{paths.profile_outputs(profile) / 'ray.log'}")

    def share(self) -> str:
        """What a run has to itself."""
        gpus = f"{self.gpus:g} GPU{'s' * (self.gpus > 1)} and " if self.gpus else ""
        return f"{gpus}{self.cpus} CPU{'s' * (self.cpus > 1)}"

    def machines(self) -> list[dict[str, float]]:
        """What each living machine has."""
        import ray
        return [node["Resources"] for node in ray.nodes() if node["Alive"]]

    def count(self) -> int:
        """Runs that the machines there now have room for, whether or not others use them too."""
        if time.monotonic() - self.looked > LOOK_SECONDS:
            self.looked = time.monotonic()
            self.room = sum(self.fits(machine) for machine in self.machines())
            self.tell_if_waiting()
        return self.room

    def fits(self, machine: dict[str, float]) -> int:
        fits = [machine.get("CPU", 0) / self.cpus] + ([machine.get("GPU", 0) / self.gpus] if self.gpus else [])
        return math.floor(min(fits))

    def tell_if_waiting(self) -> None:
        """Once, if nothing trains although there is something to train."""
        waiting = [worker for worker in self.started if not worker.ended]
        if waiting and not self.told and not any(worker.ready for worker in waiting) and (
                time.monotonic() - max(worker.born for worker in waiting) > WAIT_SECONDS):
            self.told = True
            self.note(f"no worker has started yet; if others use the cluster, this waits until {self.share()} are free on a "
                      "machine (`ray status` says who has them)")

    def start(self, events: Events) -> Worker:
        import ray
        threads = dict.fromkeys(THREADS, str(self.cpus)) | ({} if self.gpus else {"CUDA_VISIBLE_DEVICES": ""})
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_restarts": 0, "max_concurrency": 8,
                   "scheduling_strategy": "SPREAD"}
        agent = ray.remote(Agent).options(**options).remote(list(self.command), threads)
        self.started.append(Worker(self, agent, events))
        return self.started[-1]

    def parcel(self) -> tuple[dict[str, list[Any]], dict[str, str]]:
        """The corpus as Ray objects by file, and the files' sums; put into Ray once, however many machines ask."""
        import ray
        with self.transfers:
            if self.parts is None:
                sums = {name: facts["sha256"] for name, facts in self.corpus.manifest["files"].items()}
                self.parts = {name: [ray.put(part) for part in parts(self.corpus.path / name)]
                              for name in [*sums, "manifest.json"]}, sums
        return self.parts

    def close(self) -> None:
        import ray
        self.parts = None
        if self.mine:
            ray.shutdown()


class Worker:
    """An agent on some machine, as the engine sees it: `suite.run.places.Place`. Its thread follows the runs that it is given."""

    def __init__(self, cluster: Ray, agent: Any, events: Events) -> None:
        self.cluster, self.agent, self.events = cluster, agent, events
        self.task: Task | None = None
        self.ready = self.ended = False
        self.born, self.words = time.monotonic(), ()
        self.tasks: queue.Queue[tuple[Task, dict[str, Any]] | None] = queue.Queue()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def give(self, task: Task, message: dict[str, Any]) -> None:
        self.task = task
        self.tasks.put((task, message))

    def end(self) -> None:
        """At once; the machine's folder is tidied up if it answers."""
        import ray
        self.ended = True
        self.tasks.put(None)
        if self.ready:
            ray.wait([self.agent.close.remote()], timeout=5)
        ray.kill(self.agent)
        self.thread.join(10)

    def last_words(self) -> tuple[str, ...]:
        return self.words

    # In the thread

    def serve(self) -> None:
        import ray
        try:
            self.meet(ray.get(self.agent.ready.remote()))
            self.events.put((self, {"event": "ready"}))
            while (given := self.tasks.get()) is not None:
                self.events.put((self, self.perform(*given)))
        except Exception as error:                     # whatever it is, a thread that ends must say so
            self.words = error.words if isinstance(error, Lost) else tuple(str(error).splitlines()[-TAIL:])
            self.events.put((self, {"event": "died", "how": reason(error)}))

    def meet(self, first: dict[str, Any]) -> None:
        """The machine must have what this one has, or its results would not belong to the others."""
        if first["event"] == "died":
            raise Lost(first["how"], first["words"])
        for name, version in versions().items():
            other = first["versions"][name]
            if other.partition("+")[0] != version.partition("+")[0]:       # +cpu and +cu128 are one version
                raise Lost(f"a machine has {name} {other}, this one {version}: make the same environment there")
        self.outputs = first["outputs"]

    def perform(self, task: Task, message: dict[str, Any]) -> dict[str, Any]:
        """A run brought to its end elsewhere; the event that says how it ended. The lock in its folder is held here."""
        folder = paths.run_folder(message["profile"], task.fingerprint)
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock", blocking=False)
        try:
            lock.acquire()
        except Timeout:
            return {"event": "busy"}
        try:
            with closing(Database(message["profile"], self.cluster.corpus)) as database:
                return self.follow(Mirror(self.agent, folder, self.cluster), database, task, message)
        finally:
            lock.release()

    def follow(self, mirror: Mirror, database: Database, task: Task, message: dict[str, Any]) -> dict[str, Any]:
        import ray
        self.supply_text(message)
        message = {**message, "slots": 1, "away": True, "trained": database.trained(task.job.run)}
        for reference in self.agent.perform.remote(message, mirror.files()):
            event = ray.get(reference)
            if event["event"] == "died":
                mirror.fetch()
                raise Lost(event["how"], event["words"])
            if event["event"] in ("done", "failed"):
                mirror.fetch()
                return {name: self.at_home(value) for name, value in event.items()}
            if event["event"] == "record":
                if event["call"] == "record_training":
                    mirror.fetch()                     # as a worker here: first the weights, then their row
                getattr(database, event["call"])(*pickle.loads(base64.b64decode(event["arguments"])))
            else:
                self.events.put((self, event))
                mirror.fetch_if_due()
        raise Lost("its events ended early")

    def supply_text(self, message: dict[str, Any]) -> None:
        import ray
        corpus = self.cluster.corpus
        if message["corpus"] and not ray.get(self.agent.has_text.remote(message["corpus"], corpus.fingerprint)):
            ray.get(self.agent.receive_text.remote(corpus.fingerprint, *self.cluster.parcel()))

    def at_home(self, text: str) -> str:
        """What a message calls a folder of that machine, as it is called here, where its files are now."""
        return text.replace(self.outputs, str(paths.outputs()))


class Mirror:
    """The driver's folder of a run, kept like the machine's: its checkpoint from time to time, all of it in the end."""

    def __init__(self, agent: Any, folder: Path, cluster: Ray) -> None:
        self.agent, self.folder, self.cluster = agent, folder, cluster
        self.known: dict[str, Signature] = {}
        self.due = time.monotonic() + cluster.every

    def files(self) -> dict[str, np.ndarray]:
        """What an earlier attempt left here."""
        found = {name: read(self.folder / name)[1] for name in (CHECKPOINT, WEIGHTS, RESULT, LOG)}
        return {name: content for name, content in found.items() if content is not None}

    def fetch_if_due(self) -> None:
        """Unless another run's files are on their way: the next event is soon enough."""
        if time.monotonic() >= self.due and self.cluster.transfers.acquire(blocking=False):
            self.take()

    def fetch(self) -> None:
        self.cluster.transfers.acquire()
        self.take()

    def take(self) -> None:
        import ray
        begin = time.monotonic()
        try:
            changed = ray.get(self.agent.changed.remote(self.known))
            for name in (WEIGHTS, RESULT, LOG, CHECKPOINT):
                signature, content = changed.get(name, (None, None))
                if content is not None:
                    write_atomically(self.folder / name, content.data)
                    self.known[name] = signature
            if RESULT in self.known:                   # the run is trained: as on that machine, its checkpoints are not needed
                for path in self.folder.glob("checkpoint*.pt"):
                    path.unlink()
        finally:
            self.cluster.transfers.release()
        self.due = time.monotonic() + max(self.cluster.every, (time.monotonic() - begin) / FETCH_SHARE)


def parts(path: Path) -> Any:
    """A file's bytes, `PART` at a time."""
    with open(path, "rb") as file:
        while content := file.read(PART):
            yield content
