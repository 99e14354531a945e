"""The ledger on the page of a made-up profile (`report_site`): every claim with all that decides it, beside other
profiles' verdicts."""

import json
import re

import numpy as np
import pytest
from bs4 import BeautifulSoup
from report_site import ALL_PATTERNS, DONE, EVIDENCE, LONG, PROFILE, STATUS, WAITING, WITH_ALL, judgement, text

from lib import paths
from suite.claims import as_json
from suite.report import ledger

SUPPORTED = [judgement("F1", "fibonacci", "supported")]


def test_when_the_ledger_opens_then_claims_are_counted_in_total_and_by_document(page):
    first = page.find("section", id="claims")
    assert text(first.h1) == "8 claims, and whether they hold"
    assert [text(item) for item in first.select(".verdicts li")] == [
        "3 ✓ supported", "2 ✗ contradicted", "1 ? undecided at this profile", "1 – not tested here",
        "1 ! could not be judged"]
    rows = [[text(cell) for cell in row.find_all(["th", "td"])] for row in first.select(".tally tr")]
    assert rows[0] == ["Document", "", "✓ supported", "✗ contradicted", "? undecided", "– not tested", "! failed"]
    assert rows[1:] == [["Fibonacci", "", "1", "1", "1", "", ""], ["Power law", "", "", "", "", "1", ""],
                        ["Christoffel", "", "", "", "", "", "1"], ["Audit", "", "1", "", "", "", ""],
                        ["Suite", "", "1", "1", "", "", ""]]
    assert page.select_one("#claim-filters").has_attr("hidden")     # a script shows what only a script can do


def test_when_a_claim_is_shown_then_all_that_decides_it_stands_in_its_row(page, site):
    claims = site.claims
    assert [row["id"] for row in page.select(".ledger tbody tr")] == [f"claim-{own.claim.id}" for own in claims]
    for own in claims:
        row = text(page.find(id=f"claim-{own.claim.id}"))
        for said in (own.claim.id, own.claim.statement, own.verdict, own.claim.comparison, own.claim.rule,
                     own.sentence):
            assert said in row, (own.claim.id, said)
    shown = {name: text(page.select_one(f"#claim-{name} .effect"))
             for name in ("F1", "F2", "F3", "A1", "S2", "P1", "C1")}
    assert shown == {"F1": "−0.042 nats a token −0.051 to −0.033 3 seeds", "F2": "1.50 % 1.10 to 1.90 one seed",
                     "F3": "−0.04 nats a token −0.10 to 0.05 3 seeds", "A1": "133 distances exact",
                     "S2": "0.3293 times no interval one seed", "P1": "Its notebook has not run yet.",
                     "C1": "KeyError: 'no such <series>'"}
    assert [row["id"] for row in page.select(".ledger tr[id]") if row.select_one(".one")] == ["claim-F2", "claim-S2"]
    assert text(page.select_one("#claim-F1 .published")) == "−0.0273 nats a token table 2, W = 12"
    assert text(page.select_one("#claim-F2 .published")) == "none" and "! failed" in text(page.find(id="claim-C1"))
    details = [text(line) for name in ("F1", "F3", "A1") for line in page.select(f"#claim-{name} dl > div")]
    assert [line.split(" document ")[1] for line in details if line.startswith("p,")] == ["0.012", "below 0.001"]
    assert page.select_one("#claim-A1 svg") is None and page.select_one("#claim-F1 svg") is not None
    verdicts = [[text(mark) for mark in page.select(f"#claim-{name} .verdict")] for name in ("F1", "F2", "P1")]
    assert verdicts == [["✓ supported", "overnight: ? undecided"], ["✗ contradicted", "overnight: ✗ contradicted"],
                        ["– not tested"]]                          # what another profile did not test is not shown


def test_when_an_interval_would_decide_but_the_correction_does_not_let_it_then_its_row_shows_the_p(site):
    shown = site.build(STATUS, [judgement("F1", "fibonacci", "undecided", p=0.21),
                                judgement("F2", "fibonacci", "undecided", high=0.01, p=0.21)])
    first, second = (text(shown.select_one(f"#claim-{name} .effect")) for name in ("F1", "F2"))
    assert "p = 0.210 after Holm's correction" in first and "Holm" not in second
    assert "could not be judged" not in text(shown.select_one("#claims"))         # nothing failed: no count of failures


def test_when_a_row_leads_to_its_evidence_then_it_is_the_heading_else_the_notebook_and_runs_of_the_appendix(page, site):
    def link(identifier):
        return page.select_one(f"#claim-{identifier} .evidence > a")
    heading = page.find(id=link("F1")["href"].removeprefix("#"))
    assert heading.name == "h2" and heading.get_text() == EVIDENCE == link("F1").get_text()
    assert heading.find_parent("section")["id"] == DONE
    assert link("P1")["href"] == f"#{WAITING}" and link("A1")["href"] == f"#{DONE}"
    for own in site.claims:
        links = [link["href"] for link in page.select(f"#claim-{own.claim.id} .evidence a.run")]
        assert links == [f"#run-{run}" for run in own.runs if run != "f" * 16]
    assert page.select_one(f"#claim-{LONG} .evidence code").get_text() == "ffffffff"


