"""Comparisons that several notebooks make: every model against one, growth with length, losses by bins of positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from lib.errors import SuiteError
from suite.study.conclusions import corrected_signs, listing
from suite.study.frames import interval, row, stack_of
from suite.study.losses import Losses
from suite.study.stats import seed_words
from suite.study.tables import named

WORDS = {"below": "lower loss", "above": "higher loss", "undecided": "not told apart"}


def against(losses: Losses, reference: str, names: Iterable[str] | None = None, **where: Any) -> pd.DataFrame:
    """`Study.against`: every model minus `reference`, with intervals; one row a model, lowest first."""
    return losses.study.against(reference, names, **where)


def standing(table: pd.DataFrame, reference: str) -> str:
    """Which models of `against` are better, worse, or neither; with Holm's correction, as many are compared at once."""
    found = [interval(own) for _, own in table.iterrows()]
    signs = pd.Series(corrected_signs(found), index=table.index)
    parts = [f"{WORDS[sign]}: {listing([_with(name, table) for name in signs.index[signs == sign]])}"
             for sign in WORDS if (signs == sign).any()]
    how = ["nats a token", f"Holm-corrected over {len(found)} comparisons" if len(found) > 1 else "",
           seed_words(min(own.seeds for own in found))]
    return f"Against {reference} ({', '.join(filter(None, how))}) — {'; '.join(parts)}."


def _with(name: str, table: pd.DataFrame) -> str:
    return f"{name} ({table.loc[name, 'estimate']:+z.3f})"


def find(runs: pd.DataFrame, series: str, window: int | None = None) -> str:
    """The name in figures of a series (at a window, where it has several); its first setting."""
    rows = named(runs)
    rows = rows[(rows["series"] == series) & (True if window is None else rows["window"] == window)]
    if rows.empty:
        raise SuiteError(f"no series {series!r} in the table (there: {', '.join(sorted(set(runs['series'])))})")
    return rows.sort_values("name", key=lambda n: n.str.len())["name"].iloc[0]


def has(runs: pd.DataFrame, *series: str) -> bool:
    """Whether all these series were trained (a parameter may leave some out)."""
    return set(series) <= set(runs["series"])


def by_bin(losses: Losses, name: str, other: str, edges: Sequence[int], **where: Any) -> pd.DataFrame:
    """Loss of `name` minus that of `other` in each bin of positions, with intervals; index: first position."""
    rows = [row(losses.difference(name, other, positions=(int(a), int(b)), **where), position=int(a))
            for a, b in zip(edges[:-1], edges[1:], strict=True)]
    return pd.DataFrame(rows).set_index("position")


def bins(length: int) -> list[int]:
    """Edges of the bins in which evaluations keep losses (`suite.evals.scoring.position_bins`)."""
    return [*(e for e in (0, 8, 16, 32, 64) if e < length), *range(128, length, 128), length]


def equal_edges(plan: pd.DataFrame) -> str:
    """Whether every control of a plan has the attended pairs that it should have, within 1 %."""
    rows = plan.dropna(subset="equal to").drop_duplicates("model")
    if rows.empty:
        return "No control of equal edges is trained (`controls` is empty)."
    off = (rows["pairs"] / rows["equal to"] - 1).abs()
    assert off.max() <= 0.01, f"{rows.loc[off.idxmax(), 'model']} is {off.max():.1%} off its pairs"
    return f"Equal edges hold within {100 * off.max():.2f} %: {listing(list(rows['model']))}."


def reference(runs: pd.DataFrame, window: int | None = None) -> str:
    """What models are measured against: the local window of equal edges, or dense where that was not trained."""
    local = "Local window, equal edges"
    return find(runs, local, window) if has(runs, local) else find(runs, "Dense")


def patterns_of(jobs: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """Each model's pattern by its name, language models only, first seed."""
    found: dict[str, Any] = {}
    for job, name in zip(jobs, names, strict=True):
        if job.run.data.source == "text":
            found.setdefault(name, stack_of(job.run))
    return found
