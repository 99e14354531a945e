"""A worker process: trains and evaluates one run after another, as the engine tells it.

    python -m suite.run.worker          JSON lines: tasks on standard input, events on standard output; ends with its input

It claims a run by a lock on the run's folder, which the kernel releases when the process dies, however it dies. When
its input ends, the engine is gone: the worker ends too, at once, whatever it is doing; the last checkpoint stays.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from filelock import FileLock, Timeout

from lib import paths
from lib.config import Evaluation, RunConfig, freeze
from lib.errors import SuiteError
from lib.patterns import pattern_class
from suite.run.database import Database, Facts, now
from suite.settings.fingerprints import evaluation_fingerprint, run_fingerprint
from suite.settings.machine import machine, versions

PROGRESS_SECONDS = 0.25
SLOT_SECONDS = 0.2
STALE = ("the code of this run has changed since this suite (or this notebook's kernel) started: "
         "start it again, so that code and results belong together")


class Trainer(Protocol):
    """What a worker does with a run. `train` returns model, result and number of parameters, and a finished run at once.

    Tests put a quick one in the place of `Real`.
    """
    device: str

    def corpus(self, path: str) -> Any: ...
    def train(self, run: RunConfig, corpus: Any, folder: Path, progress: Callable[[dict], None]) -> tuple[Any, Any, int]: ...
    def evaluate(self, evaluation: Evaluation, model: Any, run: RunConfig, corpus: Any) -> Any: ...


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
        os._exit(0)                                    # the engine is gone, or has no more work: no tidying up is needed

    def say(self, event: str, **content: Any) -> None:
        try:
            print(json.dumps({"event": event, **content}), file=self.out)
        except BrokenPipeError:
            os._exit(0)


@contextmanager
def slot(count: int, waiting: Callable[[], None]) -> Iterator[None]:
    """One of `count` places, shared by all suites with these outputs, so that two at once do not crowd the cores."""
    folder = paths.outputs() / "slots"
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        for number in range(count):
            lock = FileLock(folder / f"{number}.lock", blocking=False)
            try:
                lock.acquire()
            except Timeout:
                continue
            try:
                yield
            finally:
                lock.release()
            return
        waiting()
        time.sleep(SLOT_SECONDS)


@contextmanager
def logging_to(path: Path, title: str) -> Iterator[None]:
    """Standard output and error, also of C code, appended to `path`."""
    keep = os.dup(2)
    with open(path, "ab", buffering=0) as file:
        file.write(f"--- {now()} {title}\n".encode())
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(keep, 1)
        os.dup2(keep, 2)
        os.close(keep)


class Reported(Database):
    """A database of this machine alone, whose entries are told to the engine on another machine, which has the real one."""

    def __init__(self, task: dict[str, Any], corpus: Any, channel: Channel) -> None:
        super().__init__(task["profile"], corpus)
        self.channel, self.known = channel, task["trained"]      # known: the real one has the training already

    def start(self, *entry: Any) -> None:
        super().start(*entry)
        if not self.known:
            self.tell("start", *entry)

    def record_training(self, run: RunConfig, facts: Facts, result: Any, *rest: Any) -> None:
        super().record_training(run, facts, result, *rest)
        if not self.known:
            without_model = SimpleNamespace(**{name: value for name, value in vars(result).items() if name != "model"})
            self.tell("record_training", run, facts, without_model, *rest)

    def record_evaluation(self, *entry: Any) -> None:
        super().record_evaluation(*entry)
        self.tell("record_evaluation", *entry)

    def record_failure(self, *entry: Any) -> None:
        super().record_failure(*entry)
        self.tell("record_failure", *entry)

    def tell(self, call: str, *entry: Any) -> None:
        self.channel.say("record", call=call, arguments=base64.b64encode(pickle.dumps(entry)).decode())


class Worker:
    def __init__(self, trainer: Trainer, channel: Channel) -> None:
        self.trainer, self.channel, self.parent = trainer, channel, os.getppid()
        self.facts = Facts(versions(), machine(), trainer.device, threads())
        self.opened: dict[str, Any] = {}

    def serve(self) -> None:
        self.channel.say("ready")
        while True:
            self.perform(self.channel.tasks.get())

    def perform(self, task: dict[str, Any]) -> None:
        run = RunConfig.from_dict(task["run"])
        evaluations = [Evaluation(name, freeze(dict(parameters))) for name, parameters in task["evaluations"]]
        folder = paths.run_folder(task["profile"], task["fingerprint"])
        folder.mkdir(parents=True, exist_ok=True)
        with slot(task["slots"], lambda: self.channel.say("progress", stage="waiting for a free place")):
            lock = FileLock(folder / "lock", blocking=False)
            try:
                lock.acquire()
            except Timeout:
                self.channel.say("busy")
                return
            try:
                with logging_to(folder / "log.txt", f"{run.pattern.name}, seed {run.train.seed}, process {os.getpid()}"):
                    outcome = self.attempt(task, run, evaluations, folder)
            finally:
                lock.release()
        self.channel.say(**outcome)

    def attempt(self, task: dict[str, Any], run: RunConfig, evaluations: list[Evaluation], folder: Path) -> dict[str, Any]:
        """The run brought to its end; an exception becomes the event `failed`, with its traceback in the log."""
        database = None
        try:
            corpus = self.corpus(task["corpus"])
            check_fresh(task, run, evaluations, corpus)
            database = Reported(task, corpus, self.channel) if task.get("away") else Database(task["profile"], corpus)
            errors = self.finish(run, evaluations, folder, database)
            return {"event": "failed", "error": "; ".join(errors)} if errors else {"event": "done"}
        except Exception as error:                     # whatever it is, it belongs to this run alone: the others go on
            traceback.print_exc()
            if database is not None:
                database.record_failure(run, self.facts, described(error))
            return {"event": "failed", "error": described(error)}
        finally:
            if database is not None:
                database.close()

    def corpus(self, path: str | None) -> Any:
        if path is None:
            return None
        if path not in self.opened:
            self.opened[path] = self.trainer.corpus(path)
        return self.opened[path]

    def finish(self, run: RunConfig, evaluations: list[Evaluation], folder: Path, database: Database) -> list[str]:
        """Train, or load the weights of a finished training, and evaluate what is still missing.

        An evaluation that fails leaves the others to be made; the list says why each failed.
        """
        there = database.evaluated(database.fingerprint(run))
        lacking = [e for e in evaluations if evaluation_fingerprint(e) not in there]
        trained, started, errors = database.trained(run), now(), []
        if trained and not lacking:
            return []                                  # another suite has just done it
        if not trained:
            database.start(run, self.facts)
        model, result, parameters = self.trainer.train(run, database.corpus, folder, self.progress())
        if not trained:
            database.record_training(run, self.facts, result, parameters, started)
            self.channel.say("recorded")
        for evaluation in lacking:
            self.channel.say("progress", stage=f"evaluating {evaluation.name}")
            try:
                self.evaluate(evaluation, model, run, database)
            except Exception as error:                 # the experiments that did not ask for this one can do without
                traceback.print_exc()
                errors.append(f"evaluation {evaluation.name}: {described(error)}")
        return errors

    def evaluate(self, evaluation: Evaluation, model: Any, run: RunConfig, database: Database) -> None:
        start = time.perf_counter()
        measured = self.trainer.evaluate(evaluation, model, run, database.corpus)
        database.record_evaluation(run, evaluation, measured, time.perf_counter() - start)
        self.channel.say("recorded")

    def progress(self) -> Callable[[dict], None]:
        """A callback of the training loop: passes on step, loss and rate, a few times a second."""
        last = 0.0

        def report(state: dict[str, Any]) -> None:
            nonlocal last
            if os.getppid() != self.parent:            # the end of the input says so too, unless something holds the pipe
                os._exit(0)
            if time.monotonic() - last >= PROGRESS_SECONDS:
                last = time.monotonic()
                shown = {key: state[key] for key in ("step", "steps", "loss", "tokens_per_s") if state.get(key) is not None}
                self.channel.say("progress", stage="training", **shown)
        return report


def described(error: Exception) -> str:
    """The message of an error that names its remedy; of any other its kind too."""
    return str(error) if isinstance(error, SuiteError) else f"{type(error).__name__}: {error}"


def check_fresh(task: dict[str, Any], run: RunConfig, evaluations: list[Evaluation], corpus: Any) -> None:
    """A worker that starts later than its engine may hold newer code; then its results would get the wrong key."""
    mine = [run_fingerprint(run, corpus), *map(evaluation_fingerprint, evaluations)]
    if mine != [task["fingerprint"], *task["evaluation_fingerprints"]]:
        raise SuiteError(STALE)


class Real:
    """The training and the evaluations of this suite, on a GPU if there is one."""

    def __init__(self) -> None:
        import torch
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self.device = "cuda" if torch.cuda.is_available() else "cpu"

    def corpus(self, path: str) -> Any:
        from lib.data import Corpus
        return Corpus(Path(path))

    def train(self, run, corpus, folder, progress):
        from suite.tasks import make_source
        own = importlib.import_module(pattern_class(run.pattern.name).trainer)
        result = own.train_run(run, make_source(run.data, corpus), corpus, folder, progress, self.device)
        return result.model, result, sum(p.numel() for p in result.model.parameters())

    def evaluate(self, evaluation, model, run, corpus):
        from suite.evals import evaluate
        return evaluate(evaluation, model, run, corpus, self.device)


def threads() -> int:
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else 1


def main(trainer: Callable[[], Trainer] = Real) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)       # Ctrl-C reaches the whole process group; the engine decides
    channel = Channel()
    Worker(trainer(), channel).serve()


if __name__ == "__main__":
    main()
