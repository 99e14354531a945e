"""What a profile trains, before anything runs: each notebook's runs, shared runs counted once, and their time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lib import paths
from lib.errors import SuiteError
from lib.text import duration
from suite.experiments.base import merged
from suite.plan import gpus
from suite.plan.cost import evaluation_flops, peak_bytes, run_flops
from suite.plan.estimate import Estimator
from suite.run.database import Database
from suite.settings.parameters import notebook_names

if TYPE_CHECKING:
    from lib.config import Evaluation, RunConfig
    from lib.data import Corpus
    from suite.experiments.base import Job, Parameters
    from suite.settings.profiles import Profile

DOMAINS = 4                 # of held-out text, where there is no corpus yet that says how many
USABLE = 0.9                # of a GPU's memory: the rest is its driver's, and lost between blocks


@dataclass(frozen=True)
class Planned:
    """A notebook with its parameters and all that it needs."""
    notebook: str
    parameters: Parameters
    jobs: tuple[Job, ...]
    alone: bool = False                  # executed when nothing trains any more


@dataclass(frozen=True)
class NotebookCost:
    """One line of the plan. A run that an earlier notebook needs too is `shared`, and its work counts there."""
    notebook: str
    runs: int
    shared: int
    done: int                            # of the runs: trained and evaluated already
    to_train: int
    tokens: int                          # to train
    evaluations: int                     # to do
    flops: float                         # operations of both
    memory_gib: float                    # most that one of the runs needs, of a GPU
    micro_batches: int                   # into how many, at most, a run's batch is split so that it fits that GPU
    minutes: float                       # on this machine, with the profile's workers side by side
    hours: float | None                  # on one GPU by name, one run after the other


def notebooks() -> list[str]:
    """Names of the suite's notebooks, in their order."""
    names = notebook_names()
    if not names:
        raise SuiteError(f"{paths.NOTEBOOKS} holds no notebooks")
    return names


def planned(profile: Profile, notebook: str) -> Planned:
    """The notebook at the profile's parameters; longest runs first, equal ones in the experiment's order."""
    from suite.experiments import experiment
    parameters, own = profile.parameters(notebook), experiment(notebook)
    jobs = sorted(own.plan(parameters, profile), key=work, reverse=True)
    return Planned(notebook, parameters, tuple(jobs), own.alone)


def work(job: Job) -> float:
    """Tokens times weights: what a run costs, pattern aside."""
    return float(job.run.train.tokens) * job.run.model.matrix_weights


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
    lines = []
    for plan in plans:
        jobs = merged(plan.jobs)
        train = [job.run for job in jobs if job.run in untrained and job.run not in asked]
        evaluate = [(job.run, evaluation) for job in jobs for evaluation in job.evaluations
                    if evaluation in lacking[job.run] and evaluation not in asked.get(job.run, ())]
        flops = [(run, run_flops(run)) for run in train]
        flops += [(run, evaluation_flops(run, evaluation, domains)) for run, evaluation in evaluate]
        seconds = sum(map(estimator.training, train)) + sum(estimator.evaluation(*pair) for pair in evaluate)
        memory = [memory_of(job.run, speed) for job in jobs]
        done = [job for job in jobs if job.run not in untrained and lacking[job.run].isdisjoint(job.evaluations)]
        lines.append(NotebookCost(
            plan.notebook, runs=len(jobs), shared=sum(job.run in asked for job in jobs), done=len(done),
            to_train=len(train), tokens=sum(run.train.tokens for run in train), evaluations=len(evaluate),
            flops=sum(count for _, count in flops), memory_gib=max((gib for gib, _ in memory), default=0.0),
            micro_batches=max((parts for _, parts in memory), default=1), minutes=seconds / 60 / profile.workers,
            hours=sum(speed.seconds(*pair) for pair in flops) / 3600 if speed else None))
        for job in jobs:
            asked.setdefault(job.run, set()).update(job.evaluations)
    done = sum(job.run not in untrained and not lacking[job.run] for job in everything)
    matrix = gpus.paper_matrix([job.run for job in everything], speed)
    return Outlook(profile, lines, total(lines, len(everything), done), not estimator.measured, speed, matrix)


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


def total(lines: Sequence[NotebookCost], runs: int, done: int) -> NotebookCost:
    summed = {name: sum(getattr(line, name) for line in lines)
              for name in ("to_train", "tokens", "evaluations", "flops", "minutes")}
    largest = {name: max((getattr(line, name) for line in lines), default=0)
               for name in ("memory_gib", "micro_batches")}
    hours = [line.hours for line in lines if line.hours is not None]
    return NotebookCost("total", runs, 0, done, **summed, **largest, hours=sum(hours) if hours else None)


