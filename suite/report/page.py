"""The page: what the notebooks, tables and database hold, in its template."""

import datetime
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbconvert.filters import strip_ansi

from lib import paths
from lib.errors import SuiteError
from suite import claims
from suite.report import ledger, pages, pictures, summary
from suite.report.facts import Facts, origins
from suite.report.html import Section

if TYPE_CHECKING:
    from suite.report import NotebookStatus

DONE = ("done", "fresh")


def page(facts: Facts, status: "Mapping[str, NotebookStatus]", judgements: Sequence[claims.Judgement]) -> str:
    """The page's HTML."""
    others, notes = ledger.verdicts_of_others(facts.profile, judgements)
    rows = [ledger.row(own, others) for own in judgements]
    audit = pages.document(pages.AUDIT, list(status))
    entries = _entries(facts, status, rows, audit)
    series, ranking = summary.series_of(facts.table), pictures.ranking(facts.table)
    other_runs = set(facts.table["run"]) - set(summary.perplexities(facts.table)["run"]) - {""}    # of synthetic tasks
    return pages.environment().get_template("page.html.j2").render(
        title="Sparse attention: three proposals, one report", facts=facts, origins=origins,
        when=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        css="".join((pages.TEMPLATES / f"{name}.css").read_text("utf-8") for name in ("page", "claims")),
        notebooks=entries, audit=audit, finished=sum(own.state in DONE for own in status.values()),
        failed=sum(own.state == "failed" for own in status.values()), rows=rows, counts=ledger.counts(rows),
        documents=ledger.documents(rows), ledger_notes=notes, other_profiles=list(others), sections=set(status),
        headings={heading.anchor: heading.text for entry in entries for heading in entry["section"].headings},
        ranking=ranking, picture=pictures.ranked(ranking) if ranking else None, series=series,
        groups=summary.groups(series), best=summary.best, other_runs=len(other_runs),
        domains=list(dict.fromkeys(domain for own in series for domain in own.perplexity)))


def _entries(facts: Facts, status: "Mapping[str, NotebookStatus]", rows: Sequence[dict[str, Any]],
             audit: Section | None) -> list[dict[str, Any]]:
    """Every notebook as the template sees it, with what it concluded replaced by the ledger's rows."""
    anchors = {*status, *([audit.name, *audit.anchors] if audit else [])}
    box = pages.environment().get_template("macros.html.j2").module.claim_box
    boxes = {row["judgement"].claim.id: str(box(row)) for row in rows}
    entries = []
    for name, notebook in status.items():
        path = paths.executed(facts.profile) / f"{name}.ipynb"
        shown = notebook.state in DONE
        if notebook.state == "failed":
            # its notebook may be of an earlier execution, which failed otherwise or was done; or it may be damaged
            with suppress(SuiteError):
                shown = pages.read(path).metadata.get("suite", {}).get("error") == notebook.error
        section = pages.render(path, name, facts.fingerprints, anchors, boxes) if shown else pages.unfinished(name)
        error, series = strip_ansi(notebook.error).strip(), facts.series_of(name)
        entries.append({
            "name": name, "state": notebook.state, "seconds": notebook.seconds, "section": section,
            "error": error, "error_line": error_line(error), "series": series,
            "runs": len({run for _, runs in series for _, run in runs}),
            "claims": [row for row in rows if row["judgement"].claim.notebook == name]})
    return entries


def error_line(error: str) -> str:
    """The message alone: the last line of a traceback, after a first line that ends with a colon."""
    lines = [line.strip() for line in error.splitlines() if line.strip()] or ["It gave no message."]
    introduced = len(lines) > 1 and lines[0].endswith(":") and not lines[0].startswith("Traceback")
    return f"{lines[0]} {lines[-1]}" if introduced else lines[-1]
