"""Trains and evaluates the missing runs of a plan with a bounded number of workers (`suite.run.worker`).

`ensure` returns when every run is in the database. A run that several experiments ask for is trained once, also when
two suites run at once: each run is claimed by a lock, and the engine waits for a run that another suite trains. First
seeds are trained before further seeds, and further seeds first where a claim is still undecided (`by_need`).
"""


import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lib import paths
from lib.config import PatternSpec, RunConfig
from lib.data import Corpus
from lib.errors import SuiteError
from lib.text import duration
from suite.experiments.base import Job, merged
from suite.plan.estimate import Estimator
from suite.run.database import Database
from suite.run.worker import TAIL, Events, Hosts, WorkerProcess
from suite.settings.fingerprints import evaluation_fingerprint, run_fingerprint
from suite.settings.parameters import notebook_names
from suite.settings.profiles import Profile
from suite.settings.progress import Active, Display, Snapshot, display

BUSY_SECONDS = 0.5            # before a run that another suite trains is tried again
FIRST_STEPS = 0.05            # share of a run's steps before which its speed says little
UNDECIDED, ONE_SEED, DECIDED, UNCLAIMED = range(4)           # what needs a further seed most comes first

Further = Callable[[int], Callable[[Job], int]]              # number of trained seeds -> order of the next seeds


@dataclass(frozen=True)
class Failure:
    """Why a run has no result."""
    label: str
    reason: str
    log: Path
    tail: Sequence[str] = ()

    def text(self) -> str:
        return "\n    ".join([f"{self.label}: {self.reason}", *(f"| {line}" for line in self.tail), f"log: {self.log}"])


class EngineError(RuntimeError):
    """Some runs failed, which the message names; the others are in the database."""
    _render_traceback_ = SuiteError._render_traceback_


@dataclass
class Assignment:
    job: Job                             # a run with all that is wanted of it
    fingerprint: str
    trained: bool = False                # only evaluations are missing
    replicate: int = 0                   # how many seeds of the same run come before this one
    attempts: int = 0
    not_before: float = 0.0              # time.monotonic
    state: Active = Active("")

    @property
    def label(self) -> str:
        """What the display calls the run: its series (or pattern), setting and seed."""
        labels, run = self.job.labels, self.job.run
        return ", ".join(filter(None, [labels.series or run.pattern.name, labels.setting, f"seed {run.train.seed}"]))

    def log(self, profile: str) -> Path:
        return paths.run_folder(profile, self.fingerprint) / "log.txt"

    def message(self, profile: str, corpus: Corpus | None, slots: int) -> dict[str, Any]:
        """What a worker is told. slots: how many workers share the machine; 0: no slot is needed."""
        evaluations = self.job.evaluations
        return {"profile": profile, "run": self.job.run.to_dict(), "fingerprint": self.fingerprint, "slots": slots,
                "evaluations": [[e.name, e.parameters] for e in evaluations],
                "evaluation_fingerprints": [evaluation_fingerprint(e) for e in evaluations],
                "corpus": str(corpus.path) if corpus is not None and self.job.run.data.source == "text" else None}


