"""Notebook 9: where long rungs pay against a local window of as many keys: tokens, length, text, recurrence, copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lib.config import TrainConfig
from lib.patterns import EdgeTable, Pattern
from suite import published
from suite.experiments.base import Job
from suite.study import graph
from suite.study.conclusions import corrected_signs, listing
from suite.study.figures import short
from suite.study.findings.shared import interval, row, stack_of
from suite.study.losses import Losses
from suite.study.stats import (ENOUGH_SEEDS, Interval, accuracy,
                               accuracy_difference, mean_interval, seed_words)
from suite.study.tables import job_names
from suite.study.trend import Trend

LOCAL = "Local window, equal edges"
PAPER_TOKENS = TrainConfig().tokens             # of one of the paper's runs: 425,984,000
Pair = tuple[Job, Job]                          # a family's run and the local window's, alike in all but the pattern


def coverage(stacks: Mapping[str, Pattern], length: int) -> pd.DataFrame:
    """Share of the distances 0 to T - 1 that sums of one distance a layer reach, by number of layers; a column a stack."""
    found = {name: graph.stack_sums(pattern, length).mean(axis=1) for name, pattern in stacks.items()}
    return pd.DataFrame(found).rename_axis("layers")


def summed(pattern: Pattern, length: int) -> list[set[int]]:
    """The same distances by adding them up, one set a number of layers: the equation word by word."""
    reached = [{0}]
    for layer in range(pattern.layers):
        steps = pattern.plan(layer, length).distances
        reached.append({a + d for a in reached[-1] for d in steps if a + d < length})
    return reached


def say_coverage(table: pd.DataFrame, length: int) -> str:
    """After how many layers each stack bridges every distance of a window."""
    said = []
    for name in table:
        whole = table.index[table[name] == 1.0]
        far = f"all after {whole[0]} layers" if len(whole) else f"{table[name].iloc[-1]:.0%} after all layers"
        said.append(f"{name} {far}")
    return f"Of the distances below {length}, sums of one a layer reach: {'; '.join(said)}."


def stacks(jobs: Sequence[Job], length: int) -> dict[str, Pattern]:
    """Patterns at one training length whose distances are the same for every query, the local window first."""
    text = [job for job in jobs if job.run.data.source == "text" and job.run.train.length == length]
    found = {series(job): stack_of(job.run) for job in text if job.labels.role != "baseline"}
    return {name: found[name] for name in sorted(found, key=lambda name: name != LOCAL)
            if not isinstance(found[name].plan(0, length), EdgeTable)}


def compared(jobs: Sequence[Job], length: int) -> list[str]:
    """The series that have a local window beside them at a whole run, the first family first, dense last."""
    names = list(dict.fromkeys(series(job) for job in jobs if asked(job)))
    names = [name for name in names if name != LOCAL and pairs(jobs, name, length)]
    return sorted(names, key=lambda name: name == "Dense")


def asked(job: Job) -> bool:
    """Whether a run is asked for its losses by recurrence distance."""
    return any(evaluation.name == "recurrence" for evaluation in job.evaluations)


def swept(jobs: Sequence[Job], length: int) -> list[str]:
    """The series whose pairs have several numbers of tokens or of seeds, or several lengths: those compared in everything."""
    return [name for name in compared(jobs, length) if name != "Dense" and len(pairs(jobs, name)) > 1]


def series(job: Job) -> str:
    return job.labels.series


def pairs(jobs: Sequence[Job], name: str, length: int | None = None) -> list[Pair]:
    """Each run of a series beside the local window's with the same tokens, length and seed; at one training length or all."""
    text = [job for job in jobs if job.run.data.source == "text" and length in (None, job.run.train.length)]
    local = {job.run.train: job for job in text if series(job) == LOCAL}
    return [(job, local[job.run.train]) for job in text if series(job) == name and job.run.train in local]


def whole(found: Sequence[Pair]) -> list[Pair]:
    """Those of the most tokens."""
    most = max(own.run.train.tokens for own, _ in found)
    return [pair for pair in found if pair[0].run.train.tokens == most]


def differences(pair: Pair, database: Any) -> list[np.ndarray]:
    """Loss of the family minus that of the local window in each held-out window, an array `[N]` a domain (nats a token)."""
    losses, names = Losses(pair, database), job_names(pair)
    own, local = (losses.windows(name) for name in names)
    return [(a - b)[0] for a, b in zip(own, local, strict=True)]


def over_seeds(found: Sequence[Pair], database: Any) -> list[np.ndarray]:
    """`differences` of pairs that differ in their seed only, `[S, N]` a domain."""
    return [np.stack(domain) for domain in zip(*(differences(pair, database) for pair in found), strict=True)]


