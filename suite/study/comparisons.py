"""Comparisons that notebooks and the ledger both make, each in one function of a `Study` (`suite.study.frames`).

A difference of losses alone is `Study.difference`; here stands what needs more: the recommended sigma, equal compute,
context beyond the training length, speed, alphas, accuracies, and the local window at other tokens and lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from lib.config import TrainConfig
from lib.patterns.learned import alpha_of
from suite.experiments.base import Job
from suite.plan.cost import training_flops
from suite.study.frames import (Model, NotTested, Study, Windows,
                                merged_windows, minus, row, stack_of)
from suite.study.stats import (ENOUGH_SEEDS, Interval, accuracy, accuracy_difference,
                               mean_interval, mean_over_runs,
                               paired_difference)
from suite.study.trend import Trend, fit, linearised

LOCAL = "Local window, equal edges"
RECOMMENDED = (0.8, 0.85)                       # the power-law document's range of sigma
Pair = tuple[Model, Model]                      # a model and its local window


def over_seeds(values: Sequence[float]) -> Interval | float:
    """A number that each run has one of: with Student's interval from three seeds on, else the plain mean."""
    return mean_over_runs(values) if len(values) >= ENOUGH_SEEDS else float(np.mean(values))


# The power law's sigma

def recommended(study: Study, budget: int | None = None) -> list[Model]:
    """The power laws at the document's range of sigma, at one budget or all; those nearest to its middle if none lies
    in it."""
    models = study.find("Power law")
    sigmas = {model.labels.sigma for model in models}
    inside = {s for s in sigmas if RECOMMENDED[0] <= s <= RECOMMENDED[1]}
    chosen = inside or {min(sigmas, key=lambda s: abs(s - sum(RECOMMENDED) / 2))}
    return [m for m in models if m.labels.sigma in chosen and budget in (None, m.labels.budget)]


# Equal compute

def compute_share(model: Model, other: Model) -> float:
    """Operations of one training window of `model` over those of `other`."""
    a, b = (training_flops(m.run, m.pairs) for m in (model, other))
    return a / b


def at_equal_compute(study: Study, model: Model, other: Model) -> Interval:
    """Loss of `model` minus that of `other` stopped where it has computed as much, as the curve of its own training
    tells.

    Raises `NotTested` where `model` computes more.
    """
    share = compute_share(model, other)
    if share > 1:
        raise NotTested(f"{model.name} computes more than {other.name}")
    left = np.array([loss_left(study, other.by_seed[seed], share) for seed in study.shared_seeds(model, other)])
    return mean_interval([own - left[:, None] for own in study.differences(model, other)])


def loss_left(study: Study, job: Job, share: float) -> float:
    """What a run's loss still falls by after this share of its steps (nats, at least 0): by its light held-out
    evaluations, or by its training loss where there are none in between."""
    rows = study.metrics(job)
    rows = rows[rows["step"].notna()]
    means = rows.groupby(["measure", "step"])["value"].mean()
    curves = [means[name].sort_index() for name in ("nll", "train_loss") if name in means]
    curve = next(own for own in curves if len(own) > 1)
    steps = curve.index.to_numpy(float)
    return max(0.0, float(np.interp(share * steps[-1], steps, curve.to_numpy(float))) - float(curve.iloc[-1]))


def descent(study: Study, model: Model, other: Model) -> Interval | float:
    """Training loss averaged over the steps, of `model` minus that of `other` (nats), run by run."""
    def mean_loss(job: Job) -> float:
        rows = study.metrics(job)
        return float(rows.loc[(rows["measure"] == "train_loss") & rows["step"].notna(), "value"].mean())
    return over_seeds([mean_loss(a) - mean_loss(b) for a, b in study.paired(model, other)])


def speed_ratio(study: Study, model: Model, other: Model) -> Interval | float:
    """Training time of `model` over that of `other` for the same tokens, as they were trained here."""
    def speed(job: Job) -> float:
        return float(study.metrics(job)["run_tokens_per_s"].iloc[0])
    return over_seeds([speed(b) / speed(a) for a, b in study.paired(model, other)])


# Beyond the training length, and by position

