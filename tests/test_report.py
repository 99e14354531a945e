"""The page of a made-up profile (`report_site`): self-contained, accessible, honest about what failed, traceable to runs."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path

import made_up_claims
import numpy as np
import pandas as pd
import pytest
import report_site
from bs4 import BeautifulSoup
from report_site import DONE, FAILED, PROFILE, RUNNING, STATUS, WAITING

from lib import paths
from lib.errors import SuiteError
from suite.experiments.base import COLUMNS
from suite.report import NotebookStatus, build, chart, summary

RESOURCES = ("src", "srcset", "poster", "data", "action", "background", "xlink:href")
OUTSIDE_CSS = re.compile(r"@import|url\(", re.IGNORECASE)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The outputs of a made-up profile; one for all tests, those that change files restore them."""
    outputs = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUITE_OUTPUTS", str(outputs))
        patch.setattr(paths, "PROFILES", outputs / "profiles")
        patch.setattr(paths, "NOTEBOOKS", outputs / "notebooks")
        report_site.build_site(outputs)
        made_up_claims.replace_judging(patch, [made_up_claims.judgement("F1", "fibonacci", "supported")])
        yield outputs


@pytest.fixture(scope="module")
def index(site) -> Path:
    return build(PROFILE, STATUS, str(paths.ROOT.parent / "my texts"))


@pytest.fixture(scope="module")
def html(index) -> str:
    return index.read_text("utf-8")


@pytest.fixture(scope="module")
def page(html) -> BeautifulSoup:
    return BeautifulSoup(html, "html.parser")


@pytest.fixture(scope="module")
def table(site) -> pd.DataFrame:
    return pd.read_csv(paths.results(PROFILE) / f"{DONE}.csv", dtype={"run": str})


def section(page: BeautifulSoup, name: str):
    return page.find("section", id=name)


# Self-contained

def test_when_the_page_opens_then_nothing_in_it_is_fetched(page):
    for tag in page.find_all(True):
        for name, value in tag.attrs.items():
            if name in RESOURCES or (name == "href" and tag.name != "a"):
                assert str(value).startswith(("data:", "#")), (tag.name, name, value[:80])
            assert not name.startswith("on"), (tag.name, name)
        assert not OUTSIDE_CSS.search(tag.get("style", ""))
    assert not any(OUTSIDE_CSS.search(style.get_text()) for style in page.find_all("style"))
    scripts = page.find_all("script")
    assert len(scripts) == 1 and not re.search(r"https?:|import\(|fetch|XMLHttp", scripts[0].get_text())


def test_when_a_notebook_brings_scripts_frames_or_outside_pictures_then_they_are_gone(html, page):
    assert not page.find_all(["iframe", "object", "embed"])
    for text in ("require.js", "alert(1)", "steal()", "cdn.example.org", "MathJax", "cloudflare", "Javascript object"):
        assert text not in html
    assert "picture not embedded: a picture elsewhere" in html and "kept HTML with" in html and "clickable" in html


def test_when_links_leave_the_page_then_only_to_the_web_or_to_files_beside_it(page):
    identifiers = [tag["id"] for tag in page.find_all(id=True)]
    assert len(identifiers) == len(set(identifiers))
    for link in page.find_all("a"):
        target = link["href"]
        assert target.startswith(("https://", "../results/", "ledger.json")) or target.removeprefix("#") in identifiers, target
        if target.startswith(("../results/", "ledger.json")):
            assert (paths.report(PROFILE) / target).resolve().is_file(), target
    texts = {link.get_text(): link["href"] for link in section(page, DONE).find_all("a")}
    assert texts["the paper"] == "https://arxiv.org/abs/2606.28560" and texts["extrapolation"] == f"#{WAITING}"
    assert "a file" not in texts                    # a path of the repository leads nowhere from the page


# Accessible

def test_when_an_image_is_shown_then_it_has_alternative_text(page):
    assert all(image["alt"].strip() for image in page.find_all("img"))
    alts = [image["alt"] for image in section(page, DONE).find_all("img")]
    assert alts == ["Four lines that fall & flatten", "A figure with a caption only.",
                    "Figure 3, under 'Loss over training'"]
    assert page.select_one("#picture img")["alt"].startswith(
        f"Scatter plot of perplexity against attended pairs. {len(report_site.SERIES)} series")


def test_when_headings_are_read_then_one_is_first_and_no_level_is_skipped(page):
    levels = [int(heading.name[1]) for heading in page.find_all(re.compile(r"h[1-6]"))]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    assert page.html["lang"] == "en"
    titles = [heading.get_text() for heading in page.find_all("h2")]
    assert titles == ["1 claim, and whether it holds", "Conclusions", "Summary", "Window sweep: which alpha schedule?",
                      "Learned alpha", WAITING, RUNNING, "Data", "Made with", "Runs"]


