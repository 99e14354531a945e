"""On a machine of a Ray cluster: one worker process, and a folder of its own in which it works as if it were alone.

The suite's side (`suite.run.ray_hosts`) gives the agent runs with their last checkpoints, hears their events, and
fetches the files that they write. The machines need no shared file system.
"""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from lib import paths
from lib.errors import SuiteError
from lib.files import write_atomically
from suite.run.database import claim
from suite.run.hosts import Events, WorkerProcess
from suite.settings.machine import versions

CHECKPOINT, WEIGHTS, RESULT, LOG = "checkpoint.pt", "model.safetensors", "result.json", "log.txt"
PROGRESS_SECONDS = 1.0        # between two reports of a run's step: enough for eyes, little for a network

Content = np.ndarray                                   # uint8: Ray passes it on without a copy


def scratch() -> Path:
    """What a machine keeps for the suite: texts, and a folder per worker. `TMPDIR` of `ray start` moves it."""
    return Path(tempfile.gettempdir()) / f"sparse-attention-suite-{os.getuid()}"


class Agent:
    """A Ray actor. `perform` gives a run's events; the suite asks for `changed` files meanwhile."""

    def __init__(self, command: Sequence[str], settings: Mapping[str, str]) -> None:
        """command: arguments of this machine's Python; settings: further environment variables of the worker."""
        self.home, self.lock = own_folder(scratch() / "places")
        os.environ["SUITE_OUTPUTS"] = str(self.home / "outputs")
        self.events: Events = queue.Queue()
        self.process = WorkerProcess([sys.executable, *command], self.events, settings)
        self.run, self.sent, self.text = paths.outputs(), {}, ""

    def ready(self) -> dict[str, Any]:
        """Waits for the worker's first word: `ready`, or `died` with the reason."""
        return {**self.heard(), "versions": versions(), "outputs": str(paths.outputs())}

    def heard(self) -> dict[str, Any]:
        """The worker's next event; `died` comes with the worker's last words."""
        _, event = self.events.get()
        return {**event, "words": self.process.last_words()} if event["event"] == "died" else event

    def perform(self, message: dict[str, Any], files: Mapping[str, Content]) -> Iterator[dict[str, Any]]:
        """The events of one run, which goes on from `files`, until `done`, `failed`, `busy` or `died`."""
        folder = paths.run_folder(message["profile"], message["fingerprint"])
        shutil.rmtree(folder.parent, ignore_errors=True)               # the run before, which the suite has fetched
        for name, content in files.items():
            write_atomically(folder / name, content.data)
        self.run, self.sent, due, stage = folder, {}, 0.0, ""
        self.process.give(None, {**message, "corpus": self.text if message["corpus"] else None})
        while True:
            event = self.heard()
            if event["event"] == "progress" and event["stage"] == stage and time.monotonic() < due:
                continue
            due, stage = time.monotonic() + PROGRESS_SECONDS, event.get("stage", "")
            yield event
            if event["event"] in ("done", "failed", "busy", "died"):
                return

    def changed(self) -> dict[str, Content]:
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
        from lib.data import Corpus
        for folder in (Path(path), texts() / fingerprint):
            try:
                if Corpus(folder).fingerprint == fingerprint:
                    self.text = str(folder)
                    return True
            except (SuiteError, OSError):
                continue
        return False

    def receive_text(self, fingerprint: str, files: Mapping[str, Any], sums: Mapping[str, str]) -> None:
        """Write the corpus from its files (Ray objects); the workers of a machine share one copy.

        sums: SHA-256 of each file but the manifest, which is the last of `files`.
        """
        import ray
        texts().mkdir(parents=True, exist_ok=True)
        with FileLock(texts() / f"{fingerprint}.lock"):
            if self.has_text("", fingerprint):
                return                                 # another worker of this machine has just received it
            partial = texts() / f"{fingerprint}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            for name, reference in files.items():
                content = ray.get(reference)
                write_atomically(partial / name, content.data)
                digest = hashlib.sha256(content).hexdigest()
                if digest != sums.get(name, digest):
                    raise SuiteError(f"{name} of the corpus is not as its manifest says: delete the corpus's folder, "
                                     "and it is built again")
            shutil.rmtree(texts() / fingerprint, ignore_errors=True)
            partial.rename(texts() / fingerprint)
        if not self.has_text("", fingerprint):
            raise SuiteError(f"the corpus that was sent to {texts() / fingerprint} is not the wanted one")

    def close(self) -> None:
        """End the worker and leave nothing behind but the texts."""
        self.process.end()
        shutil.rmtree(self.home, ignore_errors=True)


def texts() -> Path:
    return scratch() / "texts"


def own_folder(folder: Path) -> tuple[Path, FileLock]:
    """A new folder in `folder`, locked while this process lives. The folders of killed processes are deleted."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        for other in [path for path in folder.iterdir() if path.is_dir()]:
            with claim(other / "lock") as abandoned:
                if abandoned:
                    shutil.rmtree(other, ignore_errors=True)
        own = Path(tempfile.mkdtemp(dir=folder))
        lock = FileLock(own / "lock", thread_local=False)
        lock.acquire()
    return own, lock
