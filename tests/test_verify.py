"""`make verify`: a stored result computed again from its weights, and what makes it differ."""

from __future__ import annotations

import shutil
import sqlite3

import pytest
from small_run import RUN, trained

from lib import paths
from lib.config import DataConfig, Evaluation
from suite.evals import evaluate
from suite.cli import main
from suite.run.database import Database, Facts, array_of, now
from suite.settings.fingerprints import code_fingerprint, training_modules
from suite.settings.machine import machine, versions

ONE, TWO = Evaluation.of("task", count=16), Evaluation.of("alphas")


@pytest.fixture
def database(tmp_path, monkeypatch) -> Database:
    """A trained run with two evaluations, as a worker records it."""
    monkeypatch.setenv("SUITE_OUTPUTS", str(tmp_path))
    found = Database("smoke")
    result = trained(RUN, paths.run_folder("smoke", found.fingerprint(RUN)))
    facts = Facts(versions(), machine(), "cpu", 1)
    found.record_training(RUN, facts, result, sum(p.numel() for p in result.model.parameters()), now())
    for evaluation in (ONE, TWO):
        found.record_evaluation(RUN, evaluation, evaluate(evaluation, result.model, RUN), 0.1)
    return found


def told(capsys, *arguments: str) -> tuple[int, str]:
    status = main(["verify", *arguments, "--profile", "smoke"])
    both = capsys.readouterr()
    return status, both.out + both.err


def change(database: Database, statement: str, *values: object) -> None:
    with sqlite3.connect(database.path) as connection:
        assert connection.execute(statement, values).rowcount >= 1


@pytest.mark.parametrize("every", [True, False])
def test_when_nothing_was_changed_then_every_number_comes_out_again(database, capsys, every):
    status, text = told(capsys, "--all" if every else database.fingerprint(RUN)[:6])
    metrics = database.rows("select * from metrics where evaluation_id is not null")
    arrays = sum(array_of(row).size for row in database.rows("select * from arrays"))
    assert status == 0 and text.count("identical") == 2 and "2 results" in text and "all agree" in text
    assert arrays > 16 and f" {len(metrics) + arrays} numbers" in text


@pytest.mark.parametrize("statement", [
    "update metrics set value = value + 1e-9 where measure = 'accuracy'",
    "delete from metrics where measure = 'accuracy'",
    "update metrics set length = length + 1 where measure = 'accuracy'",
    "insert into metrics select run_id, evaluation_id, measure, 'more', variant, length, position, layer, step, value "
    "from metrics where measure = 'accuracy' and evaluation_id is not null limit 1",
    "delete from arrays where name like 'correct.copying%'",
    "update arrays set data = zeroblob(length(data)) where name like 'count.copying%'",
    "update arrays set shape = '[8, 2]' where name like 'count.copying%'"])
def test_when_a_stored_number_was_changed_then_it_is_told(database, capsys, statement):
    change(database, statement)
    status, text = told(capsys)
    assert status == 1 and "differ" in text and "1 results do not agree" in text


def test_when_the_weights_are_others_then_it_is_told(database, capsys):
    from lib.checkpoint import save_finished
    from lib.training import load_run
    folder = paths.run_folder("smoke", database.fingerprint(RUN))
    result = load_run(RUN, folder)
    result.model.embedding.weight.data.mul_(-1.0)
    save_finished(folder, RUN, result.model, {"seconds": 1.0, "tokens_per_s": 1.0, "peak_memory_mib": 1.0, "spent": {},
                                              "metrics": []})
    assert told(capsys)[0] == 1


def test_when_made_elsewhere_then_rounding_is_allowed_and_more_is_not(database, capsys):
    change(database, "update runs set machine = 'another'")
    change(database, "update metrics set value = value * (1 + 1e-4) where measure = 'target_nll'")
    status, text = told(capsys)
    assert status == 0 and "another machine" in text
    change(database, "update metrics set value = value * (1 + 1e-2) where measure = 'target_nll'")
    assert told(capsys)[0] == 1


def test_when_something_needed_is_missing_then_the_error_says_what(database, capsys):
    run = database.fingerprint(RUN)
    assert told(capsys, "abcdefgh") == (2, "error: no run of profile 'smoke' begins with 'abcdefgh': "
                                           "see python -m suite runs list\n")
    change(database, "update runs set code = 'of yesterday'")
    status, text = told(capsys, run)
    assert status == 2 and "other code" in text
    change(database, "update runs set code = ?", code_fingerprint(training_modules(RUN)))
    shutil.rmtree(paths.run_folder("smoke", run))
    status, text = told(capsys, run)
    assert status == 2 and "no finished weights" in text
    change(database, "update runs set status = 'running'")
    assert "nothing to verify" in told(capsys, run)[1] and "no finished run" in told(capsys)[1]


def test_when_the_text_is_gone_then_the_error_says_how_to_get_it(database, capsys):
    from dataclasses import replace
    from json import dumps

    text = replace(RUN, data=DataConfig.of("text"))
    change(database, "update runs set config = ?, data = 'some text', code = ?", dumps(text.to_dict()),
           code_fingerprint(training_modules(text)))
    status, said = told(capsys)
    assert status == 2 and "CORPUS=" in said
