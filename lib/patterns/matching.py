"""Equal pairs: turn a comparator's parameters until it attends as many (query, key) pairs as another pattern."""

import dataclasses
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from lib.errors import SuiteError, require
from lib.patterns import build
from lib.patterns.base import Knob, Pattern


def match_edges(pattern: str | Pattern, like: Pattern, length: int, tolerance: float = 0.01,
                **parameters: Any) -> Pattern:
    """`pattern` with as many pairs at `length`, summed over layers, as `like`, within `tolerance` (a fraction).

    A name is built with the layers, heads and direction of `like` and with `parameters`; an instance keeps what its
    knobs do not turn. Coarse knobs go to the last value that does not exceed the goal; the last knob fills up: one
    value for the stack where that is close enough, else one a layer, else one a head. Raises `SuiteError` with the
    nearest there is.
    """
    if isinstance(pattern, str):
        pattern = build(pattern, layers=like.layers, heads=like.heads, causal=like.causal, **parameters)
    require(0 <= tolerance < 1, "tolerance", tolerance, "a fraction from 0 to 1")
    goal = like.pairs(length)
    knobs = len(pattern.knobs(length))
    if not knobs:
        pattern.check(0, length)
        return _close([pattern], goal, length, tolerance, f"{pattern.name} has no parameter to turn")
    for n in range(knobs - 1):
        pattern = _coarse(pattern, pattern.knobs(length)[n], goal, length)
    finest = pattern.knobs(length)[-1]
    tried = _fill(pattern, finest, goal, length, tolerance)
    return _close(tried, goal, length, tolerance, f"its {finest.parameter} does not reach that far or that finely")


def _coarse(pattern: Pattern, knob: Knob, goal: float, length: int) -> Pattern:
    def candidate(at: int) -> Pattern:
        return _with(pattern, knob, knob.values[at])
    return candidate(_last_within(lambda at: candidate(at).pairs(length), 0, len(knob.values) - 1, goal))


def _with(pattern: Pattern, knob: Knob, value: Any) -> Pattern:
    return dataclasses.replace(pattern, **{knob.parameter: value})


def _last_within(pairs: Callable[[int], float], low: int, high: int, goal: float) -> int:
    """The last of `low` … `high` whose pairs do not exceed the goal (pairs grow); `low` where all do."""
    step = 1                                        # doubling first: candidates far beyond the goal are costly to count
    while low + step <= high and pairs(low + step) <= goal:
        step *= 2
    near = range(low + step // 2, min(high, low + step) + 1)
    return max(low, near[0] + bisect_right(near, goal, key=pairs) - 1)


def _fill(pattern: Pattern, knob: Knob, goal: float, length: int, tolerance: float) -> list[Pattern]:
    """Best candidates, ever finer: the slots are the stack, its layers, its heads; `e` steps are spread over them."""
    layers, heads = pattern.layers, pattern.heads
    slots = {"stack": [1], "layer": [1, layers], "head": [1, layers, layers * heads]}[knob.per]
    tried: list[Pattern] = []
    low, high = 0, len(knob.values) - 1                     # in whole steps, the same in every slot
    for count in slots:
        def candidate(e: int, count: int = count) -> Pattern:
            return _with(pattern, knob, _spread(knob, e, count, layers, heads))
        at = _last_within(lambda e: candidate(e).pairs(length), low * count, high * count, goal)
        tried += [candidate(e) for e in (at, at + 1) if low * count <= e <= high * count]
        if any(abs(c.pairs(length) - goal) <= tolerance * goal for c in tried):
            break
        low, high = at // count, min(high, at // count + 1)
    return tried


def _spread(knob: Knob, e: int, slots: int, layers: int, heads: int) -> Any:
    """`e` steps over `slots`, as evenly as integers allow (carries of e * slot / slots), in the shape of `PerHead`."""
    steps = [knob.values[(slot + 1) * e // slots - slot * e // slots] for slot in range(slots)]
    if len(set(steps)) == 1:
        return steps[0]
    return tuple(steps) if slots == layers else tuple(tuple(steps[at * heads:(at + 1) * heads]) for at in range(layers))


def _close(tried: list[Pattern], goal: float, length: int, tolerance: float, why: str) -> Pattern:
    nearest = min(tried, key=lambda candidate: abs(candidate.pairs(length) - goal))
    if abs(nearest.pairs(length) - goal) <= tolerance * goal:
        return nearest
    raise SuiteError(f"{nearest.name} cannot attend {goal:.0f} pairs within {tolerance:.1%} at {length} tokens "
                     f"({why}): the nearest is {nearest.pairs(length):.0f}, with {nearest}")
