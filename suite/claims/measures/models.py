"""What runs show beside their loss: alphas, accuracies, influence of far tokens, speed, size and counted memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from suite.claims.evidence import Measured
from suite.claims.measures import measure
from suite.claims.measures.losses import asked
from suite.evals.zero_shot.names import called
from suite.experiments.learned_alpha import PROBE
from suite.study import comparisons
from suite.study.comparisons import recommended
from suite.study.frames import Model, NotTested, Study
from suite.study.stats import accuracy, accuracy_difference, mean_interval


# Learned alpha

@measure("in alpha", by_run=True)
def alpha_travel(study: Study, *, series: str, theta_lr: float = 1.0) -> Measured:
    """How far training has moved alpha from its start: the layer that moved most, of each run."""
    model = study.find(series, **asked(theta_lr=theta_lr))[0]
    return Measured.of([(f"Largest move of alpha in {model.name}", comparisons.alpha_travel(study, model), (model,))])


@measure("nats a token", every=True)
def alpha_landscape(study: Study, *, series: str) -> Measured:
    """Change of the loss when one layer's alpha is set to another value, for every layer and value."""
    model = study.find(series)[0]
    changes, values = comparisons.landscape(study, model)
    return Measured.of([(f"Loss of {model.name} with {value} in layer {layer} minus as learned",
                         mean_interval([changes[:, layer, at]]), (model,))
                        for layer in range(changes.shape[1]) for at, value in enumerate(values)])


# Cost

@measure("times", by_run=True)
def speed_ratio(study: Study, *, series: str, other: str) -> Measured:
    """Training speed of `other` over that of `series`, tokens a second as they were trained here."""
    a, b = study.pairs((series,), (other,))[0]
    what = f"Training time of {a.name} over that of {b.name}"
    return Measured.of([(what, comparisons.speed_ratio(study, a, b), (a, b))])


@measure("parameters", exact=True, every=True)
def parameters_added(study: Study, *, series: tuple[str, ...], other: str) -> Measured:
    """Parameters beyond those of `other` and one a layer for a learned alpha."""
    def size(model: Model) -> int:
        return int(study.metrics(model.jobs[0])["parameters"].iloc[0])
    models = [(model, study.partner(model, other)) for name in series for model in study.find(name)]
    rows = [(f"Parameters of {model.name} beyond dense and its alphas",
             float(size(model) - size(dense) - model.run.model.layers * bool(model.pattern.learned)),
             (Model(model.name, model.jobs[:1]), Model(dense.name, dense.jobs[:1]))) for model, dense in models]
    return replace(Measured.of(rows), seeds=0)


@measure("times less", exact=True, every=True)
def memory_ratio(study: Study, *, series: str) -> Measured:
    """Scores of dense causal attention over those of the pattern at the training length, counted."""
    rows = []
    for model in recommended(study) if series == "Power law" else study.find(series):
        T = model.length
        rows.append((f"Score memory of {model.name} at T = {T}, against dense",
                     model.run.model.layers * T * (T + 1) / 2 / model.pairs))
    return Measured.facts(rows)


# Influence of far tokens

@measure("of the influence", every=True)
def far_influence(study: Study, *, other: str) -> Measured:
    """Share of the influence on a prediction that comes from far tokens: power law minus `other`, on the same
    windows."""
    pairs = [(model, study.partner(model, other)) for model in recommended(study)]
    return Measured.of([
        (f"Influence from at least {comparisons.far_from(study, a)} tokens back, {a.name} minus {other}",
         comparisons.far_influence(study, a, b), (a, b)) for a, b in pairs])


# Accuracy

@measure("above chance", every=True)
def battery_above_chance(study: Study, *, tasks: tuple[str, ...]) -> Measured:
    """Accuracy of every language model of the profile's own size minus chance, for each of these tasks that is
    asked."""
    models = [model for model in study.language_models if not model.labels.told]
    return Measured.of([(f"Accuracy of {model.name} at {task} minus chance",
                         accuracy(comparisons.items(study, model.jobs, task)).shifted(-study.value(
                             model.jobs[0], "chance", split=task)), (model,))
                        for task in known_tasks(study, tasks) for model in models])


@measure("in accuracy", every=True)
def battery_difference(study: Study, *, series: str, other: str, tasks: tuple[str, ...]) -> Measured:
    """Accuracy of `series` minus that of `other` at each of these tasks that the profile asks, on the same items."""
    a, b = study.pairs((series,), (other,))[0]
    both = list(zip(*study.paired(a, b), strict=True))
    return Measured.of([(f"Accuracy at {task}, {a.name} minus {b.name}",
                         accuracy_difference(*(comparisons.items(study, jobs, task) for jobs in both)), (a, b))
                        for task in known_tasks(study, tasks)])


@measure("in accuracy", every=True)
def task_difference(study: Study, *, series: str, others: tuple[str, ...], task: str) -> Measured:
    """Accuracy of `series` minus that of each of `others`, all trained on the task itself, on the same sequences."""
    return Measured.of([(f"Accuracy after training for {task}, {a.labels.series} minus {b.labels.series}",
                         comparisons.task_difference(study, a, b, task), (a, b))
                        for a, b in study.pairs((series,), others, text=False, task=task)])


@measure("in accuracy", every=True)
def probe_difference(study: Study, *, series: str, other: str) -> Measured:
    """Accuracy at the copy probe's distances between rungs, all alike, of `series` minus `other`, at each depth."""
    return Measured.of([(f"Accuracy of {model.name} minus {other}",
                         comparisons.task_difference(study, model, study.partner(model, other), "marked_copy"),
                         (model, study.partner(model, other))) for model in probe_models(study, series)])


@measure("of the answers", every=True)
def probe_accuracy(study: Study, *, series: str) -> Measured:
    """Accuracy of every cell of the copy probe between rungs: each depth and distance."""
    return Measured.of([(f"Accuracy of {model.name} at distance {distance}",
                         accuracy(comparisons.sequences(study, model.jobs, f"distance={distance}")), (model,))
                        for model in probe_models(study, series) for distance in study.parameters.probe_distances])


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
