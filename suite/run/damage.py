"""Damaged files: what a report sets aside before it starts; and `python -m suite runs check`, which looks at all.

A row of the database that is not as it was written is deleted, and a line of `damaged.jsonl` keeps it; its run counts
as missing. A run whose weights are there is entered again without training. Of a database that SQLite cannot read all
rows that can be read are copied to a new one, and the damaged file is kept beside it.
"""

import hashlib
import json
import os
import sqlite3
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from lib import paths
from lib.errors import SuiteError
from suite.run import evidence, stamps
from suite.run.database import Damaged, Database, connect, free_name, marks
from suite.run.seals import seal_all, sound, title
from suite.settings import profiles
from suite.settings.parameters import notebook_names

TABLES = ("runs", "evaluations", "metrics", "arrays")       # what a row refers to comes first
MISSES = 100_000              # row numbers in succession without a readable row, after which a table counts as read
ANEW = "set aside; make report makes it again, and executes the notebooks with it"


# Before a report

def look_over(profile: str, *, thorough: bool = False) -> list[str]:
    """Set aside what is damaged in the database of a profile; a line for each. Notebooks that were executed with it are
    not fresh then. thorough: compare indexes with rows too, as is done where a row is damaged."""
    path, lines = paths.database(profile), []
    if not path.exists():
        return lines
    try:
        with closing(Database(profile)) as database:
            rows = list(damaged(database))
            require_structure(database, thorough=thorough or bool(rows))
            lines += [set_aside(database, *each) for each in rows]
            if thorough and database.rows("pragma foreign_key_check"):
                raise Damaged(f"{path} is damaged (rows refer to missing ones)")
    except Damaged as error:
        lines += [f"{error}", rescue(path), *look_over(profile)]
    for stamp in paths.executed(profile).glob("*.json") if lines else ():
        if stamp.is_file():
            stamp.unlink()
    return lines


def damaged(database: Database) -> Iterator[tuple[str, sqlite3.Row, str]]:
    """The runs and evaluations that are not as they were written, or whose metrics or arrays are not, and evaluations
    of a run that is not there: table, row, and what a message calls it."""
    def intact(row: sqlite3.Row) -> bool:
        with suppress(Damaged):
            database.intact(row)
            return row["numbers"] is None or database.values(row) is not None
        return False
    with database.transaction("deferred"):             # of one moment, while others write
        runs = {row["id"]: row for row in database.rows("select * from runs")}
        yield from (("runs", row, title(row)) for row in runs.values() if not intact(row))
        for row in database.rows("select * from evaluations"):
            arrays = database.rows("select * from arrays where evaluation_id = ?", row["id"])
            if not (intact(row) and row["run_id"] in runs and len(arrays) == row["array_count"]
                    and all(map(sound, arrays))):
                run = title(runs[row["run_id"]]) if row["run_id"] in runs else "no run"
                yield "evaluations", row, f"the evaluation {row['name']!r} of {run}"


def require_structure(database: Database, *, thorough: bool) -> None:
    """Raise `Damaged` if a page of the file is damaged; thorough: or an index."""
    said = database.rows(f"pragma {'integrity' if thorough else 'quick'}_check(1)")[0][0]
    if said != "ok":
        raise Damaged(f"{database.path} is damaged ({said.splitlines()[-1]})")


def set_aside(database: Database, table: str, row: sqlite3.Row, what: str) -> str:
    """Delete the row, if it is still this one, with all that belongs to it; `damaged.jsonl` keeps it."""
    with open(database.path.with_name("damaged.jsonl"), "a", encoding="utf-8") as file:
        print(json.dumps({"table": table, **dict(row)}, default=repr), file=file)
    with database.transaction():
        database.connection.execute(f"delete from {table} where id = ? and digest is ?", (row["id"], row["digest"]))
    return f"{database.path}: {what} is damaged: {ANEW}"


def rescue(path: Path) -> str:
    """Put a database with all rows that can be read in the place of a damaged one, which is kept."""
    fresh, aside, counts, sealed = path.with_name(f".{path.name}.partial"), free_name(path), Counter(), True
    fresh.unlink(missing_ok=True)
    with closing(connect(fresh)) as new, closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as old:
        old.row_factory, old.text_factory = new.row_factory, new.text_factory
        old.execute("pragma trusted_schema = off")
        new.execute("begin")
        for table in TABLES:
            ours = [row["name"] for row in new.execute(f"pragma table_info({table})")]
            for row in readable(old, table):
                columns = [name for name in ours if name in row.keys()]
                sealed &= table == "metrics" or "digest" in columns
                with suppress(sqlite3.IntegrityError):             # what it refers to is lost
                    new.execute(f"insert into {table} ({', '.join(columns)}) values ({marks(columns)})",
                                [row[name] for name in columns])
                    counts[table] += 1
        if not sealed:                                 # it was of an older schema
            seal_all(new)
        new.execute("commit")
    for suffix in ("", "-wal", "-shm"):
        if (part := path.with_name(path.name + suffix)).exists():
            part.rename(aside.with_name(aside.name + suffix))
    os.replace(fresh, path)
    return (f"{path}: {counts['runs']} runs and {counts['evaluations']} evaluations can be read and are kept; the "
            f"damaged file is {aside.name}")


