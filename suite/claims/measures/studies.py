"""The suite's own questions: all patterns at equal pairs, and where long rungs pay against a local window of as many keys."""

from __future__ import annotations

import numpy as np

from suite.claims.evidence import Evidence, Found, NotTested, Part
from suite.claims.measures import measure
from suite.claims.measures.losses import (NATS, length_of, minus, versus,
                                          windows)
from suite.experiments.base import Job
from suite.study.findings import long_rungs
from suite.study.findings.long_rungs import LOCAL, Pair
from suite.study.stats import Interval, accuracy_difference, bootstrap_mean
from suite.study.trend import fit, linearised


@measure(NATS)
def against_local(evidence: Evidence, *, series: str, factor: int = 1) -> Found:
    """Loss of the pattern whose series begins with `series` minus that of the local window of equal pairs, at `factor` times
    the training length."""
    found = [model for model in evidence.models if model.series.startswith(series) and model.text]
    local = [model for model in evidence.models if model.series == LOCAL]
    if len(found) != 1 or not local:
        raise NotTested(f"profile {evidence.profile.name} does not train one {series} beside a local window of equal pairs")
    model, length = found[0], length_of(evidence, found[0], factor)
    seeds = evidence.losses.shared_seeds(model.name, local[0].name)
    difference = minus(*(windows(evidence, each, length, seeds=seeds) for each in (model, local[0])))
    return Found((Part(versus(model.name, local[0].name, factor), bootstrap_mean(difference)),), len(seeds),
                 (*model.jobs, *local[0].jobs))


@measure(NATS + " a doubling")
def token_trend(evidence: Evidence, *, series: str) -> Found:
    """What each doubling of the training tokens adds to the loss of `series` minus that of the local window of equal pairs:
    the slope of a line through runs of several lengths, each with a schedule of its own."""
    pairs = paired(evidence, series, evidence.profile.train.length)
    points = long_rungs.points(evidence.jobs, evidence.database, series, evidence.profile.train.length)
    trend = fit(points.table["tokens"], points.table["estimate"])
    if trend is None:
        raise NotTested(f"profile {evidence.profile.name} trains too few runs of {series} for a trend")
    fewest = int(points.table.groupby("tokens")["seed"].nunique().min())
    return Found((Part(f"Change of the loss of {series} minus local window a doubling of the tokens", trend.slope),), fewest,
                 jobs_of(pairs))


@measure(NATS)
def length_change(evidence: Evidence, *, series: str) -> Found:
    """Loss of `series` minus that of the local window, when both are trained at the longest length minus when at the shortest;
    the same held-out tokens, so many training tokens."""
    _ = paired(evidence, series)
    by_length = long_rungs.at_share(evidence.jobs, series, evidence.parameters.length_fraction)
    lengths = sorted(by_length)
    if len(lengths) < 2 or lengths[-1] % lengths[0]:
        raise NotTested(f"profile {evidence.profile.name} trains {series} at one length, or at none that divides the longest")
    short, long = (long_rungs.over_seeds(by_length[length], evidence.database) for length in (lengths[0], lengths[-1]))
    ratio = lengths[-1] // lengths[0]
    change = [y - x[:, :y.shape[1] * ratio].reshape(*y.shape, ratio).mean(axis=-1) for x, y in zip(short, long, strict=True)]
    found = bootstrap_mean(change)
    what = f"Loss of {series} minus local window, trained at {lengths[-1]} tokens of context minus at {lengths[0]}"
    return Found((Part(what, found),), found.seeds, jobs_of([pair for own in by_length.values() for pair in own]))


@measure(NATS)
def far_evidence(evidence: Evidence, *, series: str, beyond: str) -> Found:
    """Loss of `series` minus that of the local window on tokens whose context stood before, further back than one layer of
    the window (`beyond: window`) or its whole stack (`beyond: stack`) reaches; whole bins of the recurrence evaluation."""
    length = evidence.profile.train.length
    pairs = [pair for pair in long_rungs.whole(paired(evidence, series, length))
             if any(own.name == "recurrence" for own in pair[0].evaluations)]
    if not pairs:
        raise NotTested(f"profile {evidence.profile.name} does not ask {series} for recurrence")
    widths = long_rungs.stack_of(pairs[0][1].run).widths
    reach = max(map(max, widths)) if beyond == "window" else sum(max(row) for row in widths)
    edges = dict(evidence.evaluation(pairs[0][0], "recurrence").parameters)["edges"]
    kept = [at for at, first in enumerate(edges) if first > reach]
    if not kept:
        raise NotTested(f"the local window's {beyond} reaches {reach} of {length} tokens: no bin lies beyond")

    def summed(job: Job, kind: str) -> np.ndarray:
        return np.concatenate([evidence.array(job, "recurrence", f"{kind}.{domain}")[:, kept].sum(axis=1)
                               for domain in evidence.database.corpus.domains])
    sums = np.stack([summed(own, "recurrence") - summed(local, "recurrence") for own, local in pairs])
    found = bootstrap_mean([linearised(sums, summed(pairs[0][0], "recurrence_count"))])
    what = f"Loss of {series} minus local window on tokens whose context stood {edges[kept[0]]} or more tokens before"
    return Found((Part(what, found),), found.seeds, jobs_of(pairs))


@measure("accuracy")
def copy_gain(evidence: Evidence, *, series: str) -> Found:
    """Accuracy of `series` minus that of the local window of equal pairs in planted copies, at the longest distance."""
    copied = long_rungs.copied(evidence.jobs, evidence.database)
    distances = [distance for name, distance in copied if name == series and (LOCAL, distance) in copied]
    if not distances:
        raise NotTested(f"profile {evidence.profile.name} does not train {series} and a local window on planted copies")
    longest = max(distances)
    found: Interval = accuracy_difference(copied[series, longest], copied[LOCAL, longest])
    jobs = tuple(job for job in evidence.jobs if job.run.data.source != "text" and long_rungs.series(job) in (series, LOCAL)
                 and job.labels.distance == longest)
    return Found((Part(f"Accuracy of {series} minus local window, copying over {longest} tokens", found),), found.seeds, jobs)


def paired(evidence: Evidence, series: str, length: int | None = None) -> list[Pair]:
    """Runs of `series` beside the local window's with the same tokens, length and seed."""
    found = long_rungs.pairs(evidence.jobs, series, length)
    if not found:
        raise NotTested(f"profile {evidence.profile.name} does not train {series} beside a local window")
    return found


def jobs_of(pairs: list[Pair]) -> tuple[Job, ...]:
    return tuple(dict.fromkeys(job for pair in pairs for job in pair))