def test_when_a_table_is_shown_then_it_has_a_caption_scopes_and_a_box_to_scroll_in(page):
    tables = page.find_all("table")
    assert len(tables) == 7                         # counts, a document's claims, summary, two of the notebook, data, runs
    for table in tables:
        assert table.caption.get_text(strip=True)
        assert table.parent["class"] == ["scroll"] and table.parent["tabindex"] == "0" and table.parent["aria-label"]
        assert all(header.get("scope") in ("col", "row", "colgroup", "rowgroup") for header in table.find_all("th"))
    cells = section(page, DONE).find("table", class_="dataframe").tbody.tr.find_all("td")
    assert [cell.get("class") for cell in cells] == [None, None, ["num"], ["num"]]


# Notebooks

def test_when_a_cell_holds_code_then_it_is_folded_and_parameters_are_open(page):
    cells = section(page, DONE).select("details.code")
    opened = [cell.summary.get_text() for cell in cells if cell.has_attr("open")]
    assert opened == ["Parameters"]
    lines = ['profile: str = "small"  # scale', "seeds: list[int] = [42, 43]  # one run each"]
    assert cells[0].pre.get_text().splitlines() == lines
    folded = [cell for cell in cells if not cell.has_attr("open")]
    assert len(folded) == 7 and "nb.run()" in folded[1].get_text()


def test_when_a_stream_holds_a_progress_bar_or_colours_then_the_end_state_is_shown(page):
    text = section(page, DONE).get_text()
    for gone in ("first", "100%|", "10%|", "HBox", "2 min left", "\x1b", "CAPTION FOR JUPYTERLAB"):
        assert gone not in text, gone
    assert "second, 9000 tokens/s" in text and "mind the gap" in text
    assert section(page, DONE).select_one("pre .ansi-red-fg").get_text() == "red"
    assert "red & <plain>" in text


def test_when_a_notebook_concludes_then_its_sentences_stand_at_the_top_with_a_link(page):
    card = page.select("#conclusions article")[0]
    assert card.h3.a["href"] == f"#{DONE}" and card.select_one(".question").get_text() == "Is the ramp better?"
    first, more = card.find_all("ul")
    starts = [item.get_text()[:11].strip() for item in first.find_all("li")]
    assert starts == ["The ramp is", "A local win", "Third", "Fourth"]
    assert [item.get_text() for item in more.find_all("li")] == ["Said before any run.", "Fifth"]
    assert more.find_parent("details") is not None and first.li.find("math")
    assert len(section(page, DONE).select(".conclusion")) == 6


def test_when_a_notebook_failed_then_message_and_partial_output_are_marked(page):
    failed = section(page, FAILED)
    notice = failed.select_one(".notice.failed").get_text()
    assert "This notebook failed. ValueError: no alpha <moved> & far" in notice
    assert "PARTIAL OUTPUT" in failed.get_text() and "An Exception was encountered" not in failed.get_text()
    assert "no alpha <moved> & far" in failed.select_one(".failure").get_text()
    assert failed.select_one(".failure .ansi-red-fg") and "\x1b" not in failed.get_text()
    assert "Failed before it came to a conclusion" in page.select("#conclusions article")[1].get_text()


def test_when_runs_failed_then_the_notebook_of_an_earlier_execution_is_not_shown_as_its_output(site):
    error = "not executed, since runs that it needs failed:\nlocal: loss is nan"
    status = {**STATUS, FAILED: NotebookStatus("failed", error)}
    failed = section(BeautifulSoup(build(PROFILE, status).read_text("utf-8"), "html.parser"), FAILED).get_text()
    assert "PARTIAL OUTPUT" not in failed and "It left no output." in failed
    assert "runs that it needs failed: local: loss is nan" in failed


def test_when_a_notebook_waits_then_neither_its_old_output_nor_its_old_table_counts(html, page):
    assert "Not run yet" in section(page, WAITING).get_text() and "Being executed now" in section(page, RUNNING).get_text()
    assert "STALE RESULT" not in html and "from an older execution" not in html
    assert "1 of 4 done, 1 failed" in " ".join(page.find("dl").get_text(" ").split()).replace(" , ", ", ")


def test_when_a_state_is_unknown_then_the_error_names_the_nearest(site):
    with pytest.raises(SuiteError, match="did you mean 'done'"):
        build(PROFILE, {DONE: NotebookStatus("dine")})


# Mathematics

def test_when_markdown_holds_formulas_then_they_are_mathml_and_code_and_money_are_left(page):
    own = section(page, DONE)
    formulas = [formula["alttext"] for formula in own.find_all("math")]
    assert formulas[0] == r"\alpha_\ell = 0.5 + \ell/(L-1)"
    assert own.find("math", display="block").parent["class"] == ["formula"]
    assert {r"\beta", r"\sigma = 0.8", r"\displaystyle \sum_{d} q(d) = 1", "x"} <= set(formulas)
    assert own.find("code", string="$x_i$") and "A fee of $5 or $6 is no formula" in own.get_text()
    assert [code.get_text() for code in own.select("code.tex")] == [r"$\nosuchcommand{x}$"]
    assert not page.find("script", src=True)


