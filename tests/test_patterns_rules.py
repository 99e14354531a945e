"""The rules by hand-computed numbers: rungs, words, windows, and each neighbour of the literature."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from lib.errors import SuiteError
from lib.patterns import LearnedOffsets, SoftWindow, build
from lib.patterns.christoffel import carry_word, coprime_neighbours
from lib.patterns.fibottention import wythoff_row
from lib.patterns.learned import alpha_of, fractional_rungs
from lib.patterns.rungs import coprime_stride, fibonacci, matched_pow2, schedule_alphas

FIB = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987]


def distances(pattern, length, layer=0, head=0):
    """Distances of the last query, from the rule alone."""
    last, j = np.array([[length - 1]]), np.arange(length)[None, :]
    return sorted((length - 1 - np.flatnonzero(pattern.attends(last, j, layer, length, head))).tolist())


def keys_of(pattern, query, length, layer=0, head=0):
    return np.flatnonzero(pattern.mask(layer, length)[head, query]).tolist()


# Name, parameters, length, layer and head, distances of the last query
DISTANCES = [
    # 13/2 = 6.5 -> 6, 21/2 = 10.5 -> 10, 55/2 = 27.5 -> 28, 89/2 = 44.5 -> 44; 1, 3 and 5 give 0, 2, 2
    ("scaled_base", dict(schedule="linear", layers=3, window=0, rungs=10), 200, 0, 0, [0, 1, 2, 4, 6, 10, 17, 28, 44]),
    ("scaled_base", dict(schedule="linear", layers=3, window=0, rungs=10), 200, 1, 0, [0, *FIB[:10]]),
    ("scaled_base", dict(schedule="linear", layers=3, window=0, rungs=10), 200, 2, 0,
     [0, 2, 3, 4, 8, 12, 20, 32, 51, 82, 134]),
    ("scaled_base", dict(window=8), 1024, 0, 0, [*range(9), *FIB[5:]]),
    ("scaled_base", dict(window=8), 987, 0, 0, [*range(9), *FIB[5:-1]]),
    ("scaled_base", dict(base="pow2", window=8), 1024, 0, 0, [*range(9), 16, 32, 64, 128, 256, 512]),  # audit, row 1
    ("scaled_base", dict(base="pow2", window=0), 1025, 0, 0, [0, *(1 << n for n in range(11))]),
    *(("scaled_base", dict(base="pow2", window=0), T, 0, 0, [*range(T)]) for T in (1, 2, 3)),
    ("scaled_base", dict(base="pow2", window=8, trained_length=64), 4096, 0, 0, [*range(9), 16, 32]),
    ("christoffel", dict(m=3, k=8, repeat=True), 17, 0, 0, [0, 2, 5, 7, 10, 13, 15]),
    ("christoffel", dict(m=3, k=8, window=3), 17, 0, 0, [0, 1, 2, 3, 5, 7]),
    ("christoffel", dict(m=8, k=8), 30, 0, 0, [*range(8)]),
    ("sparse_strided", dict(stride=4), 14, 0, 0, [0, 1, 2, 3, 4, 8, 12]),
    *(("sparse_strided", dict(stride=4, arrange="heads", heads=2), 14, 0, head, keys)
      for head, keys in enumerate(([0, 1, 2, 3, 4], [0, 4, 8, 12]))),
    ("sparse_strided", dict(stride=4, arrange="layers", layers=2, heads=2), 14, 1, 0, [0, 4, 8, 12]),
    ("log_sparse", dict(window=2), 40, 0, 0, [0, 1, 2, 3, 4, 6, 10, 18, 34]),
    ("log_sparse", dict(window=2, restart=16), 30, 0, 0, [0, 1, 2, 3, 4, 6, 10, 16, 17, 18, 19, 20, 22, 26]),
    ("longformer", dict(window=1, growth=6, layers=4, global_tokens=2), 30, 0, 0, [0, 1, 28, 29]),
    ("longformer", dict(window=1, growth=6, layers=4, global_tokens=2), 30, 3, 0, [*range(8), 28, 29]),
    *(("longformer", dict(window=2, growth=0, dilation=3, dilated_heads=1, layers=4, heads=2, global_tokens=0), 30,
       layer, head, [0, r, 2 * r]) for layer, head, r in ((0, 0, 1), (1, 0, 1), (2, 0, 2), (3, 0, 3), (3, 1, 1))),
    *(("dilate_former", dict(window=3, heads=4), 20, 0, head, [0, r, 2 * r, 3 * r])
      for head, r in enumerate((1, 2, 3, 1))),
    ("power_attention", dict(window=0, block=1), 40, 0, 0, [0, 1, 2, 4, 8, 16, 32]),
    ("fibottention", dict(modified=True), 30, 0, 0, [0, 1, 2, 3, 5, 8, 13, 21]),
    *(("mswa", dict(window=16, layers=4, heads=4), 99, layer, head, [*range(2 ** (layer + head) + 1)])
      for layer in (0, 3) for head in range(4)),
]


@pytest.mark.parametrize("name, parameters, length, layer, head, expected", DISTANCES)
def test_when_a_rule_is_of_distances_then_the_last_query_has_these(name, parameters, length, layer, head, expected):
    assert distances(build(name, **parameters), length, layer, head) == expected


# Name, parameters, length, query, layer and head, its keys
KEYS = [
    ("local", dict(window=3), 6, 1, 0, 0, [0, 1]), ("local", dict(window=3), 6, 5, 0, 0, [2, 3, 4, 5]),
    ("local", dict(window=1, causal=False), 4, 2, 0, 0, [1, 2, 3]),
    *(("christoffel", dict(m=3, k=8), 20, i, 0, 0, keys) for i, keys in ((2, [0, 2]), (19, [12, 14, 17, 19]))),
    ("christoffel", dict(m=3, k=8, causal=False), 20, 10, 0, 0, [3, 5, 8, 10, 12, 15, 17]),
    ("christoffel", dict(m=3, k=8, causal=False, sides="slopes"), 20, 10, 0, 0,         # ahead by 5/8: 1, 3, 4, 6, 7
     [3, 5, 8, 10, 11, 13, 14, 16, 17]),
    ("sparse_fixed", dict(block=6, summary=2), 20, 13, 0, 0, [4, 5, 10, 11, 12, 13]),
    ("sparse_fixed", dict(block=6, summary=2, arrange="layers", layers=2), 20, 13, 1, 0, [4, 5, 10, 11, 13]),
    ("sparse_fixed", dict(block=6, causal=False), 20, 7, 0, 0, [5, 6, 7, 8, 9, 10, 11, 17]),
    *(("longformer", dict(window=1, growth=0, causal=False), 9, i, 0, 0, keys)
      for i, keys in ((0, [*range(9)]), (5, [0, 4, 5, 6]))),
    # Head 0: w 4 r 1 and w 8 r 2, not w 16 r 4; head 2 (h mod 4 = 2): 2 and 6 of w 16 too
    *(("longnet", dict(segment=4, heads=4), 20, i, 0, head, keys) for i, head, keys in (
        (6, 0, [0, 2, 4, 5, 6]), (6, 1, [4, 5, 6]), (14, 2, [2, 6, 8, 10, 12, 13, 14]))),
    ("power_attention", dict(window=3, block=4), 30, 20, 0, 0, [*range(4, 8), *range(12, 21)]),
    ("streaming_sinks", dict(window=4, sinks=2), 20, 10, 0, 0, [0, 1, 6, 7, 8, 9, 10]),
]


@pytest.mark.parametrize("name, parameters, length, query, layer, head, keys", KEYS)
def test_when_a_query_is_asked_then_it_has_these_keys(name, parameters, length, query, layer, head, keys):
    assert keys_of(build(name, **parameters), query, length, layer, head) == keys


def test_when_a_pattern_covers_the_text_then_it_is_dense():
    with warnings.catch_warnings():
        warnings.simplefilter("error")                          # m = k is no word of a shorter period
        for whole in (build("local", window=29), build("christoffel", m=8, k=8, repeat=True)):
            assert np.array_equal(whole.mask(0, 30), build("dense").mask(0, 30))
    assert build("dense").pairs(10) == 55 and build("dense", causal=False).pairs(10) == 100


def test_when_the_text_is_long_then_pairs_are_counted_without_a_square():
    T = 2_000_000
    assert build("local", window=8).pairs(T) == 9 * T - 36
    assert build("streaming_sinks", window=8, sinks=2).pairs(T) == 9 * T - 36 + (T - 9) + (T - 10)
    assert build("scaled_base", window=8).pairs(T) == 9 * T - 36 + sum(T - f for f in FIB if f > 8)


def test_when_a_schedule_is_asked_then_alphas_are_the_doubles_of_the_published_code():
    assert schedule_alphas("linear", 8) == tuple(0.5 + 1.0 * (layer / (8 - 1)) for layer in range(8))
    assert schedule_alphas("descending", 8) == schedule_alphas("linear", 8)[::-1]
    assert schedule_alphas("coprime", 8) == tuple(0.5 + 1.0 * (n / 7) for n in (0, 3, 6, 1, 4, 7, 2, 5))
    assert schedule_alphas("fixed", 8) == (1.0,) * 8
    permuted = schedule_alphas("permuted", 8, seed=3)
    assert sorted(permuted) == list(schedule_alphas("linear", 8)) and permuted == schedule_alphas("permuted", 8, seed=3)
    assert permuted != schedule_alphas("permuted", 8, seed=4)
    for schedule in ("fixed", "linear", "coprime", "descending", "permuted"):
        assert build("scaled_base", schedule=schedule).alphas == (1.0,)
    assert [coprime_stride(depth) for depth in (5, 7, 8, 9, 12, 16, 24)] == [2, 3, 3, 4, 5, 7, 11]


def test_when_the_text_is_longer_than_trained_then_frozen_rungs_add_nothing():
    free = build("scaled_base", schedule="linear", layers=16)
    frozen = build("scaled_base", schedule="linear", layers=16, trained_length=1024)
    for layer in range(16):
        assert distances(frozen, 4096, layer) == distances(free, 1024, layer)
        added = set(distances(free, 4096, layer)) - set(distances(free, 1024, layer))
        farthest = round(987 * (0.5 + layer / 15))
        assert added == ({farthest} if layer >= 9 else set())                   # audit, row 2
    for trained, farthest in ((987, 610), (988, 987)):
        pattern = build("scaled_base", trained_length=trained)
        assert pattern.plan(0, 4096).distances[-1] == max(distances(pattern, 4096)) == farthest
    assert max(distances(free, 4096, 9)) == 1086 and max(distances(free, 4096, 15)) == 1480


@pytest.mark.parametrize("count", [1, 2, 5, 12, 15, 20])
def test_when_the_geometric_base_is_matched_then_it_has_as_many_rungs_and_the_same_reach(count):
    rungs, reach = matched_pow2(count), fibonacci(count)[-1]
    assert len(set(rungs)) == count and list(rungs) == sorted(rungs) and rungs[0] == 1 and rungs[-1] == reach
    assert all(abs(r - reach ** (n / max(1, count - 1))) <= 0.5 + 1e-9 for n, r in enumerate(rungs))
    pattern = build("scaled_base", base="matched_pow2", rungs=count, window=0)
    assert distances(pattern, 3 * reach) == distances(pattern, reach + 1) == [0, *rungs]    # the same at every length


@pytest.mark.parametrize("layers, layer, there, absent", [
    (16, 9, {61}, {60}), (16, 10, {3, 1151}, {4, 1152}), (8, 1, {13}, {14}), (8, 5, {1199}, {1198})])
def test_when_a_distance_lies_at_a_half_then_it_is_the_one_that_doubles_give(layers, layer, there, absent):
    """Audit row 26: exact arithmetic would give what is absent here."""
    found = set(distances(build("scaled_base", schedule="linear", layers=layers, window=0), 4096, layer))
    assert there <= found and not absent & found


@pytest.mark.parametrize("base, window, alpha, length, rungs", [
    (FIB[:7], 2, 1.0, 100, [(f, 0.0, f) for f in (3, 5, 8, 13, 21)]),           # whole; those within the window drop
    (FIB[:7], 2, 0.5, 100, [(4, 0.0, 8), (6, 0.5, 13), (10, 0.5, 21)]),         # 5/2 rounds to 2 <= W and drops
    ([7], 3, 0.5, 100, []),                                   # 3.5 rounds to 4 > 3, but the window has 3 (row 27)
    ([7], 2, 0.5, 100, [(3, 0.5, 7)]),
    (FIB[:7], 2, 0.5, 10, [(4, 0.0, 8), (6, 0.5, 13)]),                         # lo = 10 > T - 1 drops
    ([8, 13], 2, 0.5, 7, [(4, 0.0, 8), (6, 0.5, 13)]),                          # lo = T - 1 stays
    ([10, 11], 0, 0.5, 50, [(5, 0.0, 10)])])                                    # two rungs share a floor: the first
def test_when_alpha_is_learned_then_rungs_lie_between_tokens(base, window, alpha, length, rungs):
    assert fractional_rungs(tuple(base), window, alpha, length) == rungs
    for wrong in (0.49, 1.51, math.nan):
        with pytest.raises(SuiteError, match=f"alpha = {wrong}"):
            fractional_rungs(tuple(base), window, wrong, length)


def test_when_learned_starts_then_theta_is_0_or_the_ramp_within_4():
    assert build("learned", layers=4).thetas == (0.0,) * 4 and build("learned", start="ramp").thetas == (0.0,)
    first, *inner, last = build("learned", layers=8, start="ramp").thetas
    assert (first, last) == (-4, 4) == build("learned", layers=2, start="ramp").thetas
    assert [alpha_of(theta) for theta in inner] == pytest.approx([0.5 + layer / 7 for layer in range(1, 7)], abs=1e-12)


def test_when_a_pattern_learns_then_its_form_has_window_and_base_or_ramp_and_not_what_is_learned():
    learned = build("learned", layers=2, window=(3, 9), rungs=6)
    span = build("adaptive_span", layers=2, window=(5, 7), ramp=4)
    assert [learned.plan(layer, 50) for layer in (0, 1)] == [LearnedOffsets(W, (1, 2, 3, 5, 8, 13)) for W in (3, 9)]
    assert learned.pairs(50, 0) == build("scaled_base", window=3, rungs=6).pairs(50)
    assert [span.plan(layer, 20) for layer in (0, 1)] == [SoftWindow(W, 4) for W in (5, 7)]
    assert [span.arguments(torch.zeros(1), layer)["span"].item() for layer in (0, 1)] == [2.5, 3.5]


def test_when_m_and_k_share_a_factor_then_a_warning_names_coprime_neighbours():
    assert carry_word(3, 8) == [0, 0, 1, 0, 0, 1, 0, 1]                         # floors of 3j/8: 0 0 0 1 1 1 2 2 3
    with pytest.warns(UserWarning, match=r"share 64: a word of period 8; coprime neighbours of m: \(63, 65\)"):
        pattern = build("christoffel", m=64, k=512)
    assert distances(pattern, 600) == [0, *range(7, 512, 8)]                    # a plain stride: audit, row 22
    assert coprime_neighbours(64, 512, 4) == (63, 65, 61, 67) and coprime_neighbours(1, 2) == ()


def test_when_wythoff_rows_are_dealt_to_heads_then_no_distance_is_in_two():
    assert wythoff_row(1, 30) == [1, 2, 3, 5, 8, 13, 21] and wythoff_row(4, 30) == [9, 15, 24]
    everything = sorted(d for row in range(1, 60) for d in wythoff_row(row, 100))
    assert everything == list(range(1, 101))
    pattern = build("fibottention", heads=4, layers=4)
    layers = [[tuple(distances(pattern, 30, layer, h)) for h in range(4)] for layer in range(4)]
    assert all(set(rows) == {(0, *wythoff_row(row, 29)) for row in (1, 2, 3, 4)} for rows in layers)
    assert len(set(map(tuple, layers))) > 1
    bounded = build("fibottention", heads=2, nearest=4, farthest=20)
    assert sorted(distances(bounded, 30, 0, h) for h in range(2)) == [[0, 1, 2, 3], [0, 4, 7, 11, 18]]


def test_when_bigbird_mixes_keys_then_window_and_global_are_there_and_the_rest_is_random():
    pattern = build("bigbird", window=2, random=3, global_tokens=2)
    row = keys_of(pattern, 39, 40)
    assert {0, 1, 37, 38, 39} <= set(row) and len(row) == 8 and keys_of(pattern, 6, 40) == list(range(7))
    encoder = build("bigbird", window=2, random=3, global_tokens=2, causal=False)
    assert keys_of(encoder, 1, 40) == list(range(40)) and len(keys_of(encoder, 20, 40)) == 10
