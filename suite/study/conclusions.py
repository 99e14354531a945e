"""Sentences made from numbers. Their direction comes from the interval, so that other numbers make another sentence."""

from __future__ import annotations

from collections.abc import Sequence

from suite.study.stats import LEVEL, Interval, holm


def corrected_signs(found: Sequence[Interval]) -> list[str]:
    """`below`, `above` or `undecided` for each of several differences, with Holm's correction for their number."""
    adjusted = holm([own.p() for own in found])
    return [own.sign() if p < 1 - LEVEL else "undecided" for own, p in zip(found, adjusted, strict=True)]


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
