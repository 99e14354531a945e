"""The page of a made-up profile (`report_site`): self-contained, accessible, honest about what failed, traceable to
runs."""

import dataclasses
import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from report_site import (ALL_PATTERNS, DOMAINS, DONE, EVIDENCE, FAILED, LONG, PLACES, PROFILE, RUNNING, SERIES, SPREAD,
                         STATUS, WAITING, WITH_ALL, all_patterns, judgement)

from lib import paths
from lib.errors import SuiteError
from suite.claims import as_json
from suite.experiments.base import COLUMNS
from suite.report import NotebookStatus, build, ledger, pictures, summary

RESOURCES = ("src", "srcset", "poster", "data", "action", "background", "xlink:href")
OUTSIDE_CSS = re.compile(r"@import|url\(", re.IGNORECASE)
NEAR, FAR = ({name: place[at] for name, place in PLACES.items()} for at in (2, 3))
KEYS = {"keys", "12", "128"}          # of the right edge of the picture of all patterns
SUPPORTED = [judgement("F1", "fibonacci", "supported")]


def text(tag) -> str:
    return " ".join(tag.get_text(" ").split())


def section(page, name: str):
    return page.find("section", id=name)


# Self-contained and accessible

def test_when_the_page_opens_then_nothing_in_it_is_fetched_or_runs_but_its_own_script(page):
    for tag in page.find_all(True):
        for name, value in tag.attrs.items():
            if name in RESOURCES or (name == "href" and tag.name != "a"):
                assert str(value).startswith(("data:", "#")), (tag.name, name, value[:80])
            assert not name.startswith("on"), (tag.name, name)
        assert not OUTSIDE_CSS.search(tag.get("style", ""))
    assert not any(OUTSIDE_CSS.search(style.get_text()) for style in page.find_all("style"))
    script, = page.find_all("script")
    assert not re.search(r"https?:|import\(|fetch|XMLHttp|alert", script.get_text())
    assert not page.find_all(["iframe", "object", "embed"])
    for gone in ("require.js", "alert(", "steal()", "cdn.example.org", "MathJax", "cloudflare", "Javascript object"):
        assert gone not in str(page)
    for kept in ("picture not embedded: a picture elsewhere", "kept HTML with", "clickable"):
        assert kept in str(page)


def test_when_links_leave_the_page_then_only_to_the_web_or_to_files_beside_it(rendered, page):
    identifiers = [tag["id"] for tag in page.find_all(id=True)]
    assert len(identifiers) == len(set(identifiers))
    for link in page.find_all("a"):
        target = link.get("href", "#main")
        if target.startswith(("../results/", "ledger.json")):
            assert (rendered[0] / PROFILE / "report" / target).resolve().is_file(), target
        else:
            assert target.startswith("https://") or target.removeprefix("#") in identifiers, target
    links = {link.get_text(): link["href"] for link in section(page, DONE).find_all("a")}
    assert links["the paper"] == "https://arxiv.org/abs/2606.28560" and links["extrapolation"] == f"#{WAITING}"
    assert links["audit row 12"] == "#audit-row-12" and links["a row that is not there"] == "#audit"
    # a path of the repository leads nowhere
    assert "a file" not in links and "a file" in section(page, DONE).get_text()


def test_when_the_audit_is_shown_then_its_rows_can_be_linked_and_it_links_to_notebooks(page, site):
    audit = section(page, "audit")
    assert audit.h2.get_text() == "Audit of the documents" and audit.find("math")["alttext"] == "75"
    assert page.find(id="audit-row-12").find_parent("tr") and audit.find("a", string="the sweep")["href"] == f"#{DONE}"
    (site.outputs / "audit.md").unlink()
    without = site.build(claims=[])
    assert section(without, "audit") is None and without.find("a", string="audit row 12") is None


