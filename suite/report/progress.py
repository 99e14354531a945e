"""What is being done now, as a page that loads itself anew: how far, how long still, and the newest curve."""

import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from markupsafe import Markup

from lib import paths
from lib.errors import SuiteError
from lib.files import write_atomically
from suite.report import pages
from suite.settings.privacy import shareable, visible
from suite.settings.progress import Display, Snapshot

EVERY = 10.0                  # seconds between two states of the page
NOTES = 8                     # the last ones are shown
WIDE, HIGH = 640, 160         # of the curve, pixels


class WithPage(Display):
    """Shows the same as `shown`, and writes outputs/<profile>/report/progress.html."""

    def __init__(self, shown: Display, profile: str) -> None:
        self.shown, self.profile, self.due = shown, profile, 0.0
        self.path: Path = paths.report(profile) / "progress.html"
        self.snapshot = Snapshot(0, 0)
        self.notes: deque[str] = deque(maxlen=NOTES)
        self.curves: dict[str, list[tuple[int, float]]] = {}          # (step, loss) by run, the newest last

    def show(self, snapshot: Snapshot) -> None:
        if not self.snapshot.total:                      # the first: now there is something to watch
            self.shown.note(f"make open shows how far it is: {self.path}")
        self.shown.show(snapshot)
        self.snapshot = snapshot
        for run in snapshot.active:
            if run.loss is not None and run.stage == "training":
                points = self.curves.setdefault(run.label, [])
                if not points or points[-1][0] < run.step:
                    points.append((run.step, run.loss))
        if time.monotonic() >= self.due:
            self.write()

    def note(self, text: str) -> None:
        self.shown.note(text)
        self.notes.append(f"{time.strftime('%H:%M:%S')}  {text.splitlines()[0]}")
        self.write()

    def close(self, summary: str) -> None:
        self.shown.close(summary)

    def write(self, done: bool = False) -> None:
        """The page; when all is done one that leads on to the report."""
        self.due = time.monotonic() + EVERY
        running = [run for run in self.snapshot.active if run.label in self.curves]
        name = running[-1].label if running else ""
        text = pages.environment().get_template("progress.html.j2").render(
            profile=self.profile, snapshot=self.snapshot, lines=self.snapshot.lines(), notes=list(self.notes),
            name=name, curve=curve(self.curves[name]) if name else "", done=done, every=int(EVERY),
            css=(pages.TEMPLATES / "page.css").read_text("utf-8"), index=(self.path.parent / "index.html").exists())
        with suppress(SuiteError):                       # a full disk must not end the training for this
            write_atomically(self.path, visible(shareable(text)).encode())


def curve(points: list[tuple[int, float]]) -> Markup:
    """Loss over steps, from the first step to now; nothing before there are two points."""
    if len(points) < 2:
        return Markup("")
    (start, _), (end, last), losses = points[0], points[-1], [loss for _, loss in points]
    low, high = min(losses), max(losses)
    path = " ".join(f"{WIDE * (step - start) / (end - start):.1f},{HIGH * (high - loss) / ((high - low) or 1):.1f}"
                    for step, loss in points)
    return Markup(f'<svg viewBox="-2 -4 {WIDE + 4} {HIGH + 8}" width="{WIDE}" height="{HIGH}" role="img" '
                  f'aria-label="Training loss from {losses[0]:.2f} at step {start} to {last:.2f} at step {end}">'
                  f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-width="2"/></svg>')
