"""Information flow: what masks give by brute force, and windows and strides by hand."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.errors import SuiteError
from lib.patterns import build
from lib.patterns.christoffel import carry_word
from suite.study import graph
from suite.study.findings.christoffel import residue_counts

PATTERNS = [build("scaled_base", schedule="linear", window=8, layers=16), build("local", window=2, layers=3),
            build("power_law", budget=12, layers=3),
            build("sparse_fixed", block=5, layers=2), build("streaming_sinks", window=2, sinks=2),
            build("longnet", segment=4, heads=3), build("christoffel", m=3, k=8, causal=False),
            build("fibottention", heads=3, layers=2), build("longformer", causal=False, layers=2, growth=2),
            build("bigbird", causal=False), build("power_law", budget=7, window=1, causal=False)]
pytestmark = pytest.mark.filterwarnings("ignore:christoffel")


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.name)
def test_when_a_graph_is_read_from_a_plan_then_edges_reach_and_spectral_gap_are_those_of_the_mask(pattern, monkeypatch):
    T, depth = 41, 5
    reach, shares, united = np.eye(T, dtype=bool), graph.reach_by_depth(pattern, T, depth), set()
    for layer in range(depth):
        mask = pattern.mask(layer % pattern.layers, T).any(0)
        i, j = graph.edges(pattern, layer % pattern.layers, T)
        assert sorted(zip(i, j, strict=True)) == list(zip(*mask.nonzero(), strict=True))
        assert graph.layer_distances(pattern, layer % pattern.layers, T) == tuple(sorted(set(i - j)))
        united |= set(i - j)
        reach = mask.astype(int) @ reach > 0
        assert shares[layer] == pytest.approx(reach.sum() / (T * (T + 1) / 2 if pattern.causal else T * T))
    assert pattern.layers > depth or graph.stack_distances(pattern, T) == tuple(sorted(united))
    assert not pattern.causal or len(graph.stack_sums(pattern, T)) == pattern.layers + 1
    mask = pattern.mask(0, T).any(0)
    adjacency = ((mask | mask.T) & ~np.eye(T, dtype=bool)).astype(float)
    degree = adjacency.sum(1)
    laplacian = np.diag(degree > 0) - adjacency / np.sqrt(np.outer(degree, degree))
    for most in (512, 40):                      # tokens up to which all eigenvalues are computed: a long text has two
        monkeypatch.setattr(graph, "DENSE_SPECTRUM", most)
        assert graph.spectral_gap(pattern, 0, T) == pytest.approx(np.linalg.eigvalsh(laplacian)[1], abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sets(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(1, 70))
def test_when_distances_are_summed_then_reach_equals_brute_force(steps, limit):
    reached = graph.reachable_distances(steps, limit)
    assert reached.shape == (len(steps) + 1, limit) and reached[0].nonzero()[0].tolist() == [0]
    for n in range(1, len(steps) + 1):
        sums = {sum(choice) for choice in itertools.product(*steps[:n])}
        assert set(reached[n].nonzero()[0].tolist()) == {s for s in sums if s < limit}
    with pytest.raises(SuiteError, match="steps = -1"):
        graph.reachable_distances([[-1]], 5)


def test_when_the_pattern_is_a_plain_stride_then_classes_never_meet():
    stride = build("strided", stride=8)
    assert graph.diameter(stride, 0, 100) is None and graph.spectral_gap(stride, 0, 100) == 0.0
    assert graph.reach_by_depth(stride, 100, 60)[-1] < 0.2
    assert graph.reach_by_depth(build("strided", stride=8, window=1), 100, 60)[-1] == 1.0
    plain, coprime = residue_counts({m: build("christoffel", m=m, k=512) for m in (64, 63)}, 512).values()
    assert plain.tolist() == [0] * 7 + [64] and (coprime > 0).all()                       # audit, row 22


@pytest.mark.parametrize("window, length, hops", [(1, 10, 9), (3, 10, 3), (4, 41, 10), (9, 10, 1), (5, 1, 0)])
def test_when_the_window_is_local_then_diameter_and_depth_are_the_ceiling(window, length, hops):
    local = build("local", window=window)
    assert graph.diameter(local, 0, length) == hops
    assert (graph.reach_by_depth(local, length, hops + 1) == 1.0).tolist() == [n >= hops for n in range(1, hops + 2)]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90))
def test_when_a_word_is_christoffel_then_its_prefixes_are_balanced_and_else_it_shows(m, k):
    word = carry_word(min(m, k), k)
    assert sum(word) == min(m, k) and graph.prefix_discrepancy(word, Fraction(min(m, k), k)) < 1
    assert graph.prefix_discrepancy([1, 1, 0, 0], Fraction(1, 2)) == 1
    assert graph.prefix_discrepancy(carry_word(3, 8), Fraction(3, 8)) == Fraction(7, 8)
