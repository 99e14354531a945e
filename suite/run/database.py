"""The experiment database: one SQLite file a profile, one row a run, its evaluations, metrics and arrays.

A run is keyed by the fingerprint of its configuration, its data and the code that determines its result. What belongs
together (a training with its metrics, an evaluation with its metrics and arrays) is written in one transaction, so that
a process killed at any moment leaves all of it or nothing. WAL mode lets notebooks read while workers write.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lib import paths
from lib.config import Evaluation, RunConfig
from lib.errors import SuiteError
from suite.run.schema import connect, transaction
from suite.settings.fingerprints import (code_fingerprint, data_fingerprint,
                                         evaluation_fingerprint,
                                         run_fingerprint, training_modules)

if TYPE_CHECKING:
    import pandas as pd

    from lib.data import Corpus
    from suite.experiments.base import Job

AT_ONCE = 500                # runs that one statement asks for
METRIC_COLUMNS = ("measure", "value", "split", "variant", "length", "position", "layer", "step")
WHOLE = ("length", "position", "layer", "step", "parameters")


@dataclass(frozen=True)
class Facts:
    """Where and with what a run was trained."""
    versions: dict[str, str]
    machine: str
    device: str
    threads: int


class Database:
    """The runs of one profile, seen with one corpus (None: only runs on synthetic tasks have a fingerprint)."""

    def __init__(self, profile: str, corpus: Corpus | None = None, *, create: bool = True) -> None:
        self.profile, self.corpus = profile, corpus
        self.path = paths.database(profile)
        if not create and not self.path.exists():
            raise SuiteError(f"no runs yet in profile {profile!r}: {self.path} does not exist")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.connection = connect(self.path)

    def close(self) -> None:
        self.connection.close()

    def fingerprint(self, run: RunConfig) -> str:
        return run_fingerprint(run, self.corpus)

    # What is there

    def facts(self, run: str) -> sqlite3.Row | None:
        """The row of a run by its fingerprint."""
        return self.connection.execute("select * from runs where run = ?", (run,)).fetchone()

    def trained(self, run: RunConfig) -> bool:
        key = self.fingerprint(run)
        return key in self.evaluations([key])

    def evaluated(self, run: str) -> set[str]:
        """Fingerprints of a run's evaluations."""
        return self.evaluations([run]).get(run, set())

    def evaluations(self, runs: Sequence[str]) -> dict[str, set[str]]:
        """Fingerprints of the evaluations of those of `runs` that are trained; one statement for many of them."""
        found: dict[str, set[str]] = {}
        for at in range(0, len(runs), AT_ONCE):
            some = runs[at:at + AT_ONCE]
            query = f"""select run, evaluation from runs left join evaluations on run_id = runs.id
                        where run in ({', '.join('?' * len(some))}) and status = 'done'"""
            for row in self.connection.execute(query, some):
                found.setdefault(row["run"], set()).update({row["evaluation"]} - {None})
        return found

    def missing(self, jobs: Iterable[Job]) -> list[Job]:
        """The jobs that need work, each with only the evaluations that it lacks, in order."""
        asked = [(self.fingerprint(job.run), job) for job in jobs]
        there, todo = self.evaluations([key for key, _ in asked]), []
        for key, job in asked:
            lacking = tuple(e for e in job.evaluations if evaluation_fingerprint(e) not in there.get(key, ()))
            if lacking or key not in there:
                todo.append(replace(job, evaluations=lacking))
        return todo

    def metrics(self, job: Job) -> pd.DataFrame:
        """The metrics of a finished job: of its own evaluations, and of its training by step.

        Columns: run, measure, value, split, variant, length, position, layer, step, parameters, run_seconds,
        run_tokens_per_s, run_peak_memory_mib. Raises `SuiteError` if the run or one of the evaluations is missing.
        """
        import pandas as pd
        row = self.finished(job.run)
        rows = list(self.rows_of("run_id = ? and evaluation_id is null", row["id"]))
        for evaluation in job.evaluations:
            rows += self.rows_of("evaluation_id = ?", self.evaluation_id(row, evaluation))
        frame = pd.DataFrame([tuple(r) for r in rows], columns=list(METRIC_COLUMNS))
        frame.insert(0, "run", row["run"])
        frame = frame.assign(parameters=row["parameters"], run_seconds=row["seconds"], run_tokens_per_s=row["tokens_per_s"],
                             run_peak_memory_mib=row["peak_memory_mib"])
        return frame.astype({**dict.fromkeys(WHOLE, "Int64"), "value": "float64"})

    def array(self, job: Job, evaluation: Evaluation, name: str) -> np.ndarray:
        """An array of a finished evaluation, for instance `nll` `[N windows, bins]` of a perplexity."""
        at = self.evaluation_id(self.finished(job.run), evaluation)
        row = self.connection.execute("select * from arrays where evaluation_id = ? and name = ?", (at, name)).fetchone()
        if row is None:
            known = [r["name"] for r in self.connection.execute("select name from arrays where evaluation_id = ?", (at,))]
            there = ", ".join(sorted(known)) or "none"
            raise SuiteError(f"evaluation {evaluation.name!r} has no array {name!r} (known: {there})")
        return np.frombuffer(row["data"], dtype=row["dtype"]).reshape(json.loads(row["shape"])).copy()

    def finished(self, run: RunConfig) -> sqlite3.Row:
        row = self.facts(self.fingerprint(run))
        if row is None or row["status"] != "done":
            what = f"{run.pattern.name}, seed {run.train.seed}"
            raise SuiteError(f"the run {self.fingerprint(run)} ({what}) is not trained yet")
        return row

    def evaluation_id(self, run: sqlite3.Row, evaluation: Evaluation) -> int:
        query = "select id from evaluations where run_id = ? and evaluation = ?"
        row = self.connection.execute(query, (run["id"], evaluation_fingerprint(evaluation))).fetchone()
        if row is None:
            wanted = f"{evaluation.name!r} with {dict(evaluation.parameters)}"
            raise SuiteError(f"the run {run['run']} has no evaluation {wanted} yet")
        return row["id"]

    def rows_of(self, condition: str, key: int) -> Iterator[sqlite3.Row]:
        columns = ", ".join(METRIC_COLUMNS)
        yield from self.connection.execute(f"select {columns} from metrics where {condition} order by rowid", (key,))

    # What is written

    def start(self, run: RunConfig, facts: Facts) -> None:
        """A row that says that the run is being trained; the lock in the run's folder says whether that is still so."""
        fields = {**self.describe(run, facts), "status": "running", "started": now(), "ended": None, "error": None}
        with transaction(self.connection):
            self.upsert(fields)

    def record_training(self, run: RunConfig, facts: Facts, result: Any, parameters: int, started: str) -> None:
        """A finished training (`lib.train_run.TrainResult`) with its metrics by step, in one transaction."""
        fields = {**self.describe(run, facts), "status": "done", "started": started, "ended": now(), "error": None,
                  "seconds": result.seconds, "tokens_per_s": result.tokens_per_s, "peak_memory_mib": result.peak_memory_mib,
                  "parameters": parameters, "spent": json.dumps(result.spent)}
        with transaction(self.connection):
            run_id = self.upsert(fields)
            self.connection.execute("delete from metrics where run_id = ? and evaluation_id is null", (run_id,))
            self.insert_metrics(run_id, None, result.metrics, fields["run"])

    def record_evaluation(self, run: RunConfig, evaluation: Evaluation, result: Any, seconds: float) -> None:
        """A finished evaluation (`suite.evals.EvalResult`) with its metrics and arrays, in one transaction."""
        row = self.finished(run)
        key = evaluation_fingerprint(evaluation)
        with transaction(self.connection):
            self.connection.execute("delete from evaluations where run_id = ? and evaluation = ?", (row["id"], key))
            at = self.connection.execute(
                "insert into evaluations (run_id, evaluation, name, parameters, seconds, ended) values (?, ?, ?, ?, ?, ?)",
                (row["id"], key, evaluation.name, json.dumps(dict(evaluation.parameters)), seconds, now())).lastrowid
            self.insert_metrics(row["id"], at, result.metrics, row["run"])
            for name, array in result.arrays.items():
                array = np.ascontiguousarray(array)
                if array.dtype.hasobject:
                    raise TypeError(f"array {name!r} of evaluation {evaluation.name!r} holds Python objects, not numbers")
                self.connection.execute("insert into arrays values (?, ?, ?, ?, ?)", (
                    at, name, array.dtype.str, json.dumps(array.shape), array.tobytes()))

    def record_failure(self, run: RunConfig, facts: Facts, error: str) -> None:
        """Why a run ended without a result; a run that was trained before stays trained."""
        if self.trained(run):
            return
        fields = {**self.describe(run, facts), "status": "failed", "started": now(), "ended": now(), "error": error}
        with transaction(self.connection):
            self.upsert(fields)

    def describe(self, run: RunConfig, facts: Facts) -> dict[str, Any]:
        return {"run": self.fingerprint(run), "pattern": run.pattern.name, "config": json.dumps(run.to_dict()),
                "data": data_fingerprint(run, self.corpus), "code": code_fingerprint(training_modules(run)),
                "versions": json.dumps(facts.versions), "machine": facts.machine, "device": facts.device,
                "threads": facts.threads}

    def upsert(self, fields: dict[str, Any]) -> int:
        names, updates = ", ".join(fields), ", ".join(f"{name} = excluded.{name}" for name in fields)
        query = (f"insert into runs ({names}) values ({', '.join('?' * len(fields))}) "
                 f"on conflict (run) do update set {updates} returning id")
        return self.connection.execute(query, tuple(fields.values())).fetchone()["id"]

    def insert_metrics(self, run_id: int, evaluation_id: int | None, metrics: Sequence[Any], run: str) -> None:
        for m in metrics:
            if not math.isfinite(m.value):
                raise SuiteError(f"run {run}: {m.measure} is {m.value} at step {m.step}: the training diverged; lower lr")
        def whole(number: Any) -> int | None:            # SQLite would store a numpy integer as bytes
            return None if number is None else int(number)
        rows = [(run_id, evaluation_id, m.measure, m.split, m.variant, whole(m.length), whole(m.position), whole(m.layer),
                 whole(m.step), float(m.value)) for m in metrics]
        self.connection.executemany("insert into metrics values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)


def now() -> str:
    """The time, to the second, with the offset of the time zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
