"""Worker processes: where the engine starts them (`Hosts`), and what each one does (`Worker`).

    python -m suite worker          JSON lines: tasks on standard input, events on standard output; ends with its input

The engine asks the hosts for as many workers as there is room for, and gives each one run at a time: `give` sets a
worker's `task`, and the engine takes it away. What happens arrives as (worker, event): `ready` first; of the run in
hand `progress`, `recorded` and `note` (with `text`), then `done`, `failed` (with `error`) or `busy`; at any time `died`
(with `how` and the worker's last `words`), the last. A worker claims a run by a lock on the run's folder, which the
kernel releases when the process dies. The end of its input means that the engine is gone: it then ends at once.
"""


import json
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lib import paths, patterns
from lib.config import Evaluation, RunConfig, freeze
from lib.data import Corpus
from lib.errors import SuiteError
from lib.files import FULL, unwritable
from suite.run.database import Database, Facts, claim, now, packed
from suite.settings.entrance import THREADS
from suite.settings.fingerprints import evaluation_fingerprint, run_fingerprint
from suite.settings.machine import machine, side_by_side, versions

SLOT_SECONDS = 0.2
COMMAND = (sys.executable, "-m", "suite", "worker")
TAIL = 8                      # last lines of a log that an error shows

# A worker has one thread, and keeps freed memory for the next step, in huge pages: fresh pages for every tensor cost a
# tenth of a training step. Only glibc's malloc knows of it; other systems ignore it.
MALLOC = {"hugetlb": 1, "mmap_threshold": 2 ** 25, "trim_threshold": 2 ** 32}
WORKER = {**dict.fromkeys(THREADS, "1"), "TOKENIZERS_PARALLELISM": "false",
          "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in MALLOC.items())}

Events = queue.Queue[tuple[Any, dict[str, Any]]]                # a worker and what happened there


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

    def start(self, events: Events) -> "WorkerProcess":
        return WorkerProcess(self.command or COMMAND, events)

    def close(self) -> None:
        """Called in the end: give up what `open` took."""


class WorkerProcess:
    """A worker process; it speaks JSON lines (`suite.run.worker`)."""

    def __init__(self, command: Sequence[str], events: Events, settings: Mapping[str, str] = {}) -> None:
        self.task: Any = None                                             # an `Assignment` of the engine
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

    def give(self, task: Any, message: dict[str, Any]) -> None:
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


# In that process

class Channel:
    """Tasks in, events out. Standard output is the engine's alone: what a library prints goes to the log instead."""

    def __init__(self) -> None:
        self.tasks: queue.Queue[dict[str, Any]] = queue.Queue()
        self.out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        for line in sys.stdin:
            self.tasks.put(json.loads(line))
        os._exit(0)                                    # the engine is gone, or has no more work: nothing to tidy up

    def say(self, event: str, **content: Any) -> None:
        try:
            print(json.dumps({"event": event, **content}), file=self.out)
        except BrokenPipeError:
            os._exit(0)


@contextmanager
def slot(count: int, waiting: Callable[[], None]) -> Iterator[None]:
    """One of `count` slots, shared by all suites with these outputs, so that two suites do not crowd the cores."""
    while True:
        for number in range(count):
            with claim(paths.outputs() / "slots" / f"{number}.lock") as mine:
                if mine:
                    yield
                    return
        waiting()
        time.sleep(SLOT_SECONDS)


@contextmanager
def logging_to(path: Path, title: str) -> Iterator[None]:
    """Standard output and error, also of C code, appended to `path`."""
    terminal = os.dup(2)
    with open(path, "ab", buffering=0) as file:
        file.write(f"--- {now()} {title}\n".encode())
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(terminal, 1)
        os.dup2(terminal, 2)
        os.close(terminal)


class Worker:
    """Performs tasks: trains a run, unless its folder has the finished weights, and makes its evaluations. Tests and
    `suite.run.torchrun` replace `train`; the rest stays."""

    def __init__(self, channel: Channel, device: str = "") -> None:
        self.channel, self.parent = channel, os.getppid()
        self.device = device or self.best_device()
        torch = sys.modules.get("torch")
        self.facts = Facts(versions(), machine(), self.device, torch.get_num_threads() if torch else 1)

    def best_device(self) -> str:
        """A GPU if there is one; on a CPU, as many threads as OMP_NUM_THREADS says."""
        import torch
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        return "cuda" if torch.cuda.is_available() else "cpu"

    def corpus(self, path: str | None) -> Corpus | None:
        return Corpus(Path(path)) if path is not None else None

    def train(self, run: RunConfig, corpus: Any, folder: Path, progress: Callable[[dict], None], **more: Any) -> Any:
        from lib.training import train_run
        from suite.tasks import make_source
        return train_run(run, make_source(run.data, corpus), corpus, folder, progress, self.device, **more)

    def evaluate(self, evaluation: Evaluation, model: Any, run: RunConfig, corpus: Any) -> Any:
        from suite.evals import evaluate
        return evaluate(evaluation, model, run, corpus, self.device)

    def perform(self, task: dict[str, Any]) -> None:
        run = RunConfig.from_dict(task["run"])
        folder = paths.run_folder(task["profile"], task["fingerprint"])
        title = f"{run.pattern.name}, seed {run.train.seed}, process {os.getpid()}"
        waiting = slot(task["slots"], lambda: self.channel.say("progress", stage="waiting for a free place"))
        outcome = {"event": "busy"}
        try:
            with waiting if task["slots"] else nullcontext(), claim(folder / "lock") as mine:
                if mine:
                    with logging_to(folder / "log.txt", title):
                        outcome = self.attempt(task, run, folder)
        except OSError as error:                       # lock and log cannot be files there
            moved = SuiteError(f"{folder} is no folder for a run ({error}): move it away")
            outcome = {"event": "failed", "error": str(unwritable(folder, error) if error.errno in FULL else moved)}
        self.channel.say(**outcome)

    def attempt(self, task: dict[str, Any], run: RunConfig, folder: Path) -> dict[str, Any]:
        """The run brought to its end; an exception becomes the event `failed`, with its traceback in the log."""
        record = None                                  # until it is known that this is the run that the engine means
        with ExitStack() as opened:
            try:
                corpus, key = self.corpus(task["corpus"]), task["fingerprint"]
                evaluations = [Evaluation(name, freeze(dict(parameters))) for name, parameters in task["evaluations"]]
                # A worker that starts later than its engine may hold newer code; its results would get the wrong key.
                mine = [run_fingerprint(run, corpus), *map(evaluation_fingerprint, evaluations)]
                if mine != [key, *task["evaluation_fingerprints"]]:
                    raise SuiteError("the code of this run has changed since this suite (or this notebook's kernel) "
                                     "started: start it again, so that code and results belong together")
                if "trained" in task:                  # the database is the engine's, on another machine
                    trained, record = task["trained"], self.tell
                else:
                    database = opened.enter_context(closing(Database(task["profile"], corpus)))
                    stored = database.evaluations([key])
                    trained, record = key in stored, lambda call, *given: getattr(database, call)(run, *given)
                    evaluations = [e for e in evaluations if evaluation_fingerprint(e) not in stored.get(key, ())]
                errors = self.finish(run, evaluations, trained, corpus, folder, record)
            except Exception as error:                 # whatever it is, it belongs to this run alone: the others go on
                traceback.print_exc()
                errors = [described(error)]
                if record is not None:
                    with suppress(SuiteError):         # of a database that cannot be written
                        record("record_failure", self.facts, *errors)
        return {"event": "failed", "error": "; ".join(errors)} if errors else {"event": "done"}

    def tell(self, call: str, *given: Any) -> None:
        """What is to be recorded, for a database on another machine (`suite.run.ray_hosts`)."""
        self.channel.say("record", call=call, given=json.dumps(given, default=packed))

    def finish(self, run: RunConfig, evaluations: list[Evaluation], trained: bool, corpus: Any, folder: Path,
               record: Callable[..., None]) -> list[str]:
        """Train, or load the weights of a finished training, and make the missing evaluations. An evaluation that fails
        leaves the others to be made; the list says why each failed."""
        if trained and not evaluations:
            return []                                  # another suite has just done it
        started, errors = now(), []
        if not trained:
            record("record_start", self.facts)
        result = self.train(run, corpus, folder, self.report)
        if not trained:
            parameters = sum(p.numel() for p in result.model.parameters())
            measured = SimpleNamespace(**{**vars(result), "model": None})      # the weights stay in the folder
            record("record_training", self.facts, measured, parameters, started)
            self.channel.say("recorded")
        for evaluation in evaluations:
            self.channel.say("progress", stage=f"evaluating {evaluation.name}")
            try:
                start = time.perf_counter()
                measured = self.evaluate(evaluation, result.model, run, corpus)
                record("record_evaluation", evaluation, measured, time.perf_counter() - start)
                self.channel.say("recorded")
            except Exception as error:                 # the experiments that do not ask for this one do without
                traceback.print_exc()
                errors.append(f"evaluation {evaluation.name}: {described(error)}")
        return errors

    def report(self, state: dict[str, Any]) -> None:
        """What the training loop calls twice a second."""
        if os.getppid() != self.parent:                # the input ends then too, unless something holds the pipe
            os._exit(0)
        shown = {key: state[key] for key in ("step", "steps", "loss", "tokens_per_s")}
        self.channel.say("progress", stage="training", **shown)


def described(error: Exception) -> str:
    """The message of an error that names its remedy; of any other its kind too."""
    return str(error) if isinstance(error, SuiteError) else f"{type(error).__name__}: {error}"


class Notes(logging.Handler):
    """Warnings of `lib` (a damaged file was set aside): a line in the engine's display, beside the one in the log."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(logging.WARNING)
        self.channel, self.said = channel, set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        print(text, file=sys.stderr, flush=True)
        if text not in self.said:
            self.channel.say("note", text=text)
        self.said.add(text)


def main(kind: Callable[[Channel], Worker] = Worker) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)       # Ctrl-C reaches the whole process group; the engine decides
    if own := paths.named_by("SUITE_PATTERNS"):         # drafts of notebook 00
        patterns.__path__.append(str(own))
    worker = kind(Channel())
    logging.getLogger("lib").addHandler(Notes(worker.channel))
    worker.channel.say("ready")
    while True:
        worker.perform(worker.channel.tasks.get())
