"""Every pattern: its form against the oracle that `attends` makes, and what all promise. Rules: test_patterns_*.py."""

from __future__ import annotations

import gc
import importlib
import sys
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lib.patterns
from lib.errors import SuiteError
from lib.patterns import (EdgeTable, HeadOffsets, LearnedOffsets, Offsets,
                          SoftWindow, build, count_pairs, expand, names,
                          pattern_class)

LENGTHS = (1, 2, 3, 7, 33, 100)
EXAMPLES = [pytest.param(example, id=f"{name}-{n}")
            for name in names() for n, example in enumerate(pattern_class(name).examples())]
FAMILIES = {"scaled-base", "power-law", "christoffel", "literature", "comparator"}
few = settings(max_examples=40, deadline=None)


def check(pattern, layer, length):
    """All that a pattern promises about one layer at one length."""
    mask, plan = pattern.mask(layer, length), pattern.plan(layer, length)
    assert mask.shape == (pattern.heads, length, length) and mask.dtype == bool
    assert np.array_equal(expand(plan, length, pattern.heads), mask), "the form and the oracle disagree"
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


@pytest.mark.parametrize("pattern", EXAMPLES)
def test_when_mask_mod_is_asked_for_each_pair_then_it_equals_the_mask(pattern):
    length = 33
    h, i, j = (torch.arange(n) for n in (pattern.heads, length, length))
    for layer in range(0, pattern.layers, 3):
        got = pattern.mask_mod(layer, length)(0, h[:, None, None], i[None, :, None], j[None, None, :])
        assert np.array_equal(got.numpy(), pattern.mask(layer, length))


@pytest.mark.parametrize("name", names())
def test_when_a_pattern_is_listed_then_it_says_what_it_is(name):
    cls = pattern_class(name)
    assert cls.family in FAMILIES and len(cls.source) > 10 and "attends" in cls.__doc__
    assert 1 <= len(cls.examples()) <= 5 and all(type(example) is cls for example in cls.examples())
    assert cls.bidirectional == any(not example.causal for example in cls.examples())
    assert hash(cls()) == hash(cls()) and cls() == cls()
    if not cls.bidirectional:
        with pytest.raises(SuiteError, match="causal = False is not valid"):
            cls(causal=False)


@pytest.mark.parametrize("name", names())
def test_when_layer_or_length_is_out_of_range_then_the_error_names_it(name):
    pattern = build(name, layers=5, heads=2)
    wrong = ((5, 8, "layer = 5"), (-1, 8, "layer = -1"), (0, 0, "length = 0"), (0, -3, "length = -3"))
    for layer, length, message in wrong:
        for ask in (pattern.plan, pattern.mask, lambda at, T: pattern.pairs(T, at)):
            with pytest.raises(SuiteError, match=message):
                ask(layer, length)
    with pytest.raises(SuiteError, match="layers = 0 is not valid"):
        build(name, layers=0)
    with pytest.raises(SuiteError, match="heads = 0 is not valid"):
        build(name, heads=0)


def test_when_a_name_or_parameter_is_mistyped_then_the_nearest_is_named():
    with pytest.raises(SuiteError, match="did you mean 'local'"):
        build("locall")
    with pytest.raises(SuiteError, match="unknown parameter of pattern local 'windw'; did you mean 'window'"):
        build("local", windw=3)


def test_when_all_names_are_listed_then_the_fixed_ones_are_among_them():
    fixed = {"dense", "local", "strided", "random_offsets", "random_keys", "scaled_base", "learned", "power_law",
             "christoffel"}
    literature = {"sparse_fixed", "sparse_strided", "log_sparse", "longformer", "bigbird", "longnet", "dilate_former",
                  "power_attention", "fibottention", "mswa", "streaming_sinks", "adaptive_span"}
    assert fixed | literature <= set(names())


