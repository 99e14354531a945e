"""Notebook 7: its runs are notebook 1's, its tables follow the numbers, and it measures when nothing trains."""

import dataclasses

import pytest
import torch
from fake_jobs import events, job
from made_up_results import MadeUpDatabase
from plans import planned

from lib import paths
from suite.bench import cases
from suite.bench import measure as bench
from suite.bench import rows, tables
from suite.bench.rows import Row
from suite.experiments.efficiency import measured as measured_rows
from suite.run import stamps
from suite.settings import profiles
from suite.settings.machine import machine
from suite.study.findings import efficiency
from suite.study.frames import Study

BOTH = bench.BOTH
pytestmark = pytest.mark.usefixtures("outputs")


def row(measure: str, ratio: float, length: int = 1024, backend: str = "cpu", against: str = "dense", **more) -> Row:
    values = {"ms": 2.0, "against_ms": 2.0 * ratio, "mib": 8.0, "against_mib": 2.0, "counted": 1e9, "peak": 2e11,
              "keys": 20.0, "pattern": "p", "heads": "8, 8", "head_dim": 64, "dtype": "float32", "device": "cpu",
              "threads": 2, "machine": "M", "code": "c"}
    return Row(measure, backend, against, BOTH, length, ratio, (ratio * 0.9, ratio * 1.1), 9, **values | more)


# The experiment

def test_when_runs_were_timed_then_tokens_a_second_are_told_against_dense():
    study = Study(planned("07_efficiency"), MadeUpDatabase(), "07_efficiency")
    study.database.metrics = lambda job: MadeUpDatabase.metrics(study.database, job).assign(
        run_tokens_per_s=1000.0 if job.labels.series == "Dense" else 500.0)
    table = efficiency.throughput(study)
    assert set(table.index) == {model.name for model in study.language_models}
    assert set(table.drop("Dense").itertuples(index=False, name=None)) == {(500.0, 2.0)}
    assert table.loc["Dense"].tolist() == [1000.0, 1.0]


def test_when_the_machine_was_benched_with_this_code_then_the_notebook_shows_that_and_else_measures(monkeypatch):
    profile, asked = profiles.load("smoke"), []
    parameters = profile.parameters("07_efficiency")

    def measured(setting, scope, say):
        asked.append(scope)
        return [row("time", 2.0)]
    monkeypatch.setattr(bench, "measure", measured)
    monkeypatch.setattr(bench, "code", lambda: "this code")
    assert measured_rows(parameters, profile, print) == [row("time", 2.0)] and len(asked) == 1
    assert asked[0].lengths == parameters.lengths and asked[0].steps["dense"].train.length == parameters.step_length
    assert rows.read("smoke") == [row("time", 2.0)] and rows.read() == []
    benched = [row("time", 9.0, machine=machine(), code="this code")]
    rows.write(benched)
    assert measured_rows(parameters, profile, print) == benched and len(asked) == 1
    assert "make bench" in efficiency.say_source(benched)
    assert "this notebook" in efficiency.say_source([row("time", 2.0)])
    for stale in ({"machine": "another"}, {"code": "older"}):
        rows.write([dataclasses.replace(benched[0], **stale)])
        assert measured_rows(parameters, profile, print) == [row("time", 2.0)]
    assert len(asked) == 3


# The suite around it

@pytest.mark.parametrize("fails", [False, True])
def test_when_a_notebook_measures_time_then_it_is_executed_after_all_that_trains_and_fails_alone(house, fails):
    house.notebook("01_measures", job(1, **{"behaviour": "raise"} if fails else {}))
    house.experiments["01_measures"].alone = True
    house.notebook("02_trains", *([job(2)] if fails else [job(1), job(2), job(3)]))
    assert house.run() == fails
    assert house.pages[-1] == {"01_measures": "failed" if fails else "done", "02_trains": "done"}
    assert fails or events()[-1] == "execute 01_measures" and len(events("train")) >= 3


def test_when_a_benchmark_is_made_then_notebook_7_alone_is_out_of_date():
    before = {name: stamps.stamp("smoke", name, "text") for name in ("06_capacity_battery", "07_efficiency")}
    rows.write([row("time", 2.0)])
    after = {name: stamps.stamp("smoke", name, "text") for name in before}
    assert [name for name in before if before[name] != after[name]] == ["07_efficiency"]
    rows.write([row("time", 3.0)], "small")
    assert {name: stamps.stamp("smoke", name, "text") for name in before} == after
    assert (paths.NOTEBOOKS / f"{stamps.BENCHED}.ipynb").exists()


