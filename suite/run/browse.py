"""The experiment database from the command line: list, show and export runs.

    python -m suite.run.browse list   [--profile small] [--pattern NAME] [--status done]
    python -m suite.run.browse show   RUN [--profile small]                     RUN: a fingerprint, or its first digits
    python -m suite.run.browse export [--profile small] [--format csv|json] [--output FILE]
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lib import paths
from lib.config import PatternSpec, RunConfig
from lib.errors import SuiteError
from suite.run.database import Database, Facts

if TYPE_CHECKING:
    import sqlite3

    import pandas as pd

__all__ = ["Database", "Facts", "facts_of"]

AFTER = "\U0010ffff"                                       # comes after every character of a fingerprint
WIDTH = 100                                                # columns of a terminal that every table fits
EXPORT = """
select runs.run, pattern, config, status, data, code, versions, machine, device, threads, started, runs.ended, runs.seconds,
       tokens_per_s, peak_memory_mib, spent, runs.parameters, evaluations.name as evaluation,
       evaluations.parameters as evaluation_parameters, measure, split, variant, length, position, layer, step, value
from runs left join metrics on metrics.run_id = runs.id left join evaluations on evaluations.id = metrics.evaluation_id
order by runs.id, metrics.rowid
"""
LIST = """
select runs.*, (select count(*) from evaluations where run_id = runs.id) as evaluated
from runs where (:pattern = '' or pattern = :pattern) and (:status = '' or status = :status) order by started, id
"""


def facts_of(profile: str) -> dict[str, Any]:
    """What the runs of a profile were made with: counts by status, versions, machines, devices, wall time in seconds."""
    with_database = Database(profile, create=False)
    rows = with_database.connection.execute("select * from runs").fetchall()
    with_database.close()
    done = [row for row in rows if row["status"] == "done"]
    return {"runs": len(done), "failed": sum(row["status"] == "failed" for row in rows),
            "versions": [json.loads(text) for text in sorted({row["versions"] for row in done})],
            "machines": sorted({row["machine"] for row in done}), "devices": sorted({row["device"] for row in done}),
            "seconds": sum(row["seconds"] for row in done)}


def settings(spec: PatternSpec) -> str:
    """A pattern's parameters on one line: `base=fibonacci window=6`."""
    return " ".join(f"{name}={value}" for name, value in spec.parameters)


def state(database: Database, row: sqlite3.Row) -> str:
    """The status; a run that is marked as running but that no process holds was interrupted, and will be resumed."""
    from filelock import FileLock, Timeout
    if row["status"] != "running":
        return row["status"]
    lock = paths.run_folder(database.profile, row["run"]) / "lock"
    if not lock.exists():
        return "interrupted"
    try:
        with FileLock(lock, blocking=False):
            return "interrupted"
    except Timeout:
        return "running"


def overview(database: Database, pattern: str = "", status: str = "") -> pd.DataFrame:
    """One row a run, in the order in which they were started."""
    import pandas as pd
    rows = []
    for row in database.connection.execute(LIST, {"pattern": pattern, "status": status}):
        run = RunConfig.from_dict(json.loads(row["config"]))
        rows.append({"run": row["run"], "status": state(database, row), "pattern": row["pattern"],
                     "settings": settings(run.pattern), "seed": run.train.seed, "tokens": count(run.train.tokens),
                     "min": rounded(row["seconds"], 60, 1), "tok/s": rounded(row["tokens_per_s"], 1, 0),
                     "evals": row["evaluated"]})
    columns = ["run", "status", "pattern", "settings", "seed", "tokens", "min", "tok/s", "evals"]
    return pd.DataFrame(rows, columns=columns)


def count(tokens: int) -> str:
    return f"{tokens / 1e6:.2f}M" if tokens >= 1e5 else str(tokens)


def rounded(value: float | None, unit: float, digits: int) -> str:
    return "" if value is None else f"{value / unit:.{digits}f}"


def as_text(table: pd.DataFrame, shrink: str) -> str:
    """The table in at most `WIDTH` columns: text to the left, numbers to the right, the text of the column `shrink` cut."""
    cells = {name: [str(v) for v in table[name]] for name in table}
    widths = {name: max(len(name), *map(len, column)) for name, column in cells.items()}
    excess = sum(widths.values()) + 2 * (len(widths) - 1) - WIDTH
    if excess > 0:
        widths[shrink] = room = max(8, widths[shrink] - excess)
        cells[shrink] = [text if len(text) <= room else text[:room - 2] + ".." for text in cells[shrink]]
    right = {name for name in cells if all(is_number(text) for text in cells[name])}
    lines = [{name: name for name in cells}, *({name: cells[name][i] for name in cells} for i in range(len(table)))]
    return "\n".join("  ".join(line[name].rjust(widths[name]) if name in right else line[name].ljust(widths[name])
                               for name in cells).rstrip() for line in lines)


def is_number(text: str) -> bool:
    return not text.strip("0123456789.,eM+-")


