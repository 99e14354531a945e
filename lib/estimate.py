"""How long runs take: from runs of the same kind in the databases, else from the counted arithmetic and a measured speed."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from lib import paths
from lib.config import Evaluation, RunConfig
from lib.counted import attended
from lib.database import Database
from lib.errors import SuiteError
from lib.flops import attention_training_flops, training_flops
from lib.machine import machine

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


@dataclass
class Estimator:
    """Seconds of training and evaluation on one thread of this machine."""
    may_measure: bool = True                                 # a matrix product's speed, which needs torch
    rates: dict[tuple, list[float]] = field(default_factory=lambda: defaultdict(list))           # tokens a second
    speeds: list[tuple[str, float, float]] = field(default_factory=list)     # precision, operations a token, and a second
    evaluated: dict[tuple, list[float]] = field(default_factory=lambda: defaultdict(list))       # seconds
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
        query = "select id, config, tokens_per_s from runs where status = 'done' and machine = ? and tokens_per_s > 0"
        runs = {}
        for row in database.connection.execute(query, (machine(),)):
            runs[row["id"]] = run = RunConfig.from_dict(json.loads(row["config"]))
            self.add(run, row["tokens_per_s"])
        for row in database.connection.execute("select run_id, name, parameters, seconds from evaluations"):
            if row["run_id"] in runs:
                for key in evaluation_kinds(row["name"], json.loads(row["parameters"]), runs[row["run_id"]]):
                    self.evaluated[key].append(row["seconds"])

    def add(self, run: RunConfig, tokens_per_s: float) -> None:
        for kind in kinds(run):
            self.rates[kind].append(tokens_per_s)
        self.speeds.append((run.train.precision, operations(run), tokens_per_s * operations(run)))

    @property
    def knows(self) -> bool:
        """Whether any run was timed on this machine."""
        return bool(self.speeds)

    def rate(self, run: RunConfig) -> float:
        """Training tokens a second."""
        for kind in kinds(run):
            if self.rates.get(kind):
                return statistics.median(self.rates[kind])
        precision, own = run.train.precision, operations(run)
        alike = [speed for p, size, speed in self.speeds if p == precision and 1 / ALIKE <= size / own <= ALIKE]
        if alike or not self.may_measure:
            return statistics.median(alike or [speed for *_, speed in self.speeds]) / own
        if precision not in self.measured:
            self.measured[precision] = measure(precision) * EFFICIENCY[precision]
        return self.measured[precision] / own

    def training(self, run: RunConfig) -> float:
        """Seconds of a whole training."""
        return run.train.tokens / self.rate(run)

    def evaluation(self, run: RunConfig, evaluation: Evaluation) -> float:
        """Seconds of an evaluation."""
        for kind in evaluation_kinds(evaluation.name, dict(evaluation.parameters), run):
            if self.evaluated.get(kind):
                return statistics.median(self.evaluated[kind])
        return EVALUATION_SHARE * self.training(run)


def evaluation_kinds(name: str, parameters: dict[str, Any], run: RunConfig) -> list[tuple]:
    like = (name, run.model, run.train.length)
    return [(*like, json.dumps(parameters), run.pattern.name), (*like, json.dumps(parameters)), like]


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
