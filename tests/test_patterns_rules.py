"""Rules by hand-computed numbers, random patterns by their laws and budgets, and `match_edges` by its pairs."""

import math
import tracemalloc
import warnings

import numpy as np
import pytest
import torch

from lib.errors import SuiteError
from lib.patterns import LearnedOffsets, SoftWindow, build, names
from lib.patterns.christoffel import carry_word, coprime_neighbours
from lib.patterns.fibottention import wythoff_row
from lib.patterns.learned import alpha_of, fractional_rungs
from lib.patterns.matching import match_edges
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


def test_when_a_pattern_covers_the_text_or_is_far_shorter_then_its_pairs_are_those_of_dense_or_a_formula():
    with warnings.catch_warnings():
        warnings.simplefilter("error")                          # m = k is no word of a shorter period
        for whole in (build("local", window=29), build("christoffel", m=8, k=8, repeat=True)):
            assert np.array_equal(whole.mask(0, 30), build("dense").mask(0, 30))
    assert build("dense").pairs(10) == 55 and build("dense", causal=False).pairs(10) == 100
    T = 2_000_000                                               # no square of pairs is made
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


def test_when_a_pattern_learns_then_theta_starts_at_0_or_the_ramp_and_its_form_has_not_what_is_learned():
    assert build("learned", layers=4).thetas == (0.0,) * 4 and build("learned", start="ramp").thetas == (0.0,)
    first, *inner, last = build("learned", layers=8, start="ramp").thetas
    assert (first, last) == (-4, 4) == build("learned", layers=2, start="ramp").thetas
    assert [alpha_of(theta) for theta in inner] == pytest.approx([0.5 + layer / 7 for layer in range(1, 7)], abs=1e-12)
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


# Random patterns; a longer text does not change what a causal query attends

@pytest.mark.parametrize("name, parameters", [
    ("random_keys", {"budget": 6, "extra": 300}), ("power_law", {"budget": 14}), ("power_law", {"mode": "draws"}),
    ("power_law", {"mode": "bernoulli", "scale": 3.0}), ("bigbird", {}), ("random_offsets", {"count": 5})])
def test_when_seed_or_layer_changes_then_keys_change_and_otherwise_they_stay_also_in_a_longer_text(name, parameters):
    def mask(layer=0, length=80, **more):
        return build(name, layers=3, **parameters, **more).mask(layer, length)
    assert np.array_equal(mask(seed=5), mask(seed=5)) and not np.array_equal(mask(seed=5), mask(seed=6))
    assert not np.array_equal(mask(), mask(layer=1))
    assert np.array_equal(mask(per_layer=False), mask(layer=2, per_layer=False))
    if name != "random_offsets":                                                          # redrawn at each length
        assert np.array_equal(mask(length=90)[:, :50, :50], mask(length=50))


def test_when_offsets_or_extra_keys_are_random_then_all_queries_share_them_or_have_their_share():
    pattern = build("random_offsets", count=7, window=4)
    plan = pattern.plan(0, 300)
    assert plan.distances[:5] == (0, 1, 2, 3, 4) and len(plan.distances) == 12
    frozen = build("random_offsets", count=7, window=4, reach=63)
    assert frozen.plan(0, 64) == frozen.plan(0, 900) and max(frozen.plan(0, 900).distances) <= 63
    assert len(build("random_offsets", count=99, window=4).plan(0, 20).distances) == 20    # more than there are: all
    counts = build("random_keys", extra=256).with_extra(5, np.arange(2048))
    assert counts.sum() == 5 * 2048 + 512 and set(counts) == {5, 6}
    assert np.abs(np.add.reduceat(counts, np.arange(0, 2048, 64)) - (5 * 64 + 16)).max() <= 1


@pytest.mark.parametrize("name, budget, window", [("random_keys", 6, 2), ("power_law", 12, 3)])
def test_when_there_is_a_budget_then_every_query_has_exactly_so_many_keys_or_all_there_are(name, budget, window):
    mask = build(name, budget=budget, window=window).mask(0, 200)[0]
    assert mask.sum(1).tolist() == [min(budget, i + 1) for i in range(200)]
    i, j = mask[100:].nonzero()
    assert (i + 100 - j).max() > 60                                                       # of all predecessors
    both = build(name, budget=budget, window=window, causal=False).mask(0, 200)[0]
    assert (both.sum(1) == budget).all() and np.triu(both, window + 1).sum() > 100
    near = build("power_law", window=3, budget=12, reach=9).mask(0, 150)[0]
    assert near.sum(1)[20:].tolist() == [10] * 130                                        # only 0 <= d <= 9


