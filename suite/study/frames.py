"""One experiment's jobs and results: its models by typed labels, their losses by window, and what compares them.

Figures, sentences and the ledger of claims all ask a `Study`, so that a number is computed in one place. Comparisons
that need more than losses are in `suite.study.comparisons`.
"""

import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pandas as pd

from lib.config import DataConfig, Evaluation, RunConfig
from lib.data import domains_of
from lib.errors import SuiteError, one_of, require
from lib.patterns import Pattern, build
from suite.experiments import experiment
from suite.experiments.base import Job, Labels, Parameters, merged, tidy
from suite.run.database import Database
from suite.run.engine import apart_from_seed
from suite.run.evidence import there
from suite.settings.parameters import notebook_names
from suite.settings.profiles import Profile
from suite.study.stats import ENOUGH_SEEDS, Interval, Noise, Windows, mean_interval, minus

KEPT = 4096                                     # arrays held at once, of some tens of KiB each, and tables of metrics
LAST_WORD = "Christoffel, last word"            # the series of the word whose pairs the controls have
PAPERS = "the paper's sparse models"            # all series of the Fibonacci paper but dense


class NotTested(SuiteError):
    """The profile does not train, or has not finished, what is asked for; the message says what."""


@dataclass(frozen=True)
class Model:
    """Jobs that differ in their seed only, and the name that tables and figures give them.

    `labels` and `run` are the first seed's; `length` is the training length in tokens; `text` says whether it is a
    language model, and not one of a synthetic task.
    """
    name: str
    jobs: tuple[Job, ...]

    @property
    def labels(self) -> Labels:
        return self.jobs[0].labels

    @property
    def run(self) -> RunConfig:
        return self.jobs[0].run

    @property
    def text(self) -> bool:
        return self.run.data.source == "text"

    @property
    def length(self) -> int:
        return self.run.train.length

    @property
    def by_seed(self) -> dict[int, Job]:
        return {job.run.train.seed: job for job in self.jobs}

    @property
    def pattern(self) -> Pattern:
        return stack_of(self.run)

    @property
    def pairs(self) -> float:
        """Attended pairs of a training window, summed over layers."""
        return self.pattern.pairs(self.length)

    def asked(self, evaluation: str) -> bool:
        """Whether it has an evaluation of this name."""
        return any(own.name == evaluation for own in self.jobs[0].evaluations)


Numbers = Callable[..., Windows]     # `of(model, seeds=seeds)` of a model's runs of these seeds: `[S, N]` a domain


