"""Accuracy on the synthetic task that a model was trained for, on sequences that the training cannot have drawn."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch.nn import functional as F

from lib.errors import require
from lib.registry import Positive
from suite.evals import EvalResult, Evaluator, Metric
from suite.evals.scoring import chunks, logits_at
from suite.tasks import task

# Evaluations draw with seed HELD_OUT + seed, training with seeds below HELD_OUT. Both are one 32-bit word of numpy's
# SeedSequence, so that no pair (seed, step) of the one is a pair of the other.
HELD_OUT = 2 ** 31
SEEDS = 2 ** 30         # above HELD_OUT + SEEDS the training draws its own light evaluations
BATCH = 64              # sequences a draw: part of what is drawn, so it never depends on the machine


@dataclass(frozen=True, kw_only=True)
class TaskAccuracy(Evaluator):
    """`count` sequences; split = the task's name for all scored tokens, and for instance `distance=200` for each label.

    Measures: `accuracy` (the most likely token is the target), `target_nll` (nats a token), `count` (scored tokens) and
    `chance` (what a guess is worth). Arrays: `correct.<split>` and `count.<split>` `[N]`, scored tokens of each
    sequence.
    """
    name = "task"

    count: Positive = 512                                       # sequences
    seed: Annotated[int, Field(ge=0, lt=SEEDS)] = 0             # of the sequences

    def measure(self, model, run, corpus, device):
        require(run.train.seed < HELD_OUT, "train.seed", run.train.seed, f"below {HELD_OUT}, where evaluations draw")
        trained, length = task(run.data.source, **dict(run.data.parameters)), run.train.length
        parts = [trained.labelled(HELD_OUT + self.seed, step, min(BATCH, self.count - first), length)
                 for step, first in enumerate(range(0, self.count, BATCH))]
        inputs, targets, labels = (np.concatenate(kind) for kind in zip(*parts, strict=True))       # (N, T)
        right, nll = np.zeros(inputs.shape, bool), np.zeros(inputs.shape)       # of the scored positions
        for part in chunks(*inputs.shape, device):
            scored = labels[part] >= 0
            tokens, at, aim = (torch.from_numpy(x).to(device) for x in (inputs[part], scored, targets[part][scored]))
            logits = logits_at(model, run, tokens, at)                                      # (n, V)
            right[part][scored] = (logits.argmax(-1) == aim).cpu().numpy()
            nll[part][scored] = F.cross_entropy(logits, aim, reduction="none").double().cpu().numpy()
        present = [int(label) for label in np.unique(labels) if label >= 0]
        splits = {trained.split(label): labels == label for label in present} if len(present) > 1 else {}
        metrics, arrays = [], {}
        for split, rows in {trained.name: labels >= 0, **splits}.items():
            measured = {"accuracy": right[rows].mean(), "count": rows.sum(), "target_nll": nll[rows].mean(),
                        "chance": trained.chance}
            metrics += [Metric(measure, float(value), split, length=length) for measure, value in measured.items()]
            arrays[f"correct.{split}.{length}"] = (right & rows).sum(axis=1)
            arrays[f"count.{split}.{length}"] = rows.sum(axis=1)
        return EvalResult(metrics, arrays)