# Numbers

def test_when_series_are_summarised_then_each_number_is_that_of_the_table(page, table):
    rows = page.select("#summary tbody tr")
    assert len(rows) == len(report_site.SERIES)
    final = table[(table["measure"] == "perplexity") & (table["length"] == 256) & table["variant"].isna()]
    final = final[final["step"].isna()]
    headers = [header.get_text() for header in page.select("#summary thead th")]
    means = []
    for row in rows:
        shown = dict(zip(headers, [cell.get_text(" ", strip=True) for cell in row.find_all(["th", "td"])], strict=True))
        runs = [link["href"].removeprefix("#run-") for link in row.select("a.run")]
        own = final[final["run"].isin(runs)]
        assert len(own) == 2 * len(report_site.DOMAINS) and own["series"].nunique() == 1
        by_run = np.exp(np.log(own["value"]).groupby(own["run"]).mean())
        mean = float(np.exp(np.log(own["value"]).mean()))
        assert shown["Mean perplexity"] == f"{mean:,.2f} ± {by_run.std(ddof=1):.2f}"
        for domain, group in own.groupby("split"):
            assert shown[domain] == f"{np.exp(np.log(group['value']).mean()):,.2f}"
        assert shown["Attended pairs"] == f"{own['pairs'].iloc[0]:,.0f}" and shown["Parameters"] == "1,836,416"
        assert shown["Tokens/s"] == f"{own['run_tokens_per_s'].mean():,.0f}"
        assert shown["Training tokens"] == f"{610 * 16 * 256:,}"
        means.append(mean)
    assert means == sorted(means)
    assert "W=14" in [row.find_all("td")[0].get_text() for row in rows]


def test_when_a_number_is_asked_for_then_its_run_is_in_the_appendix(page, table):
    for link in page.select("a.run"):
        assert page.find(id=link["href"].removeprefix("#")) is not None
    assert len(section(page, DONE).select("td a.run")) == 6
    run = table.loc[table["series"] == "Christoffel", "run"].iloc[0]
    row = page.find("tr", id=f"run-{run}").get_text(" ", strip=True)
    command = f"make notebook NAME={DONE} PROFILE={PROFILE}"
    verify = f"make verify RUN={run} PROFILE={PROFILE} CORPUS='../my texts'"
    for fact in ("christoffel", "k=127 m=15", "d_model=128", "steps=610", "source=text", command, verify):
        assert fact in row, fact


def test_when_the_page_says_what_was_run_then_data_versions_machine_and_command_are_there(page):
    assert "A made-up profile & its <numbers>" in page.select_one(".lede").get_text()
    data = section(page, "data").get_text(" ", strip=True)
    assert "3,500,000" in data and "3,001" in data and "tokenizers 0.23.3" in data
    made = section(page, "made-with").get_text(" ", strip=True)
    assert "torch 2.13.0" in made and "Made-up CPU, 2 cores" in made and "1 thread a run" in made
    command = page.select_one(".glance code").get_text()
    assert command == f"make report PROFILE={PROFILE} CORPUS='../my texts'"


def test_when_a_table_names_a_run_that_the_database_lacks_then_the_error_says_so(site, table):
    path = paths.results(PROFILE) / f"{RUNNING}.csv"
    table.head(1).assign(run="f" * 16).to_csv(path, index=False)
    try:
        with pytest.raises(SuiteError, match="f{16}"):
            build(PROFILE, {RUNNING: NotebookStatus("done")})
    finally:
        path.unlink()


@pytest.mark.parametrize("run", ["12e4567890123456", "0000000000000001", "1234567890123456"])
def test_when_a_fingerprint_looks_like_a_number_then_it_stays_text(tmp_path, table, run):
    table.head(1).assign(run=run).to_csv(tmp_path / "a.csv", index=False)
    assert list(summary.read_tables(tmp_path, ["a"])["run"]) == [run]


@pytest.mark.parametrize(("change", "message"), [
    (lambda t: t.drop(columns="pairs"), "no column pairs"), (lambda t: t.assign(value="much"), "much")])
def test_when_a_table_is_damaged_then_the_error_names_the_file(tmp_path, table, change, message):
    change(table.head(3)).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(SuiteError, match=f"a.csv.*{message}"):
        summary.read_tables(tmp_path, ["a"])


