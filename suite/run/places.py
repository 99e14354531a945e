"""Where runs are trained: in worker processes of this machine, or (`suite.run.ray.engine`) on the machines of a cluster.

The engine asks a `Places` for as many `Place`s as there is room for, gives each one run at a time, and hears of it in events.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TextIO

from lib import paths
from suite.settings.machine import side_by_side

if TYPE_CHECKING:
    from lib.data import Corpus
    from suite.run.engine import Task

COMMAND = (sys.executable, "-m", "suite.run.worker")
TAIL = 8                      # last lines of a log that an error shows

# What a worker runs with. One thread each; and freed memory is kept for the next step, in huge pages: fresh pages for every
# tensor cost a tenth of a training step. Only glibc's malloc knows of it; other systems ignore it.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
WORKER = {**dict.fromkeys(THREADS, "1"), "TOKENIZERS_PARALLELISM": "false",
          "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in (
              ("hugetlb", 1), ("mmap_threshold", 2 ** 25), ("trim_threshold", 2 ** 32)))}

Events = queue.Queue[tuple[Any, dict[str, Any]]]               # a place and what happened there


class Place(Protocol):
    """One worker. What happens arrives as (place, event): `ready` first, then of the run in hand `progress`, `recorded`, and
    `done`, `failed` (with `error`) or `busy`; at any time `died` (with `how`), the last."""
    task: Task | None                                          # the run in hand; set by `give`, taken away by the engine
    ready: bool                                                # set by the engine

    def give(self, task: Task, message: dict[str, Any]) -> None: ...
    def end(self) -> None: ...
    def last_words(self) -> tuple[str, ...]: ...


class Places(Protocol):
    """Room for workers."""
    attempts: int                                              # a worker that dies under a run so often takes the run with it
    here: bool                                                 # whether runs take as long as those of this machine did

    def open(self, profile: str, corpus: Corpus | None, note: Callable[[str], None]) -> None: ...
    def count(self) -> int: ...                                # may change while the engine works
    def start(self, events: Events) -> Place: ...
    def close(self) -> None: ...


@dataclass
class Local:
    """Processes of this machine."""
    workers: int = field(default_factory=side_by_side)
    command: Sequence[str] = ()
    attempts: ClassVar[int] = 2
    here: ClassVar[bool] = True

    def open(self, profile: str, corpus: Corpus | None, note: Callable[[str], None]) -> None:
        pass

    def count(self) -> int:
        return self.workers

    def start(self, events: Events) -> Process:
        return Process(self.command or COMMAND, events)

    def close(self) -> None:
        pass


class Process:
    """A worker process; it speaks JSON lines (`suite.run.worker`)."""

    def __init__(self, command: Sequence[str], events: Events, settings: Mapping[str, str] = {}) -> None:
        environment = {**os.environ, **WORKER, **settings}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(paths.ROOT), os.environ.get("PYTHONPATH"))))
        self.task: Task | None = None
        self.ready = False
        self.stderr = tempfile.TemporaryFile("w+", errors="replace")      # until a run has a log of its own
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr, text=True,
                                      cwd=paths.ROOT, env=environment)
        self.listener = threading.Thread(target=self.listen, args=(events,), daemon=True)
        self.listener.start()

    def listen(self, events: Events) -> None:
        out: TextIO = self.popen.stdout
        for line in out:
            if line.startswith("{"):                   # not what a library printed before the worker took its output away
                events.put((self, json.loads(line)))
        events.put((self, {"event": "died", "how": how(self.popen.wait())}))

    def give(self, task: Task | None, message: dict[str, Any]) -> None:
        self.task = task
        with suppress(BrokenPipeError):                # it has just died: `listen` says so, and the task is given again
            print(json.dumps(message), file=self.popen.stdin, flush=True)

    def end(self) -> None:
        """At once. Nothing is lost: checkpoints, weights and database are written whole or not at all."""
        self.popen.kill()
        self.popen.wait()
        self.listener.join()
        for stream in (self.popen.stdin, self.popen.stdout, self.stderr):
            with suppress(BrokenPipeError):
                stream.close()

    def last_words(self) -> tuple[str, ...]:
        self.stderr.seek(0)
        return tuple(self.stderr.read().splitlines()[-TAIL:])


def how(status: int) -> str:
    """An exit status in words."""
    if status == -9:
        return "killed by signal 9, which is also what the system does when memory runs out"
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"