@dataclass(frozen=True)
class Points:
    """Pairs of runs by training tokens: a table (`tokens`, `seed`, the difference with its interval), and its windows."""
    table: pd.DataFrame
    windows: list[list[np.ndarray]]


def points(jobs: Sequence[Job], database: Any, name: str, length: int) -> Points:
    found = sorted(pairs(jobs, name, length), key=lambda pair: (pair[0].run.train.tokens, pair[0].run.train.seed))
    windows = [differences(pair, database) for pair in found]
    rows = [row(mean_interval(own), tokens=job.run.train.tokens, seed=job.run.train.seed)
            for (job, _), own in zip(found, windows, strict=True)]
    return Points(pd.DataFrame(rows), windows)


def by_tokens(jobs: Sequence[Job], database: Any, name: str, length: int) -> dict[int, Interval]:
    """The difference at each number of tokens, over its seeds."""
    found = pairs(jobs, name, length)
    amounts = sorted({own.run.train.tokens for own, _ in found})
    return {amount: mean_interval(over_seeds([p for p in found if p[0].run.train.tokens == amount], database))
            for amount in amounts}


def logged(runs: pd.DataFrame, name: str) -> pd.DataFrame:
    """The difference in the held-out losses that whole runs log on their way: index tokens, a column a seed.

    Of a few windows and in the middle of a run's own schedule, so that they say less than runs that end there.
    """
    most = runs.loc[runs["series"] == name, "train_tokens"].max()
    length = runs.loc[(runs["series"] == name) & (runs["train_tokens"] == most), "train_length"].min()
    rows = runs[(runs["measure"] == "nll") & runs["step"].notna() & (runs["train_tokens"] == most)
                & (runs["train_length"] == length) & runs["series"].isin([name, LOCAL])]
    if rows.empty:
        return pd.DataFrame()
    table = rows.pivot_table(index="step", columns=["series", "seed"], values="value", aggfunc="mean")
    found = (table[name] - table[LOCAL]).dropna(axis=1, how="all")
    found.index = (found.index.astype(float) * (most / float(rows["step"].max()))).astype(int)
    return found.rename(columns=lambda seed: f"seed {seed:g}")


def say_tokens(found: Mapping[int, Interval], name: str, trend: Trend | None) -> str:
    """The difference at each number of tokens, and whether it grows or shrinks."""
    listed = "; ".join(f"{short(tokens)}: {own.text()}{_seeds(own)}" for tokens, own in found.items())
    text = f"{name} minus local window, nats a token, by training tokens — {listed}."
    if trend is None:
        return f"{text} Too few whole runs for a trend."
    way = {"above": "moves in favour of the local window", "below": "moves in favour of the rungs",
           "undecided": "shows no trend that can be told from none"}[trend.slope.sign()]
    return f"{text} With each doubling of the tokens it {way}: {trend.slope.text(4)} nats."


def _seeds(own: Interval) -> str:
    return f", {seed_words(own.seeds)}" if seed_words(own.seeds) else ""


def say_extrapolation(trend: Trend | None, found: Points, name: str, tokens: int = PAPER_TOKENS) -> str:
    """What the line says at the paper's tokens, how far from the data that is, and where it crosses zero."""
    if trend is None:
        return "No line is fitted, so nothing is said of the paper's budget."
    if tokens <= trend.longest:
        return f"The paper's {tokens:,} tokens lie inside what was trained: no extrapolation is needed."
    there = trend.extrapolated(tokens)
    word = {"above": f"the local window would still be better than {name}", "below": f"{name} would be better",
            "undecided": "either might be better"}[there.sign()]
    crossing = trend.crossing()
    if crossing is None:
        zero = "no crossing can be named, as the slope is not told from zero or leads away from it"
    else:
        inside = crossing <= trend.longest
        side = "inside the tokens trained" if inside else f"{times(crossing / trend.longest)} the longest run"
        zero = f"the line crosses zero at {short(crossing)} tokens, {side}"
    return (f"Extrapolated to the paper's {tokens:,} tokens, {times(tokens / trend.longest)} the longest run here, a line in "
            f"log tokens gives {there.text()} nats a token: {word}; {zero}. This is no verdict: {len(trend.values)} pairs of "
            f"runs over {np.log2(trend.longest / trend.tokens.min()):.1f} doublings are asked about "
            f"{np.log2(tokens / trend.longest):.1f} doublings more, at another size of model.")


def times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.1f} times"


