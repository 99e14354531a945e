"""Times of several calls against one another: interleaved, so that a slow moment of the machine meets all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

SHORTEST = 2e-3       # seconds of one measurement: shorter calls are made several times in a row
LEAST_ROUNDS = 3
LONG = 0.2            # seconds of a call that needs no call before it to be in its stride

Samples = dict[str, list[float]]


@dataclass(frozen=True)
class Spread:
    """The median of some rounds and its quartiles."""
    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Quartiles by linear interpolation; of a single value all three are it."""
        low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
        return cls(median, low, high, len(values))


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """`over / under`, round by round: what slows both in a round leaves it alone."""
    return Spread.of([a / b for a, b in zip(over, under, strict=True)])


def interleaved(calls: Mapping[str, Callable[[], object]], *, rounds: int, seconds: float,
                clock: Callable[[], float] = time.perf_counter, wait: Callable[[], None] = lambda: None) -> Samples:
    """Seconds of one call by name, a value a round: every round makes every call, each round beginning with another.

    Ends after `rounds` rounds, or after `seconds` and LEAST_ROUNDS rounds. `wait` is called before the clock is read, for
    an accelerator that works on after a call has returned. The first call of each is not counted, nor are, in every round, as
    many calls of less than `LONG` as are timed then: short ones need two or three until they are in their stride.
    """
    repeats = {name: warmed(call, clock, wait) for name, call in calls.items()}
    names, found, begin = list(calls), {name: [] for name in calls}, clock()
    for number in range(rounds):
        if number >= LEAST_ROUNDS and clock() - begin >= seconds:
            break
        first = number % len(names)
        for name in names[first:] + names[:first]:
            for _ in range(repeats[name]):
                calls[name]()                          # caches and threads are still as the one before left them
            found[name].append(timed(calls[name], repeats[name] or 1, clock, wait))
    return found


def timed(call: Callable[[], object], repeats: int, clock: Callable[[], float], wait: Callable[[], None]) -> float:
    """Seconds of one call, a mean over `repeats` in a row."""
    wait()
    start = clock()
    for _ in range(repeats):
        call()
    wait()
    return (clock() - start) / repeats


def warmed(call: Callable[[], object], clock: Callable[[], float], wait: Callable[[], None]) -> int:
    """Compile, plan and warm up; how often the call must be repeated to take `SHORTEST`, 0 if it is a long one."""
    one = timed(call, 1, clock, wait)
    if one >= LONG:
        return 0
    return max(1, round(SHORTEST / max(timed(call, 1, clock, wait), SHORTEST / 1000)))
