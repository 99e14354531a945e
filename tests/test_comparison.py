"""`make compare`: rivals at equal pairs, and the best of each family as the result tables have it."""

import json
from types import SimpleNamespace

import pandas as pd
from plans import loaded

from lib import paths
from lib.config import PatternSpec, RunConfig
from lib.patterns import build
from suite.experiments.base import Job
from suite.run import compare as comparison
from suite.run import stamps

small = loaded("small")


def test_when_families_have_no_results_then_proposals_stand_for_them_at_equal_pairs_and_what_cannot_is_named():
    candidate = build("scaled_base", layers=small.model.layers, heads=small.model.heads, window=6, rungs=12)
    found, left_out = comparison.rivals(candidate, small, {})
    assert left_out == [] and [pattern.name for _, pattern in found] == [
        "dense", "local", "random_offsets", "scaled_base", "power_law", "christoffel", "power_attention"]
    pairs = candidate.pairs(256)
    assert all(abs(pattern.pairs(256) / pairs - 1) <= 0.01 for title, pattern in found if title != "Dense")
    found, left_out = comparison.rivals(candidate, small, {"literature": ("Dense twice", PatternSpec.of("dense"))})
    assert "Dense twice" not in dict(found) and len(left_out) == 1 and "Dense twice" in left_out[0]


def test_when_tables_have_results_then_the_best_of_the_profiles_own_models_stands_for_its_family(outputs):
    runs = {"aa": RunConfig(PatternSpec.of("scaled_base", window=6), small.model, small.train),
            "bb": RunConfig(PatternSpec.of("learned", window=6), small.model, small.train),
            # A wider model: not comparable.
            "cc": RunConfig(PatternSpec.of("scaled_base", window=1), train=small.train)}
    stored = {run: {"config": json.dumps(config.to_dict())} for run, config in runs.items()}
    rows = [("Fixed", "aa", 256, None, None, 3.1), ("Learned", "bb", 256, None, None, 3.0),
            ("Wide", "cc", 256, None, None, 2.0), ("Fixed", "aa", 512, None, None, 1.0),
            ("Fixed", "aa", 256, 100, None, 1.0), ("Fixed", "aa", 256, None, "x", 1.0),
            ("Gone", "dd", 256, None, None, 1.0)]
    table = pd.DataFrame(rows, columns=["series", "run", "length", "step", "variant", "value"])
    database = SimpleNamespace(facts=stored.get)
    assert comparison.champions(small, database) == {}             # there are no tables yet
    paths.results("small").mkdir(parents=True)
    table = table.assign(family="scaled-base", measure="nll", train_length=256, position=None)
    table.to_csv(paths.results("small") / "01_window_sweep.csv", index=False)
    assert comparison.champions(small, database) == {}             # it has no stamp: who knows whether it is whole
    stamps.write("small", "01_window_sweep", "")
    assert comparison.champions(small, database) == {"scaled-base": ("Learned", PatternSpec.of("learned", window=6))}


def test_when_parameters_are_read_then_literals_have_their_type_and_k_is_the_largest_prime_that_fits():
    for text, value in [("8", 8), ("0.5", 0.5), ("coprime", "coprime"), ("(1, 2)", (1, 2)), ("True", True)]:
        assert comparison.value_of(text) == value
    assert list(map(comparison.prime_below, (256, 251, 64, 2))) == [251, 251, 61, 2]


def test_when_patterns_are_compared_then_the_table_is_ranked_and_marks_the_pattern():
    losses = iter([2.0, 1.0])
    database = SimpleNamespace(metrics=lambda job: pd.DataFrame(
        {"measure": ["nll", "nll", "accuracy"], "step": [None, 100, None], "position": [None, None, None],
         "value": [next(losses), 9.0, 9.0], "run_tokens_per_s": [1234.5] * 3}))
    mine, run = build("local", layers=2, heads=2, window=3), RunConfig(PatternSpec.of("local", window=3))
    entries = [(mine, Job.of(run, series=name)) for name in ("mine", "other")]
    header, first, second = (line.split() for line in comparison.table(
        comparison.ranked(entries, database, 256), "mine").splitlines())
    assert header[:2] == ["pattern", "perplexity"]
    assert first[:5] == ["1", "other", "2.72", "-63.2", "%"] and second[:4] == ["2", ">", "mine", "7.39"]
    assert second[-2:] == ["1,234", "window=3"]
