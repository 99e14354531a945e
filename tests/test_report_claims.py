"""The report's first page: every claim with its verdict and evidence, one picture of all, and where numbers come from."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import made_up_claims
import numpy as np
import pandas as pd
import pytest
import report_site
from bs4 import BeautifulSoup
from made_up_claims import FAR, LONG, NEAR, SPREAD, judgement
from report_site import ALL_PATTERNS, DONE, FAILED, PROFILE, STATUS, WAITING

from lib import paths
from suite.claims import as_json
from suite.report import (NotebookStatus, build, chart, ledger, overview,
                          summary)

WITH_ALL = {**STATUS, ALL_PATTERNS: NotebookStatus("done", seconds=2.0)}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A made-up profile whose 08_all_patterns is done; tests that change files restore them."""
    outputs = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUITE_OUTPUTS", str(outputs))
        patch.setattr(paths, "PROFILES", outputs / "profiles")
        patch.setattr(paths, "NOTEBOOKS", outputs / "notebooks")
        report_site.build_site(outputs)
        shutil.copy(paths.executed(PROFILE) / f"{DONE}.ipynb", paths.executed(PROFILE) / f"{ALL_PATTERNS}.ipynb")
        made_up_claims.all_patterns(runs_of()).to_csv(paths.results(PROFILE) / f"{ALL_PATTERNS}.csv", index=False)
        yield outputs


@pytest.fixture(scope="module")
def claims(site):
    return made_up_claims.judgements(runs_of())


@pytest.fixture(scope="module")
def index(site, claims) -> Path:
    write_other("overnight", [{**entry, "verdict": "undecided" if entry["identifier"] == "F1" else entry["verdict"]}
                              for entry in as_json(claims)])
    with pytest.MonkeyPatch.context() as patch:
        made_up_claims.replace_judging(patch, claims)
        return build(PROFILE, WITH_ALL)


@pytest.fixture(scope="module")
def page(index) -> BeautifulSoup:
    return parsed(index)


def runs_of() -> list[str]:
    """Fingerprints of the made-up runs."""
    return list(pd.read_csv(paths.results(PROFILE) / f"{DONE}.csv", dtype={"run": str})["run"].unique())


def parsed(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text("utf-8"), "html.parser")


def built(monkeypatch, claims, status=STATUS) -> BeautifulSoup:
    made_up_claims.replace_judging(monkeypatch, claims)
    return parsed(build(PROFILE, status))


def write_other(profile: str, content: object) -> Path:
    path = paths.report(profile) / "ledger.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def text(tag) -> str:
    return " ".join(tag.get_text(" ").split())


# The ledger

def test_when_the_page_opens_then_the_claims_come_first_and_are_counted_in_total_and_by_document(page):
    first = page.select("main > section")[0]
    assert first["id"] == "claims" and text(first.h2) == "8 claims, and whether they hold"
    assert [text(item) for item in first.select(".verdicts li")] == [
        "3 ✓ supported", "2 ✗ contradicted", "1 ? undecided at this profile", "1 – not tested here", "1 ! could not be judged"]
    rows = [[text(cell) for cell in row.find_all(["th", "td"])] for row in first.select(".tally tr")]
    assert rows[0] == ["Document", "", "✓ supported", "✗ contradicted", "? undecided", "– not tested", "! failed"]
    assert rows[1:] == [["Fibonacci", "", "1", "1", "1", "", ""], ["Power law", "", "", "", "", "1", ""],
                        ["Christoffel", "", "", "", "", "", "1"], ["Audit", "", "1", "", "", "", ""],
                        ["Suite", "", "1", "1", "", "", ""]]


def test_when_nothing_failed_then_no_count_speaks_of_failures(site, monkeypatch):
    shown = built(monkeypatch, [judgement("F1", "fibonacci", "supported")])
    assert "could not be judged" not in text(shown.select_one("#claims"))


