"""Notebook 9: pairs of runs that differ in nothing but the pattern, and answers whose direction comes from the numbers."""

from __future__ import annotations


import numpy as np
import pandas as pd
import pytest
from made_up_results import DOMAINS, WINDOWS, MadeUpDatabase
from plans import loaded, planned

from lib.errors import SuiteError
from lib.patterns import build
from suite.experiments import experiment
from suite.experiments.long_rungs import recurrence_edges, rungs_within
from suite.settings import profiles
from suite.settings.parameters import parameters_of
from suite.study.findings import long_rungs as found
from suite.study.findings import recurrence
from suite.study.stats import Interval
from suite.study.trend import fit

NAME, RAMP = "09_long_rungs", "Fibonacci, linear ramp"
pytestmark = pytest.mark.filterwarnings("ignore:christoffel")


def series(job) -> str:
    return job.labels.series


class Results(MadeUpDatabase):
    """Beside losses: recurrence sums of ten tokens a window and bin, and copies that are right with a chosen share.

    gain(job) -> nats by which a model's loss differs; at(job, bin) the same in a bin of recurrence distance.
    """

    def __init__(self, gain=lambda job: 0.0, at=lambda job, bin_: 0.0, right=lambda job: 0.5, noise=0.002):
        super().__init__(lambda job, length, variant: 3.0 + gain(job))
        self.at, self.right, self.noise_of_runs = at, right, noise

    def windows(self, job, length, variant, domain):
        rng = np.random.default_rng([job.run.train.seed, job.run.train.tokens, DOMAINS.index(domain), series(job) == RAMP])
        found = super().windows(job, job.run.train.length, variant, domain)
        return found + rng.normal(0, self.noise_of_runs, len(found))

    def array(self, job, evaluation, name):
        if evaluation.name == "recurrence":
            bins = len(dict(evaluation.parameters)["edges"]) + 1
            if "_count" in name:
                return np.full((WINDOWS, bins), 10)
            rng = np.random.default_rng([WINDOWS, DOMAINS.index(name.partition(".")[2])])
            own = np.random.default_rng([job.run.train.seed, series(job) == RAMP])
            noise = rng.normal(0, 1, (WINDOWS, bins)) + own.normal(0, self.noise_of_runs, (WINDOWS, bins))
            return 10 * np.array([3 + self.at(job, bin_) for bin_ in range(bins)]) + noise
        if evaluation.name == "task":
            right = round(200 * self.right(job))
            return np.full(200, 32) if name.startswith("count") else 32 * (np.arange(200) < right)
        return super().array(job, evaluation, name)


# The plan

