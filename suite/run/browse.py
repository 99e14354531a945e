"""The experiment database for a person: list and show (`python -m suite runs`) and verify runs."""


import json
import math
import random
import sqlite3
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from lib import paths
from lib.config import Evaluation, PatternSpec, RunConfig
from lib.errors import SuiteError
from suite.run.database import Database, array_of, claim
from suite.run.seals import METRIC_COLUMNS, sound
from suite.settings.fingerprints import code_fingerprint, evaluation_fingerprint, training_modules
from suite.settings.machine import machine, versions
from suite.settings.profiles import load
from suite.settings.progress import text_table

if TYPE_CHECKING:
    from suite.evals import EvalResult

AFTER = "\U0010ffff"                                       # comes after every character of a fingerprint
# Another processor sums in another order, and bfloat16 has 8 bits: a loss moves in its fourth digit, rarely an answer.
ELSEWHERE = 1e-3              # of a value, or absolute below 1
WIDTH = 100                                                # columns of a terminal that every table fits
LISTED = ["run", "status", "pattern", "settings", "seed", "tokens", "min", "tok/s", "evals"]
LIST = "select * from runs where ? in ('', pattern) and ? in ('', status) order by started, id"
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
    evaluated = dict(map(tuple, database.rows("select run_id, count(*) from evaluations group by run_id")))
    for row in database.rows(LIST, pattern, status):
        if not sound(row):
            lines.append([ascii(row["run"]).strip("'"), "damaged", *[""] * 7])
            continue
        run = RunConfig.from_dict(json.loads(row["config"]))
        tokens, timed = run.train.tokens, row["seconds"] is not None
        lines.append([row["run"], state(database, row), row["pattern"], settings(run.pattern), run.train.seed,
                      f"{tokens / 1e6:.2f}M" if tokens >= 1e5 else tokens,
                      f"{row['seconds'] / 60:.1f}" if timed else "", f"{row['tokens_per_s']:.0f}" if timed else "",
                      evaluated.get(row["id"], 0)])
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
    row = database.intact(find(database, prefix))
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


# A stored result computed again from its run's stored weights, and compared number by number (`make verify`)

def verify(row: sqlite3.Row, database: Database) -> Iterator[tuple[str, np.ndarray]]:
    """Each evaluation that the database has of the run `row`, computed again from the weights in its folder: its name
    and the `differences` of its numbers. Raises `SuiteError` if the weights are gone, or made by other code."""
    import torch

    from lib.training import load_run
    from suite.evals import evaluate
    run = RunConfig.from_dict(json.loads(row["config"]))
    if row["status"] != "done":
        raise SuiteError(f"the run {row['run']} is not trained (it is {row['status']}): nothing to verify")
    if row["code"] != code_fingerprint(training_modules(run)):
        raise SuiteError(f"the run {row['run']} was made by other code than is here: check out that code, or train it "
                         "again (make report)")
    on_text = run.data.source == "text"
    if on_text and (database.corpus is None or row["data"] != database.corpus.fingerprint):
        raise SuiteError(f"the text that the run {row['run']} was trained on is not there: name its folder (CORPUS=), "
                         f"or run make report PROFILE={database.profile}, which builds the offline corpus")
    torch.set_num_threads(row["threads"])              # sums are split by thread
    folder, device = paths.run_folder(database.profile, row["run"]), "cuda" if torch.cuda.is_available() else "cpu"
    finished = load_run(run, folder, device)
    if finished is None:
        raise SuiteError(f"{folder} has no finished weights of the run {row['run']}: delete outputs/{database.profile} "
                         "or restore the folder, and run make report")
    for stored in database.rows("select * from evaluations where run_id = ? order by id", row["id"]):
        evaluation = Evaluation.of(stored["name"], **json.loads(database.intact(stored)["parameters"]))
        if stored["evaluation"] == evaluation_fingerprint(evaluation):       # else of an earlier code: no report has it
            result = evaluate(evaluation, finished.model, run, database.corpus if on_text else None, device)
            yield stored["name"], differences(stored, result, database)


def differences(evaluation: sqlite3.Row, result: "EvalResult", database: Database) -> np.ndarray:
    """Metrics by what they describe, arrays by name: all must be there, and nothing else."""
    described = itemgetter(*(name for name in METRIC_COLUMNS if name != "value"))
    old: dict[Any, np.ndarray] = {}
    for row in database.stored_values(evaluation):
        with suppress(ValueError, TypeError):          # no number where one belongs: it counts as missing
            old[described(row)] = np.array(float(row["value"]))
    for row in database.rows("select * from arrays where evaluation_id = ?", evaluation["id"]):
        with suppress(ValueError, TypeError):          # the same where its type or its shape is damaged
            old[row["name"]] = array_of(row)
    new = {described(vars(metric)): np.array(metric.value) for metric in result.metrics} | result.arrays
    return np.concatenate([distances(old.get(key), new.get(key)) for key in sorted({*old, *new}, key=str)])


def distances(old: np.ndarray | None, new: np.ndarray | None) -> np.ndarray:
    """Of each number from the stored one, relative to max(1, |stored|); infinite if one side has no finite number."""
    if old is None or new is None or np.shape(old) != np.shape(new):
        return np.full(np.size(new if old is None else old), math.inf)
    old, new = (np.ravel(side).astype(float) for side in (old, new))
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(old) & np.isfinite(new), np.abs(new - old) / np.maximum(1, np.abs(old)), math.inf)


def verify_runs(profile: str, corpus: str, prefix: str, every: bool) -> int:
    """Verify the run of this fingerprint; without one every run, or one at random, of those that have an evaluation.
    Prints a line for each result. 0: all agree; 1: some number differs."""
    from data_prep.build import existing
    database = Database(profile, existing(load(profile, corpus).corpus), create=False)
    rows = [find(database, prefix)] if prefix else database.rows(
        "select * from runs where status = 'done' and id in (select run_id from evaluations) order by id")
    if not rows:
        raise SuiteError(f"profile {profile!r} has no finished run yet: make report PROFILE={profile}")
    results, numbers, apart = 0, 0, 0
    for row in rows if prefix or every else [random.choice(rows)]:
        here = database.intact(row)["machine"] == machine() and json.loads(row["versions"]) == versions()
        where = "" if here else "; the result was made on another machine or with other versions"
        for name, away in verify(row, database):
            different = np.count_nonzero(away)
            how = f"{different} differ, by up to {away.max():.2g} of the value" if different else "identical"
            print(f"{row['run'][:8]}  {name:<24} {len(away):>6} numbers: {how}{where}", flush=True)
            results, numbers = results + 1, numbers + len(away)
            apart += not (away <= (0 if here else ELSEWHERE)).all()
    print(f"{results} results, {numbers:,} numbers: "
          + (f"{apart} results do not agree with what is stored" if apart else "all agree with what is stored"))
    return 1 if apart else 0
