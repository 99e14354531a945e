"""What a profile trains before anything runs: each notebook's runs, shared ones counted once, and how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from lib import execute, paths
from lib.errors import SuiteError, one_of
from lib.flops import matrix_weights
from lib.progress import duration

if TYPE_CHECKING:
    from lib.data import Corpus
    from lib.experiments.base import Job, Parameters
    from lib.profiles import Profile


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
    minutes: float                       # with the profile's workers side by side


def notebooks() -> list[str]:
    """Names of the suite's notebooks, in their order."""
    names = sorted(path.stem for path in paths.NOTEBOOKS.glob("*.ipynb"))
    if not names:
        raise SuiteError(f"{paths.NOTEBOOKS} holds no notebooks")
    return names


def planned(profile: Profile, notebook: str) -> Planned:
    """The notebook at the profile's parameters, which its parameters cell must know; longest runs first."""
    from lib.experiments import experiment
    one_of(notebook, notebooks(), "notebook")
    parameters = profile.parameters(notebook)
    execute.checked(paths.NOTEBOOKS / f"{notebook}.ipynb", asdict(parameters))
    own = experiment(notebook)
    jobs = own.plan(parameters, profile)
    return Planned(notebook, parameters, tuple(sorted(jobs, key=work, reverse=True)), own.alone)


def work(job: Job) -> float:
    """Tokens times weights: what a run costs, pattern aside. Equal runs stay in the experiment's order."""
    return float(job.run.train.tokens) * matrix_weights(job.run.model)


def rows(plans: Sequence[Planned], profile: Profile, corpus: Corpus | None) -> tuple[list[Row], bool]:
    """A row a notebook and their total, and whether all times come from runs that were timed on this machine."""
    from lib.database import Database
    from lib.engine import merged
    from lib.estimate import Estimator
    known = corpus if corpus is not None else unbuilt()
    database = Database(profile.name, known) if paths.database(profile.name).exists() else Fresh(known)
    estimator, found, before = Estimator.from_history(), [], {}
    for plan in plans:
        own = merged(plan.jobs, database)
        lacking = {database.fingerprint(job.run): job for job in database.missing(own.values())}
        new = {key: without(job, before.get(key, ())) for key, job in lacking.items()}
        train = [job.run for key, job in new.items() if key not in before and not database.trained(job.run)]
        evaluations = [(job.run, evaluation) for job in new.values() for evaluation in job.evaluations]
        seconds = sum(map(estimator.training, train)) + sum(estimator.evaluation(*each) for each in evaluations)
        found.append(Row(plan.notebook, len(own), len(own.keys() & before.keys()), len(own) - len(lacking), len(train),
                         sum(run.train.tokens for run in train), len(evaluations), seconds / 60 / profile.workers))
        before |= {key: (*before.get(key, ()), *job.evaluations) for key, job in own.items()}
    counts = {name: sum(getattr(row, name) for row in found) for name in ("to_train", "tokens", "evaluations", "minutes")}
    done = len(before) - len(database.missing(merged((job for plan in plans for job in plan.jobs), database).values()))
    return [*found, Row("total", len(before), 0, done, **counts)], not estimator.measured


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
        from lib.identity import run_fingerprint
        return run_fingerprint(run, self.corpus)

    def missing(self, jobs: Any) -> list[Job]:
        return list(jobs)

    def trained(self, run: Any) -> bool:
        return False


def as_text(found: Sequence[Row], profile: Profile, timed: bool) -> str:
    header = ("notebook", "runs", "shared", "done", "to train", "tokens", "evaluations", "time")
    cells = [(row.notebook, row.runs, row.shared, row.done, row.to_train, amount(row.tokens), row.evaluations,
              duration(60 * row.minutes)) for row in found]
    lines = [f"profile {profile.name}: {profile.description}", ""]
    for name, *numbers in [header, *cells]:
        lines.append(f"{name:<22}" + "".join(f"{text:>{width}}" for text, width in zip(numbers, (6, 8, 6, 10, 10, 13, 13))))
    source = "from runs timed on this machine" if timed else "rough, as no run of such a model was timed on this machine yet"
    return "\n".join([*lines, "", f"time: {source}, {profile.workers} side by side",
                      "shared: an earlier notebook needs the run too, and its training counts there"])


def amount(tokens: int) -> str:
    return f"{tokens / 1e9:.2f}B" if tokens >= 1e9 else f"{tokens / 1e6:.2f}M"
