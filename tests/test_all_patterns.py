"""Notebook 8: every pattern at the ramp's pairs, runs shared with the window sweep, sentences by the numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from made_up_results import DOMAINS, MadeUpDatabase
from plans import planned

from lib import patterns
from lib.patterns import build
from suite.experiments.all_patterns import LITERATURE, at_equal_edges, left_out
from suite.experiments.common import Recipe
from suite.settings import profiles
from suite.settings.parameters import parameters_of
from suite.study.findings import all_patterns as field
from suite.study.frames import Study, stack_of

NAME = "08_all_patterns"
pytestmark = pytest.mark.filterwarnings("ignore:christoffel")


class MadeUp(MadeUpDatabase):
    """`loss(series, length)` for every model, and what it gains on a domain."""

    def __init__(self, loss=lambda series, length: 3.0, gain=lambda series, domain: 0.0):
        super().__init__(lambda job, length, variant: loss(job.labels.series, length))
        self.gain = gain

    def windows(self, job, length, variant, domain):
        return super().windows(job, length, variant, domain) - self.gain(job.labels.series, domain)


def study(*args, **kwargs) -> Study:
    """The models of `small` with losses that `MadeUp` makes."""
    return Study(planned(NAME, "small"), MadeUp(*args, **kwargs), NAME)


# The plan

def test_when_patterns_are_listed_then_none_of_the_literature_is_forgotten():
    literature = {name for name in patterns.names() if patterns.pattern_class(name).family == "literature"}
    listed = set(parameters_of(NAME)().patterns)
    assert literature == set(LITERATURE) <= listed
    assert {"local", "strided", "random_offsets", "random_keys", "power_law", "christoffel"} <= listed


def test_when_small_is_planned_then_every_sparse_pattern_has_the_ramps_pairs_by_its_mask_and_one_name():
    jobs, sweep = planned(NAME, "small"), {job.run for job in planned("01_window_sweep", "small")}
    by_series = {job.labels.series: job for job in jobs}
    ramp = by_series["Fibonacci, linear ramp"]
    T, goal = ramp.run.train.length, sum(stack_of(ramp.run).mask(layer, 256).sum() / 4 for layer in range(8))
    assert T == 256 and len(by_series) == len(jobs) == len(parameters_of(NAME)().patterns) + 1
    for job in jobs:
        pattern = stack_of(job.run)
        pairs = sum(pattern.mask(layer, T).sum() / pattern.heads for layer in range(pattern.layers))
        if job.labels.role == "baseline":
            assert pairs == 8 * T * (T + 1) / 2
        else:
            assert pairs == pytest.approx(goal, rel=0.01), job.labels
    assert {series for series, job in by_series.items() if job.run in sweep} >= {
        "Dense", "Local window, equal edges", "Random offsets, equal edges", "Fibonacci, linear ramp",
        "Fibonacci, coprime ramp"}, "the window sweep has the same runs"
    roles = {"BigBird, equal edges": "neighbour", "Christoffel word": "model", "Power law": "model",
             "Random keys, equal edges": "control", "Dense": "baseline"}
    assert {series: by_series[series].labels.role for series in roles} == roles
    bigbird = dict(by_series["BigBird, equal edges"].run.pattern.parameters)
    assert (bigbird["window"] + 1) / bigbird["global_tokens"] == pytest.approx(3 / 2, abs=0.4)


def test_when_a_pattern_cannot_attend_so_few_pairs_then_it_is_left_out_with_the_reason():
    paper = profiles.load("paper")
    missing = left_out(paper.parameters(NAME), paper)
    assert list(missing) == ["sparse_strided"] and "the nearest is" in missing["sparse_strided"]
    assert not left_out(profiles.load("small").parameters(NAME), profiles.load("small"))


def test_when_a_schedule_has_the_ramps_pairs_then_it_stays_as_it_is_and_else_its_windows_move():
    recipe = Recipe(parameters_of(NAME)(), profiles.load("small"))
    coprime, labels = at_equal_edges("fibonacci/coprime", recipe)
    assert dict(coprime.parameters)["window"] == 6 and labels["series"] == "Fibonacci, coprime ramp"
    fixed, labels = at_equal_edges("fibonacci/fixed", recipe)
    assert set(dict(fixed.parameters)["window"]) == {5, 6} and labels["series"] == "Fibonacci, fixed, equal edges"


# Properties

def test_when_a_window_is_measured_then_its_properties_are_those_by_hand():
    table = field.properties({"a": build("local", layers=3, heads=2, window=4)}, 33, 2)
    row = table.iloc[0]
    counts = np.array([33 - d for d in range(5)])
    assert row["mean distance, tokens"] == pytest.approx((counts * np.arange(5)).sum() / counts.sum())
    assert row["share of keys at distances up to 2"] == pytest.approx(counts[:3].sum() / counts.sum())
    assert row["keys a query of the narrowest head"] == pytest.approx(counts.sum() / 33)
    assert row["distinct distances of the stack"] == 5 and row["diameter of a layer, mean"] == 8
    connected = sum(33 - d for d in range(13)) / (33 * 34 / 2)
    assert row["share of pairs that the stack connects"] == pytest.approx(connected)


def test_when_heads_have_windows_of_their_own_then_the_narrowest_is_told():
    pattern = build("local", layers=2, heads=2, window=((4, 3), (1, 8)))
    assert field.properties({"a": pattern}, 40, 2)["keys a query of the narrowest head"].iloc[0] == (40 + 39) / 40
    assert field.head_counts(pattern, 40)[0, 1].tolist() == [40, 39, 38, 37] + 36 * [0]


@pytest.mark.parametrize("sign", [1, -1])
def test_when_a_property_orders_the_losses_then_its_correlation_says_which_way(sign):
    rng = np.random.default_rng(0)
    index = [f"m{n}" for n in range(20)]
    table = pd.DataFrame({"distance": np.arange(20.0), "noise": rng.random(20), "same": 1.0}, index=index)
    loss = pd.Series(3 + sign * 0.01 * np.arange(20.0), index=index)
    ordered = field.predictors(table, loss.sample(frac=1, random_state=0))
    assert ordered.loc["distance", "Spearman"] == pytest.approx(sign)
    assert ordered.index.tolist() == ["distance", "noise"]
    assert ordered.loc["distance", "p, Holm"] < 1e-6 and ordered.loc["noise", "p, Holm"] > 0.05
    shuffled = pd.Series(rng.permutation(loss.to_numpy()), index=index)
    assert (field.predictors(table, shuffled)["p, Holm"] > 0.05).all()


# Tables

def test_when_one_pattern_is_better_or_worse_than_the_window_then_the_table_counts_and_names_it():
    made = study(lambda series, length: {"BigBird, equal edges": 2.9, "Longformer, equal edges": 3.1}.get(series, 3.0))
    table = field.standing(made, {length: made.against(made.reference(6), length=length) for length in (256, 1024)})
    assert table["whose is lower"].tolist() == ["BigBird", "BigBird"]
    assert table.drop(columns="whose is lower").to_numpy().tolist() == [[21, 1, 1, 19]] * 2
    assert field.overview(made, (256, 1024)).index[0] == "BigBird, equal edges"


def test_when_only_code_gains_then_only_code_is_marked():
    made = study(gain=lambda series, domain: 0.2 * (domain == "code" and series == "Power law"))
    cells = field.by_domain(made, made.reference(6))
    assert cells.columns.tolist() == list(DOMAINS) and cells.index[0] == "Power law, sigma=0.85"
    assert cells.loc["Power law, sigma=0.85", "code"] == (pytest.approx(-0.2), True)
    assert not cells.loc["Power law, sigma=0.85", "docs"][1] and not cells.loc["Dense", "code"][1]


def test_when_cost_is_counted_then_equal_pairs_are_equal_operations_and_dense_has_its_own():
    table = field.overview(study(lambda series, length: np.log(20.0 if length == 256 else 30.0)), (256, 1024))
    column = table["attention, Mflop a token"]
    sparse = column[table["role"] != "baseline"]
    assert sparse.max() / sparse.min() < 1.02
    model = profiles.load("small").model
    assert column["Dense"] == pytest.approx(3 * 4 * model.heads * model.head_dim * model.layers * 257 / 2 / 1e6)
    assert table["keys a query"]["Dense"] == 257 / 2
    assert table["perplexity at 1024"].mean() == pytest.approx(1.5 * table["perplexity at 256"].mean(), rel=0.01)