def line(trend: Trend | None, found: Points, until: int = PAPER_TOKENS) -> pd.DataFrame:
    """The fitted line with its prediction band from the fewest tokens to `until`, for the figure."""
    if trend is None:
        return pd.DataFrame()
    at = np.geomspace(trend.tokens.min(), max(until, trend.longest), 40)
    return pd.DataFrame([row(trend.extrapolated(tokens), tokens=tokens) for tokens in at]).set_index("tokens")


def at_share(jobs: Sequence[Job], name: str, share: float) -> dict[int, list[Pair]]:
    """Pairs by training length, of the runs whose tokens are nearest to this share of a whole run's (in whole steps)."""
    found, chosen = pairs(jobs, name), {}
    goal = share * max(own.run.train.tokens for own, _ in found)
    for length in sorted({own.run.train.length for own, _ in found}):
        here = [pair for pair in found if pair[0].run.train.length == length]
        nearest = min((own.run.train.tokens for own, _ in here), key=lambda tokens: abs(tokens - goal))
        chosen[length] = [pair for pair in here if pair[0].run.train.tokens == nearest]
    return chosen


def by_length(jobs: Sequence[Job], database: Any, name: str, share: float) -> dict[int, Interval]:
    """The difference at each training length, all at the same share of a whole run's tokens."""
    return {length: mean_interval(over_seeds(own, database)) for length, own in at_share(jobs, name, share).items()}


def say_lengths(found: Mapping[int, Interval], name: str) -> str:
    """The difference by training length, and whether the longest differs from the shortest."""
    listed = "; ".join(f"T = {length}: {own.text()}{_seeds(own)}" for length, own in found.items())
    text = f"{name} minus local window, nats a token, by training length — {listed}."
    if len(found) < 2:
        return f"{text} One length was trained."
    (short_one, first), (long_one, last) = list(found.items())[0], list(found.items())[-1]
    change = last.estimate - first.estimate
    apart = abs(change) > np.hypot(first.high - first.estimate, last.high - last.estimate)
    way = ("helps the rungs" if change < 0 else "helps the local window") if apart else "does not measurably change it"
    return f"{text} Training on {long_one} instead of {short_one} tokens of context {way} ({change:+.3f} nats)."


def by_domain(jobs: Sequence[Job], database: Any, names: Sequence[str], length: int) -> pd.DataFrame:
    """The difference of whole runs by held-out domain; rows are families, `group` the domain."""
    rows = []
    for name in names:
        stacked = over_seeds(whole(pairs(jobs, name, length)), database)
        rows += [row(mean_interval([own]), name=name, group=domain)
                 for domain, own in zip(database.corpus.domains, stacked, strict=True)]
    table = pd.DataFrame(rows).set_index("name")
    order = {domain: at for at, domain in enumerate(database.corpus.domains)}
    return table.sort_values("group", key=lambda group: group.map(order), kind="stable")


def say_domains(table: pd.DataFrame) -> str:
    """On which text which family is better or worse than the local window, corrected over all of them."""
    signs = corrected_signs([interval(r) for _, r in table.iterrows()])
    said = []
    for sign, words in (("below", "lower loss than the local window"), ("above", "higher loss")):
        cells = [f"{name} on {r['group']} ({r['estimate']:+.3f})"
                 for (name, r), own in zip(table.iterrows(), signs, strict=True) if own == sign]
        said.append(f"{words}: {listing(cells)}")
    return f"By text, Holm-corrected over {len(table)} comparisons — {'; '.join(said)}; the others are not told apart."


def say_seeds(seeds: Mapping[str, int]) -> str:
    """Which intervals hold for other seeds and which do not: those of one or two seeds are narrower for no merit."""
    several = [f"{name} ({count})" for name, count in seeds.items() if count >= ENOUGH_SEEDS]
    few = [name for name, count in seeds.items() if count < ENOUGH_SEEDS]
    parts = [f"over seeds and windows: {listing(several)}" if several else "",
             f"over windows alone, so that they are narrower and say nothing of other seeds: {listing(few)}" if few else ""]
    return f"Intervals {'; '.join(filter(None, parts))}."


def cells(table: pd.DataFrame) -> dict[Any, Interval]:
    """The intervals of a table by its index."""
    return {label: interval(own) for label, own in table.iterrows()}


def as_ranges(found: Mapping[str, Mapping[int, Interval]]) -> pd.DataFrame:
    """Differences by family and training length as rows for `plots.intervals`."""
    return pd.DataFrame([row(own, name=f"{name}, T = {length}") for name, by_one in found.items()
                         for length, own in by_one.items()]).set_index("name")


def copies(jobs: Sequence[Job], database: Any) -> dict[str, pd.DataFrame]:
    """Accuracy of planted copies with intervals: a table a mask, index the distance; sequences are the items."""
    found: dict[str, list[dict[str, Any]]] = {}
    for (name, distance), right in copied(jobs, database).items():
        found.setdefault(name, []).append(row(accuracy(right), distance=distance))
    return {name: pd.DataFrame(rows).set_index("distance").sort_index() for name, rows in found.items()}


