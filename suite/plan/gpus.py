"""GPUs by name, how long runs take on one, and the planned runs that reproduce the paper, with their published times.

A run takes its counted operations over the share of the GPU's peak that training reaches. `make gpu-check` measures the
share; without its file, the published training times of the Fibonacci paper give it for an RTX 3090
(`suite/published/cost.csv`), for each kind of model by itself.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pandas as pd

from lib import paths
from lib.config import ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.errors import SuiteError, one_of
from lib.patterns import build, pattern_class
from suite import published
from suite.experiments.common import spec_of
from suite.plan.cost import run_flops
from suite.settings.machine import DRIVER


@dataclass(frozen=True)
class Gpu:
    """Peak TFLOP/s of products without sparsity, in bf16 (on tensor cores that add in float32) and in fp32 (without
    tensor cores), GiB of memory, and where the maker states them."""
    title: str
    bf16: float
    fp32: float
    memory_gib: float
    source: str

    def peak(self, precision: str) -> float:
        return 1e12 * (self.bf16 if precision == "bf16" else self.fp32)


GPUS = {known: Gpu(*facts) for known, *facts in
        pd.read_csv(Path(__file__).with_suffix(".csv")).itertuples(index=False, name=None)}
OTHERS = {"ti", "laptop", "super", "d", "pcie", "nvl"}      # words for a slower or faster GPU of the same name
PUBLISHED = "rtx-3090"                  # what the Fibonacci paper trained on
SEED = 42                               # of its 21 models and of dense; other seeds are replicates


def key(name: str) -> str:
    """A name as one types it (`H100`, `RTX 3090`, `rtx3090`) as a key of `GPUS`; a `SuiteError` names the nearest."""
    def letters(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text.lower())
    plain = {letters(text): known for known, gpu in GPUS.items() for text in (known, gpu.title)}
    return plain.get(letters(name)) or one_of(name.lower(), GPUS, "GPU")


def of_device(device: str, memory_gib: float) -> str | None:
    """The key of a GPU as its driver calls it, such as `NVIDIA A100-SXM4-40GB`; None if the table does not have it."""
    words = set(re.split(r"[^a-z0-9]+", device.lower()))
    fitting = [known for known, gpu in GPUS.items() if not words & OTHERS
               and all(word in words or word.endswith("gb") for word in gpu.title.lower().split())]
    return min(fitting, key=lambda known: abs(GPUS[known].memory_gib - memory_gib), default=None)


def seen() -> str | None:
    """The key of the GPU that torch computes on here; torch is imported only where there is a driver."""
    if DRIVER.exists():
        import torch
        if torch.cuda.is_available():
            device = torch.cuda.get_device_properties(0)
            return of_device(device.name, device.total_memory / 2 ** 30)
    return None


# How long a run takes

KINDS = {"dense": "dense", "fixed": "fixed keys", "learned": "learned keys"}
CHECKED = {"dense": PatternSpec("dense"), "fixed": PatternSpec("scaled_base"), "learned": PatternSpec("learned")}


@dataclass(frozen=True)
class GpuSpeed:
    """The share of one GPU's peak that training reaches, by kind of model, and the kinds that were measured on it."""
    gpu: Gpu
    shares: dict[str, float]
    measured: frozenset[str]

    def seconds(self, run: RunConfig, flops: float) -> float:
        """Seconds of `flops` operations of this run's model on one GPU, training or not."""
        return flops / (self.shares[kind(run.pattern)] * self.gpu.peak(run.train.precision))

    def text(self) -> str:
        shares = ", ".join(f"{title} {self.shares[name]:.1%}{' (measured)' * (name in self.measured)}"
                           for name, title in KINDS.items())
        source = "as make gpu-check measured on such a GPU at the paper's configuration"
        if self.measured != set(KINDS):
            source = ("if not measured: as in the published runs on an RTX 3090, whose code copies the keys of every "
                      "query\n    before it attends; the suite's kernels do not: see make gpu-check")
        return (f"{self.gpu.title}: hours of one GPU, of whose peak, {self.gpu.bf16:g} TFLOP/s ({self.gpu.source}), "
                f"training reaches\n    {shares}\n    {source}\n"
                "    models much smaller than the paper's do not fill a GPU and take longer than is said here")


def kind(pattern: PatternSpec) -> str:
    """Which of `KINDS` a pattern is; a learned distance is interpolated between two keys."""
    if pattern.name == "dense":
        return "dense"
    return "learned" if pattern_class(pattern.name).learned == "alpha" else "fixed"


