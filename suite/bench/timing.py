"""Times of several calls against one another: interleaved, so that a slow moment of the machine meets all of them."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

SHORTEST = 2e-3       # seconds of one measurement: shorter calls are made several times in a row
LEAST_ROUNDS = 3
LONG = 0.2            # seconds of a call that needs no call before it to be in its stride

Samples = dict[str, list[float]]
Timed = Callable[[Callable[[], object], int], float]        # seconds of a call, mean over that many in a row


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Quartiles by linear interpolation; a single value is its own quartiles."""
        low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
        return cls(median, low, high, len(values))


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """`over / under`, round by round: what slows both in a round leaves it alone."""
    return Spread.of([a / b for a, b in zip(over, under, strict=True)])


def by_clock(wait: Callable[[], None] = lambda: None) -> Timed:
    """Times by the clock; `wait` is for an accelerator that works on after a call has returned."""
    def timed(call: Callable[[], object], repeats: int) -> float:
        wait()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        wait()
        return (time.perf_counter() - start) / repeats
    return timed


def by_events(call: Callable[[], object], repeats: int) -> float:
    """Times by the GPU's own clock. The GPU sleeps while the calls are queued, so it waits for no launch."""
    import torch
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000 * repeats)          # clock cycles: about a millisecond a call
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats / 1e3


def interleaved(calls: Mapping[str, Callable[[], object]], *, rounds: int, seconds: float, timed: Timed) -> Samples:
    """Seconds of one call by name, a value a round: every round makes every call, each round beginning with another.

    Ends after `rounds` rounds, or after `seconds` and LEAST_ROUNDS rounds. Uncounted are the first call of each and, in
    every round, as many calls of less than `LONG` as are timed: short calls need two or three to reach their speed.
    """
    repeats = {}                # of a call that is to take `SHORTEST`; 0 of a long one
    for name, call in calls.items():
        long = timed(call, 1) >= LONG                      # this call compiles, plans and warms up
        repeats[name] = 0 if long else max(1, round(SHORTEST / max(timed(call, 1), SHORTEST / 1000)))
    names, samples, begin = list(calls), {name: [] for name in calls}, time.perf_counter()
    for number in range(rounds):
        if number >= LEAST_ROUNDS and time.perf_counter() - begin >= seconds:
            break
        first = number % len(names) if names else 0
        for name in names[first:] + names[:first]:
            for _ in range(repeats[name]):
                calls[name]()                          # caches and threads are as the call before left them
            samples[name].append(timed(calls[name], repeats[name] or 1))
    return samples
