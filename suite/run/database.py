"""The experiment database: one SQLite file per profile with runs, evaluations, metrics and arrays.

The key of a run is the fingerprint of its configuration, its data and the code that determines its result. A training
with its metrics, or an evaluation with its metrics and arrays, is written in one transaction, so a process that is
killed at any moment leaves all of it or nothing. In WAL mode notebooks read while workers write.

Every row keeps a hash of itself (`digest`), and those of runs and evaluations one of their metrics (`numbers`). A
number that is not as it was written is refused; `suite.run.damage` sets its row aside.
"""

import json
import math
import sqlite3
import time
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout

from lib import paths
from lib.config import Evaluation, RunConfig
from lib.data import Corpus
from lib.errors import SuiteError
from suite.run.seals import METRIC_COLUMNS, seal, seal_all, sealed, sound, title
from suite.settings.fingerprints import (code_fingerprint, data_fingerprint, evaluation_fingerprint, run_fingerprint,
                                         training_modules)

if TYPE_CHECKING:
    import pandas as pd

    from suite.experiments.base import Job

WHOLE = ("length", "position", "layer", "step")              # columns of whole numbers
MEASURED = ("seconds", "tokens_per_s", "peak_memory_mib")    # columns of a run that a training measures
SCHEMA = 3
BUSY_SECONDS = 60
TABLES = Path(__file__).with_name("tables.sql").read_text("utf-8")
MIGRATIONS = {1: "alter table runs add column spent text",      # from a schema to the next
              2: "; ".join(f"alter table {table} add column {column}" for table, column in (
                  ("runs", "numbers text"), ("runs", "digest text"), ("evaluations", "array_count integer"),
                  ("evaluations", "numbers text"), ("evaluations", "digest text"), ("arrays", "digest text")))}
DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)      # what SQLite calls a damaged file
REMEDIES = {sqlite3.SQLITE_FULL: "make room on the disk", sqlite3.SQLITE_BUSY: "another program holds it; try again"}


class Damaged(SuiteError):
    """The database, or a row of it, is not as it was written."""


@dataclass(frozen=True)
class Facts:
    """Where and with what a run was trained."""
    versions: dict[str, str]
    machine: str
    device: str
    threads: int


