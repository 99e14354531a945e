"""Every pattern: its form against the oracle of `attends`, and what all promise. Rules: test_patterns_rules.py."""

import gc
import importlib.util
import re
import shutil
import sys
import tracemalloc

import numpy as np
import pytest
import torch
import torch.nn.functional as F
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


# What is wrong is named with its value: the last of these parameters.
WRONG = {
    "local": [dict(window=2.5), dict(window=True), dict(layers=2, heads=3, window=(1, 2, 3)), dict(layers=2.0),
              dict(layers=2, heads=3, window=(1, (2, 3))), dict(layers=2, heads=3, window=(1, (2, 3, -4)))],
    "christoffel": [dict(repeat="yes"), dict(k=8, m=9), dict(sides="slopes")],
    "power_law": [dict(sigma=float("nan")), dict(sigma=float("inf")), dict(draws=3),
                  dict(window=5, causal=False, budget=10), dict(mode="draws", extra=1)],
    "random_keys": [dict(window=3, budget=3), dict(extra=1024)], "bigbird": [dict(extra=1024)],
    "scaled_base": [dict(layers=layers, schedule="coprime") for layers in (2, 3, 4)],
    "learned": [dict(layers=2, heads=2, window=(1, (2, 3)))], "sparse_fixed": [dict(block=4, summary=5)],
    "dilate_former": [dict(dilations=()), dict(dilations=(0,))],
}
WORDS = [
    ("locall", {}, "did you mean 'local'"),
    ("local", {"windw": 3}, "unknown parameter of pattern local 'windw'; did you mean 'window'"),
    ("power_law", {"sigma": "0.8"}, "sigma = '0.8' .* a valid number"),
    ("random_keys", {"budget": 6, "window": 3, "causal": False}, "budget = 6 .* at least 7"),
    ("scaled_base", {"schedule": "coprime", "layers": 6}, "layers = 6 has none"),
    ("scaled_base", {"base": "fibonaci"}, "unknown base 'fibonaci'; did you mean 'fibonacci'"),
    ("scaled_base", {"schedule": "ramp"}, "unknown schedule 'ramp'"), ("learned", {"base": "x"}, "unknown base 'x'"),
    ("learned", {"start": "two"}, "unknown start 'two'"), ("power_law", {"mode": "drws"}, "did you mean 'draws'"),
    ("power_law", {"budget": 8}, "budget = 8 .* at least 9"), ("christoffel", {"sides": "both"}, "unknown sides"),
    ("sparse_strided", {"arrange": "head"}, "did you mean 'heads'"),
]


@pytest.mark.parametrize("name, parameters, message", [
    *WORDS, *((name, wrong, re.escape(f"{[*wrong][-1]} = {[*wrong.values()][-1]!r} is not valid"))
              for name, cases in WRONG.items() for wrong in cases)])
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
