"""A whole training step: loss, backward pass, clipping and optimiser, of the model that a profile trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from lib.config import ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.model import Transformer, build_model, build_pattern
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
        batch = max(1, profile.train.batch * profile.train.length // length)
        return cls(profile.model, replace(profile.train, length=length, batch=batch), window, profile.rungs)

    @property
    def sparse(self) -> PatternSpec:
        return PatternSpec.of("scaled_base", schedule="linear", window=self.window, rungs=self.rungs)

    @property
    def keys(self) -> float:
        """Keys a query of the sparse model, a mean over queries and layers."""
        pairs = build_pattern(RunConfig(self.sparse, self.model, self.train)).pairs(self.train.length)
        return pairs / self.model.layers / self.train.length


def steps(setting: StepSetting, device: torch.device) -> dict[str, Callable[[], float]]:
    """A step by name: dense and sparse, in fp32 and, where the machine computes in it, bf16."""
    from lib.training import build_optimizer
    from suite.settings.profiles import has_bf16
    made = {}
    for precision in ("fp32", "bf16") if has_bf16() else ("fp32",):
        for name, spec in (("dense", PatternSpec.of("dense")), ("sparse", setting.sparse)):
            run = RunConfig(spec, setting.model, replace(setting.train, precision=precision))
            model = build_model(run).to(device)
            made[f"{name} {precision}"] = step_of(model, build_optimizer(model, run.train), run.train, device)
    return made


def step_of(model: Transformer, optimizer: torch.optim.Optimizer, recipe: TrainConfig,
            device: torch.device) -> Callable[[], float]:
    """One step on random tokens, always the same. It returns the loss in nats; reading that waits for a GPU."""
    draws = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab, (recipe.batch, recipe.length + 1), generator=draws).to(device)

    def step() -> float:
        with autocast(recipe, str(device)):
            loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()
    return step