class Database:
    """The runs of one profile, for one corpus (None: only runs on synthetic tasks have a fingerprint)."""

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

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with errors_of(self.path):
            return self.connection.execute(query, values).fetchall()

    @contextmanager
    def transaction(self, kind: str = "immediate") -> Iterator[None]:
        """All or nothing. `immediate` takes the write lock first, so that two writers wait instead of failing."""
        with errors_of(self.path), self.connection:
            self.connection.execute(f"begin {kind}")
            yield

    def intact(self, row: sqlite3.Row, fine: bool = True) -> sqlite3.Row:
        """The row (of runs or evaluations); a `SuiteError` names it if it, or what belongs to it, is damaged."""
        if fine and sound(row):
            return row
        raise Damaged(f"{self.path}: {title(row)} is damaged: python -m suite runs check --profile {self.profile} sets "
                      "it aside, and make report makes it again")

    def facts(self, run: str) -> sqlite3.Row | None:
        """The row of a run by its fingerprint."""
        for row in self.rows("select * from runs where run = ?", run):
            return self.intact(row, row["run"] == run)
        return None

    def trained(self, run: RunConfig) -> bool:
        return bool(self.evaluations([self.fingerprint(run)]))

    def evaluations(self, runs: Sequence[str]) -> dict[str, set[str]]:
        """The fingerprints of evaluations by run, for the trained ones among `runs`."""
        stored = defaultdict(set)
        for row in self.rows(f"""select run, evaluation from runs left join evaluations on run_id = runs.id
                                 where run in ({marks(runs)}) and status = 'done'""", *runs):
            stored[row["run"]] |= {row["evaluation"]} - {None}
        return dict(stored)

    def missing(self, jobs: Iterable["Job"]) -> list["Job"]:
        """The jobs that need work, in order, each with only its missing evaluations."""
        wanted = [(self.fingerprint(job.run), job) for job in jobs]
        stored, todo = self.evaluations([key for key, _ in wanted]), []
        for key, job in wanted:
            lacking = tuple(e for e in job.evaluations if evaluation_fingerprint(e) not in stored.get(key, ()))
            if lacking or key not in stored:
                todo.append(replace(job, evaluations=lacking))
        return todo

    def metrics(self, job: "Job") -> "pd.DataFrame":
        """The metrics of a finished job: those of the job's evaluations, and those of the training by step.
        Columns: run, measure, value, split, variant, length, position, layer, step, parameters, run_seconds,
        run_tokens_per_s, run_peak_memory_mib. Raises `SuiteError` if the run or one of the evaluations is missing."""
        import pandas as pd
        run = self.finished(job.run)
        rows = self.values(run)
        for evaluation in job.evaluations:
            rows += self.values(self.evaluated(run, evaluation))
        frame = pd.DataFrame([tuple(row) for row in rows], columns=list(METRIC_COLUMNS))
        frame.insert(0, "run", run["run"])
        frame = frame.assign(parameters=run["parameters"], **{f"run_{name}": run[name] for name in MEASURED})
        return frame.astype({**dict.fromkeys((*WHOLE, "parameters"), "Int64"), "value": "float64"})

    def values(self, owner: sqlite3.Row) -> list[sqlite3.Row]:
        """The metrics (`METRIC_COLUMNS`) of an evaluation, or of a run's training, in the order of their record."""
        rows = self.stored_values(owner)
        self.intact(owner, owner["numbers"] == sealed(*map(tuple, rows)))
        return rows

    def stored_values(self, owner: sqlite3.Row) -> list[sqlite3.Row]:
        """The same, as they are, damaged or not."""
        ids = (owner["run_id"], owner["id"]) if "run_id" in owner.keys() else (owner["id"], None)
        return self.rows(f"select {', '.join(METRIC_COLUMNS)} from metrics where run_id = ? and evaluation_id is ? "
                         "order by rowid", *ids)

    def array(self, job: "Job", evaluation: Evaluation, name: str) -> np.ndarray:
        """An array of a finished evaluation, for instance `nll` `[N windows, bins]` of a perplexity."""
        own = self.evaluated(self.finished(job.run), evaluation)
        for stored in self.rows("select * from arrays where evaluation_id = ? and name = ?", own["id"], name):
            self.intact(own, sound(stored))
            return array_of(stored).copy()
        known = [row["name"] for row in self.rows("select name from arrays where evaluation_id = ? order by name",
                                                  own["id"])]
        raise SuiteError(f"evaluation {evaluation.name!r} has no array {name!r} (known: {', '.join(known) or 'none'})")

    def finished(self, run: RunConfig) -> sqlite3.Row:
        key = self.fingerprint(run)
        row = self.facts(key)
        if row is None or row["status"] != "done":
            raise SuiteError(f"the run {key} ({run.pattern.name}, seed {run.train.seed}) is not trained yet")
        return row

    def evaluated(self, run: sqlite3.Row, evaluation: Evaluation) -> sqlite3.Row:
        query = "select * from evaluations where run_id = ? and evaluation = ?"
        for stored in self.rows(query, run["id"], evaluation_fingerprint(evaluation)):
            return self.intact(stored)
        raise SuiteError(f"the run {run['run']} has no evaluation {evaluation.name!r} with "
                         f"{dict(evaluation.parameters)} yet")

    def record_start(self, run: RunConfig, facts: Facts) -> None:
        """A row that says that the run is being trained; the lock in the run's folder says whether that still holds."""
        with self.transaction():
            self.upsert(run, facts, "running", started=now(), ended=None)

    def record_training(self, run: RunConfig, facts: Facts, result: Any, parameters: int, started: str) -> None:
        """A finished training (`lib.training.TrainResult`) with its metrics by step, in one transaction."""
        measured = {name: getattr(result, name) for name in MEASURED}
        rows = rows_of(result.metrics, self.fingerprint(run))
        with self.transaction():
            run_id = self.upsert(run, facts, "done", started=started, ended=now(), parameters=parameters,
                                 spent=json.dumps(result.spent), numbers=sealed(*rows), **measured)
            self.insert_metrics(run_id, None, rows)

    def record_evaluation(self, run: RunConfig, evaluation: Evaluation, result: Any, seconds: float) -> None:
        """A finished evaluation (`suite.evals.EvalResult`) with its metrics and arrays, in one transaction."""
        row, key = self.finished(run), evaluation_fingerprint(evaluation)
        rows = rows_of(result.metrics, row["run"])
        with self.transaction():
            self.connection.execute("delete from evaluations where run_id = ? and evaluation = ?", (row["id"], key))
            at = self.insert("evaluations", dict(
                run_id=row["id"], evaluation=key, name=evaluation.name, seconds=seconds, ended=now(),
                parameters=json.dumps(dict(evaluation.parameters)), array_count=len(result.arrays),
                numbers=sealed(*rows)))
            self.insert_metrics(row["id"], at, rows)
            for name, array in result.arrays.items():
                self.insert("arrays", dict(evaluation_id=at, name=name, **columns_of(array)))

    def record_failure(self, run: RunConfig, facts: Facts, error: str) -> None:
        """Record why a run ended without a result; a run that was trained before stays trained."""
        if not self.trained(run):
            with self.transaction():
                self.upsert(run, facts, "failed", started=now(), ended=now(), error=error)

    # Inside a transaction

    def upsert(self, run: RunConfig, facts: Facts, status: str, **values: Any) -> int:
        """Insert or replace the row of a run; returns its id."""
        row = {"run": self.fingerprint(run), "pattern": run.pattern.name, "config": json.dumps(run.to_dict()),
               "data": data_fingerprint(run, self.corpus), "code": code_fingerprint(training_modules(run)),
               **vars(facts), "versions": json.dumps(facts.versions), "status": status, "error": None, **values}
        updates = ", ".join(f"{name} = excluded.{name}" for name in row)
        return self.insert("runs", row, f"on conflict (run) do update set {updates}")

    def insert(self, table: str, row: dict[str, Any], conflict: str = "") -> int:
        """Insert a row with its hash, which is of the values as SQLite has stored them; returns its number."""
        query = f"insert into {table} ({', '.join(row)}) values ({marks(row)}) {conflict} returning rowid"
        at = self.connection.execute(query, tuple(row.values())).fetchone()[0]
        seal(self.connection, table, at)
        return at

    def insert_metrics(self, run_id: int, evaluation_id: int | None, rows: Sequence[tuple[Any, ...]]) -> None:
        """In place of those that are there."""
        ids = (run_id, evaluation_id)
        self.connection.execute("delete from metrics where run_id = ? and evaluation_id is ?", ids)
        self.connection.executemany(f"insert into metrics (run_id, evaluation_id, {', '.join(METRIC_COLUMNS)}) "
                                    f"values ({marks(range(10))})", [(*ids, *row) for row in rows])