def test_when_a_pattern_is_dropped_in_as_one_file_then_it_is_found_and_checked(tmp_path, monkeypatch):
    (tmp_path / "every_third.py").write_text(textwrap.dedent('''
        from dataclasses import dataclass
        from lib.patterns.kinds import OffsetPattern

        @dataclass(frozen=True, kw_only=True)
        class EveryThird(OffsetPattern):
            name = "every_third"
            family = "comparator"
            source = "a test"
            step: int = 3

            def distances(self, layer, length, head):
                return range(self.step, length, self.step)

            def attends(self, i, j, layer, length, head):
                return (i - j) % self.step == 0
    '''))
    monkeypatch.setattr(lib.patterns, "__path__", [*lib.patterns.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    try:
        assert "every_third" in names()
        pattern = build("every_third", layers=2, heads=3, step=4)
        assert pattern.mask(1, 10)[2, 9].nonzero()[0].tolist() == [1, 5, 9]
        assert np.array_equal(expand(pattern.keys(0, 10), 10, 3), pattern.mask(0, 10))
    finally:                                                # so that other tests of this process do not find it
        monkeypatch.undo()
        sys.modules.pop("lib.patterns.every_third", None)
        vars(lib.patterns).pop("every_third", None)
        pattern = None
        gc.collect()
    assert "every_third" not in names()


def test_when_two_files_take_one_name_then_that_is_an_error():
    from lib.patterns.local import Local
    twin = type("Twin", (Local,), {"name": "local"})
    try:
        with pytest.raises(SuiteError, match="two patterns are called 'local'"):
            names()
    finally:
        del twin
        gc.collect()
    assert names().count("local") == 1


def test_when_a_list_stands_for_a_tuple_then_build_takes_it():
    one, other = (build("local", layers=2, heads=2, window=window) for window in ([1, [2, 3]], (1, (2, 3))))
    assert one == other and one.window == (1, (2, 3))


def test_when_values_are_given_per_head_then_all_shapes_expand():
    for window, widths in ((4, ((4, 4, 4), (4, 4, 4))), ((1, 2), ((1, 1, 1), (2, 2, 2))),
                           ((1, (2, 3, 4)), ((1, 1, 1), (2, 3, 4)))):
        assert build("local", window=window, layers=2, heads=3).widths == widths
    for wrong in ((1, 2, 3), (1, (2, 3)), -1, 2.0, True, "4", (1, (2, 3, -4))):
        with pytest.raises(SuiteError, match="window = "):
            build("local", window=wrong, layers=2, heads=3)


WRONG = [
    ("local", {"window": -1}, "window = -1"),
    ("local", {"window": 2.5}, "window = 2.5"),
    ("local", {"window": (1, 2)}, "window = "),
    ("christoffel", {"repeat": "yes"}, "repeat = 'yes' .* a valid boolean"),
    ("power_law", {"sigma": "0.8"}, "sigma = '0.8' .* a valid number"),
    ("strided", {"stride": 0}, "stride = 0"),
    ("random_offsets", {"count": -1}, "count = -1"),
    ("random_offsets", {"reach": 0}, "reach = 0"),
    ("random_offsets", {"seed": -1}, "seed = -1"),
    ("random_keys", {"budget": 0}, "budget = 0"),
    ("random_keys", {"budget": 3, "window": 3}, "budget = 3 .* at least 4"),
    ("random_keys", {"budget": 6, "window": 3, "causal": False}, "budget = 6 .* at least 7"),
    ("random_keys", {"extra": 1024}, "extra = 1024"),
    ("scaled_base", {"base": "fibonaci"}, "unknown base 'fibonaci'; did you mean 'fibonacci'"),
    ("scaled_base", {"schedule": "ramp"}, "unknown schedule 'ramp'"),
    ("scaled_base", {"rungs": 0}, "rungs = 0"),
    ("scaled_base", {"window": -2}, "window = -2"),
    ("scaled_base", {"trained_length": 0}, "trained_length = 0"),
    ("scaled_base", {"seed": -5}, "seed = -5"),
    ("learned", {"start": "two"}, "unknown start 'two'"),
    ("learned", {"window": -1}, "window = -1"),
    ("learned", {"base": "x"}, "unknown base 'x'"),
    ("learned", {"rungs": 0}, "rungs = 0"),
    ("power_law", {"sigma": -1}, "sigma = -1 .* greater than -1"),
    ("power_law", {"sigma": float("nan")}, "sigma = nan"),
    ("power_law", {"sigma": float("inf")}, "sigma = inf"),
    ("power_law", {"mode": "drws"}, "unknown mode 'drws'; did you mean 'draws'"),
    ("power_law", {"draws": 3}, "draws = 3 .* None, as mode is 'budget'"),
    ("power_law", {"budget": 8}, "budget = 8 .* at least 9"),
    ("power_law", {"budget": 10, "window": 5, "causal": False}, "budget = 10 .* at least 11"),
    ("power_law", {"mode": "draws", "draws": -1}, "draws = -1"),
    ("power_law", {"mode": "draws", "extra": 1}, "extra = 1"),
    ("power_law", {"mode": "bernoulli", "scale": -0.5}, "scale = -0.5"),
    ("power_law", {"reach": 0}, "reach = 0"),
    ("power_law", {"window": -1}, "window = -1"),
    ("christoffel", {"m": 9, "k": 8}, "m = 9 .* 1 to k = 8"),
    ("christoffel", {"m": 0, "k": 8}, "m = 0"),
    ("christoffel", {"k": 0}, "k = 0"),
    ("christoffel", {"sides": "slopes"}, "sides = 'slopes'"),
    ("christoffel", {"sides": "both"}, "unknown sides 'both'"),
    ("sparse_fixed", {"block": 4, "summary": 5}, "summary = 5"),
    ("sparse_fixed", {"block": 0}, "block = 0"),
    ("sparse_strided", {"stride": 0}, "stride = 0"),
    ("sparse_strided", {"arrange": "head"}, "unknown arrange 'head'; did you mean 'heads'"),
    ("log_sparse", {"restart": 0}, "restart = 0"),
    ("longformer", {"dilation": 0}, "dilation = 0"),
    ("longformer", {"growth": -1}, "growth = -1"),
    ("bigbird", {"random": -1}, "random = -1"),
    ("longnet", {"factor": 1}, "factor = 1"),
    ("longnet", {"branches": 0}, "branches = 0"),
    ("longnet", {"segment": 0}, "segment = 0"),
    ("dilate_former", {"dilations": ()}, r"dilations = \(\)"),
    ("dilate_former", {"dilations": (0,)}, r"dilations = \(0,\)"),
    ("power_attention", {"block": 0}, "block = 0"),
    ("fibottention", {"nearest": 0}, "nearest = 0"),
    ("mswa", {"window": -1}, "window = -1"),
    ("streaming_sinks", {"sinks": -1}, "sinks = -1"),
    ("adaptive_span", {"ramp": 0}, "ramp = 0"),
]


@pytest.mark.parametrize("name, parameters, message", WRONG)
def test_when_a_value_is_invalid_then_the_error_names_it(name, parameters, message):
    with pytest.raises(SuiteError, match=message):
        build(name, **parameters)


widths = st.integers(0, 12)
lengths = st.integers(1, 70)


@few
@given(st.sampled_from(["fibonacci", "pow2", "matched_pow2"]), st.sampled_from([1, 5, 7, 8, 9]), widths,
       st.integers(1, 11), st.sampled_from(["fixed", "linear", "coprime", "descending", "permuted"]),
       st.none() | st.integers(1, 90), lengths, st.booleans())
def test_when_a_scaled_base_is_drawn_at_random_then_form_equals_oracle(
        base, layers, window, rungs, schedule, trained, length, causal):
    pattern = build("scaled_base", base=base, schedule=schedule, layers=layers, window=window, rungs=rungs,
                    trained_length=trained, causal=causal)
    for layer in {0, layers // 2, layers - 1}:
        check(pattern, layer, length)


@few
@given(st.integers(1, 40), st.integers(1, 40), widths, st.booleans(), st.sampled_from([None, "signed", "slopes"]),
       lengths)
@pytest.mark.filterwarnings("ignore:christoffel")
def test_when_a_word_is_drawn_at_random_then_form_equals_oracle(m, k, window, repeat, sides, length):
    sided = {"causal": sides is None, "sides": sides or "signed"}
    check(build("christoffel", m=min(m, k), k=k, window=window, repeat=repeat, **sided), 0, length)


@few
@given(st.floats(-0.9, 3), st.sampled_from(["budget", "draws", "bernoulli"]), st.integers(0, 6), st.integers(0, 20),
       st.none() | st.integers(1, 40), lengths, st.booleans(), st.integers(0, 3))
def test_when_a_power_law_is_drawn_at_random_then_form_equals_oracle(
        sigma, mode, window, more, reach, length, causal, seed):
    amount = {"budget": {"budget": (1 if causal else 2) * window + 1 + more, "extra": 50 * more},
              "draws": {"draws": more}, "bernoulli": {"scale": more / 4}}[mode]
    pattern = build("power_law", sigma=sigma, mode=mode, window=window, reach=reach, causal=causal, seed=seed, **amount)
    check(pattern, 0, length)


small = st.integers(1, 9)
LITERATURE = {
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
    "random_offsets": {"window": widths, "count": widths, "reach": st.none() | st.integers(1, 80)},
    "random_keys": {"budget": st.integers(9, 20), "window": st.integers(0, 4), "extra": st.integers(0, 1023)},
}


@settings(max_examples=12, deadline=None)
@given(st.data(), lengths, st.booleans())
@pytest.mark.parametrize("name", sorted(LITERATURE))
def test_when_a_comparator_is_drawn_at_random_then_form_equals_oracle(name, data, length, causal):
    drawn = {parameter: data.draw(strategy, label=parameter) for parameter, strategy in LITERATURE[name].items()}
    pattern = build(name, layers=4, heads=3, causal=causal, **drawn)
    for layer in (0, 3):
        check(pattern, layer, length)