def test_when_images_headings_and_tables_are_read_then_they_say_what_they_are(page):
    assert [image["alt"] for image in section(page, DONE).find_all("img")] == [
        "a drawing", "Four lines that fall & flatten", "A figure with a caption only.",
        "Figure 4, under 'Loss over training'"]
    assert all(image["alt"].strip() for image in page.find_all("img"))
    headings = page.find_all(re.compile(r"h[1-6]"))
    levels = [int(heading.name[1]) for heading in headings]
    assert levels.count(1) == 1 and levels[0] == 1 and page.html["lang"] == "en"
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    sweep = "Window sweep: which alpha schedule?"
    assert [heading.get_text() for heading in headings if heading.name == "h2"] == [
        "8 claims, and whether they hold", "Conclusions", "Summary", sweep, "Learned alpha", WAITING, RUNNING, sweep,
        "Audit of the documents", "Data", "Made with", "Runs"]
    for table in page.find_all("table"):
        assert table.caption.get_text(strip=True)
        assert table.parent["class"] == ["scroll"] and table.parent["tabindex"] == "0" and table.parent["aria-label"]
        assert all(header.get("scope") in ("col", "row", "colgroup", "rowgroup") for header in table.find_all("th"))
    for table in page.select(".ledger"):           # rows are cards on a telephone: roles say what they are all the same
        assert all(cell["role"] in ("cell", "columnheader", "rowheader") for cell in table.find_all(["td", "th"]))
    cells = section(page, DONE).find("table", class_="dataframe").tbody.tr.find_all("td")
    assert [cell.get("class") for cell in cells] == [None, None, ["num"], ["num"]]


# Notebooks

def test_when_a_notebook_is_shown_then_code_is_folded_output_is_in_its_end_state_and_formulas_are_mathml(page):
    own = section(page, DONE)
    open_, *folded = own.select("details.code")
    assert open_.has_attr("open") and open_.summary.get_text() == "Parameters"
    assert not any(cell.has_attr("open") for cell in folded) and len(folded) == 7 and "nb.run()" in folded[0].get_text()
    assert open_.pre.get_text().splitlines() == ['profile: str = "small"  # scale',
                                                 "seeds: list[int] = [42, 43]  # one run each"]
    for gone in ("first", "100%|", "10%|", "HBox", "2 min left", "\x1b", "CAPTION FOR JUPYTERLAB"):
        assert gone not in own.get_text(), gone
    for kept in ("second, 9000 tokens/s", "mind the gap", "red & <plain>", "A fee of $5 or $6 is no formula"):
        assert kept in own.get_text(), kept
    assert own.select_one("pre .ansi-red-fg").get_text() == "red"
    formulas = [formula["alttext"] for formula in own.find_all("math")]
    assert formulas[0] == r"\alpha_\ell = 0.5 + \ell/(L-1)"
    assert own.find("math", display="block").parent["class"] == ["math", "block"]
    assert {r"\beta", r"\sigma = 0.8", r"\displaystyle \sum_{d} q(d) = 1", "x"} <= set(formulas)
    assert own.find("code", string="$x_i$")
    assert [formula.get_text() for formula in own.select("code.tex")] == [r"$\nosuchcommand{x}$"]


def test_when_a_notebook_shows_a_claim_then_the_ledger_s_row_stands_in_its_place_and_on_the_first_page(page):
    own, card = section(page, DONE), page.select("#conclusions article")[0]
    box = own.select_one(".claim")
    said = "✓ supported What F1 says: a < b & c −0.042 nats a token"
    assert text(box).startswith(f"{said} −0.051 to −0.033 3 seeds")
    assert box.a["href"] == "#claim-F1" and box.find("svg") and "STALE VERDICT" not in own.get_text()
    assert [text(told) for told in own.select(".conclusion")] == ["A claim that the ledger lacks."]
    assert "The ramp is better by 0.02 nats, with α 0 = 0.5 ." in text(own)
    assert card.h3.a["href"] == f"#{DONE}" and card.select_one(".question").get_text() == "Is the ramp better?"
    assert text(card.li) == f"{said} (−0.051 to −0.033)"
    assert [item.a["href"] for item in card.find_all("li")] == [
        f"#claim-{name}" for name in ("F1", "F2", "F3", "A1", LONG, "S2")]
    assert [len(part.find_all("li", recursive=False)) for part in card.find_all("ul")] == [4, 2]
    assert card.find_all("ul")[1].find_parent("details").summary.get_text() == "2 more"
    assert text(card.select_one("p.note")) == "Without a number: C1 ." and "0.02 nats" not in text(card)


