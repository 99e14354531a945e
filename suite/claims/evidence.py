"""What a claim is judged by: the `Study` of one notebook at one profile, and the numbers that a measure makes of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from suite.experiments import experiment
from suite.experiments.base import Job, Parameters
from suite.study.frames import Model, NotTested, Study
from suite.study.stats import Interval

if TYPE_CHECKING:
    from suite.run.database import Database
    from suite.settings.profiles import Profile


@dataclass(frozen=True)
class Part:
    """One number of a claim: what it is of, and its interval; a plain number where there is none."""
    what: str
    value: Interval | float

    @property
    def estimate(self) -> float:
        return self.value.estimate if isinstance(self.value, Interval) else float(self.value)


@dataclass(frozen=True)
class Measured:
    """What a measure gives. seeds: the fewest behind a part (0: no run needed); jobs: the runs that it is of."""
    parts: tuple[Part, ...]
    seeds: int = 0
    jobs: tuple[Job, ...] = ()

    @classmethod
    def fact(cls, what: str, value: float) -> Measured:
        """An exact number that needs no run."""
        return cls((Part(what, float(value)),))

    @classmethod
    def facts(cls, rows: Sequence[tuple[str, float]]) -> Measured:
        """Several exact numbers that need no run, and what each is of."""
        return cls(tuple(Part(what, float(value)) for what, value in rows))

    @classmethod
    def of(cls, rows: Sequence[tuple[str, Interval | float, Sequence[Model]]]) -> Measured:
        """Comparisons: what each is of, its number, and the models behind it."""
        counts = [value.seeds if isinstance(value, Interval) else min(len(model.jobs) for model in models)
                  for _, value, models in rows]
        jobs = dict.fromkeys(job for *_, models in rows for model in models for job in model.jobs)
        return cls(tuple(Part(what, value) for what, value, _ in rows), min(counts), tuple(jobs))

    @classmethod
    def one(cls, what: str, value: Interval, pairs: Iterable[Sequence[Model]], seeds: int) -> Measured:
        """One number from several pairs of models, of which the fewest seeds are `seeds`."""
        jobs = dict.fromkeys(job for pair in pairs for model in pair for job in model.jobs)
        return cls((Part(what, value),), seeds, tuple(jobs))


class Evidence(Study):
    """The study of a notebook at a profile, planned when it is asked for. Its results raise `NotTested` until the
    notebook is finished."""

    def __init__(self, profile: Profile, notebook: str, finished: Sequence[str],
                 database: Callable[[], Database]) -> None:
        self.profile, self.name = profile, notebook
        self._finished, self._database = notebook in finished, database

    @cached_property
    def parameters(self) -> Parameters:
        return self.profile.parameters(self.name)

    @cached_property
    def jobs(self) -> list[Job]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="christoffel")        # the notebook says it
            return experiment(self.name).plan(self.parameters, self.profile)

    @property
    def database(self) -> Database:
        if not self._finished:
            raise NotTested(f"notebook {self.name} is not finished at profile {self.profile.name}")
        return self._database()