def rows_of(metrics: Sequence[Any], run: str) -> list[tuple[Any, ...]]:
    """What the table `metrics` keeps of them (`METRIC_COLUMNS`); a `SuiteError` for a number that is not finite."""
    for m in metrics:
        if not math.isfinite(m.value):
            raise SuiteError(f"run {run}: {m.measure} is {m.value} at step {m.step}: the training diverged; lower lr")
    # SQLite would store a numpy integer as bytes.
    return [(m.measure, float(m.value), m.split, m.variant,
             *(None if getattr(m, name) is None else int(getattr(m, name)) for name in WHOLE)) for m in metrics]


def marks(values: Iterable[Any]) -> str:
    return ", ".join("?" for _ in values)


def columns_of(array: np.ndarray) -> dict[str, Any]:
    """What the table `arrays` keeps of an array."""
    array = np.ascontiguousarray(array)
    if array.dtype.hasobject:
        raise TypeError("an array of an evaluation holds Python objects, not numbers")
    return {"dtype": array.dtype.str, "shape": json.dumps(array.shape), "data": array.tobytes()}


def array_of(row: Mapping[str, Any] | sqlite3.Row) -> np.ndarray:
    """The array of a row of the table `arrays`, read-only."""
    return np.frombuffer(row["data"], dtype=row["dtype"]).reshape(json.loads(row["shape"]))


