"""Verdicts: every claim's measure is asked, and the rule that stands in the ledger is applied to what it finds."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import pandas as pd

from lib.data import Corpus
from suite.claims.ledger import Claim, load
from suite.claims.region import decide
from suite.experiments.base import Job, Parameters
from suite.run.database import Database
from suite.settings.profiles import Profile
from suite.study.frames import NotTested, Study, plan_of
from suite.study.stats import LEVEL, Interval, holm

COLUMNS = ("identifier", "document", "statement", "verdict", "effect", "low", "high", "unit", "p", "flip", "seeds",
           "runs")
FEW = {1: "one seed", 2: "two seeds"}           # seeds of an interval that a reader must know


class Evidence(Study):
    """A notebook's study, planned when it is asked for. Results are `NotTested` until the notebook is finished."""

    def __init__(self, profile: Profile, notebook: str, finished: Sequence[str], database: Callable[[], Any]) -> None:
        self.profile, self.name = profile, notebook
        self._finished, self._database = notebook in finished, database

    @cached_property
    def parameters(self) -> Parameters:
        return self.profile.parameters(self.name)

    @cached_property
    def jobs(self) -> list[Job]:
        return plan_of(self.profile, self.name)

    @property
    def database(self) -> Any:
        if not self._finished:
            raise NotTested(f"notebook {self.name} is not finished at profile {self.profile.name}")
        return self._database()


@dataclass(frozen=True)
class Judgement:
    """A claim with its verdict at a profile."""
    claim: Claim
    verdict: str                        # supported, contradicted, undecided, not tested; failed: the measure did
    sentence: str
    effect: float | None = None
    low: float | None = None            # 95 % interval; None: there is none
    high: float | None = None
    p: float | None = None              # Holm-adjusted over the claims of its document
    flip: float | None = None           # how likely a new seed shows the opposite side; None: no run in it
    seeds: int = 0                      # training runs a model behind the number, the fewest; 0: no run needed
    runs: tuple[str, ...] = ()          # fingerprints

    @property
    def family(self) -> str:
        """The claims that its p is corrected with: its document's; none for a row of the audit and a measured time."""
        return self.claim.document if self.p is not None and self.seeds and self.claim.document != "audit" else ""


def judge(profile: Profile, corpus: Corpus, notebooks: Sequence[str]) -> list[Judgement]:
    """Every claim of the ledger, in its order. notebooks: those that are finished at this profile."""
    with ExitStack() as stack:
        database = cache(lambda: stack.enter_context(closing(Database(profile.name, corpus, create=False))))
        return judge_from(load(), lambda name: Evidence(profile, name, notebooks, database))


def judge_from(claims: Sequence[Claim], study: Callable[[str], Study]) -> list[Judgement]:
    """The same from any claims and the studies of their notebooks by name."""
    of = cache(study)
    found = [ask(claim, of) for claim in claims]
    families: dict[str, list[float]] = {}
    for own in found:
        families.setdefault(own.family, []).extend([] if own.p is None else [own.p])
    adjusted = {family: iter(holm(p) if family else p) for family, p in families.items()}
    return [own if own.p is None else corrected(own, next(adjusted[own.family])) for own in found]


def ask(claim: Claim, of: Callable[[str], Study]) -> Judgement:
    """The judgement on one claim; where the number has an interval, one that `corrected` completes."""
    try:
        study = of(claim.notebook)
        parts = claim.measure.parts(study)
        if not parts or not all(math.isfinite(part.estimate) for part in parts):
            raise ValueError(f"it gave {', '.join(str(part.estimate) for part in parts) or 'no number'}")
        jobs = dict.fromkeys(job for part in parts for model in part.models for job in model.jobs)
        runs = tuple(dict.fromkeys(study.database.fingerprint(job.run) for job in jobs))
    except NotTested as reason:
        return Judgement(claim, "not tested", f"Not tested: {reason}.")
    except Exception as error:              # one broken measure must not hide the other verdicts
        said = " ".join(str(error).split()) or "no message"
        name = claim.measure.kind.function.__name__
        return Judgement(claim, "failed", f"The measure {name} failed: {type(error).__name__}: {said}")
    region, which = claim.supported_if, f" (decides among {len(parts)})" if len(parts) > 1 else ""
    seeds = 0 if claim.exact else min(part.seeds for part in parts)
    if all(isinstance(part.value, Interval) for part in parts):
        side, p, at = decide(region, [part.value for part in parts])
        own, verdict = parts[at].value, {True: "supported", False: "contradicted", None: "undecided"}[side]
        width = own.high - own.low
        digits = next((n for n in range(2, 6) if width * 10 ** n >= 10), 6) if width > 0 else 4
        sentence = f"{parts[at].what}{which}: {own.text(digits)} {claim.unit}".strip()
        if not all(part.value.replicated for part in parts):
            sentence = f"{sentence}, over windows only: {FEW.get(seeds, '')}, and no seeds to tell its noise by."
            return Judgement(claim, "undecided", sentence, own.estimate, own.low, own.high, seeds=seeds, runs=runs)
        flip = own.flip(min(region.boundaries(), key=lambda end: abs(end - own.estimate))) if runs else None
        return Judgement(claim, verdict, sentence, own.estimate, own.low, own.high, p, flip, seeds, runs)
    worst = max(parts, key=lambda part: region.excess(part.estimate))
    verdict = "supported" if all(region.contains(part.estimate) for part in parts) else "contradicted"
    said = f"{worst.what}{which}: {worst.estimate:.4g} {claim.unit}".strip()
    return Judgement(claim, verdict, f"{said}.", worst.estimate, seeds=seeds, runs=runs)


def corrected(own: Judgement, p: float) -> Judgement:
    """The judgement with Holm's p value: the side that the intervals are on counts if p stays small."""
    said = f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"
    said += " after Holm's correction" * bool(own.family)
    turned = "" if own.flip is None else f"a new seed would show the opposite sign in {own.flip:.0%} of cases"
    sentence = ", ".join(filter(None, (own.sentence, said, FEW.get(own.seeds), turned)))
    return replace(own, p=p, verdict=own.verdict if p < 1 - LEVEL else "undecided", sentence=f"{sentence}.")


def as_json(judgements: Sequence[Judgement]) -> list[dict[str, Any]]:
    """The judgements for ledger.json: plain values, one object a claim."""
    return [{"identifier": claim.id, "document": claim.document, "statement": claim.statement, "verdict": own.verdict,
             "effect": own.effect, "interval": None if own.low is None else [own.low, own.high], "unit": claim.unit,
             "p": own.p, "flip": own.flip, "seeds": own.seeds, "runs": list(own.runs),
             "published": claim.published.value if claim.published else None,
             "published_source": claim.published.source if claim.published else None, "rule": claim.rule,
             "notebook": claim.notebook, "section": claim.section, "sentence": own.sentence}
            for own in judgements for claim in [own.claim]]


def as_table(judgements: Sequence[Judgement]) -> pd.DataFrame:
    """The judgements for claims.csv: one row a claim, `runs` a list of fingerprints with spaces between."""
    rows = [{**entry, "low": own.low, "high": own.high, "runs": " ".join(own.runs)}
            for entry, own in zip(as_json(judgements), judgements, strict=True)]
    return pd.DataFrame(rows).filter(COLUMNS)
