"""Notebook 8: every pattern at the ramp's pairs, runs shared with the window sweep, sentences by the numbers."""

import numpy as np
import pandas as pd
import pytest
from made_up_results import DOMAINS, one, results
from plans import loaded, planned

from lib import patterns
from lib.patterns import build
from suite.experiments.all_patterns import LITERATURE, at_equal_edges, left_out
from suite.experiments.common import Recipe
from suite.settings import profiles
from suite.settings.parameters import parameters_of
from suite.study.findings import all_patterns as field
from suite.study.frames import stack_of

NAME = "08_all_patterns"
pytestmark = pytest.mark.filterwarnings("ignore:christoffel")


# The plan

def test_when_all_are_planned_then_every_sparse_pattern_has_the_ramps_pairs_by_its_mask_and_one_name():
    literature = {name for name in patterns.names() if patterns.pattern_class(name).family == "literature"}
    listed, *others = (loaded(profile).parameters(NAME).patterns for profile in ("wide", "overnight", "paper"))
    assert literature == set(LITERATURE) <= set(listed), "none of the literature is forgotten"
    assert others == [listed, listed]
    assert {"local", "strided", "random_offsets", "random_keys", "power_law", "christoffel"} <= set(listed)
    jobs, sweep = planned(NAME, "wide"), {job.run for job in planned("01_window_sweep", "wide")}
    by_series, pairs = {job.labels.series: job for job in jobs}, {}
    assert len(by_series) == len(jobs) == len(listed) + 1
    for series, job in by_series.items():
        pattern = stack_of(job.run)
        pairs[series] = sum(pattern.mask(layer, 256).sum() / pattern.heads for layer in range(pattern.layers))
    assert pairs.pop("Dense") == 8 * 256 * 257 / 2
    assert pairs == pytest.approx(dict.fromkeys(pairs, pairs["Fibonacci, linear ramp"]), rel=0.01)
    assert {series for series, job in by_series.items() if job.run in sweep} >= {
        "Dense", "Local window, equal edges", "Random offsets, equal edges", "Fibonacci, linear ramp",
        "Fibonacci, coprime ramp"}, "the window sweep has the same runs"
    roles = {"BigBird, equal edges": "neighbour", "Christoffel word": "model", "Power law": "model",
             "Random keys, equal edges": "control", "Dense": "baseline"}
    assert {series: by_series[series].labels.role for series in roles} == roles
    bigbird = dict(by_series["BigBird, equal edges"].run.pattern.parameters)
    assert (bigbird["window"] + 1) / bigbird["global_tokens"] == pytest.approx(3 / 2, abs=0.4)


def test_when_a_pattern_is_planned_at_equal_pairs_then_it_stays_if_it_has_them_else_it_moves_or_is_left_out():
    paper, small = profiles.load("paper"), profiles.load("small")
    missing = left_out(paper.parameters(NAME), paper)
    assert list(missing) == ["sparse_strided"] and "the nearest is" in missing["sparse_strided"]
    assert not left_out(small.parameters(NAME), small)
    (coprime, stays), (fixed, moves) = (at_equal_edges(f"fibonacci/{schedule}", Recipe(parameters_of(NAME)(), small))
                                        for schedule in ("coprime", "fixed"))
    assert dict(coprime.parameters)["window"] == 6 and stays["series"] == "Fibonacci, coprime ramp"
    assert set(dict(fixed.parameters)["window"]) == {5, 6} and moves["series"] == "Fibonacci, fixed, equal edges"


# Properties

def test_when_a_window_is_measured_then_its_properties_are_those_by_hand_and_the_narrowest_head_is_told():
    table = field.properties({"a": build("local", layers=3, heads=2, window=4)}, 33, 2)
    row = table.iloc[0]
    counts = np.array([33 - d for d in range(5)])
    assert row["mean distance, tokens"] == pytest.approx((counts * np.arange(5)).sum() / counts.sum())
    assert row["share of keys at distances up to 2"] == pytest.approx(counts[:3].sum() / counts.sum())
    assert row["keys a query of the narrowest head"] == pytest.approx(counts.sum() / 33)
    assert row["distinct distances of the stack"] == 5 and row["diameter of a layer, mean"] == 8
    connected = sum(33 - d for d in range(13)) / (33 * 34 / 2)
    assert row["share of pairs that the stack connects"] == pytest.approx(connected)
    by_head = build("local", layers=2, heads=2, window=((4, 3), (1, 8)))
    assert field.properties({"a": by_head}, 40, 2)["keys a query of the narrowest head"].iloc[0] == (40 + 39) / 40
    assert field.head_counts(by_head, 40)[0, 1].tolist() == [40, 39, 38, 37] + 36 * [0]


@pytest.mark.parametrize("sign", [1, -1])
def test_when_a_property_orders_the_losses_then_its_correlation_says_which_way(sign):
    rng = np.random.default_rng(0)
    index = [f"m{n}" for n in range(20)]
    table = pd.DataFrame({"distance": np.arange(20.0), "noise": rng.random(20), "same": 1.0}, index=index)
    loss = pd.Series(3 + sign * 0.01 * np.arange(20.0), index=index)
    ordered = field.predictors(table, loss.sample(frac=1, random_state=0))
    assert ordered.loc["distance", "Spearman"] == pytest.approx(sign) and list(ordered.index) == ["distance", "noise"]
    assert ordered.loc["distance", "p, Holm"] < 1e-6 and ordered.loc["noise", "p, Holm"] > 0.05
    shuffled = pd.Series(rng.permutation(loss.to_numpy()), index=index)
    assert (field.predictors(table, shuffled)["p, Holm"] > 0.05).all()


# Tables

def test_when_one_pattern_is_better_or_worse_than_the_window_then_the_table_counts_and_names_it():
    losses = {"BigBird, equal edges": 2.9, "Longformer, equal edges": 3.1}
    made = results(NAME, lambda job, *_: losses.get(job.labels.series, 3.0), profile="wide")
    table = field.standing(made, {length: made.against(made.reference(6), length=length) for length in (256, 1024)})
    assert table["whose is lower"].tolist() == ["BigBird", "BigBird"]
    assert table.drop(columns="whose is lower").to_numpy().tolist() == [[21, 1, 1, 19]] * 2


def test_when_only_code_gains_then_only_code_is_marked():
    made = results(NAME, profile="wide", code=one("Power law", -0.2, 0.0))
    cells, name = field.by_domain(made, made.reference(6)), "Power law, sigma=0.85"
    assert cells.columns.tolist() == list(DOMAINS) and cells.index[0] == name
    assert cells.loc[name, "code"] == (pytest.approx(-0.2), True)
    assert not cells.loc[name, "docs"][1] and not cells.loc["Dense", "code"][1]


def test_when_cost_is_counted_then_equal_pairs_are_equal_operations_and_dense_has_its_own():
    def loss(job, length, variant):
        return np.log(20.0 + (length > 256) * 10 - (job.labels.series == "Dense"))
    table = field.overview(results(NAME, loss, profile="wide"), (256, 1024))
    assert table.index[0] == "Dense", "the best first"
    column = table["attention, Mflop a token"]
    sparse = column[table["role"] != "baseline"]
    assert sparse.max() / sparse.min() < 1.02
    model = profiles.load("small").model
    assert column["Dense"] == pytest.approx(3 * 4 * model.heads * model.head_dim * model.layers * 257 / 2 / 1e6)
    assert table["keys a query"]["Dense"] == 257 / 2
    rises = table["perplexity at 1024"] / table["perplexity at 256"]
    assert rises.drop("Dense").to_numpy() == pytest.approx(1.5, rel=0.01)
