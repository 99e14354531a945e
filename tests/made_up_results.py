"""Results that nobody trained: a database that answers what the experiments and the ledger's claims ask, with numbers
that a test chooses, and the verdicts on them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from plans import loaded, planned

from lib.config import Evaluation, fingerprint
from lib.patterns.learned import alpha_of
from suite.claims import Claim, Evidence, Judgement, judge_from, load
from suite.experiments import names
from suite.experiments.base import Job
from suite.settings import profiles
from suite.study.frames import Study, stack_of
from suite.study.stats import Noise

DOMAINS = ("docs", "code")
TOKENS, BLOCK = 8192, 32        # held-out tokens of a domain, and how many share their noise
ITEMS = 60


class MadeUpDatabase:
    """`loss(job, length, variant) -> nats`, 3 by default. The other answers are the same for all models unless a test
    says otherwise, by job: `right` (share), `alpha` (added to its start), `slope` (nats by which another alpha changes
    the loss), `far` (share of influence from far tokens), `size`, `at` (nats by bin of recurrence), `code` (nats that
    text of the domain `code` has more)."""

    def __init__(self, loss: Callable[[Job, int, str], float] = lambda job, length, variant: 3.0, *, noise: float = 0.1,
                 unpaired: float = 0.0, **numbers: Any) -> None:
        self.loss, self.noise, self.unpaired, self.numbers = loss, noise, unpaired, numbers
        self.corpus = SimpleNamespace(domains=DOMAINS, evaluation=lambda task: None)

    fingerprint = staticmethod(fingerprint)

    def number(self, name: str, job: Job, default: Any) -> Any:
        return self.numbers[name](job) if name in self.numbers else default

    @staticmethod
    def edges(length: int) -> np.ndarray:
        return np.array([*(e for e in (0, 8, 16, 32, 64) if e < length), *range(128, length, 128), length])

    def windows(self, job: Job, length: int, variant: str, domain: str) -> np.ndarray:
        """Loss of each window: the same noise of the text for all models and lengths. With `unpaired`, every run,
        length and variant has noise of its own besides, 0 in the mean: differences of windows then vary."""
        text = np.random.default_rng(DOMAINS.index(domain)).normal(0, self.noise, TOKENS // BLOCK)
        found = self.loss(job, length, variant) + text.reshape(-1, length // BLOCK).mean(axis=1)
        if domain == "code":
            found += self.number("code", job, 0.0)
        if self.unpaired:
            rng = np.random.default_rng(int(fingerprint(job.run, domain, length, variant), 16))
            own = rng.normal(0, self.unpaired, len(found))
            found += own - own.mean()
        return found

    def array(self, job: Job, evaluation: Evaluation, name: str) -> np.ndarray:
        asked, T = dict(evaluation.parameters), job.run.train.length
        if name == "in_context":
            return np.random.default_rng(0).normal(-self.number("right", job, 0.5), self.noise, ITEMS)
        if evaluation.name in ("task", "battery"):
            right = (np.arange(ITEMS) < round(ITEMS * self.number("right", job, 0.5))).astype(int)
            answers = 1 if evaluation.name == "battery" else 2          # of an item, of a sequence
            return np.full(ITEMS, answers) if name.startswith("count") else answers * right
        if evaluation.name == "alpha_landscape":
            values = np.arange(5) * self.number("slope", job, 0.0)
            return np.tile(values[None, :, None], (job.run.model.layers, 1, 8))
        if evaluation.name == "gradient_flow":
            if name == "edges":
                return np.array([0, 1, asked["far"], T])
            share = self.number("far", job, 0.2)
            return np.tile(np.array([(1 - share) / 2, (1 - share) / 2, share]), (4, 2, 1))
        if evaluation.name == "recurrence":
            bins, at = range(len(asked["edges"]) + 1), self.number("at", job, lambda bin_: 0.0)
            losses = self.windows(job, T, "", "docs")[:8, None] + [at(bin_) for bin_ in bins]
            return np.full_like(losses, 10) if "count" in name else 10 * losses
        kind, *domain, length = name.split(".")
        edges = self.edges(int(length))
        if kind == "edges":
            return edges
        loss = self.windows(job, int(length), asked.get("variant", ""), *domain)
        counts = np.tile(np.diff(edges), (len(loss), 1))
        return counts if kind == "count" else counts * loss[:, None]

    def metrics(self, job: Job) -> pd.DataFrame:
        rows, T, layers = [], job.run.train.length, range(job.run.model.layers)
        right, stack = self.number("right", job, 0.5), stack_of(job.run)

        def say(value: float, measure: str, split: str = "", variant: str = "", **where: int) -> None:
            rows.append({"measure": measure, "value": value, "split": split, "variant": variant, **where})
        for evaluation in job.evaluations:
            own = dict(evaluation.parameters)
            variant = own.get("variant", "")
            if evaluation.name == "perplexity":
                for length, domain in product(own["lengths"], DOMAINS):
                    nll = float(self.windows(job, length, variant, domain).mean())
                    say(nll, "nll", domain, variant, length=length)
                    for edge in self.edges(length)[:-1]:
                        say(nll, "position_nll", domain, variant, length=length, position=int(edge))
            elif evaluation.name == "task":
                for split, (measure, value) in product((job.run.data.source, "distance=8"), {
                        "accuracy": right, "chance": 0.1, "count": 200.0}.items()):
                    say(value, measure, split, length=T)
            elif evaluation.name == "battery":
                for task, (measure, value) in product(set(own["tasks"]) - {"in_context"}, {
                        "accuracy": right, "chance": 0.25, "count": 200.0}.items()):
                    say(value, measure, task)
                say(-right, "in_context_score", "in_context")
            elif evaluation.name == "attention_memory":
                say(4.0, "attention_memory_ratio")
            elif evaluation.name == "gradient_flow":
                say(0.2, "far_influence_share")
                say(0.5, "influence_share", position=1)
                for layer in layers:
                    say(1.0 / (1 + layer), "gradient_norm", layer=layer)
            elif evaluation.name == "alphas":
                for layer, theta in enumerate(stack.thetas):
                    say(alpha_of(theta) + self.number("alpha", job, 0.0), "alpha", layer=layer)
            elif evaluation.name == "alpha_landscape":
                for layer, value in product(layers, (0.6, 0.8, 1.0, 1.2, 1.4)):
                    say(0.0, "alpha_nll_change", variant=f"alpha={value:g}", layer=layer)
        for step in (10, 20):
            loss = self.loss(job, T, "") + 1 / step
            say(loss, "train_loss", step=step)
            for domain in DOMAINS if job.run.data.source == "text" else ():
                say(loss, "nll", domain, length=T, step=step)
        columns = ["measure", "value", "split", "variant", "length", "position", "layer", "step"]
        frame = pd.DataFrame(rows, columns=columns).assign(
            parameters=self.number("size", job, 1000 + len(layers) * bool(stack.learned)),
            run_seconds=1.0, run_tokens_per_s=1000.0, run_peak_memory_mib=100.0)
        frame.insert(0, "run", fingerprint(job.run))
        return frame.astype(dict.fromkeys(("length", "position", "layer", "step", "parameters"), "Int64"))


def results(name: str, *loss: Callable[..., float], profile: str = "smoke", changes: Mapping[str, Any] | None = None,
            **numbers: Any) -> Study:
    """The study of an experiment's models at a profile with `changes` to its parameters."""
    return Study(planned(name, profile, **(changes or {})), MadeUpDatabase(*loss, **numbers), name)