def context_gain(study: Study, model: Model, control: Model, length: int, variant: str = "",
                 control_variant: str = "") -> Interval:
    """Loss from position T (the training length) on minus that in the half window before, at `length` tokens: of
    `model` minus the same of a control to which context beyond T is invisible, so that what the text itself does there
    cancels."""
    parts = [study.differences(model, control, length=length, positions=positions, variant=variant,
                               other_variant=control_variant)
             for positions in ((model.length, length), (model.length // 2, model.length))]
    return mean_interval(minus(*parts))


def late_gain(study: Study, model: Model, other: Model, early: int, late: int) -> Interval:
    """What `model` gains over `other` from position `late` on minus what it gains before position `early` (nats a
    token)."""
    T = model.length
    if not early <= late < T:
        raise NotTested(f"a training window of {T} tokens has no positions from {late} on")
    gains = [study.differences(other, model, positions=where) for where in ((late, T), (0, early))]
    return mean_interval(minus(*gains))


# Learned alpha

def alphas(study: Study, job: Job) -> list[float]:
    """Alpha of each layer at the end of training."""
    rows = study.metrics(job)
    rows = rows[(rows["measure"] == "alpha") & rows["step"].isna()].sort_values("layer")
    if rows.empty:
        raise NotTested(f"{job.labels.series} is not asked for its alphas")
    return rows["value"].tolist()


def alpha_travel(study: Study, model: Model) -> Interval | float:
    """How far training has moved alpha from its start: the layer that moved most, of each run."""
    starts = [alpha_of(theta) for theta in model.pattern.thetas]
    return over_seeds([max(abs(alpha - start) for alpha, start in zip(alphas(study, job), starts, strict=True))
                       for job in model.jobs])


def landscape(study: Study, model: Model) -> tuple[np.ndarray, list[str]]:
    """Change of the loss `[S, L, A, windows]` when one layer's alpha has another value, and the A values as text."""
    changes = np.stack([study.array(job, "alpha_landscape", "change") for job in model.jobs])
    rows = study.metrics(model.jobs[0]).query("measure == 'alpha_nll_change'")
    return changes, sorted({str(value) for value in rows["variant"]})


# Influence of far tokens

def far_from(study: Study, model: Model) -> int:
    """First distance that counts as far: the experiment's, rounded up to the edge of a bin, a power of two."""
    far = int(dict(study.evaluation(model.jobs[0], "gradient_flow").parameters)["far"])
    return 1 << (far - 1).bit_length()


def far_influence(study: Study, model: Model, other: Model) -> Interval:
    """Share of the influence on a prediction that comes from far tokens: `model` minus `other`, on the same windows."""
    far = far_from(study, model)

    def share(job: Job) -> np.ndarray:
        bins, edges = (study.array(job, "gradient_flow", name) for name in ("influence", "edges"))  # (N, Q, bins)
        return (bins[..., edges[:-1] >= far].sum(axis=-1) / bins.sum(axis=-1)).mean(axis=1)
    a, b = (np.stack([share(job) for job in jobs]) for jobs in zip(*study.paired(model, other), strict=True))
    return paired_difference([a], [b])


# Accuracy

def items(study: Study, jobs: Sequence[Job], task: str) -> np.ndarray:
    """Whether each item of a task of the battery is right, `[S, items]`."""
    return np.stack([study.array(job, "battery", f"correct.{task}") for job in jobs]).astype(float)


def sequences(study: Study, jobs: Sequence[Job], split: str) -> np.ndarray:
    """Share of right answers of each sequence that asks for some, `[S, N]`, of models trained on the task."""
    def shares(job: Job) -> np.ndarray:
        name = f"{split}.{job.run.train.length}"
        right, count = (study.array(job, "task", f"{kind}.{name}") for kind in ("correct", "count"))
        return right[count > 0] / count[count > 0]
    return np.stack([shares(job) for job in jobs])


def task_difference(study: Study, model: Model, other: Model, split: str) -> Interval:
    """Accuracy of `model` minus that of `other`, both trained on the task, on the same sequences."""
    both = zip(*study.paired(model, other), strict=True)
    return accuracy_difference(*(sequences(study, jobs, split) for jobs in both))


def task_table(study: Study) -> pd.DataFrame:
    """Accuracy of the models trained on a task, with its interval over sequences (and seeds, from three on) and chance;
    `group` is the task. Answers of one sequence depend on one another, so that a sequence counts once."""
    rows = []
    for model in study.models:
        task = model.labels.task
        if not model.text and any(evaluation.name == "task" for evaluation in model.jobs[0].evaluations):
            window = f", W={model.labels.window}" if model.labels.window else ""
            rows.append(row(accuracy(sequences(study, model.jobs, task)), name=model.labels.series + window, group=task,
                            chance=study.value(model.jobs[0], "chance", split=task, length=model.length)))
    columns = ["name", "group", "estimate", "low", "high", "seeds", "chance"]
    return pd.DataFrame(rows, columns=[*columns, "df"])[columns].set_index("name")


def chances(table: pd.DataFrame) -> dict[str, float]:
    """Chance level of each task of a table of accuracies."""
    return table.groupby("group", sort=False)["chance"].mean().to_dict()


# The local window of equal pairs, at several numbers of tokens and several lengths

def beside_local(study: Study, series: str, length: int | None = None) -> list[Pair]:
    """The language models of a series, each beside the local window of the same tokens and length; at one length or
    all."""
    def recipe(model: Model) -> TrainConfig:
        return replace(model.run.train, seed=0)
    local = {recipe(model): model for model in study.language_models if model.labels.series == LOCAL}
    models = [m for m in study.language_models if m.labels.series == series and length in (None, m.length)]
    pairs = [(m, local[recipe(m)]) for m in models if recipe(m) in local]
    if not pairs:
        raise study.untrained(f"{series} beside a local window")
    return pairs


def whole(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs with the largest token budget."""
    most = max(model.run.train.tokens for model, _ in pairs)
    return [pair for pair in pairs if pair[0].run.train.tokens == most]


def by_tokens(study: Study, series: str, length: int) -> dict[int, Interval]:
    """Loss of a series minus that of the local window, by training tokens."""
    pairs = sorted(beside_local(study, series, length), key=lambda pair: pair[0].run.train.tokens)
    return {model.run.train.tokens: study.difference(model, local) for model, local in pairs}


def token_points(study: Study, series: str, length: int) -> tuple[pd.DataFrame, list[Windows]]:
    """One row a pair of runs, by training tokens and seed: the difference with its interval; and each pair's
    windows."""
    rows, windows = [], []
    for model, local in sorted(beside_local(study, series, length), key=lambda pair: pair[0].run.train.tokens):
        for seed in study.shared_seeds(model, local):
            own = [domain[0] for domain in study.differences(model, local, seeds=[seed])]
            windows.append(own)
            rows.append(row(mean_interval(own), tokens=model.run.train.tokens, seed=seed))
    return pd.DataFrame(rows), windows


def token_trend(study: Study, series: str, length: int) -> Trend | None:
    """The line through `token_points` over log2 of the tokens; None where the runs are too few."""
    points, windows = token_points(study, series, length)
    return fit(points["tokens"], points["estimate"], windows)


def at_share(study: Study, series: str, share: float) -> dict[int, Pair]:
    """Pairs by training length, of the runs whose tokens are nearest to this share of a whole run's (in whole
    steps)."""
    pairs = beside_local(study, series)
    goal = share * max(model.run.train.tokens for model, _ in pairs)
    lengths = sorted({model.length for model, _ in pairs})
    return {length: min((pair for pair in pairs if pair[0].length == length),
                        key=lambda pair: abs(pair[0].run.train.tokens - goal)) for length in lengths}


def by_length(study: Study, series: str, share: float) -> dict[int, Interval]:
    """Loss of a series minus that of the local window, by training length, at the same share of a whole run's
    tokens."""
    return {length: study.difference(*pair) for length, pair in at_share(study, series, share).items()}


def length_change(study: Study, series: str, share: float) -> tuple[Interval, int, int]:
    """`by_length` at the longest length minus that at the shortest, on the same held-out tokens; and both lengths."""
    pairs = at_share(study, series, share)
    short, long = min(pairs), max(pairs)
    if short == long or long % short:
        raise study.untrained(f"{series} at two lengths of which one divides the other")
    near, far = study.differences(*pairs[short]), study.differences(*pairs[long])
    change = [y - merged_windows(x, y.shape[1], long // short) for x, y in zip(near, far, strict=True)]
    return mean_interval(change), short, long


# Tokens whose context stood before

def with_recurrence(study: Study, series: str, length: int) -> Pair:
    """The whole runs of a series and of its local window that are asked for losses by recurrence distance."""
    for pair in whole(beside_local(study, series, length)):
        if any(evaluation.name == "recurrence" for evaluation in pair[0].jobs[0].evaluations):
            return pair
    raise NotTested(f"{series} is not asked for recurrence")


def recurrence_edges(study: Study, model: Model) -> tuple[int, ...]:
    """First distances of the bins of recurrence distance; after the last comes a bin of contexts that are new."""
    return tuple(dict(study.evaluation(model.jobs[0], "recurrence").parameters)["edges"])


def recurrence_difference(study: Study, pair: Pair, bins: Sequence[int], kind: str = "recurrence") -> Interval:
    """Loss a token of the pair's model minus that of the local window in these bins together, all text.

    kind: of `suite.evals.recurrence.KINDS`.
    """
    def summed(job: Job, name: str) -> np.ndarray:
        return np.concatenate([study.array(job, "recurrence", f"{name}.{domain}")[:, list(bins)].sum(axis=1)
                               for domain in study.database.corpus.domains])
    jobs = study.paired(*pair)
    sums = np.stack([summed(own, kind) - summed(local, kind) for own, local in jobs])
    return mean_interval([linearised(sums, summed(jobs[0][0], f"{kind}_count"))])


def reaches(model: Model) -> dict[str, int]:
    """How far one layer of a local window and its whole stack reach, tokens."""
    widths = stack_of(model.run).widths
    return {"window": max(map(max, widths)), "stack": sum(max(row) for row in widths)}


# Planted copies

def copy_models(study: Study, series: str) -> dict[int, Model]:
    """The models of a series that are trained on planted copies, by distance."""
    models = [m for m in study.models if m.labels.task == "copying" and m.labels.series == series]
    return {model.labels.distance: model for model in models if model.labels.distance is not None}


def copy_gains(study: Study, series: str) -> dict[int, Interval]:
    """Accuracy of a series minus that of the local window, by distance of the planted copy."""
    own, local = copy_models(study, series), copy_models(study, LOCAL)
    return {distance: task_difference(study, own[distance], local[distance], "copying")
            for distance in sorted(set(own) & set(local))}
