"""The plan's missing runs, trained and evaluated by a bounded number of worker processes.

`ensure` returns when every run is in the database. Runs that several experiments ask for are trained once, also when
two suites run at the same time: each run is claimed by a lock, and one that another suite has in hand is waited for.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lib import paths
from lib.database import Database
from lib.estimate import Estimator
from lib.identity import evaluation_fingerprint
from lib.machine import cores
from lib.progress import Active, Display, Snapshot, display, duration
from lib.replicates import Further, numbered

if TYPE_CHECKING:
    from lib.data import Corpus
    from lib.experiments.base import Job

COMMAND = (sys.executable, "-m", "lib.worker")
ATTEMPTS = 2                  # a worker that dies under a run twice takes the run with it
BUSY_SECONDS = 0.5            # before a run that another suite has in hand is asked for again
FIRST_STEPS = 0.05            # of a run's steps: before them its speed says little
TAIL = 8                      # last lines of a log that an error shows

# What a worker runs with. One thread each; and freed memory is kept for the next step, in huge pages: fresh pages for every
# tensor cost a tenth of a training step. Only glibc's malloc knows of it; other systems ignore it.
WORKER = {**dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
          "TOKENIZERS_PARALLELISM": "false",
          "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in (
              ("hugetlb", 1), ("mmap_threshold", 2 ** 25), ("trim_threshold", 2 ** 32)))}


@dataclass(frozen=True)
class Failure:
    """Why a run has no result."""
    label: str
    reason: str
    log: Path
    tail: tuple[str, ...] = ()

    def text(self) -> str:
        lines = "".join(f"\n    | {line}" for line in self.tail)
        return f"{self.label}: {self.reason}{lines}\n    log: {self.log}"


class EngineError(RuntimeError):
    """Some runs failed; the others are in the database. `failures` are by fingerprint of the run."""

    def __init__(self, failures: dict[str, Failure]) -> None:
        self.failures = failures
        details = [f"  {failure.text()}" for failure in failures.values()]
        super().__init__("\n".join([f"{runs(len(failures))} failed; what else there was to do is done and kept:", *details]))

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


@dataclass
class Task:
    """A run with all that is wanted of it."""
    job: Job
    fingerprint: str
    label: str
    trained: bool = False                # only evaluations are missing
    replicate: int = 0                   # how many seeds of the same run come before this one
    attempts: int = 0
    not_before: float = 0.0              # time.monotonic
    state: Active = field(default_factory=lambda: Active(""))

    def message(self, profile: str, corpus: Corpus | None, slots: int) -> dict[str, Any]:
        evaluations = self.job.evaluations
        return {"profile": profile, "run": self.job.run.to_dict(), "fingerprint": self.fingerprint, "slots": slots,
                "evaluations": [[e.name, e.parameters] for e in evaluations],
                "evaluation_fingerprints": [evaluation_fingerprint(e) for e in evaluations],
                "corpus": str(corpus.path) if corpus is not None and self.job.run.data.source == "text" else None}


def label(job: Job) -> str:
    """What the display calls a run: its series (or pattern), setting and seed."""
    labels = dict(job.labels)
    parts = [str(labels.get("series") or job.run.pattern.name), str(labels.get("setting", "")), f"seed {job.run.train.seed}"]
    return ", ".join(part for part in parts if part)


def merged(jobs: Iterable[Job], database: Database) -> dict[str, Job]:
    """Equal runs as one, with the evaluations of all, in the order of their first appearance."""
    found: dict[str, Job] = {}
    for job in jobs:
        key = database.fingerprint(job.run)
        known = found.get(key, replace(job, evaluations=()))
        found[key] = replace(known, evaluations=tuple(dict.fromkeys((*known.evaluations, *job.evaluations))))
    return found


def runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def default_workers() -> int:
    return max(1, min(8, cores()))


class Process:
    """One worker. Its events arrive in `events` as (process, event); the last is `died`."""

    def __init__(self, command: Sequence[str], events: queue.Queue) -> None:
        environment = {**os.environ, **WORKER}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(paths.ROOT), os.environ.get("PYTHONPATH"))))
        self.task: Task | None = None
        self.ready = False
        self.stderr = tempfile.TemporaryFile("w+", errors="replace")      # until a run has a log of its own
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr, text=True,
                                      cwd=paths.ROOT, env=environment)
        self.listener = threading.Thread(target=self.listen, args=(events,), daemon=True)
        self.listener.start()

    def listen(self, events: queue.Queue) -> None:
        out: TextIO = self.popen.stdout
        for line in out:
            if line.startswith("{"):                   # not what a library printed before the worker took its output away
                events.put((self, json.loads(line)))
        events.put((self, {"event": "died", "status": self.popen.wait()}))

    def give(self, task: Task, message: dict[str, Any]) -> None:
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


class Engine:
    def __init__(self, jobs: Iterable[Job], profile: str, corpus: Corpus | None, workers: int, command: Sequence[str],
                 shown: Display, on_news: Callable[[str, Failure | None], None], further: Further) -> None:
        self.profile, self.corpus, self.workers, self.command = profile, corpus, workers, command
        self.shown, self.on_news, self.further = shown, on_news, further
        self.database = Database(profile, corpus)
        self.all = merged(jobs, self.database)
        missing = {self.database.fingerprint(job.run): job for job in self.database.missing(self.all.values())}
        replicates = dict(zip(self.all, numbered(job.run for job in self.all.values()), strict=True))
        self.pending = [Task(job, key, label(self.all[key]), self.database.trained(job.run), replicates[key])
                        for key, job in missing.items()]
        self.pending.sort(key=lambda task: task.replicate)      # stable: within a seed the order of the plan
        self.seeds = 0                                 # a task of this replicate was the last to be ordered
        self.there = [key for key in self.all if key not in missing]
        self.failures: dict[str, Failure] = {}
        self.processes: list[Process] = []
        self.events: queue.Queue[tuple[Process, dict[str, Any]]] = queue.Queue()
        self.estimator = Estimator(may_measure=False)
        self.done = self.deaths = 0
        self.seconds_left: float | None = None
        self.estimated = 0.0                           # time.monotonic

    def run(self) -> None:
        """Until nothing is pending; raises `EngineError` in the end if a run failed."""
        started = time.monotonic()
        for key in self.there:
            self.on_news(key, None)
        try:
            if self.pending:
                self.estimator = Estimator.from_history(may_measure=False)
                self.loop()
        finally:
            for process in self.processes:
                process.end()
            self.database.close()
            self.shown.close(self.summary(time.monotonic() - started))
        if self.failures:
            raise EngineError(self.failures)

    def summary(self, seconds: float) -> str:
        """One line on what was done."""
        if not self.done and not self.failures:
            return f"{runs(len(self.there))} there already"
        there = f", {len(self.there)} there already" if self.there else ""
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"{runs(self.done)} finished in {duration(seconds)}{there}{failed}"

    def loop(self) -> None:
        while self.pending or any(process.task for process in self.processes):
            self.hand_out()
            try:
                self.handle(*self.events.get(timeout=0.25))
                while True:
                    self.handle(*self.events.get_nowait())
            except queue.Empty:
                pass
            self.shown.show(self.snapshot())

    # Tasks to workers

    def hand_out(self) -> None:
        wanted = min(self.workers, len(self.pending) + sum(1 for p in self.processes if p.task))
        while len(self.processes) < wanted:
            self.processes.append(Process(self.command, self.events))
        for process in self.processes:
            task = self.next() if process.ready and process.task is None else None
            if task is not None:
                task.state = Active(task.label)
                process.give(task, task.message(self.profile, self.corpus, self.workers))

    def next(self) -> Task | None:
        """The first pending task whose time has come, unless another suite has finished it meanwhile."""
        now = time.monotonic()
        self.order_further_seeds()
        for task in [t for t in self.pending if t.not_before <= now]:
            self.pending.remove(task)
            rest = self.database.missing([task.job])
            if rest:
                task.job = rest[0]
                return task
            self.finish(task)
        return None

    def order_further_seeds(self) -> None:
        """When all that is left are further seeds, the caller says which of them come first."""
        seeds = min((task.replicate for task in self.pending), default=0)
        if seeds > self.seeds:
            self.seeds, need = seeds, self.further(seeds)
            self.pending.sort(key=lambda task: (task.replicate, need(task.job)))

    # Events from workers

    def handle(self, process: Process, event: dict[str, Any]) -> None:
        kind, task = event["event"], process.task
        if kind == "ready":
            process.ready = True
            self.deaths = 0
        elif kind == "died":
            self.bury(process, event["status"])
        elif task is None:
            return                                     # news of a task that was taken from it
        elif kind == "recorded":
            self.on_news(task.fingerprint, None)
        elif kind == "progress":
            task.state = replace(task.state, **{k: v for k, v in event.items() if k != "event"})
        else:
            process.task = None
            if kind == "busy":                         # another suite has it: the others first, then ask again
                task.not_before = time.monotonic() + BUSY_SECONDS
                self.pending.append(task)
            elif kind == "failed":
                self.fail(task, event["error"])
            elif kind == "done":
                self.finish(task)

    def finish(self, task: Task) -> None:
        self.done += 1
        if task.state.tokens_per_s:
            self.estimator.add(task.job.run, task.state.tokens_per_s)
        self.on_news(task.fingerprint, None)

    def fail(self, task: Task, reason: str, tail: tuple[str, ...] = ()) -> None:
        log = paths.run_folder(self.profile, task.fingerprint) / "log.txt"
        self.failures[task.fingerprint] = Failure(task.label, reason, log, tail)
        self.on_news(task.fingerprint, self.failures[task.fingerprint])

    def bury(self, process: Process, status: int) -> None:
        """A worker is dead: its run is tried once more, from its checkpoint, by another."""
        self.processes.remove(process)
        task, words = process.task, process.last_words()
        process.end()
        if task is None:
            self.deaths += 1
            if not process.ready and self.deaths > self.workers:
                self.give_up("a worker process does not start: " + how(status), words)
            return
        task.attempts += 1
        if task.attempts < ATTEMPTS:
            self.pending.insert(0, task)
            return
        log = paths.run_folder(self.profile, task.fingerprint) / "log.txt"
        tail = tuple(log.read_text(errors="replace").splitlines()[-TAIL:]) if log.exists() else words
        self.fail(task, f"its process died twice ({how(status)})", tail)

    def give_up(self, reason: str, tail: tuple[str, ...]) -> None:
        """No worker can start, so no run can: all that are left have failed."""
        for task in [p.task for p in self.processes if p.task] + self.pending:
            self.fail(task, reason, tail)
        for process in self.processes:
            process.task = None
        self.pending.clear()

    # What is shown

    def snapshot(self) -> Snapshot:
        active = tuple(process.task.state for process in self.processes if process.task)
        total = self.done + len(self.failures) + len(self.pending) + len(active)
        return Snapshot(self.done, total, len(self.failures), active, self.left())

    def left(self) -> float | None:
        """Seconds to the end: what remains of active and pending runs, over the workers. Computed anew each second."""
        if time.monotonic() - self.estimated < 1:
            return self.seconds_left
        self.estimated = time.monotonic()
        tasks = [process.task for process in self.processes if process.task]
        estimator = self.estimator if self.estimator.knows else self.first_impression(tasks)
        if estimator.knows:
            remaining = [self.remaining(task, estimator) for task in [*tasks, *self.pending]]
            self.seconds_left = max(sum(remaining) / self.workers, max(remaining, default=0.0))
        return self.seconds_left

    def first_impression(self, tasks: Iterable[Task]) -> Estimator:
        """While no run has ended: the speed of those that train, once they are beyond their first steps, which compile."""
        estimator = Estimator(may_measure=False)
        for task in tasks:
            if task.state.tokens_per_s and task.state.step >= FIRST_STEPS * (task.state.steps or 1):
                estimator.add(task.job.run, task.state.tokens_per_s)
        return estimator

    def remaining(self, task: Task, estimator: Estimator) -> float:
        run, state = task.job.run, task.state
        evaluations = sum(estimator.evaluation(run, e) for e in task.job.evaluations)
        if task.trained or state.stage.startswith("evaluating"):
            return evaluations
        left = 1 - state.step / state.steps if state.steps else 1.0
        rate = state.tokens_per_s or estimator.rate(run)
        return left * run.train.tokens / rate + evaluations


def how(status: int) -> str:
    """An exit status in words."""
    if status == -9:
        return "killed by signal 9, which is also what the system does when memory runs out"
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"


def ensure(jobs: Iterable[Job], profile: str, corpus: Corpus | None, workers: int | None = None,
           on_news: Callable[[str, Failure | None], None] = lambda run, failure: None, *,
           further: Further = lambda seeds: lambda job: 0, shown: Display | None = None,
           command: Sequence[str] | None = None) -> None:
    """Train and evaluate what the database of `profile` lacks of `jobs`; returns when all is there.

    `on_news(run, failure)` is called when more of a run (its fingerprint) is in the database, with None, and in the end with
    None or with why not all of it could be done. A worker that dies is replaced, and its run resumed once. Other runs go on
    after a failure; in the end one `EngineError` names all that failed. First seeds come before second ones, whatever asks for
    them; `further(n)`, called when n seeds of all are in hand or done, gives the order (a number a job) of the next ones.
    `command` starts a worker (tests have a quick one).
    """
    Engine(jobs, profile, corpus, workers or default_workers(), command or COMMAND, shown or display(), on_news, further).run()
