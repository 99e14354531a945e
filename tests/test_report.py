"""The page of a made-up profile (`report_site`): self-contained, accessible, honest about what failed, traceable to
runs. `test_report_ledger` has the claims on it."""

import dataclasses
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report_site import (ALL_PATTERNS, DOMAINS, DONE, FAILED, LONG, PROFILE, RUNNING, SEEDS, SERIES, SMALL, STATUS,
                         WAITING, WITH_ALL, pages_of, text)

from lib import paths
from lib.errors import SuiteError
from suite.experiments.base import COLUMNS
from suite.report import NotebookStatus, build, pictures, summary

RESOURCES = ("src", "srcset", "poster", "data", "action", "background", "xlink:href")
OUTSIDE_CSS = re.compile(r"@import|url\(", re.IGNORECASE)
KEYS = {"keys", "12", "128"}          # of the right edge of the picture of all patterns


def section(page, name: str):
    return page.find("section", id=name)


# Self-contained and accessible

def test_when_a_page_opens_then_nothing_in_it_is_fetched_or_runs_but_its_own_script(rendered, page):
    for own in pages_of(rendered / PROFILE / "report").values():
        for tag in own.find_all(True):
            for name, value in tag.attrs.items():
                if name in RESOURCES or (name == "href" and tag.name != "a"):
                    assert str(value).startswith(("data:", "#")), (tag.name, name, value[:80])
                assert not name.startswith("on"), (tag.name, name)
            assert not OUTSIDE_CSS.search(tag.get("style", ""))
        assert not any(OUTSIDE_CSS.search(style.get_text()) for style in own.find_all("style"))
        script, = own.find_all("script")
        assert not re.search(r"https?:|import\(|fetch|XMLHttp|alert", script.get_text())
        assert not own.find_all(["iframe", "object", "embed"])
    for gone in ("require.js", "alert(", "steal()", "cdn.example.org", "MathJax", "cloudflare", "Javascript object"):
        assert gone not in str(page)
    for kept in ("picture not embedded: a picture elsewhere", "kept HTML with", "clickable"):
        assert kept in str(page)


def test_when_links_leave_a_page_then_to_the_web_to_files_beside_it_or_to_a_place_that_is_there(rendered, page):
    folder = rendered / PROFILE / "report"
    pages = pages_of(folder)
    places = {name: [tag["id"] for tag in own.find_all(id=True)] for name, own in pages.items()}
    assert all(len(identifiers) == len(set(identifiers)) for identifiers in places.values())
    for name, own in pages.items():
        for link in own.find_all("a"):
            file, _, anchor = link.get("href", "#main").partition("#")
            there = file.removesuffix(".html") or name
            if there in pages:
                assert not anchor or anchor in places[there], link
            else:
                assert file.startswith("https://") or (folder / file).resolve().is_file(), link
        assert [link["href"] for link in own.select(".contents [aria-current]")] == [f"{name}.html"]
    order = list(pages)
    for name, before, after in zip(order[1:], order[:-1], [*order[2:], None], strict=True):
        turn = {link["rel"][0]: link["href"] for link in pages[name].select(".turn a")}
        assert turn == {"prev": f"{before}.html", **({"next": f"{after}.html"} if after else {})}
    links = {link.get_text(): link["href"] for link in section(page, DONE).find_all("a")}
    assert links["the paper"] == "https://arxiv.org/abs/2606.28560" and links["extrapolation"] == f"#{WAITING}"
    assert links["audit row 12"] == "#audit-row-12" and links["a row that is not there"] == "#audit"
    # a path of the repository leads nowhere
    assert "a file" not in links and "a file" in section(page, DONE).get_text()


def test_when_the_audit_is_shown_then_its_rows_can_be_linked_and_it_links_to_notebooks(page, site):
    audit = section(page, "audit")
    assert audit.h1.get_text() == "Audit of the documents" and audit.find("math")["alttext"] == "75"
    assert page.find(id="audit-row-12").find_parent("tr") and audit.find("a", string="the sweep")["href"] == f"#{DONE}"
    (site.outputs / "audit.md").unlink()
    without = site.build(claims=[])
    assert section(without, "audit") is None and without.find("a", string="audit row 12") is None


