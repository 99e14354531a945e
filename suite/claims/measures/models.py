"""What runs show beside their loss: alphas, accuracies, influence of far tokens, speed, size and counted memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from suite.claims.measures import Part, measure
from suite.claims.measures.losses import asked, beside_recommended, compared
from suite.evals.zero_shot import called
from suite.experiments.learned_alpha import PROBE
from suite.study import comparisons
from suite.study.comparisons import LOCAL, recommended
from suite.study.frames import Model, NotTested, Study
from suite.study.stats import accuracy, accuracy_difference, mean_interval


# Learned alpha

@measure("in alpha", by_run=True)
def alpha_travel(study: Study, *, series: str, theta_lr: float | None = None) -> Iterator[Part]:
    """How far training has moved alpha from its start: the layer that moved most, of each run."""
    model = study.find(series, **asked(theta_lr=theta_lr))[0]
    yield Part(f"Largest move of alpha in {model.name}", comparisons.alpha_travel(study, model), (model,))


@measure("nats a token", every=True)
def alpha_landscape(study: Study, *, series: str) -> Iterator[Part]:
    """Change of the loss when one layer's alpha is set to another value, for every layer and value."""
    model = study.find(series)[0]
    changes, values = comparisons.landscape(study, model)
    for layer in range(changes.shape[1]):
        for at, value in enumerate(values):
            yield Part(f"Loss of {model.name} with {value} in layer {layer} minus as learned",
                       mean_interval([changes[:, layer, at]]), (model,))


# Cost

@measure("times", by_run=True)
def speed_ratio(study: Study, *, series: str, other: str) -> Iterator[Part]:
    """Training speed of `other` over that of `series`, tokens a second as they were trained here."""
    pairs = study.pairs((series,), (other,))[:1]
    return compared(study, pairs, "Training time of {a.name} over that of {b.name}", comparisons.speed_ratio)


@measure("parameters", exact=True, every=True)
def parameters_added(study: Study, *, series: tuple[str, ...], other: str) -> Iterator[Part]:
    """Parameters beyond those of `other` and one a layer for a learned alpha."""
    def size(model: Model) -> int:
        return int(study.metrics(model.jobs[0])["parameters"].iloc[0])
    for model in [model for name in series for model in study.find(name)]:
        dense = study.partner(model, other)
        more = size(model) - size(dense) - model.run.model.layers * bool(model.pattern.learned)
        yield Part(f"Parameters of {model.name} beyond dense and its alphas", more,
                   [Model(own.name, own.jobs[:1]) for own in (model, dense)])


@measure("times less", exact=True, every=True)
def memory_ratio(study: Study, *, series: str) -> Iterator[Part]:
    """Scores of dense causal attention over those of the pattern at the training length, counted."""
    for model in recommended(study) if series == "Power law" else study.find(series):
        T = model.length
        yield Part(f"Score memory of {model.name} at T = {T}, against dense",
                   model.run.model.layers * T * (T + 1) / 2 / model.pairs)


# Influence of far tokens

@measure("of the influence", every=True)
def far_influence(study: Study, *, other: str) -> Iterator[Part]:
    """Share of the influence on a prediction that comes from far tokens: power law minus `other`, on the same
    windows."""
    for a, b in beside_recommended(study, other):
        yield Part(f"Influence from at least {comparisons.far_from(study, a)} tokens back, {a.name} minus {other}",
                   comparisons.far_influence(study, a, b), (a, b))


# Accuracy

@measure("above chance", every=True)
def battery_above_chance(study: Study, *, tasks: tuple[str, ...]) -> Iterator[Part]:
    """Accuracy of every language model of the profile's own size minus chance, for each of these tasks that is
    asked."""
    models = [model for model in study.language_models if not model.labels.told]
    for task in known_tasks(study, tasks):
        for model in models:
            right = accuracy(comparisons.items(study, model.jobs, task))
            chance = study.value(model.jobs[0], "chance", split=task)
            yield Part(f"Accuracy of {model.name} at {task} minus chance", right.shifted(-chance), (model,))


@measure("in accuracy", every=True)
def battery_difference(study: Study, *, series: str, other: str, tasks: tuple[str, ...]) -> Iterator[Part]:
    """Accuracy of `series` minus that of `other` at each of these tasks that the profile asks, on the same items."""
    a, b = study.pairs((series,), (other,))[0]
    both = list(zip(*study.paired(a, b), strict=True))
    for task in known_tasks(study, tasks):
        difference = accuracy_difference(*(comparisons.items(study, jobs, task) for jobs in both))
        yield Part(f"Accuracy at {task}, {a.name} minus {b.name}", difference, (a, b))


@measure("in accuracy", every=True)
def task_difference(study: Study, *, series: str, others: tuple[str, ...], task: str) -> Iterator[Part]:
    """Accuracy of `series` minus that of each of `others`, all trained on the task itself, on the same sequences."""
    what = f"Accuracy after training for {task}, {{a.labels.series}} minus {{b.labels.series}}"
    pairs = study.pairs((series,), others, text=False, task=task)
    return compared(study, pairs, what, comparisons.task_difference, task)


@measure("accuracy")
def copy_gain(study: Study, *, series: str) -> Iterator[Part]:
    """Accuracy of `series` minus that of the local window of equal pairs in planted copies, at the longest distance."""
    gains = comparisons.copy_gains(study, series)
    if not gains:
        raise study.untrained(f"{series} and a local window on planted copies")
    longest = max(gains)
    yield Part(f"Accuracy of {series} minus local window, copying over {longest} tokens", gains[longest],
               [comparisons.copy_models(study, name)[longest] for name in (series, LOCAL)])


@measure("in accuracy", every=True)
def probe_difference(study: Study, *, series: str, other: str) -> Iterator[Part]:
    """Accuracy at the copy probe's distances between rungs, all alike, of `series` minus `other`, at each depth."""
    pairs = [(model, study.partner(model, other)) for model in probe_models(study, series)]
    what = f"Accuracy of {{a.name}} minus {other}"
    return compared(study, pairs, what, comparisons.task_difference, "marked_copy")


@measure("of the answers", every=True)
def probe_accuracy(study: Study, *, series: str) -> Iterator[Part]:
    """Accuracy of every cell of the copy probe between rungs: each depth and distance."""
    for model in probe_models(study, series):
        for distance in study.parameters.probe_distances:
            right = comparisons.sequences(study, model.jobs, f"distance={distance}")
            yield Part(f"Accuracy of {model.name} at distance {distance}", accuracy(right), (model,))


def probe_models(study: Study, series: str) -> list[Model]:
    """The probe's models of a series that are asked for distances between rungs, at the lowest rate of theta."""
    models = [m for m in study.find(series, text=False, task=PROBE)
              if dict(m.run.data.parameters)["distances"] == tuple(study.parameters.probe_distances)]
    lowest = min(m.labels.theta_lr for m in models)
    return [m for m in models if m.labels.theta_lr == lowest]


def known_tasks(study: Study, tasks: Sequence[str]) -> list[str]:
    """The tasks that the profile asks, by the names of the tables."""
    found = [called(task, study.database.corpus) for task in tasks if task in study.parameters.tasks]
    if not found:
        raise NotTested(f"profile {study.profile.name} asks none of {', '.join(tasks)}")
    return found