def readable(old: sqlite3.Connection, table: str) -> Iterator[sqlite3.Row]:
    """The rows of a table in the order of their numbers, which come last, without those of pages that are damaged."""
    at, misses = 0, 0
    while misses < MISSES:
        try:
            for row in old.execute(f"select *, rowid as at from {table} where rowid > ? order by rowid", (at,)):
                yield row
                at, misses = max(at, row["at"]), 0
            return
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            at, misses = at + 1, misses + 1


# Everything

def check(profile: str) -> int:
    """Print a line for all that a profile has, and one for each thing that is damaged, with what is done about it; the
    exit status: 1 if anything is damaged."""
    profiles.load(profile)
    bad = 0
    for part in (check_database, check_runs, check_texts, check_notebooks, check_evidence):
        for line, fine in part(profile):
            print(f"{'right' if fine else 'DAMAGED'}: {line}", file=sys.stdout if fine else sys.stderr, flush=True)
            bad += not fine
    if not bad:
        print("all is right")
    return 1 if bad else 0


def check_database(profile: str) -> Iterator[tuple[str, bool]]:
    """Lines, each with whether it tells of something good."""
    for line in look_over(profile, thorough=True):
        yield line, False
    if paths.database(profile).exists():
        with closing(Database(profile)) as database:
            runs, evaluations = (database.rows(f"select count(*) from {table}")[0][0] for table in TABLES[:2])
        yield f"{paths.database(profile)}: {runs} runs and {evaluations} evaluations are as they were written", True


def check_runs(profile: str) -> Iterator[tuple[str, bool]]:
    from lib.checkpoint import CHECKPOINTS, RESULT, WEIGHTS
    found = Counter()
    for path in sorted((paths.profile_outputs(profile) / "runs").glob("*/*")):
        try:
            if path.name == RESULT:
                wanted = json.loads(path.read_bytes())["weights_sha256"]
                if hash_of(path.with_name(WEIGHTS)) != wanted:
                    raise ValueError(f"{WEIGHTS} is not the file that was written with it")
            elif path.name in CHECKPOINTS:
                with zipfile.ZipFile(path) as archive:
                    if member := archive.testzip():
                        raise ValueError(f"the checksum of {member} is wrong")
            found[path.name] += 1
        except Exception as error:                     # whatever the readers make of it
            yield f"{path} ({first_line(error)}): set aside, and trained anew, when a part of its run is missing", False
    yield f"weights of {found[RESULT]} runs, and {sum(found[name] for name in CHECKPOINTS)} checkpoints", True


def check_texts(profile: str) -> Iterator[tuple[str, bool]]:
    from lib.data import Corpus
    for folder in sorted(paths.corpora().glob("[!.]*/")):
        try:
            text = Corpus(folder)
            text.tokenizer()
            for name, facts in text.manifest["files"].items():
                if hash_of(folder / name) != facts["sha256"]:
                    raise ValueError(f"{name} is not as the manifest says")
            yield f"{folder}: {len(text.manifest['files'])} files of text and tokenizer", True
        except Exception as error:
            yield f"{folder} ({first_line(error)}): delete it; make report builds it again where it is needed", False


def check_notebooks(profile: str) -> Iterator[tuple[str, bool]]:
    made = [name for name in (*notebook_names(), stamps.PAGE) if stamps.record(profile, name).exists()]
    for name in made:
        if not stamps.whole(profile, name):
            what = "index.html or ledger.json" if name == stamps.PAGE else "its executed notebook or its table"
            yield f"{name}: {what} is not as its stamp says, or the stamp is damaged; make report makes it again", False
    whole = [name for name in made if stamps.whole(profile, name)]
    yield f"notebooks with their tables, and the page: {', '.join(whole) or 'none is made yet'}", True


def check_evidence(profile: str) -> Iterator[tuple[str, bool]]:
    names = sorted({*evidence.sums(), *(path.name for path in paths.EVIDENCE.glob("*.parquet"))})
    damaged_files = 0
    for name in names:
        try:
            evidence.read(paths.EVIDENCE / name)
        except SuiteError as error:
            damaged_files += 1
            yield str(error), False
    yield f"evidence/: {len(names) - damaged_files} shipped runs", True


def hash_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
