"""The suite's own question: where long rungs pay against a local window of as many keys."""

from __future__ import annotations

from suite.claims.evidence import Measured
from suite.claims.measures import measure
from suite.claims.measures.losses import NATS
from suite.study import comparisons
from suite.study.comparisons import LOCAL
from suite.study.frames import NotTested, Study


@measure(NATS + " a doubling")
def token_trend(study: Study, *, series: str) -> Measured:
    """What each doubling of the training tokens adds to the loss of `series` minus that of the local window of equal
    pairs: the slope of a line through runs of several lengths, each with a schedule of its own."""
    T = study.profile.train.length
    pairs = comparisons.beside_local(study, series, T)
    trend = comparisons.token_trend(study, series, T)
    if trend is None:
        raise NotTested(f"profile {study.profile.name} trains too few runs of {series} for a trend")
    fewest = min(len(study.shared_seeds(*pair)) for pair in pairs)
    what = f"Change of the loss of {series} minus local window a doubling of the tokens"
    return Measured.one(what, trend.slope, pairs, fewest)


@measure(NATS)
def length_change(study: Study, *, series: str) -> Measured:
    """Loss of `series` minus that of the local window, when both are trained at the longest length minus when at the
    shortest; the same held-out tokens, so many training tokens."""
    share = study.parameters.length_fraction
    change, short, long = comparisons.length_change(study, series, share)
    what = f"Loss of {series} minus local window, trained at {long} tokens of context minus at {short}"
    return Measured.one(what, change, comparisons.at_share(study, series, share).values(), change.seeds)


@measure(NATS)
def far_evidence(study: Study, *, series: str, beyond: str) -> Measured:
    """Loss of `series` minus that of the local window on tokens whose context stood before, further back than one layer
    of the window (`beyond: window`) or its whole stack (`beyond: stack`) reaches; whole bins of the recurrence
    evaluation."""
    T = study.profile.train.length
    pair = comparisons.with_recurrence(study, series, T)
    reach, edges = comparisons.reaches(pair[1])[beyond], comparisons.recurrence_edges(study, pair[0])
    bins = [at for at, first in enumerate(edges) if first > reach]
    if not bins:
        raise NotTested(f"the local window's {beyond} reaches {reach} of {T} tokens: no bin lies beyond")
    what = f"Loss of {series} minus local window on tokens whose context stood {edges[bins[0]]} or more tokens before"
    return Measured.of([(what, comparisons.recurrence_difference(study, pair, bins), pair)])


@measure("accuracy")
def copy_gain(study: Study, *, series: str) -> Measured:
    """Accuracy of `series` minus that of the local window of equal pairs in planted copies, at the longest distance."""
    gains = comparisons.copy_gains(study, series)
    if not gains:
        raise study.untrained(f"{series} and a local window on planted copies")
    longest = max(gains)
    models = [comparisons.copy_models(study, name)[longest] for name in (series, LOCAL)]
    what = f"Accuracy of {series} minus local window, copying over {longest} tokens"
    return Measured.of([(what, gains[longest], models)])
