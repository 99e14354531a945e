"""How long runs take on a named GPU: counted operations over the part of its peak that training reaches.

That part is not guessed. It is what `make gpu-check` measured on that GPU, where its file is there; else what the published
training times of the Fibonacci paper say of an RTX 3090 (`suite/published/cost.csv`), for each kind of model by itself.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lib import paths
from lib.config import ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.errors import SuiteError
from lib.patterns import build, pattern_class
from suite.plan import counted, gpus
from suite.plan.gpus import GPUS

KINDS = {"dense": "dense", "fixed": "fixed keys", "learned": "learned keys"}
GPU_CHECK = {"dense": PatternSpec.of("dense"), "fixed": PatternSpec.of("scaled_base"), "learned": PatternSpec.of("learned")}


@dataclass(frozen=True)
class Speed:
    """What training reaches on one GPU: of each kind of model the share of the peak, and which of them were measured there."""
    name: str
    shares: dict[str, float]
    measured: frozenset[str] = frozenset()

    @property
    def gpu(self) -> gpus.Gpu:
        return GPUS[self.name]

    def seconds(self, run: RunConfig, flops: float) -> float:
        """Of `flops` operations of this run's model on one GPU, training or not."""
        return flops / (self.shares[kind(run.pattern)] * self.gpu.peak(run.train.precision))

    def text(self) -> str:
        """Where the hours come from, in a few lines."""
        found = ", ".join(f"{title} {self.shares[name]:.1%}{' (measured)' * (name in self.measured)}"
                          for name, title in KINDS.items())
        lines = [f"{self.gpu.title}: hours of one GPU, of whose peak, {self.gpu.bf16:g} TFLOP/s ({self.gpu.source}), training "
                 f"reaches", f"    {found}"]
        if self.measured == set(KINDS):
            lines.append("    as make gpu-check measured on such a GPU at the paper's configuration")
        else:
            lines += ["    if not measured: as in the published runs on an RTX 3090, whose code copies the keys of every query",
                      "    before it attends; the suite's kernels do not, and make gpu-check measures what they reach on a GPU"]
        lines.append("    models much smaller than the paper's do not fill a GPU and take longer than is said here")
        return "\n".join(lines)


def kind(pattern: PatternSpec) -> str:
    """Which of `KINDS` a pattern is; to learn a distance is to interpolate between two keys for each."""
    return "dense" if pattern.name == "dense" else "learned" if pattern_class(pattern.name).learned == "alpha" else "fixed"


def speed(name: str) -> Speed:
    """Of the GPU `name`: what was measured on such a GPU, and the published shares for what was not."""
    name = gpus.key(name)
    found = measured(name)
    return Speed(name, published_shares() | found, frozenset(found))


def paper_run(pattern: PatternSpec, seed: int = 42) -> RunConfig:
    return RunConfig(pattern, ModelConfig(), TrainConfig(seed=seed))


def published_spec(base: str, schedule: str, window: int) -> PatternSpec:
    """The pattern of a published model, as the experiments write it."""
    from suite.experiments.common import spec_of
    learned = schedule == "learned"
    own = {"base": base, "window": window} | ({} if learned else {"schedule": schedule})
    return spec_of(build("learned" if learned else "scaled_base", **own))


@lru_cache(maxsize=1)
def published_shares() -> dict[str, float]:
    """Of an RTX 3090's peak: operations of all published runs of a kind over their wall time, evaluations included.

    Dense training was not timed: its speed is taken as that of fixed keys times their ratio in the published inference.
    """
    from suite import published
    flops, seconds, tokens = defaultdict(float), defaultdict(float), defaultdict(float)
    for run, wall in published_runs():
        which = kind(run.pattern)
        flops[which], seconds[which] = flops[which] + counted.training(run), seconds[which] + wall
        tokens[which] += run.train.tokens
    dense = published.dense_inference() * tokens["fixed"] / seconds["fixed"]             # tokens a second
    reached = {which: flops[which] / seconds[which] for which in flops}
    reached["dense"] = dense * counted.training(paper_run(GPU_CHECK["dense"]), tokens=1)
    return {which: speed / GPUS[gpus.PUBLISHED].peak("bf16") for which, speed in reached.items()}


def published_runs() -> list[tuple[RunConfig, float]]:
    """The runs whose training time is published, and that time in seconds."""
    from suite import published
    return [(paper_run(published_spec(row.base, row.schedule, int(row.window)), int(row.seed)), float(row.wall_seconds))
            for row in published.read("cost").itertuples()]


def measured(name: str) -> dict[str, float]:
    """Shares of the peak that gpu-check measured on such a GPU, by kind; nothing where it has not run, or on another GPU."""
    path = paths.gpu_check()
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        machine = found["machine"]
        if gpus.of_device(machine["device"], machine.get("memory_mib", 0) / 2 ** 10) != name:
            return {}
        return {row["pattern"]: share(name, row) for row in found["rows"]
                if row["measure"] == "training_step" and row["tokens_per_s"]}
    except (ValueError, KeyError, TypeError) as error:
        raise SuiteError(f"{path} cannot be read ({error!r}): remove it, or run make gpu-check again") from None


def share(name: str, row: dict[str, Any]) -> float:
    """Of a row of gpu-check: a step of the paper's configuration."""
    return row["tokens_per_s"] * counted.training(paper_run(GPU_CHECK[row["pattern"]]), tokens=1) / GPUS[name].peak("bf16")
