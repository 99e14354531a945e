"""The experiment database: what is keyed, kept, refused and shown."""

from __future__ import annotations

import json
import multiprocessing
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lib import paths
from lib.config import DataConfig, Evaluation, ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.errors import SuiteError
from suite.evals.base import EvalResult, Metric
from suite.experiments.base import Job
from suite.cli import main
from suite.run import browse
from suite.run import database as module
from suite.run.database import Database, Facts
from suite.settings.progress import text_table

VERSIONS = {"python": "3.11.0", "torch": "2.13.0", "numpy": "2.4.6", "suite": "0.1.0"}
FACTS = Facts(VERSIONS, "a processor, 2 cores", "cpu", 1)
ONE = Evaluation.of("task", count=1)
TWO = Evaluation.of("task", count=2)


def run(seed: int = 0, **changes) -> RunConfig:
    model = ModelConfig(vocab=64, d_model=16, layers=2, heads=2, kv_heads=1, head_dim=8, hidden=32)
    train = TrainConfig(steps=4, batch=2, length=64, warmup=1, precision="fp32", seed=seed)
    return replace(RunConfig(PatternSpec.of("local", window=3), model, train, DataConfig.of("copying")), **changes)


def result(value: float = 0.5, **more) -> SimpleNamespace:
    metrics = [Metric("train_loss", value, step=2), Metric("train_loss", value / 2, step=4)]
    return SimpleNamespace(**{"metrics": metrics, "seconds": 1.5, "tokens_per_s": 100.0, "peak_memory_mib": 12.0,
                              "spent": {"forward": 0.5, "backward": 0.75}, **more})


pytestmark = pytest.mark.usefixtures("outputs")


@pytest.fixture
def filled() -> Database:
    """One run with two evaluations."""
    database = Database("tiny")
    database.record_training(run(), FACTS, result(), 1234, module.now())
    arrays = {"right": np.arange(6, dtype=np.float32).reshape(2, 3)}
    one = EvalResult([Metric("accuracy", 0.25, split="copying", length=64)], arrays)
    database.record_evaluation(run(), ONE, one, 0.1)
    database.record_evaluation(run(), TWO, EvalResult([Metric("alpha", 1.5, layer=np.int64(1))]), 0.2)
    return database


def test_when_a_run_is_recorded_then_a_job_gets_its_own_evaluations_and_the_training(filled):
    table = filled.metrics(Job.of(run(), ONE))
    assert list(table.columns) == ["run", "measure", "value", "split", "variant", "length", "position", "layer", "step",
                                   "parameters", "run_seconds", "run_tokens_per_s", "run_peak_memory_mib"]
    assert table["measure"].tolist() == ["train_loss", "train_loss", "accuracy"]
    assert table["value"].tolist() == [0.5, 0.25, 0.25]
    assert table["step"].tolist() == [2, 4, pd.NA] and table["length"].dtype == "Int64"
    assert set(table["parameters"]) == {1234} and set(table["run_seconds"]) == {1.5}
    assert filled.metrics(Job.of(run(), TWO)).iloc[-1][["measure", "layer"]].tolist() == ["alpha", 1]


def test_when_an_array_was_recorded_then_it_comes_back_equal(filled):
    right = filled.array(Job.of(run(), ONE), ONE, "right")
    assert right.dtype == np.float32 and right.tolist() == [[0, 1, 2], [3, 4, 5]]
    right[0, 0] = 7                                                # a copy that may be written to
    with pytest.raises(SuiteError, match="no array 'wrong' .known: right."):
        filled.array(Job.of(run(), ONE), ONE, "wrong")


def test_when_something_is_missing_then_exactly_that_is_said(filled):
    three = Evaluation.of("task", count=3)
    jobs = [Job.of(run(), ONE, TWO), Job.of(run(), ONE, three), Job.of(run(7), ONE)]
    assert filled.missing(jobs) == [replace(jobs[1], evaluations=(three,)), jobs[2]]
    with pytest.raises(SuiteError, match="'task' with {'count': 3}"):
        filled.metrics(jobs[1])
    with pytest.raises(SuiteError, match="local, seed 7.*not trained yet"):
        filled.metrics(jobs[2])


def test_when_recording_is_interrupted_then_nothing_of_it_is_there(filled):
    bad = EvalResult([Metric("accuracy", 1.0)], {"right": np.zeros(2), "wrong": None})
    with pytest.raises(TypeError, match="array 'wrong'"):
        filled.record_evaluation(run(), Evaluation.of("task", count=9), bad, 0.1)
    count = "select (select count(*) from evaluations), (select count(*) from metrics), (select count(*) from arrays)"
    assert tuple(filled.connection.execute(count).fetchone()) == (2, 4, 1)
    with pytest.raises(SuiteError, match="train_loss is nan at step 2: the training diverged"):
        filled.record_training(run(3), FACTS, result(float("nan")), 1, module.now())
    assert filled.facts(filled.fingerprint(run(3))) is None


def test_when_a_trained_run_is_recorded_again_then_it_is_replaced_and_a_later_failure_changes_nothing(filled):
    filled.record_training(run(), FACTS, result(8.0), 1234, module.now())
    filled.record_evaluation(run(), ONE, EvalResult([Metric("accuracy", 0.75)]), 0.1)
    for seed in (0, 1):
        filled.record_failure(run(seed), FACTS, "no such luck")
    assert filled.metrics(Job.of(run(), ONE))["value"].tolist() == [8.0, 4.0, 0.75]
    assert filled.trained(run()) and not filled.trained(run(1))


