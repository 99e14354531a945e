"""The experiment database: what is kept, refused and shown, found when computed again, and asked when runs are many."""

import json
import multiprocessing
import shutil
import sqlite3
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fake_jobs import Quiet, job
from small_run import RUN

from lib import paths
from lib.checkpoint import save_finished
from lib.config import DataConfig, Evaluation, PatternSpec
from lib.errors import SuiteError
from lib.training import load_run
from suite.cli import main
from suite.evals import EvalResult, Metric
from suite.experiments.base import Job, tidy
from suite.plan import estimate
from suite.report import summary
from suite.run import browse, damage, evidence
from suite.run import database as module
from suite.run.database import Database, Facts
from suite.run.engine import ensure
from suite.run.seals import seal_all
from suite.settings import profiles
from suite.settings.fingerprints import code_fingerprint, training_modules
from suite.settings.machine import machine
from suite.settings.progress import text_table
from suite.study import frames

FACTS = Facts({"python": "3.11.0", "torch": "2.13.0"}, "a processor, 2 cores", "cpu", 1)
ONE, TWO = (Evaluation.of("task", count=count) for count in (16, 2))
ALPHAS = Evaluation.of("alphas")

pytestmark = pytest.mark.usefixtures("outputs")


def train(database: Database, seed: int, value: float = 0.5) -> None:
    metrics = [Metric("train_loss", value, step=2), Metric("train_loss", value / 2, step=np.int64(4))]
    result = SimpleNamespace(metrics=metrics, seconds=1.5, tokens_per_s=100.0, peak_memory_mib=12.0,
                             spent={"forward": 0.5, "backward": 0.75})
    database.record_training(job(seed).run, FACTS, result, 1234, module.now())


def statements(database: Database, call: Callable[[], object]) -> list[str]:
    """What the database is asked meanwhile, with values in place."""
    asked: list[str] = []
    database.connection.set_trace_callback(asked.append)
    call()
    database.connection.set_trace_callback(None)
    return [each for each in asked if not each.startswith("--") and each.lower() not in ("begin immediate", "commit")]


def evaluate(database: Database, evaluation: Evaluation, *metrics: Metric, **arrays: np.ndarray) -> None:
    database.record_evaluation(job(0).run, evaluation, EvalResult(list(metrics), arrays), 0.1)


@pytest.fixture
def filled() -> Database:
    """One run, of seed 0, with two evaluations."""
    database = Database("smoke")
    train(database, 0)
    evaluate(database, ONE, Metric("accuracy", 0.25, split="copying", length=64),
             right=np.arange(6, dtype=np.float32).reshape(2, 3), empty=np.zeros((0, 2)), yes=np.array([True]))
    evaluate(database, TWO, Metric("alpha", np.float32(1.5), layer=np.int64(1)))
    return database


def test_when_a_run_is_recorded_then_a_job_gets_its_own_evaluations_and_the_training(filled):
    table = filled.metrics(job(0, 16))
    assert list(table.columns) == ["run", "measure", "value", "split", "variant", "length", "position", "layer", "step",
                                   "parameters", "run_seconds", "run_tokens_per_s", "run_peak_memory_mib"]
    assert table["measure"].tolist() == ["train_loss", "train_loss", "accuracy"]
    assert table["value"].tolist() == [0.5, 0.25, 0.25]
    assert table["step"].tolist() == [2, 4, pd.NA] and table["length"].dtype == "Int64"
    assert set(table["parameters"]) == {1234} and set(table["run_seconds"]) == {1.5}
    assert filled.metrics(job(0, 2)).iloc[-1][["measure", "value", "layer"]].tolist() == ["alpha", 1.5, 1]
    for name, shape, kind in (("right", (2, 3), np.float32), ("empty", (0, 2), float), ("yes", (1,), bool)):
        array = filled.array(job(0), ONE, name)
        assert (array.shape, array.dtype) == (shape, kind) and array.flags.writeable
    assert filled.array(job(0), ONE, "right").tolist() == [[0, 1, 2], [3, 4, 5]] and array.tolist() == [True]


def test_when_something_is_missing_then_exactly_that_is_said(filled):
    jobs = [job(0, 16, 2), job(0, 16, 3), job(7, 1)]
    assert filled.missing(jobs) == [replace(jobs[1], evaluations=(Evaluation.of("task", count=3),)), jobs[2]]
    for asked, words in ((jobs[1], "'task' with {'count': 3}"), (jobs[2], "local, seed 7.*not trained yet")):
        with pytest.raises(SuiteError, match=words):
            filled.metrics(asked)
    with pytest.raises(SuiteError, match="no array 'wrong' .known: empty, right, yes."):
        filled.array(jobs[0], ONE, "wrong")


