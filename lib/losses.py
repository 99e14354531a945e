"""Held-out losses by window: two models are compared on the same windows, one model with itself at two lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lib.config import Evaluation
from lib.errors import SuiteError, one_of
from lib.experiments.base import Job
from lib.statistics import Interval, paired_difference
from lib.tables import job_names

if TYPE_CHECKING:
    from lib.database import Database


class Losses:
    """Losses of the jobs of one experiment, by the names that its table and figures use (`lib.tables.named`)."""

    def __init__(self, jobs: Sequence[Job], database: Database) -> None:
        self.database = database
        self.jobs: dict[str, list[Job]] = {}
        for name, job in zip(job_names(jobs), jobs, strict=True):
            if job.run.data.source == "text":
                self.jobs.setdefault(name, []).append(job)

    def windows(self, name: str, length: int = 0, variant: str = "",
                positions: tuple[int, int] | None = None) -> list[np.ndarray]:
        """Mean loss of each window (nats a token), one array `[N]` a domain, a mean over seeds.

        length: evaluation length in tokens, the training length by default. positions: only tokens from the first to
        before the second, which must be edges of bins.
        """
        jobs = self.jobs[one_of(name, self.jobs, "model")]
        over_seeds = [self._of_job(job, length or job.run.train.length, variant, positions) for job in jobs]
        return [np.mean(domain, axis=0) for domain in zip(*over_seeds, strict=True)]

    def _of_job(self, job: Job, length: int, variant: str, positions: tuple[int, int] | None) -> list[np.ndarray]:
        evaluation = self._evaluation(job, length, variant)
        edges = self.database.array(job, evaluation, f"edges.{length}")
        first, last = (0, length) if positions is None else positions
        if first not in edges or last not in edges:
            raise SuiteError(f"positions = {positions!r} is not valid: two of the edges {edges.tolist()}")
        inside = slice(int(np.searchsorted(edges, first)), int(np.searchsorted(edges, last)))
        found = []
        for domain in self.database.corpus.domains:
            sums, counts = (self.database.array(job, evaluation, f"{kind}.{domain}.{length}") for kind in ("nll", "count"))
            found.append(sums[:, inside].sum(axis=1) / counts[:, inside].sum(axis=1))
        return found

    def _evaluation(self, job: Job, length: int, variant: str) -> Evaluation:
        for evaluation in job.evaluations:
            own = dict(evaluation.parameters)
            if evaluation.name == "perplexity" and length in own["lengths"] and own.get("variant", "") == variant:
                return evaluation
        raise SuiteError(f"{job.run.pattern.name} has no perplexity at length {length} with variant {variant!r}")

    def difference(self, name: str, other: str, **where: object) -> Interval:
        """Loss of `name` minus that of `other`, nats a token, paired by window; `where` is that of `windows`."""
        return paired_difference(self.windows(name, **where), self.windows(other, **where))

    def growth(self, name: str, short: int, long: int, variant: str = "") -> Interval:
        """Loss at length `long` minus that at `short`, of the same tokens; `variant` applies at `long`."""
        if long % short:
            raise SuiteError(f"long = {long} is not valid: a multiple of short = {short}")
        far = self.windows(name, long, variant)
        near = [x[:len(y) * (long // short)].reshape(len(y), -1).mean(axis=1)
                for x, y in zip(self.windows(name, short), far, strict=True)]
        return paired_difference(far, near)