def test_when_two_notebooks_share_a_run_then_it_is_one_series_and_its_numbers_count_once(tmp_path, table):
    table.to_csv(tmp_path / f"{DONE}.csv", index=False)
    other = table[table["split"] == "docs"].assign(experiment="99_other", series="another name")
    other.to_csv(tmp_path / "99_other.csv", index=False)
    alone, both = (summary.series_of(summary.read_tables(tmp_path, names)) for names in ([DONE], [DONE, "99_other"]))
    assert [dataclasses.replace(s, notebooks=(DONE,)) for s in both] == alone and len(alone) == len(report_site.SERIES)
    assert all(s.notebooks == (DONE, "99_other") for s in both)


def test_when_recipes_differ_then_series_are_not_compared(site):
    series = summary.series_of(summary.read_tables(paths.results(PROFILE), [DONE]))
    longer = [dataclasses.replace(s, train_tokens=2 * s.train_tokens) for s in series]
    learned = dataclasses.replace(series[0], parameters=series[0].parameters + 8)
    assert len(summary.recipes(series + longer)) == 2 and len(summary.recipes([series[0], learned])) == 1
    assert "trained on 5.00 M tokens" in chart.alternative(summary.recipes(series + longer))


def test_when_a_series_beats_all_with_as_few_pairs_then_it_is_on_the_dashed_line(site):
    series = summary.series_of(summary.read_tables(paths.results(PROFILE), [DONE]))
    expected = {s.runs for s in series if not any(o.pairs <= s.pairs and o.mean < s.mean for o in series)}
    assert {s.runs for s in chart.frontier(series)} == expected


# Files

def test_when_the_first_notebook_is_done_then_the_page_is_there_and_grows(site, index):
    waiting = {name: NotebookStatus("waiting") for name in STATUS}
    empty = build(PROFILE, waiting).read_text("utf-8")
    assert empty.count("not run yet") >= 4 and "No model has a perplexity yet" in empty
    first = build(PROFILE, {**waiting, DONE: NotebookStatus("done", seconds=1.0)}).read_text("utf-8")
    assert "Fibonacci, linear ramp" in first and "PARTIAL OUTPUT" not in first
    assert "PARTIAL OUTPUT" in build(PROFILE, STATUS).read_text("utf-8")


def test_when_writing_fails_then_the_last_page_stays_and_nothing_else(site, index, monkeypatch):
    before, move = index.read_bytes(), os.replace

    def replace(source, target):
        if Path(target).name == "index.html":
            raise OSError("disk full")
        move(source, target)
    monkeypatch.setattr("os.replace", replace)
    with pytest.raises(OSError, match="disk full"):
        build(PROFILE, STATUS)
    assert index.read_bytes() == before and {path.name for path in index.parent.iterdir()} == {"index.html", "ledger.json"}


def test_when_tables_are_written_then_every_column_is_documented_beside_them(index):
    text = (paths.results(PROFILE) / "README.md").read_text("utf-8")
    for name, meaning in COLUMNS.items():
        assert f"| `{name}` | {meaning} |" in text


def test_when_the_page_is_built_twice_then_only_the_time_differs(site):
    def built() -> str:
        return re.sub(r"<time.*?</time>", "", build(PROFILE, STATUS).read_text("utf-8"))
    assert built() == built()


def test_when_an_executed_notebook_is_damaged_then_the_error_names_it(site):
    path = paths.executed(PROFILE) / f"{RUNNING}.ipynb"
    path.write_text(json.dumps({"cells": 1})[:-3])
    try:
        with pytest.raises(SuiteError, match=f"{RUNNING}.ipynb"):
            build(PROFILE, {RUNNING: NotebookStatus("done")})
    finally:
        path.unlink()
    with pytest.raises(SuiteError, match=f"{RUNNING}.ipynb is missing"):
        build(PROFILE, {RUNNING: NotebookStatus("done")})


# In a browser

def test_when_the_page_is_opened_in_a_browser_then_it_is_silent_fits_and_unfolds(index):
    pytest.importorskip("websocket")
    import browser
    if browser.chromium() is None:
        pytest.skip("no Chromium on this machine")
    with browser.browser() as tab:
        for width in (390, 1280):
            tab.open(index, width)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            wide = "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre, .formula, .hidden'))"
            assert tab.evaluate(f"{wide}.every(e => e.getBoundingClientRect().right <= innerWidth + 1)")
            assert tab.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
            assert tab.evaluate("document.querySelector('math').getBoundingClientRect().height") > 5
        folded = "document.querySelectorAll('details.code:not(.parameters)[open]').length"
        assert tab.evaluate(folded) == 0
        tab.evaluate("document.getElementById('show-code').click()")
        assert tab.evaluate(folded) == tab.evaluate("document.querySelectorAll('details.code:not(.parameters)').length") > 0
        assert tab.complaints() == []
        assert tab.requests() and all(url.startswith(("file://", "data:")) for url in tab.requests())
