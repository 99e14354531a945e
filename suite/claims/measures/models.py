"""What runs show beside their loss: alphas, accuracies, influence of far tokens, speed, size and counted memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lib.patterns.learned import alpha_of
from suite.claims.evidence import (Evidence, Found, Model, NotTested, Part,
                                   paired, pattern_of)
from suite.claims.measures import measure
from suite.claims.measures.losses import every, over_seeds, pairs, recommended
from suite.evals.zero_shot.names import called
from suite.experiments.base import Job
from suite.study.stats import (Interval, accuracy, accuracy_difference,
                               bootstrap_mean, paired_difference)

QUICK = 500         # resamples where there are dozens of intervals


# Learned alpha

@measure("in alpha", by_run=True)
def alpha_travel(evidence: Evidence, *, series: str, setting: tuple[str, ...] = ()) -> Found:
    """How far training has moved alpha from its start: the layer that moved most, of each run."""
    model = evidence.find(series, setting=setting)[0]
    moved = [max(abs(alpha - start) for alpha, start in zip(alphas(evidence, job), starts(job), strict=True))
             for job in model.jobs]
    return Found((over_seeds(f"Largest move of alpha in {model.name}", moved),), model.seeds, model.jobs)


@measure("nats a token", every=True)
def alpha_landscape(evidence: Evidence, *, series: str) -> Found:
    """Change of the loss when one layer's alpha is set to another value, for every layer and value."""
    model = evidence.find(series)[0]
    changes = np.stack([evidence.array(job, "alpha_landscape", "change") for job in model.jobs])     # (S, L, A, windows)
    values = sorted({str(v) for v in evidence.metrics(model.jobs[0]).query("measure == 'alpha_nll_change'")["variant"]})
    parts = [Part(f"Loss of {model.name} with {value} in layer {layer} minus as learned",
                  bootstrap_mean([changes[:, layer, at]], resamples=QUICK))
             for layer in range(changes.shape[1]) for at, value in enumerate(values)]
    return Found(tuple(parts), model.seeds, model.jobs)


def alphas(evidence: Evidence, job: Job) -> list[float]:
    rows = evidence.metrics(job)
    rows = rows[(rows["measure"] == "alpha") & rows["step"].isna()].sort_values("layer")
    if rows.empty:
        raise NotTested(f"{job.labels.series} is not asked for its alphas")
    return rows["value"].tolist()


def starts(job: Job) -> list[float]:
    return [alpha_of(theta) for theta in pattern_of(job).thetas]


# Cost

@measure("times", by_run=True)
def speed_ratio(evidence: Evidence, *, series: str, other: str) -> Found:
    """Training speed of `other` over that of `series`, tokens a second as they were trained here."""
    model, control = pairs(evidence, (series,), (other,))[0]
    ratios = [speed(evidence, b) / speed(evidence, a) for a, b in paired(model, control)]
    return Found((over_seeds(f"Training time of {model.name} over that of {control.name}", ratios),), len(ratios),
                 (*model.jobs, *control.jobs))


def speed(evidence: Evidence, job: Job) -> float:
    return float(evidence.metrics(job)["run_tokens_per_s"].iloc[0])


@measure("parameters", exact=True, every=True)
def parameters_added(evidence: Evidence, *, series: tuple[str, ...], other: str) -> Found:
    """Parameters beyond those of `other` and one a layer for a learned alpha."""
    parts, jobs = [], []
    for model in [m for name in series for m in every(evidence, name)]:
        job, dense = model.jobs[0], evidence.partner(model, other).jobs[0]
        more = size(evidence, job) - size(evidence, dense)
        allowed = job.run.model.layers if pattern_of(job).learned else 0
        parts.append(Part(f"Parameters of {model.name} beyond dense and its alphas", float(more - allowed)))
        jobs += [job, dense]
    return Found(tuple(parts), 0, tuple(dict.fromkeys(jobs)))


def size(evidence: Evidence, job: Job) -> int:
    return int(evidence.metrics(job)["parameters"].iloc[0])


@measure("times less", exact=True, every=True)
def memory_ratio(evidence: Evidence, *, series: str) -> Found:
    """Scores of dense causal attention over those of the pattern at the training length, counted."""
    models = recommended(evidence) if series == "Power law" else evidence.find(series)
    parts = []
    for model in models:
        T, L = model.length, model.jobs[0].run.model.layers
        ratio = L * T * (T + 1) / 2 / pattern_of(model.jobs[0]).pairs(T)
        parts.append(Part(f"Score memory of {model.name} at T = {T}, against dense", ratio))
    return Found(tuple(parts))


# Influence of far tokens

@measure("of the influence", every=True)
def far_influence(evidence: Evidence, *, other: str) -> Found:
    """Share of the influence on a prediction that comes from far tokens: power law minus `other`, on the same windows."""
    parts, jobs = [], []
    for model in recommended(evidence):
        both = paired(model, evidence.partner(model, other))
        mine, theirs = (np.stack([far_share(evidence, pair[at]) for pair in both]) for at in (0, 1))
        what = f"Influence from at least {far_of(both[0][0])} tokens back, {model.name} minus {other}"
        parts.append(Part(what, paired_difference([mine], [theirs])))
        jobs += [job for pair in both for job in pair]
    return Found(tuple(parts), min(own.value.seeds for own in parts), tuple(dict.fromkeys(jobs)))


def far_of(job: Job) -> int:
    """What the experiment calls far, rounded up to the edge of a bin: a power of two."""
    far = int(dict(Evidence.evaluation(job, "gradient_flow").parameters)["far"])
    return 1 << (far - 1).bit_length()


