"""Every pattern: its form against the oracle that `attends` makes, and what all promise. Rules: test_patterns_*.py."""

from __future__ import annotations

import gc
import importlib
import re
import sys

import numpy as np
import pytest
import torch
from attention_cases import EXAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st

import lib.patterns
from lib import paths
from lib.errors import SuiteError
from lib.patterns import (EdgeTable, HeadOffsets, LearnedOffsets, Offsets, SoftWindow, build, count_pairs, expand,
                          names, pattern_class)

LENGTHS = (1, 2, 3, 7, 33, 100)
FAMILIES = {"scaled-base", "power-law", "christoffel", "literature", "comparator"}


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
    if isinstance(plan, (Offsets, HeadOffsets)):
        heads = plan.heads if isinstance(plan, HeadOffsets) else (plan,)
        assert len(heads) in (1, pattern.heads)
        for offsets in heads:
            assert list(offsets.distances) == sorted(set(offsets.distances)) and offsets.causal == pattern.causal
            assert all(type(d) is int and abs(d) < length for d in offsets.distances) and 0 <= offsets.leading <= length
    elif isinstance(plan, EdgeTable):
        assert plan.keys.dtype == np.int32 and plan.keys.shape[-2] == length
        assert plan.keys.ndim == 2 or plan.keys.shape[0] == pattern.heads
        for row in plan.keys.reshape(-1, plan.keys.shape[-1]):
            real = row[row >= 0]
            assert (np.diff(real) > 0).all() and (row[len(real):] == -1).all()
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
    for wrong in (dict(layers=0), dict(heads=0), *([] if cls.bidirectional else [dict(causal=False)])):
        with pytest.raises(SuiteError, match=f"{[*wrong][0]} = {[*wrong.values()][0]} is not valid"):
            build(name, **wrong)


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
    "christoffel": [dict(repeat="yes"), dict(k=8, m=9), dict(k=8, m=0), dict(k=0), dict(sides="slopes")],
    "power_law": [dict(sigma="0.8"), dict(sigma=-1), dict(sigma=float("nan")), dict(sigma=float("inf")), dict(draws=3),
                  dict(window=5, causal=False, budget=10), dict(mode="draws", draws=-1), dict(mode="draws", extra=1),
                  dict(mode="bernoulli", scale=-0.5), dict(reach=0), dict(window=-1)],
    "strided": [dict(stride=0)], "random_offsets": [dict(count=-1), dict(reach=0), dict(seed=-1)],
    "random_keys": [dict(window=3, budget=3), dict(extra=1024)],
    "scaled_base": [dict(rungs=0), dict(window=-2), dict(trained_length=0), dict(seed=-5),
                    *(dict(layers=layers, schedule="coprime") for layers in (2, 3, 4, 6))],
    "learned": [dict(window=-1), dict(rungs=0), dict(layers=2, heads=2, window=(1, (2, 3)))],
    "sparse_fixed": [dict(block=4, summary=5), dict(block=0)], "sparse_strided": [dict(stride=0)],
    "log_sparse": [dict(restart=0)], "longformer": [dict(dilation=0), dict(growth=-1)],
    "bigbird": [dict(random=-1), dict(extra=1024)], "longnet": [dict(factor=1), dict(branches=0), dict(segment=0)],
    "dilate_former": [dict(dilations=()), dict(dilations=(0,))], "power_attention": [dict(block=0)],
    "fibottention": [dict(nearest=0)], "mswa": [dict(window=-1)], "streaming_sinks": [dict(sinks=-1)],
    "adaptive_span": [dict(ramp=0)],
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


# Form against oracle at parameters drawn at random

widths, small, maybe = st.integers(0, 12), st.integers(1, 9), st.none() | st.integers(1, 80)
power = {"window": st.integers(0, 6), "sigma": st.floats(-0.9, 3), "reach": maybe, "seed": st.integers(0, 3)}
STRATEGIES = {
    "scaled_base": {"base": st.sampled_from(["fibonacci", "pow2", "matched_pow2"]), "window": widths,
                    "layers": st.sampled_from([1, 5, 7, 8, 9]), "rungs": st.integers(1, 11), "trained_length": maybe,
                    "schedule": st.sampled_from(["fixed", "linear", "coprime", "descending", "permuted"])},
    "christoffel": {"m": st.integers(1, 20), "k": st.integers(20, 40), "window": widths, "repeat": st.booleans()},
    "christoffel of two slopes": {"m": st.integers(1, 9), "k": st.integers(9, 20), "window": widths,
                                  "sides": st.just("slopes"), "causal": st.just(False), "repeat": st.booleans()},
    "power_law": {**power, "budget": st.integers(13, 33), "extra": st.integers(0, 1023)},
    "power_law of draws": {**power, "mode": st.just("draws"), "draws": st.integers(0, 20)},
    "power_law of bernoulli": {**power, "mode": st.just("bernoulli"), "scale": st.floats(0, 5)},
    "strided": {"stride": small, "window": widths},
    "sparse_strided": {"stride": small, "arrange": st.sampled_from(["merged", "layers", "heads"])},
    "sparse_fixed": {"block": st.integers(5, 12), "summary": st.integers(1, 5),
                     "arrange": st.sampled_from(["merged", "layers", "heads"])},
    "log_sparse": {"window": widths, "restart": st.none() | st.integers(1, 30)},
    "dilate_former": {"window": widths, "dilations": st.lists(small, min_size=1, max_size=3)},
    "longformer": {"window": widths, "growth": widths, "dilation": small, "dilated_heads": small,
                   "global_tokens": widths},
    "bigbird": {"window": widths, "random": widths, "global_tokens": widths, "extra": st.integers(0, 1023)},
    "longnet": {"segment": small, "factor": st.integers(2, 4), "branches": st.integers(1, 4)},
    "power_attention": {"window": widths, "block": small},
    "mswa": {"window": st.integers(0, 60)},
    "fibottention": {"window": widths, "nearest": st.none() | small, "farthest": st.none() | small,
                     "modified": st.booleans()},
    "random_offsets": {"window": widths, "count": widths, "reach": maybe},
    "random_keys": {"budget": st.integers(9, 20), "window": st.integers(0, 4), "extra": st.integers(0, 1023)},
}


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(1, 70), st.booleans())
@pytest.mark.filterwarnings("ignore:christoffel")
@pytest.mark.parametrize("case", STRATEGIES)
def test_when_a_pattern_is_drawn_at_random_then_form_equals_oracle(case, data, length, causal):
    drawn = {parameter: data.draw(strategy, label=parameter) for parameter, strategy in STRATEGIES[case].items()}
    pattern = build(case.split()[0], **{"layers": 4, "heads": 3, "causal": causal, **drawn})
    for layer in {0, pattern.layers // 2, pattern.layers - 1}:
        check(pattern, layer, length)