class Study:
    """The jobs of one experiment and the database of their results. `name` is the notebook's."""

    def __init__(self, jobs: Sequence[Job], database: Database, name: str = "", parameters: Parameters | None = None,
                 profile: Profile | None = None) -> None:
        self.jobs, self.database = list(jobs), database
        self.name, self.parameters, self.profile = name, parameters, profile

    # Models

    @cached_property
    def models(self) -> list[Model]:
        """All models in the order of the plan, each named by its series and what tells it from others of the series;
        those of synthetic tasks too, one for each task and its parameters."""
        windows: dict[str, set[int | None]] = {}
        for job in self.jobs:
            windows.setdefault(job.labels.series, set()).add(job.labels.window)
        groups: dict[tuple[str, DataConfig], list[Job]] = {}
        for job in self.jobs:
            labels = job.labels
            window = f"W={-1 if labels.window is None else labels.window}" if len(windows[labels.series]) > 1 else ""
            name = ", ".join(filter(None, (labels.series, window, labels.setting)))
            groups.setdefault((name, job.run.data), []).append(job)
        return [Model(name, tuple(jobs)) for (name, _), jobs in groups.items()]

    @property
    def language_models(self) -> list[Model]:
        return [model for model in self.models if model.text]

    def __getitem__(self, name: str) -> Model:
        """The language model that tables and figures call `name`; of a task's models the first of that name."""
        by_name = {model.name: model for model in reversed(sorted(self.models, key=lambda model: not model.text))}
        return by_name[one_of(name, by_name, "model")]

    def find(self, series: str = "", *, text: bool = True, **labels: Any) -> list[Model]:
        """The models with these labels (fields of `Labels`; None asks for none), of one series or of all; of tasks with
        `text=False`. Raises `NotTested` where there is none. Where models of a series differ in labels that are not
        asked for, those without any are meant; all, if none is without."""
        labels = {name: value for name, value in labels.items() if value is not None}
        rows = [model for model in self.models if model.text == text and self._is(model, series)
                and all(getattr(model.labels, name) == value for name, value in labels.items())]
        if set(labels) <= {"window"}:
            rows = [model for model in rows if not model.labels.told] or rows
        if not rows:
            raise self.untrained(", ".join([series, *(f"{name} = {value}" for name, value in labels.items())]))
        return rows

    def model(self, series: str, *, text: bool = True, **labels: Any) -> Model:
        """The one model that `find` gives; `SuiteError` if there are several."""
        rows = self.find(series, text=text, **labels)
        require(len(rows) == 1, "labels", [model.name for model in rows], "those of one model")
        return rows[0]

    def has(self, *series: str) -> bool:
        """Whether a language model of each of these series is trained."""
        return all(any(self._is(model, name) for model in self.language_models) for name in series)

    def _is(self, model: Model, series: str) -> bool:
        labels = model.labels
        if series == PAPERS:
            return (labels.base in ("fibonacci", "pow2") and not labels.told
                    and labels.schedule in ("fixed", "linear", "coprime", "learned"))
        name = f"Christoffel {self.parameters.words[-1]}" if series == LAST_WORD else series
        return name == "" or labels.series in (name, f"{name}, equal edges")

    def partner(self, model: Model, other: str) -> Model:
        """The model of the series `other` that belongs beside `model`: of the same data and window, and with its labels
        as far as the series has them. Raises `NotTested` where there is none, `SuiteError` where there are several."""
        beside = [m for m in self.models if self._is(m, other) and m.run.data == model.run.data
                  and (None in (m.labels.window, model.labels.window) or m.labels.window == model.labels.window)
                  and m.labels.told.items() <= model.labels.told.items()]
        what = f"{other} beside {model.name}"
        if not beside:
            raise self.untrained(what)
        closest = max(len(m.labels.told) for m in beside)
        nearest = [m for m in beside if len(m.labels.told) == closest]
        require(len(nearest) == 1, what, [m.name for m in nearest], "one model; turn the comparison")
        return nearest[0]

    def pairs(self, series: Iterable[str], others: Iterable[str], *, text: bool = True,
              **labels: Any) -> list[tuple[Model, Model]]:
        """Each model of `series` beside its partner of each of `others`; one without a window beside all of theirs."""
        found = []
        for name, other in product(series, others):
            models = self.find(name, text=text, **labels)
            windows = any(self._is(m, other) and m.labels.window is not None for m in self.models)
            if models[0].labels.window is None and windows:
                found += [(self.partner(theirs, name), theirs) for theirs in self.find(other, text=text, **labels)]
            else:
                found += [(model, self.partner(model, other)) for model in models]
        return found

    def untrained(self, what: str) -> NotTested:
        profile = f"profile {self.profile.name} does not train" if self.profile else "the study does not have"
        return NotTested(f"{profile} {what}{f' in notebook {self.name}' if self.name else ''}")

    @property
    def patterns(self) -> dict[str, Pattern]:
        """The pattern of each language model, by its name."""
        return {model.name: model.pattern for model in self.language_models}

    def reference(self, window: int | None = None) -> Model:
        """What models are compared with: the local window of equal edges (of the proposal with W = `window`), or dense
        where none was trained."""
        local = "Local window, equal edges"
        return self.find(local, window=window)[0] if self.has(local) else self.find("Dense")[0]

    @property
    def plan(self) -> pd.DataFrame:
        """One row a run: its attended pairs, and those that a control of equal edges should have (`equal to`)."""
        return pd.DataFrame([
            {"model": model.name, "role": model.labels.role, "pattern": model.run.pattern.name, "seed": seed,
             "pairs": round(model.pairs), "equal to": model.labels.equal_pairs, "tokens": job.run.train.tokens,
             "keys a query": round(model.pairs / (model.run.model.layers * model.length), 2)}
            for model in self.models for seed, job in model.by_seed.items()]).astype({"equal to": float})

    # Results

    @cached_property
    def table(self) -> pd.DataFrame:
        """The tidy table of all jobs (`COLUMNS`), as it is written to results/<notebook>.csv."""
        return tidy(self.name, self.jobs, self.database)

    @cached_property
    def named(self) -> pd.DataFrame:
        """`table` with the models' names as a column `name`."""
        names = {self.database.fingerprint(job.run): model.name for model in self.models for job in model.jobs}
        return self.table.assign(name=self.table["run"].map(names))

    def rows(self, measure: str, **where: Any) -> pd.DataFrame:
        """The rows of `named` with this measure at the end of training whose columns equal `where`; never none."""
        rows = at_end(self.named, measure, **where)
        if rows.empty:
            raise SuiteError(f"no {measure} with {where} in the table of {self.name}")
        return rows

    def means(self, index: str, measure: str, **where: Any) -> pd.DataFrame:
        """A measure at the end of training, mean over domains and seeds, by the column `index` and the name."""
        return self.rows(measure, **where).pivot_table(index=index, columns="name", values="value")

    def losses(self, length: int = 0) -> pd.Series:
        """Nats a token by name, lowest first: mean over domains and seeds, at the training length or another."""
        rows = self.rows("nll", variant="")
        rows = rows[rows["length"] == (length or rows["train_length"])]
        return rows.groupby("name")["value"].mean().sort_values()

    def summary(self, **where: Any) -> pd.DataFrame:
        """One row a model, best first: attended pairs, perplexity by domain (`on docs`: no name of a domain is one of
        the other columns), and `mean` (exp of the mean loss over domains), all at the training length. where: columns
        and their values that a model must have."""
        rows = self.rows("nll", variant="", **where)
        rows = rows[rows["length"] == rows["train_length"]]
        loss = rows.groupby(["name", "split"])["value"].mean().unstack()
        how = {"role": "first", "pairs": "mean", "keys_per_query": "mean", "parameters": "first"}
        table = rows.groupby("name").agg(how).join(np.exp(loss).add_prefix("on "))
        return table.assign(mean=np.exp(loss.mean(axis=1))).sort_values("mean")

    @cached_property
    def metrics(self) -> Callable[[Job], pd.DataFrame]:
        """The metrics of a job, read once while they are in use."""
        return lru_cache(KEPT)(self.database.metrics)

    @cached_property
    def _array(self) -> Callable[[Job, Evaluation, str], np.ndarray]:
        return lru_cache(KEPT)(self.database.array)

    def value(self, job: Job, measure: str, **where: Any) -> float:
        """The one value of a measure at the end of training whose columns equal `where`."""
        rows = at_end(self.metrics(job), measure, **where)
        if len(rows) != 1:
            raise SuiteError(f"{len(rows)} values of {measure} with {where} in {job.run.pattern.name}, not one")
        return float(rows["value"].iloc[0])

    def curve(self, job: Job, measure: str) -> pd.Series:
        """A measure of one run in training, mean over domains, by optimiser step."""
        rows = self.metrics(job)
        return rows[(rows["measure"] == measure) & rows["step"].notna()].groupby("step")["value"].mean()

    def curves(self, *models: Model, measure: str = "nll") -> pd.DataFrame:
        """A measure in training (`nll` or `train_loss`), mean over domains and seeds, by optimiser step and name."""
        names, rows = [model.name for model in models], self.named
        rows = rows[(rows["measure"] == measure) & rows["step"].notna() & rows["name"].isin(names)]
        return rows.groupby(["step", "name"])["value"].mean().unstack().reindex(columns=names)

    def array(self, job: Job, evaluation: str, name: str) -> np.ndarray:
        """An array of a job's evaluation, for instance `array(job, "battery", "correct.lambada")`."""
        return self._array(job, self.evaluation(job, evaluation), name)

    def arrays(self, jobs: Iterable[Job], evaluation: str, name: str) -> np.ndarray:
        """An array of each job's evaluation, stacked: `[S, ...]`."""
        return np.stack([self.array(job, evaluation, name) for job in jobs])

    @staticmethod
    def evaluation(job: Job, name: str) -> Evaluation:
        for own in job.evaluations:
            if own.name == name:
                return own
        raise NotTested(f"{job.labels.series} is not asked for {name}")

    # Held-out losses

    def windows(self, model: Model, length: int = 0, variant: str = "", positions: tuple[int, int] | None = None,
                seeds: Sequence[int] = (), domains: Sequence[str] = ()) -> Windows:
        """Mean loss of each window (nats a token), one array `[S, N]` a domain: N windows of each of S seeds.

        length: evaluation length in tokens, the training length by default. positions: only tokens from the first to
        before the second, which must be edges of bins. seeds, domains: all of them by default.
        """
        jobs = [model.by_seed[seed] for seed in seeds or sorted(model.by_seed)]
        domains = domains or domains_of(model.run.data, self.database.corpus)
        return [np.stack([self._losses(job, domain, length or model.length, variant, positions) for job in jobs])
                for domain in domains]

    def _losses(self, job: Job, domain: str, length: int, variant: str,
                positions: tuple[int, int] | None) -> np.ndarray:
        evaluation = self._perplexity(job, length, variant)
        edges, sums, counts = (self._array(job, evaluation, name) for name in
                               (f"edges.{length}", f"nll.{domain}.{length}", f"count.{domain}.{length}"))
        if not set(positions or ()) <= set(edges):
            raise SuiteError(f"positions = {positions!r} is not valid: two of the edges {edges.tolist()}")
        inside = slice(*np.searchsorted(edges, positions or (0, length)))
        return sums[:, inside].sum(axis=1) / counts[:, inside].sum(axis=1)

    def _perplexity(self, job: Job, length: int, variant: str) -> Evaluation:
        for evaluation in job.evaluations:
            own = dict(evaluation.parameters)
            if evaluation.name == "perplexity" and length in own["lengths"] and own.get("variant", "") == variant:
                return evaluation
        how = f" with {variant}" if variant else ""
        whose = f"profile {self.profile.name} does not evaluate" if self.profile else "there is no evaluation of"
        raise NotTested(f"{whose} {job.labels.series} at {length} tokens{how}")

    def shared_seeds(self, *models: Model) -> tuple[int, ...]:
        """The seeds that all of these models were trained with: the same start and order of the data."""
        seeds = {model.name: sorted(model.by_seed) for model in models}
        shared = set.intersection(*map(set, seeds.values()))
        require(bool(shared), "seeds", seeds, "at least one seed in common")
        return tuple(sorted(shared))

    def paired(self, model: Model, other: Model) -> list[tuple[Job, Job]]:
        """The jobs of two models by the seeds that both have."""
        return [(model.by_seed[seed], other.by_seed[seed]) for seed in self.shared_seeds(model, other)]

    # Numbers of models, and their noise

    @cached_property
    def replicated(self) -> list[Model]:
        """The models with enough seeds to tell how much a number changes with its seed, of all notebooks."""
        every = [self.jobs] if self.profile is None else [plan_of(self.profile, name) for name in notebook_names()]
        groups: dict[RunConfig, list[Job]] = {}
        for job in merged(itertools.chain(*every)):
            groups.setdefault(apart_from_seed(job.run), []).append(job)
        models = [Model(group[0].labels.series, tuple(group)) for group in groups.values()]
        return [model for model in models if len(model.by_seed) >= ENOUGH_SEEDS]

    def noise(self, model: Model, of: Numbers | None = None, paired: bool = True) -> Noise | None:
        """How much `of` (by default the loss) of a pair of runs of one seed, or of one run, changes with the seed:
        pooled over the replicated models of the same recipe, size and data that have this number."""
        of = of or self.windows

        def recipe(own: Model) -> tuple[Any, ...]:
            return own.run.model, own.run.data, replace(own.run.train, seed=0, theta_lr=1.0)
        alike = [own for own in self.replicated if recipe(own) == recipe(model)]
        seeds = sorted(set.intersection(*(set(own.by_seed) for own in alike))) if alike else []
        numbers = []
        for own in alike:
            with suppress(SuiteError):                  # not asked for it, or not trained yet
                numbers.append(np.mean([np.mean(stratum, axis=1) for stratum in of(own, seeds=seeds)], axis=0))
        return Noise.pooled(numbers, paired)

    def compared(self, model: Model, other: Model, of: Numbers, of_other: Numbers | None = None) -> Interval:
        """`of(model, seeds=seeds)` minus the same of `other` (or `of_other`), paired by seed. of: windows `[S, N]` by
        domain, or one number a run, `[S, 1]`."""
        seeds = self.shared_seeds(model, other)
        rows = minus(of(model, seeds=seeds), (of_other or of)(other, seeds=seeds))
        return mean_interval(rows, self.noise(model, of, True) if len(seeds) < ENOUGH_SEEDS else None)

    def measured(self, model: Model, of: Numbers) -> Interval:
        """`of(model, seeds=seeds)`, as in `compared`, of one model."""
        noise = self.noise(model, of, False) if len(model.by_seed) < ENOUGH_SEEDS else None
        return mean_interval(of(model, seeds=sorted(model.by_seed)), noise)

    def differences(self, model: Model, other: Model, *, variant: str = "", other_variant: str = "",
                    seeds: Sequence[int] = (), **where: Any) -> Windows:
        """Loss of `model` minus that of `other` in each window, of the seeds of both; `where` as in `windows`."""
        seeds = seeds or self.shared_seeds(model, other)
        return minus(self.windows(model, variant=variant, seeds=seeds, **where),
                     self.windows(other, variant=other_variant, seeds=seeds, **where))

    def difference(self, model: Model, other: Model, *, variant: str = "", other_variant: str = "",
                   **where: Any) -> Interval:
        """The mean of `differences`: nats a token, paired by window and by seed."""
        return self.compared(model, other, *(partial(self.windows, variant=own, **where)
                                             for own in (variant, other_variant)))

    def growths(self, model: Model, length: int, variant: str = "", seeds: Sequence[int] = ()) -> Windows:
        """Loss of each window of `length` tokens, with `variant`, minus that at the training length on these tokens."""
        require(length % model.length == 0, "length", length, f"a multiple of the training length {model.length}")
        return longer_minus(self.windows(model, length, variant, seeds=seeds), self.windows(model, seeds=seeds),
                            length // model.length)

    def growth(self, model: Model, length: int, variant: str = "") -> Interval:
        return self.measured(model, partial(self.growths, length=length, variant=variant))

    def against(self, reference: Model, models: Iterable[Model] | None = None, **where: Any) -> pd.DataFrame:
        """`difference` of language models (all of them by default) from `reference`, by name; lowest first."""
        chosen = self.language_models if models is None else models
        return as_table({model.name: self.difference(model, reference, **where)
                         for model in chosen if model != reference}).sort_values("estimate")

    def by_position(self, model: Model, other: Model) -> pd.DataFrame:
        """`difference` in each bin of positions in which evaluations keep losses; index: first position of the bin."""
        edges = self._array(model.jobs[0], self._perplexity(model.jobs[0], model.length, ""), f"edges.{model.length}")
        return as_table({a: self.difference(model, other, positions=(a, b))
                         for a, b in pairwise(edges.tolist())}, "position")


def plan_of(profile: Profile, notebook: str) -> list[Job]:
    """The jobs of a notebook at a profile; of one whose runs ship, those that do."""
    return there(profile.name, profile.corpus.folder, whole_plan(profile, notebook))


@lru_cache(maxsize=64)
def whole_plan(profile: Profile, notebook: str) -> list[Job]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="christoffel")        # the notebook says it
        return experiment(notebook).plan(profile.parameters(notebook), profile)


