"""Equal pairs: turn a comparator's parameters until it attends as many (query, key) pairs as another pattern."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
    for knob in pattern.knobs(length):
        require(len(knob.values) > 0, knob.parameter, getattr(pattern, knob.parameter), f"less than length = {length}")
    goal = like.pairs(length)
    for n in range(len(pattern.knobs(length)) - 1):         # anew, as values may depend on the knob before
        knob = pattern.knobs(length)[n]
        candidate = partial(turned, pattern, knob)
        pattern = candidate(last_within(candidate, 0, len(knob.values) - 1, goal, length))
    tried, why = [pattern], f"{pattern.name} has no parameter to turn"
    for finest in pattern.knobs(length)[-1:]:
        tried = fill(pattern, finest, goal, length, tolerance)
        why = f"its {finest.parameter} does not reach that far or that finely"
    nearest = min(tried, key=lambda candidate: abs(candidate.pairs(length) - goal))
    if abs(nearest.pairs(length) - goal) <= tolerance * goal:
        return nearest
    raise SuiteError(f"{nearest.name} cannot attend {goal:.0f} pairs within {tolerance:.1%} at {length} tokens "
                     f"({why}): the nearest is {nearest.pairs(length):.0f}, with {nearest}")


def turned(pattern: Pattern, knob: Knob, e: int, slots: int = 1) -> Pattern:
    """The pattern with its knob turned by `e` steps, which are spread over slots: the stack, its layers or its heads.

    They spread as evenly as integers allow (carries of `e * slot / slots`), in the shape of `PerHead`.
    """
    steps = tuple(knob.values[(slot + 1) * e // slots - slot * e // slots] for slot in range(slots))
    if len(set(steps)) == 1:
        return replace(pattern, **{knob.parameter: steps[0]})
    heads = slots // pattern.layers
    rows = steps if heads == 1 else tuple(steps[at:at + heads] for at in range(0, slots, heads))
    return replace(pattern, **{knob.parameter: rows})


def last_within(candidate: Callable[[int], Pattern], low: int, high: int, goal: float, length: int) -> int:
    """The last of `low` … `high` whose pairs do not exceed the goal (pairs grow); `low` where all do."""
    def pairs(e: int) -> float:
        return candidate(e).pairs(length)
    step = 1                                        # doubling first: candidates far beyond the goal are costly to count
    while low + step <= high and pairs(low + step) <= goal:
        step *= 2
    near = range(low + step // 2, min(high, low + step) + 1)
    return max(low, near[0] + bisect_right(near, goal, key=pairs) - 1)


def fill(pattern: Pattern, knob: Knob, goal: float, length: int, tolerance: float) -> list[Pattern]:
    """Best candidates, ever finer: the slots are the stack, its layers, its heads."""
    layers, heads = pattern.layers, pattern.heads
    tried: list[Pattern] = []
    low, high = 0, len(knob.values) - 1                     # in whole steps, the same in every slot
    for slots in {"stack": [1], "layer": [1, layers], "head": [1, layers, layers * heads]}[knob.per]:
        candidate = partial(turned, pattern, knob, slots=slots)
        at = last_within(candidate, low * slots, high * slots, goal, length)
        tried += [candidate(e) for e in (at, at + 1) if low * slots <= e <= high * slots]
        if any(abs(c.pairs(length) - goal) <= tolerance * goal for c in tried):
            break
        low, high = at // slots, min(high, at // slots + 1)
    return tried
