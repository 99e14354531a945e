"""What a profile trains, before anything runs: each notebook's runs, shared runs counted once, and their time."""

import math
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import pandas as pd

from lib import paths
from lib.config import Evaluation, RunConfig
from lib.data import Corpus
from lib.errors import SuiteError, require
from lib.text import duration
from suite import evals, experiments
from suite.experiments.base import Job, Parameters, merged
from suite.plan import gpus
from suite.plan.cost import evaluation_flops, peak_bytes, run_flops
from suite.plan.estimate import Estimator
from suite.run.database import Database
from suite.settings.parameters import located
from suite.settings.profiles import Profile
from suite.settings.progress import text_table

DOMAINS = 4                 # of held-out text, where there is no corpus yet that says how many
PLAN_SECONDS = 3600         # of computing, for the plan of one notebook; the longest of the suite's takes minutes
MOST_GRID = 10_000          # combinations of a notebook's four longest lists: paper has at most 500
MOST_RUNS = 3000            # of a notebook: paper has at most 150
USABLE = 0.9                # of a GPU's memory: the rest is its driver's, and lost between blocks
# The plan has a line a notebook and one for all of them. What is needed more than once counts where it is needed first.
COLUMNS = {"runs": "sum",
           "shared": "sum",            # of the runs: an earlier notebook needs them too
           "done": "sum",              # of the runs: trained and evaluated already
           "to_train": "sum",
           "tokens": "sum",            # to train
           "evaluations": "sum",       # to do
           "flops": "sum",             # operations of both
           "memory_gib": "max",        # most that one of the runs needs, of a GPU
           "micro_batches": "max",     # into how many, at most, a run's batch is split so that it fits that GPU
           "minutes": "sum",           # on this machine, with the profile's workers side by side
           "hours": "sum"}             # on one GPU by name, one run after the other


@dataclass(frozen=True)
class Planned:
    notebook: str
    parameters: Parameters
    jobs: tuple[Job, ...]
    alone: bool = False                  # executed when nothing trains any more


@dataclass(frozen=True)
class Outlook:
    """The plan: a line (`COLUMNS`) a notebook, the last for all. timed: all times come from runs of this machine."""
    profile: Profile
    lines: pd.DataFrame
    timed: bool
    speed: gpus.GpuSpeed | None
    matrix: Sequence[gpus.MatrixRow]

    @property
    def nothing_to_do(self) -> bool:
        return not self.lines[["to_train", "evaluations"]].to_numpy().any()

    def text(self) -> str:
        profile, speed, lines = self.profile, self.speed, list(self.lines.itertuples())
        header = ["notebook", "runs", "shared", "done", "to train", "tokens", "evals", "FLOPs", "GiB", "time",
                  *([f"{speed.gpu.title}, h"] if speed else [])]
        cells = [[line.notebook, line.runs, line.shared, line.done, line.to_train, amount(line.tokens),
                  line.evaluations, f"{line.flops:.1e}", f"{line.memory_gib:.1f}", duration(60 * line.minutes),
                  *([in_hours(line.hours)] if speed else [])] for line in lines]
        source = "from runs timed on this machine" if self.timed else "rough, as no such model was timed here yet"
        split = [f"{line.notebook}: batches are split in up to {line.micro_batches} to fit"
                 for line in lines if line.micro_batches > 1]
        return "\n".join([
            f"profile {profile.name}: {profile.description}", "", text_table(header, cells), "",
            f"time: on this machine, {source}, {profile.workers} side by side",
            "shared: an earlier notebook needs the run too, and its training counts there",
            "GiB: most that one training needs on a GPU: weights, gradients, AdamW's moments, activations, logits",
            *split, *([speed.text()] if speed else []), *(self.matrix_text() if self.matrix else [])])

    def matrix_text(self) -> list[str]:
        gpu = self.speed.gpu.title if self.speed else ""
        header = ["training, by what it is", "runs", "tokens", "FLOPs", f"{gpu}, h" if gpu else "", "published, h"]
        lines = ["", text_table(header, [[row.part, row.runs, amount(row.tokens), f"{row.flops:.1e}",
                                          in_hours(row.hours), in_hours(row.published_hours)] for row in self.matrix])]
        timed = next(row for row in self.matrix if row.part == gpus.TIMED)
        if gpu:
            lines += ["", f"the published matrix, {timed.runs} runs: {in_hours(timed.hours)} hours on one {gpu}; "
                          f"published: {in_hours(timed.published_hours)} GPU-hours on RTX 3090s, evaluations included"]
        return lines


@lru_cache(maxsize=64)
def planned(profile: Profile, notebook: str) -> Planned:
    """The notebook at the profile's parameters; longest runs first, equal ones in the experiment's order."""
    parameters, own = profile.parameters(notebook), experiments.experiment(notebook)
    where = f"{profile.name}.yaml, notebooks: {notebook}"
    grid = math.prod(sorted(len(value) for _, value in parameters if isinstance(value, tuple) and value)[-4:])
    require(grid <= MOST_GRID, f"{where}: combinations of its longest lists", grid, f"at most {MOST_GRID:,}")
    with at_most(PLAN_SECONDS, where):
        jobs = sorted(own.plan(parameters, profile), reverse=True,
                      key=lambda job: job.run.train.tokens * job.run.model.matrix_weights)
    require(len(jobs) <= MOST_RUNS, f"{where}: number of runs", len(jobs), f"at most {MOST_RUNS:,}: shorten its lists")
    with located(where):
        for evaluation in {evaluation for job in jobs for evaluation in job.evaluations}:
            evals.build(evaluation.name, **dict(evaluation.parameters))        # a wrong one is said before any training
    return Planned(notebook, parameters, tuple(jobs), own.alone)


