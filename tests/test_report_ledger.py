"""How the ledger writes a number and draws an interval."""

from __future__ import annotations

import re

import numpy as np
import pytest
from bs4 import BeautifulSoup
from made_up_claims import judgement

from suite.report import ledger


@pytest.mark.parametrize(("value", "decimals", "expected"), [
    (0.0, None, "0"), (133.0, None, "133"), (-0.0273, None, "−0.0273"), (1234567.0, None, "1,234,567"), (4.8, None, "4.8"),
    (0.123456, None, "0.1235"), (1234.56, None, "1,235"), (-0.0004, 3, "0.000"), (-1.25, 1, "−1.2"), (20.0, 2, "20.00")])
def test_when_a_number_is_written_then_digits_and_sign_are_those_of_a_page(value, decimals, expected):
    assert ledger.written(value, decimals) == expected


@pytest.mark.parametrize(("low", "high", "decimals"), [(-0.051, -0.033, 3), (0.1, 0.9, 2), (-3.0, 12.0, 0), (1.0, 1.00001, 5)])
def test_when_an_interval_is_narrow_then_more_decimals_are_shown(low, high, decimals):
    own = judgement("F1", "fibonacci", "undecided", effect=low, low=low, high=high)
    assert ledger.digits(own) == decimals


@pytest.mark.parametrize(("region", "effect", "low", "high"), [
    ({"below": 0}, -0.042, -0.051, -0.033), ({"below": 1}, 1.5, 1.1, 1.9), ({"above": 0}, 0.0, -1, 2),
    ({"between": [-0.02, 0.02]}, 0.05, 0.01, 0.09)])
def test_when_an_interval_is_drawn_then_places_are_its_numbers_and_the_claimed_side_is_shaded(region, effect, low, high):
    own = judgement("F1", "fibonacci", "undecided", region=region, effect=effect, low=low, high=high)
    svg = BeautifulSoup(ledger.Row(own, "", "", ()).plot, "html.parser")
    start, end = map(float, re.fullmatch(r"M([\d.]+) 7H([\d.]+)", svg.select_one(".span")["d"]).groups())
    point, left = float(svg.circle["cx"]), float(svg.rect["x"])
    shaded = (left, left + float(svg.rect["width"]))

    def place(value: float) -> float:
        return start + (value - low) / (high - low) * (end - start)
    assert 0 < start <= point <= end < ledger.WIDE and point == pytest.approx(place(effect), abs=0.25)
    kind, ends = next(iter(region.items()))
    bounds = ends if kind == "between" else [-np.inf, ends] if kind == "below" else [ends, np.inf]
    expected = np.clip([place(bound) for bound in bounds], 0, ledger.WIDE)
    assert shaded == pytest.approx(expected, abs=0.4) and svg.svg["aria-hidden"] == "true"