def test_when_a_claim_is_shown_then_all_that_decides_it_stands_in_its_row(page, claims):
    assert [row["id"] for row in page.select(".ledger tbody tr")] == [f"claim-{own.claim.id}" for own in claims]
    for own in claims:
        row = text(page.find(id=f"claim-{own.claim.id}"))
        unit = own.unit if own.effect is not None else ""
        for said in (own.claim.id, own.claim.statement, own.verdict, own.claim.comparison, own.claim.rule, own.sentence, unit):
            assert said in row, (own.claim.id, said)
    shown = {name: text(page.select_one(f"#claim-{name} .effect")) for name in ("F1", "F2", "F3", "A1", "S2")}
    assert shown == {"F1": "−0.042 nats a token −0.051 to −0.033 3 seeds", "F2": "1.50 % 1.10 to 1.90 one seed",
                     "F3": "−0.04 nats a token −0.10 to 0.05 3 seeds", "A1": "133 distances exact",
                     "S2": "0.3293 times no interval one seed"}
    assert text(page.select_one("#claim-F1 .published")) == "−0.0273 nats a token table 2, W = 12"
    assert text(page.select_one("#claim-F2 .published")) == "none"
    details = [text(line) for name in ("F1", "F3", "A1") for line in page.select(f"#claim-{name} dl > div")]
    assert [line.split(" ledger ")[1] for line in details if line.startswith("p,")] == ["0.012", "below 0.001"]


def test_when_a_verdict_rests_on_one_seed_then_it_is_marked_and_others_are_not(page):
    marked = {row["id"] for row in page.select(".ledger tr[id]") if row.select_one(".one")}
    assert marked == {"claim-F2", "claim-S2"}


def test_when_an_interval_would_decide_but_the_correction_does_not_let_it_then_its_row_shows_the_p(site, monkeypatch):
    claims = [judgement("F1", "fibonacci", "undecided", p=0.21), judgement("F2", "fibonacci", "undecided", high=0.01, p=0.21),
              judgement("F3", "fibonacci", "supported")]
    shown = built(monkeypatch, claims)
    corrected = [own.claim.id for own in claims if "after Holm" in text(shown.select_one(f"#claim-{own.claim.id} .effect"))]
    assert corrected == ["F1"] and "p = 0.210 after Holm's correction" in text(shown.select_one("#claim-F1 .effect"))


def test_when_a_claim_has_no_effect_then_its_row_says_why_without_unfolding(page):
    for identifier, why in (("P1", "Its notebook has not run yet."), ("C1", "KeyError: 'no such <series>'")):
        said = page.select_one(f"#claim-{identifier} .effect .why")
        assert text(said) == why and said.find_parent("details") is None
    assert "! failed" in text(page.find(id="claim-C1"))


def test_when_a_row_leads_to_its_evidence_then_it_is_the_heading_else_the_notebook(page):
    def link(identifier):
        return page.select_one(f"#claim-{identifier} .evidence > a")
    heading = page.find(id=link("F1")["href"].removeprefix("#"))
    assert heading.name == "h3" and heading.get_text() == made_up_claims.EVIDENCE == link("F1").get_text()
    assert heading.find_parent("section")["id"] == DONE
    assert link("P1")["href"] == f"#{WAITING}" and link("A1")["href"] == f"#{DONE}"


def test_when_a_row_names_runs_then_they_lead_to_the_appendix_if_it_has_them(page, claims):
    for own in claims:
        links = [link["href"] for link in page.select(f"#claim-{own.claim.id} .evidence a.run")]
        assert links == [f"#run-{run}" for run in own.runs if run != "f" * 16]
    assert all(page.find(id=link["href"].removeprefix("#")) for link in page.select("a.run"))
    assert page.select_one(f"#claim-{LONG} .evidence code").get_text() == "ffffffff"


def test_when_the_page_is_written_then_it_is_judged_once_and_ledger_json_holds_it(site, claims, monkeypatch):
    calls = made_up_claims.replace_judging(monkeypatch, claims)
    path = build(PROFILE, WITH_ALL).with_name("ledger.json")
    assert calls == [(PROFILE, "the corpus", (DONE, ALL_PATTERNS))]
    assert json.loads(path.read_text()) == as_json(claims)
    assert ledger.read(path) == as_json(claims)


def test_when_there_is_no_corpus_then_nothing_is_judged_and_the_page_says_so(site, monkeypatch):
    calls = made_up_claims.replace_judging(monkeypatch, [judgement("F1", "fibonacci", "supported")])
    monkeypatch.setattr("data_prep.build.existing", lambda config: None)
    path = build(PROFILE, STATUS)
    assert calls == [] and "no claim could be judged" in text(parsed(path).select_one("#claims"))
    assert json.loads(path.with_name("ledger.json").read_text()) == []


