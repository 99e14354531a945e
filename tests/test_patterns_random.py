"""Random patterns: budgets, laws, seeds, and that a longer text does not change what a causal query attends."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from lib.patterns import build

RANDOM = [("random_keys", {"budget": 6, "extra": 300}), ("power_law", {"budget": 14}), ("power_law", {"mode": "draws"}),
          ("power_law", {"mode": "bernoulli", "scale": 3.0}), ("bigbird", {}), ("random_offsets", {"count": 5})]


@pytest.mark.parametrize("name, parameters", RANDOM)
def test_when_seed_or_layer_changes_then_keys_change_and_otherwise_they_stay_also_in_a_longer_text(name, parameters):
    def mask(layer=0, length=80, **more):
        return build(name, layers=3, **parameters, **more).mask(layer, length)
    assert np.array_equal(mask(seed=5), mask(seed=5)) and not np.array_equal(mask(seed=5), mask(seed=6))
    assert not np.array_equal(mask(), mask(layer=1))
    assert np.array_equal(mask(per_layer=False), mask(layer=2, per_layer=False))
    if name != "random_offsets":                                                          # redrawn at each length
        assert np.array_equal(mask(length=90)[:, :50, :50], mask(length=50))


def test_when_extra_is_set_then_it_spreads_over_queries():
    counts = build("random_keys", extra=256).with_extra(5, np.arange(2048))
    assert counts.sum() == 5 * 2048 + 512 and set(counts) == {5, 6}
    assert np.abs(np.add.reduceat(counts, np.arange(0, 2048, 64)) - (5 * 64 + 16)).max() <= 1


def test_when_offsets_are_random_then_there_are_count_beyond_the_window_and_all_queries_share_them():
    pattern = build("random_offsets", count=7, window=4)
    plan = pattern.plan(0, 300)
    assert plan.distances[:5] == (0, 1, 2, 3, 4) and len(plan.distances) == 12
    frozen = build("random_offsets", count=7, window=4, reach=63)
    assert frozen.plan(0, 64) == frozen.plan(0, 900) and max(frozen.plan(0, 900).distances) <= 63
    assert len(build("random_offsets", count=99, window=4).plan(0, 20).distances) == 20    # more than there are: all


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


def test_when_48_distances_are_drawn_at_sigma_08_then_about_5_are_new():
    ring = build("power_law", sigma=0.8, window=8, mode="draws", draws=48, causal=False)              # audit, row 20
    assert 4.5 < ring.pairs(1024) / 1024 - 17 < 6
    causal = build("power_law", sigma=0.8, window=8, mode="draws", draws=48)
    assert 4 < (causal.pairs(1024) - build("local", window=8).pairs(1024)) / 1024 < 6


def test_when_the_graph_is_a_ring_then_it_wraps_and_looks_both_ways():
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
