"""How long runs take here: from timed runs of the same kind, else from counted operations and a measured speed.

The plan (`suite.plan.outlook`) and the engine's progress display ask an `Estimator`.
"""

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Hashable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Self

from lib import paths
from lib.config import Evaluation, RunConfig, freeze
from lib.errors import SuiteError
from suite.plan.cost import attention_training_flops, pairs_of, run_flops
from suite.run.database import Database
from suite.run.seals import sound
from suite.settings.machine import machine

# Measured once, on small models on a CPU: the share of a matrix product's speed that training reaches, and how many
# times longer an operation of attention takes, dense or sparse.
EFFICIENCY = {"bf16": 0.54, "fp32": 0.6}
ATTENTION = {"bf16": 10.0, "fp32": 2.0}
ALIKE = 4.0                   # ratio of operations a token up to which one model's speed says something of another's
EVALUATION_SHARE = 0.05       # of the training's time, for an evaluation that was never timed


def operations(run: RunConfig) -> float:
    """Floating-point operations a training token, forward and backward; those of attention weigh `ATTENTION`."""
    extra = ATTENTION[run.train.precision] - 1
    return run_flops(run, tokens=1) + extra * attention_training_flops(run, pairs_of(run))


def run_kinds(run: RunConfig) -> list[Hashable]:
    """What runs have in common, the closest likeness first."""
    like = (run.model, run.train.length, run.train.batch, run.train.precision)
    return [(run.pattern.name, *like), like]


def evaluation_kinds(evaluation: Evaluation, run: RunConfig) -> list[Hashable]:
    like = (run.model, run.train.length)
    return [(evaluation, run.pattern.name, *like), (evaluation, *like), (evaluation.name, *like)]


@dataclass
class Estimator:
    """Seconds of training and evaluation on one thread of this machine."""
    may_measure: bool = True                                 # a matrix product's speed, which needs torch
    # By kind: tokens a second of a run, seconds of an evaluation.
    times: dict[Hashable, list[float]] = field(default_factory=lambda: defaultdict(list))
    speeds: list[tuple[str, float, float]] = field(default_factory=list)   # precision, operations a token and a second
    medians: dict[Hashable, float] = field(default_factory=dict)           # of times and speeds, until one is added
    measured: dict[str, float] = field(default_factory=dict)               # operations a second, by precision

    @classmethod
    def from_history(cls, may_measure: bool = True) -> Self:
        """From all profiles' runs on this machine; a database that cannot be read teaches nothing and is left alone."""
        estimator = cls(may_measure)
        for path in sorted(paths.outputs().glob("*/runs.sqlite")):
            with suppress(SuiteError), closing(Database(path.parent.name, create=False)) as database:
                estimator.learn(database)
        return estimator

    def learn(self, database: Database) -> None:
        """Times of the runs that this machine trained on one thread or one GPU."""
        query = """select * from runs where status = 'done' and machine = ? and tokens_per_s > 0
                   and device not like '% x %' and (threads = 1 or device = 'cuda')"""
        runs = {}
        for row in filter(sound, database.rows(query, machine())):
            runs[row["id"]] = run = RunConfig.from_dict(json.loads(row["config"]))
            self.add(run, row["tokens_per_s"])
        for row in database.rows("select * from evaluations"):
            if row["run_id"] in runs and sound(row):
                evaluation = Evaluation(row["name"], freeze(json.loads(row["parameters"])))
                for kind in evaluation_kinds(evaluation, runs[row["run_id"]]):
                    self.times[kind].append(row["seconds"])

    def add(self, run: RunConfig, tokens_per_s: float) -> None:
        for kind in run_kinds(run):
            self.times[kind].append(tokens_per_s)
        self.speeds.append((run.train.precision, operations(run), tokens_per_s * operations(run)))
        self.medians.clear()

    def median(self, kinds: Iterable[Hashable]) -> float | None:
        """Median of the first of these kinds that has a value."""
        kind = next((kind for kind in kinds if kind in self.times), None)
        if kind is not None and kind not in self.medians:
            self.medians[kind] = statistics.median(self.times[kind])
        return self.medians.get(kind)

    def rate(self, run: RunConfig) -> float:
        known = self.median(run_kinds(run))
        return known if known is not None else self.speed(run.train.precision, operations(run)) / operations(run)

    def speed(self, precision: str, size: float) -> float:
        """Operations a second of a model of `size` operations a token: of similar timed models, else measured."""
        if (precision, size) not in self.medians:
            similar = [speed for p, s, speed in self.speeds if p == precision and 1 / ALIKE <= s / size <= ALIKE]
            known = similar or [speed for *_, speed in self.speeds if not self.may_measure]
            if not known and precision not in self.measured:
                self.measured[precision] = measure(precision) * EFFICIENCY[precision]
            self.medians[precision, size] = statistics.median(known) if known else self.measured[precision]
        return self.medians[precision, size]

    def training(self, run: RunConfig) -> float:
        return run.train.tokens / self.rate(run)

    def evaluation(self, run: RunConfig, evaluation: Evaluation) -> float:
        known = self.median(evaluation_kinds(evaluation, run))
        return EVALUATION_SHARE * self.training(run) if known is None else known


def measure(precision: str) -> float:
    """Operations a second of this thread's CPU time, at best: a matrix product of a size that small models have."""
    import torch
    from torch.utils.benchmark import Timer
    rows, inner, columns = 512, 256, 512
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    tensors = {"a": torch.ones(rows, inner, dtype=dtype), "b": torch.ones(inner, columns, dtype=dtype)}
    timer = Timer("a @ b", globals=tensors, timer=time.thread_time, num_threads=1)
    return 2 * rows * inner * columns / min(timer.blocked_autorange(min_run_time=0.2).times)