def test_when_the_page_is_written_then_it_is_judged_once_and_ledger_json_holds_it(site, monkeypatch):
    claims, path = site.claims, paths.report(PROFILE) / "ledger.json"
    calls = site.judging(claims)
    site.build(WITH_ALL)
    assert calls == [(PROFILE, "the corpus", (DONE, ALL_PATTERNS))]
    assert json.loads(path.read_text()) == as_json(claims)
    monkeypatch.setattr("data_prep.build.existing", lambda config: None)   # nothing is judged
    shown = site.build()
    assert len(calls) == 1 and "no claim could be judged" in text(shown.select_one("#claims"))
    assert json.loads(path.read_text()) == []


# Other profiles

@pytest.mark.parametrize(("content", "message"), [
    ("[{", "JSON"), ({"F1": "supported"}, "TypeError"), (3, "TypeError"),
    ([{"identifier": "F1", "verdict": "supported"}], "'rule'"),
    ([{"identifier": "F1", "verdict": "true", "rule": SUPPORTED[0].claim.rule}], "unknown verdict 'true'")])
def test_when_another_ledger_is_broken_then_it_is_left_out_with_a_note(site, content, message):
    site.other("broken", content)
    others, notes = ledger.entries_of_others(PROFILE, SUPPORTED)
    assert list(others) == ["overnight"] and len(notes) == 1       # nor is the profile's own ledger another one
    assert re.search(f"The verdicts of profile broken are left out: ledger.json.*{message}", notes[0])
    assert str(site.outputs) not in notes[0]


def test_when_a_rule_has_changed_then_a_verdict_by_the_earlier_one_is_left_out_with_a_note(site):
    claims = [*SUPPORTED, judgement("F2", "fibonacci", "supported")]
    first, second = as_json(claims)
    site.other("earlier", [{**first, "rule": "another"}, second, {**second, "identifier": "gone"}])
    others, notes = ledger.entries_of_others(PROFILE, claims)
    assert {name: own["verdict"] for name, own in others["earlier"].items()} == {"F2": "supported"}
    assert notes[0] == "1 verdict of profile earlier is left out: by an earlier rule."
    assert notes[0] in text(site.build(claims=claims).select_one("#claims"))


# Numbers and intervals

def test_when_a_number_is_written_then_digits_and_sign_are_those_of_a_page_and_a_narrow_interval_has_more_decimals():
    for value, decimals, expected in ((0.0, None, "0"), (1234567.0, None, "1,234,567"), (0.123456, None, "0.1235"),
                                      (1234.56, None, "1,235"), (4.8, None, "4.8"), (-0.0004, 3, "0.000")):
        assert ledger.written(value, decimals) == expected
    for low, high, decimals in ((-0.051, -0.033, 3), (0.1, 0.9, 2), (-3.0, 12.0, 0), (1.0, 1.00001, 5)):
        assert ledger.digits(low, high) == decimals


@pytest.mark.parametrize(("region", "effect", "low", "high"), [
    ({"below": 0}, -0.042, -0.051, -0.033), ({"below": 1}, 1.5, 1.1, 1.9), ({"above": 0}, 0.0, -1, 2),
    ({"between": [-0.02, 0.02]}, 0.05, 0.01, 0.09)])
def test_when_an_interval_is_drawn_then_places_are_its_numbers_and_the_claimed_side_is_shaded(
        region, effect, low, high):
    own = judgement("F1", "fibonacci", "undecided", region=region, effect=effect, low=low, high=high)
    svg = BeautifulSoup(ledger.plot(own), "html.parser")
    start, end = map(float, re.fullmatch(r"M([\d.]+) 7H([\d.]+)", svg.select_one(".span")["d"]).groups())
    point, left = float(svg.circle["cx"]), float(svg.rect["x"])

    def place(value: float) -> float:
        return start + (value - low) / (high - low) * (end - start)
    assert 0 < start <= point <= end < ledger.WIDE and point == pytest.approx(place(effect), abs=0.25)
    kind, ends = next(iter(region.items()))
    bounds = ends if kind == "between" else [-np.inf, ends] if kind == "below" else [ends, np.inf]
    expected = np.clip([place(bound) for bound in bounds], 0, ledger.WIDE)
    assert (left, left + float(svg.rect["width"])) == pytest.approx(expected, abs=0.4)
    assert svg.svg["aria-hidden"] == "true"