def test_when_a_notebook_failed_or_waits_then_partial_output_is_marked_and_old_results_do_not_count(page, site):
    failed = section(page, FAILED)
    assert "This notebook failed. ValueError: no alpha <moved> & far" in text(failed.select_one(".notice.failed"))
    assert "PARTIAL OUTPUT" in failed.get_text() and "An Exception was encountered" not in failed.get_text()
    assert "no alpha <moved> & far" in failed.select_one(".failure").get_text()
    assert failed.select_one(".failure .ansi-red-fg") and "\x1b" not in failed.get_text()
    assert "Failed before it came to a conclusion" in text(page.select("#conclusions article")[1])
    error = "not executed, since runs that it needs failed:\nlocal: loss is nan"
    failed = text(section(site.build({**STATUS, FAILED: NotebookStatus("failed", error)}, []), FAILED))
    assert "PARTIAL OUTPUT" not in failed and "It left no output." in failed        # that was of an earlier execution
    assert "runs that it needs failed: local: loss is nan" in failed
    assert "Not run yet" in text(section(page, WAITING)) and "Being executed now" in text(section(page, RUNNING))
    assert "STALE RESULT" not in str(page) and "from an older execution" not in str(page)
    assert "2 of 5 done, 1 failed" in text(page.find("dl"))


# Numbers

def test_when_series_are_summarised_then_each_number_is_that_of_the_table(page, site):
    rows, table = page.select("#summary tbody tr"), site.table
    assert len(rows) == len(SERIES)
    final = table[(table["measure"] == "perplexity") & (table["length"] == 256) & table["variant"].isna()]
    final = final[final["step"].isna()]
    headers = [header.get_text() for header in page.select("#summary thead th")]
    means = []
    for row in rows:
        shown = dict(zip(headers, [cell.get_text(" ", strip=True) for cell in row.find_all(["th", "td"])], strict=True))
        own = final[final["run"].isin([link["href"].removeprefix("#run-") for link in row.select("a.run")])]
        assert len(own) == 2 * len(DOMAINS) and own["series"].nunique() == 1
        by_run = np.exp(np.log(own["value"]).groupby(own["run"]).mean())
        means.append(float(np.exp(np.log(own["value"]).mean())))
        expected = {"Mean perplexity": f"{means[-1]:,.2f} ± {by_run.std(ddof=1):.2f}", "Parameters": "1,836,416",
                    "Attended pairs": f"{own['pairs'].iloc[0]:,.0f}", "Training tokens": f"{610 * 16 * 256:,}",
                    **{domain: f"{np.exp(np.log(values).mean()):,.2f}"
                       for domain, values in own.groupby("split")["value"]}}
        assert expected.items() <= shown.items()
    assert means == sorted(means) and rows[0].select_one("td.best").get_text(strip=True).startswith(f"{means[0]:.2f}")
    assert "W=14" in [row.find_all("td")[0].get_text() for row in rows]


