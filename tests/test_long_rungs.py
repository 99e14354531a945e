"""Notebook 9: pairs of runs that differ in nothing but the pattern, and tables of where the numbers are better."""

import numpy as np
import pytest
from made_up_results import one, results
from plans import loaded, planned

from lib.patterns import build
from suite import published
from suite.experiments.long_rungs import recurrence_edges, rungs_within
from suite.study import comparisons
from suite.study.comparisons import LOCAL, beside_local, token_trend
from suite.study.findings import long_rungs as rungs
from suite.study.frames import Study, stack_of

NAME, RAMP = "09_long_rungs", "Fibonacci, linear ramp"
WHOLE = loaded("wide").train.tokens
pytestmark = pytest.mark.filterwarnings("ignore:christoffel")


def series(job) -> str:
    return job.labels.series


def study(gain=lambda job: 0.0, profile="wide", **numbers) -> Study:
    """The models of a profile; the ramp's runs have `gain(job)` nats more than the others, and every run some noise."""
    def loss(job, *_):
        chance = np.random.default_rng([job.run.train.seed, job.run.train.tokens]).normal(0, 1e-4)
        return 3 + (gain(job) + chance) * (series(job) == RAMP)
    return results(NAME, loss, profile=profile, unpaired=1e-3, **numbers)


# The plan

