"""Where the time of a training goes, part by part."""

from __future__ import annotations

import time

import torch

PARTS = ("data", "forward", "backward", "optimizer", "evaluation")      # what is left of a run's seconds is checkpoints


class Clock:
    """Adds up seconds in `spent` by part. What a GPU does is timed by events on its own queue, so that timing never waits
    for it; they are read when `read` is called, which a loop does where it waits for a number anyway."""

    def __init__(self, spent: dict[str, float], device: str) -> None:
        self.spent, self.cuda = spent, torch.device(device).type == "cuda"
        self.laps: list[tuple[str, object, object]] = []
        self.last = self.moment()

    def moment(self) -> object:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def start(self) -> None:
        """What was since the last lap belongs to no part."""
        self.last = self.moment()

    def lap(self, part: str) -> None:
        """All since the last lap, or since the start, was `part`."""
        now = self.moment()
        self.laps.append((part, self.last, now))
        self.last = now

    def read(self) -> None:
        """Add the laps to `spent`; on a GPU this waits for the last of them."""
        if self.cuda and self.laps:
            self.laps[-1][2].synchronize()
        for part, begin, end in self.laps:
            self.spent[part] = self.spent.get(part, 0.0) + (begin.elapsed_time(end) / 1000 if self.cuda else end - begin)
        self.laps.clear()
