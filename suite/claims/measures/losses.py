"""Held-out losses compared: on the same windows, of the same seeds (nats a token)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from suite.claims.evidence import (Evidence, Found, Model, NotTested, Part,
                                   paired, pattern_of)
from suite.claims.measures import measure
from suite.plan.flops import training_flops
from suite.study.findings.power_law_sigma import RECOMMENDED
from suite.study.stats import ENOUGH_SEEDS, bootstrap_mean, mean_over_runs

NATS = "nats a token"
Windows = list[np.ndarray]


@measure(NATS, every=True)
def loss_difference(evidence: Evidence, *, series: tuple[str, ...], others: tuple[str, ...], window: int = 0,
                    setting: tuple[str, ...] = (), factor: int = 1, variant: str = "", other_variant: str = "") -> Found:
    """Loss of each of `series` minus that of each of `others`, at `factor` times the training length."""
    found = []
    for model, other in pairs(evidence, series, others, window, setting):
        length = length_of(evidence, model, factor)
        seeds = evidence.losses.shared_seeds(model.name, other.name)
        mine = windows(evidence, model, length, variant, seeds=seeds)
        theirs = windows(evidence, other, length, other_variant, seeds=seeds)
        named = [f"{m.name}, {v}" if v else m.name for m, v in ((model, variant), (other, other_variant))]
        found.append((versus(*named, factor), minus(mine, theirs), (model, other)))
    return compared(found)


@measure(NATS, every=True)
def loss_growth(evidence: Evidence, *, series: tuple[str, ...], factor: int, variant: str = "") -> Found:
    """Loss at `factor` times the training length minus that at the training length, of the same tokens."""
    found = []
    for model in [m for name in series for m in every(evidence, name)]:
        growth = grown(evidence, model, factor, variant)
        named = f"{model.name}, {variant}," if variant else model.name
        what = f"Loss of {named} at {factor} times the training length minus at that length"
        found.append((what, growth, (model,)))
    return compared(found)


@measure(NATS, every=True)
def growth_difference(evidence: Evidence, *, series: tuple[str, ...], others: tuple[str, ...], factor: int) -> Found:
    """How much more the loss of `series` grows with the length than that of `others`."""
    found = []
    for model, other in pairs(evidence, series, others):
        seeds = evidence.losses.shared_seeds(model.name, other.name)
        mine, theirs = (grown(evidence, m, factor, seeds=seeds) for m in (model, other))
        what = f"Growth of the loss to {factor} times the training length, {model.name} minus {other.name}"
        found.append((what, minus(mine, theirs), (model, other)))
    return compared(found)


@measure(NATS, every=True)
def gain_by_position(evidence: Evidence, *, series: str, other: str, early: int, late: int) -> Found:
    """How much more `series` gains over `other` from position `late` on than before position `early`."""
    found = []
    for model, other_model in pairs(evidence, (series,), (other,)):
        length = model.length
        if not early <= late < length:
            raise NotTested(f"a training window of {length} tokens has no positions from {late} on")
        seeds = evidence.losses.shared_seeds(model.name, other_model.name)
        gains = [minus(*(windows(evidence, m, length, positions=where, seeds=seeds) for m in (other_model, model)))
                 for where in ((late, length), (0, early))]
        what = f"Gain of {model.name} over {other_model.name} from position {late} on minus before position {early}"
        found.append((what, minus(*gains), (model, other_model)))
    return compared(found)


@measure(NATS, every=True)
def context_gain(evidence: Evidence, *, series: tuple[str, ...], other: str, factor: int) -> Found:
    """What tokens beyond the training length gain over those before, of `series` minus the same of a control to which
    context beyond the training length is invisible, so that what the text itself does at those positions cancels."""
    found = []
    for model, control in pairs(evidence, series, (other,)):
        trained, long = model.length, length_of(evidence, model, factor)
        seeds = evidence.losses.shared_seeds(model.name, control.name)
        gains = [minus(*(windows(evidence, m, long, positions=where, seeds=seeds)
                         for where in ((trained, long), (trained // 2, trained)))) for m in (model, control)]
        found.append((f"Change of the loss beyond the training length, {model.name} minus {control.name}", minus(*gains),
                      (model, control)))
    return compared(found)


@measure(NATS)
def largest_window(evidence: Evidence, *, series: str) -> Found:
    """Loss at the largest W that is trained minus that at the smallest."""
    models = sorted(evidence.find(series), key=lambda m: m.window)
    if len(models) < 2:
        raise NotTested(f"profile {evidence.profile.name} trains {series} at one W only")
    first, last = models[0], models[-1]
    seeds = evidence.losses.shared_seeds(first.name, last.name)
    mine, theirs = (windows(evidence, m, m.length, seeds=seeds) for m in (last, first))
    return compared([(versus(last.name, first.name), minus(mine, theirs), (last, first))])


@measure(NATS, every=True)
def sigma_difference(evidence: Evidence) -> Found:
    """Loss at the power-law document's range of sigma (or the sigma nearest to it) minus that at every other sigma."""
    found = []
    for model in recommended(evidence):
        for other in evidence.find("Power law"):
            if budget(other) == budget(model) and not in_range(evidence, sigma(other)):
                seeds = evidence.losses.shared_seeds(model.name, other.name)
                length = model.length
                mine, theirs = (windows(evidence, m, length, seeds=seeds) for m in (model, other))
                found.append((versus(model.name, other.name), minus(mine, theirs), (model, other)))
    if not found:
        raise NotTested(f"profile {evidence.profile.name} trains one sigma only")
    return compared(found)


