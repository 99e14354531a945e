"""Where runs are trained: in worker processes of this machine, or (`suite.run.ray_hosts`) on the machines of a cluster.

The engine asks the hosts for as many workers as there is room for, and gives each one run at a time: `give` sets a
worker's `task`, and the engine takes it away. What happens arrives as (worker, event): `ready` first; of the run in
hand `progress`, `recorded`, then `done`, `failed` (with `error`) or `busy`; at any time `died` (with `how` and the
worker's last `words`), the last.
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
from typing import TYPE_CHECKING, Any

from lib import paths
from suite.settings.machine import side_by_side

if TYPE_CHECKING:
    from lib.data import Corpus
    from suite.run.engine import Assignment

COMMAND = (sys.executable, "-m", "suite", "worker")
TAIL = 8                      # last lines of a log that an error shows

# A worker has one thread, and keeps freed memory for the next step, in huge pages: fresh pages for every tensor cost a
# tenth of a training step. Only glibc's malloc knows of it; other systems ignore it.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
MALLOC = {"hugetlb": 1, "mmap_threshold": 2 ** 25, "trim_threshold": 2 ** 32}
WORKER = {**dict.fromkeys(THREADS, "1"), "TOKENIZERS_PARALLELISM": "false",
          "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in MALLOC.items())}

Events = queue.Queue[tuple[Any, dict[str, Any]]]               # a worker and what happened there


@dataclass
class Hosts:
    """Room for workers on this machine; `suite.run.ray_hosts` redefines it for a cluster."""
    attempts = 2                  # worker deaths after which a run counts as failed
    here = True                   # whether runs take as long as earlier ones of this machine

    workers: int = field(default_factory=side_by_side)
    command: Sequence[str] = ()

    def open(self, profile: str, corpus: Corpus | None, note: Callable[[str], None]) -> None:
        """Called before the first worker starts. Raises `SuiteError` if there is no room for a run."""

    def count(self) -> int:
        """Workers that there is room for; may change while the engine works."""
        return self.workers

    def start(self, events: Events) -> WorkerProcess:
        return WorkerProcess(self.command or COMMAND, events)

    def close(self) -> None:
        """Called in the end: give up what `open` took."""


class WorkerProcess:
    """A worker process; it speaks JSON lines (`suite.run.worker`)."""

    def __init__(self, command: Sequence[str], events: Events, settings: Mapping[str, str] = {}) -> None:
        self.task: Assignment | None = None
        self.ready = False                                                # set by the engine
        self.stderr = tempfile.TemporaryFile("w+", errors="replace")      # until a run has a log of its own
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr,
                                      text=True, cwd=paths.ROOT, env={**os.environ, **WORKER, **settings})
        self.listener = threading.Thread(target=self.listen, args=(events,), daemon=True)
        self.listener.start()

    def listen(self, events: Events) -> None:
        for line in self.popen.stdout:
            if line.startswith("{"):                   # not what a library prints before the worker takes over
                events.put((self, json.loads(line)))
        status = self.popen.wait()
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        if status == -9:
            how += ", which is also what the system does when memory runs out"
        self.stderr.seek(0)
        events.put((self, {"event": "died", "how": how, "words": self.stderr.read().splitlines()[-TAIL:]}))

    def give(self, task: Assignment | None, message: dict[str, Any]) -> None:
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
