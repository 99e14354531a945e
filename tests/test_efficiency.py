"""Notebook 7: its runs are notebook 1's, its sentences turn with the numbers, and it measures when nothing trains."""

from __future__ import annotations

import dataclasses

import pytest
from fake_jobs import events, job
from made_up_results import MadeUpDatabase
from plans import planned

from lib import paths
from suite import published
from suite.bench import cases
from suite.bench import measure as bench
from suite.bench import rows
from suite.bench.rows import Row
from suite.experiments import efficiency, experiment
from suite.run import stamps
from suite.settings import profiles
from suite.settings.machine import machine
from suite.study.findings import efficiency as found

BOTH = "forward+backward"


pytestmark = pytest.mark.usefixtures("outputs")


def row(measure: str, ratio: float, length: int = 1024, backend: str = "cpu", against: str = "dense", pass_: str = BOTH,
        spread: float = 0.1, **more) -> Row:
    values = {"ms": 2.0, "against_ms": 2.0 * ratio, "mib": 8.0, "against_mib": 2.0, "counted": 1e9, "peak": 2e11,
              "keys": 20.0,
              "pattern": "p", "heads": "8, 8", "head_dim": 64, "dtype": "float32", "device": "cpu", "threads": 2,
              "machine": "M", "code": "c"}
    return Row(measure, backend, against, pass_, length, ratio, (ratio * (1 - spread), ratio * (1 + spread)), 9,
               **values | more)


# The experiment

@pytest.mark.parametrize("profile", ["smoke", "small", "overnight"])
def test_when_notebook_7_is_planned_then_it_trains_nothing_that_notebook_1_does_not(profile):
    def runs(name):
        return {job.run for job in planned(name, profile)}
    assert runs("07_efficiency") <= runs("01_window_sweep") and len(runs("07_efficiency")) >= 5


def test_when_runs_were_timed_then_tokens_a_second_are_told_against_dense():
    table = experiment("07_efficiency").table(planned("07_efficiency"),
                                              MadeUpDatabase(lambda job, length, variant: 3.0))
    fast = table["series"] == "Fibonacci, learned"
    table.loc[fast, "run_tokens_per_s"] = 2500.0
    speed = found.throughput(table)
    assert speed.index[0] == "Fibonacci, learned" and speed.loc["Fibonacci, learned", "over dense"] == 2.5
    assert "Fibonacci, learned, at 2.50 times" in found.say_throughput(speed, 64)


def test_when_the_machine_was_benched_with_this_code_then_the_notebook_shows_that_and_else_measures(monkeypatch):
    profile, asked = profiles.load("smoke"), []
    parameters = profile.parameters("07_efficiency")

    def measured(setting, scope, say):
        asked.append(scope)
        return [row("time", 2.0)]
    monkeypatch.setattr(bench, "measure", measured)
    monkeypatch.setattr(bench, "code", lambda: "this code")
    assert efficiency.measured(parameters, profile, print) == [row("time", 2.0)] and len(asked) == 1
    assert asked[0].lengths == parameters.lengths and asked[0].step.train.length == parameters.step_length
    assert rows.read("smoke") == [row("time", 2.0)] and rows.read() == []
    benched = [row("time", 9.0, machine=machine(), code="this code")]
    rows.write(benched)
    assert efficiency.measured(parameters, profile, print) == benched and len(asked) == 1
    assert "make bench" in found.say_source(benched) and "this notebook" in found.say_source([row("time", 2.0)])
    for stale in ({"machine": "another"}, {"code": "older"}):
        rows.write([dataclasses.replace(benched[0], **stale)])
        assert efficiency.measured(parameters, profile, print) == [row("time", 2.0)]
    assert len(asked) == 3


# The suite around it

def test_when_a_notebook_measures_time_then_it_is_executed_after_all_that_trains(house):
    house.notebook("01_measures", job(1))
    house.experiments["01_measures"].alone = True
    house.notebook("02_trains", job(1), job(2), job(3))
    assert house.run() == 0
    assert events()[-1] == "execute 01_measures" and len(events("train")) >= 3
    assert house.pages[-1] == {"01_measures": "done", "02_trains": "done"}


def test_when_only_runs_of_a_notebook_that_measures_fail_then_it_fails_and_the_other_is_done(house):
    house.notebook("01_measures", job(1, behaviour="raise"))
    house.experiments["01_measures"].alone = True
    house.notebook("02_trains", job(2))
    assert house.run() == 1
    assert house.pages[-1] == {"01_measures": "failed", "02_trains": "done"}


def test_when_a_benchmark_is_made_then_notebook_7_alone_is_out_of_date():
    before = {name: stamps.stamp("smoke", name, "text") for name in ("06_capacity_battery", "07_efficiency")}
    rows.write([row("time", 2.0)])
    after = {name: stamps.stamp("smoke", name, "text") for name in before}
    assert [name for name in before if before[name] != after[name]] == ["07_efficiency"]
    rows.write([row("time", 3.0)], "small")
    assert {name: stamps.stamp("smoke", name, "text") for name in before} == after
    assert (paths.NOTEBOOKS / f"{stamps.BENCHED}.ipynb").exists()


