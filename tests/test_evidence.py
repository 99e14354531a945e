"""Runs that ship: what a file holds comes into the database as it was measured, and out again as the same file."""

from __future__ import annotations

from types import SimpleNamespace

from lib import paths
from suite.run import evidence
from suite.run.database import Database
from suite.settings import profiles
from suite.study.frames import plans


def test_when_a_shipped_run_is_entered_then_it_is_there_and_written_again_it_is_the_same(outputs, monkeypatch):
    job = next(job for job in plans(profiles.load("evidence"))["08_all_patterns"]
               if evidence.path_of(job.run).exists())
    database = Database("evidence", SimpleNamespace(fingerprint="another text"))
    assert evidence.enter(database, [job]) == [database.fingerprint(job.run)] and not database.missing([job])
    losses = database.array(job, job.evaluations[0], "nll.docs.256")
    assert losses.dtype == "float64" and 1 < losses.sum() / losses.shape[0] / 256 < 6
    known = evidence.read(evidence.path_of(job.run)).to_pylist()
    monkeypatch.setattr(paths, "EVIDENCE", outputs)
    again = evidence.read(evidence.write(database, job)).to_pylist()
    assert len(again) == 1 + len(job.evaluations) and all(row in known for row in again)