@pytest.mark.parametrize("numbers", [{"effect": float("nan"), "low": None, "high": None, "p": None}, {"high": float("inf")}])
def test_when_a_measure_gives_no_number_then_it_is_shown_as_failed_and_the_page_is_written(site, monkeypatch, numbers):
    shown = built(monkeypatch, [judgement("F1", "fibonacci", "contradicted", **numbers)])
    said = re.search("nan|inf", text(shown.select_one("#claim-F1 .why")))
    assert text(shown.select_one("#claim-F1 .verdict")) == "! failed" and said
    entry, = json.loads((paths.report(PROFILE) / "ledger.json").read_text())
    assert (entry["verdict"], entry["effect"], entry["interval"]) == ("failed", None, None)


def test_when_there_is_no_interval_then_nothing_is_drawn(page):
    assert page.select_one("#claim-A1 svg") is None and page.select_one("#claim-F1 svg") is not None


# Other profiles

def test_when_another_profile_was_judged_then_its_verdict_stands_beside_and_untested_ones_do_not(page, claims):
    said = {own.claim.id: [text(mark) for mark in page.select(f"#claim-{own.claim.id} .verdict")] for own in claims}
    assert said["F1"] == ["✓ supported", "overnight: ? undecided"]
    assert said["F2"] == ["✗ contradicted", "overnight: ✗ contradicted"] and said["P1"] == ["– not tested"]


def test_when_the_page_is_written_again_then_its_own_ledger_is_no_other_profile(site, monkeypatch):
    for _ in range(2):
        shown = built(monkeypatch, [judgement("X1", "fibonacci", "supported")])
        assert [text(mark) for mark in shown.select("#claim-X1 .verdict")] == ["✓ supported"]


@pytest.mark.parametrize(("content", "message"), [
    ("[{", "is not JSON"), ({"F1": "supported"}, "not a list"), (["F1"], "not a list"),
    ([{"identifier": "F1", "verdict": "supported"}], "without identifier, rule or verdict"),
    ([{"identifier": "F1", "verdict": "true", "rule": "r"}], "the verdict 'true' for F1"),
    ([{"identifier": "F1", "verdict": "supported", "rule": "r"}] * 2, "a claim twice")])
def test_when_another_ledger_is_broken_then_it_is_left_out_with_a_note(site, monkeypatch, content, message):
    path = write_other("broken", content)
    try:
        shown = text(built(monkeypatch, [judgement("F1", "fibonacci", "supported")]).select_one("#claims"))
    finally:
        shutil.rmtree(path.parent.parent)
    assert re.search(f"The verdicts of profile broken are left out: ledger.json.*{message}", shown)
    assert "broken:" not in shown and str(site) not in shown


def test_when_a_rule_has_changed_then_a_verdict_by_the_earlier_one_is_left_out_with_a_note(site, monkeypatch):
    claims = [judgement("F1", "fibonacci", "supported"), judgement("F2", "fibonacci", "supported")]
    entries = as_json(claims)
    path = write_other("earlier", [{**entries[0], "rule": "another"}, entries[1], {**entries[1], "identifier": "gone"}])
    try:
        shown = built(monkeypatch, claims)
    finally:
        shutil.rmtree(path.parent.parent)
    assert "1 verdict of profile earlier is left out: by an earlier rule." in text(shown.select_one("#claims"))
    assert "earlier" not in text(shown.find(id="claim-F1")) and "earlier: ✓ supported" in text(shown.find(id="claim-F2"))


# The picture of all patterns

