"""Held-out losses compared: on the same windows, of the same seeds (nats a token)."""

from __future__ import annotations

from typing import Any

from suite.claims.evidence import Measured
from suite.claims.measures import measure
from suite.study import comparisons
from suite.study.comparisons import LOCAL, recommended
from suite.study.frames import NotTested, Study, minus
from suite.study.stats import mean_interval

NATS = "nats a token"


@measure(NATS, every=True)
def loss_difference(study: Study, *, series: tuple[str, ...], others: tuple[str, ...], window: int = 0,
                    theta_lr: float = 1.0, factor: int = 1, variant: str = "", other_variant: str = "") -> Measured:
    """Loss of each of `series` minus that of each of `others`, at `factor` times the training length. window, theta_lr:
    of the models at this W or rate of theta alone."""
    rows = []
    for model, other in study.pairs(series, others, **asked(window, theta_lr)):
        names = [f"{m.name}, {v}" if v else m.name for m, v in ((model, variant), (other, other_variant))]
        value = study.difference(model, other, length=factor * model.length, variant=variant,
                                 other_variant=other_variant)
        rows.append((versus(*names, factor), value, (model, other)))
    return Measured.of(rows)


@measure(NATS)
def against_local(study: Study, *, series: str, factor: int = 1) -> Measured:
    """Loss of `series` minus that of the local window of equal pairs, at `factor` times the training length."""
    return loss_difference(study, series=(series,), others=(LOCAL,), factor=factor)


@measure(NATS, every=True)
def loss_growth(study: Study, *, series: tuple[str, ...], factor: int, variant: str = "") -> Measured:
    """Loss at `factor` times the training length minus that at the training length, of the same tokens."""
    where = f"{f', {variant},' if variant else ''} at {factor} times the training length minus at that length"
    return Measured.of([(f"Loss of {model.name}{where}", study.growth(model, factor * model.length, variant), (model,))
                        for name in series for model in study.find(name)])


@measure(NATS, every=True)
def growth_difference(study: Study, *, series: tuple[str, ...], others: tuple[str, ...], factor: int) -> Measured:
    """How much more the loss of `series` grows with the length than that of `others`."""
    rows = []
    for model, other in study.pairs(series, others):
        seeds = study.shared_seeds(model, other)
        growths = [study.growths(m, factor * m.length, seeds=seeds) for m in (model, other)]
        what = f"Growth of the loss to {factor} times the training length, {model.name} minus {other.name}"
        rows.append((what, mean_interval(minus(*growths)), (model, other)))
    return Measured.of(rows)


@measure(NATS, every=True)
def gain_by_position(study: Study, *, series: str, other: str, early: int, late: int) -> Measured:
    """How much more `series` gains over `other` from position `late` on than before position `early`."""
    return Measured.of([(f"Gain of {a.name} over {b.name} from position {late} on minus before position {early}",
                         comparisons.late_gain(study, a, b, early, late), (a, b))
                        for a, b in study.pairs((series,), (other,))])


@measure(NATS, every=True)
def context_gain(study: Study, *, series: tuple[str, ...], other: str, factor: int) -> Measured:
    """What tokens beyond the training length gain over those before, of `series` minus the same of a control to which
    context beyond the training length is invisible, so that what the text itself does at those positions cancels."""
    return Measured.of([(f"Change of the loss beyond the training length, {a.name} minus {b.name}",
                         comparisons.context_gain(study, a, b, factor * a.length), (a, b))
                        for a, b in study.pairs(series, (other,))])


@measure(NATS)
def largest_window(study: Study, *, series: str) -> Measured:
    """Loss at the largest W that is trained minus that at the smallest."""
    models = sorted(study.find(series), key=lambda m: m.labels.window)
    first, last = models[0], models[-1]
    if first == last:
        raise NotTested(f"profile {study.profile.name} trains {series} at one W only")
    return Measured.of([(versus(last.name, first.name), study.difference(last, first), (last, first))])


@measure(NATS, every=True)
def sigma_difference(study: Study) -> Measured:
    """Loss at the power-law document's range of sigma (or the sigma nearest to it) minus that at every other sigma."""
    best = recommended(study)
    pairs = [(model, other) for model in best for other in study.find("Power law", budget=model.labels.budget)
             if other not in best]
    if not pairs:
        raise NotTested(f"profile {study.profile.name} trains one sigma only")
    return Measured.of([(versus(a.name, b.name), study.difference(a, b), (a, b)) for a, b in pairs])


@measure(NATS, every=True)
def recommended_sigma_against(study: Study, *, other: str, at_equal_compute: bool = False) -> Measured:
    """Loss at the document's range of sigma minus that of `other`, at each budget. at_equal_compute: of `other` stopped
    where it has computed as much, as its own curve of training tells."""
    difference, words = ((comparisons.at_equal_compute, " at equal training compute") if at_equal_compute else
                         (Study.difference, ""))
    pairs = [(model, study.partner(model, other)) for model in recommended(study)]
    return Measured.of([(versus(a.name, b.name) + words, difference(study, a, b), (a, b)) for a, b in pairs])


@measure("nats, a mean over training", every=True, by_run=True)
def descent(study: Study, *, series: str, others: tuple[str, ...]) -> Measured:
    """Training loss averaged over the steps, of `series` minus that of each of `others`; they have equal pairs, so that
    a step costs the same. Over seeds; of too few it has no interval."""
    return Measured.of([(f"Training loss of {a.name} minus {b.name}", comparisons.descent(study, a, b), (a, b))
                        for a, b in study.pairs((series,), others)])


def asked(window: int = 0, theta_lr: float = 1.0) -> dict[str, Any]:
    """The labels that a measure's arguments ask for; 0 and 1 ask for none."""
    return {**({"window": window} if window else {}), **({"theta_lr": theta_lr} if theta_lr != 1 else {})}


def versus(name: str, other: str, factor: int = 1) -> str:
    where = f" at {factor} times the training length" if factor > 1 else ""
    return f"Loss of {name} minus {other}{where}"
