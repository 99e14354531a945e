"""Finished runs that ship with the suite: `evidence/`, one Parquet file a run of profile `evidence`, written once.

A file is found by its run's configuration alone, so that neither another machine's text nor newer code trains it again;
both are in the file, and the page shows them. It holds numbers and JSON: nothing in it is executed when it is read.
`evidence/SHA256SUMS` says of each file whether it is whole (`sha256sum -c` reads it too).
"""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from lib import paths
from lib.config import Evaluation, RunConfig, fingerprint, freeze
from lib.errors import SuiteError
from lib.files import write_atomically
from suite.run.database import WHOLE, Database, array_of, columns_of, rows_of
from suite.run.seals import sealed, sound
from suite.settings.fingerprints import evaluation_fingerprint

if TYPE_CHECKING:
    import pyarrow

    from suite.experiments.base import Job

FORMAT = b"sparse-attention-suite run 1"
FACTS = ("data", "code", "versions", "machine", "device", "threads", "started", "ended", "seconds", "tokens_per_s",
         "peak_memory_mib", "parameters", "spent")
KEPT = ("parameters", "seconds", "ended")             # what is kept of an evaluation, beside its numbers
PROFILE, SUMS = "evidence", "SHA256SUMS"


def shipped(profile: str, corpus: str = "") -> bool:
    """Whether the runs of a profile come with the suite: with its own text, not a person's folder."""
    return profile == PROFILE and not corpus


def there(profile: str, corpus: str, jobs: Iterable["Job"]) -> list["Job"]:
    """What a notebook can show of its jobs without training: all, or of a profile whose runs ship those that do."""
    return [job for job in jobs if not shipped(profile, corpus) or path_of(job.run).exists()]


def path_of(run: RunConfig) -> Path:
    """The file of a run, named by its configuration; the precision, which follows the machine, does not count."""
    key = fingerprint(replace(run, train=replace(run.train, precision="bf16")))
    return paths.EVIDENCE / f"{run.pattern.name}-{run.train.seed}-{key}.parquet"


# Writing

def write(database: Database, job: "Job") -> Path | None:
    """The file of a finished job; None where it is there already, or where something of the job is missing."""
    path = path_of(job.run)
    with suppress(SuiteError):                         # one that is missing or damaged is written anew
        read(path)
        return None
    if database.missing([job]):
        return None
    import pyarrow
    from pyarrow import parquet
    run = database.finished(job.run)
    rows = [{"evaluation": "", "parameters": "{}", "seconds": run["seconds"], "ended": run["ended"],
             "metrics": list(map(dict, database.values(run))), "arrays": []}]
    for evaluation in job.evaluations:
        stored = database.evaluated(run, evaluation)
        arrays = database.rows("select * from arrays where evaluation_id = ? order by name", stored["id"])
        database.intact(stored, all(map(sound, arrays)))
        rows.append({"evaluation": evaluation.name, **{name: stored[name] for name in KEPT},
                     "metrics": list(map(dict, database.values(stored))),
                     "arrays": [packed(row["name"], array_of(row)) for row in arrays]})
    about = {b"format": FORMAT, b"config": run["config"].encode(),
             b"facts": json.dumps({name: run[name] for name in FACTS}).encode()}
    sink = pyarrow.BufferOutputStream()
    table = pyarrow.Table.from_pylist(rows, schema()).replace_schema_metadata(about)
    parquet.write_table(table, sink, compression="zstd", compression_level=12)
    content = memoryview(sink.getvalue())
    write_atomically(path, content, durable=True)
    lines = {**sums(), path.name: hashlib.sha256(content).hexdigest()}.items()
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(lines))
    write_atomically(path.with_name(SUMS), text.encode(), durable=True)
    return path


def sums() -> dict[str, str]:
    """SHA-256 of the files by their names."""
    path = paths.EVIDENCE / SUMS
    return {line[66:]: line[:64] for line in path.read_text("utf-8", "replace").splitlines()} if path.exists() else {}


