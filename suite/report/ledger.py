"""The ledger as the page shows it: every claim, its verdicts at this profile and at others, and ledger.json."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lib import paths
from lib.errors import one_of
from lib.files import write_atomically
from suite.claims import Judgement, as_json, as_table
from suite.claims.ledger import DOCUMENTS, Claim
from suite.report.html import slug
from suite.run import evidence

# What the page calls a verdict, and the mark that says it without colour.
VERDICTS = {"supported": ("supported", "\u2713"), "contradicted": ("contradicted", "\u2717"),
            "undecided": ("undecided at this profile", "?"), "not tested": ("not tested here", "\u2013"),
            "failed": ("could not be judged", "!")}
SHIPPED = paths.ROOT / "docs" / "report" / "ledger.json"          # of the runs in evidence/
SHOWN = ("identifier", "verdict", "effect", "interval", "unit")   # of an entry of another profile
WIDE, HIGH = 132, 14          # of the small picture of an interval, pixels


def row(own: Judgement, others: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """A claim as the template sees it. others: see `entries_of_others`."""
    claim, decimals, published = own.claim, digits(own.low, own.high), own.claim.published
    elsewhere = [(profile, entries[claim.id]) for profile, entries in others.items() if claim.id in entries]
    said = own.sentence.removeprefix("Not tested: ")       # the verdict beside it says already that it was not tested
    return {
        "judgement": own, "plot": plot(own),
        "elsewhere": [(profile, entry["verdict"], effect_in_words(entry)) for profile, entry in elsewhere],
        "agreement": agreement([published_entry(claim), *(entry for _, entry in elsewhere), {"verdict": own.verdict}]),
        "anchor": f"{claim.notebook}-{slug(claim.section)}",            # of the heading that the evidence stands under
        "value": "" if own.effect is None else written(own.effect, decimals),             # without its unit
        "why": said[:1].upper() + said[1:],                                               # there is no effect
        "interval": "" if own.low is None else f"{written(own.low, decimals)} to {written(own.high, decimals)}",
        "p": "" if own.p is None else "below 0.001" if own.p < 0.001 else f"{own.p:.3f}",
        # whether the interval alone would decide, but not after the correction for all that the ledger asks
        "held_back": own.verdict == "undecided" and own.p is not None and claim.supported_if.side(own) is not None,
        "published": "" if published is None else f"{written(published.value, None)} {published.unit}".strip()}


def plot(own: Judgement) -> Markup:
    """A point, its interval and zero on one line, what the claim says shaded; empty where there is no interval."""
    region = own.claim.supported_if
    if own.low is None or own.high <= own.low:
        return Markup("")
    ends = (own.low, own.high, own.effect, *region.boundaries())
    room = 0.15 * (max(ends) - min(ends))
    left, right = min(ends) - room, max(ends) + room

    def x(value: float) -> float:
        return WIDE * (min(max(value, left), right) - left) / (right - left)
    zero = f'<path class="zero" d="M{x(0.0):.1f} 0V{HIGH}"/>' if left < 0 < right else ""
    shaded = max(1.0, x(region.high) - x(region.low))
    return Markup(f'<svg class="interval" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}" '
                  f'aria-hidden="true"><rect x="{x(region.low):.1f}" width="{shaded:.1f}" height="{HIGH}"/>'
                  f'{zero}<path class="span" d="M{x(own.low):.1f} {HIGH // 2}H{x(own.high):.1f}"/>'
                  f'<circle cx="{x(own.effect):.1f}" cy="{HIGH // 2}" r="3"/></svg>')


def documents(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The claims of each document, in the ledger's order, with the document's names and how many have each verdict."""
    return [{"name": name, "short": short, "title": title, "rows": own, "counts": counts(own)}
            for name, (short, title) in DOCUMENTS.items()
            if (own := [row for row in rows if row["judgement"].claim.document == name])]