def test_when_images_headings_and_tables_are_read_then_they_say_what_they_are(rendered, page):
    assert [image["alt"] for image in section(page, DONE).find_all("img")] == [
        "Four lines that fall & flatten", "A figure with a caption only.", "Figure 3, under 'Loss over training'"]
    assert all(image["alt"].strip() for image in page.find_all("img"))
    for own in pages_of(rendered / PROFILE / "report").values():
        levels = [int(heading.name[1]) for heading in own.find_all(re.compile(r"h[1-6]"))]
        assert levels.count(1) == 1 and levels[0] == 1 and own.html["lang"] == "en"
        assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    sweep = "Window sweep: which alpha schedule?"
    assert [heading.get_text() for heading in page.find_all("h1")] == [
        "Sparse attention: three proposals, one report", "8 claims, and whether they hold", sweep, "Learned alpha",
        WAITING, RUNNING, sweep, "All models", "Audit of the documents", "Data and versions", "Runs"]
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
    assert {r"\beta", r"\sigma = 0.8", "x"} <= set(formulas)
    assert own.find("code", string="$x_i$")
    assert [formula.get_text() for formula in own.select("code.tex")] == [r"$\nosuchcommand{x}$"]


def test_when_a_notebook_shows_a_claim_then_the_ledger_s_row_stands_in_its_place_and_at_its_head(page):
    own = section(page, DONE)
    card, onward = own.select_one(".card"), page.select_one(".onward li")
    box = own.select_one(".claim")
    said = "✓ supported What F1 says: a < b & c −0.042 nats a token"
    assert text(box).startswith(f"{said} −0.051 to −0.033 3 seeds")
    assert box.a["href"] == "#claim-F1" and box.find("svg") and "STALE VERDICT" not in own.get_text()
    assert [text(told) for told in own.select(".conclusion")] == ["A claim that the ledger lacks."]
    assert "The ramp is better by 0.02 nats, with α 0 = 0.5 ." in text(own)
    assert onward.a["href"] == f"#{DONE}" and onward.select_one(".question").get_text() == "Is the ramp better?"
    assert "✓ 3 supported" in text(onward)
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
    error = "not executed, since runs that it needs failed:\nlocal: loss is nan"
    failed = text(section(site.build({**STATUS, FAILED: NotebookStatus("failed", error)}, []), FAILED))
    assert "PARTIAL OUTPUT" not in failed and "It left no output." in failed        # that was of an earlier execution
    assert "runs that it needs failed: local: loss is nan" in failed
    assert "Not run yet" in text(section(page, WAITING)) and "Being executed now" in text(section(page, RUNNING))
    assert "STALE RESULT" not in str(page) and "from an older execution" not in str(page)
    first = text(section(page, "index").header)
    assert "2 of 5 notebooks are done." in first and "1 notebook failed" in first


# Numbers

