"""Notebook 9: long rungs beside the local window of as many keys, by tokens, length, text, evidence and copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from lib.config import TrainConfig
from lib.patterns import EdgeTable, Pattern
from suite import published
from suite.experiments.base import Job
from suite.study.comparisons import (LOCAL, Pair, beside_local, by_length, by_tokens, copy_gains, copy_models, reaches,
                                     recurrence_difference, recurrence_edges, sequences, whole, with_recurrence)
from suite.study.conclusions import corrected_signs
from suite.study.figures import short
from suite.study.frames import Study, interval, row
from suite.study.stats import Interval, accuracy
from suite.study.trend import Trend

PAPER_TOKENS = TrainConfig().tokens             # of one of the paper's runs: 425,984,000


def compared(study: Study) -> list[str]:
    """The series that have losses by distance to the evidence, which are the whole runs beside the local window."""
    names = dict.fromkeys(model.labels.series for model in study.language_models
                          if any(evaluation.name == "recurrence" for evaluation in model.jobs[0].evaluations))
    return sorted(set(names) - {LOCAL}, key=lambda name: (name == "Dense", list(names).index(name)))


def swept(study: Study) -> list[str]:
    """The series that are compared at several numbers of tokens or of seeds, or at several lengths."""
    return [name for name in compared(study) if name != "Dense"
            and sum(len(study.shared_seeds(*pair)) for pair in beside_local(study, name)) > 1]


def stacks(study: Study, length: int) -> dict[str, Pattern]:
    """Patterns by series at one training length, if their distances are the same for every query; the local window
    first."""
    models = {model.labels.series: model for model in study.language_models
              if model.length == length and model.labels.role != "baseline"}
    return {name: models[name].pattern for name in sorted(models, key=lambda name: name != LOCAL)
            if not isinstance(models[name].pattern.plan(0, length), EdgeTable)}


def logged(study: Study, pair: Pair) -> pd.DataFrame:
    """Difference in the held-out losses that runs log on their way: index tokens, a column a seed.

    Of a few windows and in the middle of a run's own schedule, so that they say less than runs that end there.
    """
    def curve(job: Job) -> pd.Series:
        rows = study.metrics(job)
        return rows[(rows["measure"] == "nll") & rows["step"].notna()].groupby("step")["value"].mean()
    train = pair[0].run.train
    table = pd.DataFrame({f"seed {job.run.train.seed}": curve(job) - curve(local)
                          for job, local in study.paired(*pair)})
    return table.set_axis((table.index.astype(float) * (train.tokens / train.steps)).astype(int))


def line(trend: Trend | None, until: int = PAPER_TOKENS) -> pd.DataFrame:
    """The fitted line with its prediction band from the fewest tokens to `until`."""
    if trend is None:
        return pd.DataFrame()
    at = np.geomspace(trend.tokens.min(), max(until, trend.longest), 40)
    return pd.DataFrame([row(trend.extrapolated(tokens), tokens=tokens) for tokens in at]).set_index("tokens")


def extrapolation(trends: Mapping[str, Trend | None], tokens: int = PAPER_TOKENS) -> pd.DataFrame:
    """What the line of each series says at the paper's tokens, how far that is from the data, and where it is zero."""
    rows = [{"series": name, "pairs of runs": len(trend.values),
             "doublings seen": np.log2(trend.longest / trend.tokens.min()),
             "doublings beyond": max(0.0, np.log2(tokens / trend.longest)),
             **row(trend.extrapolated(tokens)), "zero at, tokens": trend.crossing() or np.nan}
            for name, trend in trends.items() if trend is not None]
    return pd.DataFrame(rows).drop(columns=["seeds", "df"], errors="ignore")


def points(values: Mapping[Any, Interval], index: str) -> pd.DataFrame:
    """Intervals as points of a figure."""
    return pd.DataFrame([row(value, **{index: key}) for key, value in values.items()]).set_index(index)


def by_domain(study: Study, names: Sequence[str], length: int) -> pd.DataFrame:
    """Loss of the whole runs of each series minus that of the local window; `group` is the held-out domain."""
    pairs = {name: whole(beside_local(study, name, length))[0] for name in names}
    return pd.DataFrame([row(study.difference(*pair, domains=[domain]), name=name, group=domain)
                         for domain in study.database.corpus.domains for name, pair in pairs.items()]).set_index("name")


