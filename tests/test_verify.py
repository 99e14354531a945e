"""`make verify`: a stored result computed again from its weights, and what makes it differ."""

from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from small_run import RUN, trained

from lib import paths
from lib.config import DataConfig, Evaluation
from suite.cli import main
from suite.evals import evaluate
from suite.run.database import Database, Facts, array_of, now
from suite.settings.fingerprints import code_fingerprint, training_modules
from suite.settings.machine import machine, versions

ONE, TWO = Evaluation.of("task", count=16), Evaluation.of("alphas")
TEXT = replace(RUN, data=DataConfig.of("text"))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The outputs of a trained run with two evaluations, as a worker records it. A test changes a copy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUITE_OUTPUTS", str(tmp_path_factory.mktemp("made")))
        found = Database("smoke")
        result = trained(RUN, paths.run_folder("smoke", found.fingerprint(RUN)))
        facts = Facts(versions(), machine(), "cpu", 1)
        found.record_training(RUN, facts, result, sum(p.numel() for p in result.model.parameters()), now())
        for evaluation in (ONE, TWO):
            found.record_evaluation(RUN, evaluation, evaluate(evaluation, result.model, RUN), 0.1)
        found.close()
        return paths.outputs()


@pytest.fixture
def database(made, outputs) -> Database:
    shutil.copytree(made, outputs, dirs_exist_ok=True)
    return Database("smoke")


def told(capsys, *arguments: str) -> tuple[int, str]:
    status = main(["verify", *arguments, "--profile", "smoke"])
    return status, "".join(capsys.readouterr())


def change(database: Database, statement: str, *values: object) -> None:
    with sqlite3.connect(database.path) as connection:
        assert connection.execute(statement, values).rowcount >= 1


def test_when_nothing_was_changed_then_every_number_comes_out_again(database, capsys):
    metrics = database.rows("select * from metrics where evaluation_id is not null")
    arrays = sum(array_of(row).size for row in database.rows("select * from arrays"))
    assert arrays > 16
    for argument in ("--all", database.fingerprint(RUN)[:6]):
        status, text = told(capsys, argument)
        assert status == 0 and text.count("identical") == 2 and "2 results" in text and "all agree" in text
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
def test_when_a_stored_number_was_changed_then_it_is_told(database, capsys, statement):
    change(database, statement)
    status, text = told(capsys)
    assert status == 1 and "differ" in text and "1 results do not agree" in text


def test_when_the_weights_are_others_then_it_is_told(database, capsys):
    from lib.checkpoint import save_finished
    from lib.training import load_run
    folder = paths.run_folder("smoke", database.fingerprint(RUN))
    model, facts = load_run(RUN, folder).model, json.loads((folder / "result.json").read_text())
    model.embedding.weight.data.mul_(-1.0)
    del facts["weights_sha256"]
    save_finished(folder, RUN, model, facts)
    assert told(capsys)[0] == 1


def test_when_made_elsewhere_then_rounding_is_allowed_and_more_is_not(database, capsys):
    change(database, "update runs set machine = 'another'")
    for apart, status in ((1e-4, 0), (1e-2, 1)):
        change(database, "update metrics set value = value * (1 + ?) where measure = 'target_nll'", apart)
        assert told(capsys)[0] == status
    assert "another machine" in told(capsys)[1]


def test_when_something_needed_is_missing_then_the_error_says_what(database, capsys):
    run = database.fingerprint(RUN)

    def said(words: str, *arguments: str) -> None:
        status, text = told(capsys, *arguments)
        assert status == 2 and text.startswith("error: ") and words in text
    said("no run of profile 'smoke' begins with 'abcdefgh': see python -m suite runs list\n", "abcdefgh")
    shutil.rmtree(paths.run_folder("smoke", run))
    said("no finished weights", run)
    change(database, "update runs set code = 'of yesterday'")
    said("other code", run)
    change(database, "update runs set config = ?, data = 'some text', code = ?", json.dumps(TEXT.to_dict()),
           code_fingerprint(training_modules(TEXT)))
    said("CORPUS=", run)
    change(database, "update runs set status = 'running'")
    said("nothing to verify", run)
    said("no finished run")
