"""Results that nobody trained: a database that answers what the experiments ask, with losses that a test chooses."""

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
from plans import planned

from lib.config import Evaluation, fingerprint
from suite.experiments.base import Job
from suite.study.frames import Study

DOMAINS = ("docs", "code")
WINDOWS = 12            # of the shortest length; longer ones have fewer


class MadeUpDatabase:
    """`loss(job, length, variant) -> nats`; every window differs from it by the same seeded noise for all models."""

    def __init__(self, loss: Callable[[Job, int, str], float], accuracy: Callable[[Job], float] = lambda job: 0.5,
                 noise: float = 0.1):
        self.loss, self.accuracy, self.noise = loss, accuracy, noise
        self.corpus = SimpleNamespace(domains=DOMAINS, evaluation=lambda task: None)

    fingerprint = staticmethod(fingerprint)

    @staticmethod
    def edges(length: int) -> np.ndarray:
        return np.array([*(e for e in (0, 8, 16, 32, 64) if e < length), *range(128, length, 128), length])

    def windows(self, job: Job, length: int, variant: str, domain: str) -> np.ndarray:
        """Loss of each window; a longer one holds the tokens of several shorter ones, and has their mean."""
        short, own = job.run.train.length, self.loss(job, length, variant)
        noise = np.random.default_rng(DOMAINS.index(domain)).normal(0, self.noise, WINDOWS)
        return own + (noise if length == short else noise.reshape(-1, length // short).mean(axis=1))

    def array(self, job: Job, evaluation: Evaluation, name: str) -> np.ndarray:
        kind, *rest = name.split(".")
        if kind == "in_context":
            return np.repeat(-self.accuracy(job), WINDOWS) + np.random.default_rng(0).normal(0, self.noise, WINDOWS)
        if evaluation.name == "task" and kind == "count":
            return np.ones(200, int)
        if kind == "correct":
            return np.random.default_rng(0).random(200) < self.accuracy(job)
        length = int(rest[-1])
        edges = self.edges(length)
        if kind == "edges":
            return edges
        loss = self.windows(job, length, dict(evaluation.parameters).get("variant", ""), rest[0])
        counts = np.tile(np.diff(edges), (len(loss), 1))
        return counts if kind == "count" else counts * loss[:, None]

    def metrics(self, job: Job) -> pd.DataFrame:
        rows = []
        for evaluation in job.evaluations:
            own = dict(evaluation.parameters)
            if evaluation.name == "perplexity":
                for length, domain in product(own["lengths"], DOMAINS):
                    where = domain, own.get("variant", ""), length
                    nll = float(self.windows(job, length, where[1], domain).mean())
                    rows.append(("nll", nll, *where))
                    rows += [("position_nll", nll, *where, int(edge)) for edge in self.edges(length)[:-1]]
            elif evaluation.name == "task":
                values = {"accuracy": self.accuracy(job), "chance": 0.1, "count": 200.0}
                rows += [(measure, value, split, "", job.run.train.length)
                         for split in (job.run.data.source, "distance=8") for measure, value in values.items()]
            elif evaluation.name == "battery":
                for task in set(own["tasks"]) - {"in_context"}:
                    rows += [("accuracy", self.accuracy(job), task), ("chance", 0.25, task), ("count", 200.0, task)]
                rows.append(("in_context_score", -self.accuracy(job), "in_context"))
            elif evaluation.name == "attention_memory":
                rows.append(("attention_memory_ratio", 4.0, ""))
            elif evaluation.name == "gradient_flow":
                rows += [("far_influence_share", 0.2, ""), ("influence_share", 0.5, "", "", None, 1)]
                rows += [("gradient_norm", 1.0 / (1 + layer), "", "", None, None, layer)
                         for layer in range(job.run.model.layers)]
        T = job.run.train.length
        for step in (10, 20):
            loss = self.loss(job, T, "") + 1 / step
            rows.append(("train_loss", loss, "", "", None, None, None, step))
            rows += [("nll", loss, name, "", T, None, None, step) for name in DOMAINS if job.run.data.source == "text"]
        columns = ["measure", "value", "split", "variant", "length", "position", "layer", "step"]
        blank = [np.nan, np.nan, "", "", None, None, None, None]
        frame = pd.DataFrame([[*row, *blank[len(row):]] for row in rows], columns=columns)
        frame.insert(0, "run", fingerprint(job.run))
        frame = frame.assign(parameters=1000, run_seconds=1.0, run_tokens_per_s=1000.0, run_peak_memory_mib=100.0)
        return frame.astype(dict.fromkeys(("length", "position", "layer", "step", "parameters"), "Int64"))


def results(name: str, loss, **kwargs) -> Study:
    """The study of an experiment whose models have the loss that `loss(series, length, variant)` says."""
    database = MadeUpDatabase(lambda job, length, variant: loss(job.labels.series, length, variant), **kwargs)
    return Study(planned(name), database, name)


def one(series: str, loss: float):
    """3 nats for every model but one."""
    return lambda name, length, variant: loss if name == series else 3.0
