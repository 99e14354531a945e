"""Ten thousand runs and ten million rows, in small: a question costs what it returns, not what the database holds."""

import statistics
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fake_jobs import job

from lib.config import Evaluation, PatternSpec
from lib.errors import SuiteError
from suite.evals import EvalResult, Metric
from suite.experiments.base import Job, tidy
from suite.plan import estimate
from suite.report import summary
from suite.run import browse as runs
from suite.run import database as module
from suite.run.database import Database, Facts
from suite.settings.machine import machine
from suite.study import frames

RUNS, ROWS = 120, 40            # a quarter of a run's rows are of its training, by step
WINDOWS = (2, 3, 4, 5)
EVALUATIONS = (Evaluation.of("task", count=64), Evaluation.of("task", count=64, lengths=(128,)),
               Evaluation.of("attention_memory"))

pytestmark = pytest.mark.usefixtures("outputs")


def jobs(runs: int) -> list[Job]:
    """Runs of several patterns, with one seed after the other, each with all evaluations."""
    runs_of = [(job(n // len(WINDOWS), steps=400).run, WINDOWS[n % len(WINDOWS)]) for n in range(runs)]
    return [Job.of(replace(run, pattern=PatternSpec.of("local", window=window)), *EVALUATIONS, series="Local window",
                   role="control", window=window) for run, window in runs_of]


def filled_with(profile: str, planned: Sequence[Job]) -> Database:
    """Every job trained and evaluated, with `ROWS` metric rows each and one small array an evaluation."""
    database, facts = Database(profile), Facts({"torch": "2.13.0", "python": "3.11"}, machine(), "cpu", 1)
    database.connection.execute("pragma synchronous = off")
    training = [Metric("train_loss", 4.0 / (1 + i), step=8 * i) for i in range(ROWS // 4)]
    measured = EvalResult([Metric("accuracy", 0.5 + 0.0001 * i, split="copying", length=64, position=i)
                           for i in range(ROWS // 4)], {"right": np.arange(8, dtype=np.float32)})
    for n, planned_job in enumerate(planned):
        result = SimpleNamespace(metrics=training, seconds=30.0 + n % 7, tokens_per_s=1000.0 + n % 13,
                                 peak_memory_mib=300.0, spent={})
        database.record_training(planned_job.run, facts, result, 1234, module.now())
        for evaluation in EVALUATIONS:
            database.record_evaluation(planned_job.run, evaluation, measured, 0.5)
    return database


@pytest.fixture
def filled() -> Database:
    return filled_with("big", jobs(RUNS))


def statements(database: Database, call: Callable[[], object]) -> list[str]:
    """What the database is asked meanwhile, with values in place."""
    asked: list[str] = []
    database.connection.set_trace_callback(asked.append)
    call()
    database.connection.set_trace_callback(None)
    return [each for each in asked if not each.startswith("--") and each.lower() not in ("begin immediate", "commit")]


def scans(database: Database, asked: list[str]) -> list[str]:
    """Steps of SQLite's plans for these statements that read a whole table or sort what they found."""
    plans = [row["detail"] for each in asked for row in database.connection.execute(f"explain query plan {each}")]
    assert plans
    return [step for step in plans if step.startswith("SCAN") and "CONSTANT" not in step or "TEMP B-TREE" in step]


QUESTIONS = {
    "missing": lambda database, job: database.missing([job, Job.of(replace(job.run, pattern=PatternSpec.of("dense")))]),
    "trained": lambda database, job: database.trained(job.run),
    "facts": lambda database, job: database.facts(database.fingerprint(job.run)),
    "metrics": lambda database, job: database.metrics(job),
    "array": lambda database, job: database.array(job, EVALUATIONS[1], "right"),
    "find": lambda database, job: runs.find(database, database.fingerprint(job.run)[:7]),
    "evaluate again": lambda database, job: database.record_evaluation(
        job.run, EVALUATIONS[0], EvalResult([Metric("accuracy", 1.0)], {"right": np.zeros(2)}), 0.1),
}


def test_when_one_run_is_asked_for_or_all_are_then_no_statement_is_for_each_and_no_table_is_read_as_a_whole(filled):
    plan = jobs(RUNS)
    small = filled_with("small", plan[:2])
    for question, ask in QUESTIONS.items():
        asked = statements(filled, lambda ask=ask: ask(filled, plan[RUNS // 2]))
        assert scans(filled, asked) == [], question
        assert len(asked) == len(statements(small, lambda ask=ask: ask(small, plan[1]))) <= 12, question
    # The cascades of foreign keys are no statements that a trace shows: the child's key columns must lead an index.
    for what in ("evaluations where run_id", "metrics where run_id", "metrics where evaluation_id",
                 "arrays where evaluation_id"):
        assert scans(filled, [f"delete from {what} = 3"]) == [], what
    # A plan is compared, and all runs are looked at, in a few statements.
    assert len(statements(filled, lambda: filled.missing(jobs(750)))) == 1      # for 750 jobs, of which 120 are there
    known = estimate.Estimator()
    for look in (lambda: runs.listed(filled), lambda: known.learn(filled)):
        assert len(statements(filled, look)) <= 2
    assert len(known.speeds) == RUNS


def test_when_a_run_failed_lacks_evaluations_or_shares_its_prefix_then_each_question_tells_it_from_others(filled):
    plan, execute = jobs(RUNS), filled.connection.execute
    failed, bare, other = plan[7:10]
    keys = [filled.fingerprint(job.run) for job in (failed, bare, other)]
    execute("update runs set status = 'failed' where run = ?", (keys[0],))
    execute("delete from evaluations where run_id = (select id from runs where run = ?)", (keys[1],))
    assert filled.missing(plan) == [failed, bare] and not filled.trained(failed.run)
    assert filled.missing([Job.of(job.run) for job in plan]) == [Job.of(failed.run)]
    assert filled.evaluations(keys[::2]) == {keys[2]: set(map(module.evaluation_fingerprint, EVALUATIONS))}
    table = filled.metrics(Job.of(other.run, EVALUATIONS[0]))
    assert set(table["run"]) == {keys[2]} and len(table) == 2 * ROWS // 4
    keys = sorted(filled.fingerprint(job.run) for job in jobs(RUNS))
    unique = next(n for n in range(1, 17) if sum(key.startswith(keys[3][:n]) for key in keys) == 1)
    assert runs.find(filled, keys[3][:unique])["run"] == keys[3]
    for prefix, words in ((keys[3][:unique - 1], "several runs"), ("%", "no run"), (keys[-1] + "0", "no run")):
        with pytest.raises(SuiteError, match=words):
            runs.find(filled, prefix)


def test_when_times_of_many_runs_are_known_then_a_median_is_taken_once_until_something_is_new(filled, monkeypatch):
    known, taken, plan = estimate.Estimator(), [], jobs(RUNS)
    known.learn(filled)
    middle = statistics.median
    monkeypatch.setattr(estimate.statistics, "median", lambda values: taken.append(len(values)) or middle(values))
    for _ in range(2):
        assert {known.rate(job.run) for job in plan} == {middle([1000.0 + n % 13 for n in range(RUNS)])}
        assert known.evaluation(plan[3].run, EVALUATIONS[0]) == 0.5
    assert len(taken) == 2                                         # of the rates, and of the evaluations
    other = replace(plan[0].run, train=replace(plan[0].run.train, batch=3))
    assert known.rate(other) == known.rate(other) and len(taken) == 3
    known.add(plan[0].run, 1e9)
    assert known.rate(plan[0].run) > 0 and len(taken) == 4


def test_when_metrics_are_exported_then_they_are_written_as_they_are_read(tmp_path, filled):
    for form in ("csv", "json"):
        with open(tmp_path / form, "w") as file:
            tracemalloc.start()
            runs.export(filled, form, file)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert 10 * peak < (tmp_path / form).stat().st_size


def test_when_runs_differ_in_their_seed_alone_then_their_pattern_is_counted_once(filled, monkeypatch):
    from lib.patterns.local import Local
    counted, pairs = [], Local.pairs
    monkeypatch.setattr(Local, "pairs", lambda self, length: counted.append(self) or pairs(self, length))
    table = tidy("01", jobs(RUNS), filled)
    assert len(table) == RUNS * ROWS and len(counted) == 4
    assert set(table.loc[table["window"] == 3, "pairs"]) == {2 * (1 + 2 + 3 + 61 * 4)}


def test_when_a_table_is_read_in_parts_then_the_page_gets_every_perplexity_and_a_row_of_each_run(
        tmp_path, filled, monkeypatch):
    table = tidy("01_window_sweep", jobs(8), filled)
    scored = table.groupby("run").head(2).assign(measure="perplexity", step=pd.NA, position=pd.NA, split="docs")
    table = pd.concat([table, scored]).sample(frac=1, random_state=0)
    table.to_csv(tmp_path / "01_window_sweep.csv", index=False)
    whole = summary.read_tables(tmp_path, ["01_window_sweep"])
    assert len(whole) == 2 * 8 + 8 and (whole["measure"] == "perplexity").sum() == 16 and whole["run"].nunique() == 8
    for size in (11, 50):
        monkeypatch.setattr(summary, "ROWS", size)
        pd.testing.assert_frame_equal(summary.read_tables(tmp_path, ["01_window_sweep"]), whole)
    text = (tmp_path / "01_window_sweep.csv").read_text()
    for columns in (26, 27):
        (tmp_path / "02.csv").write_text(text + "x," * columns + "\n")
        with pytest.raises(SuiteError, match="02.csv.*delete the file"):
            summary.read_tables(tmp_path, ["02"])
    (tmp_path / "02.csv").write_text(text.splitlines()[0] + "\n")
    assert len(summary.read_tables(tmp_path, ["02"])) == 0


def test_when_runs_are_many_then_those_in_use_are_kept_and_not_all(filled, monkeypatch):
    monkeypatch.setattr(frames, "KEPT", 4)
    plan, asked, array = jobs(10), [], filled.array
    monkeypatch.setattr(filled, "array", lambda *what: asked.append(what) or array(*what))
    read = frames.Study(plan, filled)._array
    assert all(read(job, EVALUATIONS[0], "right").tolist() == [*range(8)] for job in plan * 2 for _ in range(3))
    assert len(asked) == 20 and read.cache_info().currsize == 4
