"""Comparisons that notebooks and the ledger both make, each in one function of a `Study` (`suite.study.frames`).

A difference of losses alone is `Study.difference`; here stands what needs more: the recommended sigma, equal compute,
context beyond the training length, alphas, accuracies, and the local window at other tokens and lengths.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from lib.config import TrainConfig
from lib.patterns.learned import alpha_of
from suite.experiments.base import Job
from suite.plan.cost import training_flops
from suite.study.frames import Model, NotTested, Numbers, Study, as_table, at_end, row
from suite.study.stats import (Interval, Noise, Trend, Windows, accuracy, accuracy_difference, fit, linearised,
                               mean_interval, minus)

LOCAL = "Local window, equal edges"
RECOMMENDED = (0.8, 0.85)                       # the power-law document's range of sigma
Pair = tuple[Model, Model]                      # a model and its local window


def each_run(number: Callable[[Job], float]) -> Numbers:
    """A number that each run has one of."""
    return lambda model, seeds: [np.array([[number(model.by_seed[seed])] for seed in seeds])]


def recommended(study: Study, budget: int | None = None) -> list[Model]:
    """The power laws at the document's range of sigma, at one budget or all; else those nearest to its middle."""
    models = study.find("Power law")
    sigmas = {model.labels.sigma for model in models}
    inside = {s for s in sigmas if RECOMMENDED[0] <= s <= RECOMMENDED[1]}
    chosen = inside or {min(sigmas, key=lambda s: abs(s - sum(RECOMMENDED) / 2))}
    return [m for m in models if m.labels.sigma in chosen and budget in (None, m.labels.budget)]


# Equal compute

def compute_share(model: Model, other: Model) -> float:
    """Operations of one training window of `model` over those of `other`."""
    return training_flops(model.run, model.pairs) / training_flops(other.run, other.pairs)


def at_equal_compute(study: Study, model: Model, other: Model) -> Interval:
    """Loss of `model` minus that of `other` stopped, on its own curve of training, where it has computed as much."""
    share = compute_share(model, other)
    if share > 1:
        raise NotTested(f"{model.name} computes more than {other.name}")

    def left(job: Job) -> float:
        """What the loss still falls by after this share of the steps; training loss where no held-out one is logged."""
        curve = next(own for own in (study.curve(job, name) for name in ("nll", "train_loss")) if len(own) > 1)
        steps = curve.index.to_numpy(float)
        return max(0.0, float(np.interp(share * steps[-1], steps, curve.to_numpy(float))) - float(curve.iloc[-1]))

    def stopped(own: Model, seeds: Sequence[int]) -> Windows:
        falls = np.array([left(own.by_seed[seed]) for seed in seeds])
        return [domain + falls[:, None] for domain in study.windows(own, seeds=seeds)]
    return study.compared(model, other, study.windows, stopped)


# Beyond the training length, and by position