# Tables and sentences

def test_when_tables_are_drawn_then_ways_have_names_and_the_reference_and_learned_distances_are_left_out():
    measured = [row("flops", 1.0, against="peak"), *(row("memory_over_q", 4.7, backend=name, against="q")
                                                     for name in ("cpu", "reference", "cpu" + cases.LEARNED))]
    found = efficiency.by_pass(measured, tables.memory)
    assert list(found) == [BOTH] and found[BOTH].to_dict() == {"Suite: compiled, CPU": {1024: 8.0}}
    shares = efficiency.block_shares(cases.Setting(window=127, rungs=1), [128])
    assert shares.loc[128].tolist() == [100.0, 100 * 129 / 256], "dense keys in one block are half of it"


def test_when_a_backend_is_faster_or_slower_or_learns_alpha_then_the_sentence_says_by_how_much():
    assert "4 times (3.6 to 4.4) faster" in efficiency.faster(row("time", 4.0))
    assert efficiency.faster(row("time", 0.5)).startswith("2 times (1.82 to 2.22) slower")
    times = [row("time", ratio, length, against=against) for length, ratio in ((256, 0.8), (1024, 3.0), (4096, 9.0))
             for against in ("dense", "gather")]
    said = efficiency.say_times([row("time", 2.0, 4096, backend="torch"), *times])
    assert said.startswith("At T = 4,096, forward and backward, Suite: compiled, CPU is 9 times (8.1 to 9.9) faster")
    assert "Dense SDPA and" in said and said.endswith("faster than dense in three rounds of four from T = 1,024 on.")
    assert efficiency.say_times([row("time", 1.05, 4096)]).endswith("at no length measured.")


def test_when_work_growth_and_patterns_are_tabled_then_the_numbers_are_the_rows():
    measured = [row("flops", 3.0, against="peak"), row("bytes", 8.0, against="peak"),
                row("length_growth", 4.2, 4096, against="T=1024"),
                *(row("pattern", ratio, pattern=name, ms=10 / ratio, keys=keys)
                  for name, ratio, keys in (("slow", 0.5, 90.0), ("quick", 9.0, 5.0)))]
    assert tables.distance(measured, "cpu").loc[1024].to_dict() == {f"{BOTH}, arithmetic": 3.0, f"{BOTH}, traffic": 8.0}
    assert list(tables.growth(measured).loc["cpu"]) == ["T=1024", "T=4096", 4.2, *measured[2].spread]
    assert tables.growth([]).empty
    fastest_first = tables.patterns(measured)[["estimate", "low", "keys a query"]]
    assert list(fastest_first.itertuples(name=None)) == [("quick", 9.0, 9.0 * 0.9, 5.0), ("slow", 0.5, 0.5 * 0.9, 90.0)]


def test_when_something_was_not_measured_or_disturbed_then_the_source_says_so():
    lacking = Row("time", "gpu", "dense", "forward", 256, note="not available: a GPU that torch sees")
    large = [Row("time", "masked", "dense", "forward", T, note="left out: one call would need 6.0 GiB")
             for T in (8192, 16384)]
    said = efficiency.say_source([row("time", 2.0, busy=0.02), lacking, *large])
    assert "Not measured: gpu: a GPU that torch sees." in said and "Other processes" not in said
    assert "Not measured: masked: would need too much memory or time, at T = 8192 (forward), 16384 (forward)." in said
    assert "Other processes used 35 % of the cores" in efficiency.say_source([row("time", 2.0, busy=0.35)])


@pytest.mark.parametrize("T", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_when_the_notebook_checks_then_every_way_agrees_with_the_reference_with_gradients(T, monkeypatch):
    setting = cases.Setting(heads=2, kv_heads=2, head_dim=16) if T < 100 else cases.Setting()
    if T < 100:                                         # compiling the others takes seconds
        monkeypatch.setattr(cases, "backends", lambda setting: {"torch": ""})
    errors = efficiency.errors(setting, T)
    assert {"gather", "torch"} <= set(errors.index) and errors.max() <= 64 * torch.finfo(torch.float32).eps
    right, wrong = cases.attention, {"gather": "dense"}
    monkeypatch.setattr(cases, "backends", lambda setting: {})
    monkeypatch.setattr(cases, "attention", lambda name, *more, grad: right(wrong.get(name, name), *more, grad))
    assert efficiency.errors(setting, T)["gather"] > 0.01