def by_evidence(study: Study, series: str, length: int, kind: str = "recurrence") -> pd.DataFrame:
    """The difference in each bin of distance to the evidence, all text together, and the bin's share of the tokens.

    kind: of `suite.evals.recurrence.KINDS`. Bins without a token are left out.
    """
    pair = with_recurrence(study, series, length)
    edges, job = recurrence_edges(study, pair[0]), pair[0].jobs[0]
    names = [f"{first}-{end - 1}" for first, end in zip(edges, [*edges[1:], length], strict=True)] + ["first time"]
    counts = sum(study.array(job, "recurrence", f"{kind}_count.{domain}").sum(axis=0)
                 for domain in study.database.corpus.domains)
    rows = [row(recurrence_difference(study, pair, [at], kind), bin=name, share=counts[at] / counts.sum())
            for at, name in enumerate(names) if counts[at] > 0]
    return pd.DataFrame(rows).set_index("bin")


def reach_marks(study: Study, series: str, length: int) -> dict[str, float]:
    """Where in the figure of bins the reach of one layer of the local window ends, and where that of its stack does."""
    model, local = with_recurrence(study, series, length)
    edges, marks = recurrence_edges(study, model), {}
    ends = [*edges[1:], length]
    for name, reach in zip(("one window", "the stack"), reaches(local).values(), strict=True):
        if reach < length - 1:
            at = max(bin_ for bin_, edge in enumerate(edges) if edge <= reach)
            marks[name] = at - 0.5 + (reach + 1 - edges[at]) / (ends[at] - edges[at])
    return marks


def copies(study: Study) -> dict[str, pd.DataFrame]:
    """Accuracy of planted copies with its interval over sequences: a table a series, index the distance."""
    names = dict.fromkeys(model.labels.series for model in study.models if model.labels.task == "copying")
    return {name: points({distance: accuracy(sequences(study, model.jobs, "copying"))
                          for distance, model in sorted(copy_models(study, name).items())}, "distance")
            for name in names}


def published_gain() -> pd.DataFrame:
    """Published: fixed rungs minus the ramp at W = 8, nats a token: rows are training tokens, columns datasets."""
    table = published.read("training_curves").query("window == 8 and seed == 42 and base == 'fibonacci'")
    losses = table.assign(loss=np.log(table["perplexity"])).pivot_table(index="step", columns=["schedule", "dataset"],
                                                                       values="loss")
    gain = losses["fixed"] - losses["linear"]
    return gain.set_axis(gain.index * (PAPER_TOKENS // TrainConfig().steps))


def answer(study: Study, series: str, share: float, length: int) -> pd.DataFrame:
    """Where a series is better and where worse than the local window: a row an axis, corrected by Holm over all
    comparisons of the table. share: of a whole run's tokens, in the comparison of lengths."""
    domains, evidence = by_domain(study, [series], length).set_index("group"), by_evidence(study, series, length)
    axes = {"training tokens": {short(tokens): found for tokens, found in by_tokens(study, series, length).items()},
            "training length": by_length(study, series, share),
            "text": {name: interval(own) for name, own in domains.iterrows()},
            "distance to the evidence": {name: interval(own) for name, own in evidence.iterrows()},
            "planted copies": {distance: replace(gain, estimate=-gain.estimate, low=-gain.high, high=-gain.low)
                               for distance, gain in copy_gains(study, series).items()}}      # below 0: better
    cells = [(axis, str(name), found) for axis, values in axes.items() for name, found in values.items()]
    table = pd.DataFrame(cells, columns=["axis", "at", "sign"]).assign(sign=corrected_signs([own for *_, own in cells]))
    places = {words: table[table["sign"] == sign].groupby("axis")["at"].agg(", ".join)
              for sign, words in (("below", "better at"), ("above", "worse at"))}
    counts = table.groupby("axis", sort=False).size()
    return pd.DataFrame({"comparisons": counts, **places}).loc[counts.index].fillna("nowhere")
