"""The ledger as the page shows it: every claim judged at this profile, its verdicts at others, and ledger.json beside it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from lib import paths
from lib.errors import SuiteError
from lib.files import write_atomically
from suite.report.markup import slug
from suite.report.render import Section

if TYPE_CHECKING:
    from suite.claims import Judgement

# What the page calls a verdict, and the mark that says it without colour.
VERDICTS = {"supported": ("supported", "\u2713"), "contradicted": ("contradicted", "\u2717"),
            "undecided": ("undecided at this profile", "?"), "not tested": ("not tested here", "\u2013"),
            "failed": ("could not be judged", "!")}
# Short and long names of the documents, in the order of the page.
DOCUMENTS = {"fibonacci": ("Fibonacci", "Depth-staggered Fibonacci offsets"),
             "powerlaw": ("Power law", "Critical power-law edges"),
             "christoffel": ("Christoffel", "Christoffel-balanced offsets"), "audit": ("Audit", "Audit of the documents"),
             "suite": ("Suite", "The suite's own questions")}
WIDE, HIGH = 132, 14          # of the small picture of an interval, pixels


@dataclass(frozen=True)
class Row:
    """A claim as the template sees it."""
    judgement: Judgement
    anchor: str                                    # of the section that holds the evidence
    place: str                                     # what the link to it says
    elsewhere: tuple[tuple[str, str], ...]         # (profile, verdict) where it was judged too

    @property
    def value(self) -> str:
        """The effect alone, without its unit; empty: there is none."""
        own = self.judgement
        return "" if own.effect is None else written(own.effect, digits(own))

    @property
    def why(self) -> str:
        """Why there is no effect; the verdict beside it says already that it was not tested."""
        said = self.judgement.sentence.removeprefix("Not tested: ")
        return said[:1].upper() + said[1:]

    @property
    def interval(self) -> str:
        own = self.judgement
        return "" if own.low is None else f"{written(own.low, digits(own))} to {written(own.high, digits(own))}"

    @property
    def p(self) -> str:
        return "below 0.001" if self.judgement.p < 0.001 else f"{self.judgement.p:.3f}"

    @property
    def held_back(self) -> bool:
        """Whether the interval alone would decide, but not after the correction for all that the ledger asks."""
        own = self.judgement
        return own.verdict == "undecided" and own.low is not None and own.claim.region.side(own) is not None

    @property
    def published(self) -> str:
        """The published value with its unit; empty: there is none."""
        own = self.judgement.claim.published
        return "" if own is None else f"{written(own.value, None)} {own.unit}".strip()

    @property
    def source(self) -> str:
        return self.judgement.claim.published.source

    @property
    def plot(self) -> Markup:
        """A point, its interval and zero on one line, what the claim says shaded; the numbers stand beside it. Empty: no
        interval."""
        own, region = self.judgement, self.judgement.claim.region
        if own.low is None or own.high <= own.low:
            return Markup("")
        ends = (own.low, own.high, own.effect, *region.boundaries())
        room = 0.15 * (max(ends) - min(ends))
        left, right = min(ends) - room, max(ends) + room

        def x(value: float) -> float:
            return WIDE * (min(max(value, left), right) - left) / (right - left)
        zero = f'<path class="zero" d="M{x(0.0):.1f} 0V{HIGH}"/>' if left < 0 < right else ""
        return Markup(f'<svg class="interval" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}" aria-hidden="true">'
                      f'<rect x="{x(region.low):.1f}" width="{max(1.0, x(region.high) - x(region.low)):.1f}" height="{HIGH}"/>'
                      f'{zero}<path class="span" d="M{x(own.low):.1f} {HIGH // 2}H{x(own.high):.1f}"/>'
                      f'<circle cx="{x(own.effect):.1f}" cy="{HIGH // 2}" r="3"/></svg>')


@dataclass(frozen=True)
class Document:
    """The claims of one document, in the ledger's order."""
    name: str
    short: str
    title: str
    rows: tuple[Row, ...]

    @property
    def counts(self) -> dict[str, int]:
        return counts(row.judgement for row in self.rows)


def judged(profile: str, folder: str, finished: Sequence[str]) -> list[Judgement]:
    """Every claim, judged from the notebooks that are finished; nothing where there is no corpus to have run on."""
    from data_prep.build import existing
    from suite import claims
    from suite.settings import profiles
    loaded = profiles.load(profile, folder)
    corpus = existing(loaded.corpus)
    return [finite(own) for own in claims.judge(loaded, corpus, finished)] if corpus is not None else []


def finite(own: Judgement) -> Judgement:
    """The judgement; one whose numbers are none (nan, infinite) is no verdict, and is shown as failed."""
    numbers = [value for value in (own.effect, own.low, own.high, own.p) if value is not None]
    if all(map(math.isfinite, numbers)):
        return own
    found = ", ".join(str(value) for value in numbers)
    return replace(own, verdict="failed", effect=None, low=None, high=None, p=None, sentence=f"The measure gave {found}.")


