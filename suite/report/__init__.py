"""The report: one self-contained HTML page of a profile, written anew whenever a notebook is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NotebookStatus:
    """Where a notebook stands: waiting, running, done (executed just now), fresh (nothing had changed) or failed."""
    state: str
    error: str = ""                # of a failed notebook: the message, with the traceback or without
    seconds: float | None = None   # of its execution


def build(profile: str, status: Mapping[str, NotebookStatus], corpus: str = "") -> Path:
    """Write outputs/<profile>/report/index.html with ledger.json, and README.md beside the tables; returns the page's
    path.

    status: every notebook of the suite by name, in the order of the page. Only what belongs to a notebook that is done
    or fresh counts as a result, and every claim of the ledger is judged from it; of a failed one the partial output is
    shown. The page replaces the last one in one step. corpus: the folder that `CORPUS` names, for the commands on the
    page and for judging; empty: the offline corpus. Raises `SuiteError` for tables or notebooks that are not what the
    suite writes, naming the file.
    """
    from suite.report.page import write          # nbconvert and matplotlib: imported when there is a page to write
    return write(profile, status, corpus)
