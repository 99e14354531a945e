"""What runs show: held-out losses compared on the same windows, of the same seeds (nats a token); alphas, accuracies,
influence of far tokens, speed, size and counted memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from suite.bench.rows import read
from suite.claims.measures import Part, measure
from suite.evals.zero_shot import called
from suite.experiments.learned_alpha import PROBE
from suite.study import comparisons
from suite.study.comparisons import LOCAL, recommended
from suite.study.frames import Model, NotTested, Study, longer_minus
from suite.study.stats import Interval, Noise, Windows, mean_interval, minus, quantile

NATS = "nats a token"
BUSY = 0.1                      # share of the cores that others use: a time measured then is no result
Pairs = Iterable[tuple[Model, Model]]


def compared(study: Study, pairs: Pairs, what: str, number: Callable[..., Interval | float],
             *more: Any) -> Iterator[Part]:
    """`number` of each pair of models; `what` has places for the names of `a` and `b`."""
    for a, b in pairs:
        yield Part(what.format(a=a, b=b), number(study, a, b, *more), (a, b))


@measure(NATS, every=True)
def loss_difference(study: Study, *, series: tuple[str, ...], others: tuple[str, ...], window: int | None = None,
                    theta_lr: float | None = None, factor: int = 1, variant: str = "",
                    other_variant: str = "") -> Iterator[Part]:
    """Loss of each of `series` minus that of each of `others`, at `factor` times the training length."""
    where = f" at {factor} times the training length" if factor > 1 else ""
    for model, other in study.pairs(series, others, window=window, theta_lr=theta_lr):
        a, b = (f"{own.name}, {how}" if how else own.name for own, how in ((model, variant), (other, other_variant)))
        yield Part(f"Loss of {a} minus {b}{where}", study.difference(
            model, other, length=factor * model.length, variant=variant, other_variant=other_variant), (model, other))


@measure(NATS)
def against_local(study: Study, *, series: str, factor: int = 1) -> Iterator[Part]:
    """Loss of `series` minus that of the local window of equal pairs, at `factor` times the training length."""
    return loss_difference(study, series=(series,), others=(LOCAL,), factor=factor)


@measure(NATS, every=True)
def loss_growth(study: Study, *, series: tuple[str, ...], factor: int, variant: str = "") -> Iterator[Part]:
    """Loss at `factor` times the training length minus that at the training length, of the same tokens."""
    where = f"{f', {variant},' if variant else ''} at {factor} times the training length minus at that length"
    for model in [model for name in series for model in study.find(name)]:
        yield Part(f"Loss of {model.name}{where}", study.growth(model, factor * model.length, variant), (model,))


@measure(NATS, every=True)
def growth_difference(study: Study, *, series: tuple[str, ...], others: tuple[str, ...], factor: int) -> Iterator[Part]:
    """How much more the loss of `series` grows with the length than that of `others`."""
    what = f"Growth of the loss to {factor} times the training length, {{a.name}} minus {{b.name}}"
    return compared(study, study.pairs(series, others), what, Study.compared,
                    lambda own, seeds: study.growths(own, factor * own.length, seeds=seeds))


@measure(NATS, every=True)
def gain_by_position(study: Study, *, series: str, other: str, first: int = 0) -> Iterator[Part]:
    """How much more `series` gains over `other` in the later half of a window than in its first positions, or (0) than
    from an eighth to the half: the paper exempts the first of eight bins."""
    def late_over_early(own: Model, seeds: Sequence[int]) -> Windows:
        T = own.length
        early = (0, first) if first else (T // 8, T // 2)
        return minus(*(study.windows(own, positions=positions, seeds=seeds) for positions in ((T // 2, T), early)))
    where = f"in the first {first} positions" if first else "before it, from an eighth on"
    what = f"Gain of {{a.name}} over {{b.name}} in the later half of a window minus {where}"
    return compared(study, study.pairs((series,), (other,)), what,
                    lambda study, a, b: study.compared(b, a, late_over_early))


@measure(NATS, every=True)
def context_gain(study: Study, *, series: tuple[str, ...], other: str, factor: int) -> Iterator[Part]:
    """What tokens beyond the training length gain over those before, of `series` minus the same of a control to which
    context beyond the training length is invisible, so that what the text itself does at those positions cancels."""
    for a, b in study.pairs(series, (other,)):
        yield Part(f"Change of the loss beyond the training length, {a.name} minus {b.name}",
                   comparisons.context_gain(study, a, b, factor * a.length), (a, b))


@measure(NATS)
def largest_window(study: Study, *, series: str) -> Iterator[Part]:
    """Loss at the largest W that is trained minus that at the smallest."""
    models = sorted(study.find(series), key=lambda model: model.labels.window)
    if len(models) == 1:
        raise NotTested(f"profile {study.profile.name} trains {series} at one W only")
    return compared(study, [(models[-1], models[0])], "Loss of {a.name} minus {b.name}", Study.difference)


@measure(NATS, every=True)
def sigma_difference(study: Study) -> Iterator[Part]:
    """Loss at the power-law document's range of sigma (or the sigma nearest to it) minus that at every other sigma."""
    best = recommended(study)
    pairs = [(model, other) for model in best for other in study.find("Power law", budget=model.labels.budget)
             if other not in best]
    if not pairs:
        raise NotTested(f"profile {study.profile.name} trains one sigma only")
    return compared(study, pairs, "Loss of {a.name} minus {b.name}", Study.difference)