def write(profile: str, judgements: Sequence[Judgement]) -> None:
    """outputs/<profile>/report/ledger.json and outputs/<profile>/results/claims.csv, each in one step."""
    from suite.claims import as_json, as_table
    text = json.dumps(as_json(judgements), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(path_of(profile), (text + "\n").encode())
    table = as_table(judgements).to_csv(index=False, lineterminator="\n")
    write_atomically(paths.results(profile) / "claims.csv", table.encode())


def path_of(profile: str) -> Path:
    return paths.report(profile) / "ledger.json"


def documents(judgements: Sequence[Judgement], sections: Mapping[str, Section],
              others: Mapping[str, Mapping[str, str]]) -> list[Document]:
    """The rows by document; `sections` by notebook, `others` are verdicts by profile and claim (`verdicts_of_others`)."""
    rows = {name: [_row(own, sections, others) for own in judgements if own.claim.document == name] for name in DOCUMENTS}
    return [Document(name, *titles, tuple(rows[name])) for name, titles in DOCUMENTS.items() if rows[name]]


def _row(own: Judgement, sections: Mapping[str, Section], others: Mapping[str, Mapping[str, str]]) -> Row:
    section = sections.get(own.claim.notebook)
    found = {identifier: text for identifier, text, _ in section.headings} if section is not None else {}
    anchor = f"{own.claim.notebook}-{slug(own.claim.section)}"
    elsewhere = tuple((name, verdicts[own.claim.id]) for name, verdicts in others.items() if own.claim.id in verdicts)
    if anchor in found:
        return Row(own, anchor, found[anchor], elsewhere)
    return Row(own, own.claim.notebook if section is not None else "", own.claim.notebook, elsewhere)


def counts(judgements: Any) -> dict[str, int]:
    """How many have each verdict, in the order of `VERDICTS`; failed ones only where there are any."""
    found = Counter(own.verdict for own in judgements)
    return {name: found[name] for name in VERDICTS if found[name] or name != "failed"}


def digits(own: Judgement) -> int | None:
    """Decimals that show where the interval's ends lie; None for a number without an interval: four significant digits."""
    width = own.high - own.low if own.low is not None else 0.0
    return min(5, max(0, 1 - math.floor(math.log10(width)))) if width > 0 else None


def written(value: float, decimals: int | None) -> str:
    """A number as the page writes it, with a true minus sign."""
    if decimals is None:
        decimals = 0 if value == int(value) else max(0, 3 - math.floor(math.log10(abs(value))))
        text = f"{value:z,.{min(decimals, 8)}f}"
        return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "\u2212")
    return f"{value:z,.{decimals}f}".replace("-", "\u2212")


# Other profiles

def verdicts_of_others(profile: str, judgements: Sequence[Judgement]) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Verdicts by profile and claim from the other profiles' ledger.json, and a note on each that is left out.

    A verdict counts only if its rule was the present one; what a profile did not test is not shown.
    """
    rules = {own.claim.id: own.claim.rule for own in judgements}
    found, notes = {}, []
    for path in sorted(paths.outputs().glob("*/report/ledger.json")):
        name = path.parent.parent.name
        if name == profile:
            continue
        try:
            entries = read(path)
        except SuiteError as error:
            notes.append(f"The verdicts of profile {name} are left out: {error}.")
            continue
        alike = [entry for entry in entries if rules.get(entry["identifier"]) == entry["rule"]]
        changed = sum(entry["identifier"] in rules for entry in entries) - len(alike)
        if changed:
            notes.append(f"{changed} {'verdict' if changed == 1 else 'verdicts'} of profile {name} "
                         f"{'is' if changed == 1 else 'are'} left out: by an earlier rule.")
        found[name] = {entry["identifier"]: entry["verdict"] for entry in alike if entry["verdict"] != "not tested"}
    return found, notes


def read(path: Path) -> list[dict[str, Any]]:
    """The entries of a ledger.json; a `SuiteError` names what is wrong with it."""
    try:
        entries = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SuiteError(f"{path.name} is not JSON ({error})") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SuiteError(f"{path.name} is not a list of claims")
    for entry in entries:
        if not all(isinstance(entry.get(key), str) for key in ("identifier", "rule", "verdict")):
            raise SuiteError(f"{path.name} has a claim without identifier, rule or verdict")
        if entry["verdict"] not in VERDICTS:
            raise SuiteError(f"{path.name} has the verdict {entry['verdict']!r} for {entry['identifier']}")
    if len({entry["identifier"] for entry in entries}) < len(entries):
        raise SuiteError(f"{path.name} has a claim twice")
    return entries
