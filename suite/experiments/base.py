"""An experiment: from parameters to the runs it needs, and from finished runs to one tidy table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd
import yaml

from lib.config import Evaluation, PatternSpec, RunConfig
from suite.settings.parameters import Parameters

if TYPE_CHECKING:
    from suite.run.database import Database
    from suite.settings.profiles import Profile

# How `Labels.setting` writes the labels that tell models of one series apart, in this order.
SETTING = {"task": "{}", "depth": "depth {}", "distance": "distance {}", "sigma": "sigma={:g}", "budget": "B={}",
           "word": "{}", "width": "d_model {}", "theta_lr": "theta rate x{:g}", "other_length": "T={}",
           "share": "{:g} times the tokens"}
OF_TEXT = ("sigma", "budget", "word")           # models of a task are told apart by their series instead


@dataclass(frozen=True)
class Labels:
    """What an experiment calls a job: columns of its table (`COLUMNS`). None: the label does not apply."""
    series: str = ""
    role: str = ""
    base: str | None = None
    schedule: str | None = None
    window: int | None = None
    sigma: float | None = None
    budget: int | None = None
    draws: int | None = None
    word: str | None = None
    width: int | None = None
    theta_lr: float | None = None
    start: str | None = None
    other_length: int | None = None
    share: float | None = None
    task: str | None = None
    depth: int | None = None
    distance: int | None = None
    equal_pairs: float | None = None

    @property
    def told(self) -> dict[str, Any]:
        """The labels that tell a model from others of its series and window, without the usual rate of theta."""
        values = {name: getattr(self, name) for name in SETTING if self.task is None or name not in OF_TEXT}
        usual = {"theta_lr": 1.0, "word": self.word if self.word and self.word in self.series else None}
        return {name: value for name, value in values.items() if value is not None and value != usual.get(name)}

    @property
    def setting(self) -> str:
        """`told` as text, for names in tables and figures."""
        return ", ".join(SETTING[name].format(value) for name, value in self.told.items())

    @property
    def columns(self) -> dict[str, Any]:
        """The labels that apply, and `setting`, as columns of a table."""
        return {"setting": self.setting, **{name: value for name, value in vars(self).items() if value is not None}}


@dataclass(frozen=True)
class Job:
    """A run, what is to be measured of it, and what this experiment's table calls it."""
    run: RunConfig
    evaluations: tuple[Evaluation, ...] = ()
    labels: Labels = Labels()

    @classmethod
    def of(cls, run: RunConfig, *evaluations: Evaluation, **labels: Any) -> "Job":
        return cls(run, tuple(evaluations), Labels(**labels))


def merged(jobs: Iterable[Job]) -> list[Job]:
    """Equal runs as one job with the evaluations of all, in the order of their first appearance."""
    by_run: dict[RunConfig, Job] = {}
    for job in jobs:
        known = by_run.get(job.run, job)
        by_run[job.run] = replace(known, evaluations=tuple(dict.fromkeys((*known.evaluations, *job.evaluations))))
    return list(by_run.values())


class Experiment:
    """Base of the experiments; a file of this folder that defines one is found by its `name`, the notebook's."""
    name: ClassVar[str]
    alone: ClassVar[bool] = False           # its notebook measures time: it is executed when nothing trains any more

    def plan(self, parameters: Parameters, profile: "Profile") -> list[Job]:
        """The runs that the experiment needs, each once, in the order in which they decide its question."""
        raise NotImplementedError


# Every table of every experiment has these columns, in this order, with their meanings.
COLUMNS: dict[str, str] = yaml.safe_load(Path(__file__).with_name("columns.yaml").read_text("utf-8"))
WHOLE = ("budget", "draws", "width", "other_length", "depth", "distance")


def tidy(experiment: str, jobs: Sequence[Job], database: "Database") -> pd.DataFrame:
    """`COLUMNS`: a row a metric of each job, described by its labels and its run; sorted, so two executions agree."""
    from lib.patterns import build

    @cache                                                  # drawn graphs take seconds, and seeds share them
    def counted(spec: PatternSpec, layers: int, heads: int, length: int) -> tuple[str, float]:
        pattern = build(spec.name, layers=layers, heads=heads, **dict(spec.parameters))
        return pattern.family, pattern.pairs(length)
    frames, names = [], list(COLUMNS)
    for job in jobs:
        run = job.run
        family, pairs = counted(run.pattern, run.model.layers, run.model.heads, run.train.length)
        described = {"experiment": experiment, "pattern": run.pattern.name, "family": family, "seed": run.train.seed,
                     "train_length": run.train.length, "train_tokens": run.train.tokens, "pairs": pairs,
                     "keys_per_query": pairs / (run.model.layers * run.train.length), **job.labels.columns}
        frames.append(database.metrics(job).assign(**described))
    table = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    table = table.reindex(columns=names).astype(dict.fromkeys(WHOLE, "Int64"))
    return table.sort_values([*names[:names.index("value")], "run"], kind="stable", ignore_index=True)