def copied(jobs: Sequence[Job], database: Any) -> dict[tuple[str, int], np.ndarray]:
    """Share of right answers of each sequence that asks, `[S, N]`, by series and distance; the same sequences for all."""
    found: dict[tuple[str, int], list[np.ndarray]] = {}
    for job in jobs:
        if job.run.data.source != "text":
            length, evaluation = job.run.train.length, job.evaluations[0]
            right, count = (database.array(job, evaluation, f"{kind}.copying.{length}") for kind in ("correct", "count"))
            distance = job.labels.distance
            found.setdefault((series(job), distance), []).append(right[count > 0] / count[count > 0])
    return {key: np.stack(rows) for key, rows in found.items()}


def copy_differences(jobs: Sequence[Job], database: Any, name: str) -> dict[int, Interval]:
    """Accuracy of the local window minus that of the family by distance: below zero the family is better, as with losses."""
    found = copied(jobs, database)
    return {distance: accuracy_difference(found[LOCAL, distance], right) for (own, distance), right in found.items()
            if own == name and (LOCAL, distance) in found}


def copy_chance(runs: pd.DataFrame) -> float:
    """What a guess at a symbol is worth."""
    return float(runs.loc[runs["measure"] == "chance", "value"].iloc[0])


def say_copies(tables: Mapping[str, pd.DataFrame]) -> str:
    """Which masks copy at which distance: the interval of their accuracy lies above a half."""
    if not tables:
        return "No planted copy was trained (`copy_distances` is empty)."
    distances = sorted({distance for table in tables.values() for distance in table.index})
    right = {distance: [name for name, table in tables.items() if distance in table.index and table["low"][distance] > 0.5]
             for distance in distances}
    said = [f"{distance}: {listing(names)}" for distance, names in right.items()]
    return f"Masks that get more than half of a planted copy right, by its distance in tokens — {'; '.join(said)}."


def published_gain() -> pd.DataFrame:
    """Published: fixed rungs minus the ramp at W = 8 along the training, nats a token; index tokens, a column a dataset."""
    table = published.read("training_curves").query("window == 8 and seed == 42 and base == 'fibonacci'")
    table = table.assign(loss=np.log(table["perplexity"]))
    loss = table.pivot_table(index="step", columns=["dataset", "schedule"], values="loss")
    gain = pd.DataFrame({name: loss[name, "fixed"] - loss[name, "linear"] for name in loss.columns.levels[0]})
    gain.index = gain.index * (PAPER_TOKENS // TrainConfig().steps)
    return gain


def say_published(gain: pd.DataFrame) -> str:
    """The published gain of the ramp over fixed rungs at a quarter, at half and at the end of the training."""
    mean = gain.mean(axis=1).rolling(4).mean()                       # of four evaluations: single ones are noisy
    at = [float(mean[mean.index <= share * PAPER_TOKENS].iloc[-1]) for share in (0.25, 0.5, 1.0)]
    way = "still grows in the second half" if at[2] > 1.1 * at[1] else "no longer grows in the second half"
    return (f"Published, the ramp's gain over fixed rungs is {at[0]:.3f} nats a token after a quarter of the training, "
            f"{at[1]:.3f} after half and {at[2]:.3f} at the end (mean of {gain.shape[1]} sets, one seed): it {way}. No local "
            f"window of as many keys was published.")


def say_answer(cells: Mapping[str, Mapping[Any, Interval]], name: str) -> str:
    """The answer to the title: on each axis where the family is better than the local window, corrected over everything."""
    cells = {axis: found for axis, found in cells.items() if found}
    flat = [(axis, label, own) for axis, found in cells.items() for label, own in found.items()]
    signs = corrected_signs([own for *_, own in flat])
    said = []
    for axis, found in cells.items():
        here = [(label, sign) for (own, label, _), sign in zip(flat, signs, strict=True) if own == axis]
        better = [str(label) for label, sign in here if sign == "below"]
        worse = sum(sign == "above" for _, sign in here)
        said.append(f"{axis}: {f'at {listing(better)}' if better else 'nowhere'} (of {len(found)} tried; worse at {worse})")
    seeds = seed_words(min((own.seeds for *_, own in flat if own.seeds), default=0))
    note = f"Holm-corrected over all {len(flat)} comparisons{f'; where fewest, {seeds}' if seeds else ''}"
    return f"**Where do the long rungs of {name} pay against a local window of as many keys?** {'; '.join(said)}. {note}."
