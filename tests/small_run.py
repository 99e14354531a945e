"""A run of a second or less, that tests repeat, interrupt and divide: `all_scenarios` in one of two processes, and

    torchrun ... tests/small_run.py         `suite.run.torchrun` on the runs of `JOBS`; KILL=step kills process 1
"""

import hashlib
import json
import math
import os
import shutil
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from lib import step as one_step
from lib import training
from lib.config import DataConfig, Evaluation, ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.errors import SuiteError
from lib.fused.ops import IGNORED
from lib.step import Ranks
from lib.training import TrainResult, train_run
from suite import tasks
from suite.experiments.base import Job
from suite.run import torchrun as distributed
from suite.tasks import make_source

MODEL = ModelConfig(vocab=16, d_model=16, layers=2, heads=2, kv_heads=1, head_dim=8, hidden=40)
RECIPE = TrainConfig(steps=12, batch=4, length=16, lr=5e-3, warmup=3, precision="fp32", eval_every=5, seed=1)
TASK = DataConfig.of("copying", string=4, symbols=6)
RUN = RunConfig(PatternSpec.of("learned", window=3, rungs=5), MODEL, RECIPE, TASK)

torch.set_num_threads(1)        # one thread a process, as the workers train


def with_recipe(run: RunConfig = RUN, **changes) -> RunConfig:
    return replace(run, train=replace(run.train, **changes))


LONG = with_recipe(steps=40, batch=5)
JOBS = [Job.of(with_recipe(LONG, seed=seed), Evaluation.of("task", count=8)) for seed in (1, 2)]


class Source:
    """The run's own batches, some targets of which are not scored: more in one window than in another, all in the first
    two. It notes what was asked for, and stops the training at step `stop`, or process 1 at step KILL."""

    def __init__(self, run: RunConfig, uneven: bool = False, stop: int | None = None) -> None:
        self.own = make_source(run.data, None)
        self.vocab, self.uneven, self.stop = self.own.vocab, uneven, stop
        self.seen: list[tuple] = []

    def batch(self, seed: int, step: int, size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        if os.environ.get("RANK") == "1" and os.environ.get("KILL") == str(step):
            os.kill(os.getpid(), signal.SIGKILL)
        inputs, targets = self.own.batch(seed, step, size, length)
        if seed == training.LIGHT_SEED:
            return inputs, targets
        if step == self.stop:
            raise SuiteError("stopped")
        self.seen.append((step, inputs.tolist()))
        if self.uneven:
            drawn = torch.rand(targets.shape, generator=torch.Generator().manual_seed(step))
            targets = targets.masked_fill(drawn < torch.linspace(0, 0.9, size)[:, None], IGNORED)
            targets[:2] = IGNORED
        return inputs, targets


def trained(run: RunConfig, folder: Path, source: Source | None = None, **options) -> TrainResult:
    return train_run(run, source or Source(run), None, folder, **options)


def eagerly(run: RunConfig, folder: Path, source: Source | None = None, **options) -> TrainResult:
    """Train with a checkpoint after every step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "CHECKPOINT_SHARE", math.inf)
        return trained(run, folder, source, checkpoint_every=0.0, **options)


def stopped(folder: Path, at: int, run: RunConfig = RUN) -> None:
    """Train until step `at`, and leave the run there."""
    with pytest.raises(SuiteError, match="^stopped$"):
        eagerly(run, folder, Source(run, stop=at))


def weights(folder: Path) -> str:
    """Hash of the finished weights' file."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def values(result: TrainResult) -> list[tuple]:
    return [(m.measure, m.split, m.layer, m.step, m.value) for m in result.metrics]


def states_equal(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@dataclass(frozen=True)
class Scenario:
    run: RunConfig
    uneven: bool = False
    at_once: tuple[int, int] = (0, 0)           # rows of a part in each process; 0: as many as fit
    fits: tuple[int, int] = (100, 100)          # rows for which each process has memory
    stop: int | None = None


SCENARIOS = {
    "even": Scenario(RUN),
    "uneven": Scenario(with_recipe(batch=5), uneven=True),
    "parts": Scenario(with_recipe(batch=7), uneven=True, at_once=(3, 1)),
    "memory": Scenario(with_recipe(batch=8), fits=(100, 1)),
    "bf16": Scenario(with_recipe(precision="bf16")),
    "wild": Scenario(with_recipe(lr=1e30, warmup=0)),
    "stopped": Scenario(LONG, stop=23),
    "resumed": Scenario(LONG),              # in a copy of what `stopped` left
    "handed": Scenario(LONG),               # in the folder of a run that one process has begun
    "too few": Scenario(with_recipe(batch=1)),
}


def limited(patch: pytest.MonkeyPatch, fits: int, after: int = 0) -> list[int]:
    """A GPU without memory for more than `fits` rows, from call `after` on; the rows of all calls."""
    forward, calls = one_step.Loss.forward, []

    def attempt(self, inputs, targets, scored):
        calls.append(len(inputs))
        if len(calls) > after and len(inputs) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return forward(self, inputs, targets, scored)
    patch.setattr(one_step.Loss, "forward", attempt)
    return calls


def perform(scenario: Scenario, folder: Path, together: Ranks) -> dict:
    """One training; what this process has seen of it."""
    source, at_once = Source(scenario.run, scenario.uneven, scenario.stop), scenario.at_once[together.rank]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_step, "rows_at_once", lambda loss, rows, *_: at_once or rows)
        tried = limited(patch, scenario.fits[together.rank])
        try:
            result = eagerly(scenario.run, folder, source, ranks=together)
            outcome = {"metrics": [(m.measure, m.step, m.layer, m.value) for m in result.metrics],
                       "state": {name: x.tolist() for name, x in result.model.state_dict().items()}}
        except SuiteError as error:
            outcome = {"error": str(error)}
    return outcome | {"seen": source.seen, "tried": sorted(set(tried))}


def all_scenarios(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    together = Ranks(rank, 2, dist.new_group(backend="gloo"))
    for name, scenario in SCENARIOS.items():
        at = folder / name
        if name == "resumed" and together.first:
            shutil.copytree(folder / "stopped", at, dirs_exist_ok=True)
        at.mkdir(exist_ok=True)
        (folder / f"{name}.{together.rank}.json").write_text(json.dumps(perform(scenario, at, together)))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":                  # a plan of two short runs on a synthetic task
    training.CHECKPOINT_SHARE = math.inf
    training.Watch.due = lambda watch: float(watch.writes)           # a checkpoint after every step
    tasks.make_source = lambda config, corpus: Source(replace(RUN, data=config))
    distributed.planned = lambda profile, name: SimpleNamespace(jobs=JOBS)
    distributed.opened = lambda profile, folder: (SimpleNamespace(name="tiny"), None)
    sys.exit(distributed.main(sys.argv[1:]))
