"""Notebook 9: losses by recurrence distance, a family against its local window, bin by bin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from suite.experiments.base import Job
from suite.study.conclusions import corrected_signs, listing
from suite.study.findings.long_rungs import LOCAL, asked, pairs, series, whole
from suite.study.findings.shared import interval, row, stack_of
from suite.study.stats import mean_interval
from suite.study.trend import linearised


def bins_of(jobs: Sequence[Job], length: int) -> list[str]:
    """What the bins of recurrence distance are called."""
    edges = evaluation_of(next(job for job in jobs if asked(job)))[1]
    ends = [*(edge - 1 for edge in edges[1:]), length - 1]
    return [f"{first}-{last}" for first, last in zip(edges, ends, strict=True)] + ["first time"]


def evaluation_of(job: Job) -> tuple[Any, tuple[int, ...]]:
    evaluation = next(e for e in job.evaluations if e.name == "recurrence")
    return evaluation, dict(evaluation.parameters)["edges"]


def by_recurrence(jobs: Sequence[Job], database: Any, name: str, length: int, kind: str = "recurrence") -> pd.DataFrame:
    """The difference in each bin of recurrence distance, all text together, and the bin's share of the tokens.

    kind: of `suite.evals.recurrence.KINDS`.
    """
    found = [pair for pair in whole(pairs(jobs, name, length)) if asked(pair[0])]
    evaluation, domains = evaluation_of(found[0][0])[0], database.corpus.domains

    def all_text(job: Job, what: str) -> np.ndarray:
        return np.concatenate([database.array(job, evaluation, f"{what}.{domain}") for domain in domains])
    sums = np.stack([all_text(own, kind) - all_text(local, kind) for own, local in found])            # (S, N, bins + 1)
    counts = all_text(found[0][0], f"{kind}_count")                                                   # (N, bins + 1)
    rows = [row(mean_interval([linearised(sums[:, :, at], counts[:, at])]), bin=words,
                share=counts[:, at].sum() / counts.sum())
            for at, words in enumerate(bins_of(jobs, length)) if (counts[:, at] > 0).any()]
    return pd.DataFrame(rows).set_index("bin")


def reach_marks(jobs: Sequence[Job], length: int) -> dict[str, float]:
    """Where in the figure of bins the reach of one layer of the local window ends, and where that of its stack does."""
    job = next(job for job in jobs if asked(job) and series(job) == LOCAL)
    widths, (_, edges) = stack_of(job.run).widths, evaluation_of(job)
    ends, found = [*edges[1:], length], {}
    for words, far in (("one window", max(map(max, widths))), ("the stack", sum(max(row) for row in widths))):
        if far < length - 1:
            at = max(k for k, edge in enumerate(edges) if edge <= far)
            found[words] = at - 0.5 + (far + 1 - edges[at]) / (ends[at] - edges[at])
    return found


def by_panel(panels: Mapping[str, Mapping[str, pd.DataFrame]]) -> pd.DataFrame:
    """All differences by bin, with the share of tokens in each: a row a bin, columns by panel."""
    parts = {}
    for title, found in panels.items():
        parts[title, "share of tokens"] = next(iter(found.values()))["share"]
        parts |= {(title, name): table["estimate"] for name, table in found.items()}
    return pd.DataFrame(parts)


def say_recurrence(table: pd.DataFrame, name: str, kind: str) -> str:
    """At which recurrence distances the family is better or worse; corrected over the bins."""
    signs = corrected_signs([interval(r) for _, r in table.iterrows()])
    groups = {words: [f"{bin_} ({r['estimate']:+.3f})" for (bin_, r), own in zip(table.iterrows(), signs, strict=True)
                      if own == sign] for sign, words in (("below", "lower loss"), ("above", "higher loss"))}
    what = "Tokens whose context stood before" if kind == "recurrence" else "Those that copying from there gets right"
    told = "; ".join(f"{words} at distances {listing(cells)}" for words, cells in groups.items() if cells)
    return f"{what}: against the local window {name} has {told or 'no measurable difference at any distance'}."