RUNS = 400


def frequency(sigma, **parameters):
    """How often the last of 65 queries attends each distance >= 1, over seeds; float [64]."""
    seen = np.zeros(65)
    for seed in range(RUNS):
        row = build("power_law", sigma=sigma, window=0, seed=seed, **parameters).keys(0, 65).keys[-1]
        seen[64 - row[row >= 0]] += 1
    return seen[1:] / RUNS


@pytest.mark.parametrize("parameters", [{"budget": 2}, {"mode": "draws", "draws": 1}])
@pytest.mark.parametrize("sigma", [-0.5, 0.8])
def test_when_one_key_is_drawn_then_distances_follow_the_power_law(sigma, parameters):
    d = np.arange(1, 65)
    law, got = d ** -(1 + sigma) / (d ** -(1 + sigma)).sum(), frequency(sigma, **parameters)
    assert got.sum() == pytest.approx(1)
    for part in (slice(0, 1), slice(1, 4), slice(4, 16), slice(16, 64)):
        p = law[part].sum()
        assert abs(got[part].sum() - p) < 4 * np.sqrt(p * (1 - p) / RUNS) + 1e-9


def test_when_edges_are_bernoulli_then_each_has_its_own_probability():
    got, p = frequency(0.5, mode="bernoulli", scale=3.0), np.minimum(1, 3.0 * np.arange(1, 65) ** -1.5)
    assert (np.abs(got - p) < 4.5 * np.sqrt(p * (1 - p) / RUNS) + 1e-9).all() and got[0] == got[1] == 1


def test_when_48_distances_are_drawn_at_sigma_08_then_about_5_are_new_and_a_ring_wraps_and_looks_both_ways():
    ring = build("power_law", sigma=0.8, window=8, mode="draws", draws=48, causal=False)              # audit, row 20
    assert 4.5 < ring.pairs(1024) / 1024 - 17 < 6
    causal = build("power_law", sigma=0.8, window=8, mode="draws", draws=48)
    assert 4 < (causal.pairs(1024) - build("local", window=8).pairs(1024)) / 1024 < 6
    mask = build("power_law", window=1, budget=8, causal=False, sigma=0.0).mask(0, 60)[0]
    assert mask[0, 59] and mask[59, 0]                                                    # the window wraps too
    i, j = mask.nonzero()
    ahead = ((j - i) % 60 < 30).mean()
    assert 0.4 < ahead < 0.7 and np.minimum((i - j) % 60, (j - i) % 60).max() == 30


def test_when_a_power_law_graph_is_drawn_then_memory_grows_with_its_edges():
    peaks = []
    for length in (1024, 4096):
        tracemalloc.start()
        build("power_law", layers=1, heads=1, window=2, budget=8).plan(0, length)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 5 * peaks[0] and peaks[1] < 4096 ** 2 / 4         # four times the edges; bits of all pairs: 2 MiB


# Equal pairs

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


def test_when_the_paper_is_matched_then_local_has_a_window_near_16_and_drawn_keys_match_nearly_exactly():
    assert match_edges("local", PAPER, 1024).window == 16                                 # audit, row 4
    matched = match_edges("local", build("scaled_base", window=8, layers=16, heads=8), 1024)
    assert set(matched.window) == {15, 16}
    matched = match_edges("local", build("strided", stride=9, layers=2, heads=8), 100)    # too few layers: by head
    assert isinstance(matched.window[0], tuple)
    for name in ("random_keys", "power_law", "bigbird"):                                  # keys of each query alone
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


@pytest.mark.parametrize("name, like, length, tolerance, parameters, message", [
    ("strided", build("scaled_base", window=8, rungs=12), 256, 0.01, {},
     r"strided cannot attend 3471 pairs within 1.0% at 256 .* nearest is 3406"),
    ("dense", SMALL, 128, 0.01, {}, "dense has no parameter to turn"), ("local", SMALL, 0, 0.01, {}, "length = 0"),
    ("power_law", SMALL, 128, 0.01, {"mode": "draws"}, "power_law has no parameter to turn"),
    ("local", SMALL, 64, 2, {}, "tolerance = 2")])
def test_when_the_goal_cannot_be_met_then_the_error_names_the_nearest(
        name, like, length, tolerance, parameters, message):
    with pytest.raises(SuiteError, match=message):
        match_edges(name, like, length, tolerance, **parameters)
    assert match_edges("dense", build("dense", layers=2), 64).pairs(64) == 2 * 65 * 32
