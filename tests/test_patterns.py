"""Patterns: forms against the oracle of `attends`, what all promise, FlexAttention and the docs' page, rules by numbers
computed by hand (data/patterns.yaml), random patterns by their laws and budgets, and `match_edges` by its pairs.
"""

import gc
import importlib.util
import math
import re
import shutil
import sys
import tracemalloc
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from attention_cases import EXAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import lib.patterns
from lib import paths
from lib.attention.call import checked_table
from lib.errors import SuiteError
from lib.patterns import (EdgeTable, HeadOffsets, LearnedOffsets, Offsets, SoftWindow, build, count_pairs, expand,
                          names, pattern_class)
from lib.patterns.base import offsets_by_head
from lib.patterns.christoffel import carry_word, coprime_neighbours
from lib.patterns.fibottention import wythoff_row
from lib.patterns.learned import alpha_of, fractional_rungs
from lib.patterns.matching import match_edges
from lib.patterns.rungs import coprime_stride, fibonacci, matched_pow2, schedule_alphas

CASES = yaml.safe_load((paths.ROOT / "tests" / "data" / "patterns.yaml").read_text("utf-8"))
LENGTHS = (1, 2, 3, 7, 33, 100)
FAMILIES = {"scaled-base", "power-law", "christoffel", "literature", "comparator"}

LEAST = {"layers": 1, "heads": 1, "window": 0, "seed": 0, "rungs": 1, "trained_length": 1, "m": 1, "k": 1, "sigma": 0,
         "draws": 0, "scale": 0, "reach": 1, "stride": 1, "count": 0, "block": 1, "summary": 1, "restart": 1,
         "growth": 0, "dilation": 1, "dilated_heads": 0, "global_tokens": 0, "random": 0, "segment": 1, "factor": 2,
         "branches": 1, "nearest": 1, "farthest": 1, "sinks": 0, "ramp": 1}                # one below it is refused


def check(pattern, layer, length):
    """All that a pattern promises about one layer at one length."""
    mask, plan = pattern.mask(layer, length), pattern.plan(layer, length)
    assert mask.shape == (pattern.heads, length, length) and mask.dtype == bool
    assert np.array_equal(expand(plan, length, pattern.heads), mask), "the form and the oracle disagree"
    h, i, j = (torch.arange(n) for n in mask.shape)
    asked = pattern.mask_mod(layer, length)(0, h[:, None, None], i[:, None], j)
    assert np.array_equal(asked.numpy(), mask), "mask_mod and the oracle disagree"
    assert mask.any(axis=-1).all(), "a query has no key"
    assert mask.diagonal(axis1=1, axis2=2).all(), "a query does not attend itself"
    assert not pattern.causal or not np.triu(mask, 1).any(), "a key in the future"
    assert pattern.pairs(length, layer) == pytest.approx(mask.sum() / pattern.heads, rel=1e-12)
    assert count_pairs(plan, length) == pytest.approx(mask.sum() / pattern.heads, rel=1e-12)
    check_form(plan, length, pattern)


def check_form(plan, length, pattern):
    if isinstance(plan, EdgeTable):
        checked_table(plan, length)                                 # its rows ascend, with -1 at their ends
        assert plan.keys.dtype == np.int32 and plan.keys.shape[:-1] in ((length,), (pattern.heads, length))
    elif isinstance(plan, (Offsets, HeadOffsets)):
        heads = offsets_by_head(plan)
        assert len(heads) in (1, pattern.heads)
        for offsets in heads:
            assert list(offsets.distances) == sorted(set(offsets.distances)) and offsets.causal == pattern.causal
            assert all(type(d) is int and abs(d) < length for d in offsets.distances) and 0 <= offsets.leading <= length
    else:
        assert isinstance(plan, (LearnedOffsets, SoftWindow)) and pattern.learned in ("alpha", "span")


@pytest.mark.parametrize("pattern", EXAMPLES)
@pytest.mark.parametrize("length", LENGTHS)
def test_when_any_example_at_any_length_then_form_equals_oracle(pattern, length):
    for layer in range(pattern.layers):
        check(pattern, layer, length)
    assert pattern.pairs(length) == pytest.approx(sum(pattern.pairs(length, layer) for layer in range(pattern.layers)))


@pytest.mark.parametrize("name", names())
def test_when_a_pattern_is_listed_then_it_says_what_it_is_and_names_a_wrong_layer_length_or_stack(name):
    cls = pattern_class(name)
    assert cls.family in FAMILIES and len(cls.source) > 10 and "attends" in cls.__doc__
    assert 1 <= len(cls.examples()) <= 5 and all(type(example) is cls for example in cls.examples())
    assert cls.bidirectional == any(not example.causal for example in cls.examples())
    assert hash(cls()) == hash(cls()) and cls() == cls()
    pattern = build(name, layers=5, heads=2)
    for layer, length, message in ((5, 8, "layer = 5"), (-1, 8, "layer = -1"), (0, 0, "length = 0")):
        for ask in (pattern.plan, pattern.mask, lambda at, T: pattern.pairs(T, at)):
            with pytest.raises(SuiteError, match=message):
                ask(layer, length)
    wrong = {field: least - 1 for field, least in LEAST.items() if field in cls.__dataclass_fields__}
    for field, value in {**wrong, **({} if cls.bidirectional else {"causal": False})}.items():
        with pytest.raises(SuiteError, match=f"{field} = {value} is not valid"):
            build(name, **{field: value})


