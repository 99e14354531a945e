"""A whole training step: loss, backward pass, clipping and optimiser, of the model that a profile trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from lib.config import ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.model import build_model, build_pattern
from lib.training import autocast, build_optimizer
from suite.settings.profiles import Profile, has_bf16

DENSE, SPARSE = PatternSpec.of("dense"), "scaled_base"
BASELINE = "dense fp32"             # eager; what the others are measured against


@dataclass(frozen=True)
class StepSetting:
    """Model and recipe of a profile at a length, with about as many tokens a step, and the window of its sparse model."""
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
        return PatternSpec.of(SPARSE, schedule="linear", window=self.window, rungs=self.rungs)


def steps(setting: StepSetting, device: torch.device) -> dict[str, Callable[[], float]]:
    """A step by name: dense and sparse, in fp32 and, where the machine computes in it, bf16."""
    precisions = ("fp32", "bf16") if has_bf16() else ("fp32",)
    kinds = (("dense", DENSE), ("sparse", setting.sparse))
    return {f"{name} {precision}": step_of(setting.run(spec, precision), str(device))
            for precision in precisions for name, spec in kinds}


def step_of(run: RunConfig, device: str) -> Callable[[], float]:
    """One optimiser step of `run` on random tokens, always the same; returns the loss."""
    model = build_model(run).to(device)
    optimizer = build_optimizer(model, run.train)
    draws = torch.Generator().manual_seed(0)
    tokens = torch.randint(run.model.vocab, (run.train.batch, run.train.length + 1), generator=draws).to(device)

    def step() -> float:
        with autocast(run.train, device):
            loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), run.train.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()
    return step


def pairs(setting: StepSetting) -> float:
    """Attended pairs of the sparse model, summed over layers."""
    return build_pattern(setting.run(setting.sparse, "fp32")).pairs(setting.train.length)