def speed(name: str) -> GpuSpeed:
    """Speed of the GPU `name`: the shares that gpu-check measured on such a GPU, else the published shares."""
    name, path, measured = key(name), paths.gpu_check(), {}
    try:
        if path.exists():
            check = json.loads(path.read_text(encoding="utf-8"))
            device = of_device(check["machine"]["device"], check["machine"].get("memory_mib", 0) / 2 ** 10)
            measured = {row["pattern"]: row["tokens_per_s"] * run_flops(paper_run(CHECKED[row["pattern"]]), tokens=1)
                        / GPUS[name].peak("bf16") for row in check["rows"]
                        if device == name and row["measure"] == "training_step" and row["tokens_per_s"]}
    except (ValueError, KeyError, TypeError) as error:
        raise SuiteError(f"{path} cannot be read ({error!r}): remove it, or run make gpu-check again") from None
    return GpuSpeed(GPUS[name], published_shares() | measured, frozenset(measured))


def paper_run(pattern: PatternSpec, seed: int = SEED) -> RunConfig:
    return RunConfig(pattern, ModelConfig(), TrainConfig(seed=seed))


@lru_cache(maxsize=1)
def published_runs() -> dict[RunConfig, float]:
    """The runs whose training time is published, and that time in seconds, evaluations included."""
    seconds = {}
    for row in published.read("cost").itertuples():
        own = {} if row.schedule == "learned" else {"schedule": row.schedule}
        pattern = build("learned" if not own else "scaled_base", base=row.base, window=int(row.window), **own)
        seconds[paper_run(spec_of(pattern), int(row.seed))] = float(row.wall_seconds)
    return seconds


@lru_cache(maxsize=1)
def published_shares() -> dict[str, float]:
    """Shares of an RTX 3090's peak: operations of all published runs of a kind over their wall time.

    Dense training was not timed: its speed is that of fixed keys times the ratio of the two in the published inference.
    """
    sums = {name: [0.0, 0.0, 0.0] for name in ("fixed", "learned")}        # operations, seconds, tokens
    for run, wall in published_runs().items():
        of_kind = sums[kind(run.pattern)]
        of_kind[:] = map(sum, zip(of_kind, (run_flops(run), wall, run.train.tokens)))
    peak, (_, seconds, tokens) = GPUS[PUBLISHED].peak("bf16"), sums["fixed"]
    dense = published.dense_inference() * tokens / seconds * run_flops(paper_run(CHECKED["dense"]), tokens=1)
    return {"dense": dense / peak} | {name: flops / wall / peak for name, (flops, wall, _) in sums.items()}


# The paper's matrix of runs in a plan

PARTS = (MODELS, REPLICATES, TIMED, DENSE, SEEDS, CONTROLS) = (
    "the paper's models", "its replicates", "both: the published matrix", "its dense baseline",
    "further seeds of these", "controls, other studies")


@dataclass(frozen=True)
class MatrixRow:
    """Runs of one kind, training alone: `hours` on the plan's GPU, `published_hours` on an RTX 3090 where known."""
    part: str
    runs: int
    tokens: int
    flops: float
    hours: float | None
    published_hours: float | None


def paper_matrix(runs: Iterable[RunConfig], speed: GpuSpeed | None) -> list[MatrixRow]:
    """The plan's runs, each once, by what they are to the paper; empty if the paper trained none of them."""
    groups: dict[str, list[RunConfig]] = {part: [] for part in PARTS}
    for run in dict.fromkeys(runs):
        groups[part_of_paper(run)].append(run)
    if not groups[MODELS]:
        return []
    groups[TIMED] = groups[MODELS] + groups[REPLICATES]
    rows = []
    for part, group in groups.items():
        flops = [run_flops(run) for run in group]
        hours = sum(map(speed.seconds, group, flops)) / 3600 if speed else None
        known = [published_runs()[paper_run(run.pattern, run.train.seed)] for run in group
                 if part in (MODELS, REPLICATES, TIMED)]
        rows.append(MatrixRow(part, len(group), sum(run.train.tokens for run in group), sum(flops), hours,
                              sum(known) / 3600 if known else None))
    return [row for row in rows if row.runs]


def part_of_paper(run: RunConfig) -> str:
    """What a run is to the paper, by model, recipe, pattern and seed; its vocabulary and its text may be others."""
    paper, first = paper_run(run.pattern, run.train.seed), run.train.seed == SEED
    model = replace(run.model, vocab=paper.model.vocab)
    if run.data.source != "text" or (model, run.train) != (paper.model, paper.train):
        return CONTROLS
    if paper in published_runs():
        return MODELS if first else REPLICATES
    if run.pattern == CHECKED["dense"]:
        return DENSE if first else SEEDS
    return SEEDS if paper_run(run.pattern) in published_runs() else CONTROLS