def beside_recommended(study: Study, other: str) -> Pairs:
    return [(model, study.partner(model, other)) for model in recommended(study)]


@measure(NATS, every=True)
def recommended_sigma_against(study: Study, *, other: str, at_equal_compute: bool = False) -> Iterator[Part]:
    """Loss at the document's range of sigma minus that of `other`, at each budget. at_equal_compute: of `other` stopped
    where it has computed as much, as its own curve of training tells."""
    what = "Loss of {a.name} minus {b.name}" + " at equal training compute" * at_equal_compute
    difference = comparisons.at_equal_compute if at_equal_compute else Study.difference
    return compared(study, beside_recommended(study, other), what, difference)


@measure("nats, a mean over training", every=True)
def descent(study: Study, *, series: str, others: tuple[str, ...]) -> Iterator[Part]:
    """Training loss averaged over the steps, of `series` minus that of each of `others`; they have equal pairs, so that
    a step costs the same."""
    mean = comparisons.each_run(lambda job: float(study.curve(job, "train_loss").mean()))
    return compared(study, study.pairs((series,), others), "Training loss of {a.name} minus {b.name}",
                    Study.compared, mean)


# Where long rungs pay against a local window of as many keys

@measure(NATS + " a doubling")
def token_trend(study: Study, *, series: str) -> Iterator[Part]:
    """What a doubling of the tokens adds to the loss of `series` minus that of the local window of equal pairs: the
    slope of a line through runs of several lengths, each with a schedule of its own."""
    pairs = comparisons.beside_local(study, series, study.profile.train.length)
    trend = comparisons.token_trend(study, series, study.profile.train.length)
    if trend is None:
        raise NotTested(f"profile {study.profile.name} trains too few runs of {series} for a trend")
    slope = replace(trend.slope, seeds=min(len(study.shared_seeds(*pair)) for pair in pairs))
    yield Part(f"Change of the loss of {series} minus local window a doubling of the tokens", slope, sum(pairs, ()))


