"""Where a notebook stands, as the page shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NotebookStatus:
    """Where a notebook stands: waiting, running, done (executed just now), fresh (nothing had changed) or failed."""
    state: str
    error: str = ""                # of a failed notebook: the message, with the traceback or without
    seconds: float | None = None   # of its execution
