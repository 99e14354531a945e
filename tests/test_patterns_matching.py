"""Equal pairs: `match_edges` within its tolerance, or an error that names the nearest."""

from __future__ import annotations

import pytest

from lib.errors import SuiteError
from lib.patterns import build, names
from lib.patterns.matching import match_edges

PAPER = build("scaled_base", schedule="linear", window=8, layers=16, heads=8)
SMALL = build("scaled_base", schedule="linear", window=6, rungs=10, layers=8, heads=4)
SHALLOW = build("christoffel", m=21, k=64, repeat=True, layers=2, heads=4)
BOTH_WAYS = build("christoffel", m=11, k=64, causal=False, layers=4, heads=2)


def off(pattern, like, length):
    return abs(pattern.pairs(length) - like.pairs(length)) / like.pairs(length)


@pytest.mark.parametrize("like, name", [
    *((like, name) for like in (SMALL, SHALLOW) for name in names() if name != "dense"),
    *((BOTH_WAYS, name) for name in ("local", "strided", "random_keys", "random_offsets", "power_law"))])
def test_when_a_comparator_is_matched_then_its_pairs_are_within_one_percent(like, name):
    matched = match_edges(name, like, 128)
    assert matched.name == name and off(matched, like, 128) <= 0.01
    assert (matched.layers, matched.heads, matched.causal) == (like.layers, like.heads, like.causal)
    by_mask = sum(matched.mask(layer, 128).sum() / matched.heads for layer in range(matched.layers))
    assert by_mask == pytest.approx(matched.pairs(128))


def test_when_local_matches_the_paper_then_its_window_is_16_or_near():
    assert match_edges("local", PAPER, 1024).window == 16                                 # audit, row 4
    matched = match_edges("local", build("scaled_base", window=8, layers=16, heads=8), 1024)
    assert set(matched.window) == {15, 16}
    matched = match_edges("local", build("strided", stride=9, layers=2, heads=8), 100)    # too few layers: by head
    assert isinstance(matched.window[0], tuple)


@pytest.mark.parametrize("name", ["random_keys", "power_law", "bigbird"])
def test_when_keys_are_drawn_per_query_then_the_match_is_nearly_exact(name):
    assert off(match_edges(name, PAPER, 1024, 1e-3), PAPER, 1024) <= 1e-4


@pytest.mark.parametrize("name, parameters", [
    ("strided", {"stride": 5}), ("christoffel", {"m": 21, "k": 64}), ("local", {"window": 7}),
    ("random_keys", {"budget": 9}), ("power_law", {"budget": 20}), ("mswa", {"window": 16})])
def test_when_a_pattern_matches_itself_then_it_stays_as_it_is(name, parameters):
    pattern = build(name, layers=4, **parameters)
    matched = match_edges(pattern, pattern, 256, 0.0)
    assert matched.pairs(256) == pattern.pairs(256) and (name != "christoffel" or matched.m == 21)


def test_when_an_instance_is_given_then_other_parameters_stay():
    template = build("power_law", sigma=1.2, window=3, seed=9, layers=8, heads=4)
    matched = match_edges(template, SMALL, 128)
    assert (matched.sigma, matched.window, matched.seed) == (1.2, 3, 9)
    assert match_edges("power_law", SMALL, 128, sigma=0.5, seed=2).sigma == 0.5
    assert match_edges("random_offsets", PAPER, 256).reach == 255                         # frozen at that length


ONE = build("scaled_base", window=8, rungs=12)


@pytest.mark.parametrize("name, like, length, tolerance, parameters, message", [
    ("strided", ONE, 256, 0.01, {}, r"strided cannot attend 3471 pairs within 1.0% at 256 .* nearest is 3406"),
    ("dense", SMALL, 128, 0.01, {}, "dense has no parameter to turn"), ("local", SMALL, 0, 0.01, {}, "length = 0"),
    ("power_law", SMALL, 128, 0.01, {"mode": "draws"}, "power_law has no parameter to turn"),
    ("local", SMALL, 64, 2, {}, "tolerance = 2")])
def test_when_the_goal_cannot_be_met_then_the_error_names_the_nearest(
        name, like, length, tolerance, parameters, message):
    with pytest.raises(SuiteError, match=message):
        match_edges(name, like, length, tolerance, **parameters)
    assert match_edges("dense", build("dense", layers=2), 64).pairs(64) == 2 * 65 * 32