@measure(NATS, every=True)
def recommended_sigma_against(evidence: Evidence, *, other: str, at_equal_compute: bool = False) -> Found:
    """Loss at the document's range of sigma minus that of `other`, at each budget. at_equal_compute: of `other` stopped
    where it has computed as much, as its own curve of training tells."""
    found = []
    for model in recommended(evidence):
        control = evidence.partner(model, other)
        seeds = evidence.losses.shared_seeds(model.name, control.name)
        length = model.length
        mine, theirs = (windows(evidence, m, length, seeds=seeds) for m in (model, control))
        if at_equal_compute:
            theirs = [own + handicap(evidence, model, control, seeds)[:, None] for own in theirs]
        what = versus(model.name, control.name) + (" at equal training compute" if at_equal_compute else "")
        found.append((what, minus(mine, theirs), (model, control)))
    return compared(found)


@measure("nats, a mean over training", every=True, by_run=True)
def descent(evidence: Evidence, *, series: str, others: tuple[str, ...]) -> Found:
    """Training loss averaged over the steps, of `series` minus that of each of `others`; they have equal pairs, so that a
    step costs the same. Over seeds; of too few it has no interval."""
    parts, jobs = [], []
    for model, other in pairs(evidence, (series,), others):
        values = [mean_training_loss(evidence, a) - mean_training_loss(evidence, b) for a, b in paired(model, other)]
        parts.append(over_seeds(f"Training loss of {model.name} minus {other.name}", values))
        jobs += [job for own in paired(model, other) for job in own]
    return Found(tuple(parts), min(len(m.jobs) for m in evidence.find(series)), tuple(dict.fromkeys(jobs)))


# Parts

def compared(found: Sequence[tuple[str, Windows, tuple[Model, ...]]]) -> Found:
    """Intervals of window differences, with the runs of the models behind them."""
    parts = tuple(Part(what, bootstrap_mean(own)) for what, own, _ in found)
    models = [m for _, _, own in found for m in own]
    jobs = tuple(dict.fromkeys(job for m in models for job in m.jobs))
    return Found(parts, min(part.value.seeds for part in parts), jobs)


def over_seeds(what: str, values: Sequence[float]) -> Part:
    """A number that each run has one of: with an interval from three seeds on, else the plain mean."""
    return Part(what, mean_over_runs(values) if len(values) >= ENOUGH_SEEDS else float(np.mean(values)))


def versus(name: str, other: str, factor: int = 1) -> str:
    where = f" at {factor} times the training length" if factor > 1 else ""
    return f"Loss of {name} minus {other}{where}"


def minus(a: Windows, b: Windows) -> Windows:
    return [x - y for x, y in zip(a, b, strict=True)]


def every(evidence: Evidence, series: str) -> list[Model]:
    """The models of a series, or those of a group: the Fibonacci paper's sparse models that are trained here."""
    if series != "the paper's sparse models":
        return evidence.find(series)
    found = [m for m in evidence.models if m.jobs[0].labels.base in ("fibonacci", "pow2") and not m.setting
             and m.jobs[0].labels.schedule in ("fixed", "linear", "coprime", "learned")]
    if not found:
        raise NotTested(f"profile {evidence.profile.name} trains none of {series} in notebook {evidence.notebook}")
    return found