def test_when_a_number_is_asked_for_then_run_and_command_stand_in_the_section_and_in_the_appendix(page, site):
    assert all(page.find(id=link["href"].removeprefix("#")) for link in page.select("a.run"))
    assert len(section(page, DONE).select("td a.run")) == 6
    block, table = page.find("details", id=f"{DONE}-made"), site.table
    run = table.loc[table["series"] == "Christoffel", "run"].iloc[0]
    row = page.find("tr", id=f"run-{run}").get_text(" ", strip=True)
    command = f"make notebook NAME={DONE} PROFILE={PROFILE}"
    for fact in ("christoffel", "k=127 m=15", "d_model=128", "steps=610", "source=text", command,
                 f"make verify RUN={run} PROFILE={PROFILE} CORPUS='../my texts'"):
        assert fact in row, fact
    assert block.find_parent("section")["id"] == DONE and not block.has_attr("open") and command in text(block)
    assert {link["href"].removeprefix("#run-") for link in block.select("a.run")} == set(table["run"])
    assert text(block.summary) == f"Runs behind this section: {table['run'].nunique()}"
    line, = (text(line) for line in block.find_all("li") if text(line).startswith("Power law, sigma=0.8 budget=64."))
    for seed, run in table[table["setting"] == "sigma=0.8 budget=64"].groupby("seed")["run"].first().items():
        assert f"{seed}: {run[:8]}" in line
    for own in page.select("section.notebook"):
        assert all(figure.figcaption.select_one("a.trace")["href"] == f"#{own['id']}-made"
                   for figure in own.find_all("figure"))
    assert "it failed before it wrote a table" in text(page.find(id=f"{FAILED}-made"))


def test_when_the_page_says_what_was_run_then_data_versions_machine_and_command_are_there(page):
    assert "A made-up profile & its <numbers>" in page.select_one(".lede").get_text()
    for name, facts in {"data": ("3,500,000", "3,001", "tokenizers 0.23.3"),
                        "made-with": ("torch 2.13.0", "Made-up CPU, 2 cores", "1 thread a run")}.items():
        assert all(fact in section(page, name).get_text(" ", strip=True) for fact in facts)
    assert page.select_one(".glance code").get_text() == f"make report PROFILE={PROFILE} CORPUS='../my texts'"


def test_when_a_table_is_read_then_fingerprints_stay_text_and_a_damaged_one_is_named(tmp_path, site):
    table = site.table.head(1)
    for run in ("12e4567890123456", "0000000000000001", "1234567890123456"):
        table.assign(run=run).to_csv(tmp_path / "a.csv", index=False)
        assert list(summary.read_tables(tmp_path, ["a"])["run"]) == [run]
    for damaged, message in ((table.drop(columns="pairs"), "no column pairs"), (table.assign(value="much"), "much")):
        damaged.to_csv(tmp_path / "a.csv", index=False)
        with pytest.raises(SuiteError, match=f"a.csv: [^:]*{message}"):
            summary.read_tables(tmp_path, ["a"])


def test_when_notebooks_share_a_run_then_it_counts_once_and_when_recipes_differ_then_series_are_not_compared(site):
    table = site.table
    other = table[table["split"] == "docs"].assign(experiment="99_other", series="another name")
    other.to_csv(paths.results(PROFILE) / "99_other.csv", index=False)
    alone, both = (summary.series_of(summary.read_tables(paths.results(PROFILE), names))
                   for names in ([DONE], [DONE, "99_other"]))
    assert both == alone and len(alone) == len(SERIES)
    longer = [dataclasses.replace(s, train_tokens=2 * s.train_tokens) for s in alone]
    learned = dataclasses.replace(alone[0], parameters=alone[0].parameters + 8)
    assert len(summary.groups(alone + longer)) == 2 and len(summary.groups([alone[0], learned])) == 1


# Files

def test_when_the_first_notebook_is_done_then_the_page_is_there_and_grows(site):
    waiting = {name: NotebookStatus("waiting") for name in STATUS}
    empty = str(site.build(waiting, []))
    assert empty.count("not run yet") >= 4 and "No model has a perplexity yet" in empty
    first = str(site.build({**waiting, DONE: NotebookStatus("done", seconds=1.0)}))
    assert "Fibonacci, linear ramp" in first and "PARTIAL OUTPUT" not in first


def test_when_writing_fails_then_the_last_page_stays_and_nothing_else(site, monkeypatch):
    before, move = site.index.read_bytes(), os.replace
    monkeypatch.setattr("os.replace", lambda source, target: move(
        source if Path(target).name != "index.html" else "no such file", target))
    with pytest.raises(SuiteError, match="No such file"):
        site.build(claims=[])
    assert site.index.read_bytes() == before
    assert {path.name for path in site.index.parent.iterdir()} == {"index.html", "ledger.json"}


