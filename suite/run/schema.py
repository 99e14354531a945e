"""Tables of the experiment database: made, brought up from an earlier schema, opened."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from lib.errors import SuiteError

SCHEMA = 2
BUSY_SECONDS = 60
TABLES = """
create table runs (
    id integer primary key, run text not null unique, pattern text not null, config text not null, data text not null,
    code text not null, status text not null check (status in ('running', 'done', 'failed')), error text,
    versions text not null, machine text not null, device text not null, threads integer not null,
    started text not null, ended text, seconds real, tokens_per_s real, peak_memory_mib real, parameters integer,
    spent text);                                                         -- JSON: seconds of the training by part
create table evaluations (
    id integer primary key, run_id integer not null references runs on delete cascade, evaluation text not null,
    name text not null, parameters text not null, seconds real not null, ended text not null, unique (run_id, evaluation));
create table metrics (
    run_id integer not null references runs on delete cascade,
    evaluation_id integer references evaluations on delete cascade,      -- null: of the training
    measure text not null, split text not null, variant text not null, length integer, position integer, layer integer,
    step integer, value real not null);
create table arrays (
    evaluation_id integer not null references evaluations on delete cascade, name text not null, dtype text not null,
    shape text not null, data blob not null, primary key (evaluation_id, name));
create index metrics_of_a_run on metrics (run_id, evaluation_id);
create index metrics_of_an_evaluation on metrics (evaluation_id);
create index runs_by_status on runs (status);
"""
MIGRATIONS = {1: "alter table runs add column spent text"}     # from a schema to the next


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. `immediate` takes the write lock first, so that two writers wait instead of failing."""
    connection.execute("begin immediate")
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


def connect(path: Path) -> sqlite3.Connection:
    """Open, and create if need be. A file that is no database of this suite is left as it is and named in the error."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    try:
        connection.execute(f"pragma busy_timeout = {BUSY_SECONDS * 1000}")
        connection.execute("pragma foreign_keys = on")
        prepare(connection, path)
    except sqlite3.DatabaseError as error:
        connection.close()
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            raise
        raise SuiteError(f"{path} is not a readable database ({error}): move it away, and finished runs are "
                         "entered again") from None
    except SuiteError:
        connection.close()
        raise
    return connection


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    if version_of(connection, path) == SCHEMA:
        return
    switch_to_wal(connection)
    with transaction(connection):                        # two processes may arrive here at once: one of them creates
        version = version_of(connection, path)
        for statement in TABLES.split(";") if version == 0 else [MIGRATIONS[n] for n in range(version, SCHEMA)]:
            connection.execute(statement)
        connection.execute(f"pragma user_version = {SCHEMA}")


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """The schema's number, 0 for an empty file; a `SuiteError` for a newer one and for what is no database of the suite."""
    # One statement, so that both come from one moment: another process may be creating the tables.
    query = "select user_version, (select count(*) from sqlite_master) from pragma_user_version"
    version, tables = connection.execute(query).fetchone()
    if version > SCHEMA:
        raise SuiteError(f"{path} was written by a newer version of the suite (schema {version}, this one knows {SCHEMA}): "
                         "update the suite, or move the file away")
    if version == 0 and tables:
        raise SuiteError(f"{path} is a database, but not of this suite: move it away")
    return version


def switch_to_wal(connection: sqlite3.Connection) -> None:
    """WAL stays set in the file. The switch itself does not wait for other writers, so it is tried again."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            with closing(connection.execute("pragma journal_mode = wal")) as cursor:
                cursor.fetchone()
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)

