"""How the suite shows its progress: in place in a terminal or a notebook, as few plain lines in a log."""

import sys
import time
from dataclasses import dataclass
from typing import TextIO

from lib.text import duration

LOG_SECONDS = 30.0            # between two lines of a log, at least
REDRAW_SECONDS = 0.5          # between two updates in place, at least


@dataclass(frozen=True)
class Active:
    """A run that a worker trains or evaluates now."""
    label: str
    stage: str = "starting"                    # starting, waiting, training, or the evaluation's name
    step: int = 0
    steps: int = 0
    loss: float | None = None                  # nats per token
    tokens_per_s: float | None = None

    def text(self) -> str:
        if self.stage != "training":
            return f"{self.label}: {self.stage}"
        loss = "" if self.loss is None else f", loss {self.loss:.3f}"
        rate = f", {self.tokens_per_s:,.0f} tokens/s" if self.tokens_per_s else ""
        return f"{self.label}: step {self.step}/{self.steps}{loss}{rate}"


@dataclass(frozen=True)
class Snapshot:
    """The state of the work. `left` is the estimated remaining time in seconds, None while nothing is known."""
    done: int
    total: int
    failed: int = 0
    active: tuple[Active, ...] = ()
    left: float | None = None

    def lines(self) -> list[str]:
        failed = f", {self.failed} failed" if self.failed else ""
        left = f", {duration(self.left)} left" if self.left is not None and self.done < self.total else ""
        return [f"{self.done}/{self.total} runs{failed}{left}", *(active.text() for active in self.active)]


class Display:
    """A log. The other two redefine how a state is drawn, and what a note and the end look like."""

    def __init__(self, stream: TextIO, every: float = LOG_SECONDS, due: float = LOG_SECONDS) -> None:
        self.stream, self.every, self.due = stream, every, time.monotonic() + due

    def show(self, snapshot: Snapshot) -> None:
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + self.every
            self.draw(snapshot)

    def draw(self, snapshot: Snapshot) -> None:
        self.note("; ".join(snapshot.lines()))

    def note(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {text}", file=self.stream, flush=True)

    def close(self, summary: str) -> None:
        if summary:
            self.note(summary)


class Terminal(Display):
    """A bar and a line for each active run, redrawn in place below the notes."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        super().__init__(stream, REDRAW_SECONDS, 0.0)
        self.console = Console(file=stream)
        self.bar = Progress(BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=self.console)
        self.task = self.bar.add_task("")
        # Standard error is not rich's: during a run it is the run's log.
        self.live = Live(console=self.console, auto_refresh=False, transient=True, redirect_stdout=False,
                         redirect_stderr=False)

    def draw(self, snapshot: Snapshot) -> None:
        from rich.console import Group
        from rich.text import Text
        state, *active = snapshot.lines()
        self.bar.update(self.task, completed=snapshot.done, total=snapshot.total, description=state)
        self.live.start()
        lines = [Text(f"  {line}", no_wrap=True, overflow="ellipsis") for line in active]
        self.live.update(Group(self.bar, *lines), refresh=True)

    def note(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self, summary: str) -> None:
        self.live.stop()
        super().close(summary)


class Notebook(Display):
    """One output of a notebook's cell, updated in place. Its last text, one line, stays in the saved notebook."""

    def __init__(self) -> None:
        from IPython.display import DisplayHandle
        super().__init__(sys.stdout, REDRAW_SECONDS, 0.0)
        self.handle, self.drawn = DisplayHandle(), False

    def draw(self, snapshot: Snapshot) -> None:
        self.write("\n  ".join(snapshot.lines()))

    def write(self, text: str) -> None:
        write = self.handle.update if self.drawn else self.handle.display
        write({"text/plain": text}, raw=True, metadata={"progress": True})
        self.drawn = True

    def note(self, text: str) -> None:
        print(text)

    def close(self, summary: str) -> None:
        if summary:
            self.write(summary)


def display(stream: TextIO | None = None) -> Display:
    """The display that suits this process and `stream` (default: standard error)."""
    ipython = sys.modules.get("IPython")
    if hasattr(ipython.get_ipython() if ipython else None, "kernel"):
        return Notebook()
    stream = stream or sys.stderr
    return Terminal(stream) if stream.isatty() else Display(stream)


def text_table(header: list[str], rows: list[list[str]], width: int = 0, shrink: int = 0) -> str:
    """The rows as lines, text to the left, numbers to the right. If the lines are wider than `width` characters (0: no
    limit), column number `shrink` is cut. By hand, since rich needs half a minute for ten thousand rows."""
    columns = [[str(cell) for cell in column] for column in zip(header, *rows)]
    widths = [max(map(len, column)) for column in columns]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    if width and excess > 0:
        widths[shrink] = room = max(8, widths[shrink] - excess)
        columns[shrink] = [cell if len(cell) <= room else cell[:room - 2] + ".." for cell in columns[shrink]]
    for number, (column, room) in enumerate(zip(columns, widths)):
        right = all(not cell.strip("0123456789.,eBM+-k%> ") for cell in column[1:])
        columns[number] = [cell.rjust(room) if right else cell.ljust(room) for cell in column]
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns))
