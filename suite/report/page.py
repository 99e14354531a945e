"""The pages: what the notebooks, tables and database hold, in their templates."""

import datetime
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbconvert.filters import strip_ansi

from lib import paths
from lib.errors import SuiteError
from suite import claims
from suite.report import first, ledger, pages, pictures, summary
from suite.report.facts import Facts, origins
from suite.report.html import Section

if TYPE_CHECKING:
    from suite.report import NotebookStatus

DONE = ("done", "fresh")
# In tags, where `<` and `>` are written `&lt;` and `&gt;`; the text between them may quote anything.
_ANCHOR, _LINK = re.compile(r'<\w[^<>]* id="([^"]+)"'), re.compile(r'(<a [^<>]*href=")#([^"]+)"')


@dataclass(frozen=True)
class Page:
    """A page of the report: `name` of its file, `title` in the contents, and what its template alone needs."""
    name: str
    title: str
    template: str
    state: str = "done"
    own: Mapping[str, Any] = field(default_factory=dict)


def site(facts: Facts, status: "Mapping[str, NotebookStatus]",
         judgements: Sequence[claims.Judgement]) -> dict[str, str]:
    """The HTML of every page by its name, in the order of the contents."""
    others, notes = ledger.entries_of_others(facts.profile, judgements)
    rows = [ledger.row(own, others) for own in judgements]
    audit = pages.document(pages.AUDIT, list(status))
    entries = _entries(facts, status, rows, audit)
    series, ranking = summary.series_of(facts.table), pictures.ranking(facts.table)
    other_runs = set(facts.table["run"]) - set(summary.perplexities(facts.table)["run"]) - {""}    # of synthetic tasks
    here, documents = {entry["identifier"]: entry for entry in claims.as_json(judgements)}, ledger.documents(rows)
    contents = [Page("index", "The answer", "index"), Page("claims", "All claims", "claims"),
                *(Page(own["name"], own["section"].title, "section", own["state"], {"nb": own}) for own in entries),
                Page("models", "All models", "models"),
                *([Page(audit.name, audit.title, "document", own={"audit": audit})] if audit else []),
                Page("data", "Data and versions", "data"), Page("runs", "Runs", "runs")]
    shared = dict(
        title="Sparse attention: three proposals, one report", facts=facts, origins=origins, contents=contents,
        when=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        css="".join((pages.TEMPLATES / f"{name}.css").read_text("utf-8") for name in ("page", "claims")),
        notebooks=entries, finished=sum(own.state in DONE for own in status.values()),
        failed=sum(own.state == "failed" for own in status.values()), rows=rows, counts=ledger.counts(rows),
        progress=(paths.report(facts.profile) / "progress.html").exists(),
        waiting=any(own.state in ("waiting", "running") for own in status.values()),
        first=first.first_page(facts.profile, rows, here, others, documents),
        documents=documents, ledger_notes=notes, other_profiles=list(others), sections=set(status),
        headings={heading.anchor: heading.text for entry in entries for heading in entry["section"].headings},
        ranking=ranking, picture=pictures.ranked(ranking) if ranking else None, series=series,
        groups=summary.groups(series), best=summary.best, other_runs=len(other_runs),
        domains=list(dict.fromkeys(domain for own in series for domain in own.perplexity)))
    return linked({own.name: pages.environment().get_template(f"{own.template}.html.j2").render(
        page=own, before=before, after=after, **own.own, **shared)
        for before, own, after in zip([None, *contents], contents, [*contents[1:], None], strict=False)})


def linked(site: Mapping[str, str]) -> dict[str, str]:
    """The pages with every link to a place on another page (`#claim-x`) leading there (`claims.html#claim-x`)."""
    home = {anchor: name for name, html in site.items() for anchor in _ANCHOR.findall(html)}

    def resolve(name: str, html: str) -> str:
        there = set(_ANCHOR.findall(html))

        def one(link: re.Match[str]) -> str:
            target = home.get(link[2])
            if link[2] in there or target is None:
                return link[0]
            return f'{link[1]}{target}.html"' if link[2] == target else f'{link[1]}{target}.html#{link[2]}"'
        return _LINK.sub(one, html)
    return {name: resolve(name, html) for name, html in site.items()}


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
        own = [row for row in rows if row["judgement"].claim.notebook == name]
        error, series = strip_ansi(notebook.error).strip(), facts.series_of(name)
        entries.append({
            "name": name, "state": notebook.state, "seconds": notebook.seconds, "section": section,
            "error": error, "error_line": error_line(error), "series": series,
            "runs": len({run for _, runs in series for _, run in runs}),
            "claims": own, "counts": ledger.counts(own)})
    return entries


def error_line(error: str) -> str:
    """The message alone: the last line of a traceback, after a first line that ends with a colon."""
    lines = [line.strip() for line in error.splitlines() if line.strip()] or ["It gave no message."]
    introduced = len(lines) > 1 and lines[0].endswith(":") and not lines[0].startswith("Traceback")
    return f"{lines[0]} {lines[-1]}" if introduced else lines[-1]