def test_when_all_patterns_are_done_then_their_picture_stands_under_the_counts_and_its_values_are_the_tables(page):
    order = [tag for tag in page.select("#claims .tally, #claims #picture, #claims .ledger")]
    assert order[0]["class"] == ["tally"] and order[1]["id"] == "picture"
    rows = [[text(cell) for cell in row.find_all(["th", "td"])] for row in page.select("#picture-values tbody tr")]
    expected = sorted(NEAR, key=NEAR.get)
    assert [row[0] for row in rows] == expected
    for name, near, far, speed, keys, *_ in rows:
        assert (near, far) == (f"{NEAR[name]:.2f}", f"{FAR[name]:.2f}")
        assert (speed, keys) == (("1.00", "128.5") if name == "Dense" else ("1.10", "12.4"))
    assert len(page.select("#picture-values a.run")) == len(NEAR)
    caption, image = text(page.select_one("#picture figcaption")), page.select_one("#picture img")
    assert "6 series attend" in caption and "Dense attends 262,144" in caption and "one seed" in caption
    assert "At 256 tokens Local window, equal edges has the lowest perplexity, 20.90; Fixed stride" in image["alt"]
    assert "At 1024 tokens Fibonacci, linear ramp has the lowest, 20.70" in image["alt"]
    assert page.select_one("#summary img") is not None


def test_when_all_patterns_are_not_done_then_the_chart_of_pairs_takes_the_place(site, monkeypatch):
    shown = built(monkeypatch, [judgement("F1", "fibonacci", "supported")])
    assert shown.select_one("#picture img")["alt"].startswith("Scatter plot of perplexity against attended pairs")
    assert shown.select_one("#summary img") is None and shown.select_one("#picture-values") is None


def table_of(seeds: int, tmp_path: Path) -> overview.Overview:
    made_up_claims.all_patterns(runs_of(), seeds).to_csv(tmp_path / f"{ALL_PATTERNS}.csv", index=False)
    return overview.overview(summary.read_tables(tmp_path, [ALL_PATTERNS]))


def test_when_there_are_seeds_then_the_interval_is_students_over_them(site, tmp_path):
    found = table_of(3, tmp_path)
    losses = np.log(SPREAD)
    half = 4.302653 * losses.std(ddof=1) / np.sqrt(3)              # the 97.5 % point of t with two degrees of freedom
    for place in found.places:
        middle = np.log(NEAR[place.name]) + losses.mean()
        assert np.log(place.near) == pytest.approx(middle) and place.seeds == 3
        assert np.log(place.interval) == pytest.approx([middle - half, middle + half])
    assert "interval of the mean over 3 seeds" in overview.caption(found)


def test_when_perplexities_are_far_off_then_they_are_written_and_the_axis_ends_before(site, tmp_path):
    found = table_of(1, tmp_path)
    fig = overview.draw(found, 8.0)
    axes = fig.axes[0]
    assert 22.1 < axes.get_xlim()[1] < 25
    assert {note.get_text() for note in axes.texts} == {"118", "40, 55"}
    assert [tick.get_text() for tick in axes.get_yticklabels()][-1] == "Local window"
    near = dataclasses.replace(found, places=tuple(place for place in found.places if place.far < 25))
    assert not overview.draw(near, chart.PHONE).axes[0].texts


def test_when_one_series_has_several_settings_then_each_is_a_row(site, tmp_path):
    table = made_up_claims.all_patterns(runs_of())
    other = table[table["series"] == "Power law"].assign(setting="sigma=0.5", run=runs_of()[-1])
    pd.concat([table, other]).to_csv(tmp_path / f"{ALL_PATTERNS}.csv", index=False)
    found = overview.overview(summary.read_tables(tmp_path, [ALL_PATTERNS]))
    assert {place.name for place in found.places} == {*NEAR} - {"Power law"} | {"Power law, W=6", "Power law, W=6 sigma=0.5"}


# Where numbers come from

def test_when_a_section_shows_results_then_their_runs_stand_folded_in_it(page):
    block = page.find("details", id=f"{DONE}-made")
    assert block.find_parent("section")["id"] == DONE and not block.has_attr("open")
    table = pd.read_csv(paths.results(PROFILE) / f"{DONE}.csv", dtype={"run": str})
    assert {link["href"].removeprefix("#run-") for link in block.select("a.run")} == set(table["run"])
    assert text(block.summary) == f"Runs behind this section: {table['run'].nunique()}"
    assert f"make notebook NAME={DONE} PROFILE={PROFILE}" in text(block)
    lines = [text(line) for line in block.find_all("li")]
    line = next(line for line in lines if line.startswith("Power law, sigma=0.8 budget=64."))
    for seed, run in table[table["setting"] == "sigma=0.8 budget=64"].groupby("seed")["run"].first().items():
        assert f"{seed}: {run[:8]}" in line
    assert [link.get_text() for link in block.select("p a")] == ["F1", "F2", "F3", "C1", "A1", LONG, "S2"]