def test_when_small_is_planned_then_pairs_differ_in_their_pattern_alone_and_attend_as_many_pairs():
    pairs = found.pairs(planned(NAME, "small"), RAMP)
    seen = {(own.run.train.length, own.run.train.tokens, own.run.train.seed) for own, _ in pairs}
    whole = profiles.load("small").train.tokens
    assert {(256, whole, seed) for seed in (42, 43, 44)} <= seen
    assert {(256, whole // 2, 42), (256, whole // 4, 42), (128, whole // 2, 42), (512, whole // 2, 42)} <= seen
    for own, local in pairs:
        assert (own.run.model, own.run.train, own.run.data) == (local.run.model, local.run.train, local.run.data)
        T = own.run.train.length
        counted = [sum(stack.mask(layer, T).sum() / stack.heads for layer in range(stack.layers))
                   for stack in map(found.stack_of, (own.run, local.run))]
        assert counted[1] == pytest.approx(counted[0], rel=0.01)


def test_when_a_share_of_the_tokens_is_trained_then_it_has_a_whole_schedule_and_less_warm_up_than_steps():
    parts = [job.run.train for job in planned(NAME, "small") if job.labels.share is not None]
    assert parts and all(train.warmup <= train.steps / 2 for train in parts)
    with pytest.raises(SuiteError, match="fractions"):
        experiment(NAME).plan(parameters_of(NAME)(profile="smoke", window=4, fractions=(0.5,)), profiles.load("smoke"))
    with pytest.raises(SuiteError, match="fractions"):
        experiment(NAME).plan(parameters_of(NAME)(profile="smoke", window=4, fractions=(1.0, 2.0)), profiles.load("smoke"))


def test_when_other_notebooks_have_a_run_then_it_is_the_same():
    there = {job.run for name in ("01_window_sweep", "08_all_patterns")
             for job in planned(name, "small")}
    own = [job for job in planned(NAME, "small") if job.run in there]
    assert {series(job) for job in own} == {"Dense", RAMP, found.LOCAL, "Power law", "Christoffel word"}
    new = {job.run for job in planned(NAME, "small") if job.run not in there and job.run.data.source == "text"}
    assert sum(run.train.tokens for run in new) / loaded("small").train.tokens == pytest.approx(7.5), "units beyond the others"


@pytest.mark.parametrize("length, rungs, last", [(128, 10, 89), (256, 12, 233), (512, 13, 377), (1024, 15, 987)])
def test_when_a_length_is_given_then_rungs_go_up_to_it(length, rungs, last):
    assert rungs_within(length) == rungs
    ramp = next(job for job in planned(NAME, "overnight" if length == 1024 else "small")
                if series(job) == RAMP and job.run.train.length == length and job.run.data.source == "text")
    planned_rungs = dict(ramp.run.pattern.parameters).get("rungs", 15)
    distances = build("scaled_base", rungs=planned_rungs, window=0).plan(0, length).distances
    assert len(distances) == rungs + 1 and distances[-1] == last < length


def test_when_bins_are_made_then_the_first_is_the_windows_reach_and_each_ends_at_twice_the_one_before():
    assert recurrence_edges(12, 256) == (0, 13, 25, 49, 97, 193)
    assert recurrence_edges(300, 256) == (0,)
    local = next(job for job in planned(NAME, "small") if series(job) == found.LOCAL)
    edges = dict(next(e for e in local.evaluations if e.name == "recurrence").parameters)["edges"]
    assert edges[1] == max(map(max, found.stack_of(local.run).widths)) + 1


def test_when_copies_are_planned_then_the_answer_stands_at_the_asked_distance_and_masks_have_equal_pairs():
    for job in planned(NAME, "small"):
        if job.run.data.source == "copying":
            string = dict(job.run.data.parameters)["string"]
            assert job.run.train.length - string == job.labels.distance
            if job.labels.equal_pairs is not None:
                stack, T = found.stack_of(job.run), job.run.train.length
                pairs = sum(stack.mask(layer, T).sum() / stack.heads for layer in range(stack.layers))
                assert pairs == pytest.approx(job.labels.equal_pairs, rel=0.01)


# Coverage

def test_when_windows_are_stacked_then_they_reach_layers_times_the_window():
    local, ramp = build("local", layers=3, window=4), build("scaled_base", layers=3, schedule="linear", window=2, rungs=9)
    table = found.coverage({"local": local, "ramp": ramp}, 64)
    assert table["local"].tolist() == [1 / 64, 5 / 64, 9 / 64, 13 / 64]
    assert table["ramp"].tolist() == [len(reached) / 64 for reached in found.summed(ramp, 64)]
    said = found.say_coverage(table, 64)
    assert "local 20% after all layers" in said


# Sentences

def shrinking(job) -> float:
    """The ramp's disadvantage falls by 0.01 nats a doubling: at a quarter of the tokens 0.05, at all of them 0.03."""
    share = job.run.train.tokens / profiles.load("small").train.tokens
    return (0.03 - 0.01 * np.log2(share)) * (series(job) == RAMP)


@pytest.mark.parametrize("gain, way, word", [
    (shrinking, "moves in favour of the rungs: -0.0", "would be better"),
    (lambda job: -shrinking(job), "moves in favour of the local window: 0.0", "the local window would still be better"),
    (lambda job: 0.02 * (series(job) == RAMP), "shows no trend", "no crossing can be named")])
def test_when_the_difference_changes_with_tokens_then_the_sentences_say_which_way(gain, way, word):
    database = Results(gain, noise=0.001)
    points, amounts = found.points(planned(NAME, "small"), database, RAMP, 256), found.by_tokens(planned(NAME, "small"), database, RAMP, 256)
    trend = fit(points.table["tokens"], points.table["estimate"], points.windows)
    assert len(points.table) == 5 and [own.seeds for own in amounts.values()] == [1, 1, 3]
    assert way in found.say_tokens(amounts, RAMP, trend)
    said = found.say_extrapolation(trend, points, RAMP)
    assert word in said and "425,984,000" in said and "This is no verdict" in said
    line = found.line(trend, points)
    assert (line["high"] - line["low"]).iloc[-1] > 3 * (line["high"] - line["low"]).iloc[5]


def test_when_the_line_crosses_beyond_the_data_then_the_sentence_says_where():
    database = Results(shrinking, noise=1e-4)
    points = found.points(planned(NAME, "small"), database, RAMP, 256)
    trend = fit(points.table["tokens"], points.table["estimate"], points.windows)
    longest = profiles.load("small").train.tokens
    assert trend.crossing() == pytest.approx(8 * longest, rel=0.05)         # 0.03 nats at 0.01 a doubling: three doublings
    assert f"crosses zero at {found.short(trend.crossing())} tokens" in found.say_extrapolation(trend, points, RAMP)
    assert "inside what was trained" in found.say_extrapolation(trend, points, RAMP, tokens=longest)
    assert found.say_extrapolation(None, points, RAMP).startswith("No line") and found.line(None, points).empty


def test_when_losses_are_logged_on_the_way_then_their_difference_is_by_tokens_and_seed():
    rows = []
    for step in (50, 100):
        for name, seed, value in ((RAMP, 1, 3.2 - step / 1000), (found.LOCAL, 1, 3.0), (RAMP, 2, 3.1), (found.LOCAL, 2, 3.0)):
            rows += [{"series": name, "seed": seed, "measure": "nll", "split": split, "step": step, "train_tokens": 4000,
                      "train_length": 16, "value": value + (split == "b")} for split in "ab"]
    rows.append({**rows[0], "train_tokens": 1000, "value": 9.0})
    table = found.logged(pd.DataFrame(rows), RAMP)
    assert table.index.tolist() == [2000, 4000] and table.columns.tolist() == ["seed 1", "seed 2"]
    assert table.to_numpy() == pytest.approx(np.array([[0.15, 0.1], [0.1, 0.1]]))


@pytest.mark.parametrize("sign, words", [(-1, "helps the rungs"), (1, "helps the local window"), (0, "does not measurably")])
def test_when_longer_context_changes_the_difference_then_the_sentence_says_for_whom(sign, words):
    database = Results(lambda job: sign * 0.0001 * job.run.train.length * (series(job) == RAMP))
    lengths = found.by_length(planned(NAME, "small"), database, RAMP, 0.5)
    assert list(lengths) == [128, 256, 512] and words in found.say_lengths(lengths, RAMP)


def test_when_shares_are_rounded_to_steps_then_the_nearest_runs_are_compared():
    smoke = loaded("smoke")                        # 24 steps: an eighth is 3, and 7 tokens in 100 are 1.68 steps
    jobs = experiment(NAME).plan(parameters_of(NAME)(profile="smoke", window=4, seeds=(42,), lengths=(32,), length_fraction=0.07,
                                            fractions=(0.5, 1.0), others=(), copy_distances=()), smoke)
    chosen = found.at_share(jobs, RAMP, 0.07)
    assert {length: own[0][0].run.train.steps for length, own in chosen.items()} == {32: 2, 64: 2}


def test_when_one_domain_differs_then_it_alone_is_named():
    class OnCode(Results):
        def windows(self, job, length, variant, domain):
            return super().windows(job, length, variant, domain) - 0.1 * (domain == "code") * (series(job) == "Power law")
    table = found.by_domain(planned(NAME, "small"), OnCode(), [RAMP, "Power law"], 256)
    said = found.say_domains(table)
    assert "lower loss than the local window: Power law on code (-0.1" in said and "higher loss: none" in said
    assert table["group"].tolist() == ["docs", "docs", "code", "code"]
    assert table.loc[RAMP, "seeds"].tolist() == [3, 3] and table.loc["Power law", "seeds"].tolist() == [1, 1]


def test_when_seeds_are_few_then_the_sentence_says_whose_intervals_are_narrower_for_it():
    said = found.say_seeds({"A": 3, "B": 1})
    assert "over seeds and windows: A (3);" in said and "say nothing of other seeds: B." in said
    assert "alone" not in found.say_seeds({"A": 3}) and "over seeds" not in found.say_seeds({"B": 2})


@pytest.mark.parametrize("kind", ["recurrence", "copy"])
def test_when_far_evidence_pays_then_the_bins_beyond_the_window_are_named(kind):
    database = Results(at=lambda job, bin_: (0.03 if bin_ == 0 else -0.05 if bin_ == 4 else 0.0) * (series(job) == RAMP))
    table = recurrence.by_recurrence(planned(NAME, "small"), database, RAMP, 256, kind)
    assert table.index.tolist() == ["0-12", "13-24", "25-48", "49-96", "97-192", "193-255", "first time"]
    assert table["share"].sum() == pytest.approx(1) and table["seeds"].min() == 3
    assert table["estimate"].round(2).tolist() == [0.03, 0, 0, 0, -0.05, 0, 0]
    said = recurrence.say_recurrence(table, RAMP, kind)
    assert "lower loss at distances 97-192 (-0.050)" in said and "higher loss at distances 0-12 (+0.030)" in said
    same = recurrence.by_recurrence(planned(NAME, "small"), Results(), RAMP, 256)
    assert "no measurable difference" in recurrence.say_recurrence(same, RAMP, kind)


def test_when_reach_is_marked_then_it_stands_between_the_bins_it_divides():
    marks = recurrence.reach_marks(planned(NAME, "small"), 256)
    local = found.stack_of(next(job for job in planned(NAME, "small") if series(job) == found.LOCAL).run)
    through = sum(max(widths) for widths in local.widths)                    # 94 of the bin 49 to 96: just before its end
    assert marks["one window"] == 0.5 and 49 <= through <= 96
    assert marks["the stack"] == pytest.approx(2.5 + (through + 1 - 49) / 48)


def test_when_only_dense_copies_then_the_sentence_names_it_and_the_differences_have_the_sign_of_losses():
    database = Results(right=lambda job: 0.95 if series(job) == "Dense" else 0.6 if series(job) == RAMP else 0.03)
    copies = found.copies(planned(NAME, "small"), database)
    assert copies["Dense"].index.tolist() == [24, 48, 96]
    assert "96: Dense and Fibonacci, linear ramp" in found.say_copies(copies)
    assert all(own.sign() == "below" for own in found.copy_differences(planned(NAME, "small"), database, RAMP).values())
    assert "96: Dense." in found.say_copies({**copies, RAMP: copies[found.LOCAL]})
    assert "No planted copy" in found.say_copies({})


def test_when_the_answer_is_drawn_then_it_names_where_rungs_pay_and_else_says_nowhere():
    low, none, high = Interval(-0.1, -0.12, -0.08, 9, 1), Interval(0.0, -0.1, 0.1, 9, 1), Interval(0.1, 0.08, 0.12, 9, 1)
    said = found.say_answer({"text": {"docs": none, "stories": low}, "training tokens": {"1M": high}}, RAMP)
    assert "text: at stories (of 2 tried; worse at 0)" in said and "training tokens: nowhere (of 1 tried; worse at 1)" in said
    assert "one seed" in said and "all 3 comparisons" in said
    assert "copies" not in found.say_answer({"text": {"docs": low}, "planted copies": {}}, RAMP), "it was not tried"
    assert "at " not in found.say_answer({"text": {"docs": high}}, RAMP).partition("text: ")[2].partition("(")[0]


@pytest.mark.parametrize("profile, names", [("small", [RAMP]), ("overnight", [RAMP, "Power law", "Christoffel word"])])
def test_when_families_are_swept_then_each_has_all_lengths_and_tokens(profile, names):
    jobs = planned(NAME, profile)
    assert found.swept(jobs, 256) == names and found.compared(jobs, 256)[-1] == "Dense"
    for name in names:
        assert set(found.at_share(jobs, name, 0.5)) == {256, *profiles.load(profile).parameters(NAME).lengths}


def test_when_the_published_gain_is_read_then_it_is_that_of_the_published_curves():
    gain = found.published_gain()
    assert gain.index.max() == found.PAPER_TOKENS and gain.shape[1] == 4 and (gain.iloc[-1] > 0).all()
    assert "no longer grows" in found.say_published(gain)
    growing = gain.mul(gain.index / found.PAPER_TOKENS, axis=0)
    assert "still grows" in found.say_published(growing)