def at_end(rows: pd.DataFrame, measure: str, **where: Any) -> pd.DataFrame:
    """The rows of a measure at the end of training (`step` empty) whose columns equal `where`."""
    rows = rows[(rows["measure"] == measure) & rows["step"].isna()]
    for column, wanted in where.items():
        rows = rows[rows[column] == wanted]
    return rows


def longer_minus(long: Windows, short: Windows, ratio: int) -> Windows:
    """Losses of long windows minus those of the short ones that hold the same tokens, `ratio` a long one."""
    return [y - x[:, :y.shape[1] * ratio].reshape(len(x), -1, ratio).mean(axis=-1)
            for x, y in zip(short, long, strict=True)]


def row(interval: Interval, **more: Any) -> dict[str, Any]:
    """An interval as columns of a table."""
    return {"estimate": interval.estimate, "low": interval.low, "high": interval.high, "seeds": interval.seeds,
            "df": interval.df, **more}


def as_table(intervals: Mapping[Any, Interval], index: str = "name") -> pd.DataFrame:
    """One row an interval (`row`), by its name."""
    return pd.DataFrame(list(map(row, intervals.values())), pd.Index(list(intervals), name=index),
                        ["estimate", "low", "high", "seeds", "df"])


@lru_cache(maxsize=256)
def stack_of(run: RunConfig) -> Pattern:
    """The pattern of a run, at its model's depth."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="christoffel")        # the notebook says it
        return build(run.pattern.name, layers=run.model.layers, heads=run.model.heads, **dict(run.pattern.parameters))


def per_cent(loss: Interval) -> dict[str, Any]:
    """Our difference of a loss as a change of the perplexity in per cent: columns of a table beside published ones."""
    ours, low, high = (100 * float(np.expm1(end)) for end in (loss.estimate, loss.low, loss.high))
    return {"ours, %": ours, "low": low, "high": high, "seeds": loss.seeds}