def test_when_recording_is_interrupted_then_nothing_of_it_is_there(filled):
    with pytest.raises(TypeError, match="Python objects"):
        evaluate(filled, Evaluation.of("task", count=9), Metric("accuracy", 1.0), right=np.zeros(2), wrong=None)
    count = "select (select count(*) from evaluations), (select count(*) from metrics), (select count(*) from arrays)"
    assert tuple(filled.rows(count)[0]) == (2, 4, 3)
    with pytest.raises(SuiteError, match="train_loss is nan at step 2: the training diverged"):
        train(filled, 3, float("nan"))
    assert filled.facts(filled.fingerprint(job(3).run)) is None


def test_when_a_trained_run_is_recorded_again_then_it_is_replaced_and_a_later_failure_changes_nothing(filled):
    train(filled, 0, 8.0)
    evaluate(filled, ONE, Metric("accuracy", 0.75))
    for seed in (0, 1):
        filled.record_failure(job(seed).run, FACTS, "no such luck")
    assert filled.metrics(job(0, 16))["value"].tolist() == [8.0, 4.0, 0.75]
    assert filled.trained(job(0).run) and not filled.trained(job(1).run)


# Files that are not what they should be

@pytest.mark.parametrize("statement, message", [
    ("", "runs.sqlite is not a readable database.*runs check --profile smoke saves what can be read"),
    (f"pragma user_version = {module.SCHEMA + 1}", "newer version of the suite"),
    ("create table other (x)", "not of this suite"),
])
def test_when_the_file_is_damaged_newer_or_foreign_then_it_is_named_and_left_alone(outputs, statement, message):
    path = paths.database("smoke")
    path.parent.mkdir()
    if statement:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(statement)
    else:
        path.write_bytes(b"no database at all, but long enough for a header of one hundred bytes" * 3)
    before = path.read_bytes()
    with pytest.raises(SuiteError, match=message):
        Database("smoke")
    assert path.read_bytes() == before


def test_when_the_database_is_of_the_first_schema_then_it_is_brought_up_to_this_one_and_keeps_its_runs(filled):
    with filled.connection as connection:
        for table, columns in {"runs": ("spent", "numbers", "digest"), "arrays": ("digest",),
                               "evaluations": ("array_count", "numbers", "digest")}.items():
            for column in columns:
                connection.execute(f"alter table {table} drop column {column}")
        connection.execute("pragma user_version = 1")
    again = Database("smoke")
    assert again.metrics(job(0, 16))["value"].tolist() == [0.5, 0.25, 0.25] and again.array(job(0), ONE, "yes")
    assert damage.look_over("smoke", thorough=True) == []
    train(again, 1)
    for seed, spent in ((0, "not recorded"), (1, "backward 50%  forward 33%  checkpoints and start 17%")):
        assert f"spent on    {spent}" in browse.show(again, again.fingerprint(job(seed).run))


def record_many(start: int) -> None:
    database = Database("crowd")
    for seed in range(start, start + 10):
        train(database, seed)


def test_when_processes_create_and_write_at_once_then_all_of_it_is_there():
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.map(record_many, [0, 100, 200, 300], chunksize=1)
    database = Database("crowd")
    assert all(database.trained(job(start + i).run) for start in (0, 100, 200, 300) for i in range(10))


def test_when_another_process_is_creating_the_tables_then_half_of_it_is_not_seen(filled):
    versions: list[int] = []
    asked = statements(filled, lambda: versions.append(module.version_of(filled.connection, filled.path)))
    assert versions == [module.SCHEMA] and len(asked) == 1         # two statements would read two moments


