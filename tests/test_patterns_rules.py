"""The rules of design.md by hand-computed numbers: rungs, words, windows, and each neighbour of the literature."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest

from lib.errors import SuiteError
from lib.patterns import EdgeTable, LearnedOffsets, SoftWindow, build
from lib.patterns.christoffel import carry_word, coprime_neighbours
from lib.patterns.fibottention import wythoff_row
from lib.patterns.learned import alpha_of, fractional_rungs
from lib.patterns.rungs import (base_rungs, coprime_stride, fibonacci,
                                matched_pow2, schedule_alphas)

FIB = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987]


def distances(pattern, length, layer=0, head=0):
    """Distances of the last query, from the rule alone."""
    last, j = np.array([[length - 1]]), np.arange(length)[None, :]
    return sorted((length - 1 - np.flatnonzero(pattern.attends(last, j, layer, length, head))).tolist())


def keys_of(pattern, query, length, layer=0, head=0):
    return np.flatnonzero(pattern.mask(layer, length)[head, query]).tolist()


# ---- windows

def test_when_window_is_3_then_rows_have_1_2_3_4_4_keys():
    assert build("local", window=3).mask(0, 6)[0].sum(1).tolist() == [1, 2, 3, 4, 4, 4]
    assert build("local", window=0).mask(0, 4)[0].sum(1).tolist() == [1, 1, 1, 1]
    assert build("local", window=1, causal=False).mask(0, 4)[0].sum(1).tolist() == [2, 3, 3, 2]


def test_when_window_covers_the_text_then_it_is_dense():
    assert np.array_equal(build("local", window=9).mask(0, 10), build("dense").mask(0, 10))
    assert build("dense").pairs(10) == 55 and build("dense", causal=False).pairs(10) == 100
    assert build("local", window=8).pairs(9) < build("dense").pairs(10)


def test_when_the_text_is_long_then_pairs_are_counted_without_a_square():
    T = 2_000_000
    assert build("local", window=8).pairs(T) == 9 * T - 36
    assert build("streaming_sinks", window=8, sinks=2).pairs(T) == 9 * T - 36 + (T - 9) + (T - 10)
    assert build("scaled_base", window=8).pairs(T) == 9 * T - 36 + sum(T - f for f in FIB if f > 8)


# ---- scaled base

def test_when_the_depth_has_a_coprime_stride_then_it_is_the_largest():
    assert [coprime_stride(depth) for depth in (5, 7, 8, 9, 12, 16, 24)] == [2, 3, 3, 4, 5, 7, 11]


@pytest.mark.parametrize("depth", [2, 3, 4, 6])
def test_when_the_depth_has_no_coprime_stride_then_the_error_names_the_depth(depth):
    with pytest.raises(SuiteError, match=f"layers = {depth} has none"):
        build("scaled_base", schedule="coprime", layers=depth)


def test_when_a_schedule_is_asked_then_alphas_are_exact_fractions():
    half, seventh = Fraction(1, 2), Fraction(1, 7)
    assert schedule_alphas("linear", 8) == tuple(half + n * seventh for n in range(8))
    assert schedule_alphas("descending", 8) == schedule_alphas("linear", 8)[::-1]
    assert schedule_alphas("coprime", 8) == tuple(half + n * seventh for n in (0, 3, 6, 1, 4, 7, 2, 5))
    assert schedule_alphas("coprime", 16)[:4] == tuple(half + Fraction(n, 15) for n in (0, 7, 14, 5))
    assert schedule_alphas("fixed", 8) == (Fraction(1),) * 8
    permuted = schedule_alphas("permuted", 8, seed=3)
    assert sorted(permuted) == list(schedule_alphas("linear", 8)) and permuted == schedule_alphas("permuted", 8, seed=3)
    assert permuted != schedule_alphas("permuted", 8, seed=4)


@pytest.mark.parametrize("schedule", ["fixed", "linear", "coprime", "descending", "permuted"])
def test_when_there_is_one_layer_then_alpha_is_1(schedule):
    assert build("scaled_base", schedule=schedule).alphas == (Fraction(1),)


def test_when_alpha_is_a_half_then_rungs_round_half_to_even_and_repeats_drop():
    # 13/2 = 6.5 -> 6, 21/2 = 10.5 -> 10, 55/2 = 27.5 -> 28, 89/2 = 44.5 -> 44; 1, 3 and 5 give 0, 2, 2
    pattern = build("scaled_base", schedule="linear", layers=3, window=0, rungs=10)
    assert distances(pattern, 200) == [0, 1, 2, 4, 6, 10, 17, 28, 44]
    assert distances(pattern, 200, layer=1) == [0, *FIB[:10]]
    assert distances(pattern, 200, layer=2) == [0, 2, 3, 4, 8, 12, 20, 32, 51, 82, 134]


def test_when_rungs_fall_in_the_window_or_beyond_the_text_then_they_drop():
    assert distances(build("scaled_base", window=8), 1024) == [*range(9), 13, 21, 34, 55, 89, 144, 233, 377, 610, 987]
    assert distances(build("scaled_base", window=13), 100) == [*range(14), 21, 34, 55, 89]
    assert 987 in distances(build("scaled_base"), 988) and 987 not in distances(build("scaled_base"), 987)


def test_when_the_text_is_longer_than_trained_then_frozen_rungs_add_nothing():
    free = build("scaled_base", schedule="linear", layers=16)
    frozen = build("scaled_base", schedule="linear", layers=16, trained_length=1024)
    for layer in range(16):
        assert distances(frozen, 4096, layer) == distances(free, 1024, layer)
        added = set(distances(free, 4096, layer)) - set(distances(free, 1024, layer))
        farthest = round(987 * (Fraction(1, 2) + Fraction(layer, 15)))
        assert added == ({farthest} if layer >= 9 else set())  # audit, row 2
    for trained, farthest in ((987, 610), (988, 987)):
        pattern = build("scaled_base", trained_length=trained)
        assert pattern.plan(0, 4096).distances[-1] == max(distances(pattern, 4096)) == farthest
    assert max(distances(free, 4096, 9)) == 1086 and max(distances(free, 4096, 15)) == 1480


def test_when_the_base_is_pow2_then_it_is_rebuilt_at_each_length_unless_frozen():
    plain = build("scaled_base", base="pow2", window=8)
    assert distances(plain, 1024) == [*range(9), 16, 32, 64, 128, 256, 512]  # 15 keys, reach 512: audit, row 1
    assert max(distances(plain, 1025)) == 1024 and max(distances(plain, 4096)) == 2048
    assert max(distances(build("scaled_base", base="pow2", trained_length=1024), 4096)) == 512
    assert base_rungs("pow2", 15, 1) == () and base_rungs("pow2", 15, 2) == (1,)
    assert len(base_rungs("pow2", 15, 513)) == 10


@pytest.mark.parametrize("count", [1, 2, 5, 12, 15, 20])
def test_when_the_geometric_base_is_matched_then_it_has_as_many_rungs_and_the_same_reach(count):
    rungs, reach = matched_pow2(count), fibonacci(count)[-1]
    assert len(set(rungs)) == count and list(rungs) == sorted(rungs) and rungs[0] == 1 and rungs[-1] == reach
    assert all(abs(r - reach ** (n / max(1, count - 1))) <= 0.5 + 1e-9 for n, r in enumerate(rungs))
    pattern = build("scaled_base", base="matched_pow2", rungs=count, window=0)
    assert distances(pattern, 3 * reach) == distances(pattern, reach + 1) == [0, *rungs]  # the same at every length


def test_when_the_base_is_fibonacci_then_it_begins_1_2_3_and_15_rungs_reach_987():
    assert list(fibonacci(15)) == FIB and fibonacci(12)[-1] == 233


# ---- learned alpha

def test_when_alpha_is_1_then_rungs_are_whole_and_those_within_the_window_drop():
    assert fractional_rungs(tuple(FIB[:7]), 2, 1.0, 100) == [(f, 0.0, f) for f in (3, 5, 8, 13, 21)]


def test_when_alpha_is_a_half_then_rungs_lie_between_tokens():
    # 5/2 rounds to 2 <= W and drops; 13/2 is halfway between 6 and 7
    assert fractional_rungs((1, 2, 3, 5, 8, 13, 21), 2, 0.5, 100) == [(4, 0.0, 8), (6, 0.5, 13), (10, 0.5, 21)]
    assert fractional_rungs((7,), 3, 0.5, 100) == [(3, 0.5, 7)]                           # 3.5 rounds to 4 > 3, lo = 3
    assert fractional_rungs((1, 2, 3, 5, 8, 13, 21), 2, 0.5, 10) == [(4, 0.0, 8), (6, 0.5, 13)]  # lo = 10 > T - 1 drops
    assert fractional_rungs((8, 13), 2, 0.5, 7) == [(4, 0.0, 8), (6, 0.5, 13)]            # lo = T - 1 stays


def test_when_two_rungs_share_a_floor_then_the_first_stays():
    assert fractional_rungs((10, 11), 0, 0.5, 50) == [(5, 0.0, 10)]


@pytest.mark.parametrize("alpha", [0.49, 1.51, float("nan"), -1.0])
def test_when_alpha_is_out_of_range_then_the_error_names_it(alpha):
    with pytest.raises(SuiteError, match=f"alpha = {alpha}"):
        fractional_rungs((1, 2), 0, alpha, 10)


def test_when_learned_starts_then_theta_is_0_or_the_ramp_within_4():
    assert build("learned", layers=4).thetas == (0.0,) * 4 and alpha_of(0.0) == 1.0
    ramp = build("learned", layers=8, start="ramp")
    assert ramp.thetas[0] == -4 and ramp.thetas[-1] == 4
    for layer in range(1, 7):
        assert alpha_of(ramp.thetas[layer]) == pytest.approx(0.5 + layer / 7, abs=1e-12)
    assert build("learned", start="ramp").thetas == (0.0,)
    assert build("learned", layers=2, start="ramp").thetas == (-4.0, 4.0)


def test_when_keys_of_learned_are_asked_then_they_do_not_depend_on_alpha():
    pattern = build("learned", layers=2, window=(3, 9), rungs=6)
    assert pattern.plan(0, 50) == LearnedOffsets(3, (1, 2, 3, 5, 8, 13))
    assert pattern.plan(1, 50) == LearnedOffsets(9, (1, 2, 3, 5, 8, 13))
    assert pattern.pairs(50, 0) == build("scaled_base", window=3, rungs=6).pairs(50)


# ---- Christoffel

def test_when_m_is_3_and_k_is_8_then_the_word_and_the_keys_are_these():
    assert carry_word(3, 8) == [0, 0, 1, 0, 0, 1, 0, 1]  # floors of 3j/8: 0 0 0 1 1 1 2 2 3
    pattern = build("christoffel", m=3, k=8)
    assert [keys_of(pattern, i, 20) for i in (0, 1, 2, 7, 19)] == [[0], [1], [0, 2], [0, 2, 5, 7], [12, 14, 17, 19]]
    assert distances(build("christoffel", m=3, k=8, repeat=True), 17) == [0, 2, 5, 7, 10, 13, 15]
    assert distances(build("christoffel", m=3, k=8, window=3), 17) == [0, 1, 2, 3, 5, 7]


def test_when_the_pattern_is_bidirectional_then_offsets_are_signed_or_of_two_slopes():
    both = build("christoffel", m=3, k=8, causal=False)
    assert keys_of(both, 10, 20) == [3, 5, 8, 10, 12, 15, 17]
    slopes = build("christoffel", m=3, k=8, causal=False, sides="slopes")                 # ahead by 5/8: 1, 3, 4, 6, 7
    assert keys_of(slopes, 10, 20) == [3, 5, 8, 10, 11, 13, 14, 16, 17]


def test_when_m_equals_k_then_it_is_dense_within_the_period():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(build("christoffel", m=8, k=8, repeat=True).mask(0, 30), build("dense").mask(0, 30))
        assert distances(build("christoffel", m=8, k=8), 30) == list(range(8))


def test_when_m_and_k_share_a_factor_then_a_warning_names_coprime_neighbours():
    with pytest.warns(UserWarning, match=r"share 64: a word of period 8; coprime neighbours of m: \(63, 65\)"):
        pattern = build("christoffel", m=64, k=512)
    assert distances(pattern, 600) == [0, *range(7, 512, 8)]  # a plain stride: audit, row 22
    assert coprime_neighbours(64, 512, 4) == (63, 65, 61, 67) and coprime_neighbours(1, 2) == ()


# ---- neighbours in the literature

def test_when_sparse_transformer_is_strided_then_it_has_the_last_l_and_every_lth():
    assert distances(build("sparse_strided", stride=4), 14) == [0, 1, 2, 3, 4, 8, 12]
    heads = build("sparse_strided", stride=4, arrange="heads", heads=2)
    assert distances(heads, 14, head=0) == [0, 1, 2, 3, 4] and distances(heads, 14, head=1) == [0, 4, 8, 12]
    layers = build("sparse_strided", stride=4, arrange="layers", layers=2, heads=2)
    assert distances(layers, 14, layer=1, head=0) == [0, 4, 8, 12]


def test_when_sparse_transformer_is_fixed_then_it_has_its_block_and_the_summaries():
    pattern = build("sparse_fixed", block=6, summary=2)
    assert keys_of(pattern, 13, 20) == [4, 5, 10, 11, 12, 13] and keys_of(pattern, 3, 20) == [0, 1, 2, 3]
    far = build("sparse_fixed", block=6, summary=2, arrange="layers", layers=2)
    assert keys_of(far, 13, 20, layer=1) == [4, 5, 10, 11, 13] and keys_of(far, 3, 20, layer=1) == [3]
    assert keys_of(build("sparse_fixed", block=6, causal=False), 7, 20) == [5, 6, 7, 8, 9, 10, 11, 17]


def test_when_steps_are_log_sparse_then_they_double_after_the_window():
    assert distances(build("log_sparse", window=0), 40) == [0, 1, 2, 4, 8, 16, 32]
    assert distances(build("log_sparse", window=2), 40) == [0, 1, 2, 3, 4, 6, 10, 18, 34]
    restarted = distances(build("log_sparse", window=2, restart=16), 40)
    assert restarted == [0, 1, 2, 3, 4, 6, 10, 16, 17, 18, 19, 20, 22, 26, 32, 33, 34, 35, 36, 38]


def test_when_longformer_windows_grow_then_each_layer_is_wider_and_global_tokens_stay():
    pattern = build("longformer", window=1, growth=6, layers=4, global_tokens=2)
    assert [distances(pattern, 30, layer) for layer in (0, 3)] == [[0, 1, 28, 29], [*range(8), 28, 29]]
    dilated = build("longformer", window=2, growth=0, dilation=3, dilated_heads=1, layers=4, heads=2, global_tokens=0)
    assert [distances(dilated, 30, layer, 0)[-1] for layer in range(4)] == [2, 2, 4, 6]   # r = 1, 1, 2, 3
    assert distances(dilated, 30, 3, 1) == [0, 1, 2]
    encoder = build("longformer", window=1, growth=0, causal=False)
    assert keys_of(encoder, 0, 9) == list(range(9)) and keys_of(encoder, 5, 9) == [0, 4, 5, 6]


def test_when_longnet_mixes_branches_then_heads_are_shifted():
    pattern = build("longnet", segment=4, heads=4)
    assert keys_of(pattern, 6, 20, head=0) == [0, 2, 4, 5, 6]  # w 4 r 1, w 8 r 2; not w 16 r 4
    assert keys_of(pattern, 6, 20, head=1) == [4, 5, 6]
    assert keys_of(pattern, 6, 20, head=2) == [0, 2, 4, 5, 6]  # h mod 4 = 2: 2 and 6 of w 16 too
    assert keys_of(pattern, 14, 20, head=2) == [2, 6, 8, 10, 12, 13, 14]


def test_when_dilation_is_mixed_over_heads_then_head_h_skips():
    pattern = build("dilate_former", window=3, heads=4)
    assert [distances(pattern, 20, head=h)[1] for h in range(4)] == [1, 2, 3, 1]
    assert [distances(pattern, 20, head=h)[-1] for h in range(4)] == [3, 6, 9, 3] and len(distances(pattern, 20)) == 4


def test_when_power_attention_has_blocks_then_those_at_powers_of_two_are_seen():
    pattern = build("power_attention", window=3, block=4)
    assert keys_of(pattern, 20, 30) == [4, 5, 6, 7, 12, 13, 14, 15, 16, 17, 18, 19, 20]
    assert distances(build("power_attention", window=0, block=1), 40) == [0, 1, 2, 4, 8, 16, 32]


def test_when_wythoff_rows_are_dealt_to_heads_then_no_distance_is_in_two():
    assert wythoff_row(1, 30) == [1, 2, 3, 5, 8, 13, 21] and wythoff_row(2, 30) == [4, 7, 11, 18, 29]
    assert wythoff_row(3, 30) == [6, 10, 16, 26] and wythoff_row(4, 30) == [9, 15, 24]
    everything = sorted(d for row in range(1, 60) for d in wythoff_row(row, 100))
    assert everything == list(range(1, 101))
    pattern = build("fibottention", heads=4, layers=4)
    rows = {tuple(distances(pattern, 30, 0, h)) for h in range(4)}
    assert rows == {(0, *wythoff_row(row, 29)) for row in (1, 2, 3, 4)}
    assert len({tuple(map(tuple, (distances(pattern, 30, layer, h) for h in range(4)))) for layer in range(4)}) > 1
    modified = build("fibottention", modified=True)
    assert distances(modified, 30) == [0, 1, 2, 3, 5, 8, 13, 21]
    bounded = build("fibottention", heads=2, nearest=4, farthest=20)
    assert sorted(distances(bounded, 30, 0, h) for h in range(2)) == [[0, 1, 2, 3], [0, 4, 7, 11, 18]]


def test_when_windows_are_multi_scale_then_they_double_over_heads_and_layers():
    pattern = build("mswa", window=16, layers=4, heads=4)
    assert [distances(pattern, 99, 0, h)[-1] for h in range(4)] == [1, 2, 4, 8]
    assert [distances(pattern, 99, 3, h)[-1] for h in range(4)] == [8, 16, 32, 64]


def test_when_sinks_lead_then_every_query_sees_them_once():
    pattern = build("streaming_sinks", window=4, sinks=2)
    assert keys_of(pattern, 10, 20) == [0, 1, 6, 7, 8, 9, 10] and keys_of(pattern, 3, 20) == [0, 1, 2, 3]


def test_when_the_span_is_soft_then_the_form_carries_window_and_ramp():
    pattern = build("adaptive_span", layers=2, window=(5, 7), ramp=4)
    assert pattern.plan(0, 20) == SoftWindow(5, 4) and pattern.plan(1, 20) == SoftWindow(7, 4)
    assert pattern.learned == "span"


def test_when_bigbird_mixes_keys_then_window_and_global_are_there_and_the_rest_is_random():
    pattern = build("bigbird", window=2, random=3, global_tokens=2)
    assert isinstance(pattern.plan(0, 40), EdgeTable)
    row = keys_of(pattern, 39, 40)
    assert {0, 1, 37, 38, 39} <= set(row) and len(row) == 8 and keys_of(pattern, 6, 40) == list(range(7))
    encoder = build("bigbird", window=2, random=3, global_tokens=2, causal=False)
    assert keys_of(encoder, 1, 40) == list(range(40)) and len(keys_of(encoder, 20, 40)) == 10


def test_when_the_ramp_ends_are_asked_then_they_would_need_an_infinite_theta():
    assert alpha_of(-4.0) == pytest.approx(0.5 + 1 / (1 + math.exp(4))) and 0.5 < alpha_of(-4.0) < 0.52
