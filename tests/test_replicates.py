"""Further seeds: which runs they repeat, and which of them are trained first."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from lib.config import PatternSpec, RunConfig, TrainConfig
from suite.experiments import experiment
from suite.experiments.base import Job
from suite.run.engine import by_need, numbered, with_seeds
from suite.settings import profiles


def run(pattern: str, seed: int) -> RunConfig:
    return RunConfig(PatternSpec.of(pattern), train=TrainConfig(seed=seed))


def test_when_runs_differ_in_their_seed_only_then_they_are_numbered_in_order():
    runs = [run("local", 42), run("dense", 42), run("local", 7), run("local", 42), run("dense", 9), run("local", 8)]
    assert numbered(runs) == [0, 0, 1, 0, 1, 2]
    assert numbered([runs[0], replace(runs[2], train=replace(runs[2].train, steps=999))]) == [0, 0]


def test_when_a_profile_is_cut_to_its_first_seeds_then_its_plan_is_a_part_of_the_whole():
    whole = profiles.load("overnight")
    first = with_seeds(whole, 1)
    for name in ("01_window_sweep", "02_learned_alpha", "09_long_rungs"):     # of 09 the seeds are the defaults
        plans = [{job.run for job in experiment(name).plan(p.parameters(name), p)} for p in (whole, first)]
        assert plans[1] < plans[0] and set(numbered(plans[1])) == {0}
        assert with_seeds(whole, 99).parameters(name) == whole.parameters(name)


def test_when_further_seeds_are_ordered_then_undecided_claims_come_first_and_unclaimed_runs_last():
    configurations = {name: run(name, 42) for name in ("local", "dense", "strided", "bigbird", "longnet")}

    def judged(verdict: str, seeds: int, *runs: str) -> SimpleNamespace:
        return SimpleNamespace(verdict=verdict, seeds=seeds, runs=runs)
    need = by_need([judged("supported", 1, "local", "dense"), judged("undecided", 1, "dense", "gone"),
                    judged("contradicted", 2, "strided"), judged("not tested", 0)], configurations)
    jobs = [Job.of(run(name, 43)) for name in ("bigbird", "strided", "local", "dense", "longnet")]
    ordered = [job.run.pattern.name for job in sorted(jobs, key=need)]
    assert ordered == ["dense", "local", "strided", "bigbird", "longnet"]