def test_when_a_shipped_run_is_entered_then_it_is_there_and_written_again_it_is_the_same(outputs, monkeypatch):
    job = next(job for job in frames.plan_of(profiles.load("evidence"), "08_all_patterns")
               if evidence.path_of(job.run).exists())
    database = Database("evidence", SimpleNamespace(fingerprint="another text"))
    assert evidence.enter(database, [job]) == ([database.fingerprint(job.run)], []) and not database.missing([job])
    losses = database.array(job, job.evaluations[0], "nll.docs.256")
    assert losses.dtype == "float64" and 1 < losses.sum() / losses.shape[0] / 256 < 6
    known = evidence.read(evidence.path_of(job.run)).to_pylist()
    monkeypatch.setattr(paths, "EVIDENCE", outputs)
    again = evidence.read(evidence.write(database, job)).to_pylist()
    assert len(again) == 1 + len(job.evaluations) and all(row in known for row in again)
    # One that is not whole is named, and written anew.
    path, foreign = evidence.path_of(job.run), next((paths.ROOT / "evidence").glob("strided*.parquet"))
    content, empty = path.read_bytes(), Database("other", database.corpus)
    for damaged, words in ((content[:1000], "cannot be read"), (b"", "cannot be read"),
                           (content[:3000] + b"x" + content[3001:], "SHA256SUMS has another checksum"),
                           (foreign.read_bytes(), "SHA256SUMS has another checksum")):
        path.write_bytes(damaged)
        assert evidence.write(database, job) == path and path.read_bytes() == content
        path.write_bytes(damaged)
        entered, errors = evidence.enter(empty, [job])
        assert entered == [] and words in errors[0] and "git checkout evidence" in errors[0] and empty.missing([job])
    (outputs / evidence.SUMS).unlink()
    assert "holds another run than its name says" in evidence.enter(empty, [job])[1][0]


# A row, a page or a file that is not as it was written

RIGHT = [0, 1, 2, 3, 4, 5]


def usable(database: Database) -> list[object]:
    """The evaluations and trainings that are there: reading them gives what was recorded, or this fails."""
    found: list[object] = []
    for seed in (0, 1):
        key = database.fingerprint(job(seed).run)
        done = database.evaluations([key]).get(key)
        for evaluation in [e for e in (ONE, TWO) if done and module.evaluation_fingerprint(e) in done]:
            values = database.metrics(Job.of(job(seed).run, evaluation))["value"].tolist()
            assert values == [0.5, 0.25, 0.25 if evaluation == ONE else 1.5]
            assert evaluation == TWO or database.array(job(seed), ONE, "right").ravel().tolist() == RIGHT
            found.append(evaluation)
        found += [seed] if done is not None else []
    return found


@pytest.mark.parametrize("lost, statement", [
    (0, "update runs set config = replace(config, '16', '17')"),
    (0, "update runs set versions = substr(versions, 2)"),
    (0, "update runs set spent = '{'"),
    (0, "update runs set machine = cast(x'61ff62' as text)"),
    (0, "update runs set tokens_per_s = 'fast'"),
    (0, "update metrics set value = 'NaN' where step = 2"),
    (0, "update metrics set value = 9e999 where step = 2"),
    (0, "update metrics set step = 3 where step = 2"),
    (0, "delete from metrics where step = 2"),
    (ONE, "update metrics set value = value + 1e-12 where measure = 'accuracy'"),
    (ONE, "update metrics set run_id = 99 where measure = 'accuracy'"),
    (ONE, "update evaluations set run_id = 99 where id = 1"),
    (ONE, "update evaluations set parameters = '[' where id = 1"),
    (ONE, "update arrays set dtype = '<x4' where name = 'right'"),
    (ONE, "update arrays set shape = '[4, 2]' where name = 'right'"),
    (ONE, "update arrays set data = zeroblob(24) where name = 'right'"),
    (ONE, "update arrays set evaluation_id = 99 where name = 'right'")])
def test_when_a_row_is_not_as_it_was_written_then_it_is_refused_set_aside_and_the_others_are_used(
        filled, capsys, lost, statement):
    filled.connection.execute("pragma foreign_keys = off")
    change(filled, statement)
    with pytest.raises(SuiteError, match="damaged: python -m suite runs check --profile smoke|no array|no evaluation"):
        filled.metrics(job(0, 16, 2))
        filled.array(job(0), ONE, "right")
    train(filled, 1)
    told(capsys, "list")
    paths.executed("smoke").mkdir()
    (paths.executed("smoke") / "01_a.json").touch()
    text = told(capsys, "check", status=1)
    assert "DAMAGED: " in text and "set aside; make report makes it again" in text
    assert not (paths.executed("smoke") / "01_a.json").exists()                   # it was executed with the damaged row
    again = Database("smoke")
    assert usable(again) == ([1] if lost == 0 else [TWO, 0, 1]) and not again.missing([Job.of(job(1).run)])
    assert "all is right" in told(capsys, "check") and damage.look_over("smoke") == []
    train(again, 0)
    evaluate(again, ONE, Metric("accuracy", 0.25), right=np.array(RIGHT))         # what was left of it is in no way
    assert ONE in usable(again)