def memory_of(run: RunConfig, speed: gpus.GpuSpeed | None) -> tuple[float, int]:
    """GiB at the peak of a training, and its number of micro-batches: as few as the GPU holds."""
    def needed(windows: int) -> int:
        return peak_bytes(run.model, run.train.precision, windows * run.train.length)

    batch, parts = run.train.batch, 1
    if speed is not None:
        room = USABLE * speed.gpu.memory_gib * 2 ** 30
        parts = next((n for n in range(1, batch) if needed(-(-batch // n)) <= room), batch)
    return needed(-(-batch // parts)) / 2 ** 30, parts


@dataclass(frozen=True)
class Outlook:
    """The plan: a line a notebook and their total. timed: all times come from runs that were timed on this machine."""
    profile: Profile
    notebooks: list[NotebookCost]
    total: NotebookCost
    timed: bool
    speed: gpus.GpuSpeed | None = None
    matrix: Sequence[gpus.MatrixRow] = ()

    def json(self) -> str:
        """For programs; hours are null without a GPU."""
        speed = self.speed
        gpu = None if speed is None else {"name": speed.name, **asdict(speed.gpu), "shares_of_peak": speed.shares,
                                          "measured": sorted(speed.measured)}
        return json.dumps({"profile": self.profile.name, "timed": self.timed, "gpu": gpu,
                           "notebooks": list(map(asdict, self.notebooks)), "total": asdict(self.total),
                           "matrix": list(map(asdict, self.matrix))}, indent=1)

    def text(self) -> str:
        profile, speed = self.profile, self.speed
        header = ["notebook", "runs", "shared", "done", "to train", "tokens", "evals", "FLOPs", "memory", "time"]
        cells = [[line.notebook, line.runs, line.shared, line.done, line.to_train, amount(line.tokens),
                  line.evaluations,
                  f"{line.flops:.1e}", f"{line.memory_gib:.1f} GiB", duration(60 * line.minutes),
                  *([in_hours(line.hours)] if speed else [])] for line in [*self.notebooks, self.total]]
        header += [f"{speed.gpu.title}, h"] if speed else []
        source = "from runs timed on this machine" if self.timed else \
            "rough, as no run of such a model was timed on this machine yet"
        split = [f"{line.notebook}: batches are split in up to {line.micro_batches} to fit"
                 for line in [*self.notebooks, self.total] if line.micro_batches > 1]
        return "\n".join([
            f"profile {profile.name}: {profile.description}", "",
            *table([header, *cells], (22, 6, 8, 6, 10, 10, 7, 9, 11, 14, 16)), "",
            f"time: on this machine, {source}, {profile.workers} side by side",
            "shared: an earlier notebook needs the run too, and its training counts there",
            "memory: most that one training needs on a GPU: weights, gradients, AdamW's moments, activations, logits",
            *split, *([speed.text()] if speed else []), *(self.matrix_text() if self.matrix else [])])

    def matrix_text(self) -> list[str]:
        """The planned runs that reproduce the Fibonacci paper, with their published times."""
        gpu = self.speed.gpu.title if self.speed else ""
        header = ("training, by what it is", "runs", "tokens", "FLOPs", f"{gpu}, h" if gpu else "", "published, h")
        cells = [(row.part, row.runs, amount(row.tokens), f"{row.flops:.1e}", in_hours(row.hours),
                  in_hours(row.published_hours)) for row in self.matrix]
        lines = ["", *table([header, *cells], (26, 6, 10, 10, 16, 14)), ""]
        timed = next(row for row in self.matrix if row.part == gpus.TIMED)
        if gpu:
            lines.append(f"the published matrix, {timed.runs} runs: {in_hours(timed.hours)} hours on one {gpu}; "
                         f"published: {in_hours(timed.published_hours)} GPU-hours on RTX 3090s, evaluations included")
        return lines


def table(rows: Sequence[Sequence[Any]], widths: Sequence[int]) -> list[str]:
    """The first column to the left, the others to the right."""
    return [f"{name:<{widths[0]}}" + "".join(map("{:>{}}".format, numbers, widths[1:]))
            for name, *numbers in rows]


def in_hours(hours: float | None) -> str:
    return "" if hours is None else f"{hours:,.1f}" if hours < 1000 else f"{hours:,.0f}"


def amount(tokens: int) -> str:
    return f"{tokens / 1e9:.2f}B" if tokens >= 1e9 else f"{tokens / 1e6:.2f}M"
