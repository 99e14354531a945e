"""Made-up results with all that claims ask of a database: answers, alphas, landscapes and influence beside losses."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from made_up_results import DOMAINS, MadeUpDatabase

from lib.config import Evaluation, fingerprint
from lib.patterns.learned import alpha_of
from suite.claims import Claim, Evidence, Judgement, judge_from, load
from suite.experiments import names
from suite.experiments.base import Job
from suite.settings import profiles
from suite.study.frames import stack_of
from suite.study.stats import Noise

ITEMS = 60
TOKENS, BLOCK = 8192, 32        # held-out tokens of a domain, and how many share their noise


class ClaimDatabase(MadeUpDatabase):
    """The same answers for all models unless a test says otherwise, by job: `right` (share), `alpha` (added to its
    start), `slope` (nats by which another alpha changes the loss), `far` (share of influence from far tokens),
    `size`, `at` (nats by bin of recurrence)."""

    def __init__(self, loss: Callable[[Job, int, str], float] = lambda job, length, variant: 3.0, *, noise: float = 0.1,
                 unpaired: float = 0.0, **numbers: Callable[[Job], float]) -> None:
        super().__init__(loss, noise=noise)
        self.numbers, self.unpaired = numbers, unpaired

    def number(self, name: str, job: Job, default: float) -> float:
        return self.numbers[name](job) if name in self.numbers else default

    def windows(self, job: Job, length: int, variant: str, domain: str) -> np.ndarray:
        """The same noise of the text for all models and lengths. With `unpaired`, every run, length and variant has
        noise of its own besides, 0 in the mean: differences of windows then vary."""
        text = np.random.default_rng(DOMAINS.index(domain)).normal(0, self.noise, TOKENS // BLOCK)
        found = text.reshape(-1, length // BLOCK).mean(axis=1)
        rng = np.random.default_rng(int(fingerprint(job.run, domain, length, variant), 16))
        own = rng.normal(0, self.unpaired, len(found))
        return self.loss(job, length, variant) + found + own - own.mean()

    def array(self, job: Job, evaluation: Evaluation, name: str) -> np.ndarray:
        asked = dict(evaluation.parameters)
        if evaluation.name in ("task", "battery"):
            right = (np.arange(ITEMS) < round(ITEMS * self.number("right", job, 0.5))).astype(int)
            answers = 1 if evaluation.name == "battery" else 2          # of an item, of a sequence
            return np.full(ITEMS, answers) if name.startswith("count") else answers * right
        if evaluation.name == "alpha_landscape":
            values = np.arange(5) * self.number("slope", job, 0.0)
            return np.tile(values[None, :, None], (job.run.model.layers, 1, 8))
        if evaluation.name == "gradient_flow":
            if name == "edges":
                return np.array([0, 1, asked["far"], job.run.train.length])
            share = self.number("far", job, 0.2)
            return np.tile(np.array([(1 - share) / 2, (1 - share) / 2, share]), (4, 2, 1))
        if evaluation.name == "recurrence":
            bins, at = range(len(asked["edges"]) + 1), self.number("at", job, lambda bin_: 0.0)
            losses = self.windows(job, job.run.train.length, "", "docs")[:8, None] + [at(bin_) for bin_ in bins]
            return np.full_like(losses, 10) if "count" in name else 10 * losses
        return super().array(job, evaluation, name)

    def metrics(self, job: Job) -> pd.DataFrame:
        frame = super().metrics(job)
        layers, stack = job.run.model.layers, stack_of(job.run)
        asked = {evaluation.name for evaluation in job.evaluations}
        more = []
        if "alphas" in asked:
            more += [("alpha", alpha_of(theta) + self.number("alpha", job, 0.0), "", layer)
                     for layer, theta in enumerate(stack.thetas)]
        if "alpha_landscape" in asked:
            more += [("alpha_nll_change", 0.0, f"alpha={value:g}", layer) for layer in range(layers)
                     for value in (0.6, 0.8, 1.0, 1.2, 1.4)]
        rows = pd.DataFrame(more, columns=["measure", "value", "variant", "layer"]).astype({"layer": "Int64"})
        rows = rows.reindex(columns=frame.columns).assign(run=frame["run"].iloc[0], split="")
        found = pd.concat([frame, rows.astype(frame.dtypes)], ignore_index=True) if more else frame
        return found.assign(parameters=self.number("size", job, 1000 + layers * bool(stack.learned)))


def one(name: str, value: Any, other: Any = 3.0) -> Callable[..., Any]:
    """A value for one series, another for the rest."""
    return lambda job, *_: value if job.labels.series == name else other


def small(**changes: dict[str, Any]) -> profiles.Profile:
    """The profile `small`, its notebooks' parameters changed: `n01={...}`."""
    profile = profiles.load("small")
    own = {name: {**profile.notebooks.get(name, {}), **changes[f"n{name[:2]}"]} for name in names()
           if f"n{name[:2]}" in changes}
    return replace(profile, notebooks={**profile.notebooks, **own})


def judged(database: Any, profile: str | profiles.Profile = "small", claims: Sequence[Claim] = (),
           finished: Sequence[str] | None = None, noise: Noise | None = Noise(1e-9, 100)) -> dict[str, Judgement]:
    """Verdicts by id, from made-up results. noise: of the seeds, which the results of one seed do not show; None: what
    the profile's replicated models show."""
    profile = profiles.load(profile) if isinstance(profile, str) else profile
    done = names() if finished is None else finished
    with mock.patch.object(Evidence, "noise", return_value=noise) if noise else nullcontext():
        found = judge_from(claims or load(), lambda name: Evidence(profile, name, done, lambda: database))
    return {own.claim.id: own for own in found}


def verdict_of(name: str, database: Any, profile: str | profiles.Profile = "small") -> Judgement:
    """The verdict on one claim, judged alone."""
    return judged(database, profile, [claim for claim in load() if claim.id == name])[name]