def test_when_pages_of_the_file_are_damaged_then_what_can_be_read_is_saved_and_the_rest_is_missing(filled, monkeypatch):
    monkeypatch.setattr(damage, "MISSES", 100)
    filled.close()
    path, saved = paths.database("smoke"), set()
    content, size = path.read_bytes(), 4096
    for begin in range(0, len(content), size):
        for broken in (content[:begin] + bytes(size) + content[begin + size:], content[:begin + 100],
                       content[:begin + 7] + b"\xff" + content[begin + 8:]):
            for left in path.parent.iterdir():
                left.unlink()
            path.write_bytes(broken)
            lines = damage.look_over("smoke", thorough=True)
            with closing(Database("smoke")) as database:
                saved.add((bool(lines), len(usable(database))))
            assert damage.look_over("smoke", thorough=True) == []
            assert not lines or any("the damaged file is runs.sqlite.damaged" in line for line in lines)
    assert {(True, 0), (True, 3)} <= saved


# The command line

def test_when_a_table_is_long_then_it_is_quick_and_every_line_fits():
    begin = time.perf_counter()
    lines = text_table(["name", "n"], [["x" * (n % 90), n] for n in range(10_000)], 60).splitlines()
    assert time.perf_counter() - begin < 5
    assert len(lines) == 10_001 and max(map(len, lines)) == 60 and lines[89] == f"{'x' * 52}..    88"


def told(capsys, *arguments: str, command: str = "runs", status: int = 0) -> str:
    assert main([command, *arguments, "--profile", "smoke"]) == status
    return "".join(capsys.readouterr())


def test_when_there_are_no_runs_then_looking_creates_nothing(outputs, capsys):
    assert "no runs yet in profile 'smoke'" in told(capsys, "list", status=2)
    assert list(outputs.iterdir()) == []


def test_when_runs_are_listed_or_one_is_shown_then_they_fit_a_terminal_and_all_of_it_is_there(filled, capsys):
    long = replace(job(0).run, pattern=PatternSpec.of("local", window=tuple(range(60))))
    filled.record_failure(long, FACTS, "no such luck")
    filled.record_start(job(5).run, FACTS)
    text = told(capsys, "list")
    assert max(map(len, text.splitlines())) <= browse.WIDTH
    assert [line.split()[1] for line in text.splitlines()] == ["status", "done", "failed", "interrupted"]
    assert "window=3" in text and "512 " in text                   # 4 steps of 2 windows of 64 tokens
    assert len(told(capsys, "list", "--status", "done").splitlines()) == 2
    assert "no such runs" in told(capsys, "list", "--pattern", "dense")
    key = filled.fingerprint(job(0).run)
    text = told(capsys, "show", key[:6])
    assert all(len(line) <= browse.WIDTH or line.startswith("folder") for line in text.splitlines())   # no path is cut
    for word in (key, "d_model=16", "copying", "torch 2.13.0", "a processor", "1 thread", "1,234 parameters",
                 "train_loss"):
        assert word in text
    assert "no run of profile 'smoke' begins with 'zzz'" in told(capsys, "show", "zzz", status=2)


# Results computed again

@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The outputs of a worker's run with two evaluations. A test changes a copy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUITE_OUTPUTS", str(tmp_path_factory.mktemp("made")))
        ensure([Job.of(RUN, ONE, ALPHAS)], "smoke", None, 1, shown=Quiet())
        return paths.outputs()


@pytest.fixture
def stored(made, outputs) -> Database:
    shutil.copytree(made, outputs, dirs_exist_ok=True)
    return Database("smoke")


def verified(capsys, *arguments: str, status: int = 0) -> str:
    return told(capsys, *arguments, command="verify", status=status)


def change(database: Database, statement: str, *values: object) -> None:
    assert database.connection.execute(statement, values).rowcount >= 1


def change_and_seal(database: Database, statement: str, *values: object) -> None:
    """As if it had been written like that."""
    change(database, statement, *values)
    seal_all(database.connection)