def far_share(evidence: Evidence, job: Job) -> np.ndarray:
    """By window, a mean over queries: `[N]`."""
    bins, edges = (evidence.array(job, "gradient_flow", name) for name in ("influence", "edges"))    # (N, Q, bins)
    far = bins[..., edges[:-1] >= far_of(job)].sum(axis=-1)
    return (far / bins.sum(axis=-1)).mean(axis=1)


# Accuracy

@measure("above chance", every=True)
def battery_above_chance(evidence: Evidence, *, tasks: tuple[str, ...]) -> Found:
    """Accuracy of every language model minus chance, for each of these tasks that the profile asks."""
    parts, jobs = [], []
    for task in asked(evidence, tasks):
        for model in battery_models(evidence):
            found, chance = accuracy(right(evidence, model.jobs, task)), evidence.value(model.jobs[0], "chance", split=task)
            parts.append(Part(f"Accuracy of {model.name} at {task} minus chance", shifted(found, -chance)))
            jobs += model.jobs
    return Found(tuple(parts), min(own.value.seeds for own in parts), tuple(dict.fromkeys(jobs)))


@measure("in accuracy", every=True)
def battery_difference(evidence: Evidence, *, series: str, other: str, tasks: tuple[str, ...]) -> Found:
    """Accuracy of `series` minus that of `other` at each of these tasks that the profile asks, on the same items."""
    model, control = pairs(evidence, (series,), (other,))[0]
    both = list(zip(*paired(model, control), strict=True))
    parts = [Part(f"Accuracy at {task}, {model.name} minus {control.name}",
                  accuracy_difference(*(right(evidence, jobs, task) for jobs in both))) for task in asked(evidence, tasks)]
    return Found(tuple(parts), len(both[0]), tuple(dict.fromkeys((*both[0], *both[1]))))


@measure("in accuracy", every=True)
def task_difference(evidence: Evidence, *, series: str, others: tuple[str, ...], task: str) -> Found:
    """Accuracy of `series` minus that of each of `others`, all trained on the task itself, on the same sequences."""
    parts, jobs = [], []
    for model, other in pairs(evidence, (series,), others, setting=(task,), text=False):
        both = list(zip(*paired(model, other), strict=True))
        shares = [np.stack([by_sequence(evidence, job, task) for job in own]) for own in both]
        names = (m.name.removesuffix(f", {task}") for m in (model, other))
        parts.append(Part(f"Accuracy after training for {task}, {' minus '.join(names)}", accuracy_difference(*shares)))
        jobs += [job for own in both for job in own]
    return Found(tuple(parts), min(own.value.seeds for own in parts), tuple(dict.fromkeys(jobs)))


@measure("in accuracy", every=True)
def probe_difference(evidence: Evidence, *, series: str, other: str) -> Found:
    """Accuracy at the copy probe's distances between rungs, all alike, of `series` minus `other`, at each depth."""
    parts, jobs = [], []
    for model in probe_models(evidence, series):
        both = list(zip(*paired(model, evidence.partner(model, other)), strict=True))
        shares = [np.stack([by_sequence(evidence, job, "marked_copy") for job in own]) for own in both]
        parts.append(Part(f"Accuracy of {model.name} minus {other}", accuracy_difference(*shares)))
        jobs += [job for own in both for job in own]
    return Found(tuple(parts), min(own.value.seeds for own in parts), tuple(dict.fromkeys(jobs)))


@measure("of the answers", every=True)
def probe_accuracy(evidence: Evidence, *, series: str) -> Found:
    """Accuracy of every cell of the copy probe between rungs: each depth and distance."""
    parts, jobs = [], []
    for model in probe_models(evidence, series):
        for distance in evidence.parameters.probe_distances:
            shares = np.stack([by_sequence(evidence, job, f"distance={distance}") for job in model.jobs])
            parts.append(Part(f"Accuracy of {model.name} at distance {distance}", accuracy(shares)))
        jobs += model.jobs
    return Found(tuple(parts), min(own.value.seeds for own in parts), tuple(dict.fromkeys(jobs)))


def probe_models(evidence: Evidence, series: str) -> list[Model]:
    """The probe's models of a series that are asked for distances between rungs, at the lowest rate of theta."""
    wanted = tuple(evidence.parameters.probe_distances)
    found = [m for m in evidence.find(series, text=False, setting=("copy probe",))
             if dict(m.jobs[0].run.data.parameters)["distances"] == wanted]
    lowest = min(m.jobs[0].run.train.theta_lr for m in found)
    return [m for m in found if m.jobs[0].run.train.theta_lr == lowest]


def asked(evidence: Evidence, tasks: Sequence[str]) -> list[str]:
    """The tasks that the profile asks, by the names of the tables."""
    found = [task for task in tasks if task in evidence.parameters.tasks]
    if not found:
        raise NotTested(f"profile {evidence.profile.name} asks none of {', '.join(tasks)}")
    _ = evidence.jobs                                           # only of a finished notebook
    return [called(task, evidence.database.corpus) for task in found]


def battery_models(evidence: Evidence) -> list[Model]:
    """The language models of the profile's own size that the battery is asked of."""
    return [m for m in evidence.models if m.text and not m.setting]


def right(evidence: Evidence, jobs: Sequence[Job], task: str) -> np.ndarray:
    """Whether each item is right: `[S, items]`."""
    return np.stack([evidence.array(job, "battery", f"correct.{task}") for job in jobs]).astype(float)


def by_sequence(evidence: Evidence, job: Job, split: str) -> np.ndarray:
    """Share of right answers of each sequence that asks for some: `[N]`."""
    correct, count = (evidence.array(job, "task", f"{kind}.{split}.{job.run.train.length}") for kind in ("correct", "count"))
    return correct[count > 0] / count[count > 0]


def shifted(found: Interval, by: float) -> Interval:
    return Interval(found.estimate + by, found.low + by, found.high + by, found.count, found.seeds, found.df)
