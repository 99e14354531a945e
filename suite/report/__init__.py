"""The report: HTML pages of a profile that need nothing else, written anew whenever a notebook is done."""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lib import paths
from lib.files import write_atomically
from suite.settings import profiles
from suite.settings.privacy import shareable, visible


@dataclass(frozen=True)
class NotebookStatus:
    """Where a notebook stands: waiting, running, done (executed just now), fresh (nothing had changed), lacking
    (runs that ship are missing) or failed."""
    state: str
    error: str = ""                # of a failed notebook: the message, with the traceback or without
    seconds: float | None = None   # of its execution


def build(profile: str, status: Mapping[str, NotebookStatus], corpus: str = "") -> Path:
    """Write the pages, ledger.json and tables.zip to outputs/<profile>/report, and README.md beside the tables; returns
    index.html.

    status: every notebook of the suite by name, in the order of the page. Only what belongs to a notebook that is done
    or fresh counts as a result, and every claim of the ledger is judged from it; of a failed one the partial output is
    shown. Each page replaces the last one in one step, the first page at the end. corpus: the folder that `CORPUS`
    names, for the commands on the page and for judging; empty: the offline corpus. No file that is written says where
    it was made. Raises `SuiteError` for tables or notebooks that are not what the suite writes, naming the file.
    """
    from data_prep.build import existing         # imported when there is a page to write: nbconvert and matplotlib, too
    from suite import claims
    from suite.experiments.base import COLUMNS
    from suite.report import facts, ledger, page, pages
    finished = [name for name, notebook in status.items() if notebook.state in page.DONE]
    found, loaded = facts.Facts.read(profile, corpus, finished), profiles.load(profile, corpus)
    text = existing(loaded.corpus)                           # nothing is judged where there is no text to have run on
    judgements = claims.judge(loaded, text, finished) if text is not None else []
    judgements = [replace(own, sentence=shareable(visible(own.sentence), loaded.corpus.folder)) for own in judgements]
    site = {name: visible(shareable(content, loaded.corpus.folder))
            for name, content in page.site(found, status, judgements).items()}
    readme = pages.environment().get_template("results.md.j2").render(facts=found, columns=COLUMNS)
    write_atomically(paths.results(profile) / "README.md", readme.encode())
    ledger.write(profile, judgements)
    write_atomically(paths.report(profile) / "tables.zip", zipped(paths.results(profile)))
    for name, content in reversed(site.items()):
        path = paths.report(profile) / f"{name}.html"
        write_atomically(path, content.encode())
    return path


def zipped(folder: Path) -> bytes:
    """The tables and their README as a ZIP file, so that the report is whole wherever it is copied; the same twice."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted([*folder.glob("*.csv"), folder / "README.md"]):
            file.writestr(zipfile.ZipInfo(path.name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return content.getvalue()