def find(database: Database, prefix: str) -> sqlite3.Row:
    query = "select * from runs where run >= ? and run < ? limit 2"           # a range of the index, unlike a look at all runs
    rows = database.connection.execute(query, (prefix, prefix + AFTER)).fetchall()
    if len(rows) != 1:
        what = "several runs" if rows else "no run"
        raise SuiteError(f"{what} of profile {database.profile!r} begin{'' if rows else 's'} with {prefix!r}: "
                         "see python -m suite.run.browse list")
    return rows[0]


def show(database: Database, prefix: str) -> str:
    """Configuration, circumstances and metrics of one run."""
    row = find(database, prefix)
    run = RunConfig.from_dict(json.loads(row["config"]))
    lines = [f"run         {row['run']}   {state(database, row)}", f"pattern     {run.pattern.name} {settings(run.pattern)}"]
    for name in ("model", "train"):
        lines += wrapped(name, [f"{key}={value}" for key, value in json.loads(row["config"])[name].items()])
    lines += wrapped("data", [run.data.source, *(f"{key}={value}" for key, value in run.data.parameters)])
    lines += wrapped("versions", [f"{key} {value}" for key, value in json.loads(row["versions"]).items()])
    lines += [f"machine     {row['machine']}; {row['device']}, {row['threads']} thread{'s' * (row['threads'] != 1)}",
              f"started     {row['started']}   ended {row['ended'] or '-'}"]
    if row["seconds"] is not None:
        lines.append(f"training    {row['seconds']:.1f} s, {row['tokens_per_s']:.0f} tokens/s, "
                     f"peak {row['peak_memory_mib']:.0f} MiB, {row['parameters']:,} parameters")
        lines += wrapped("spent on", shares(row))
    lines.append(f"folder      {paths.run_folder(database.profile, row['run'])}")
    if row["error"]:
        lines += wrapped("error", [row["error"]])
    return "\n".join([*lines, "", metrics_text(database, row["id"])])


def shares(row: sqlite3.Row) -> list[str]:
    """Where the time of a training went, largest first; what is no part (`lib.clock.PARTS`) is checkpoints and start."""
    spent = json.loads(row["spent"] or "{}")
    rest = {"checkpoints and start": row["seconds"] - sum(spent.values())} if spent else {}
    return [f"{part} {seconds / row['seconds']:.0%}" for part, seconds in
            sorted({**spent, **rest}.items(), key=lambda item: -item[1])] or ["not recorded"]


def wrapped(title: str, words: list[str]) -> list[str]:
    import textwrap
    body = textwrap.wrap("  ".join(words), WIDTH - 12, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"{title:<12}{body[0]}", *(" " * 12 + line for line in body[1:])]


def metrics_text(database: Database, run_id: int) -> str:
    import pandas as pd
    query = """select coalesce(evaluations.name, 'training') as evaluation, variant, split, measure, length, position, layer,
               step, value from metrics left join evaluations on evaluations.id = evaluation_id
               where metrics.run_id = ? order by metrics.rowid"""
    rows = [dict(row) for row in database.connection.execute(query, (run_id,))]
    if not rows:
        return "no metrics yet"
    table = pd.DataFrame(rows).astype(dict.fromkeys(("length", "position", "layer", "step"), "Int64"))
    table = table.loc[:, (table != "").any() & table.notna().any()]           # columns that say nothing are left out
    shown = table.map(lambda v: "" if pd.isna(v) else f"{v:.5g}" if isinstance(v, float) else str(v))
    return as_text(shown, "evaluation")


def export(database: Database, form: str, file: TextIO) -> None:
    """Every metric of every run with its configuration and circumstances, one row a value; config and versions as JSON.

    Written as it is read: ten million rows need no memory.
    """
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


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m suite.run.browse", description="List, show and export the runs of a profile.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("list", "one line a run"), ("show", "all of one run"), ("export", "every metric as one table")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--profile", default="small", help="profile whose runs are meant (default: small)")
        if name == "list":
            command.add_argument("--pattern", default="", help="only runs of this pattern")
            command.add_argument("--status", default="", choices=["", "running", "done", "failed"])
        elif name == "show":
            command.add_argument("run", help="fingerprint of the run, or its first digits")
        else:
            command.add_argument("--format", default="csv", choices=["csv", "json"])
            command.add_argument("--output", type=Path, help="file to write (default: standard output)")
    return parser


def answer(options: argparse.Namespace) -> str:
    database = Database(options.profile, create=False)
    if options.command == "list":
        table = overview(database, options.pattern, options.status)
        return as_text(table, "settings") if len(table) else f"no such runs in profile {options.profile!r}"
    return show(database, options.run)


def main(argv: list[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    try:
        if options.command == "export":
            database = Database(options.profile, create=False)               # before a file is made for it
            with options.output.open("w", encoding="utf-8") if options.output else nullcontext(sys.stdout) as file:
                export(database, options.format, file)
        else:
            print(answer(options))
    except SuiteError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:                                # the reader, for instance `head`, has seen enough
        sys.stderr.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
