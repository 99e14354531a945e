"""Hashes that say whether a row of the experiment database is as it was written: a flipped bit changes a number, and
SQLite does not see it. A row's own hash is its last column; runs and evaluations keep one of their metrics too.
"""

import hashlib
import sqlite3
from typing import Any

METRIC_COLUMNS = ("measure", "value", "split", "variant", "length", "position", "layer", "step")


def seal_all(connection: sqlite3.Connection) -> None:
    """Give all rows their hashes."""
    connection.execute("update evaluations set array_count = "
                       "(select count(*) from arrays where evaluation_id = evaluations.id)")
    for table, owner in (("runs", "evaluation_id is null and run_id"), ("evaluations", "evaluation_id")):
        for (at,) in connection.execute(f"select id from {table}").fetchall():
            rows = connection.execute(f"select {', '.join(METRIC_COLUMNS)} from metrics where {owner} = ? "
                                      "order by rowid", (at,))
            connection.execute(f"update {table} set numbers = ? where id = ?", (sealed(*map(tuple, rows)), at))
    for table in ("runs", "evaluations", "arrays"):
        for (at,) in connection.execute(f"select rowid from {table}").fetchall():
            seal(connection, table, at)


def seal(connection: sqlite3.Connection, table: str, at: int) -> None:
    """Write the hash of a row, its last column, anew."""
    *values, _ = connection.execute(f"select * from {table} where rowid = ?", (at,)).fetchone()
    connection.execute(f"update {table} set digest = ? where rowid = ?", (sealed(*values), at))


def sealed(*values: Any) -> str:
    """Hash of stored values, or of rows of them."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(value if isinstance(value, bytes) else repr(value).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]


def sound(row: sqlite3.Row) -> bool:
    """Whether a whole row is as it was written."""
    *values, digest = row
    return digest == sealed(*values)


def title(row: sqlite3.Row) -> str:
    """What a message calls a row of runs or evaluations, which may hold anything."""
    return f"the run {row['run']!r}" if "run" in row.keys() else f"evaluation {row['name']!r} of run {row['run_id']}"
