"""An experiment: from parameters to the runs it needs, and from finished runs to one tidy table. Both are pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pandas as pd

from lib.config import Evaluation, Items, RunConfig, freeze

if TYPE_CHECKING:
    from suite.run.browse import Database
    from suite.settings.profiles import Profile


@dataclass(frozen=True)
class Job:
    """A run, what is to be measured of it, and what this experiment's table calls it."""
    run: RunConfig
    evaluations: tuple[Evaluation, ...] = ()
    labels: Items = ()

    @classmethod
    def of(cls, run: RunConfig, *evaluations: Evaluation, **labels: object) -> Job:
        return cls(run, tuple(evaluations), freeze(labels))


@dataclass(frozen=True)
class Parameters:
    """What every notebook's parameters cell holds; each experiment adds its own. The defaults are the profile `small`."""
    profile: str = "small"          # model, recipe and corpus: a file of profiles/
    corpus: str = ""                # folder of a person's own text; empty: the offline corpus
    seeds: tuple[int, ...] = (42,)  # initialisation and order of the data; one run each
    tokens: int = 0                 # training tokens a run; 0: the profile's


class Experiment:
    """Base of the experiments; a file of this folder that defines one is found by its `name`, the notebook's file name."""
    name: ClassVar[str]
    title: ClassVar[str]
    question: ClassVar[str]
    Parameters: ClassVar[type[Parameters]] = Parameters
    alone: ClassVar[bool] = False           # its notebook measures time: it is executed when nothing trains any more

    def plan(self, parameters: Parameters, profile: Profile) -> list[Job]:
        """The runs that the experiment needs, each once, in the order in which they decide its question."""
        raise NotImplementedError(f"{type(self).__name__} has no plan")

    def table(self, jobs: Sequence[Job], database: Database) -> pd.DataFrame:
        """The tidy table of finished jobs: the columns of `COLUMNS`, one row a measured value."""
        return tidy(self.name, jobs, database)


# Every table of every experiment has these columns, in this order; empty where a column does not apply.
COLUMNS: dict[str, str] = {
    "experiment": "name of the notebook",
    "series": "what the figures call the model, for instance 'Fibonacci, linear ramp'",
    "role": "model (a document's proposal), control (equal edges or another control), baseline (dense) or neighbour (literature)",
    "pattern": "pattern name (lib/patterns)",
    "family": "pattern family",
    "base": "base of the rungs: fibonacci, pow2, matched_pow2",
    "schedule": "schedule of alpha over layers",
    "window": "W of the proposal: distances 0 to W, W + 1 keys",
    "setting": "other settings of the series that tell rows apart, for instance sigma=0.8 budget=32",
    "seed": "seed of initialisation and data order",
    "train_length": "tokens of a training window",
    "train_tokens": "training tokens of the run",
    "parameters": "model parameters",
    "pairs": "attended (query, key) pairs a sequence of train_length tokens, summed over layers, mean over heads",
    "keys_per_query": "pairs / (layers x train_length)",
    "measure": "what the value is: perplexity, nll (nats), accuracy, chance, alpha, train_loss, ...",
    "split": "held-out domain or task",
    "variant": "how the model was changed for the evaluation, for instance rope=yarn",
    "length": "evaluation length in tokens",
    "position": "first position of the bin (position_nll), in tokens",
    "layer": "layer, from 0",
    "step": "optimiser step of the measurement; empty at the end of training",
    "value": "the value, in the unit of the measure",
    "run": "fingerprint of the run (python -m suite.run.browse show <run>)",
    "run_seconds": "wall time of the run's training, seconds",
    "run_tokens_per_s": "training throughput, tokens a second, one CPU thread unless stated",
    "run_peak_memory_mib": "peak resident memory of the training process, MiB",
}


def tidy(experiment: str, jobs: Sequence[Job], database: Database) -> pd.DataFrame:
    """One row a metric of each job, described by its labels and its run; sorted, so that two executions agree."""
    from lib.patterns import build
    frames, counted = [], {}
    for job in jobs:
        run = job.run
        asked = run.pattern, run.model.layers, run.model.heads, run.train.length
        if asked not in counted:                             # drawn graphs take seconds, and seeds share them
            pattern = build(run.pattern.name, layers=run.model.layers, heads=run.model.heads, **dict(run.pattern.parameters))
            counted[asked] = pattern.family, pattern.pairs(run.train.length)
        family, pairs = counted[asked]
        described = {"experiment": experiment, "pattern": run.pattern.name, "family": family, "seed": run.train.seed,
                     "train_length": run.train.length, "train_tokens": run.train.tokens, "pairs": pairs,
                     "keys_per_query": pairs / (run.model.layers * run.train.length), **dict(job.labels)}
        frames.append(database.metrics(job).assign(**described))
    table = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    keys = [c for c in COLUMNS if c not in ("value", "run_seconds", "run_tokens_per_s", "run_peak_memory_mib")]
    return table.reindex(columns=list(COLUMNS)).sort_values(keys, kind="stable", ignore_index=True)
