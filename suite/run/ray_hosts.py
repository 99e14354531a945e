"""Runs on the machines of a Ray cluster. The suite's own process alone writes into the database.

Ray finds the machines, starts a worker where a run's GPUs and CPUs are free, and says when one is lost. Checkpoints,
weights and logs come to the suite's outputs as the runs go on, so a run whose machine dies goes on elsewhere, and the
machines need no shared file system. docs/many_machines.md is for the person who uses it.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lib import paths
from lib.errors import SuiteError, require
from lib.files import write_atomically
from suite.run.database import Database, claim, unpacked
from suite.run.hosts import TAIL, THREADS, Events, Hosts
from suite.run.ray_agent import CHECKPOINT, LOG, RESULT, WEIGHTS, Agent
from suite.settings.machine import versions

if TYPE_CHECKING:
    from lib.data import Corpus
    from suite.run.engine import Assignment

FETCH_SECONDS = 60.0          # between two fetched checkpoints of a run: what a machine that dies costs at most
FETCH_SHARE = 0.05            # of the time, at most: large checkpoints are fetched less often
LOOK_SECONDS = 2.0            # between two looks at the machines
WAIT_SECONDS = 60.0           # without any worker, before the person is told what may be the matter
ANSWER_SECONDS = 10.0         # for a cluster's address to answer
# Ray reads its own settings when it is imported. The first: no warning that this will be its default some day.
SETTINGS = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_USAGE_STATS_ENABLED": "0"}            # a cluster that is started here reports to nobody
CODE = ("lib", "suite", "data_prep", "pyproject.toml")          # what the machines are sent of this folder


class Lost(Exception):
    """A worker is gone: the reason in a few words, and the last lines that were heard."""

    def __init__(self, reason: str, words: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.words = tuple(words)[-TAIL:]


class Ray(Hosts):
    """Room on a cluster: the one of `RAY_ADDRESS`, else one that this machine is part of, else this machine alone."""
    attempts = 4                                       # machines come and go: more often than a process dies here
    here = False

    def __init__(self, cpus: int | None = None, gpus: float | None = None,
                 command: Sequence[str] = ("-m", "suite", "worker"), every: float = FETCH_SECONDS) -> None:
        """cpus, gpus: of each run; None: 1 GPU where the cluster has any, and 1 CPU. every: `FETCH_SECONDS`.

        Raises `SuiteError` at once if Ray is not installed or a number makes no sense.
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
        self.transfers = threading.Lock()              # one checkpoint at a time: there is one network here
        self.looked, self.room, self.started, self.told = 0.0, 0, [], False
        self.mine, self.sent = False, None

    def open(self, profile: str, corpus: Corpus | None, note: Callable[[str], None]) -> None:
        """Join the cluster. `SuiteError` if there is none at the address, or no machine has room for a run."""
        import ray
        self.profile, self.corpus, self.note = profile, corpus, note
        log = paths.profile_outputs(profile) / "ray.log"
        if not ray.is_initialized():
            connect(log)
            self.mine = True
        machines = self.machines()
        if self.gpus is None:
            self.gpus = 1 if any(machine.get("GPU") for machine in machines) else 0
        if self.count() == 0:
            cpus, gpus = (max((machine.get(kind, 0) for machine in machines), default=0) for kind in ("CPU", "GPU"))
            raise SuiteError(f"a run needs {self.share()}, and no machine of the Ray cluster has as many (at most "
                             f"{cpus:g} CPUs and {gpus:g} GPUs on one of {len(machines)}): "
                             "ask for fewer with --run-cpus and --run-gpus, or add machines")
        note(f"Ray: {self.room} runs side by side, each on {self.share()} (--run-cpus, --run-gpus), on "
             f"{len(machines)} machine{'s' * (len(machines) != 1)}; its messages: {log}")

    def share(self) -> str:
        """What a run has to itself."""
        gpus = f"{self.gpus:g} GPU{'s' * (self.gpus > 1)} and " if self.gpus else ""
        return f"{gpus}{self.cpus} CPU{'s' * (self.cpus > 1)}"

    def machines(self) -> list[dict[str, float]]:
        """What each living machine has."""
        import ray
        return [node["Resources"] for node in ray.nodes() if node["Alive"]]

    def count(self) -> int:
        """Runs that the machines now have room for, whether or not others use the machines too."""
        if time.monotonic() - self.looked > LOOK_SECONDS:
            self.looked = time.monotonic()
            self.room = sum(self.fits(machine) for machine in self.machines())
            self.tell_if_waiting()
        return self.room

    def fits(self, machine: dict[str, float]) -> int:
        shares = {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}
        return math.floor(min(machine.get(kind, 0) / share for kind, share in shares.items()))

    def tell_if_waiting(self) -> None:
        """Once, if nothing trains although there is something to train."""
        waiting = [worker for worker in self.started if not worker.ended]
        if waiting and not self.told and not any(worker.ready for worker in waiting) and (
                time.monotonic() - max(worker.born for worker in waiting) > WAIT_SECONDS):
            self.told = True
            self.note(f"no worker has started yet; if others use the cluster, this waits until {self.share()} are free "
                      "on a machine (`ray status` says who has them)")

    def start(self, events: Events) -> RayWorker:
        import ray
        threads = dict.fromkeys(THREADS, str(self.cpus)) | ({} if self.gpus else {"CUDA_VISIBLE_DEVICES": ""})
        agent = ray.remote(Agent).options(num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0, max_concurrency=8,
                                          scheduling_strategy="SPREAD").remote(list(self.command), threads)
        self.started.append(RayWorker(self, agent, events))
        return self.started[-1]

    def parcel(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The corpus as Ray objects by file, and the files' sums; put into Ray once, however many machines ask."""
        import ray
        with self.transfers:
            if self.sent is None:
                sums = {name: facts["sha256"] for name, facts in self.corpus.manifest["files"].items()}
                self.sent = {name: ray.put(np.fromfile(self.corpus.path / name, np.uint8))
                             for name in [*sums, "manifest.json"]}, sums
        return self.sent

    def close(self) -> None:
        import ray
        self.sent = None
        if self.mine:
            ray.shutdown()


class RayWorker:
    """An agent on some machine, as the engine sees it (`suite.run.hosts.Host`). Its thread follows the runs."""

    def __init__(self, cluster: Ray, agent: Any, events: Events) -> None:
        self.cluster, self.agent, self.events = cluster, agent, events
        self.task: Assignment | None = None
        self.ready = self.ended = False
        self.born, self.words = time.monotonic(), ()
        self.tasks: queue.Queue[tuple[Assignment, dict[str, Any]] | None] = queue.Queue()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def give(self, task: Assignment, message: dict[str, Any]) -> None:
        self.task = task
        self.tasks.put((task, message))

    def end(self) -> None:
        """At once; the machine's folder is tidied up if the machine answers."""
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
        """The machine must have the versions of this one, or its results would not belong to the others."""
        if first["event"] == "died":
            raise Lost(first["how"], first["words"])
        for name, version in versions().items():
            other = first["versions"][name]
            if other.partition("+")[0] != version.partition("+")[0]:       # +cpu and +cu128 are one version
                raise Lost(f"a machine has {name} {other}, this one {version}: make the same environment there")
        self.outputs = first["outputs"]

    def perform(self, task: Assignment, message: dict[str, Any]) -> dict[str, Any]:
        """A run brought to its end elsewhere; the event that says how it ended. The lock in its folder is held here."""
        folder = paths.run_folder(message["profile"], task.fingerprint)
        with claim(folder / "lock") as mine:
            if not mine:
                return {"event": "busy"}
            with closing(Database(message["profile"], self.cluster.corpus)) as database:
                return self.follow(Mirror(self.agent, folder, self.cluster), database, task, message)

    def follow(self, mirror: Mirror, database: Database, task: Assignment, message: dict[str, Any]) -> dict[str, Any]:
        import ray
        corpus, run = self.cluster.corpus, task.job.run
        if message["corpus"] and not ray.get(self.agent.has_text.remote(message["corpus"], corpus.fingerprint)):
            ray.get(self.agent.receive_text.remote(corpus.fingerprint, *self.cluster.parcel()))
        message = {**message, "slots": 0, "trained": database.trained(run)}
        for reference in self.agent.perform.remote(message, mirror.files()):
            event = ray.get(reference)
            if event["event"] == "died":
                mirror.fetch()
                raise Lost(event["how"], event["words"])
            if event["event"] in ("done", "failed"):
                mirror.fetch()
                # The run's folder is here now, under another name than on that machine.
                return {name: value.replace(self.outputs, str(paths.outputs())) for name, value in event.items()}
            if event["event"] == "record":
                if event["call"] == "record_training":
                    mirror.fetch()                     # as a worker here: first the weights, then their row
                getattr(database, event["call"])(run, *map(unpacked, event["given"]))
            else:
                self.events.put((self, event))
                mirror.fetch_if_due()
        raise Lost("its events ended early")


class Mirror:
    """The suite's folder of a run, kept like the machine's: its checkpoint from time to time, all of it in the end."""

    def __init__(self, agent: Any, folder: Path, cluster: Ray) -> None:
        self.agent, self.folder, self.cluster = agent, folder, cluster
        self.due = time.monotonic() + cluster.every

    def files(self) -> dict[str, np.ndarray]:
        """What an earlier attempt left here."""
        there = [name for name in (CHECKPOINT, WEIGHTS, RESULT, LOG) if (self.folder / name).exists()]
        return {name: np.fromfile(self.folder / name, np.uint8) for name in there}

    def fetch_if_due(self) -> None:
        """Unless another run's files are on their way: the next event is soon enough."""
        if time.monotonic() >= self.due:
            self.fetch(wait=False)

    def fetch(self, wait: bool = True) -> None:
        import ray
        if not self.cluster.transfers.acquire(blocking=wait):
            return
        begin = time.monotonic()
        try:
            changed = ray.get(self.agent.changed.remote())
            for name in (WEIGHTS, RESULT, LOG, CHECKPOINT):
                if name in changed:
                    write_atomically(self.folder / name, changed[name].data)
            if RESULT in changed:                      # the run is trained: as on that machine, without checkpoints
                for path in self.folder.glob("checkpoint*.pt"):
                    path.unlink()
        finally:
            self.cluster.transfers.release()
        self.due = time.monotonic() + max(self.cluster.every, (time.monotonic() - begin) / FETCH_SHARE)


# The cluster

def connect(log: Path) -> None:
    """Join the cluster; what Ray has to say goes to the file `log`, since its bursts would tear the display."""
    import ray
    address = os.environ.get("RAY_ADDRESS", "")
    if address.startswith("ray://"):
        raise SuiteError(f"RAY_ADDRESS = {address!r} is not valid: start the suite on a machine of the cluster (its "
                         "first one, for instance), with RAY_ADDRESS=auto")
    silence(log)
    others = [f"/{path.name}" for path in paths.ROOT.iterdir() if path.name not in CODE]
    try:
        if ":" in address:                             # Ray itself would try for minutes, and print its attempts
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
        ray.init(log_to_driver=False, logging_level=logging.ERROR,
                 runtime_env={"working_dir": str(paths.ROOT), "excludes": [*others, "__pycache__"]})
    except Exception as error:                         # Ray raises whatever occurs to it, plain `Exception` among them
        what = f"no Ray cluster answers at RAY_ADDRESS = {address!r}" if address else "Ray does not start here"
        raise SuiteError(f"{what} ({first_line(error)}): start one with `ray start --head` and name its address, or "
                         "unset RAY_ADDRESS to use this machine alone") from error


def silence(log: Path) -> None:
    """What the machines' Ray reports goes into `log`: Ray prints it whatever `log_to_driver` says, without a switch."""
    import ray._private.worker as internals
    log.parent.mkdir(parents=True, exist_ok=True)

    def keep(data: dict[str, Any], *_: Any, **__: Any) -> None:
        with open(log, "a", encoding="utf-8") as file:
            now, lines = time.strftime("%H:%M:%S"), data.get("lines", ())
            file.writelines(f"{now} ({data.get('pid')}) {line}\n" for line in lines)
    if hasattr(internals, "print_to_stdstream"):
        internals.print_to_stdstream = keep


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def reason(error: Exception) -> str:
    """Why a worker is lost, in a few words."""
    from ray.exceptions import RayActorError, RayError, RayTaskError
    if isinstance(error, RayTaskError):
        return first_line(error.cause) if isinstance(error.cause, Exception) else first_line(error)
    if isinstance(error, RayActorError):
        return "its machine is gone" if "node" in str(error).lower() else "its process on that machine is gone"
    return f"{type(error).__name__}: {first_line(error)}" if isinstance(error, RayError) else str(error)
