"""The first page: the answer in five sentences, the documents' main claims on three sources, and what surprised."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from suite.report.ledger import agreement, effect_in_words, published_entry
from suite.run.evidence import PROFILE as SHIPPED

WORDS = Path(__file__).with_name("first.yaml")
DECIDED = ("supported", "contradicted", "undecided")
SURPRISES = 3
Entries = Mapping[str, Mapping[str, Any]]           # what ledger.json keeps of each claim, by identifier


@cache
def words() -> dict[str, Any]:
    return yaml.safe_load(WORDS.read_text("utf-8"))


def first_page(profile: str, rows: Sequence[dict[str, Any]], here: Entries, others: Mapping[str, Entries],
               documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the template of the first page shows. rows, documents: of `suite.report.ledger`; here: this profile's
    entries, others: those of other profiles. The shipped runs, which are more and longer, come first."""
    shipped = {} if profile == SHIPPED else others.get(SHIPPED, {})
    sources = {"Shipped evidence": shipped, "This machine": here} if profile != SHIPPED else {"Shipped evidence": here}
    claims = {row["judgement"].claim.id: row for row in rows}
    main = [{"title": document["title"], "rows": [main_row(claims[name]["judgement"].claim, list(sources.values()))
                                                  for name in words()["main"][document["name"]] if name in claims]}
            for document in documents if document["name"] in words()["main"]]
    return {"question": words()["question"], "answer": answer(sources), "sources": list(sources),
            "main": [document for document in main if document["rows"]], "surprises": surprises(rows)}


def answer(sources: Mapping[str, Entries]) -> list[dict[str, Any]]:
    """The sentences: `text`, `where` the numbers come from, and the `claims` that they are."""
    found = []
    for sentence in words()["answer"]:
        where, entry = best(sentence["claim"], sources)
        if entry is not None and entry["effect"] is not None:
            effect, size = effect_in_words(entry), effect_in_words(entry, absolute=True)
            found.append({"text": sentence[entry["verdict"]].format(effect=effect, size=size), "where": where,
                          "claims": [sentence["claim"]]})
    open_ones = {name: words()["unknown"][name] for name in words()["unknown"]
                 if (entry := best(name, sources)[1]) is None or entry["verdict"] == "undecided"}
    if found and open_ones:
        found.append({"text": f"We do not know {'; nor '.join(open_ones.values())}.", "where": "ledger",
                      "claims": list(open_ones)})
    return found


def best(claim: str, sources: Mapping[str, Entries]) -> tuple[str, Mapping[str, Any] | None]:
    """The first source that tested a claim, with what it found."""
    tested = ((name.lower(), entries[claim]) for name, entries in sources.items()
              if claim in entries and entries[claim]["verdict"] in DECIDED)
    return next(tested, ("", None))


def main_row(claim: Any, sources: Sequence[Entries]) -> dict[str, Any]:
    """A claim with what was published, what each source found, and whether they agree."""
    found = [published_entry(claim), *(entries.get(claim.id) for entries in sources)]
    return {"claim": claim, "sources": found, "agreement": agreement(found)}


def surprises(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The claims with a published number that turned out otherwise here, those first that a new seed would not turn."""
    turned = [row for row in rows if row["judgement"].verdict == "contradicted" and row["published"]
              and row["judgement"].claim.document != "audit"]
    return sorted(turned, key=lambda row: row["judgement"].flip or 0.0)[:SURPRISES]
