"""What a profile trains before anything runs: each notebook's runs, shared ones counted once, and how long they take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from lib import paths
from lib.errors import SuiteError, one_of
from lib.text import duration
from suite.plan.flops import peak_bytes
from suite.run import execute

if TYPE_CHECKING:
    from lib.config import RunConfig
    from lib.data import Corpus
    from suite.experiments.base import Job, Parameters
    from suite.plan.gpu_hours import Speed
    from suite.plan.paper_matrix import Part
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
class Row:
    """One notebook of the plan. What an earlier notebook needs too is `shared`, and counts there from `to_train` on."""
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


SUMMED = ("to_train", "tokens", "evaluations", "flops", "minutes")
LARGEST = ("memory_gib", "micro_batches")


def notebooks() -> list[str]:
    """Names of the suite's notebooks, in their order."""
    names = sorted(path.stem for path in paths.NOTEBOOKS.glob("*.ipynb"))
    if not names:
        raise SuiteError(f"{paths.NOTEBOOKS} holds no notebooks")
    return names


def planned(profile: Profile, notebook: str) -> Planned:
    """The notebook at the profile's parameters, which its parameters cell must know; longest runs first."""
    from suite.experiments import experiment
    one_of(notebook, notebooks(), "notebook")
    parameters = profile.parameters(notebook)
    execute.checked(paths.NOTEBOOKS / f"{notebook}.ipynb", asdict(parameters))
    own = experiment(notebook)
    jobs = own.plan(parameters, profile)
    return Planned(notebook, parameters, tuple(sorted(jobs, key=work, reverse=True)), own.alone)


def work(job: Job) -> float:
    """Tokens times weights: what a run costs, pattern aside. Equal runs stay in the experiment's order."""
    return float(job.run.train.tokens) * job.run.model.matrix_weights


def rows(plans: Sequence[Planned], profile: Profile, corpus: Corpus | None,
         speed: Speed | None = None) -> tuple[list[Row], bool]:
    """A row a notebook and their total, and whether all times come from runs that were timed on this machine.

    speed: of the GPU for which memory and hours are wanted.
    """
    from suite.plan import counted
    from suite.plan.estimate import Estimator
    from suite.run.database import Database
    from suite.experiments.base import merged
    known = corpus if corpus is not None else unbuilt()
    domains = len(getattr(corpus, "domains", ()) or profile.mixture) or DOMAINS
    database = Database(profile.name, known) if paths.database(profile.name).exists() else Fresh(known)
    estimator, found, before = Estimator.from_history(), [], {}
    for plan in plans:
        own = {database.fingerprint(job.run): job for job in merged(plan.jobs)}
        lacking = {database.fingerprint(job.run): job for job in database.missing(own.values())}
        new = {key: without(job, before.get(key, ())) for key, job in lacking.items()}
        train = [job.run for key, job in new.items() if key not in before and not database.trained(job.run)]
        evaluations = [(job.run, evaluation) for job in new.values() for evaluation in job.evaluations]
        seconds = sum(map(estimator.training, train)) + sum(estimator.evaluation(*each) for each in evaluations)
        flops = [(run, counted.training(run)) for run in train]
        flops += [(run, counted.evaluation(run, evaluation, domains)) for run, evaluation in evaluations]
        memory = [memory_of(job.run, speed) for job in own.values()]
        found.append(Row(plan.notebook, len(own), len(own.keys() & before.keys()), len(own) - len(lacking), len(train),
                         sum(run.train.tokens for run in train), len(evaluations), sum(count for _, count in flops),
                         max((gib for gib, _ in memory), default=0.0), max((parts for _, parts in memory), default=1),
                         seconds / 60 / profile.workers,
                         sum(speed.seconds(*each) for each in flops) / 3600 if speed else None))
        before |= {key: (*before.get(key, ()), *job.evaluations) for key, job in own.items()}
    done = len(before) - len(database.missing(merged(job for plan in plans for job in plan.jobs)))
    return [*found, total(found, len(before), done)], not estimator.measured


def total(found: Sequence[Row], runs: int, done: int) -> Row:
    summed = {name: sum(getattr(row, name) for row in found) for name in SUMMED}
    largest = {name: max((getattr(row, name) for row in found), default=0) for name in LARGEST}
    hours = [row.hours for row in found if row.hours is not None]
    return Row("total", runs, 0, done, **summed, **largest, hours=sum(hours) if hours else None)