def packed(value: Any) -> Any:
    """An argument of a `record_` method for `json.dumps(default=packed)`: results cross machines as JSON."""
    if isinstance(value, np.ndarray):
        columns = columns_of(value)
        return {"__array__": {**columns, "data": b64encode(columns["data"]).decode()}}
    if isinstance(value, Evaluation):
        return {"__evaluation__": [value.name, value.parameters]}
    return value.item() if isinstance(value, np.generic) else {"__fields__": vars(value)}


def unpacked(value: dict[str, Any]) -> Any:
    """The way back, for `json.loads(object_hook=unpacked)`; another object than an evaluation becomes a namespace."""
    match value:
        case {"__array__": columns}:
            return array_of({**columns, "data": b64decode(columns["data"])})
        case {"__evaluation__": [name, parameters]}:
            return Evaluation.of(name, **dict(parameters))
        case {"__fields__": fields}:
            return SimpleNamespace(**fields)
    return value


# The file

def connect(path: Path) -> sqlite3.Connection:
    """Open the database, or create it, or bring one of an older schema up to this one. A file that is no database stays
    as it is; a `SuiteError` names it."""
    with errors_of(path):
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")      # damaged text must not stop a query
    try:
        with errors_of(path):
            connection.execute("pragma foreign_keys = on")
            connection.execute("pragma trusted_schema = off")       # the file and its triggers may be made elsewhere
            if version_of(connection, path) < SCHEMA:
                switch_to_wal(connection)
                with connection:                         # of two processes that arrive here at once, one creates
                    connection.execute("begin immediate")
                    bring_up(connection, version_of(connection, path))
    except SuiteError:
        connection.close()
        raise
    return connection


@contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """What SQLite says of the file at `path` becomes a `SuiteError`: `Damaged` where the file is."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:               # the latter of SQLite's own message
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 255        # without what SQLite adds to it
        if code in DAMAGE or isinstance(error, UnicodeDecodeError):
            raise Damaged(f"{path} is not a readable database ({error}): python -m suite runs check --profile "
                          f"{path.parent.name} saves what can be read of it") from None
        if not isinstance(error, sqlite3.OperationalError):
            raise
        remedy = REMEDIES.get(code, "is it a file that may be written, in a folder that may be written?")
        raise SuiteError(f"{path} cannot be used ({error}): {remedy}") from error


def bring_up(connection: sqlite3.Connection, version: int) -> None:
    """From an older schema (0: an empty file) to this one. Rows that had no hashes count as they are."""
    for script in [TABLES] if version == 0 else [MIGRATIONS[n] for n in range(version, SCHEMA)]:
        for statement in script.split(";"):
            connection.execute(statement)
    connection.execute(f"pragma user_version = {SCHEMA}")
    if 0 < version < 3:
        seal_all(connection)


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """The schema's number, 0 for an empty file. `SuiteError` for a newer schema and for another program's database."""
    # One statement, so that both values are of one moment: another process may be creating the tables.
    query = "select user_version, (select count(*) from sqlite_master) from pragma_user_version"
    version, tables = connection.execute(query).fetchone()
    if version > SCHEMA:
        raise SuiteError(f"{path} was written by a newer version of the suite (schema {version}, this one knows "
                         f"{SCHEMA}): update the suite, or move the file away")
    if version == 0 and tables:
        raise SuiteError(f"{path} is a database, but not of this suite: move it away")
    return version


def switch_to_wal(connection: sqlite3.Connection) -> None:
    """WAL stays set in the file. The switch does not wait for other writers, so it is repeated."""
    for left in reversed(range(20 * BUSY_SECONDS)):
        try:
            connection.execute("pragma journal_mode = wal").fetchall()
            return
        except sqlite3.OperationalError:
            if not left:
                raise
            time.sleep(0.05)


@contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Hold the lock at `path`; False if another process or thread has it. The kernel frees it when its owner dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    make_way(path)
    lock = FileLock(path, blocking=False)
    with suppress(Timeout):
        lock.acquire()
    try:
        yield lock.is_locked
    finally:
        lock.release()


def free_name(path: Path) -> Path:
    """Where a damaged file is kept, beside its place."""
    names = (path.with_name(f"{path.name}.damaged{n or ''}") for n in count())
    return next(name for name in names if not name.exists())


def make_way(path: Path) -> None:
    """Rename a folder that lies where a file of the suite belongs."""
    if path.is_dir():
        path.rename(free_name(path))


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