def test_when_small_is_planned_then_pairs_differ_in_their_pattern_alone_and_attend_as_many_pairs():
    made, seen = study(), set()
    for model, local in beside_local(made, RAMP):
        T = model.length
        counted = [sum(own.pattern.mask(layer, T).sum() / own.pattern.heads for layer in range(own.pattern.layers))
                   for own in (model, local)]
        assert counted[1] == pytest.approx(counted[0], rel=0.01)
        for job, beside in made.paired(model, local):
            seen.add((T, WHOLE // job.run.train.tokens, job.run.train.seed))
            assert (job.run.model, job.run.train, job.run.data) == (beside.run.model, beside.run.train, beside.run.data)
    assert seen >= {(256, 1, 42), (256, 1, 43), (256, 1, 44), (256, 2, 42), (256, 4, 42), (128, 2, 42), (512, 2, 42)}


def test_when_small_is_planned_then_warm_up_fits_copies_are_as_far_as_asked_and_other_notebooks_share_runs():
    jobs = planned(NAME, "wide")
    parts = [job.run.train for job in jobs if job.labels.share is not None]
    assert parts and all(train.warmup <= train.steps / 2 for train in parts)
    copied = [job for job in jobs if job.run.data.source == "copying"]
    assert copied and all(job.run.train.length - dict(job.run.data.parameters)["string"] == job.labels.distance
                          for job in copied)
    there = {job.run for name in ("01_window_sweep", "08_all_patterns") for job in planned(name, "wide")}
    assert {series(job) for job in jobs if job.run in there} == {"Dense", RAMP, LOCAL, "Power law", "Christoffel word"}
    new = {job.run for job in jobs if job.run not in there and job.run.data.source == "text"}
    assert sum(run.train.tokens for run in new) / WHOLE == pytest.approx(7.5), "whole runs beyond the others"


@pytest.mark.parametrize("length, count, last", [(128, 10, 89), (256, 12, 233), (512, 13, 377), (1024, 15, 987)])
def test_when_a_length_is_given_then_rungs_go_up_to_it(length, count, last):
    assert rungs_within(length) == count
    ramp = next(job for job in planned(NAME, "overnight" if length == 1024 else "wide")
                if series(job) == RAMP and job.run.train.length == length and job.run.data.source == "text")
    planned_rungs = dict(ramp.run.pattern.parameters).get("rungs", 15)
    distances = build("scaled_base", rungs=planned_rungs, window=0).plan(0, length).distances
    assert len(distances) == count + 1 and distances[-1] == last < length


def test_when_bins_are_made_then_the_first_is_the_windows_reach_and_each_ends_at_twice_the_one_before():
    assert recurrence_edges(12, 256) == (0, 13, 25, 49, 97, 193)
    assert recurrence_edges(300, 256) == (0,)
    local = next(job for job in planned(NAME, "wide") if series(job) == LOCAL)
    edges = dict(next(e for e in local.evaluations if e.name == "recurrence").parameters)["edges"]
    assert edges[1] == max(map(max, stack_of(local.run).widths)) + 1


@pytest.mark.parametrize("profile, names", [("wide", [RAMP]), ("overnight", [RAMP, "Power law", "Christoffel word"])])
def test_when_families_are_swept_then_each_has_all_lengths_and_tokens(profile, names):
    made = study(profile=profile)
    assert rungs.swept(made) == names and rungs.compared(made)[-1] == "Dense"
    for name in names:
        lengths = set(comparisons.at_share(made, name, 0.5))
        assert lengths == {256, *loaded(profile).parameters(NAME).lengths}


def test_when_shares_are_rounded_to_steps_then_the_nearest_runs_are_compared():
    jobs = planned(NAME, seeds=(42,), lengths=(32,), length_fraction=0.07, fractions=(0.5, 1.0), others=(),
                   copy_distances=())
    chosen = comparisons.at_share(Study(jobs, None), RAMP, 0.07)            # of 24 steps 7 tokens in 100 are 1.68 steps
    assert {length: pair[0].run.train.steps for length, pair in chosen.items()} == {32: 2, 64: 2}


# Tables

def shrinking(job) -> float:
    """The ramp's disadvantage falls by 0.01 nats a doubling: at a quarter of the tokens 0.05, at all of them 0.03."""
    return 0.03 - 0.01 * np.log2(job.run.train.tokens / WHOLE)


@pytest.mark.parametrize("gain, sign", [
    (shrinking, "below"), (lambda job: -shrinking(job), "above"), (lambda job: 0.02, "undecided")])
def test_when_the_difference_changes_with_tokens_then_slope_and_extrapolation_say_which_way(gain, sign):
    trend = token_trend(study(gain), RAMP, 256)
    assert trend.slope.sign() == sign and sign in ("undecided", trend.extrapolated(rungs.PAPER_TOKENS).sign())
    table = rungs.extrapolation({RAMP: trend, "too few": None}).iloc[0]
    assert table[["series", "pairs of runs", "doublings seen"]].tolist() == [RAMP, 5, 2]
    assert table["doublings beyond"] == np.log2(rungs.PAPER_TOKENS / WHOLE)
    zero = np.nan if sign == "undecided" else 8 * WHOLE                                 # 0.03 nats at 0.01 a doubling
    assert table["zero at, tokens"] == pytest.approx(zero, rel=0.1, nan_ok=True)
    assert rungs.extrapolation({RAMP: trend}, tokens=WHOLE)["doublings beyond"].iloc[0] == 0
    band = rungs.line(trend)
    assert (band["high"] - band["low"]).iloc[-1] > 3 * (band["high"] - band["low"]).iloc[5]
    assert band.index[-1] == pytest.approx(rungs.PAPER_TOKENS)
    assert rungs.extrapolation({RAMP: None}).empty and rungs.line(None).empty
    gain = published.ramp_gain("tokens")
    assert gain.index.max() == band.index[-1].round() and (gain.iloc[-1] > 0).tolist() == [True] * 4


def test_when_losses_are_logged_on_the_way_then_their_difference_is_by_tokens_and_seed():
    made = study(lambda job: 0.1 * (job.run.train.seed == 43))
    pair = comparisons.whole(beside_local(made, RAMP, 256))[0]
    table, train = rungs.logged(made, pair), pair[0].run.train
    assert table.columns.tolist() == ["seed 42", "seed 43", "seed 44"]
    assert table.index.tolist() == [int(step * train.tokens / train.steps) for step in (10, 20)]
    assert table.to_numpy() == pytest.approx(np.array([[0, 0.1, 0]] * 2), abs=1e-3)


def test_when_far_evidence_pays_then_the_bins_beyond_the_window_are_lower_and_marks_say_how_far_it_reaches():
    made = study(at=lambda job: lambda bin_: {0: 0.03, 4: -0.05}.get(bin_, 0.0) * (series(job) == RAMP))
    for kind in ("recurrence", "copy"):
        table = rungs.by_evidence(made, RAMP, 256, kind)
        assert table.index.tolist() == ["0-12", "13-24", "25-48", "49-96", "97-192", "193-255", "first time"]
        assert table["share"].sum() == pytest.approx(1) and table["seeds"].min() == 3
        assert table["estimate"].round(2).tolist() == [0.03, 0, 0, 0, -0.05, 0, 0]
    marks, local = rungs.reach_marks(made, RAMP, 256), made.partner(made.model(RAMP), LOCAL)
    through = sum(max(widths) for widths in local.pattern.widths)            # 94 of the bin 49 to 96: before its end
    assert marks["one window"] == 0.5 and 49 <= through <= 96
    assert marks["the stack"] == pytest.approx(2.5 + (through + 1 - 49) / 48)


def test_when_the_answer_is_made_then_each_axis_names_where_the_ramp_is_better_and_where_worse():
    made = study(lambda job: 0.05, code=one(RAMP, -0.1, 0.0),
                 at=lambda job: lambda bin_: (0.1 * (bin_ == 1) - 0.05) * (series(job) == RAMP),
                 right=lambda job: 0.9 if series(job) == RAMP and job.labels.distance == 48 else 0.0)
    domains = rungs.by_domain(made, [RAMP, "Dense"], 256)
    assert domains["group"].tolist() == ["docs", "docs", "code", "code"]
    assert domains.loc[RAMP, "seeds"].tolist() == [3, 3] and domains.loc["Dense", "seeds"].tolist() == [1, 1]
    table = rungs.answer(made, RAMP, 0.5, 256)
    assert table["comparisons"].to_dict() == {"training tokens": 3, "training length": 3, "text": 2,
                                              "distance to the evidence": 7, "planted copies": 3}
    assert table.loc["text"].tolist() == [2, "code", "docs"]
    assert table.loc["distance to the evidence"].tolist() == [7, "nowhere", "13-24"]
    assert table.loc["planted copies"].tolist() == [3, "48", "nowhere"]
    tables = rungs.copies(made)
    assert list(tables) == ["Dense", LOCAL, RAMP, "Power law"] and (tables[LOCAL]["high"] < 0.1).all()
    assert tables[RAMP]["estimate"].to_dict() == pytest.approx({24: 0.0, 48: 0.9, 96: 0.0})
    assert rungs.copies(Study(planned(NAME, copy_distances=()), None)) == {}
    assert list(rungs.stacks(made, 256)) == [LOCAL, RAMP, "Christoffel word"]   # others' distances differ by query
