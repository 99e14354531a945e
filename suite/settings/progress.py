"""One progress display for the whole suite, in the form that suits where it is read.

A terminal gets bars that are redrawn in place, Jupyter one output that is updated in place and ends as one short line,
a log one line at most every half minute.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from lib.text import duration

LOG_SECONDS = 30.0            # at most one line in that time
REDRAW_SECONDS = 0.5          # at most one redrawing in that time, in a terminal or a notebook


@dataclass(frozen=True)
class Active:
    """A run that a worker has in hand."""
    label: str
    stage: str = "starting"                    # starting, waiting, training, or the evaluation's name
    step: int = 0
    steps: int = 0
    loss: float | None = None                  # nats a token
    tokens_per_s: float | None = None

    def text(self) -> str:
        if self.stage != "training":
            return f"{self.label}: {self.stage}"
        parts = [f"step {self.step}/{self.steps}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.3f}")
        if self.tokens_per_s:
            parts.append(f"{self.tokens_per_s:,.0f} tokens/s")
        return f"{self.label}: {', '.join(parts)}"


@dataclass(frozen=True)
class Snapshot:
    """How far the work is. `left` is the estimated time to the end in seconds, None while nothing is known."""
    done: int
    total: int
    failed: int = 0
    active: tuple[Active, ...] = ()
    left: float | None = None

    def summary(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        left = f", {duration(self.left)} left" if self.left is not None and self.done < self.total else ""
        return f"{self.done}/{self.total} runs{failed}{left}"


class Display(Protocol):
    def show(self, snapshot: Snapshot) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self, summary: str) -> None: ...


class Terminal:
    """A bar of the runs done, and below it a line for each active run."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.bar, self.lines, self.drawn = stream, None, [], 0.0

    def show(self, snapshot: Snapshot) -> None:
        if time.monotonic() - self.drawn < REDRAW_SECONDS:
            return
        self.drawn = time.monotonic()
        if self.bar is None:
            shape = "{desc} |{bar}| {n_fmt}/{total_fmt} runs  {elapsed} gone{postfix}"
            self.bar = self.new_bar(0, total=snapshot.total, bar_format=shape)
            self.bar.set_description_str("training", refresh=False)
        while len(self.lines) < len(snapshot.active):
            self.lines.append(self.new_bar(len(self.lines) + 1, total=0, bar_format="  {desc}"))
        self.bar.total, self.bar.n = snapshot.total, snapshot.done
        left = f"{duration(snapshot.left)} left" if snapshot.left is not None else ""
        self.bar.set_postfix_str(f"{left}{f', {snapshot.failed} failed' * bool(snapshot.failed)}", refresh=False)
        self.bar.refresh()
        for line, active in zip(self.lines, [*snapshot.active, *[None] * len(self.lines)]):
            line.set_description_str(active.text() if active else "")

    def new_bar(self, position: int, **settings: Any) -> Any:
        from tqdm import tqdm
        return tqdm(file=self.stream, position=position, leave=False, dynamic_ncols=True, mininterval=0, **settings)

    def note(self, text: str) -> None:
        from tqdm import tqdm
        tqdm.write(text, file=self.stream)

    def close(self, summary: str) -> None:
        for bar in [*reversed(self.lines), *([self.bar] if self.bar else [])]:
            bar.close()
        self.bar, self.lines = None, []
        if summary:
            print(summary, file=self.stream, flush=True)


class Notebook:
    """One output cell, updated in place; what is saved in the end is one line."""

    def __init__(self) -> None:
        self.handle, self.drawn = None, 0.0

    def show(self, snapshot: Snapshot) -> None:
        if time.monotonic() - self.drawn >= REDRAW_SECONDS:
            self.drawn = time.monotonic()
            self.draw("\n".join([snapshot.summary(), *(f"  {active.text()}" for active in snapshot.active)]))

    def draw(self, text: str) -> None:
        from IPython.display import DisplayHandle
        content, metadata = {"text/plain": text}, {"progress": True}
        if self.handle is None:
            self.handle = DisplayHandle()
            self.handle.display(content, raw=True, metadata=metadata)
        else:
            self.handle.update(content, raw=True, metadata=metadata)

    def note(self, text: str) -> None:
        print(text)

    def close(self, summary: str) -> None:
        if summary:
            self.draw(summary)
        self.handle = None


class Log:
    """Plain lines, few enough for a log of hours."""

    def __init__(self, stream: TextIO, every: float = LOG_SECONDS) -> None:
        self.stream, self.every, self.written = stream, every, time.monotonic()

    def show(self, snapshot: Snapshot) -> None:
        if time.monotonic() - self.written >= self.every:
            self.written = time.monotonic()
            self.note("; ".join([snapshot.summary(), *(active.text() for active in snapshot.active)]))

    def note(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {text}", file=self.stream, flush=True)

    def close(self, summary: str) -> None:
        if summary:
            self.note(summary)


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


def display(stream: TextIO | None = None) -> Display:
    """The display that suits this process and `stream` (default: standard error)."""
    if in_notebook():
        return Notebook()
    stream = stream or sys.stderr
    return Terminal(stream) if stream.isatty() else Log(stream)