def test_when_the_page_is_built_again_then_only_the_time_differs_and_columns_are_documented_beside_it(site, page):
    again = str(site.build(WITH_ALL, site.claims))
    assert re.sub(r"<time.*?</time>", "", again) == re.sub(r"<time.*?</time>", "", str(page))
    readme = (paths.results(PROFILE) / "README.md").read_text("utf-8")
    assert all(f"| `{name}` | {meaning} |" in readme for name, meaning in COLUMNS.items())


def test_when_what_the_page_is_made_from_is_broken_then_the_error_names_it(site):
    notebook, table = paths.executed(PROFILE) / f"{RUNNING}.ipynb", paths.results(PROFILE) / f"{RUNNING}.csv"
    for state, message in (("done", f"{RUNNING}.ipynb is missing"),
                           ("done", f"{RUNNING}.ipynb is not a notebook"), ("done", "f{16}")):
        with pytest.raises(SuiteError, match=message):
            build(PROFILE, {RUNNING: NotebookStatus(state)})
        if message.endswith("missing"):
            notebook.write_text('{"cells"')
        if message.endswith("a notebook"):
            site.table.head(1).assign(run="f" * 16).to_csv(table, index=False)


# The ledger

def test_when_the_page_opens_then_the_claims_come_first_and_are_counted_in_total_and_by_document(page):
    first = page.select("main > section")[0]
    assert first["id"] == "claims" and text(first.h2) == "8 claims, and whether they hold"
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


def test_when_an_interval_would_decide_but_the_correction_does_not_let_it_then_its_row_shows_the_p(site):
    shown = site.build(STATUS, [judgement("F1", "fibonacci", "undecided", p=0.21),
                                judgement("F2", "fibonacci", "undecided", high=0.01, p=0.21)])
    first, second = (text(shown.select_one(f"#claim-{name} .effect")) for name in ("F1", "F2"))
    assert "p = 0.210 after Holm's correction" in first and "Holm" not in second
    assert "could not be judged" not in text(shown.select_one("#claims"))         # nothing failed: no count of failures
    assert shown.select_one("#picture img") is None                              # all patterns are not done


def test_when_a_row_leads_to_its_evidence_then_it_is_the_heading_else_the_notebook_and_runs_of_the_appendix(page, site):
    def link(identifier):
        return page.select_one(f"#claim-{identifier} .evidence > a")
    heading = page.find(id=link("F1")["href"].removeprefix("#"))
    assert heading.name == "h3" and heading.get_text() == EVIDENCE == link("F1").get_text()
    assert heading.find_parent("section")["id"] == DONE
    assert link("P1")["href"] == f"#{WAITING}" and link("A1")["href"] == f"#{DONE}"
    for own in site.claims:
        links = [link["href"] for link in page.select(f"#claim-{own.claim.id} .evidence a.run")]
        assert links == [f"#run-{run}" for run in own.runs if run != "f" * 16]
    assert page.select_one(f"#claim-{LONG} .evidence code").get_text() == "ffffffff"
    assert [link.get_text() for link in page.select(f"#\\3{DONE[0]} {DONE[1:]}-made p a")] == [
        "F1", "F2", "F3", "C1", "A1", LONG, "S2"]


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

def test_when_another_profile_was_judged_then_its_verdict_stands_beside_and_untested_ones_do_not(page):
    said = [[text(mark) for mark in page.select(f"#claim-{name} .verdict")] for name in ("F1", "F2", "P1")]
    assert said == [["✓ supported", "overnight: ? undecided"], ["✗ contradicted", "overnight: ✗ contradicted"],
                    ["– not tested"]]


@pytest.mark.parametrize(("content", "message"), [
    ("[{", "JSON"), ({"F1": "supported"}, "TypeError"), (3, "TypeError"),
    ([{"identifier": "F1", "verdict": "supported"}], "'rule'"),
    ([{"identifier": "F1", "verdict": "true", "rule": SUPPORTED[0].claim.rule}], "unknown verdict 'true'")])