def one(name: str, value: Any, other: Any = 3.0) -> Callable[..., Any]:
    """A value for one series, another for the rest."""
    return lambda job, *_: value if job.labels.series == name else other


def wide(**changes: dict[str, Any]) -> profiles.Profile:
    """The profile `wide` of the tests, its notebooks' parameters changed: `n01={...}`."""
    profile = loaded("wide")
    own = {name: {**profile.notebooks.get(name, {}), **changes[f"n{name[:2]}"]} for name in names()
           if f"n{name[:2]}" in changes}
    return replace(profile, notebooks={**profile.notebooks, **own})


def judged(database: Any, profile: str | profiles.Profile = "wide", claims: Sequence[Claim] = (),
           finished: Sequence[str] | None = None, noise: Noise | None = Noise(1e-9, 100)) -> dict[str, Judgement]:
    """Verdicts by id, from made-up results. noise: of the seeds, which the results of one seed do not show; None: what
    the profile's replicated models show."""
    profile = loaded(profile) if isinstance(profile, str) else profile
    done = names() if finished is None else finished
    with mock.patch.object(Evidence, "noise", return_value=noise) if noise else nullcontext():
        found = judge_from(claims or load(), lambda name: Evidence(profile, name, done, lambda: database))
    return {own.claim.id: own for own in found}


def verdict_of(name: str, database: Any, profile: str | profiles.Profile = "wide") -> Judgement:
    """The verdict on one claim, judged alone."""
    return judged(database, profile, [claim for claim in load() if claim.id == name])[name]
