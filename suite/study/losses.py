"""Held-out losses by window: two models are compared on the same windows, one model with itself at two lengths."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from lib.config import Evaluation
from lib.data import domains_of
from lib.errors import SuiteError, one_of, require
from suite.experiments.base import Job
from suite.study.stats import Interval, bootstrap_mean, paired_difference
from suite.study.tables import job_names

if TYPE_CHECKING:
    from suite.run.database import Database

KEPT = 4096             # arrays, of some tens of KiB each: those of a thousand runs are not all held at once


class Losses:
    """Losses of the jobs of one experiment, by the names that its table and figures use (`suite.study.tables.named`)."""

    def __init__(self, jobs: Sequence[Job], database: Database) -> None:
        self.database = database
        self.jobs: dict[str, list[Job]] = {}
        self._array = lru_cache(KEPT)(database.array)           # an array of the database, read once while it is in use
        for name, job in zip(job_names(jobs), jobs, strict=True):
            if job.run.data.source == "text":
                self.jobs.setdefault(name, []).append(job)

    def seeds(self, name: str) -> tuple[int, ...]:
        """The seeds that a model was trained with, ascending."""
        return tuple(sorted(self._by_seed(name)))

    def _by_seed(self, name: str) -> dict[int, Job]:
        return {job.run.train.seed: job for job in self.jobs[one_of(name, self.jobs, "model")]}

    def shared_seeds(self, *names: str) -> tuple[int, ...]:
        """The seeds that all of these models were trained with: the same start and order of the data."""
        shared = set(self.seeds(names[0])).intersection(*map(self.seeds, names[1:]))
        require(bool(shared), "seeds", {name: self.seeds(name) for name in names}, "at least one seed in common")
        return tuple(sorted(shared))

    def windows(self, name: str, length: int = 0, variant: str = "", positions: tuple[int, int] | None = None,
                seeds: Sequence[int] = (), domains: Sequence[str] = ()) -> list[np.ndarray]:
        """Mean loss of each window (nats a token), one array `[S, N]` a domain: N windows of each of S seeds, ascending.

        length: evaluation length in tokens, the training length by default. positions: only tokens from the first to
        before the second, which must be edges of bins. seeds, domains: all of them by default.
        """
        jobs = self._by_seed(name)
        chosen = [jobs[seed] for seed in (seeds or sorted(jobs))]
        over_seeds = [self._of_job(job, length or job.run.train.length, variant, positions, domains) for job in chosen]
        return [np.stack(domain) for domain in zip(*over_seeds, strict=True)]

    def _of_job(self, job: Job, length: int, variant: str, positions: tuple[int, int] | None,
                domains: Sequence[str]) -> list[np.ndarray]:
        evaluation = self._evaluation(job, length, variant)
        edges = self._array(job, evaluation, f"edges.{length}")
        first, last = (0, length) if positions is None else positions
        if first not in edges or last not in edges:
            raise SuiteError(f"positions = {positions!r} is not valid: two of the edges {edges.tolist()}")
        inside = slice(int(np.searchsorted(edges, first)), int(np.searchsorted(edges, last)))
        found = []
        for domain in domains or domains_of(job.run.data, self.database.corpus):
            sums, counts = (self._array(job, evaluation, f"{kind}.{domain}.{length}") for kind in ("nll", "count"))
            found.append(sums[:, inside].sum(axis=1) / counts[:, inside].sum(axis=1))
        return found

    def _evaluation(self, job: Job, length: int, variant: str) -> Evaluation:
        for evaluation in job.evaluations:
            own = dict(evaluation.parameters)
            if evaluation.name == "perplexity" and length in own["lengths"] and own.get("variant", "") == variant:
                return evaluation
        raise SuiteError(f"{job.run.pattern.name} has no perplexity at length {length} with variant {variant!r}")

    def difference(self, name: str, other: str, **where: Any) -> Interval:
        """Loss of `name` minus that of `other`, nats a token, paired by window and by seed; `where` is that of `windows`."""
        seeds = self.shared_seeds(name, other)
        return paired_difference(self.windows(name, seeds=seeds, **where), self.windows(other, seeds=seeds, **where))

    def growth(self, name: str, short: int, long: int, variant: str = "") -> Interval:
        """Loss at length `long` minus that at `short`, of the same tokens; `variant` applies at `long`."""
        return bootstrap_mean(self.grown(name, short, long, variant))

    def grown(self, name: str, short: int, long: int, variant: str = "", seeds: Sequence[int] = ()) -> list[np.ndarray]:
        """What `growth` is the mean of: a difference for each window of `long` tokens, as `windows` has losses."""
        require(long % short == 0, "long", long, f"a multiple of short = {short}")
        far = self.windows(name, long, variant, seeds=seeds)
        near = [x[:, :y.shape[1] * (long // short)].reshape(*y.shape, -1).mean(axis=-1)
                for x, y in zip(self.windows(name, short, seeds=seeds), far, strict=True)]
        return [x - y for x, y in zip(far, near, strict=True)]