def test_when_another_ledger_is_broken_then_it_is_left_out_with_a_note(site, content, message):
    site.other("broken", content)
    others, notes = ledger.verdicts_of_others(PROFILE, SUPPORTED)
    assert list(others) == ["overnight"] and len(notes) == 1       # nor is the profile's own ledger another one
    assert re.search(f"The verdicts of profile broken are left out: ledger.json.*{message}", notes[0])
    assert str(site.outputs) not in notes[0]


def test_when_a_rule_has_changed_then_a_verdict_by_the_earlier_one_is_left_out_with_a_note(site):
    claims = [*SUPPORTED, judgement("F2", "fibonacci", "supported")]
    first, second = as_json(claims)
    site.other("earlier", [{**first, "rule": "another"}, second, {**second, "identifier": "gone"}])
    others, notes = ledger.verdicts_of_others(PROFILE, claims)
    assert others["earlier"] == {"F2": "supported"}
    assert notes[0] == "1 verdict of profile earlier is left out: by an earlier rule."
    assert notes[0] in text(site.build(claims=claims).select_one("#claims"))


# Numbers and intervals

def test_when_a_number_is_written_then_digits_and_sign_are_those_of_a_page_and_a_narrow_interval_has_more_decimals():
    for value, decimals, expected in ((0.0, None, "0"), (1234567.0, None, "1,234,567"), (0.123456, None, "0.1235"),
                                      (1234.56, None, "1,235"), (4.8, None, "4.8"), (-0.0004, 3, "0.000")):
        assert ledger.written(value, decimals) == expected
    for low, high, decimals in ((-0.051, -0.033, 3), (0.1, 0.9, 2), (-3.0, 12.0, 0), (1.0, 1.00001, 5)):
        assert ledger.digits(judgement("F1", "fibonacci", "undecided", effect=low, low=low, high=high)) == decimals


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


# The picture of all patterns

def test_when_all_patterns_are_done_then_their_picture_stands_under_the_counts_and_its_values_are_the_tables(page):
    order = page.select("#claims .tally, #claims #picture, #claims .ledger")
    assert order[0]["class"] == ["tally"] and order[1]["id"] == "picture"
    rows = [[text(cell) for cell in row.find_all(["th", "td"])] for row in page.select("#picture-values tbody tr")]
    assert [row[0] for row in rows] == sorted(NEAR, key=NEAR.get)
    for name, near, far, keys, *_ in rows:
        assert (near, far, keys) == (f"{NEAR[name]:.2f}", f"{FAR[name]:.2f}", "128.5" if name == "Dense" else "12.4")
    assert len(page.select("#picture-values a.run")) == len(NEAR)
    caption, image = text(page.select_one("#picture figcaption")), page.select_one("#picture img")
    assert "6 series attend" in caption and "Dense attends 262,144" in caption and "one seed" in caption
    assert "At 256 tokens Local window, equal edges has the lowest perplexity, 20.90; Fixed stride" in image["alt"]
    assert "At 1024 tokens Fibonacci, linear ramp has the lowest, 20.70" in image["alt"]


def ranking_of(table: pd.DataFrame, tmp_path) -> pictures.Ranking:
    table.to_csv(tmp_path / f"{ALL_PATTERNS}.csv", index=False)
    return pictures.ranking(summary.read_tables(tmp_path, [ALL_PATTERNS]))


def test_when_there_are_seeds_then_the_interval_is_students_over_them(site, tmp_path):
    found = ranking_of(all_patterns(list(site.table["run"].unique()), 3), tmp_path)
    losses = np.log(SPREAD)
    half = 4.302653 * losses.std(ddof=1) / np.sqrt(3)              # the 97.5 % point of t with two degrees of freedom
    for place in found.places:
        middle = np.log(NEAR[place.name]) + losses.mean()
        assert np.log(place.near) == pytest.approx(middle) and len(place.series.runs) == 3
        assert np.log(place.series.interval) == pytest.approx([middle - half, middle + half])
    assert "interval of the mean over 3 seeds" in pictures.ranked(found)["caption"]