def test_when_a_figure_is_shown_then_its_caption_leads_to_how_it_was_made(page):
    for section in page.select("section.notebook"):
        for figure in section.find_all("figure"):
            link = figure.figcaption.select_one("a.trace")
            assert link["href"] == f"#{section['id']}-made" and page.find(id=link["href"][1:]) is not None
    assert len(page.find("section", id=DONE).select("figure a.trace")) == 3
    assert "it failed before it wrote a table" in text(page.find(id=f"{FAILED}-made"))
    for link in page.select("#picture a.trace, #summary a.trace"):
        assert page.find(id=link["href"][1:]) is not None


# The whole page

def test_when_the_first_page_is_there_then_identifiers_are_unique_and_tables_have_captions_and_scopes(page):
    identifiers = [tag["id"] for tag in page.find_all(id=True)]
    assert len(identifiers) == len(set(identifiers))
    for link in page.find_all("a", href=re.compile("^#")):
        assert link["href"][1:] in identifiers, link["href"]
    for table in page.select("#claims table"):
        assert table.caption.get_text(strip=True) and table.parent["class"] == ["scroll"] and table.parent["aria-label"]
        assert all(header.get("scope") in ("col", "row") for header in table.find_all("th"))
    for table in page.select(".ledger"):           # rows are cards on a telephone: roles say what they are all the same
        assert all(cell["role"] in ("cell", "columnheader", "rowheader") for cell in table.find_all(["td", "th"]))
    levels = [int(heading.name[1]) for heading in page.find_all(re.compile(r"h[1-6]"))]
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    assert page.select_one("#claim-filters").has_attr("hidden")     # a script shows what only a script can do


def test_when_the_first_page_is_used_in_a_browser_then_filters_work_it_fits_and_links_unfold(site, claims, monkeypatch):
    pytest.importorskip("websocket")
    import browser
    if browser.chromium() is None:
        pytest.skip("no Chromium on this machine")
    made_up_claims.replace_judging(monkeypatch, claims)
    index = build(PROFILE, WITH_ALL)
    with browser.browser() as tab:
        def shown() -> list[str]:
            rows = "[...document.querySelectorAll('.ledger tbody tr')].filter(row => row.offsetHeight > 0)"
            return tab.evaluate(f"{rows}.map(row => row.id.slice(6))")

        def press(kind: str, value: str) -> None:
            tab.evaluate(f"document.querySelector('#claim-filters [data-kind={kind}][value=\"{value}\"]').click()")
        for width in (360, 800, 1000, 1120, 1280, 400):
            tab.open(index, width)
            boxes = "[...document.querySelectorAll('#claims .scroll')].filter(box => !box.closest('details'))"
            assert tab.evaluate(f"{boxes}.every(box => box.scrollWidth <= box.clientWidth)"), width
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            inside = "[...document.querySelectorAll('#claims .ledger td, #claims .ledger th')].filter(c => c.offsetHeight > 1)"
            assert tab.evaluate(f"{inside}.every(c => c.getBoundingClientRect().right <= innerWidth + 1)")
            assert shown() == ["F1", "F2", "F3", "P1", "C1", "A1", LONG, "S2"]
            press("verdict", "supported")
            assert shown() == ["F1", "A1", LONG] and tab.evaluate("document.querySelector('[role=status]').textContent") == \
                "3 claims shown"
            press("document", "audit")
            assert shown() == ["A1"]
            assert tab.evaluate("document.getElementById('claims-fibonacci').offsetHeight") == 0
            press("verdict", "")
            press("document", "")
            assert len(shown()) == 8
        tab.evaluate(f"location.hash = '#{DONE}-made'")
        tab.until(f"document.getElementById('{DONE}-made').open")
        run = tab.evaluate("document.querySelector('#claim-F1 a.run').getAttribute('href')")
        tab.evaluate(f"location.hash = '{run}'")
        tab.until(f"document.querySelector('{run} details').open")
        assert tab.complaints() == []
