"""The experiment database for a person: list, show and export runs (`python -m suite runs`)."""

from __future__ import annotations

import csv
import json
import sqlite3
import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import Any, TextIO

from lib import paths
from lib.config import PatternSpec, RunConfig
from lib.errors import SuiteError
from suite.run.database import Database, claim
from suite.settings.progress import text_table

AFTER = "\U0010ffff"                                       # comes after every character of a fingerprint
WIDTH = 100                                                # columns of a terminal that every table fits
LISTED = ["run", "status", "pattern", "settings", "seed", "tokens", "min", "tok/s", "evals"]
LIST = """
select runs.*, (select count(*) from evaluations where run_id = runs.id) as evaluated
from runs where (:pattern = '' or pattern = :pattern) and (:status = '' or status = :status) order by started, id
"""
EXPORT = """
select runs.run, pattern, config, status, data, code, versions, machine, device, threads, started, runs.ended,
       runs.seconds, tokens_per_s, peak_memory_mib, spent, runs.parameters, evaluations.name as evaluation,
       evaluations.parameters as evaluation_parameters, measure, split, variant, length, position, layer, step, value
from runs left join metrics on metrics.run_id = runs.id left join evaluations on evaluations.id = metrics.evaluation_id
order by runs.id, metrics.rowid
"""
METRICS = """
select coalesce(evaluations.name, 'training') as evaluation, variant, split, measure, length, position, layer, step,
       value
from metrics left join evaluations on evaluations.id = evaluation_id where metrics.run_id = ? order by metrics.rowid
"""


def settings(spec: PatternSpec) -> str:
    """A pattern's parameters on one line: `base=fibonacci window=6`."""
    return " ".join(pairs(dict(spec.parameters)))


def state(database: Database, row: sqlite3.Row) -> str:
    """The status; a run that is marked as running but that no process holds was interrupted, and will be resumed."""
    if row["status"] != "running":
        return row["status"]
    with claim(paths.run_folder(database.profile, row["run"]) / "lock") as abandoned:
        return "interrupted" if abandoned else "running"


def listed(database: Database, pattern: str = "", status: str = "") -> str:
    """A table with one line (`LISTED`) per run, in the order in which they were started."""
    lines = []
    for row in database.connection.execute(LIST, {"pattern": pattern, "status": status}):
        run = RunConfig.from_dict(json.loads(row["config"]))
        tokens, timed = run.train.tokens, row["seconds"] is not None
        lines.append([row["run"], state(database, row), row["pattern"], settings(run.pattern), run.train.seed,
                      f"{tokens / 1e6:.2f}M" if tokens >= 1e5 else tokens,
                      f"{row['seconds'] / 60:.1f}" if timed else "", f"{row['tokens_per_s']:.0f}" if timed else "",
                      row["evaluated"]])
    if not lines:
        return f"no such runs in profile {database.profile!r}"
    return text_table(LISTED, lines, WIDTH, LISTED.index("settings"))


def find(database: Database, prefix: str) -> sqlite3.Row:
    """The run whose fingerprint begins with `prefix`. A range of the index, unlike a look at all runs."""
    rows = database.rows("select * from runs where run >= ? and run < ? limit 2", prefix, prefix + AFTER)
    if len(rows) != 1:
        what = "several runs" if rows else "no run"
        raise SuiteError(f"{what} of profile {database.profile!r} begin{'' if rows else 's'} with {prefix!r}: "
                         "see python -m suite runs list")
    return rows[0]


def show(database: Database, prefix: str) -> str:
    row = find(database, prefix)
    run = RunConfig.from_dict(json.loads(row["config"]))
    told = {"run": [row["run"], state(database, row)], "pattern": [run.pattern.name, settings(run.pattern)],
            "model": pairs(vars(run.model)), "train": pairs(vars(run.train)),
            "data": [run.data.source, *pairs(dict(run.data.parameters))],
            "versions": [f"{name} {version}" for name, version in json.loads(row["versions"]).items()],
            "machine": [f"{row['machine']}; {row['device']}, {row['threads']} thread{'s' * (row['threads'] != 1)}"],
            "started": [row["started"], f"ended {row['ended'] or '-'}"]}
    if row["seconds"] is not None:
        # Where the time went, the largest share first; what no part explains is checkpoints and start.
        spent = json.loads(row["spent"] or "{}")
        parts = Counter(spent | {"checkpoints and start": row["seconds"] - sum(spent.values())}).most_common()
        told["training"] = [f"{row['seconds']:.1f} s, {row['tokens_per_s']:.0f} tokens/s, peak "
                            f"{row['peak_memory_mib']:.0f} MiB, {row['parameters']:,} parameters"]
        shares = [f"{part} {seconds / row['seconds']:.0%}" for part, seconds in parts]
        told["spent on"] = shares if spent else ["not recorded"]
    if row["error"]:
        told["error"] = [row["error"]]
    lines = [line for title, words in told.items() for line in textwrap.wrap(
        "  ".join(words), WIDTH, initial_indent=f"{title:<12}", subsequent_indent=" " * 12, break_long_words=False,
        break_on_hyphens=False)]
    folder = f"folder      {paths.run_folder(database.profile, row['run'])}"
    return "\n".join([*lines, folder, "", metrics_text(database, row["id"])])


def pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in values.items()]


def metrics_text(database: Database, run_id: int) -> str:
    """The metrics as a table, without the columns that say nothing."""
    rows = [dict(row) for row in database.rows(METRICS, run_id)]
    columns = [name for name in rows[0] if any(row[name] not in ("", None) for row in rows)] if rows else []
    cells = [["" if row[name] is None else f"{row[name]:.5g}" if isinstance(row[name], float) else row[name]
              for name in columns] for row in rows]
    return text_table(columns, cells, WIDTH) if rows else "no metrics yet"


def export(database: Database, form: str, file: TextIO) -> None:
    """Every metric of every run with its configuration and circumstances, one row per value; config, versions as JSON.
    Written as it is read: ten million rows need no memory."""
    rows = database.connection.execute(EXPORT)
    names = [column[0] for column in rows.description]
    if form == "csv":
        table = csv.writer(file, lineterminator="\n")
        table.writerow(names)
        table.writerows(rows)
        return
    file.write("[")
    for number, row in enumerate(rows):
        file.write(",\n" if number else "\n")
        json.dump(dict(zip(names, row, strict=True)), file)
    file.write("\n]\n")
