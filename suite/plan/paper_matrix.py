"""Which runs of a plan are the Fibonacci paper's own, and how long their training was published to take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lib.config import ModelConfig, RunConfig, TrainConfig
from suite.plan import counted
from suite.plan.gpu_hours import GPU_CHECK, Speed, published_runs

SEED = 42                                       # of the paper's 21 models and of dense; others are replicates
MODELS, REPLICATES, DENSE = "the paper's models", "its replicates", "its dense baseline"
TIMED = "both: the published matrix"
SEEDS, CONTROLS = "further seeds of these", "controls, other studies"


@dataclass(frozen=True)
class Part:
    """Runs of one kind and their training alone: `hours` on the plan's GPU, `published_hours` on an RTX 3090 where known."""
    part: str
    runs: int
    tokens: int
    flops: float
    hours: float | None
    published_hours: float | None


def parts(runs: Iterable[RunConfig], speed: Speed | None) -> list[Part]:
    """The plan's runs, each once, by what they are to the paper; nothing where none of them is the paper's."""
    times = {(run.pattern, run.train.seed): seconds for run, seconds in published_runs()}
    found: dict[str, list[RunConfig]] = {name: [] for name in (MODELS, REPLICATES, TIMED, DENSE, SEEDS, CONTROLS)}
    for run in dict.fromkeys(runs):
        found[part_of(run, times)].append(run)
    if not found[MODELS]:
        return []
    found[TIMED] = found[MODELS] + found[REPLICATES]
    return [summed(name, own, speed, times) for name, own in found.items() if own]


def part_of(run: RunConfig, times: dict[tuple, float]) -> str:
    """By pattern and seed, of a run with the paper's model (its vocabulary aside) and recipe on text."""
    own_recipe = replace(run.train, seed=SEED) == TrainConfig(seed=SEED) and run.data.source == "text"
    if not own_recipe or replace(run.model, vocab=ModelConfig().vocab) != ModelConfig():
        return CONTROLS
    if (run.pattern, run.train.seed) in times:
        return MODELS if run.train.seed == SEED else REPLICATES
    if run.pattern == GPU_CHECK["dense"]:
        return DENSE if run.train.seed == SEED else SEEDS
    return SEEDS if (run.pattern, SEED) in times else CONTROLS


def summed(name: str, runs: list[RunConfig], speed: Speed | None, times: dict[tuple, float]) -> Part:
    hours = sum(speed.seconds(run, counted.training(run)) for run in runs) / 3600 if speed else None
    published = [times.get((run.pattern, run.train.seed)) for run in runs] if name in (MODELS, REPLICATES, TIMED) else [None]
    return Part(name, len(runs), sum(run.train.tokens for run in runs), sum(map(counted.training, runs)), hours,
                None if None in published else sum(published) / 3600)