def test_when_the_readmes_pattern_is_dropped_in_as_one_file_then_it_is_found_and_owns_its_name(tmp_path, monkeypatch):
    text = (paths.ROOT / "README.md").read_text("utf-8").split("# lib/patterns/every_third.py\n")[1].split("```")[0]
    (tmp_path / "every_third.py").write_text(text)
    monkeypatch.setattr(lib.patterns, "__path__", [*lib.patterns.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    try:
        assert "every_third" in names()
        pattern = build("every_third", layers=2, heads=3, window=1)
        assert pattern.mask(1, 10)[2, 9].nonzero()[0].tolist() == [0, 3, 6, 8, 9]
        assert np.array_equal(expand(pattern.keys(0, 10), 10, 3), pattern.mask(0, 10))
        twin = type("Twin", (type(pattern),), {"name": "every_third"})
        with pytest.raises(SuiteError, match="two patterns are called 'every_third'"):
            names()
    finally:                                                # so that other tests of this process do not find it
        monkeypatch.undo()
        sys.modules.pop("lib.patterns.every_third", None)
        vars(lib.patterns).pop("every_third", None)
        pattern = twin = None
        gc.collect()
    assert "every_third" not in names()


@pytest.mark.parametrize("window, widths", [
    (4, ((4, 4, 4), (4, 4, 4))), ((1, 2), ((1, 1, 1), (2, 2, 2))), ([1, [2, 3, 4]], ((1, 1, 1), (2, 3, 4)))])
def test_when_values_are_given_by_layer_or_head_also_in_lists_then_all_shapes_expand(window, widths):
    assert build("local", window=window, layers=2, heads=3).widths == widths


@pytest.mark.parametrize("name, parameters, message", CASES["refused"])
def test_when_a_name_or_a_value_is_invalid_then_the_error_names_it(name, parameters, message):
    with pytest.raises(SuiteError, match=message):
        build(name, **parameters)


# Form against oracle at parameters drawn at random, by their names

small, width, far = st.integers(1, 9), st.integers(0, 12), st.none() | st.integers(1, 80)
flag, choice = st.booleans(), st.sampled_from
DRAWN = {
    "layers": choice([1, 5, 7, 8, 9]), "heads": st.just(3), "causal": flag, "window": width, "seed": st.integers(0, 3),
    "base": choice(["fibonacci", "pow2", "matched_pow2"]), "rungs": st.integers(1, 11), "ramp": small,
    "schedule": choice(["fixed", "linear", "coprime", "descending", "permuted"]), "start": choice(["one", "ramp"]),
    "trained_length": far, "restart": st.none() | st.integers(1, 30), "random": width,
    "m": st.integers(1, 20), "k": st.integers(20, 40), "repeat": flag, "arrange": choice(["merged", "layers", "heads"]),
    "sigma": st.floats(-0.9, 3), "budget": st.integers(25, 40), "extra": st.integers(0, 1023), "per_layer": flag,
    "stride": small, "block": st.integers(5, 12), "summary": st.integers(1, 5), "growth": width, "dilation": small,
    "dilations": st.lists(small, min_size=1, max_size=3), "dilated_heads": small, "reach": far,
    "segment": small, "factor": st.integers(2, 4), "branches": st.integers(1, 4), "modified": flag, "count": width,
    "nearest": st.none() | small, "farthest": st.none() | small, "sinks": width, "global_tokens": width,
}
NO_BUDGET = {"budget": st.none(), "extra": st.just(0)}
MODES = {
    "christoffel": [{}, {"sides": st.just("slopes"), "causal": st.just(False)}],
    "mswa": [{"window": st.integers(0, 60)}],
    "power_law": [{}, {**NO_BUDGET, "mode": st.just("draws"), "draws": st.integers(0, 20)},
                  {**NO_BUDGET, "mode": st.just("bernoulli"), "scale": st.floats(0, 5)}],
}


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(1, 70))
@pytest.mark.filterwarnings("ignore:christoffel")
@pytest.mark.parametrize("name, mode", [(name, mode) for name in names() for mode in MODES.get(name, [{}])])
def test_when_a_pattern_is_drawn_at_random_then_form_equals_oracle(name, mode, data, length):
    cls = pattern_class(name)
    strategies = {field: DRAWN[field] for field in cls.__dataclass_fields__ if field in DRAWN} | mode
    parameters = {field: data.draw(strategy, field) for field, strategy in strategies.items()}
    pattern = build(name, **parameters | ({} if cls.bidirectional else {"causal": True}))
    for layer in {0, pattern.layers // 2, pattern.layers - 1}:
        check(pattern, layer, length)


# `Pattern.mask_mod` in FlexAttention, and the page on patterns in other models

PAGE = (paths.ROOT / "docs" / "other_models.md").read_text("utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
uncompiled = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def assert_flex_agrees(pattern, layer, T, heads, attention=flex_attention, dtype=torch.float64, tolerance=1e-12):
    random = torch.Generator().manual_seed(T)
    q, k, v = (torch.randn(1, heads, T, 16, generator=random, dtype=dtype) for _ in range(3))
    block_mask = create_block_mask(pattern.mask_mod(layer, T), None, heads, T, T, device="cpu")
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.tensor(pattern.mask(layer, T)))
    assert (attention(q, k, v, block_mask=block_mask) - expected).abs().max() < tolerance


@uncompiled
@pytest.mark.parametrize("pattern, T, heads", [         # no whole bytes of a table's bits; beyond one block
    *(pytest.param(*example.values, 37, example.values[0].heads, id=example.id) for example in EXAMPLES),
    *((build(name, window=3), 131, 3) for name in ("scaled_base", "streaming_sinks", "random_keys"))])
def test_when_flex_attention_gets_a_mask_mod_then_it_attends_the_oracle_mask_in_any_number_of_heads(pattern, T, heads):
    assert_flex_agrees(pattern, pattern.layers - 1, T, heads)


@pytest.mark.parametrize("pattern", [build("local", window=3), build("local", window=3, causal=False),
                                     build("random_keys", window=0, causal=False)])
@pytest.mark.parametrize("lengths", [(50, 50), (37, 50), (50, 37)])
def test_when_a_block_mask_has_another_length_than_its_mask_mod_then_it_is_an_error(pattern, lengths):
    with pytest.raises(IndexError, match="out of bounds"):
        create_block_mask(pattern.mask_mod(0, 37), None, 1, *lengths, device="cpu")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and there is no g++")
def test_when_flex_attention_is_compiled_then_a_table_of_each_head_is_looked_up_in_its_kernel():
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    assert_flex_agrees(build("longnet", heads=4, segment=5), 0, 131, 4, compiled, torch.float32, 1e-5)


def test_when_a_table_is_shared_by_all_heads_then_its_mask_mod_keeps_one_bit_a_pair():
    T, pattern = 1000, build("sparse_fixed", heads=16)
    assert isinstance(pattern.plan(0, T), EdgeTable)
    tracemalloc.start()
    mask_mod = pattern.mask_mod(0, T)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert mask_mod(0, torch.tensor(5), torch.tensor(T - 1), torch.tensor(T - 1))
    assert T * T / 8 <= kept < 1.1 * T * T / 8


@uncompiled
@pytest.mark.parametrize("snippet", SNIPPETS, ids=["function", "flex", "transformers", "learned"])
def test_when_a_reader_runs_a_block_of_the_page_then_it_works(snippet):
    if "from transformers" in snippet and importlib.util.find_spec("transformers") is None:
        pytest.skip("the extra is not installed: pip install -e '.[transformers]'")
    known = {}
    exec(snippet, known)
    if "out" in known:
        pattern, q, k, v = (known[name] for name in ("pattern", "q", "k", "v"))
        mask = torch.tensor(pattern.mask(3, 300))
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        assert (known["out"] - expected).abs().max() < 1e-5
    if "thetas" in known:
        assert [theta.requires_grad for theta in known["thetas"]] == [True, True]


# Rules by hand-computed numbers

FIB = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987]


def distances(pattern, length, layer=0, head=0):
    """Distances of the last query, from the rule alone."""
    last, j = np.array([[length - 1]]), np.arange(length)[None, :]
    return sorted((length - 1 - np.flatnonzero(pattern.attends(last, j, layer, length, head))).tolist())


def keys_of(pattern, query, length, layer=0, head=0):
    return np.flatnonzero(pattern.mask(layer, length)[head, query]).tolist()


@pytest.mark.parametrize("name, parameters, length, layer, head, expected", [
    *CASES["distances"], *(("mswa", {"window": 16, "layers": 4, "heads": 4}, 99, layer, head, [*range(width + 1)])
                           for layer in (0, 3) for head in range(4) for width in [2 ** (layer + head)])])
def test_when_a_rule_is_of_distances_then_the_last_query_has_these(name, parameters, length, layer, head, expected):
    assert distances(build(name, **parameters), length, layer, head) == expected


@pytest.mark.parametrize("name, parameters, length, query, layer, head, keys", CASES["keys"])
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
