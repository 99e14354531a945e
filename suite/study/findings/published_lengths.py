"""Notebook 3: the published change of perplexity with length beside ours, model by model."""

from __future__ import annotations

import numpy as np
import pandas as pd

from suite import published
from suite.study.conclusions import FLAT, listing
from suite.study.findings.extrapolation import Variants
from suite.study.losses import Losses
from suite.study.stats import Interval, seed_words


def beside(losses: Losses, shown: Variants, trained: int, factors: tuple[int, ...], window: int) -> pd.DataFrame:
    """Change of perplexity from the training length, per cent: published (means over datasets, at our window or W = 8) and
    ours (mean over domains, with the interval over windows), and the difference; one row a model and factor."""
    table = published.read("length_extrapolation")
    at = window if window in set(table["window"]) else 8
    table = table[(table["window"] == at) | table["window"].isna()]
    logs = table.assign(nll=np.log(table["perplexity"])).groupby(["series", "eval_length"])["nll"].mean()
    rows = []
    for series in sorted(set(table["series"]).intersection(shown)):
        for factor in [f for f in factors if f > 1 and (series, 1024 * f) in logs.index]:
            theirs, (model, variant) = logs[series, 1024 * factor] - logs[series, 1024], shown[series]
            own: Interval = losses.growth(model, trained, factor * trained, variant)
            rows.append({"series": series, "times the length": factor, "published, %": 100 * np.expm1(theirs),
                         "ours, %": 100 * np.expm1(own.estimate), "low": 100 * np.expm1(own.low),
                         "high": 100 * np.expm1(own.high), "seeds": own.seeds,
                         "ours - published": 100 * (np.expm1(own.estimate) - np.expm1(theirs))})
    columns = ["series", "times the length", "published, %", "ours, %", "low", "high", "seeds", "ours - published"]
    return pd.DataFrame(rows, columns=columns).set_index(["series", "times the length"])


def say(table: pd.DataFrame) -> str:
    """Whether a model rises, falls or stays as the published one does, at the longest length."""
    if table.empty:
        return "No published model was trained here: nothing to compare."
    flat = 100 * np.expm1(FLAT)
    longest = table.index.get_level_values("times the length").max()
    own = table.xs(longest, level="times the length")
    theirs = {name: Interval(value, value, value, 0).sign(flat) for name, value in own["published, %"].items()}
    ours = {name: Interval(r["ours, %"], r["low"], r["high"], 0).sign(flat) for name, r in own.iterrows()}
    same = [name for name in ours if ours[name] == theirs[name]]
    other = [f"{name} ({own.loc[name, 'published, %']:+.1f} % published, {own.loc[name, 'ours, %']:+.1f} % here)"
             for name in ours if ours[name] not in (theirs[name], "undecided")]
    words = seed_words(int(own["seeds"].min()))
    seeds = f" ({words})" if words else ""
    return (f"At {longest:g} times the training length{seeds}, {len(same)} of {len(own)} models do as "
            f"published (rise, fall, or stay within {flat:.0f} %): {listing(same)}. Otherwise: {listing(other)}.")
