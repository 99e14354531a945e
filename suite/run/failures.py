"""What the engine says of runs that have no result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Failure:
    """Why a run has no result."""
    label: str
    reason: str
    log: Path
    tail: tuple[str, ...] = ()

    def text(self) -> str:
        lines = "".join(f"\n    | {line}" for line in self.tail)
        return f"{self.label}: {self.reason}{lines}\n    log: {self.log}"


class EngineError(RuntimeError):
    """Some runs failed; the others are in the database. `failures` are by fingerprint of the run."""

    def __init__(self, failures: dict[str, Failure]) -> None:
        self.failures = failures
        details = [f"  {failure.text()}" for failure in failures.values()]
        super().__init__("\n".join([f"{runs(len(failures))} failed; what else there was to do is done and kept:", *details]))

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


def runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
