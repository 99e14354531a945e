"""A plan in text and JSON: operations, memory, hours on a named GPU, and what of it is the Fibonacci paper's."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import big_database
import pytest
from fake_jobs import job

from lib.config import DataConfig
from suite.plan import estimate, gpus
from suite.plan import outlook as planning
from suite.run.database import Database
from suite.settings import profiles


@pytest.mark.parametrize("arguments", [(), ("--gpu", "RTX 3090")])
def test_when_a_plan_is_asked_for_as_json_then_operations_memory_and_hours_are_those_by_hand(house, capsys, arguments):
    house.notebook("01_a", job(1, 512), job(2, 512))
    house.notebook("02_b", job(2, 512), job(3, 512, steps=8))
    assert house.run("plan", "--json", *arguments) == 0
    told = json.loads(capsys.readouterr().out)
    first, second, total = [*told["notebooks"], told["total"]]
    weights = 2 * (16 * 8 * 6 + 3 * 16 * 32) + 64 * 16                 # of products: two layers, and the output matrix
    a_window = 2 * weights * 64 + 4 * 2 * 8 * 2 * (1 + 2 + 3 + 61 * 4)  # local, W = 3, in two layers
    training, evaluation = 3 * 4 * 2 * a_window, 512 * a_window        # steps x windows; sequences
    assert (first["flops"], second["flops"]) == (2 * training + 2 * evaluation, 2 * training + evaluation)
    assert total["flops"] == first["flops"] + second["flops"]
    assert {row["micro_batches"] for row in (first, second, total)} == {1}
    assert 16 * weights < total["memory_gib"] * 2 ** 30 < 32 * weights + 2 * 64 * 5000
    if arguments:
        assert told["gpu"]["name"] == "rtx-3090" and told["gpu"]["fp32"] == 35.6 and told["gpu"]["measured"] == []
        a_second = told["gpu"]["shares_of_peak"]["fixed"] * 35.6e12
        assert total["hours"] == pytest.approx(total["flops"] / a_second / 3600)
    else:
        assert told["gpu"] is None and total["hours"] is None
    assert told["matrix"] == []                                        # no run is the paper's
    assert set(total) == {"notebook", "runs", "shared", "done", "to_train", "tokens", "evaluations", "flops",
                          "memory_gib", "micro_batches", "minutes", "hours"}


def test_when_a_gpu_is_named_wrongly_then_the_plan_ends_with_2_and_the_nearest_name(house, capsys, monkeypatch):
    house.notebook("01_a", job(1))
    monkeypatch.setattr(planning, "planned", None)                     # before anything is counted
    assert house.run("plan", "--gpu", "h1000") == 2
    assert "unknown GPU 'h1000'; did you mean 'h100'?" in capsys.readouterr().err


def test_when_the_paper_is_planned_then_the_text_sets_its_matrix_beside_the_published_hours(monkeypatch):
    profile, sweep = profiles.load("paper"), planning.planned(profiles.load("paper"), "01_window_sweep")
    monkeypatch.setattr(estimate, "measure", lambda precision: 1e9)
    monkeypatch.setattr(gpus, "seen", lambda: None)
    text = planning.outlook([sweep], profile, None, planning.default_gpu([sweep])).text()
    assert "RTX 3090, h" in text and "RTX 3090: hours of one GPU" in text      # the paper's, if none is named
    assert "published matrix, 30 runs: 117.4 hours on one RTX 3090; published: 117.4 GPU-hours" in text
    lines = {line[:26].strip(): line.split()[-5:] for line in text.splitlines()}
    assert lines["the paper's models"][0] == "21" and lines["its replicates"][0] == "9"
    faster = planning.outlook([sweep], profile, None, "h100").text()
    assert "30 runs: 8.4 hours on one H100" in faster and max(map(len, faster.splitlines()[1:])) <= 128
    monkeypatch.setitem(gpus.GPUS, "h100", replace(gpus.GPUS["h100"], memory_gib=8))
    split = planning.outlook([sweep], profile, None, "h100").text()
    assert "01_window_sweep: batches are split in up to 2 to fit" in split


def test_when_the_corpus_is_not_built_then_runs_of_a_task_can_be_there_and_runs_of_text_cannot(outputs):
    [done] = big_database.jobs(1)
    text = replace(done, run=replace(done.run, data=DataConfig.of("text")))
    database = Database("big")
    big_database.fill(database, [done], 8)
    database.close()
    untrained, lacking = planning.work_left([done, text], SimpleNamespace(name="big"), None)
    assert untrained == {text.run} and lacking == {done.run: set(), text.run: set(text.evaluations)}
