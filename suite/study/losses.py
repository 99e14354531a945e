"""`Study` by names alone: what modules that are not yet written for it ask of losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from suite.experiments.base import Job
from suite.study.frames import Study
from suite.study.stats import Interval

if TYPE_CHECKING:
    from suite.run.database import Database


class Losses:
    """Losses of the language models of `jobs`, by the names that tables and figures use."""

    def __init__(self, jobs: Sequence[Job], database: Database) -> None:
        self.study, self.database = Study(jobs, database), database
        self.jobs = {model.name: list(model.jobs) for model in self.study.language_models}
        self.windows, self.shared_seeds = self.study.windows, self.study.shared_seeds

    def difference(self, name: str, other: str, **where: Any) -> Interval:
        return self.study.difference(name, other, **where)

    def growth(self, name: str, short: int, long: int, variant: str = "") -> Interval:
        return self.study.growth(name, long, variant)

    def grown(self, name: str, short: int, long: int, variant: str = "", seeds: Sequence[int] = ()) -> list[np.ndarray]:
        return self.study.growths(name, long, variant, seeds)