def test_when_series_are_summarised_then_each_number_is_that_of_the_table(page, site):
    rows, table = page.select("table.summary tbody tr"), site.table
    assert len(rows) == len(SERIES)
    final = table[(table["measure"] == "perplexity") & (table["length"] == 256) & table["variant"].isna()]
    headers = [header.get_text() for header in page.select("table.summary thead th")]
    means = []
    for row in rows:
        shown = dict(zip(headers, [cell.get_text(" ", strip=True) for cell in row.find_all(["th", "td"])], strict=True))
        own = final[final["run"].isin([link["href"].removeprefix("#run-") for link in row.select("a.run")])]
        assert len(own) == len(SEEDS) * len(DOMAINS) and own["series"].nunique() == 1
        by_run = np.exp(np.log(own["value"]).groupby(own["run"]).mean())
        means.append(float(np.exp(np.log(own["value"]).mean())))
        expected = {"Mean perplexity": f"{means[-1]:,.2f} ± {by_run.std(ddof=1):.2f}", "Parameters": "1,836,416",
                    "Attended pairs": f"{own['pairs'].iloc[0]:,.0f}", "Training tokens": f"{SMALL.train.tokens:,}",
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
    for fact in ("christoffel", "k=127 m=15", "d_model=64", f"steps={SMALL.train.steps}", "source=text", command,
                 f"make verify RUN={run} PROFILE={PROFILE} CORPUS=FOLDER"):
        assert fact in row, fact
    assert block.find_parent("section")["id"] == DONE and not block.has_attr("open") and command in text(block)
    assert {link["href"].removeprefix("#run-") for link in block.select("a.run")} == set(table["run"])
    assert text(block.summary) == f"Runs behind this section: {table['run'].nunique()}"
    line, = (text(line) for line in block.find_all("li") if text(line).startswith("Power law, sigma=0.8 budget=64."))
    for seed, run in table[table["setting"] == "sigma=0.8 budget=64"].groupby("seed")["run"].first().items():
        assert f"{seed}: {run[:8]}" in line
    for name in WITH_ALL:
        assert all(figure.figcaption.select_one("a.trace")["href"] == f"#{name}-made"
                   for figure in section(page, name).find_all("figure"))
    assert "it failed before it wrote a table" in text(page.find(id=f"{FAILED}-made"))


def test_when_the_page_says_what_was_run_then_data_versions_machine_and_command_are_there(page):
    for selector, facts in {
            "#index .eyebrow": ("A made-up profile & its <numbers>",),
            "#onward code": (f"make report PROFILE={PROFILE} CORPUS=FOLDER",),
            "#data": ("Text of the Hugging Face hub: 2,048 pieces of a/b", "3,500,000", "3,001", "tokenizers 0.23.3",
                      "docs: a/docs (train), a copy on this machine, MIT"),
            "#made-with": ("torch 2.13.0", "Made-up CPU, 2 cores", "1 thread a run")}.items():
        assert all(fact in text(page.select_one(selector)) for fact in facts), selector


def test_when_a_table_is_read_then_fingerprints_stay_text_and_a_damaged_one_is_named(tmp_path, site):
    table = site.table.head(1)
    for run in ("12e4567890123456", "0000000000000001", "1234567890123456"):
        assert list(tables(table.assign(run=run), tmp_path)["run"]) == [run]
    for damaged, message in ((table.drop(columns="pairs"), "no column pairs"), (table.assign(value="much"), "much")):
        with pytest.raises(SuiteError, match=f"{ALL_PATTERNS}.csv: [^:]*{message}"):
            tables(damaged, tmp_path)


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


def test_when_domains_have_names_of_any_kind_then_the_summary_reads_shows_and_compares_them(site):
    names = ["en.wiki", "nan", "1e5", "<b>, \"x\" </b>"]
    domains = dict(zip(site.table["split"].unique(), names, strict=False))
    for notebook in (DONE, ALL_PATTERNS):
        path = paths.results(PROFILE) / f"{notebook}.csv"
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
        table.assign(split=table["split"].map(lambda name: domains.get(name, name))).to_csv(path, index=False)
    shown = site.build(STATUS, []).select_one("#models table.summary")
    heads = [text(head) for head in shown.select("thead th")]
    assert set(names) <= {*heads}
    for name in domains.values():
        column = [row.find_all(["th", "td"])[heads.index(name)] for row in shown.select("tbody tr")]
        best = min(float(text(cell)) for cell in column)
        assert [float(text(cell)) == best for cell in column] == ["best" in cell["class"] for cell in column]


# The picture of all patterns

def tables(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """What the page reads of this table of the notebook of all patterns."""
    table.assign(experiment=ALL_PATTERNS).to_csv(folder / f"{ALL_PATTERNS}.csv", index=False)
    return summary.read_tables(folder, [ALL_PATTERNS])


def test_when_all_patterns_are_done_then_their_picture_stands_on_the_first_page_with_the_tables_values(page, site):
    values = page.find(id="picture-values").find_next("table")
    rows = [[text(cell) for cell in row.find_all(["th", "td"])] for row in values.select("tbody tr")]
    assert [row[0] for row in rows] == sorted(SERIES, key=lambda name: SERIES[name][2])
    half = 4.302653 * np.log(1.01) / np.sqrt(3)        # the 97.5 % point of Student's t with two degrees of freedom
    for name, shown, far, keys, *_ in rows:
        near = SERIES[name][2]
        assert shown == f"{near:.2f} ({near * np.exp(-half):.2f} to {near * np.exp(half):.2f})"
        assert far == f"{SERIES[name][3]:.2f}" and keys == ("128.5" if name == "Dense" else "12.4")
    assert len(values.select("a.run")) == len(SERIES) * len(SEEDS)
    caption, image = text(page.select_one("#picture figcaption")), page.select_one("#picture img")
    assert "6 series attend" in caption and "Dense attends 262,144" in caption
    assert "interval of the mean over 3 seeds" in caption
    assert "At 256 tokens Local window, equal edges has the lowest perplexity, 20.90; Fixed stride" in image["alt"]
    assert "At 1024 tokens Fibonacci, linear ramp has the lowest, 20.70" in image["alt"]
    assert site.build(STATUS, []).select_one("#picture img") is None            # all patterns are not done


def test_when_perplexities_are_far_off_then_they_are_written_and_each_setting_of_a_series_is_a_row(site, tmp_path):
    table = site.table[site.table["seed"] == 43]
    found = pictures.ranking(tables(table, tmp_path))
    assert "one seed" in pictures.ranked(found)["caption"]
    axes = pictures.draw_ranking(found).axes[0]
    assert 22.1 < axes.get_xlim()[1] < 25
    assert {note.get_text() for note in axes.texts} - KEYS == {"118", "40, 55"}
    assert [tick.get_text() for tick in axes.get_yticklabels()][-1] == "Local window"
    near = dataclasses.replace(found, places=tuple(place for place in found.places if place.far < 25))
    assert {note.get_text() for note in pictures.draw_ranking(near).axes[0].texts} <= KEYS
    other = table[table["series"] == "Power law"].assign(setting="sigma=0.5", run="f" * 16)
    found = pictures.ranking(tables(pd.concat([table, other]), tmp_path))
    assert {place.name for place in found.places} == {*SERIES} - {"Power law"} | {
        "Power law, sigma=0.8 budget=64", "Power law, sigma=0.5"}


# Files

def test_when_the_first_notebook_is_done_then_the_page_is_there_and_grows(site):
    waiting = {name: NotebookStatus("waiting") for name in STATUS}
    empty = str(site.build(waiting, []))
    assert empty.count("Not run yet") >= 4 and "No model has a perplexity yet" in empty
    first = str(site.build({**waiting, DONE: NotebookStatus("done", seconds=1.0)}))
    assert "Fibonacci, linear ramp" in first and "PARTIAL OUTPUT" not in first


def test_when_writing_fails_then_the_last_page_stays_and_nothing_else(site, monkeypatch):
    before, move = site.index.read_bytes(), os.replace
    monkeypatch.setattr("os.replace", lambda source, target: move(
        source if Path(target).name != "index.html" else "no such file", target))
    with pytest.raises(SuiteError, match="No such file"):
        site.build(claims=[])
    assert site.index.read_bytes() == before
    assert not [path for path in site.index.parent.iterdir() if path.suffix not in (".html", ".json", ".zip")]


def test_when_the_page_is_built_again_then_only_the_time_differs_and_columns_are_documented_beside_it(site, page):
    again = str(site.build(WITH_ALL, site.claims))
    assert re.sub(r"<time.*?</time>", "", again) == re.sub(r"<time.*?</time>", "", str(page))
    readme = (paths.results(PROFILE) / "README.md").read_text("utf-8")
    assert all(f"| `{name}` | {meaning} |" in readme for name, meaning in COLUMNS.items())
    with zipfile.ZipFile(site.index.parent / "tables.zip") as tables_of_all:
        assert tables_of_all.read("README.md").decode() == readme
        assert pd.read_csv(tables_of_all.open(f"{DONE}.csv"), dtype={"run": str}).equals(site.table)


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


# In a browser

@pytest.mark.slow
def test_when_the_page_is_used_in_a_browser_then_it_is_silent_fits_filters_and_unfolds(rendered):
    pytest.importorskip("websocket")
    import browser
    if browser.chromium() is None:
        pytest.skip("no Chromium on this machine")
    folder = rendered / PROFILE / "report"
    with browser.browser() as tab:
        def all_of(selector: str, condition: str) -> bool:
            return tab.evaluate(f"[...document.querySelectorAll('{selector}')].every(e => {condition})")

        def press(kind: str, value: str) -> list[str]:
            tab.evaluate(f"document.querySelector('#claim-filters [data-kind={kind}][value=\"{value}\"]').click()")
            rows = "[...document.querySelectorAll('.ledger tbody tr')].filter(row => row.offsetHeight > 0)"
            return tab.evaluate(f"{rows}.map(row => row.id.slice(6))")
        inside = "e.getBoundingClientRect().right <= innerWidth + 1"
        for width in (360, 390, 800, 1000, 1120, 1280, 400):
            for name in (*pages_of(folder), "claims"):
                tab.open(folder / f"{name}.html", width)
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
                assert all_of("main *", f"e.closest('.scroll, pre, .math, .hidden') || {inside}")
                assert all_of("img", "e.complete && e.naturalWidth > 0")
                assert all_of("math", "e.getBoundingClientRect().height > 5")
            assert all_of("#claims .scroll", "e.closest('details, figure') || e.scrollWidth <= e.clientWidth"), width
            assert all_of("#claims .ledger :is(td, th)", f"e.offsetHeight <= 1 || {inside}")
            assert press("verdict", "supported") == ["F1", "A1", LONG]
            assert tab.evaluate("document.querySelector('[role=status]').textContent") == "3 claims shown"
            assert press("document", "audit") == ["A1"]
            assert tab.evaluate("document.getElementById('claims-fibonacci').offsetHeight") == 0
            press("verdict", "")
            assert len(press("document", "")) == 8
            search = "document.getElementById('claim-search')"
            tab.evaluate(f"{search}.value = 'what f2'; {search}.dispatchEvent(new Event('input'))")
            assert press("verdict", "") == ["F2"]
            tab.evaluate(f"{search}.value = ''; {search}.dispatchEvent(new Event('input'))")
            order = "document.getElementById('claim-order')"
            tab.evaluate(f"{order}.value = 'p'; {order}.dispatchEvent(new Event('change'))")
            assert press("verdict", "")[:3] == ["F3", "F1", "F2"]
        tab.open(folder / f"{DONE}.html", 1280)
        cells = "document.querySelectorAll('details.code:not(.parameters){}').length"
        assert tab.evaluate(cells.format("[open]")) == 0
        tab.evaluate("document.getElementById('show-code').click()")
        assert tab.evaluate(cells.format("[open]")) == tab.evaluate(cells.format("")) > 0
        tab.evaluate(f"location.hash = '#{DONE}-made'")
        tab.until(f"document.getElementById('{DONE}-made').open")
        tab.evaluate(f"document.querySelector('#\\\\3{DONE[0]} {DONE[1:]}-made a.run').click()")
        tab.until("location.pathname.endsWith('/runs.html')"
                  " && document.querySelector(location.hash + ' details')?.open === true")
        assert tab.complaints() == []
        assert tab.requests() and all(url.startswith(("file://", "data:")) for url in tab.requests())