def test_when_perplexities_are_far_off_then_they_are_written_and_the_axis_ends_before(site, tmp_path):
    found = ranking_of(all_patterns(list(site.table["run"].unique())), tmp_path)
    axes = pictures.draw_ranking(found).axes[0]
    assert 22.1 < axes.get_xlim()[1] < 25
    assert {note.get_text() for note in axes.texts} - KEYS == {"118", "40, 55"}
    assert [tick.get_text() for tick in axes.get_yticklabels()][-1] == "Local window"
    near = dataclasses.replace(found, places=tuple(place for place in found.places if place.far < 25))
    assert {note.get_text() for note in pictures.draw_ranking(near).axes[0].texts} <= KEYS


def test_when_one_series_has_several_settings_then_each_is_a_row(site, tmp_path):
    runs = list(site.table["run"].unique())
    table = all_patterns(runs)
    other = table[table["series"] == "Power law"].assign(setting="sigma=0.5", run=runs[-1])
    found = ranking_of(pd.concat([table, other]), tmp_path)
    wanted = {*NEAR} - {"Power law"} | {"Power law, W=6", "Power law, W=6 sigma=0.5"}
    assert {place.name for place in found.places} == wanted


# In a browser

@pytest.mark.slow
def test_when_the_page_is_used_in_a_browser_then_it_is_silent_fits_filters_and_unfolds(rendered):
    pytest.importorskip("websocket")
    import browser
    if browser.chromium() is None:
        pytest.skip("no Chromium on this machine")
    with browser.browser() as tab:
        def all_of(selector: str, condition: str) -> bool:
            return tab.evaluate(f"[...document.querySelectorAll('{selector}')].every(e => {condition})")

        def press(kind: str, value: str) -> list[str]:
            tab.evaluate(f"document.querySelector('#claim-filters [data-kind={kind}][value=\"{value}\"]').click()")
            rows = "[...document.querySelectorAll('.ledger tbody tr')].filter(row => row.offsetHeight > 0)"
            return tab.evaluate(f"{rows}.map(row => row.id.slice(6))")
        inside = "e.getBoundingClientRect().right <= innerWidth + 1"
        for width in (360, 390, 800, 1000, 1120, 1280, 400):
            tab.open(rendered[0] / PROFILE / "report" / "index.html", width)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            assert all_of("main *", f"e.closest('.scroll, pre, .math, .hidden') || {inside}")
            assert all_of("#claims .scroll", "e.closest('details, figure') || e.scrollWidth <= e.clientWidth"), width
            assert all_of("#claims .ledger :is(td, th)", f"e.offsetHeight <= 1 || {inside}")
            assert all_of("img", "e.complete && e.naturalWidth > 0")
            assert all_of("math", "e.getBoundingClientRect().height > 5")
            assert press("verdict", "supported") == ["F1", "A1", LONG]
            assert tab.evaluate("document.querySelector('[role=status]').textContent") == "3 claims shown"
            assert press("document", "audit") == ["A1"]
            assert tab.evaluate("document.getElementById('claims-fibonacci').offsetHeight") == 0
            press("verdict", "")
            assert len(press("document", "")) == 8
        cells = "document.querySelectorAll('details.code:not(.parameters){}').length"
        assert tab.evaluate(cells.format("[open]")) == 0
        tab.evaluate("document.getElementById('show-code').click()")
        assert tab.evaluate(cells.format("[open]")) == tab.evaluate(cells.format("")) > 0
        run = tab.evaluate("document.querySelector('#claim-F1 a.run').getAttribute('href')")
        for target, opened in ((f"#{DONE}-made", f"document.getElementById('{DONE}-made').open"),
                               (run, f"document.querySelector('{run} details').open")):
            tab.evaluate(f"location.hash = '{target}'")
            tab.until(opened)
        assert tab.complaints() == []
        assert tab.requests() and all(url.startswith(("file://", "data:")) for url in tab.requests())
