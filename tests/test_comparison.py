"""`make compare`: rivals at equal pairs, and the best of each family as the result tables have it."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from lib import paths
from lib.config import PatternSpec, RunConfig
from lib.patterns import build
from suite.experiments.base import Job
from suite.run import compare as comparison
from suite.settings.profiles import load


@pytest.fixture
def small():
    return load("small")


class Recorded:
    """A database that knows the configuration of some runs."""

    def __init__(self, runs: dict[str, RunConfig]) -> None:
        self.runs = runs

    def facts(self, run: str):
        return {"config": json.dumps(self.runs[run].to_dict())} if run in self.runs else None


def candidate(profile, **own):
    return build("scaled_base", layers=profile.model.layers, heads=profile.model.heads, window=6, rungs=12, **own)


def test_when_nothing_was_trained_then_every_family_is_represented_at_equal_pairs(small):
    own = candidate(small)
    found, left_out = comparison.rivals(own, small, {})
    pairs = own.pairs(256)
    assert left_out == []
    assert {pattern.name for _, pattern in found} == {"dense", "local", "random_offsets", "scaled_base", "power_law",
                                                      "christoffel", "power_attention"}
    assert all(abs(pattern.pairs(256) / pairs - 1) <= 0.01 for title, pattern in found if title != "Dense")


def test_when_a_family_cannot_have_the_pairs_then_the_text_says_which(small):
    best = {"literature": ("Dense twice", PatternSpec.of("dense"))}
    found, left_out = comparison.rivals(candidate(small), small, best)
    assert [title for title, _ in found].count("Dense twice") == 0
    assert len(left_out) == 1 and "Dense twice" in left_out[0]


def test_when_tables_have_results_then_the_best_of_the_profiles_own_models_stands_for_its_family(small, outputs):
    runs = {"aa": RunConfig(PatternSpec.of("scaled_base", window=6), small.model, small.train),
            "bb": RunConfig(PatternSpec.of("learned", window=6), small.model, small.train),
            # A wider model: not comparable.
            "cc": RunConfig(PatternSpec.of("scaled_base", window=1), train=small.train)}
    rows = [{"family": "scaled-base", "series": series, "run": run, "measure": "nll", "length": length,
             "train_length": 256, "step": step, "position": None, "variant": variant, "value": value}
            for series, run, length, step, variant, value in
            [("Fixed", "aa", 256, None, None, 3.1), ("Learned", "bb", 256, None, None, 3.0),
             ("Wide", "cc", 256, None, None, 2.0), ("Fixed", "aa", 512, None, None, 1.0),
             ("Fixed", "aa", 256, 100, None, 1.0), ("Fixed", "aa", 256, None, "x", 1.0),
             ("Gone", "dd", 256, None, None, 1.0)]]
    assert comparison.champions(small, Recorded({})) == {}         # there are no tables yet
    paths.results("small").mkdir(parents=True)
    pd.DataFrame(rows).to_csv(paths.results("small") / "01_window_sweep.csv", index=False)
    best = comparison.champions(small, Recorded(runs))
    assert best == {"scaled-base": ("Learned", PatternSpec.of("learned", window=6))}


def test_when_a_parameter_is_given_then_literals_are_read_and_names_kept():
    for text, value in [("8", 8), ("0.5", 0.5), ("coprime", "coprime"), ("(1, 2)", (1, 2)), ("True", True)]:
        assert comparison.value_of(text) == value


def test_when_k_is_chosen_then_it_is_the_largest_prime_that_fits():
    assert list(map(comparison.prime_below, (256, 251, 64, 2))) == [251, 251, 61, 2]


def test_when_patterns_are_compared_then_the_table_is_ranked_and_marks_the_pattern(small):
    run = RunConfig(PatternSpec.of("local", window=3), small.model, small.train)
    losses = iter([2.0, 1.0])

    class Database:
        def metrics(self, job):
            return pd.DataFrame({"measure": ["nll"], "step": [None], "position": [None], "value": [next(losses)],
                                 "run_tokens_per_s": [1234.5]})
    mine = build("local", layers=2, heads=2, window=3)
    entries = [(mine, Job.of(run, series=name)) for name in ("mine", "other")]
    text = comparison.table(entries, Database(), 256)
    header, first, second = (line.split() for line in text.splitlines())
    assert header[:2] == ["pattern", "perplexity"]
    assert first[:5] == ["1", "other", "2.72", "-63.2", "%"] and second[:4] == ["2", ">", "mine", "7.39"]
    assert second[-2:] == ["1,234", "window=3"]