def test_when_a_run_is_really_trained_then_all_of_it_is_there_and_every_number_comes_out_again(stored, capsys):
    metrics, row = stored.metrics(Job.of(RUN, ONE, ALPHAS)), stored.facts(stored.fingerprint(RUN))
    assert {"train_loss", "accuracy", "chance"} <= set(metrics["measure"])
    assert (metrics["run_tokens_per_s"] > 0).all() and (metrics["run_peak_memory_mib"] > 0).all()
    assert row["status"] == "done" and row["threads"] == 1 and row["parameters"] == metrics["parameters"].iloc[0] > 1000
    files = {path.name for path in paths.run_folder("smoke", row["run"]).iterdir()}
    assert "model.safetensors" in files and "checkpoint.pt" not in files
    metrics = stored.rows("select * from metrics where evaluation_id is not null")
    arrays = sum(module.array_of(row).size for row in stored.rows("select * from arrays"))
    assert arrays > 16
    for argument in ("--all", stored.fingerprint(RUN)[:6]):
        text = verified(capsys, argument)
        assert text.count("identical") == 2 and "2 results" in text and "all agree" in text
        assert f" {len(metrics) + arrays} numbers" in text


@pytest.mark.parametrize("statement", [
    "update metrics set value = value + 1e-9 where measure = 'accuracy'",
    "delete from metrics where measure = 'accuracy'",
    "update metrics set length = length + 1 where measure = 'accuracy'",
    "insert into metrics select run_id, evaluation_id, measure, 'more', variant, length, position, layer, step, value "
    "from metrics where measure = 'accuracy' and evaluation_id is not null limit 1",
    "delete from arrays where name like 'correct.copying%'",
    "update arrays set data = zeroblob(length(data)) where name like 'count.copying%'",
    "update arrays set shape = '[8, 2]' where name like 'count.copying%'"])
def test_when_a_stored_number_was_changed_then_it_is_told(stored, capsys, statement):
    change(stored, statement)
    text = verified(capsys, status=1)
    assert "differ" in text and "1 results do not agree" in text


def test_when_weights_are_damaged_then_the_run_is_trained_again_for_what_is_missing_and_a_line_says_so(stored, capsys):
    notes: list[str] = []
    shown = Quiet()
    shown.note = notes.append
    path = paths.run_folder("smoke", stored.fingerprint(RUN)) / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"x")
    assert "model.safetensors is not the file that was written" in told(capsys, "check", status=1)
    change(stored, "delete from evaluations where name = 'alphas'")
    ensure([Job.of(RUN, ONE, ALPHAS)], "smoke", None, 1, shown=shown)
    assert [note for note in notes if "result.json is damaged (model.safetensors is not the file" in note]
    assert path.read_bytes() == content and "2 results" in verified(capsys, "--all")
    assert "all is right" in told(capsys, "check")


def test_when_the_weights_are_others_then_it_is_told(stored, capsys):
    folder = paths.run_folder("smoke", stored.fingerprint(RUN))
    model, facts = load_run(RUN, folder).model, json.loads((folder / "result.json").read_text())
    model.embedding.weight.data.mul_(-1.0)
    del facts["weights_sha256"]
    save_finished(folder, RUN, model, facts)
    verified(capsys, status=1)


def test_when_made_elsewhere_then_rounding_is_allowed_and_more_is_not(stored, capsys):
    change_and_seal(stored, "update runs set machine = 'another'")
    for apart, status in ((1e-4, 0), (1e-2, 1)):
        change(stored, "update metrics set value = value * (1 + ?) where measure = 'target_nll'", apart)
        assert "another machine" in verified(capsys, status=status)


def test_when_something_needed_is_missing_then_the_error_says_what(stored, capsys):
    run, text = stored.fingerprint(RUN), replace(RUN, data=DataConfig.of("text"))
    shutil.rmtree(paths.run_folder("smoke", run))
    assert "no finished weights" in verified(capsys, run, status=2)
    for changes, values, words in (
            ("code = 'of yesterday'", (), "other code"),
            ("config = ?, data = 'some text', code = ?",
             (json.dumps(text.to_dict()), code_fingerprint(training_modules(text))), "CORPUS="),
            ("status = 'running'", (), "nothing to verify")):
        change_and_seal(stored, f"update runs set {changes}", *values)
        assert words in verified(capsys, run, status=2)
    assert "no finished run" in verified(capsys, status=2)


# Ten thousand runs and ten million rows, in small: a question costs what it returns, not what the database holds

RUNS, ROWS = 120, 40            # a quarter of a run's rows are of its training, by step
WINDOWS = (2, 3, 4, 5)
EVALUATIONS = (Evaluation.of("task", count=64), Evaluation.of("task", count=64, lengths=(128,)),
               Evaluation.of("attention_memory"))


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
def many() -> Database:
    return filled_with("big", jobs(RUNS))


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
    "find": lambda database, job: browse.find(database, database.fingerprint(job.run)[:7]),
    "evaluate again": lambda database, job: database.record_evaluation(
        job.run, EVALUATIONS[0], EvalResult([Metric("accuracy", 1.0)], {"right": np.zeros(2)}), 0.1),
}


