"""The paper's recipe: AdamW, warm-up and cosine, clipping, bf16 autocast, windows drawn by (seed, step).

Nothing here draws from a random stream after the model is built: a batch is a function of seed and step. So a run that
is killed and goes on from a checkpoint, and one that is evaluated more or less often, ends with the same weights, bit
for bit (on a CPU with as many threads; some CUDA kernels add in any order). `lib.step` splits a step over processes and
parts.
"""

import dataclasses
import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from lib.checkpoint import load_checkpoint, load_finished, save_checkpoint, save_finished
from lib.config import Metric, RunConfig, TrainConfig
from lib.data import Corpus, Source, domains_of, heldout_windows
from lib.errors import SuiteError, require
from lib.fused.ops import IGNORED, token_losses
from lib.model import Transformer, build_model
from lib.resources import Clock, PeakMemory
from lib.step import Ranks, Step, autocast

CHECKPOINT_SECONDS = 20.0
CHECKPOINT_SHARE = 0.05         # of the time, at most: where writing takes long it is done less often
RECORDS = 50                    # points of a training curve
LIGHT_BATCHES = 2               # held-out batches of a light evaluation, each domain
LIGHT_WINDOWS = 16              # and at least as many windows, where batches are small
LIGHT_SEED = 2 ** 31 + 2 ** 30  # of a task's held-out draws; training seeds and `suite.evals` stay below
PROGRESS_SECONDS = 0.5

Progress = Callable[[dict[str, Any]], None]
Windows = dict[str, tuple[torch.Tensor, torch.Tensor]]


@dataclass
class State:
    """Where a run is, beside weights and optimiser: all of it goes into a checkpoint."""
    step: int = 0                                           # optimiser steps done
    losses: list[float] = field(default_factory=list)       # of the steps since the last record, nats
    metrics: list[Metric] = field(default_factory=list)
    seconds: float = 0.0                                    # wall time of all that led here
    step_seconds: float = 0.0                               # of which in steps, without evaluations and checkpoints
    spent: dict[str, float] = field(default_factory=dict)   # seconds by part (`lib.resources.PARTS`)
    peak_memory_mib: float = 0.0


@dataclass(frozen=True)
class TrainResult:
    """A trained model and how it got there."""
    model: Transformer
    metrics: list[Metric]           # train_loss, held-out losses and what the pattern learned, by step
    seconds: float                  # wall time of the training, all its parts together
    tokens_per_s: float             # in training steps alone
    peak_memory_mib: float
    spent: dict[str, float]         # seconds by part (`lib.resources.PARTS`)


def load_run(run: RunConfig, folder: Path, device: str = "cpu") -> TrainResult | None:
    """The finished run in `folder`; None if it is not finished (or if its files are damaged, which is logged)."""
    model = build_model(run)
    saved = load_finished(folder, run, model)
    if saved is None:
        return None
    return TrainResult(model.to(device), **saved | {"metrics": [Metric(**metric) for metric in saved["metrics"]]})


def learning_rate(step: int, recipe: TrainConfig) -> float:
    """Rate of step 0 to `steps - 1`: linear to the peak at step `warmup`, then a cosine to `final_lr` of the peak."""
    if step < recipe.warmup:
        return recipe.lr * (step + 1) / (recipe.warmup + 1)
    part = (step - recipe.warmup) / max(1, recipe.steps - 1 - recipe.warmup)
    return recipe.lr * (recipe.final_lr + (1 - recipe.final_lr) * (1 + math.cos(math.pi * part)) / 2)


def build_optimizer(model: Transformer, recipe: TrainConfig) -> torch.optim.AdamW:
    """AdamW with three groups: matrices (the embedding too) decay, gains do not, a pattern's theta has its own rate."""
    named = dict(model.named_parameters())
    thetas = {name for name in named if name.endswith(".theta")}
    groups = [([p for p in named.values() if p.ndim >= 2], recipe.weight_decay, 1.0),
              ([p for n, p in named.items() if p.ndim < 2 and n not in thetas], 0.0, 1.0),
              ([named[n] for n in sorted(thetas)], 0.0, recipe.theta_lr)]
    return torch.optim.AdamW([{"params": p, "weight_decay": decay, "multiplier": m} for p, decay, m in groups if p],
                             lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), fused=True)


