"""What a claim is judged by: the planned and finished runs of one notebook at one profile, by the names of the tables."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from lib.config import DataConfig, Evaluation
from lib.errors import SuiteError, require
from suite.experiments import experiment
from suite.experiments.base import Job, Parameters
from suite.study.findings.shared import stack_of
from suite.study.losses import Losses
from suite.study.stats import Interval
from suite.study.tables import job_names

if TYPE_CHECKING:
    from suite.run.database import Database
    from suite.settings.profiles import Profile

KEPT = 1024                                 # runs whose metrics are held at once
LAST_WORD = "Christoffel, last word"        # the series of the word whose pairs the controls have


class NotTested(Exception):
    """The profile does not train, or has not finished, what a claim needs; the message says what."""


@dataclass(frozen=True)
class Part:
    """One number of a claim: what it is of, and its interval; a plain number where there is none."""
    what: str
    value: Interval | float

    @property
    def estimate(self) -> float:
        return self.value.estimate if isinstance(self.value, Interval) else float(self.value)


@dataclass(frozen=True)
class Found:
    """What a measure gives. seeds: the fewest behind a part (0: no run needed); jobs: the runs that it is of."""
    parts: tuple[Part, ...]
    seeds: int = 0
    jobs: tuple[Job, ...] = ()

    @classmethod
    def fact(cls, what: str, value: float) -> Found:
        """An exact number that needs no run."""
        return cls((Part(what, float(value)),))


@dataclass(frozen=True)
class Model:
    """Runs that differ in their seed only: the name that figures give them, their labels, and a job a seed."""
    name: str
    series: str
    window: int | None
    setting: frozenset[str]
    jobs: tuple[Job, ...]

    @property
    def seeds(self) -> int:
        return len(self.jobs)

    @property
    def text(self) -> bool:
        """Whether it is a language model, and not one of a synthetic task."""
        return self.jobs[0].run.data.source == "text"

    @property
    def length(self) -> int:
        return self.jobs[0].run.train.length

    @property
    def by_seed(self) -> dict[int, Job]:
        return {job.run.train.seed: job for job in self.jobs}


class Evidence:
    """One notebook at one profile. `jobs` and what is built on them raise `NotTested` until the notebook is finished."""

    def __init__(self, profile: Profile, notebook: str, finished: Sequence[str], database: Callable[[], Database]) -> None:
        self.profile, self.notebook, self._finished, self._database = profile, notebook, notebook in finished, database
        self._read = lru_cache(KEPT)(lambda job: self.database.metrics(job))

    @cached_property
    def parameters(self) -> Parameters:
        return self.profile.parameters(self.notebook)

    @cached_property
    def plan(self) -> list[Job]:
        """The jobs that the profile has for this notebook, finished or not."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="christoffel")        # the notebook says it
            return experiment(self.notebook).plan(self.parameters, self.profile)

    @property
    def jobs(self) -> list[Job]:
        if not self._finished:
            raise NotTested(f"notebook {self.notebook} is not finished at profile {self.profile.name}")
        return self.plan

    @property
    def database(self) -> Database:
        return self._database()

    @cached_property
    def losses(self) -> Losses:
        return Losses(self.jobs, self.database)

    @cached_property
    def models(self) -> list[Model]:
        """All models of the plan; those of synthetic tasks too, one for each task and its parameters."""
        found: dict[tuple[str, DataConfig], list[Job]] = {}
        for name, job in zip(job_names(self.plan), self.plan, strict=True):
            found.setdefault((name, job.run.data), []).append(job)
        return [model_of(name, jobs) for (name, _), jobs in found.items()]

    def find(self, series: str, *, text: bool = True, window: int = 0, setting: Sequence[str] = ()) -> list[Model]:
        """The models of a series: at W = `window` (0: every W that is trained), with all parts of `setting`."""
        series = self.resolve(series)
        rows = [m for m in self.models if m.series == series and m.text == text and (not window or m.window == window)]
        found = [m for m in rows if set(setting) <= m.setting and (setting or plain(m, rows))]
        if not found:
            what = ", ".join([series, *([f"W = {window}"] if window else []), *setting])
            raise NotTested(f"profile {self.profile.name} does not train {what} in notebook {self.notebook}")
        return found

    def resolve(self, series: str) -> str:
        """The series that a name stands for which depends on the profile's parameters."""
        if series == LAST_WORD:
            return f"Christoffel {self.parameters.words[-1]}"
        return series

    def partner(self, model: Model, other: str) -> Model:
        """The model of the series `other` that belongs beside `model`: of the same data, window and setting where it has
        those; one of several windows is an error."""
        series = self.resolve(other)
        beside = [m for m in self.models if m.series == series and m.jobs[0].run.data == model.jobs[0].run.data
                  and (None in (m.window, model.window) or m.window == model.window) and m.setting <= model.setting]
        if not beside:
            raise NotTested(f"profile {self.profile.name} does not train {series} beside {model.name} in "
                            f"notebook {self.notebook}")
        closest = max(len(m.setting) for m in beside)
        found = [m for m in beside if len(m.setting) == closest]
        require(len(found) == 1, f"{series} beside {model.name}", [m.name for m in found], "one model; turn the comparison")
        return found[0]

    # Numbers of runs

    def metrics(self, job: Job) -> pd.DataFrame:
        """The metrics of a run, read once while it is in use."""
        _ = self.jobs                                           # only of a finished notebook
        return self._read(job)

    def value(self, job: Job, measure: str, **where: Any) -> float:
        """One value of a run at the end of training."""
        rows = self.metrics(job)
        rows = rows[(rows["measure"] == measure) & rows["step"].isna()]
        for column, wanted in where.items():
            rows = rows[rows[column] == wanted]
        if len(rows) != 1:
            raise SuiteError(f"{len(rows)} values of {measure} with {where} in {job.run.pattern.name}, not one")
        return float(rows["value"].iloc[0])

    def array(self, job: Job, evaluation: str, name: str) -> np.ndarray:
        """An array of a job's evaluation."""
        _ = self.jobs
        return self.database.array(job, self.evaluation(job, evaluation), name)

    @staticmethod
    def evaluation(job: Job, name: str) -> Evaluation:
        for own in job.evaluations:
            if own.name == name:
                return own
        raise NotTested(f"{job.labels.series} is not asked for {name}")


def plain(model: Model, among: Sequence[Model]) -> bool:
    """Without a wanted setting: the models without any, or all of them where none is without."""
    return not model.setting or all(m.setting for m in among)


def model_of(name: str, jobs: Sequence[Job]) -> Model:
    labels = jobs[0].labels
    setting = frozenset(part for part in labels.setting.split(", ") if part)
    return Model(name, labels.series, labels.window, setting, tuple(jobs))


def paired(model: Model, other: Model) -> list[tuple[Job, Job]]:
    """The runs of two models by the seeds that both have."""
    mine, theirs = model.by_seed, other.by_seed
    shared = sorted(set(mine) & set(theirs))
    if not shared:
        raise NotTested(f"{model.name} and {other.name} have no seed in common")
    return [(mine[seed], theirs[seed]) for seed in shared]


def pattern_of(job: Job) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="christoffel")
        return stack_of(job.run)