def schema() -> "pyarrow.Schema":
    import pyarrow as pa
    metric = pa.struct([(name, pa.string()) for name in ("measure", "split", "variant")] + [("value", pa.float64())]
                       + [(name, pa.int64()) for name in WHOLE])
    array = pa.struct([("name", pa.string()), ("dtype", pa.string()), ("shape", pa.list_(pa.int64())),
                       ("stored", pa.string()), ("data", pa.binary())])
    return pa.schema([("evaluation", pa.string()), ("parameters", pa.string()), ("seconds", pa.float64()),
                      ("ended", pa.string()), ("metrics", pa.list_(metric)), ("arrays", pa.list_(array))])



def packed(name: str, array: np.ndarray) -> dict[str, Any]:
    """An array in few bytes: doubles as float32 (1e-7 of a loss), whole numbers as the narrowest that hold them."""
    narrow = array
    if array.dtype == np.float64:
        narrow = array.astype(np.float32)
    elif array.dtype.kind in "iu" and array.size:
        narrow = array.astype(np.result_type(np.min_scalar_type(array.min()), np.min_scalar_type(array.max())))
    return {"name": name, "dtype": array.dtype.str, "shape": array.shape, "stored": narrow.dtype.str,
            "data": narrow.tobytes()}


# Reading

def enter(database: Database, jobs: Iterable["Job"]) -> tuple[list[str], list[str]]:
    """Enter the shipped runs that `database` lacks of `jobs`: their fingerprints here, and an error for each file that
    is damaged."""
    entered, errors = [], []
    for job in [job for job in database.missing(jobs) if path_of(job.run).exists()]:
        try:
            entered.append(enter_one(database, job.run))
        except SuiteError as error:
            errors.append(str(error))
    return entered, errors


def enter_one(database: Database, run: RunConfig) -> str:
    table, key = read(path_of(run)), database.fingerprint(run)
    about = table.schema.metadata
    with database.transaction():
        database.connection.execute("delete from runs where run = ?", (key,))
        for row in table.to_pylist():                  # the first is the training
            rows, evaluation = rows_of([SimpleNamespace(**metric) for metric in row["metrics"]], key), None
            if row["evaluation"]:
                asked = Evaluation(row["evaluation"], freeze(json.loads(row["parameters"])))
                evaluation = database.insert("evaluations", {
                    "run_id": at, "evaluation": evaluation_fingerprint(asked), "name": asked.name,
                    "array_count": len(row["arrays"]), "numbers": sealed(*rows), **{name: row[name] for name in KEPT}})
            else:
                at = database.insert("runs", {
                    "run": key, "pattern": run.pattern.name, "status": "done", "numbers": sealed(*rows),
                    "config": about[b"config"].decode(), **json.loads(about[b"facts"])})
            database.insert_metrics(at, evaluation, rows)
            for array in row["arrays"]:
                full = np.frombuffer(array["data"], array["stored"]).astype(array["dtype"]).reshape(array["shape"])
                database.insert("arrays", {"evaluation_id": evaluation, "name": array["name"], **columns_of(full)})
    return key


def read(path: Path) -> "pyarrow.Table":
    """The table of a file, checked; a `SuiteError` names a file that is damaged or of another make."""
    import pyarrow
    from pyarrow import parquet
    try:
        content = path.read_bytes()
        if sums().get(path.name, digest := hashlib.sha256(content).hexdigest()) != digest:
            raise OSError(f"{SUMS} has another checksum")
        # Not `read_table`: its threads may outlive a command that ends at once, and abort it.
        table = parquet.ParquetFile(pyarrow.BufferReader(content)).read(use_threads=False)
    except (OSError, pyarrow.ArrowException) as error:
        why = str(error).partition("\n")[0]
        raise SuiteError(f"{path} cannot be read ({why}): git checkout evidence brings it back; make evidence trains "
                         "its run again") from None
    about = table.schema.metadata or {}
    try:
        mine = (about[b"format"] == FORMAT and table.schema.equals(schema())
                and json.loads(about[b"facts"]).keys() == {*FACTS})
        own = path_of(RunConfig.from_dict(json.loads(about[b"config"])))
    except (KeyError, TypeError, ValueError, AttributeError):
        mine = False
    if not mine:
        raise SuiteError(f"{path} is no run of this suite: remove it")
    if own != path:
        raise SuiteError(f"{path} holds another run than its name says: remove it")
    return table