def plans_of(profile: Profile, notebooks: Iterable[str], fail: Callable[[str, str], None]) -> list[Planned]:
    """The plans of these notebooks; `SuiteError` for wrong parameters. An error of an experiment's own code is given to
    `fail` with the notebook's name, and the others go on."""
    plans = []
    for name in notebooks:
        try:
            plans.append(planned(profile, name))
        except SuiteError:
            raise
        except Exception:
            fail(name, traceback.format_exc())
    return plans


class Expired(BaseException):
    """The time is over; no handler of a pattern's own errors may catch it."""


@contextmanager
def at_most(seconds: float, what: str) -> Iterator[None]:
    """A `SuiteError` ends what takes more than `seconds` of this process's computing, however busy the machine is."""
    def stop(*_: object) -> None:
        raise Expired
    if threading.current_thread() is not threading.main_thread():     # only that one hears a signal
        yield
        return
    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    except Expired:
        raise SuiteError(f"{what}: the plan takes more than {seconds:g} s of computing: shorten its lists, or the "
                         "lengths and windows of its patterns") from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def default_gpu(plans: Sequence[Planned]) -> str | None:
    """The GPU that is here; if there is none and the paper's models are planned, the GPU that the paper used."""
    runs = [job.run for plan in plans for job in plan.jobs]
    return gpus.seen() or (gpus.PUBLISHED if gpus.paper_matrix(runs, None) else None)


def outlook(plans: Sequence[Planned], profile: Profile, corpus: Corpus | None, gpu: str | None = None) -> Outlook:
    """What the plans need and what is there already. gpu: for its memory and hours. corpus: None if it is not built."""
    speed, estimator = gpus.speed(gpu) if gpu else None, Estimator.from_history()
    domains = len(getattr(corpus, "domains", ()) or profile.mixture) or DOMAINS
    everything = merged(job for plan in plans for job in plan.jobs)
    untrained, lacking = work_left(everything, profile, corpus)
    asked: dict[RunConfig, set[Evaluation]] = {}             # by earlier notebooks
    rows = []
    for plan, job in [(plan, job) for plan in plans for job in merged(plan.jobs)]:
        run, first = job.run, job.run not in asked
        known = asked.setdefault(run, set())
        train, evaluate = first and run in untrained, [e for e in job.evaluations if e in lacking[run] - known]
        known.update(job.evaluations)
        flops = (run_flops(run) if train else 0.0) + sum(evaluation_flops(run, e, domains) for e in evaluate)
        seconds = (estimator.training(run) if train else 0.0) + sum(estimator.evaluation(run, e) for e in evaluate)
        memory, parts = memory_of(run, speed)
        costs = {"to_train": int(train), "tokens": train * run.train.tokens, "evaluations": len(evaluate),
                 "flops": flops, "memory_gib": memory, "micro_batches": parts,
                 "minutes": seconds / 60 / profile.workers, "hours": speed.seconds(run, flops) / 3600 if speed else 0.0}
        done = run not in untrained and lacking[run].isdisjoint(job.evaluations)
        all_done = first and run not in untrained and not lacking[run]
        rows += [{"notebook": plan.notebook, "runs": 1, "shared": int(not first), "done": int(done), **costs},
                 {"notebook": "total", "runs": int(first), "shared": 0, "done": int(all_done), **costs}]
    lines = pd.DataFrame(rows, columns=["notebook", *COLUMNS]).groupby("notebook").agg(COLUMNS)
    lines = lines.reindex([*(plan.notebook for plan in plans), "total"], fill_value=0)
    if speed is None:
        lines["hours"] = None
    matrix = gpus.paper_matrix([job.run for job in everything], speed)
    return Outlook(profile, lines.reset_index(), not estimator.measured, speed, matrix)


def work_left(jobs: Sequence[Job], profile: Profile,
              corpus: Corpus | None) -> tuple[set[RunConfig], dict[RunConfig, set[Evaluation]]]:
    """The runs that are not trained, and the evaluations that each run lacks; all where the corpus is not built."""
    lacking = {job.run: set(job.evaluations) for job in jobs}
    untrained = set(lacking)
    if paths.database(profile.name).exists():
        database = Database(profile.name, corpus)
        known = [job for job in jobs if corpus is not None or job.run.data.source != "text"]
        missing = database.missing(known)
        lacking |= {job.run: set() for job in known} | {job.run: set(job.evaluations) for job in missing}
        untrained -= {job.run for job in known} - {job.run for job in missing if not database.trained(job.run)}
        database.close()
    return untrained, lacking


def memory_of(run: RunConfig, speed: gpus.GpuSpeed | None) -> tuple[float, int]:
    """GiB at the peak of a training, and its number of micro-batches: as few as the GPU holds."""
    def needed(windows: int) -> float:
        return peak_bytes(run.model, run.train.precision, windows * run.train.length) / 2 ** 30
    batch, parts = run.train.batch, 1
    if speed is not None:
        parts = next((n for n in range(1, batch) if needed(-(-batch // n)) <= USABLE * speed.gpu.memory_gib), batch)
    return needed(-(-batch // parts)), parts


def in_hours(hours: float | None) -> str:
    return "" if hours is None else f"{hours:,.1f}" if hours < 1000 else f"{hours:,.0f}"


def amount(tokens: int) -> str:
    return f"{tokens / 1e9:.2f}B" if tokens >= 1e9 else f"{tokens / 1e6:.2f}M"