# Files that are not what they should be

@pytest.mark.parametrize("statement, message", [
    ("", "runs.sqlite is not a readable database.*move it away"),
    (f"pragma user_version = {module.SCHEMA + 1}", "newer version of the suite"),
    ("create table other (x)", "not of this suite"),
])
def test_when_the_file_is_damaged_newer_or_foreign_then_it_is_named_and_left_alone(outputs, statement, message):
    path = paths.database("tiny")
    path.parent.mkdir()
    if statement:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(statement)
    else:
        path.write_bytes(b"no database at all, but long enough for a header of one hundred bytes" * 3)
    before = path.read_bytes()
    with pytest.raises(SuiteError, match=message):
        Database("tiny")
    assert path.read_bytes() == before


def test_when_the_database_is_of_the_first_schema_then_it_is_brought_up_to_this_one_and_keeps_its_runs(filled):
    path = filled.path
    filled.close()
    with sqlite3.connect(path) as connection:
        connection.execute("alter table runs drop column spent")
        connection.execute("pragma user_version = 1")
    again = Database("tiny")
    assert again.trained(run()) and again.facts(again.fingerprint(run()))["spent"] is None
    assert "spent on    not recorded" in browse.show(again, again.fingerprint(run()))
    again.record_training(run(1), FACTS, result(), 1234, module.now())
    shown = browse.show(again, again.fingerprint(run(1)))
    assert "spent on    backward 50%  forward 33%  checkpoints and start 17%" in shown


def test_when_there_are_no_runs_then_looking_creates_nothing(outputs, capsys):
    assert main(["runs", "list", "--profile", "tiny"]) == 2
    assert "no runs yet in profile 'tiny'" in capsys.readouterr().err
    assert list(outputs.iterdir()) == []


def record_many(start: int) -> None:
    database = Database("crowd")
    for seed in range(start, start + 10):
        database.record_training(run(seed), FACTS, result(), 1, module.now())


def test_when_processes_create_and_write_at_once_then_all_of_it_is_there():
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.map(record_many, [0, 100, 200, 300], chunksize=1)
    database = Database("crowd")
    assert all(database.trained(run(start + i)) for start in (0, 100, 200, 300) for i in range(10))


def test_when_another_process_is_creating_the_tables_then_half_of_it_is_not_seen(filled):
    asked: list[str] = []
    filled.connection.set_trace_callback(asked.append)
    assert module.version_of(filled.connection, filled.path) == module.SCHEMA
    asked = [statement for statement in asked if not statement.startswith("--")]     # what SQLite asks itself meanwhile
    assert len(asked) == 1                                         # two statements would read two moments


# The command line

def test_when_a_table_is_long_then_it_is_quick_and_every_line_fits():
    begin = time.perf_counter()
    text = text_table(["name", "n"], [["x" * (n % 90), n] for n in range(10_000)], 60)
    assert time.perf_counter() - begin < 5
    lines = text.splitlines()
    assert len(lines) == 10_001 and max(map(len, lines)) == 60 and lines[89] == f"{'x' * 52}..    88"


def told(capsys, *arguments: str) -> str:
    assert main(["runs", *arguments, "--profile", "tiny"]) == 0
    return capsys.readouterr().out


def test_when_runs_are_listed_then_they_fit_a_terminal(filled, capsys):
    long = run(pattern=PatternSpec.of("local", window=tuple(range(60))))
    filled.record_failure(long, FACTS, "no such luck")
    filled.record_start(run(5), FACTS)
    text = told(capsys, "list")
    assert max(map(len, text.splitlines())) <= browse.WIDTH
    assert [line.split()[1] for line in text.splitlines()] == ["status", "done", "failed", "interrupted"]
    assert "window=3" in text and "512 " in text                   # 4 steps of 2 windows of 64 tokens
    assert len(told(capsys, "list", "--status", "done").splitlines()) == 2
    assert "no such runs" in told(capsys, "list", "--pattern", "dense")


def test_when_a_run_is_shown_then_configuration_facts_and_metrics_are_there(filled, capsys):
    key = filled.fingerprint(run())
    text = told(capsys, "show", key[:6])
    assert all(len(line) <= browse.WIDTH or line.startswith("folder") for line in text.splitlines())   # no path is cut
    for word in (key, "d_model=16", "copying", "torch 2.13.0", "a processor", "1 thread", "1,234 parameters",
                 "train_loss"):
        assert word in text
    assert main(["runs", "show", "zzz", "--profile", "tiny"]) == 2
    assert "no run of profile 'tiny' begins with 'zzz'" in capsys.readouterr().err


def test_when_runs_are_exported_then_every_metric_is_one_row(filled, capsys, outputs):
    filled.record_failure(run(5), FACTS, "no such luck")
    told(capsys, "export", "--output", str(outputs / "all.csv"))
    table = pd.read_csv(outputs / "all.csv")
    assert table["value"].dropna().tolist() == [0.5, 0.25, 0.25, 1.5] and len(table) == 5
    assert table["evaluation"].dropna().tolist() == ["task", "task"]
    assert json.loads(table["config"][0])["train"]["seed"] == 0
    rows = json.loads(told(capsys, "export", "--format", "json"))
    assert [row["value"] for row in rows] == [0.5, 0.25, 0.25, 1.5, None] and rows[0]["step"] == 2