def counts(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    """How many have each verdict, in the order of `VERDICTS`; failed ones only where there are any."""
    found = Counter(row["judgement"].verdict for row in rows)
    return {name: found[name] for name in VERDICTS if found[name] or name != "failed"}


def published_entry(claim: Claim) -> dict[str, Any] | None:
    """What was published, as an entry of ledger.json: the verdict is what the claim's rule says of the number alone."""
    if claim.published is None:
        return None
    value, unit = claim.published.value, claim.published.unit
    verdict = "supported" if claim.supported_if.contains(value) else "contradicted"
    return {"verdict": verdict, "effect": value, "interval": None, "unit": unit}


def agreement(entries: Iterable[Mapping[str, Any] | None]) -> str:
    """Whether the sources that decided a claim agree; None: the source does not have it."""
    decided = Counter(entry["verdict"] for entry in entries
                      if entry is not None and entry["verdict"] in ("supported", "contradicted"))
    if decided.total() < 2:
        return "one source" if decided else "undecided"
    return f"{decided.total()} agree" if len(decided) == 1 else "they disagree"


def effect_in_words(entry: Mapping[str, Any], absolute: bool = False) -> str:
    """The effect of an entry of ledger.json with its unit and interval; `absolute`: without its sign."""
    if entry["effect"] is None:
        return ""
    ends = sorted(entry["interval"] or [])
    value, decimals = entry["effect"], digits(*ends) if ends else None
    if absolute and value < 0:
        value, ends = -value, [-end for end in reversed(ends)]
    interval = f"({written(ends[0], decimals)} to {written(ends[1], decimals)})" if ends else ""
    return " ".join(filter(None, (written(value, decimals), entry["unit"], interval)))


def digits(low: float | None, high: float | None) -> int | None:
    """Decimals that show where an interval's ends lie; None for a number without an interval."""
    width = high - low if low is not None else 0.0
    return min(5, max(0, 1 - math.floor(math.log10(width)))) if width > 0 else None


def written(value: float, decimals: int | None) -> str:
    """A number with a true minus sign. decimals None: four significant digits, no trailing zero."""
    if decimals is not None or value == int(value):
        text = f"{value:z,.{decimals or 0}f}"
    else:
        text = f"{value:z,.{min(8, max(0, 3 - math.floor(math.log10(abs(value)))))}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", "\u2212")


def write(profile: str, judgements: Sequence[Judgement]) -> None:
    """outputs/<profile>/report/ledger.json and outputs/<profile>/results/claims.csv, each in one step."""
    text = json.dumps(as_json(judgements), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(paths.report(profile) / "ledger.json", (text + "\n").encode())
    table = as_table(judgements).to_csv(index=False, lineterminator="\n")
    write_atomically(paths.results(profile) / "claims.csv", table.encode())


def entries_of_others(profile: str, judgements: Iterable[Judgement]) -> tuple[
        dict[str, dict[str, Mapping[str, Any]]], list[str]]:
    """Entries by profile and claim from the other profiles' ledger.json, and a note on each that is left out; the
    ledger of the shipped runs comes with the suite.

    An entry counts only if its rule was the present one; what a profile did not test is not shown.
    """
    rules = {judgement.claim.id: judgement.claim.rule for judgement in judgements}
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    notes = []
    for name, path in ledgers(profile).items():
        try:
            known = [entry for entry in json.loads(path.read_bytes()) if entry["identifier"] in rules]
            alike = [{key: entry[key] for key in SHOWN} for entry in known
                     if entry["rule"] == rules[entry["identifier"]] and one_of(entry["verdict"], VERDICTS, "verdict")]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            notes.append(f"The verdicts of profile {name} are left out: {path.name}: {type(error).__name__}: {error}.")
            continue
        if changed := len(known) - len(alike):
            notes.append(f"{changed} {'verdict' if changed == 1 else 'verdicts'} of profile {name} "
                         f"{'is' if changed == 1 else 'are'} left out: by an earlier rule.")
        found[name] = {entry["identifier"]: entry for entry in alike if entry["verdict"] != "not tested"}
    return found, notes


def ledgers(profile: str) -> dict[str, Path]:
    """The other profiles' ledger.json; that of the shipped report where this machine has none of its own."""
    here = {path.parent.parent.name: path for path in sorted(paths.outputs().glob("*/report/ledger.json"))}
    shipped = {evidence.PROFILE: SHIPPED} if SHIPPED.exists() else {}
    return {name: path for name, path in {**shipped, **here}.items() if name != profile}
