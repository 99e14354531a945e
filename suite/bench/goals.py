"""The goals of the fast kernels, with what was measured beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from suite.bench.rows import Row, select
from suite.study.speed_tables import own_backend

BOTH = "forward+backward"
OWN, BEST = "the fastest backend", "the quickest"          # of the backends; of all rows that fit


@dataclass(frozen=True)
class Goal:
    """What a ratio should reach, and at the least; of a `ceiling` less is better."""
    words: str
    measure: str
    length: int
    goal: float
    least: float
    pass_: str = BOTH
    backend: str = OWN
    against: str | None = None
    ceiling: bool = False
    device: str = ""                       # part of the name of a GPU; empty: whatever was measured

    def found(self, rows: Sequence[Row]) -> Row | None:
        """The row of this goal; None if it was not measured."""
        wanted: dict[str, Any] = {"pass_": self.pass_, "length": self.length}
        if self.backend != BEST:
            wanted["backend"] = own_backend(rows) if self.backend == OWN else self.backend
        if self.against is not None:
            wanted["against"] = self.against
        fitting = [row for row in select(rows, self.measure, **wanted) if self.device in row.device]
        return max(fitting, key=lambda row: row.ratio, default=None)

    def standing(self, row: Row | None) -> str:
        if row is None:
            return "not measured"
        better = (lambda level: row.ratio <= level) if self.ceiling else (lambda level: row.ratio >= level)
        return "goal reached" if better(self.goal) else "acceptable" if better(self.least) else "**below the least**"


def dense(length: int, goal: float, least: float, pass_: str, backend: str = OWN) -> Goal:
    words = "torch alone" if backend == "torch" else OWN
    return Goal(f"{words} against dense causal SDPA, {pass_}, T = {length}", "time", length, goal, least, pass_, backend,
                "dense")


GOALS = (
    *(dense(T, goal, least, pass_) for pass_ in ("forward", BOTH)
      for T, goal, least in ((1024, 25, 12), (4096, 45, 25), (8192, 80, 45))),
    *(dense(T, goal, least, BOTH, "torch") for T, goal, least in ((1024, 5, 3), (4096, 12, 8))),
    *(Goal(f"{OWN} against a materialised gather, {pass_}, T = {T}", "time", T, 60, 35, pass_, against="gather")
      for pass_ in ("forward", BOTH) for T in (1024, 4096)),
    Goal("extra memory as a multiple of q, T = 4096", "memory_over_q", 4096, 4.5, 6, ceiling=True),
    *(Goal(f"learned over fixed distances, {pass_}, T = {T}", "learned_over_fixed", T, 1.5, 2.0, pass_, ceiling=True)
      for pass_ in ("forward", BOTH) for T in (1024, 4096)),
    Goal("time at T = 16384 over T = 4096", "length_growth", 16384, 4.4, 4.4, ceiling=True),
    Goal("training step against eager dense fp32, T = 512", "training_step", 512, 5, 2.5, "step", BEST),
    *(Goal(f"H200, forward against SDPA, T = {T}", "time", T, goal, goal, "forward", "gpu", "dense", device="H200")
      for T, goal in ((1024, 1), (4096, 2.5), (16384, 8))),
)


def markdown(rows: Sequence[Row]) -> str:
    """The goals as a Markdown table with what was measured: median, quartiles over rounds, and what that means."""
    lines = [f"| measure ({OWN}: `{own_backend(rows)}`) | goal | least acceptable | measured | |", "|---|---|---|---|---|"]
    for goal in GOALS:
        row = goal.found(rows)
        sign = "at most " if goal.ceiling else ""
        lines.append(f"| {goal.words} | {sign}{goal.goal:g} | {sign}{goal.least:g} | {measured(row)} | {goal.standing(row)} |")
    return "\n".join(lines)


def measured(row: Row | None) -> str:
    if row is None:
        return ""
    low, high = row.spread
    spread = f" ({low:.3g} to {high:.3g})" if row.rounds > 1 else ""
    return f"{row.ratio:.3g}{spread}" + (f", {row.backend}" if row.measure == "training_step" else "")