# Sentences

def test_when_the_backend_is_faster_or_slower_then_the_sentence_says_by_how_much():
    assert "4 times (3.6 to 4.4) faster" in found.faster(row("time", 4.0))
    assert found.faster(row("time", 0.5)).startswith("2 times (1.82 to 2.22) slower")
    times = [row("time", ratio, length, against=against) for length, ratio in ((256, 0.8), (1024, 3.0), (4096, 9.0))
             for against in ("dense", "gather")]
    said = found.say_times([row("time", 2.0, 4096, backend="torch"), *times])
    assert said.startswith("At T = 4,096, forward and backward, Suite: compiled, CPU takes 2 ms: 9 times")
    assert "faster than Dense SDPA from T = 1,024 on; at T = 256 it is not" in said
    assert "every length measured, from T = 1,024 on" in found.lead([one for one in times if one.length > 256], "cpu")
    assert "three rounds of four" in found.lead([row("time", 1.05, 4096)], "cpu")


def test_when_a_learned_alpha_costs_less_or_more_than_published_then_the_sentence_turns():
    theirs = published.learned_cost()
    for ratio, word in ((0.4 * theirs, "less than"), (2 * theirs, "more than"), (theirs, "no less than")):
        said = found.say_learned([row("time", 2.0), row("learned_over_fixed", ratio, 256),
                                  row("learned_over_fixed", ratio)])
        assert f"{word} the published {theirs:.1f} times" in said and f"takes {ratio:.2f} times" in said


def test_when_the_nearer_bound_changes_then_the_sentence_names_it():
    for flops, traffic, bound in ((3.0, 8.0, "arithmetic"), (8.0, 3.0, "memory traffic")):
        found_rows = [row("time", 2.0), row("flops", flops, against="peak"), row("bytes", traffic, against="peak")]
        said = found.say_distance(found_rows)
        assert f"the nearer bound is {bound}" in said and "200 G operations/s" in said
        assert found.distance(found_rows).loc[1024, f"{BOTH}, arithmetic"] == flops


def test_when_memory_and_growth_are_told_then_the_numbers_are_the_rows():
    memory = [row("time", 2.0), row("flops", 1.0, 4096, against="peak"), row("memory_over_q", 4.7, 4096, against="q"),
              row("memory_over_q", 5.2, 4096, backend="dense", against="q"),
              row("memory_over_q", 60.0, 4096, backend="cpu" + cases.LEARNED, against="q")]
    said = found.say_memory(memory)
    assert "takes 4.7 times the size of q" in said and "Dense SDPA 5.2" in said and "60" not in said
    growth = [row("time", 2.0), row("length_growth", 4.2, 4096, against="T=1024")]
    assert "From T = 1024 to T = 4,096" in found.say_growth(growth) and "grows 4.20 times" in found.say_growth(growth)
    assert "needs a length and a quarter of it" in found.say_growth([row("time", 2.0)])


def test_when_patterns_and_steps_are_told_then_best_and_worst_are_named():
    patterns = [row("pattern", ratio, pattern=name, ms=10 / ratio, keys=keys)
                for name, ratio, keys in (("slow", 0.5, 90.0), ("quick", 9.0, 5.0), ("middle", 3.0, 20.0))]
    said = found.say_patterns(patterns)
    assert "quick is fastest" in said and "slow slowest" in said and "slower than dense: slow" in said
    assert list(found.patterns(patterns).index) == ["quick (5 keys)", "middle (20 keys)", "slow (90 keys)"]
    steps = [row("training_step", ratio, 512, backend=name, against="dense fp32", pass_="step", ms=100 / ratio)
             for name, ratio in (("sparse fp32", 1.5), ("sparse bf16", 4.0))]
    assert "takes 25 ms as `sparse bf16`, 4 times" in found.say_training(steps)
    assert "Suite: compiled, CPU: 0.30 of a call (2 ms)" in found.say_plans([row("plan", 0.3)])


def test_when_something_was_not_measured_then_the_source_says_so():
    lacking = Row("time", "gpu", "dense", "forward", 256, note="not available: a GPU that torch sees")
    large = [Row("time", "masked", "dense", "forward", T, note="left out: one call would need 6.0 GiB")
             for T in (8192, 16384)]
    said = found.say_source([row("time", 2.0), lacking, *large])
    assert "Not measured: gpu: a GPU that torch sees." in said
    assert "Not measured: masked: would need too much memory or time, at T = 8192 (forward), 16384 (forward)." in said


def test_when_other_processes_used_the_machine_then_it_is_said():
    assert "Other processes used 35 % of the cores" in found.say_source([row("time", 2.0, busy=0.35)])
    assert "Other processes" not in found.say_source([row("time", 2.0, busy=0.02)])


def test_when_the_notebook_checks_then_gradients_and_counts_are_compared():
    assert "torch" in found.check_equal(70) and "reference 0.0e+00" in found.check_equal(70)
    assert "as torch counts them" in found.check_counts(16)
