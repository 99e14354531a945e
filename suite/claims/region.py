"""Where an effect must lie for a claim to hold, and what an interval says of it. The rule of every verdict is here."""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lib.errors import SuiteError, one_of, require
from suite.study.stats import Interval

KINDS = {"below": "below {high:g}", "above": "above {low:g}", "at_most": "at most {high:g}",
         "at_least": "at least {low:g}", "equals": "{low:g}", "between": "between {low:g} and {high:g}"}


@dataclass(frozen=True)
class Region:
    """Numbers below, above, ..., as the ledger writes it: `{below: 0}`, `{at_least: 2}`, `{between: [-0.01, 0.01]}`."""
    kind: str
    low: float
    high: float

    @classmethod
    def read(cls, value: object) -> "Region":
        """From the ledger; a `SuiteError` says what is wrong."""
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

    @property
    def words(self) -> str:
        return KINDS[self.kind].format(low=self.low, high=self.high)

    def contains(self, value: float) -> bool:
        return not self.outside(value, value)

    def boundaries(self) -> list[float]:
        return sorted({end for end in (self.low, self.high) if math.isfinite(end)})

    def side(self, found: Interval) -> bool | None:
        """Whether the whole interval lies inside (True) or outside (False); None: on both sides of a boundary."""
        inside = self.contains(found.low) and self.contains(found.high)
        return True if inside else False if self.outside(found.low, found.high) else None

    def p(self, found: Interval) -> float:
        """p value against the nearest boundary."""
        return max(map(found.p, self.boundaries()))

    def excess(self, value: float) -> float:
        """How far a value lies beyond the region (below 0: inside); the largest is the worst of several."""
        return max(self.low - value, value - self.high)


def decide(region: Region, found: Sequence[Interval]) -> tuple[bool | None, float, int]:
    """What several intervals say together before the correction: their side, its p value, which one decides.

    All must lie inside for a claim to hold (p: the largest). One outside contradicts it (p: the smallest times their
    number, since any of them might have).
    """
    sides, p = [region.side(own) for own in found], [region.p(own) for own in found]
    outside = [at for at, own in enumerate(found) if not region.contains(own.estimate)]
    if outside:
        at = min(outside, key=lambda n: (p[n], -region.excess(found[n].estimate)))
        return False if sides[at] is False else None, min(1.0, len(found) * p[at]), at
    at = max(range(len(found)), key=lambda n: (p[n], region.excess(found[n].estimate)))
    return True if all(sides) else None, p[at], at