def counted(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


def assignments(jobs: Iterable[Job], database: Database | None, corpus: Corpus | None) -> list[Assignment]:
    """The work that the database (None: an empty one) lacks: first seeds first, else in the order of the plan."""
    wanted, seeds, replicates = merged(jobs), Counter(), {}
    for job in wanted:
        replicates[job.run] = seeds[apart_from_seed(job.run)]
        seeds[apart_from_seed(job.run)] += 1
    tasks = [Assignment(job, run_fingerprint(job.run, corpus), database is not None and database.trained(job.run),
                        replicates[job.run]) for job in (database.missing(wanted) if database is not None else wanted)]
    return sorted(tasks, key=lambda task: task.replicate)


class Engine:
    def __init__(self, jobs: Iterable[Job], profile: str, corpus: Corpus | None, hosts: Hosts, shown: Display,
                 on_news: Callable[[str, Failure | None], None], further: Further) -> None:
        self.profile, self.corpus, self.hosts = profile, corpus, hosts
        self.shown, self.on_news, self.further = shown, on_news, further
        self.database = Database(profile, corpus)
        self.pending = assignments(jobs, self.database, corpus)
        todo = {task.fingerprint for task in self.pending}
        self.there = list(dict.fromkeys(key for job in jobs if (key := self.database.fingerprint(job.run)) not in todo))
        self.seeds = 0                                 # a task of this replicate was the last to be ordered
        self.failures: dict[str, Failure] = {}
        self.workers: list[WorkerProcess] = []         # or what looks the same to the engine (`suite.run.ray_hosts`)
        self.events: Events = queue.Queue()
        self.estimator = Estimator(may_measure=False)
        self.done = self.deaths = 0
        self.seconds_left, self.estimate_due = None, 0.0               # the latter is of time.monotonic

    def run(self) -> None:
        started = time.monotonic()
        for key in self.there:
            self.on_news(key, None)
        try:
            if self.pending:
                self.hosts.open(self.profile, self.corpus, self.shown.note)
                if self.hosts.here:
                    self.estimator = Estimator.from_history(may_measure=False)
                while self.pending or self.in_hand:
                    self.hand_out()
                    try:
                        self.handle(*self.events.get(timeout=0.25))
                    except queue.Empty:
                        pass
                    self.shown.show(self.snapshot())
        finally:
            for worker in self.workers:
                worker.end()
            self.hosts.close()
            self.database.close()
            self.shown.close(self.summary(time.monotonic() - started))
        if self.failures:
            raise EngineError("\n  ".join([f"{counted(len(self.failures))} failed; everything else is done and kept:",
                                           *(failure.text() for failure in self.failures.values())]))

    def summary(self, seconds: float) -> str:
        if not self.done and not self.failures:
            return "" if self.pending or self.in_hand else f"{counted(len(self.there))} there already"
        others = {"there already": len(self.there), "failed": len(self.failures)}
        return ", ".join([f"{counted(self.done)} finished in {duration(seconds)}",
                          *(f"{number} {what}" for what, number in others.items() if number)])

    @property
    def in_hand(self) -> list[Assignment]:
        return [worker.task for worker in self.workers if worker.task]

    def hand_out(self) -> None:
        room = self.hosts.count()
        wanted = min(room, len(self.pending) + len(self.in_hand))
        while len(self.workers) < wanted:
            self.workers.append(self.hosts.start(self.events))
        idle = sorted((worker for worker in self.workers if worker.task is None), key=lambda worker: worker.ready)
        for worker in idle[:len(self.workers) - wanted]:
            self.workers.remove(worker)                # nothing is left for it: its GPU, if any, is free again
            worker.end()
        for worker in self.workers:
            task = self.next() if worker.ready and worker.task is None else None
            if task is not None:
                task.state = Active(task.label)
                worker.give(task, task.message(self.profile, self.corpus, room))

    def next(self) -> Assignment | None:
        """The first pending task whose time has come, unless another suite has finished it meanwhile. When all that is
        left are further seeds, the caller says which of them come first."""
        seeds, now = min((task.replicate for task in self.pending), default=0), time.monotonic()
        if seeds > self.seeds:
            self.seeds, need = seeds, self.further(seeds)
            self.pending.sort(key=lambda task: (task.replicate, need(task.job)))
        for task in [t for t in self.pending if t.not_before <= now]:
            self.pending.remove(task)
            rest = self.database.missing([task.job])
            if rest:
                task.job = rest[0]
                return task
            self.finish(task)
        return None

    def handle(self, worker: WorkerProcess, event: dict[str, Any]) -> None:
        kind, task = event["event"], worker.task
        if worker not in self.workers:
            return                                     # news of one that was ended
        if kind == "ready":
            worker.ready = True
            self.deaths = 0
        elif kind == "died":
            self.bury(worker, event["how"], event["words"])
        elif task is None:
            return                                     # news of a task that was taken from it
        elif kind == "recorded":
            self.on_news(task.fingerprint, None)
        elif kind == "note":
            self.shown.note(f"{task.label}: {event['text']}")
        elif kind == "progress":
            task.state = replace(task.state, **{k: v for k, v in event.items() if k != "event"})
        else:
            worker.task = None
            if kind == "busy":                         # another suite has it: the others first, then ask again
                task.not_before = time.monotonic() + BUSY_SECONDS
                self.pending.append(task)
            elif kind == "failed":
                self.fail(task, event["error"])
            elif kind == "done":
                self.finish(task)

    def finish(self, task: Assignment) -> None:
        self.done += 1
        if task.state.tokens_per_s:
            self.estimator.add(task.job.run, task.state.tokens_per_s)
        self.on_news(task.fingerprint, None)

    def fail(self, task: Assignment, reason: str, tail: Sequence[str] = ()) -> None:
        self.failures[task.fingerprint] = failure = Failure(task.label, reason, task.log(self.profile), tail)
        self.on_news(task.fingerprint, failure)

    def bury(self, worker: WorkerProcess, how: str, words: Sequence[str]) -> None:
        """A worker is dead: its run is tried again, from its checkpoint, by another."""
        self.workers.remove(worker)
        worker.end()
        task = worker.task
        if task is None:
            self.deaths += 1
            if not worker.ready and self.deaths > max(self.hosts.attempts, self.hosts.count()):
                for left in self.in_hand + self.pending:             # no worker can start, so no run can
                    self.fail(left, "a worker process does not start: " + how, words)
                for other in self.workers:
                    other.task = None
                self.pending.clear()
            return
        task.attempts += 1
        if task.attempts < self.hosts.attempts:
            self.pending.insert(0, task)
            return
        log, times = task.log(self.profile), "twice" if task.attempts == 2 else f"{task.attempts} times"
        tail = log.read_text(errors="replace").splitlines()[-TAIL:] if log.exists() else words
        self.fail(task, f"its process died {times} ({how})", tail)

    def snapshot(self) -> Snapshot:
        active = tuple(task.state for task in self.in_hand)
        total = self.done + len(self.failures) + len(self.pending) + len(active)
        if time.monotonic() >= self.estimate_due:      # each second, or less often where thousands of runs take long
            begin, self.seconds_left = time.monotonic(), self.left()
            self.estimate_due = time.monotonic() + max(1.0, 20 * (time.monotonic() - begin))
        return Snapshot(self.done, total, len(self.failures), active, self.seconds_left)

    def left(self) -> float | None:
        """Seconds to the end: what remains of active and pending runs, over the workers."""
        estimator = self.estimator
        if not estimator.speeds:                        # no run has ended; an active one compiles in its first steps
            estimator = Estimator(may_measure=False)
            for task in self.in_hand:
                if task.state.tokens_per_s and task.state.step >= FIRST_STEPS * (task.state.steps or 1):
                    estimator.add(task.job.run, task.state.tokens_per_s)
        if not estimator.speeds:
            return None
        remaining = []
        for task in [*self.in_hand, *self.pending]:
            run, state = task.job.run, task.state
            remaining.append(sum(estimator.evaluation(run, e) for e in task.job.evaluations))
            if not task.trained and not state.stage.startswith("evaluating"):
                untrained = 1 - state.step / state.steps if state.steps else 1.0
                remaining[-1] += untrained * run.train.tokens / (state.tokens_per_s or estimator.rate(run))
        return max(sum(remaining) / max(1, self.hosts.count()), max(remaining, default=0.0))


def ensure(jobs: Iterable[Job], profile: str, corpus: Corpus | None, workers: int | None = None,
           on_news: Callable[[str, Failure | None], None] = lambda run, failure: None, *,
           further: Further = lambda seeds: lambda job: 0, shown: Display | None = None,
           hosts: Hosts | None = None) -> None:
    """Train and evaluate what the database of `profile` lacks of `jobs`; returns when all is there.

    The engine calls `on_news(run, failure)`, run a fingerprint, when more of a run is in the database (failure None),
    and in the end with None or with the reason why the run is not complete. A worker that dies is replaced, and its run
    resumed once. Other runs go on after a failure; in the end one `EngineError` names all that failed. First seeds come
    before second ones, whatever asks for them; `further(n)`, called when n seeds of all are in hand or done, gives the
    order (a number per job) of the next ones. Runs are trained in `workers` processes of this machine, or on `hosts`.
    """
    hosts = hosts or (Hosts(workers) if workers else Hosts())
    Engine(list(jobs), profile, corpus, hosts, shown or display(), on_news, further).run()


# Further seeds

def apart_from_seed(run: RunConfig) -> RunConfig:
    """The run with seed 0, that of its draw too: equal for runs that differ in their seed only."""
    pattern = PatternSpec.of(run.pattern.name, **{**dict(run.pattern.parameters), "seed": 0})
    return replace(run, pattern=pattern, train=replace(run.train, seed=0))



def with_seeds(profile: Profile, count: int) -> Profile:
    """The profile with the first `count` seeds of each list of seeds."""
    def cut(notebook: str) -> dict[str, Any]:
        lists = {name: value[:count] for name, value in profile.parameters(notebook) if name.endswith("seeds")}
        return {**profile.notebooks.get(notebook, {}), **lists}
    return replace(profile, notebooks={name: cut(name) for name in notebook_names()})


def by_need(judgements: Sequence[Any], configurations: Mapping[str, RunConfig]) -> Callable[[Job], int]:
    """The order of further seeds: runs behind an undecided claim, then behind a verdict of one seed, then the others.
    configurations: each run of the plan by its fingerprint."""
    need: dict[RunConfig, int] = {}
    for judgement in judgements:
        level = UNDECIDED if judgement.verdict == "undecided" else ONE_SEED if judgement.seeds == 1 else DECIDED
        for run in judgement.runs:
            if run in configurations:
                key = apart_from_seed(configurations[run])
                need[key] = min(level, need.get(key, UNCLAIMED))
    return lambda job: need.get(apart_from_seed(job.run), UNCLAIMED)