def memory_of(run: RunConfig, speed: Speed | None) -> tuple[float, int]:
    """GiB at the peak of a training, and in how many micro-batches: as few as the GPU holds."""
    batch, parts = run.train.batch, 1
    if speed is not None:
        room = USABLE * speed.gpu.memory_gib * 2 ** 30
        parts = next((n for n in range(1, batch) if needed(run, -(-batch // n)) <= room), batch)
    return needed(run, -(-batch // parts)) / 2 ** 30, parts


def needed(run: RunConfig, windows: int) -> int:
    return peak_bytes(run.model, run.train.precision, windows * run.train.length)


def without(job: Job, asked: Sequence[Any]) -> Job:
    """The job without the evaluations that an earlier notebook has asked for."""
    return replace(job, evaluations=tuple(e for e in job.evaluations if e not in asked))


def unbuilt() -> Any:
    """Stands for a corpus that is not built yet: no run of it can be there."""
    return SimpleNamespace(fingerprint="not built")


class Fresh:
    """Stands for a database that does not exist yet, so that looking at a plan creates nothing."""

    def __init__(self, corpus: Any) -> None:
        self.corpus = corpus

    def fingerprint(self, run: Any) -> str:
        from suite.settings.fingerprints import run_fingerprint
        return run_fingerprint(run, self.corpus)

    def missing(self, jobs: Any) -> list[Job]:
        return list(jobs)

    def trained(self, run: Any) -> bool:
        return False


def outlook(plans: Sequence[Planned], profile: Profile, corpus: Corpus | None, gpu: str | None, *, as_json: bool) -> str:
    """The plan as text or JSON. gpu: a key of `suite.plan.gpus`; else the GPU that is here, or where the paper's models are planned
    and there is none, the paper's."""
    from suite.plan import gpu_hours, gpus, paper_matrix
    runs = [job.run for plan in plans for job in plan.jobs]
    gpu = gpu or gpus.seen() or (gpus.PUBLISHED if paper_matrix.parts(runs, None) else None)
    speed = gpu_hours.speed(gpu) if gpu else None
    found, timed = rows(plans, profile, corpus, speed)
    matrix = paper_matrix.parts(runs, speed)
    if as_json:
        return json.dumps(as_dictionary(found, profile, timed, speed, matrix), indent=1)
    return as_text(found, profile, timed, speed, matrix)


def as_text(found: Sequence[Row], profile: Profile, timed: bool, speed: Speed | None = None,
            matrix: Sequence[Part] = ()) -> str:
    header = ["notebook", "runs", "shared", "done", "to train", "tokens", "evals", "FLOPs", "memory", "time"]
    cells = [[row.notebook, row.runs, row.shared, row.done, row.to_train, amount(row.tokens), row.evaluations,
              f"{row.flops:.1e}", f"{row.memory_gib:.1f} GiB", duration(60 * row.minutes)] for row in found]
    if speed is not None:
        header.append(f"{speed.gpu.title}, h")
        for line, row in zip(cells, found, strict=True):
            line.append(in_hours(row.hours))
    widths = (22, 6, 8, 6, 10, 10, 7, 9, 11, 14, 16)
    lines = [f"profile {profile.name}: {profile.description}", "", *table([header, *cells], widths)]
    source = "from runs timed on this machine" if timed else "rough, as no run of such a model was timed on this machine yet"
    lines += ["", f"time: on this machine, {source}, {profile.workers} side by side",
              "shared: an earlier notebook needs the run too, and its training counts there",
              "memory: most that one training needs on a GPU: weights, gradients, AdamW's moments, activations, logits"]
    lines += [f"{row.notebook}: batches are split in up to {row.micro_batches} to fit"
              for row in found if row.micro_batches > 1]
    if speed is not None:
        lines.append(speed.text())
    return "\n".join([*lines, *(matrix_text(matrix, speed) if matrix else [])])


def matrix_text(matrix: Sequence[Part], speed: Speed | None) -> list[str]:
    """What of the plan is the Fibonacci paper's, and its training time beside the published one."""
    from suite.plan.paper_matrix import TIMED
    cells = [(part.part, part.runs, amount(part.tokens), f"{part.flops:.1e}", in_hours(part.hours),
              in_hours(part.published_hours)) for part in matrix]
    header = ("training, by what it is", "runs", "tokens", "FLOPs", f"{speed.gpu.title}, h" if speed else "", "published, h")
    lines = ["", *table([header, *cells], (26, 6, 10, 10, 16, 14)), ""]
    timed = next(part for part in matrix if part.part == TIMED)
    if speed is not None:
        lines.append(f"the published matrix, {timed.runs} runs: {in_hours(timed.hours)} hours on one {speed.gpu.title}; "
                     f"published: {in_hours(timed.published_hours)} GPU-hours on RTX 3090s, evaluations included")
    return lines


def table(rows: Sequence[Sequence[Any]], widths: Sequence[int]) -> list[str]:
    """The first column to the left, the others to the right."""
    return [f"{name:<{widths[0]}}" + "".join(f"{text:>{width}}" for text, width in zip(numbers, widths[1:], strict=False))
            for name, *numbers in rows]


def in_hours(hours: float | None) -> str:
    return "" if hours is None else f"{hours:,.1f}" if hours < 1000 else f"{hours:,.0f}"


def as_dictionary(found: Sequence[Row], profile: Profile, timed: bool, speed: Speed | None,
                  matrix: Sequence[Part]) -> dict[str, Any]:
    """The same for programs; hours are null without a GPU."""
    gpu = None if speed is None else {"name": speed.name, **asdict(speed.gpu), "shares_of_peak": speed.shares,
                                      "measured": sorted(speed.measured)}
    return {"profile": profile.name, "timed": timed, "gpu": gpu, "notebooks": [asdict(row) for row in found[:-1]],
            "total": asdict(found[-1]), "matrix": [asdict(part) for part in matrix]}


def amount(tokens: int) -> str:
    return f"{tokens / 1e9:.2f}B" if tokens >= 1e9 else f"{tokens / 1e6:.2f}M"
