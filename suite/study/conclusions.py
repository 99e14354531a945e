"""Sentences made from numbers. Their direction comes from the interval, so that other numbers make another sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from suite.study.stats import LEVEL, Interval, holm, seed_words

FLAT = 0.02         # nats a token: a change of 2 % in perplexity, below which a loss is called flat


def compared(name: str, other: str, difference: Interval, unit: str = "nats a token") -> str:
    """`difference` is the loss of `name` minus that of `other`; a difference below `FLAT` is called slight."""
    slightly = "a slightly" if abs(difference.estimate) < FLAT else "a"
    word = {"below": "lower", "above": "higher"}.get(difference.sign())
    found = f"{name} has {slightly} {word} loss than {other}" if word else f"{name} and {other} cannot be told apart"
    return f"{found}: a difference of {difference.text()} {unit}{of_seeds(difference)}."


def of_seeds(found: Interval) -> str:
    """`, one seed` or `, two seeds` where the interval says nothing of other seeds; nothing where it does."""
    words = seed_words(found.seeds)
    return f", {words}" if words else ""


def corrected_signs(found: Sequence[Interval]) -> list[str]:
    """`below`, `above` or `undecided` for each of several differences, with Holm's correction for their number."""
    adjusted = holm([own.p() for own in found])
    return [own.sign() if p < 1 - LEVEL else "undecided" for own, p in zip(found, adjusted, strict=True)]


def grown(name: str, growth: Interval, factor: float) -> str:
    """`growth` is the loss at `factor` times the training length minus that at the training length."""
    times = f"at {factor:g} times the training length"
    per_cent = f"{100 * np.expm1(growth.estimate):+.1f} % in perplexity, {growth.text()} nats a token{of_seeds(growth)}"
    word = {"above": "rises", "below": "falls", "within": "stays flat"}.get(growth.sign(FLAT))
    if word is None and growth.sign() in ("above", "below"):
        word = "rises a little" if growth.sign() == "above" else "falls a little"
    return f"{name} {word or 'does not change measurably'} {times} ({per_cent})."


def ordered(values: Mapping[str, float], what: str, digits: int = 2, unit: str = "") -> str:
    """The best and the worst of several, lowest first."""
    ranked = sorted(values.items(), key=lambda item: item[1])
    (best, low), (worst, high) = ranked[0], ranked[-1]
    return f"Lowest {what}: {best} ({low:.{digits}f}{unit}); highest: {worst} ({high:.{digits}f}{unit})."


def verdict(met: bool | None, criterion: str, reason: str) -> str:
    """One success criterion of a document: met, not met, or open where the interval holds both."""
    word = {True: "met", False: "not met", None: "open"}[met]
    return f"**{criterion}: {word}.** {reason}"


def lower(difference: Interval) -> bool | None:
    """Whether a loss is lower: yes, no, or None where the interval holds both."""
    return {"below": True, "above": False}.get(difference.sign())


def not_higher(difference: Interval, margin: float = FLAT) -> bool | None:
    """Whether a loss is no higher, up to `margin` nats a token."""
    if difference.high <= margin:
        return True
    return False if difference.low > margin else None


def above_chance(interval: Interval, chance: float) -> str:
    """Where an accuracy stands against a guess."""
    if interval.low > chance:
        return "above chance"
    return "below chance" if interval.high < chance else "at chance"


def listing(names: Sequence[str]) -> str:
    """`a, b and c`; `none` without any."""
    names = list(names)
    if len(names) < 2:
        return names[0] if names else "none"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def correlation(x: Sequence[float], y: Sequence[float], what_x: str, what_y: str) -> str:
    """Whether two quantities go together over models, by Spearman's rank correlation."""
    from scipy.stats import spearmanr
    if len(x) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
        return f"{what_y} against {what_x}: too few different models ({len(x)}) for a correlation."
    found = spearmanr(x, y)
    certain = found.pvalue < 1 - LEVEL
    word = ("rises" if found.statistic > 0 else "falls") if certain else "shows no monotone relation"
    return f"{what_y} {word} with {what_x} (Spearman {found.statistic:+.2f}, p = {found.pvalue:.2g}, {len(x)} models)."