def test_when_one_run_is_asked_for_or_all_are_then_no_statement_is_for_each_and_no_table_is_read_as_a_whole(many):
    plan = jobs(RUNS)
    small = filled_with("small", plan[:2])
    for question, ask in QUESTIONS.items():
        asked = statements(many, lambda ask=ask: ask(many, plan[RUNS // 2]))
        assert scans(many, asked) == [], question
        assert len(asked) == len(statements(small, lambda ask=ask: ask(small, plan[1]))) <= 12, question
    # The cascades of foreign keys are no statements that a trace shows: the child's key columns must lead an index.
    for what in ("evaluations where run_id", "metrics where run_id", "metrics where evaluation_id",
                 "arrays where evaluation_id"):
        assert scans(many, [f"delete from {what} = 3"]) == [], what
    # A plan is compared, and all runs are looked at, in a few statements.
    assert len(statements(many, lambda: many.missing(jobs(750)))) == 1      # for 750 jobs, of which 120 are there
    known = estimate.Estimator()
    for look in (lambda: browse.listed(many), lambda: known.learn(many)):
        assert len(statements(many, look)) <= 2
    assert len(known.speeds) == RUNS


def test_when_a_run_failed_lacks_evaluations_or_shares_its_prefix_then_each_question_tells_it_from_others(many):
    plan, execute = jobs(RUNS), many.connection.execute
    failed, bare, other = plan[7:10]
    keys = [many.fingerprint(job.run) for job in (failed, bare, other)]
    execute("update runs set status = 'failed' where run = ?", (keys[0],))
    execute("delete from evaluations where run_id = (select id from runs where run = ?)", (keys[1],))
    assert many.missing(plan) == [failed, bare] and not many.trained(failed.run)
    assert many.missing([Job.of(job.run) for job in plan]) == [Job.of(failed.run)]
    assert many.evaluations(keys[::2]) == {keys[2]: set(map(module.evaluation_fingerprint, EVALUATIONS))}
    table = many.metrics(Job.of(other.run, EVALUATIONS[0]))
    assert set(table["run"]) == {keys[2]} and len(table) == 2 * ROWS // 4
    keys = sorted(many.fingerprint(job.run) for job in jobs(RUNS))
    unique = next(n for n in range(1, 17) if sum(key.startswith(keys[3][:n]) for key in keys) == 1)
    assert browse.find(many, keys[3][:unique])["run"] == keys[3]
    for prefix, words in ((keys[3][:unique - 1], "several runs"), ("%", "no run"), (keys[-1] + "0", "no run")):
        with pytest.raises(SuiteError, match=words):
            browse.find(many, prefix)


def test_when_times_of_many_runs_are_known_then_a_median_is_taken_once_until_something_is_new(many, monkeypatch):
    known, taken, plan = estimate.Estimator(), [], jobs(RUNS)
    known.learn(many)
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


def test_when_runs_differ_in_their_seed_alone_then_their_pattern_is_counted_once(many, monkeypatch):
    from lib.patterns.local import Local
    counted, pairs = [], Local.pairs
    monkeypatch.setattr(Local, "pairs", lambda self, length: counted.append(self) or pairs(self, length))
    table = tidy("01", jobs(RUNS), many)
    assert len(table) == RUNS * ROWS and len(counted) == 4
    assert set(table.loc[table["window"] == 3, "pairs"]) == {2 * (1 + 2 + 3 + 61 * 4)}


def test_when_a_table_is_read_in_parts_then_the_page_gets_every_perplexity_and_a_row_of_each_run(
        tmp_path, many, monkeypatch):
    table = tidy("01_window_sweep", jobs(8), many)
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


def test_when_runs_are_many_then_those_in_use_are_kept_and_not_all(many, monkeypatch):
    monkeypatch.setattr(frames, "KEPT", 4)
    plan, asked, array = jobs(10), [], many.array
    monkeypatch.setattr(many, "array", lambda *what: asked.append(what) or array(*what))
    read = frames.Study(plan, many)._array
    assert all(read(job, EVALUATIONS[0], "right").tolist() == [*range(8)] for job in plan * 2 for _ in range(3))
    assert len(asked) == 20 and read.cache_info().currsize == 4