@measure(NATS)
def length_change(study: Study, *, series: str) -> Iterator[Part]:
    """Loss of `series` minus that of the local window, when both are trained at the longest length minus when at the
    shortest; the same held-out tokens, so many training tokens."""
    pairs = comparisons.at_share(study, series, study.parameters.length_fraction)
    short, long = min(pairs), max(pairs)
    if short == long or long % short:
        raise study.untrained(f"{series} at two lengths of which one divides the other")
    far, near = (study.differences(*pairs[length]) for length in (long, short))
    noises = [study.noise(pairs[length][0]) for length in (long, short)]
    noise = Noise(sum(own.variance for own in noises), min(own.df for own in noises)) if all(noises) else None
    yield Part(f"Loss of {series} minus local window, trained at {long} tokens of context minus at {short}",
               mean_interval(longer_minus(far, near, long // short), noise), sum(pairs.values(), ()))


@measure(NATS)
def far_evidence(study: Study, *, series: str, beyond: str) -> Iterator[Part]:
    """Loss of `series` minus that of the local window on tokens whose context stood before, further back than one layer
    of the window (`beyond: window`) or its whole stack (`beyond: stack`) reaches; in whole bins of recurrence."""
    T = study.profile.train.length
    pair = comparisons.with_recurrence(study, series, T)
    reach, edges = comparisons.reaches(pair[1])[beyond], comparisons.recurrence_edges(study, pair[0])
    bins = [at for at, first in enumerate(edges) if first > reach]
    if not bins:
        raise NotTested(f"the local window's {beyond} reaches {reach} of {T} tokens: no bin lies beyond")
    what = f"Loss of {series} minus local window on tokens whose context stood {edges[bins[0]]} or more tokens before"
    yield Part(what, comparisons.recurrence_difference(study, pair, bins), pair)


# Beside the loss

@measure("in alpha")
def alpha_travel(study: Study, *, series: str, theta_lr: float | None = None) -> Iterator[Part]:
    """How far training has moved alpha from its start: the layer that moved most, of each run."""
    model = study.find(series, theta_lr=theta_lr)[0]
    yield Part(f"Largest move of alpha in {model.name}", comparisons.alpha_travel(study, model), (model,))


@measure("nats a token", every=True)
def alpha_landscape(study: Study, *, series: str) -> Iterator[Part]:
    """Change of the loss when one layer's alpha is set to another value, for every layer and value."""
    model = study.find(series)[0]
    changes, values = comparisons.landscape(study, model)

    def change(own: Model, seeds: Sequence[int], layer: int, at: int) -> Windows:
        some = Model(own.name, tuple(own.by_seed[seed] for seed in seeds))
        return [comparisons.landscape(study, some)[0][:, layer, at]]
    for layer in range(changes.shape[1]):
        for at, value in enumerate(values):
            yield Part(f"Loss of {model.name} with {value} in layer {layer} minus as learned",
                       study.measured(model, partial(change, layer=layer, at=at)), (model,))


@measure("times")
def speed_of_learned(study: Study, *, passes: str) -> Iterator[Part]:
    """Time of attention with a learned alpha over that with as many fixed distances, at the longest length: the suite's
    own backend, measured in turns while nothing trains."""
    rows = [row for row in read(study.profile.name) if row.measure == "learned_over_fixed" and row.pass_ == passes
            and row.ratio is not None and row.backend in ("cpu", "gpu")]
    if not rows:
        raise NotTested(f"notebook 07_efficiency has not measured a learned alpha at profile {study.profile.name}")
    row = max(rows, key=lambda own: own.length)
    if row.busy is not None and row.busy > BUSY:
        raise NotTested(f"it was measured while other programs used {row.busy:.0%} of the cores")
    # The standard error of a median over rounds, from their quartiles as if they were normal.
    half = quantile(row.rounds - 1) * 1.253 * (row.spread[1] - row.spread[0]) / 1.349 / row.rounds ** 0.5
    yield Part(f"Time with a learned alpha over fixed distances, {passes}, T = {row.length:,}",
               Interval(row.ratio, row.ratio - half, row.ratio + half, row.rounds, df=row.rounds - 1))


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


@measure("of the influence", every=True)
def far_influence(study: Study, *, other: str) -> Iterator[Part]:
    """Share of the influence on a prediction that comes from far tokens: power law minus `other`, same windows. Far is
    the experiment's distance, rounded up to the edge of a bin, a power of two."""
    def shares(own: Model, seeds: Sequence[int], far: int) -> Windows:
        bins, edges = (study.arrays([own.by_seed[seed] for seed in seeds], "gradient_flow", name)
                       for name in ("influence", "edges"))                              # (S, N, Q, bins)
        return [(bins[..., edges[0, :-1] >= far].sum(axis=-1) / bins.sum(axis=-1)).mean(axis=2)]
    for a, b in beside_recommended(study, other):
        far = 1 << (dict(study.evaluation(a.jobs[0], "gradient_flow").parameters)["far"] - 1).bit_length()
        yield Part(f"Influence from at least {far} tokens back, {a.name} minus {other}",
                   study.compared(a, b, partial(shares, far=far)), (a, b))


@measure("above chance", every=True)
def battery_above_chance(study: Study, *, tasks: tuple[str, ...]) -> Iterator[Part]:
    """Accuracy of every language model of the profile's own size minus chance, at each of these tasks that is asked."""
    models = [model for model in study.language_models if not model.labels.told]
    for task in known_tasks(study, tasks):
        for model in models:
            right = comparisons.task_accuracy(study, model, task)
            chance = study.value(model.jobs[0], "chance", split=task)
            yield Part(f"Accuracy of {model.name} at {task} minus chance", right.shifted(-chance), (model,))


@measure("in accuracy", every=True)
def battery_difference(study: Study, *, series: str, other: str, tasks: tuple[str, ...]) -> Iterator[Part]:
    """Accuracy of `series` minus that of `other` at each of these tasks that the profile asks, on the same items."""
    pairs = study.pairs((series,), (other,))[:1]
    for task in known_tasks(study, tasks):
        what = f"Accuracy at {task}, {{a.name}} minus {{b.name}}"
        yield from compared(study, pairs, what, comparisons.task_difference, task)


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
            right = comparisons.task_accuracy(study, model, f"distance={distance}")
            yield Part(f"Accuracy of {model.name} at distance {distance}", right, (model,))


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
