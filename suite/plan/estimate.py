"""How long runs take: from runs of the same kind in the databases, else from the counted arithmetic and a measured speed."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from lib import paths
from lib.config import Evaluation, RunConfig
from lib.errors import SuiteError
from suite.plan.counted import attended
from suite.plan.flops import attention_training_flops, training_flops
from suite.run.database import Database
from suite.settings.machine import machine

# Measured once, on small models on a CPU: the part of a matrix product's speed that training reaches, and how many times
# longer an operation of attention takes, dense or sparse.
EFFICIENCY = {"bf16": 0.54, "fp32": 0.6}
ATTENTION = {"bf16": 10.0, "fp32": 2.0}
ALIKE = 4.0                   # ratio of operations a token up to which one model's speed says something of another's
EVALUATION_SHARE = 0.05       # of the training's time, for an evaluation that was never timed


def operations(run: RunConfig) -> float:
    """Floating-point operations a training token, forward and backward; those of attention weigh `ATTENTION` each."""
    pairs = attended(run.pattern, run.model.layers, run.model.heads, run.train.length)
    extra = ATTENTION[run.train.precision] - 1
    return training_flops(run, pairs, tokens=1) + extra * attention_training_flops(run, pairs, tokens=1)


def kinds(run: RunConfig) -> list[tuple]:
    """What runs have in common, the closest likeness first."""
    like = (run.model, run.train.length, run.train.batch, run.train.precision)
    return [("same pattern", run.pattern.name, *like), ("same model", *like)]


class Timings:
    """Times or speeds by kind, and their medians, each computed when it is first asked for after something new."""

    def __init__(self) -> None:
        self.values: dict[Hashable, list[float]] = defaultdict(list)
        self.medians: dict[Hashable, float] = {}

    def add(self, kind: Hashable, value: float) -> None:
        self.values[kind].append(value)
        self.medians.pop(kind, None)

    def median(self, kinds: Iterable[Hashable]) -> float | None:
        """Of the first of these kinds that has any."""
        for kind in kinds:
            if kind in self.values:
                if kind not in self.medians:
                    self.medians[kind] = statistics.median(self.values[kind])
                return self.medians[kind]
        return None


@dataclass
class Estimator:
    """Seconds of training and evaluation on one thread of this machine."""
    may_measure: bool = True                                 # a matrix product's speed, which needs torch
    rates: Timings = field(default_factory=Timings)          # tokens a second
    speeds: list[tuple[str, float, float]] = field(default_factory=list)     # precision, operations a token, and a second
    alike: dict[tuple[str, float], float | None] = field(default_factory=dict)           # median speed by precision and size
    evaluated: Timings = field(default_factory=Timings)      # seconds
    measured: dict[str, float] = field(default_factory=dict)                 # operations a second, by precision

    @classmethod
    def from_history(cls, may_measure: bool = True) -> Estimator:
        """From all profiles' runs on this machine; a database that cannot be read teaches nothing and is left alone."""
        found = cls(may_measure)
        for path in sorted(paths.outputs().glob("*/runs.sqlite")):
            try:
                database = Database(path.parent.name, create=False)
            except SuiteError:
                continue
            found.learn(database)
            database.close()
        return found

    def learn(self, database: Database) -> None:
        query = """select id, config, tokens_per_s from runs where status = 'done' and machine = ? and tokens_per_s > 0
                   and device not like '% x %' and (threads = 1 or device = 'cuda')"""      # not the speed of several together
        runs = {}
        for row in database.connection.execute(query, (machine(),)):
            runs[row["id"]] = run = RunConfig.from_dict(json.loads(row["config"]))
            self.add(run, row["tokens_per_s"])
        for row in database.connection.execute("select run_id, name, parameters, seconds from evaluations"):
            if row["run_id"] in runs:
                for key in evaluation_kinds(row["name"], canonical(row["parameters"]), runs[row["run_id"]]):
                    self.evaluated.add(key, row["seconds"])

    def add(self, run: RunConfig, tokens_per_s: float) -> None:
        for kind in kinds(run):
            self.rates.add(kind, tokens_per_s)
        self.speeds.append((run.train.precision, operations(run), tokens_per_s * operations(run)))
        self.alike.clear()

    @property
    def knows(self) -> bool:
        """Whether any run was timed on this machine."""
        return bool(self.speeds)

    def rate(self, run: RunConfig) -> float:
        """Training tokens a second."""
        known = self.rates.median(kinds(run))
        if known is not None:
            return known
        own, precision = operations(run), run.train.precision
        speed = self.speed(precision, own)
        if speed is not None:
            return speed / own
        if precision not in self.measured:
            self.measured[precision] = measure(precision) * EFFICIENCY[precision]
        return self.measured[precision] / own

    def speed(self, precision: str, own: float) -> float | None:
        """Operations a second of the models that are like one of `own` operations a token; None: measure it."""
        if (precision, own) not in self.alike:
            alike = [speed for p, size, speed in self.speeds if p == precision and 1 / ALIKE <= size / own <= ALIKE]
            alike = alike if alike or self.may_measure else [speed for *_, speed in self.speeds]
            self.alike[precision, own] = statistics.median(alike) if alike else None
        return self.alike[precision, own]

    def training(self, run: RunConfig) -> float:
        """Seconds of a whole training."""
        return run.train.tokens / self.rate(run)

    def evaluation(self, run: RunConfig, evaluation: Evaluation) -> float:
        """Seconds of an evaluation."""
        known = self.evaluated.median(evaluation_kinds(evaluation.name, as_json(evaluation), run))
        return EVALUATION_SHARE * self.training(run) if known is None else known


@lru_cache(maxsize=None)
def canonical(text: str) -> str:
    """Parameters as the database holds them, as `as_json` writes them."""
    return json.dumps(json.loads(text))


@lru_cache(maxsize=None)
def as_json(evaluation: Evaluation) -> str:
    return json.dumps(dict(evaluation.parameters))


def evaluation_kinds(name: str, parameters: str, run: RunConfig) -> list[tuple]:
    like = (name, run.model, run.train.length)
    return [(*like, parameters, run.pattern.name), (*like, parameters), like]


def measure(precision: str, seconds: float = 0.2) -> float:
    """Operations a second of this thread's CPU time, at best: a matrix product of a size that small models have."""
    import torch
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows, inner, columns = 512, 256, 512
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        a, b = torch.ones(rows, inner, dtype=dtype), torch.ones(inner, columns, dtype=dtype)
        best, begin = math.inf, time.thread_time()
        while time.thread_time() - begin < seconds or best == math.inf:
            start = time.thread_time()
            for _ in range(20):
                a @ b
            best = min(best, max(time.thread_time() - start, 1e-6))
        return 20 * 2 * rows * inner * columns / best
    finally:
        torch.set_num_threads(threads)