def train_run(run: RunConfig, source: Source, corpus: Corpus | None, folder: Path, progress: Progress | None = None,
              device: str = "cpu", checkpoint_every: float = CHECKPOINT_SECONDS, ranks: Ranks = Ranks()) -> TrainResult:
    """The result of `run` in `folder`: trained from where an earlier attempt was interrupted, or loaded if finished.

    corpus: for the light evaluations of a run on text; None for a synthetic task.
    progress: called about twice a second and at the end with step, steps, loss, tokens_per_s, seconds_left.
    checkpoint_every: seconds, or more where CHECKPOINT_SHARE asks for it; results do not depend on it.
    ranks: the processes that train together. All of them call this, or the first one alone if the run is finished; the
    first one reads and writes `folder`, in which no other process may train.
    Raises `SuiteError` where the loss or the gradient is not finite, and where the disk is full.
    """
    if ranks.first and (finished := load_run(run, folder, device)) is not None:
        return finished
    recipe = run.train
    require(source.vocab <= run.model.vocab, "vocab of the model", run.model.vocab,
            f"at least the data's {source.vocab}")
    require(recipe.batch >= ranks.size, "batch", recipe.batch,
            f"a window for each of the {ranks.size} processes, or more")
    model = build_model(run).to(device)
    optimizer = build_optimizer(model, recipe)
    state = resume(folder, run, model, optimizer, ranks)
    heldout = held_out(run, source, corpus)
    split = Step(model, run, ranks, device)
    if state.step < recipe.steps:
        model.half_width = model.pattern.half_width(state.step, recipe.steps)
        split.prepare(*source.batch(recipe.seed, state.step, recipe.batch, recipe.length), optimizer)
    watch = Watch(folder, run, state, progress, checkpoint_every, device, ranks)
    clock = Clock(state.spent, device)
    if state.step == 0:
        state.metrics = learned(model, 0)

    while state.step < recipe.steps:
        begin = time.perf_counter()
        clock.lap()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(state.step, recipe) * group["multiplier"]
        model.half_width = model.pattern.half_width(state.step, recipe.steps)
        inputs, targets = source.batch(recipe.seed, state.step, recipe.batch, recipe.length)
        clock.lap("data")
        loss, due = ranks.sum(split.gradients(inputs, targets, clock), watch.due(), device=device)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        watch.check(loss, norm.item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        clock.lap("optimizer")
        state.step += 1
        state.losses.append(loss)
        state.step_seconds += time.perf_counter() - begin

        last = state.step == recipe.steps
        if last or state.step % max(1, recipe.steps // RECORDS) == 0:
            state.metrics.append(Metric("train_loss", math.fsum(state.losses) / len(state.losses), step=state.step))
            state.metrics += learned(model, state.step)
            state.losses = []
        if last or (recipe.eval_every and state.step % recipe.eval_every == 0):
            clock.lap()
            state.metrics += ranks.of_first(lambda: light_evaluation(model, run, heldout, state.step, device))
            clock.lap("evaluation")
        clock.read()
        watch.step(loss)
        if due and not last:
            ranks.of_first(lambda: watch.save(model, optimizer))
    model.half_width = None
    result = {"seconds": state.seconds, "tokens_per_s": recipe.tokens / state.step_seconds,
              "peak_memory_mib": state.peak_memory_mib, "spent": state.spent, "metrics": state.metrics}
    ranks.of_first(lambda: save_finished(folder, run, model, result))
    return TrainResult(model, **result)


def learned(model: Transformer, step: int) -> list[Metric]:
    """What the pattern has learned by `step`, by layer: alpha, or the mean span of the heads."""
    return [Metric(measure, value, layer=layer, step=step)
            for measure, by_layer in (("alpha", model.alphas()), ("span", model.spans()))
            for layer, value in enumerate(by_layer)]


def held_out(run: RunConfig, source: Source, corpus: Corpus | None) -> Windows:
    """Tokens and targets `[N, T]` of each split of the light evaluation: the corpus's domains, or the task."""
    size, T = max(LIGHT_WINDOWS, LIGHT_BATCHES * run.train.batch), run.train.length
    if run.data.source != "text":
        return {run.data.source: source.batch(LIGHT_SEED, 0, size, T)}
    if corpus is None:
        raise SuiteError("training on text needs its corpus: the light evaluations read held-out windows")
    return {domain: heldout_windows(corpus, domain, T, size * T) for domain in domains_of(run.data, corpus)}


@torch.no_grad()
def light_evaluation(model: Transformer, run: RunConfig, heldout: Windows, step: int, device: str) -> list[Metric]:
    """Loss on a few held-out windows of each split (for a task its accuracy too); no random stream is touched."""
    metrics, table, text = [], model.embedding.weight, run.data.source == "text"
    for split, windows in heldout.items():
        scores: dict[str, list[torch.Tensor]] = defaultdict(list)
        for part in zip(*(x.split(run.train.batch) for x in windows), strict=True):
            tokens, targets = (x.to(device) for x in part)
            with autocast(run.train, device):
                hidden, aim = model.hidden(tokens)[targets != IGNORED], targets[targets != IGNORED]
                scores["nll" if text else "target_nll"].append(token_losses(hidden, table, aim))
                if not text:
                    scores["accuracy"].append(F.linear(hidden, table).argmax(-1) == aim)
        for measure, parts in scores.items():
            mean = float(torch.cat([values.double().cpu() for values in parts]).mean())
            metrics.append(Metric(measure, mean, split=split, length=run.train.length, step=step))
    return metrics


def resume(folder: Path, run: RunConfig, model: Transformer, optimizer: torch.optim.Optimizer, ranks: Ranks) -> State:
    """The state in the checkpoint in `folder`, whose weights and moments it loads; a new state without a checkpoint."""
    saved = ranks.of_first(lambda: load_checkpoint(folder, run))
    if saved is None:
        return State()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return State(**saved["state"] | {"metrics": [Metric(**metric) for metric in saved["state"]["metrics"]]})


class Watch:
    """What the loop needs beside the step: times, memory, progress, checkpoints, and the end of a diverged run."""

    def __init__(self, folder: Path, run: RunConfig, state: State, progress: Progress | None, checkpoint_every: float,
                 device: str, ranks: Ranks) -> None:
        self.folder, self.run, self.state = folder, run, state
        self.progress, self.every, self.writes = progress, checkpoint_every, ranks.first
        self.begin = self.reported = self.saved = time.perf_counter()
        self.earlier, self.first, self.cost = state.seconds, state.step, 0.0
        self.memory = PeakMemory(device)
        self.good = state.step                          # of the last checkpoint; 0: there is none

    def due(self) -> float:
        """1 if a checkpoint is to follow this step, else 0; the first process decides."""
        gone = time.perf_counter() - self.saved
        return float(self.writes and gone >= max(self.every, self.cost / CHECKPOINT_SHARE))

    def check(self, loss: float, norm: float) -> None:
        """Before the weights change: raise `SuiteError` if the loss or the gradient is not finite."""
        if math.isfinite(loss) and math.isfinite(norm):
            return
        recipe, kept = self.run.train, "there is no checkpoint yet"
        what = f"the gradient's norm is {norm}" if math.isfinite(loss) else f"the loss is {loss}"
        if self.good:
            kept = f"the last good checkpoint, step {self.good}, is in {self.folder}"
        raise SuiteError(f"run {self.folder.name} ({self.run.pattern.name}, seed {recipe.seed}) diverged at step "
                         f"{self.state.step} of {recipe.steps}: {what}; lower lr = {recipe.lr:g} or raise "
                         f"warmup = {recipe.warmup}; {kept}")

    def step(self, loss: float) -> None:
        """After a step and its records: bring the times up to date, and report progress."""
        now, state, recipe = time.perf_counter(), self.state, self.run.train
        state.seconds = self.earlier + now - self.begin
        state.peak_memory_mib = max(state.peak_memory_mib, self.memory.mib())
        if self.progress and (state.step == recipe.steps or now - self.reported >= PROGRESS_SECONDS):
            self.reported = now
            a_step = (now - self.begin) / (state.step - self.first)
            self.progress({"step": state.step, "steps": recipe.steps, "loss": loss,
                           "tokens_per_s": recipe.batch * recipe.length / a_step,
                           "seconds_left": a_step * (recipe.steps - state.step)})

    def save(self, model: Transformer, optimizer: torch.optim.Optimizer) -> None:
        """Write a checkpoint: nothing in it depends on the number of processes, nor on the device."""
        before = time.perf_counter()
        save_checkpoint(self.folder, self.run, {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                                                "state": dataclasses.asdict(self.state)})
        self.good, self.saved = self.state.step, time.perf_counter()
        self.cost = self.saved - before
