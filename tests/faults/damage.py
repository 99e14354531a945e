"""Damaged rows and files of a profile: named, set aside, and never in the way of the others."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_jobs import job
from frame import Row

from lib.config import Metric
from suite.run.database import Database, Facts, now
from suite.settings.machine import machine

DATABASE = "outputs/tiny/runs.sqlite"
CHECK = "runs check --profile tiny"
RESULT = SimpleNamespace(metrics=[Metric("train_loss", 0.5, step=4)], seconds=1.0, tokens_per_s=9.0, spent={},
                         peak_memory_mib=1.0)


def stored(statement: str = "", damage: Callable[[Path], object] = lambda path: None) -> Callable[[Path], None]:
    """A database of two runs, changed by a statement, or as a file by `damage`."""
    def prepare(root: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SUITE_OUTPUTS", str(root / "outputs"))
            with closing(Database("tiny")) as database:
                for seed in (1, 2):
                    database.record_training(job(seed).run, Facts({}, machine(), "cpu", 1), RESULT, 10, now())
        with closing(sqlite3.connect(root / DATABASE)) as connection, connection:
            connection.execute("pragma foreign_keys = off")
            connection.execute(statement)
        damage(root / DATABASE)
    return prepare


def broken(begin: int, content: bytes) -> Callable[[Path], None]:
    """A part of the file overwritten."""
    def write(path: Path) -> None:
        with open(path, "r+b") as file:
            file.seek(begin)
            file.write(content)
    return write


FLIP = "update runs set config = replace(config, 'copying', 'copyinf') where id = 1"
NAMED = "DAMAGED: .*the run '[0-9a-f]{16}' is damaged: set aside; make report makes it again"
ROWS = [
    Row("a changed configuration, checked", CHECK, NAMED, 1, prepare=stored(FLIP)),
    Row("a changed configuration, listed", "runs list --profile tiny", "^[0-9a-f]{16} +damaged", 0,
        prepare=stored(FLIP)),
    Row("versions that are no JSON", CHECK, NAMED, 1, prepare=stored("update runs set versions = '{' where id = 1")),
    Row("text that is not UTF-8", CHECK, NAMED, 1,
        prepare=stored("update runs set machine = cast(x'61ff' as text) where id = 1")),
    Row("text in place of a metric", CHECK, NAMED, 1,
        prepare=stored("update metrics set value = 'a' where run_id = 1")),
    Row("a changed digit of a metric", CHECK, NAMED, 1, prepare=stored("update metrics set value = 0.6")),
    Row("metrics of an unknown run", CHECK, NAMED, 1, prepare=stored("update metrics set run_id = 9 where run_id = 1")),
    Row("a page of zeros", CHECK, "DAMAGED: .*can be read and are kept; the damaged file is runs.sqlite.damaged", 1,
        prepare=stored("select 1", broken(8192, bytes(4096)))),
    Row("a damaged header", CHECK, "DAMAGED: .*0 runs and 0 evaluations can be read", 1,
        prepare=stored("select 1", broken(0, b"\xff" * 16))),
    Row("a damaged header, listed", "runs list --profile tiny", "runs check --profile tiny saves what can be read", 2,
        prepare=stored("select 1", broken(0, b"\xff" * 16))),
    Row("a file cut off", CHECK, "DAMAGED: .*the damaged file is runs.sqlite.damaged", 1,
        prepare=stored("select 1", lambda path: path.write_bytes(path.read_bytes()[:9000]))),
    Row("a damaged log of transactions", CHECK, "all is right", 0,
        prepare=stored("select 1", lambda path: path.with_name("runs.sqlite-wal").write_bytes(b"x" * 9000))),
    Row("no database at all", CHECK, "DAMAGED: .*runs.sqlite is not a readable database", 1,
        files={DATABASE: "a text, and no database " * 99}),
    Row("a database of another program", CHECK, "is a database, but not of this suite: move it away",
        files={"outputs/tiny/log.txt": ""},
        prepare=lambda root: sqlite3.connect(root / DATABASE).execute("create table other (x)")),
    Row("a folder in place of the database", CHECK, "runs.sqlite cannot be used .*: is it a file that may be written",
        files={DATABASE: None}),
    Row("a profile that is not there", "runs check --profile tinny", "unknown profile 'tinny'; did you mean 'tiny'"),
    Row("weights that are others", CHECK, "DAMAGED: .*result.json .*model.safetensors is not the file", 1,
        files={"outputs/tiny/runs/aa/result.json": '{"weights_sha256": "00"}',
               "outputs/tiny/runs/aa/model.safetensors": "weights"}),
    Row("a checkpoint cut off", CHECK, r"DAMAGED: .*checkpoint.pt \(File is not a zip file\)", 1,
        files={"outputs/tiny/runs/aa/checkpoint.pt": "PK"}),
    Row("a manifest cut off", CHECK, "DAMAGED: .*outputs/data/aa .*delete it; make report builds it again", 1,
        files={"outputs/data/aa/manifest.json": '{"config": '}),
    Row("an executed notebook cut off", CHECK, "DAMAGED: 01_window_sweep: its executed notebook or its table", 1,
        files={"outputs/tiny/executed/01_window_sweep.json": '{"stamp": "", "products": {}}',
               "outputs/tiny/executed/01_window_sweep.ipynb": "{"}),
    Row("a stamp that is a folder", CHECK, "DAMAGED: 02_learned_alpha: .*or the stamp is damaged", 1,
        files={"outputs/tiny/executed/02_learned_alpha.json": None}),
    Row("a shipped run cut off", CHECK, "DAMAGED: .*another checksum.*git checkout evidence brings it back", 1,
        files={"evidence/dense-42-1cc5847d5bcdde68.parquet": "PAR1"}),
    Row("a shipped run that is missing", CHECK, "DAMAGED: .*dense-42-1cc5.*No such file.*git checkout evidence", 1,
        prepare=lambda root: (root / "evidence" / "dense-42-1cc5847d5bcdde68.parquet").unlink()),
]
