"""One run from its configuration to its finished weights: trained, gone on with, or simply loaded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib.checkpoint import load_finished, save_finished
from lib.config import Metric, RunConfig
from lib.model import Transformer, build_model
from lib.ranks import Ranks
from lib.training import ALONE, CHECKPOINT_SECONDS, Progress, train

if TYPE_CHECKING:
    from lib.data import Corpus, Source


@dataclass(frozen=True)
class TrainResult:
    """A trained model and how it got there."""
    model: Transformer
    metrics: list[Metric]           # train_loss, held-out losses and what the pattern learned, by step
    seconds: float                  # wall time of the training, all its parts together
    tokens_per_s: float             # in training steps alone
    peak_memory_mib: float
    spent: dict[str, float]         # seconds of the training by part (`lib.clock.PARTS`)


def train_run(run: RunConfig, source: Source, corpus: Corpus | None, folder: Path, progress: Progress | None = None,
              device: str = "cpu", checkpoint_every: float = CHECKPOINT_SECONDS, ranks: Ranks = ALONE) -> TrainResult:
    """Train `run` in `folder`, from where an earlier attempt was interrupted; a finished run is loaded.

    corpus: for the light evaluations of a run on text; None for a synthetic task. Other arguments: `lib.training.train`.
    The caller sees to it that no other process trains in `folder`, and calls this in each of `ranks` or, for a run that is
    finished, in the first of them alone.
    """
    finished = load_run(run, folder, device) if ranks.first else None
    if finished is not None:
        return finished
    model, state = train(run, source, folder, corpus=corpus, progress=progress, checkpoint_every=checkpoint_every,
                         device=device, ranks=ranks)
    facts = {"seconds": state.seconds, "tokens_per_s": run.train.tokens / state.step_seconds,
             "peak_memory_mib": state.peak_memory_mib, "spent": state.spent}
    metrics = [dataclasses.asdict(metric) for metric in state.metrics]
    ranks.of_first(lambda: save_finished(folder, run, model, {**facts, "metrics": metrics}))
    return TrainResult(model, state.metrics, **facts)


def load_run(run: RunConfig, folder: Path, device: str = "cpu") -> TrainResult | None:
    """The finished run in `folder`; None if it is not finished (or its files are damaged, which is reported)."""
    model = build_model(run)
    saved = load_finished(folder, run, model)
    if saved is None:
        return None
    facts: dict[str, Any] = {name: saved[name] for name in ("seconds", "tokens_per_s", "peak_memory_mib", "spent")}
    return TrainResult(model.to(device), [Metric(**metric) for metric in saved["metrics"]], **facts)
