"""Verdicts: every claim's measure is asked, and the rule that stands in the ledger is applied to what it finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from suite.claims.evidence import Evidence, Measured, Part
from suite.claims.ledger import Claim, load
from suite.claims.region import Decision, decide, excess
from suite.study.frames import NotTested, Study
from suite.study.stats import LEVEL, Interval, holm, seed_words

if TYPE_CHECKING:
    import pandas as pd

    from lib.data import Corpus
    from suite.run.database import Database
    from suite.settings.profiles import Profile

VERDICTS = ("supported", "contradicted", "undecided", "not tested", "failed")


@dataclass(frozen=True)
class Judgement:
    """A claim with its verdict at a profile."""
    claim: Claim
    verdict: str                        # one of VERDICTS; failed: the measure raised an error
    effect: float | None = None
    low: float | None = None            # 95 % interval; None: there is none
    high: float | None = None
    unit: str = ""
    p: float | None = None              # Holm-adjusted over the ledger
    exact: bool = False                 # no chance in the number
    seeds: int = 0                      # training runs a model behind the number, the fewest; 0: no run needed
    runs: tuple[str, ...] = ()          # fingerprints
    sentence: str = ""


def judge(profile: Profile, corpus: Corpus, notebooks: Sequence[str]) -> list[Judgement]:
    """Every claim of the ledger, in its order. notebooks: those that are finished at this profile."""
    @lru_cache(maxsize=None)
    def database() -> Database:
        from suite.run.database import Database
        return Database(profile.name, corpus, create=False)
    try:
        return judge_from(load(), lambda name: Evidence(profile, name, notebooks, database), database)
    finally:
        if database.cache_info().currsize:
            database().close()


def judge_from(claims: Sequence[Claim], study: Callable[[str], Study], database: Callable[[], Any]) -> list[Judgement]:
    """The same from any claims and the studies of their notebooks by name."""
    of = lru_cache(maxsize=None)(study)
    results = [ask(claim, of) for claim in claims]
    decisions = {claim.id: decide(claim.region, [part.value for part in result.parts])
                 for claim, result in zip(claims, results, strict=True)
                 if isinstance(result, Measured) and all(isinstance(part.value, Interval) for part in result.parts)}
    adjusted = dict(zip(decisions, holm([decision.p for decision in decisions.values()]), strict=True))

    def verdict(claim: Claim, result: Measured | Judgement) -> Judgement:
        if isinstance(result, Judgement):
            return result
        if claim.id in decisions:
            return by_chance(claim, result, decisions[claim.id], adjusted[claim.id], database)
        return by_value(claim, result, database)
    return [verdict(claim, result) for claim, result in zip(claims, results, strict=True)]


def ask(claim: Claim, of: Callable[[str], Study]) -> Measured | Judgement:
    """What the claim's measure finds; a judgement where it finds nothing."""
    unit, exact = claim.unit, claim.call.measure.exact
    try:
        found = claim.call.measure.function(of(claim.notebook), **dict(claim.call.arguments))
    except NotTested as reason:
        return Judgement(claim, "not tested", unit=unit, exact=exact, sentence=f"Not tested: {reason}.")
    except Exception as error:              # one broken measure must not hide the other verdicts
        said = " ".join(str(error).split()) or "no message"
        return Judgement(claim, "failed", unit=unit, exact=exact,
                         sentence=f"The measure {claim.call.measure.name} failed: {type(error).__name__}: {said}")
    assert found.parts, f"{claim.call.measure.name} gave no number"
    return found


def by_chance(claim: Claim, found: Measured, decision: Decision, p: float, database: Callable[[], Any]) -> Judgement:
    """From intervals: the side that they are on counts if p stays small among all that the ledger asks."""
    sure = decision.side is not None and p < 1 - LEVEL
    verdict = "undecided" if not sure else "supported" if decision.side else "contradicted"
    part = found.parts[decision.at]
    own = part.value
    said = f"{own.text(digits(own))} {claim.unit}".strip()
    corrected = f"p = {p:.2g} after Holm's correction" if p >= 0.001 else "p < 0.001 after Holm's correction"
    return Judgement(claim, verdict, own.estimate, own.low, own.high, claim.unit, p, False, found.seeds,
                     runs(found, database), sentence(found, part, f"{said}, {corrected}"))


def by_value(claim: Claim, found: Measured, database: Callable[[], Any]) -> Judgement:
    """From numbers without an interval: exact ones, and those of too few runs to have one."""
    part = max(found.parts, key=lambda own: excess(claim.region, own.estimate))
    inside = all(claim.region.contains(own.estimate) for own in found.parts)
    exact = claim.call.measure.exact
    said = f"{part.estimate:.4g} {claim.unit}".strip() + ("" if exact else ", without an interval")
    return Judgement(claim, "supported" if inside else "contradicted", part.estimate, unit=claim.unit, exact=exact,
                     seeds=found.seeds, runs=runs(found, database), sentence=sentence(found, part, said))


def sentence(found: Measured, part: Part, said: str) -> str:
    """What decided: the effect, of how many comparisons it is the decisive one, and the seeds where they are few."""
    which = f" (decides among {len(found.parts)})" if len(found.parts) > 1 else ""
    words = seed_words(found.seeds)
    return f"{part.what}{which}: {said}{f', {words}' if words else ''}."


def digits(found: Interval) -> int:
    """Decimals that show where the ends of an interval lie."""
    width = found.high - found.low
    return next((n for n in range(2, 6) if width * 10 ** n >= 10), 6) if width > 0 else 4


def runs(found: Measured, database: Callable[[], Any]) -> tuple[str, ...]:
    if not found.jobs:
        return ()
    return tuple(dict.fromkeys(database().fingerprint(job.run) for job in found.jobs))


def as_json(judgements: Sequence[Judgement]) -> list[dict[str, Any]]:
    """The judgements for ledger.json: plain values, one object a claim."""
    return [{"identifier": own.claim.id, "document": own.claim.document, "statement": own.claim.statement,
             "verdict": own.verdict, "effect": own.effect, "interval": None if own.low is None else [own.low, own.high],
             "unit": own.unit, "p": own.p, "seeds": own.seeds, "runs": list(own.runs),
             "published": own.claim.published.value if own.claim.published else None,
             "published_source": own.claim.published.source if own.claim.published else None,
             "rule": own.claim.rule, "notebook": own.claim.notebook, "section": own.claim.section,
             "sentence": own.sentence}
            for own in judgements]


def as_table(judgements: Sequence[Judgement]) -> pd.DataFrame:
    """The judgements for claims.csv: one row a claim, `runs` a list of fingerprints with spaces between."""
    import pandas as pd
    return pd.DataFrame([{"identifier": own.claim.id, "document": own.claim.document, "statement": own.claim.statement,
                          "verdict": own.verdict, "effect": own.effect, "low": own.low, "high": own.high,
                          "unit": own.unit, "p": own.p, "seeds": own.seeds, "runs": " ".join(own.runs)}
                         for own in judgements])
