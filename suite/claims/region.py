"""Where an effect must lie for a claim to hold, and what an interval says of it. The rule of every verdict is here."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lib.errors import SuiteError, one_of, require
from suite.study.stats import ENOUGH_SEEDS, LEVEL, Interval

if TYPE_CHECKING:
    from suite.claims.measures import Measure

# Each kind of region in words.
KINDS = {"below": "below {high:g}", "above": "above {low:g}", "at_most": "at most {high:g}",
         "at_least": "at least {low:g}", "equals": "{low:g}", "between": "between {low:g} and {high:g}"}


@dataclass(frozen=True)
class Region:
    """Numbers below, above, ..., as the ledger writes it: `{below: 0}`, `{at_least: 2}`, `{between: [-0.01, 0.01]}`."""
    kind: str
    low: float
    high: float

    @classmethod
    def read(cls, value: object) -> Region:
        """From the ledger; a `SuiteError` says what is wrong."""
        if isinstance(value, Region):
            return value
        if not isinstance(value, Mapping) or len(value) != 1:
            raise SuiteError(f"one of {', '.join(KINDS)} with its number")
        (kind, given), = value.items()
        one_of(str(kind), KINDS, "region")
        ends = given if isinstance(given, list) else [given]
        count, wanted = (2, "two numbers, the lower one first") if kind == "between" else (1, "one number")
        numbers = all(type(end) in (int, float) and math.isfinite(end) for end in ends)
        require(numbers and len(ends) == count and ends == sorted(ends), kind, given, wanted)
        low = -math.inf if kind in ("below", "at_most") else float(ends[0])
        return cls(kind, low, math.inf if kind in ("above", "at_least") else float(ends[-1]))

    def outside(self, low: float, high: float) -> bool:
        """Whether no number from `low` to `high` lies in the region; `below` and `above` exclude their boundary."""
        beyond = operator.le if self.kind in ("below", "above") else operator.lt
        return beyond(high, self.low) or beyond(self.high, low)

    def contains(self, value: float) -> bool:
        return not self.outside(value, value)

    def boundaries(self) -> list[float]:
        return sorted({end for end in (self.low, self.high) if math.isfinite(end)})

    def side(self, found: Interval) -> bool | None:
        """Whether the whole interval lies inside (True) or outside (False); None: on both sides of a boundary."""
        if self.contains(found.low) and self.contains(found.high):
            return True
        return False if self.outside(found.low, found.high) else None

    def p(self, found: Interval) -> float:
        """p value against the nearest boundary."""
        return max(map(found.p, self.boundaries()))

    def excess(self, value: float) -> float:
        """How far a value lies beyond the region (below 0: inside); the largest is the worst of several."""
        return max(self.low - value, value - self.high)

    def rule(self, measure: Measure) -> str:
        """The rule of the verdict on what `measure` gives, in words."""
        where = f"{KINDS[self.kind].format(low=self.low, high=self.high)} {measure.unit}".strip()
        if measure.exact:
            whose = "every number is" if measure.every else "the number is"
            return f"Supported if {whose} {where}, else contradicted; it is exact, so there is no interval."
        what, other, again = (("every comparison's", "of one of them ", " after a correction for their number")
                              if measure.every else ("its", "", ""))
        few = f" With fewer than {ENOUGH_SEEDS} seeds there is no interval, and the mean decides."
        return (f"Supported if the effect is {where}: {what} whole {100 * LEVEL:.0f} % interval, with "
                f"p < {1 - LEVEL:.2g} after Holm's correction over the ledger; contradicted if the whole interval "
                f"{other}lies outside, with the same p{again}; else undecided.{few if measure.by_run else ''}")


class Decision(NamedTuple):
    """What several intervals say together before the correction: their side, its p value, the one that decides."""
    side: bool | None
    p: float
    at: int


def decide(region: Region, found: Sequence[Interval]) -> Decision:
    """All must lie inside for a claim to hold (p: the largest). One outside contradicts it (p: the smallest times their
    number, since any of them might have)."""
    sides, p = [region.side(own) for own in found], [region.p(own) for own in found]
    outside = [at for at, own in enumerate(found) if not region.contains(own.estimate)]
    if outside:
        at = min(outside, key=lambda n: (p[n], -region.excess(found[n].estimate)))
        return Decision(False if sides[at] is False else None, min(1.0, len(found) * p[at]), at)
    at = max(range(len(found)), key=lambda n: (p[n], region.excess(found[n].estimate)))
    return Decision(True if all(sides) else None, p[at], at)