def context_gain(study: Study, model: Model, control: Model, length: int, variant: str = "") -> Interval:
    """Loss from position T (the training length) on minus that in the half window before, at `length` tokens: of
    `model` minus that of a control which sees no context beyond T, so that what the text itself does there cancels."""
    T = model.length

    def gain(own: Model, seeds: Sequence[int], variant: str = "") -> Windows:
        return minus(*(study.windows(own, length, variant, positions, seeds)
                       for positions in ((T, length), (T // 2, T))))
    return study.compared(model, control, partial(gain, variant=variant), gain)


# Learned alpha

def alphas(study: Study, job: Job) -> list[float]:
    """Alpha of each layer at the end of training."""
    rows = at_end(study.metrics(job), "alpha").sort_values("layer")
    if rows.empty:
        raise NotTested(f"{job.labels.series} is not asked for its alphas")
    return rows["value"].tolist()


def alpha_travel(study: Study, model: Model) -> Interval:
    """How far training has moved alpha from its start: the layer that moved most, of each run."""
    starts = [alpha_of(theta) for theta in model.pattern.thetas]
    return study.measured(model, each_run(lambda job: max(
        abs(alpha - start) for alpha, start in zip(alphas(study, job), starts, strict=True))))


def landscape(study: Study, model: Model) -> tuple[np.ndarray, list[str]]:
    """Change of the loss `[S, L, A, windows]` when one layer's alpha has another value, and the A values as text."""
    rows = at_end(study.metrics(model.jobs[0]), "alpha_nll_change")
    return study.arrays(model.jobs, "alpha_landscape", "change"), sorted(set(rows["variant"]))


# Accuracy

def answers(study: Study, jobs: Sequence[Job], task: str) -> np.ndarray:
    """Whether a language model answers each item of a task of the battery, `[S, items]`; of a model that is trained on
    tasks the share of right answers of each sequence that asks for some, `[S, N]`: those of one depend on one another.
    """
    if jobs[0].run.data.source == "text":
        return study.arrays(jobs, "battery", f"correct.{task}")
    both = [[study.array(job, "task", f"{kind}.{task}.{job.run.train.length}") for kind in ("correct", "count")]
            for job in jobs]
    return np.stack([right[count > 0] / count[count > 0] for right, count in both])


def task_difference(study: Study, model: Model, other: Model, task: str) -> Interval:
    """Accuracy of `model` minus that of `other` at a task, paired."""
    both = zip(*study.paired(model, other), strict=True)
    return accuracy_difference(*(answers(study, jobs, task) for jobs in both),
                               answer_noise(study, model, task, paired=True))


def task_accuracy(study: Study, model: Model, task: str) -> Interval:
    return accuracy(answers(study, model.jobs, task), answer_noise(study, model, task, paired=False))


def answer_noise(study: Study, model: Model, task: str, paired: bool) -> Noise | None:
    return study.noise(model, lambda own, seeds: [answers(study, [own.by_seed[seed] for seed in seeds], task)], paired)


def task_table(study: Study) -> pd.DataFrame:
    """Accuracy of the models trained on a task (`group`), with its interval over sequences (and seeds), and chance."""
    rows = []
    for model in [model for model in study.models if not model.text and model.asked("task")]:
        task, window = model.labels.task, f", W={model.labels.window}" if model.labels.window else ""
        rows.append(row(task_accuracy(study, model, task), name=model.labels.series + window, group=task,
                        chance=study.value(model.jobs[0], "chance", split=task, length=model.length)))
    return pd.DataFrame(rows).set_index("name") if rows else pd.DataFrame()


# The local window of equal pairs, at several numbers of tokens and several lengths

def beside_local(study: Study, series: str, length: int | None = None) -> list[Pair]:
    """The language models of a series (of one length or all), each beside the local window of as many tokens."""
    def recipe(model: Model) -> TrainConfig:
        return replace(model.run.train, seed=0)
    models = [model for model in study.language_models if model.labels.width is None]
    local = {recipe(model): model for model in models if model.labels.series == LOCAL}
    pairs = [(m, local[recipe(m)]) for m in models
             if m.labels.series == series and length in (None, m.length) and recipe(m) in local]
    if not pairs:
        raise study.untrained(f"{series} beside a local window")
    return pairs


def tokens_of(pair: Pair) -> int:
    return pair[0].run.train.tokens


def whole(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs that are trained on all of the profile's tokens."""
    return [pair for pair in pairs if pair[0].labels.share is None]


def token_points(study: Study, series: str, length: int) -> tuple[pd.DataFrame, list[Windows]]:
    """One row a pair of runs, by tokens and seed: the difference with its interval; and the windows of each pair."""
    rows, windows = [], []
    for pair in sorted(beside_local(study, series, length), key=tokens_of):
        for seed in study.shared_seeds(*pair):
            windows.append([domain[0] for domain in study.differences(*pair, seeds=[seed])])
            rows.append(row(mean_interval(windows[-1]), tokens=tokens_of(pair), seed=seed))
    return pd.DataFrame(rows), windows


def token_trend(study: Study, series: str, length: int) -> Trend | None:
    """The line through `token_points` over log2 of the tokens; None where the runs are too few."""
    points, windows = token_points(study, series, length)
    return fit(points["tokens"], points["estimate"], windows)


def at_share(study: Study, series: str, share: float) -> dict[int, Pair]:
    """Pairs by training length, of the runs whose tokens are nearest to this share of a whole run's."""
    pairs = beside_local(study, series)
    goal = share * max(map(tokens_of, whole(pairs)))
    nearest = sorted(pairs, key=lambda pair: abs(tokens_of(pair) - goal))
    return {length: next(pair for pair in nearest if pair[0].length == length)
            for length in sorted({model.length for model, _ in pairs})}


def by_length(study: Study, series: str, share: float) -> pd.DataFrame:
    """Loss of a series minus that of the local window, by training length, at a share of a whole run's tokens."""
    pairs = at_share(study, series, share)
    return as_table({length: study.difference(*pair) for length, pair in pairs.items()}, "length")


# Tokens whose context stood before

def with_recurrence(study: Study, series: str, length: int) -> Pair:
    """The whole runs of a series and of its local window that are asked for losses by recurrence distance."""
    for pair in whole(beside_local(study, series, length)):
        if pair[0].asked("recurrence"):
            return pair
    raise NotTested(f"{series} is not asked for recurrence")


def recurrence_edges(study: Study, model: Model) -> tuple[int, ...]:
    """First distances of the bins of recurrence distance; after the last comes a bin of contexts that are new."""
    return tuple(dict(study.evaluation(model.jobs[0], "recurrence").parameters)["edges"])


def recurrence_difference(study: Study, pair: Pair, bins: Sequence[int], kind: str = "recurrence") -> Interval:
    """Loss a token of the pair's model minus that of the local window in these bins together, all text; kind: one of
    `suite.evals.recurrence.KINDS`."""
    def summed(job: Job, name: str) -> np.ndarray:
        return np.concatenate([study.array(job, "recurrence", f"{name}.{domain}")[:, list(bins)].sum(axis=1)
                               for domain in study.database.corpus.domains])

    def losses(model: Model, seeds: Sequence[int]) -> Windows:
        jobs = [model.by_seed[seed] for seed in seeds]
        return [linearised(np.stack([summed(job, kind) for job in jobs]), summed(jobs[0], f"{kind}_count"))]
    return study.compared(*pair, losses)


def reaches(model: Model) -> dict[str, int]:
    """How far one layer of a local window and its whole stack reach, tokens."""
    widths = [max(heads) for heads in model.pattern.widths]
    return {"window": max(widths), "stack": sum(widths)}


# Planted copies

def copy_models(study: Study, series: str) -> dict[int, Model]:
    """The models of a series that are trained on planted copies, by distance."""
    return {m.labels.distance: m for m in study.models
            if m.labels.task == "copying" and m.labels.series == series and m.labels.distance is not None}


def copy_gains(study: Study, series: str, other: str = LOCAL) -> dict[int, Interval]:
    """Accuracy of a series minus that of the other, by distance of the planted copy."""
    own, others = copy_models(study, series), copy_models(study, other)
    return {distance: task_difference(study, own[distance], others[distance], "copying")
            for distance in sorted(set(own) & set(others))}
