"""A whole training step: loss, backward pass, clipping and optimiser, of the model that a profile trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from lib.config import ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.model import build_model, build_pattern
from lib.step import autocast

if TYPE_CHECKING:
    from suite.settings.profiles import Profile

BASELINE = "dense fp32"             # eager; what the others are measured against


@dataclass(frozen=True)
class StepSetting:
    """Model and recipe of a profile at a length, with about as many tokens a step, and its sparse model's window."""
    model: ModelConfig
    train: TrainConfig
    window: int
    rungs: int

    @classmethod
    def of(cls, profile: Profile, length: int, window: int) -> StepSetting:
        train = profile.train
        train = replace(train, length=length, batch=max(1, train.batch * train.length // length))
        return cls(profile.model, train, window, profile.rungs)

    def run(self, spec: PatternSpec, precision: str) -> RunConfig:
        return RunConfig(spec, self.model, replace(self.train, precision=precision))

    @property
    def sparse(self) -> PatternSpec:
        return PatternSpec.of("scaled_base", schedule="linear", window=self.window, rungs=self.rungs)

    @property
    def keys(self) -> float:
        """Keys a query of the sparse model, a mean over queries and layers."""
        pairs = build_pattern(self.run(self.sparse, "fp32")).pairs(self.train.length)
        return pairs / self.model.layers / self.train.length


def steps(setting: StepSetting, device: torch.device) -> dict[str, Callable[[], float]]:
    """A step by name: dense and sparse, in fp32 and, where the machine computes in it, bf16."""
    from suite.settings.profiles import has_bf16
    precisions = ("fp32", "bf16") if has_bf16() else ("fp32",)
    kinds = (("dense", PatternSpec.of("dense")), ("sparse", setting.sparse))
    return {f"{name} {precision}": step_of(setting.run(spec, precision), str(device))
            for precision in precisions for name, spec in kinds}


def step_of(run: RunConfig, device: str) -> Callable[[], float]:
    """One optimiser step of `run` on random tokens, always the same; returns the loss."""
    from lib.training import build_optimizer
    model = build_model(run).to(device)
    optimizer = build_optimizer(model, run.train)
    draws = torch.Generator().manual_seed(0)
    tokens = torch.randint(run.model.vocab, (run.train.batch, run.train.length + 1), generator=draws).to(device)
    return lambda: step(model, optimizer, run.train, tokens)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, recipe: TrainConfig, tokens: torch.Tensor) -> float:
    """The loss, in nats; reading it waits for a GPU, as training does."""
    with autocast(recipe, str(tokens.device)):
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()