def pairs(evidence: Evidence, series: Sequence[str], others: Sequence[str], window: int = 0,
          setting: Sequence[str] = (), text: bool = True) -> list[tuple[Model, Model]]:
    """Each model of `series` beside its partner of each of `others`; one without a window beside all of theirs."""
    found = []
    for name, other in [(name, other) for name in series for other in others]:
        models = evidence.find(name, window=window, setting=setting, text=text)
        theirs = [m for m in evidence.models if m.series == evidence.resolve(other) and m.window is not None]
        if models[0].window is None and theirs:
            there = evidence.find(other, window=window, setting=setting, text=text)
            found += [(evidence.partner(their, name), their) for their in there]
        else:
            found += [(model, evidence.partner(model, other)) for model in models]
    return found


def length_of(evidence: Evidence, model: Model, factor: int) -> int:
    """`factor` times the training length, if the model is evaluated there."""
    if factor > 1 and factor not in getattr(evidence.parameters, "factors", ()):
        raise NotTested(f"profile {evidence.profile.name} does not evaluate at {factor} times the training length")
    return factor * model.length


def windows(evidence: Evidence, model: Model, length: int, variant: str = "", positions: tuple[int, int] | None = None,
            seeds: Sequence[int] = ()) -> Windows:
    """`Losses.windows`; a variant that the profile does not ask for is not tested."""
    asked = {dict(e.parameters).get("variant", "") for job in model.jobs for e in job.evaluations if e.name == "perplexity"}
    if variant not in asked:
        raise NotTested(f"profile {evidence.profile.name} does not evaluate {model.name} with {variant}")
    return evidence.losses.windows(model.name, length, variant, positions, seeds)


def grown(evidence: Evidence, model: Model, factor: int, variant: str = "", seeds: Sequence[int] = ()) -> Windows:
    long, trained = length_of(evidence, model, factor), model.length
    windows(evidence, model, long, variant, seeds=seeds)               # is it there?
    return evidence.losses.grown(model.name, trained, long, variant, seeds)


def mean_training_loss(evidence: Evidence, job) -> float:
    rows = evidence.metrics(job)
    return float(rows.loc[(rows["measure"] == "train_loss") & rows["step"].notna(), "value"].mean())


# The power-law document's sigma

def part_of(model: Model, key: str) -> str:
    return next(part.partition("=")[2] for part in model.setting if part.startswith(f"{key}="))


def sigma(model: Model) -> float:
    return float(part_of(model, "sigma"))


def budget(model: Model) -> str:
    return part_of(model, "B")


def in_range(evidence: Evidence, value: float) -> bool:
    """Whether a sigma is one that the document recommends, or the nearest to its range that is trained."""
    sigmas = {sigma(m) for m in evidence.find("Power law")}
    inside = {s for s in sigmas if RECOMMENDED[0] <= s <= RECOMMENDED[1]}
    return value in (inside or {min(sigmas, key=lambda s: abs(s - sum(RECOMMENDED) / 2))})


def recommended(evidence: Evidence) -> list[Model]:
    return [m for m in evidence.find("Power law") if in_range(evidence, sigma(m))]


def handicap(evidence: Evidence, model: Model, other: Model, seeds: Sequence[int]) -> np.ndarray:
    """What each run of `other` still gained after the operations that `model` needs for its whole training (nats, `[S]`).

    From its curve: light held-out evaluations, or the training loss where there are none in between.
    """
    flops = [training_flops(m.jobs[0].run, pattern_of(m.jobs[0]).pairs(m.length)) for m in (model, other)]
    share = flops[0] / flops[1]
    if share > 1:
        raise NotTested(f"{model.name} computes more than {other.name}")
    return np.array([after(evidence, other.by_seed[seed], share) for seed in seeds])


def after(evidence: Evidence, job, share: float) -> float:
    rows = evidence.metrics(job)
    rows = rows[rows["step"].notna()]
    curves = [rows[rows["measure"] == name].groupby("step")["value"].mean().sort_index() for name in ("nll", "train_loss")]
    curve = next(own for own in curves if len(own) > 1)
    steps = curve.index.to_numpy(float)
    return max(0.0, float(np.interp(share * steps[-1], steps, curve.to_numpy(float))) - float(curve.iloc[-1]))
