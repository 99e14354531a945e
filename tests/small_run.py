"""A run of a second or less, that the tests of training and of checkpoints repeat and interrupt."""

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lib import training
from lib.config import DataConfig, ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.training import TrainResult, train_run
from suite.tasks import make_source

MODEL = ModelConfig(vocab=16, d_model=16, layers=2, heads=2, kv_heads=1, head_dim=8, hidden=40)
RECIPE = TrainConfig(steps=12, batch=4, length=16, lr=5e-3, warmup=3, precision="fp32", eval_every=5, seed=1)
TASK = DataConfig.of("copying", string=4, symbols=6)
RUN = RunConfig(PatternSpec.of("learned", window=3, rungs=5), MODEL, RECIPE, TASK)

torch.set_num_threads(1)        # one thread a process, as the workers train


def trained(run: RunConfig, folder: Path, **options) -> TrainResult:
    return train_run(run, make_source(run.data, None), None, folder, **options)


def stopped(folder: Path, at: int, run: RunConfig = RUN) -> None:
    """Train until step `at` with a checkpoint after every step, and leave the run there."""
    source = make_source(run.data, None)

    def batch(seed, step, size, length):
        if step == at:
            raise KeyboardInterrupt
        return source.batch(seed, step, size, length)
    with pytest.raises(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "CHECKPOINT_SHARE", math.inf)
        train_run(run, SimpleNamespace(vocab=source.vocab, batch=batch), None, folder, checkpoint_every=0.0)


def with_recipe(run: RunConfig = RUN, **changes) -> RunConfig:
    return replace(run, train=replace(run.train, **changes))


def weights(folder: Path) -> str:
    """Hash of the finished weights' file."""
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def values(result: TrainResult) -> list[tuple]:
    return [(m.measure, m.split, m.layer, m.step, m.value) for m in result.metrics]


def states_equal(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))
