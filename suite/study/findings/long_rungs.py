"""Notebook 9: long rungs beside the local window of as many keys, by tokens, length, text, evidence and copies."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lib.config import TrainConfig
from lib.patterns import EdgeTable, Pattern
from suite.study.comparisons import (LOCAL, Pair, beside_local, by_length, copy_gains, copy_models, reaches,
                                     recurrence_difference, recurrence_edges, task_accuracy, tokens_of, whole,
                                     with_recurrence)
from suite.study.figures import short
from suite.study.frames import Study, as_table, row
from suite.study.stats import Trend, corrected_signs

PAPER_TOKENS = TrainConfig().tokens             # of one of the paper's runs: 425,984,000


def compared(study: Study) -> list[str]:
    """The series that have losses by distance to the evidence (whole runs beside the local window); dense last."""
    names = dict.fromkeys(model.labels.series for model in study.language_models if model.asked("recurrence"))
    return sorted((name for name in names if name != LOCAL), key=lambda name: name == "Dense")


def swept(study: Study) -> list[str]:
    """The series that are compared at several numbers of tokens or of seeds, or at several lengths."""
    return [name for name in compared(study) if name != "Dense"
            and sum(len(study.shared_seeds(*pair)) for pair in beside_local(study, name)) > 1]


def stacks(study: Study, length: int) -> dict[str, Pattern]:
    """Patterns of one training length whose distances are the same for every query, by series; local window first."""
    models = {model.labels.series: model for model in study.language_models
              if model.length == length and model.labels.role != "baseline"}
    return {name: models[name].pattern for name in sorted(models, key=lambda name: name != LOCAL)
            if not isinstance(models[name].pattern.plan(0, length), EdgeTable)}


def logged(study: Study, pair: Pair) -> pd.DataFrame:
    """Difference in the held-out losses that runs log on their way, of few windows: index tokens, a column a seed."""
    train = pair[0].run.train
    table = pd.DataFrame({f"seed {job.run.train.seed}": study.curve(job, "nll") - study.curve(local, "nll")
                          for job, local in study.paired(*pair)})
    return table.set_axis((table.index.astype(float) * (train.tokens / train.steps)).astype(int))


def line(trend: Trend | None) -> pd.DataFrame:
    """The fitted line with its prediction band, from the fewest tokens to the paper's."""
    if trend is None:
        return pd.DataFrame()
    at = np.geomspace(trend.tokens.min(), max(PAPER_TOKENS, trend.tokens.max()), 40)
    return as_table({tokens: trend.extrapolated(tokens) for tokens in at}, "tokens")


def extrapolation(trends: Mapping[str, Trend | None], tokens: int = PAPER_TOKENS) -> pd.DataFrame:
    """What the line of each series says at the paper's tokens, how far that is from the data, and where it is zero."""
    rows = []
    for name, trend in [(name, trend) for name, trend in trends.items() if trend is not None]:
        longest, there = trend.tokens.max(), trend.extrapolated(tokens)
        rows.append((name, len(trend.tokens), np.log2(longest / trend.tokens.min()),
                     max(0.0, np.log2(tokens / longest)), there.estimate, there.low, there.high,
                     trend.crossing() or np.nan))
    return pd.DataFrame(rows, columns=["series", "pairs of runs", "doublings seen", "doublings beyond",
                                       "estimate", "low", "high", "zero at, tokens"])


def by_domain(study: Study, names: Sequence[str], length: int) -> pd.DataFrame:
    """Loss of the whole runs of each series minus that of the local window; `group` is the held-out domain."""
    pairs = {name: whole(beside_local(study, name, length))[0] for name in names}
    return pd.DataFrame([row(study.difference(*pair, domains=[domain]), name=name, group=domain)
                         for domain in study.database.corpus.domains for name, pair in pairs.items()]).set_index("name")


def by_evidence(study: Study, series: str, length: int, kind: str = "recurrence") -> pd.DataFrame:
    """`recurrence_difference` in each bin that has tokens, and the bin's share of all tokens."""
    pair = with_recurrence(study, series, length)
    edges, job = recurrence_edges(study, pair[0]), pair[0].jobs[0]
    names = [f"{first}-{end - 1}" for first, end in zip(edges, [*edges[1:], length], strict=True)] + ["first time"]
    counts = sum(study.array(job, "recurrence", f"{kind}_count.{domain}").sum(axis=0)
                 for domain in study.database.corpus.domains)
    return as_table({name: recurrence_difference(study, pair, [at], kind) for at, name in enumerate(names)
                     if counts[at] > 0}, "bin").assign(share=counts[counts > 0] / counts.sum())


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
    return {name: as_table({distance: task_accuracy(study, model, "copying") for distance, model
                            in sorted(copy_models(study, name).items())}, "distance") for name in names}


def answer(study: Study, series: str, share: float, length: int) -> pd.DataFrame:
    """Where a series is better and where worse than the local window: a row an axis, corrected by Holm over all
    comparisons. share: of a whole run's tokens, in the comparison of lengths."""
    tables = {"training tokens": as_table({tokens_of(pair): study.difference(*pair) for pair in sorted(
                  beside_local(study, series, length), key=tokens_of)}).rename(short),
              "training length": by_length(study, series, share),
              "text": by_domain(study, [series], length).set_index("group"),
              "distance to the evidence": by_evidence(study, series, length),
              "planted copies": as_table(copy_gains(study, LOCAL, series))}          # a gain lies below 0, as in loss
    table = pd.concat(tables, names=["axis", "at"]).reset_index()
    table = table.assign(sign=corrected_signs(table), at=table["at"].astype(str))
    places = {words: table[table["sign"] == sign].groupby("axis")["at"].agg(", ".join)
              for sign, words in (("below", "better at"), ("above", "worse at"))}
    counts = table.groupby("axis", sort=False).size()
    return pd.DataFrame({"comparisons": counts, **places}).loc[counts.index].fillna("nowhere")
