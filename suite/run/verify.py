"""A stored result computed again from its run's stored weights, and compared number by number (`make verify`).

On the machine and with the versions that made a result, the same numbers must come out to the last bit; elsewhere,
within `ELSEWHERE`.
"""

from __future__ import annotations

import json
import math
import random
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lib import paths
from lib.config import Evaluation, RunConfig, freeze
from lib.errors import SuiteError
from suite.run.browse import find
from suite.run.database import METRIC_COLUMNS, Database, array_of
from suite.settings.fingerprints import code_fingerprint, evaluation_fingerprint, training_modules
from suite.settings.machine import machine, versions

if TYPE_CHECKING:
    from suite.evals import EvalResult

# Another processor sums in another order, and bfloat16 has 8 bits: a loss moves in its fourth digit, rarely an answer.
ELSEWHERE = 1e-3              # of a value, or absolute below 1


@dataclass(frozen=True)
class Verified:
    run: str                           # one evaluation of it was computed again
    evaluation: str
    away: np.ndarray                   # difference of each number, relative to max(1, |stored|); inf: one side lacks it
    here: bool                         # made on this machine with these versions

    @property
    def agrees(self) -> bool:
        return bool((self.away <= (0 if self.here else ELSEWHERE)).all())

    def text(self) -> str:
        different = np.count_nonzero(self.away)
        apart = f"{different} differ, by up to {self.away.max():.2g} of the value" if different else "identical"
        where = "" if self.here else "; the result was made on another machine or with other versions"
        return f"{self.run[:8]}  {self.evaluation:<24} {len(self.away):>6} numbers: {apart}{where}"


def verify(row: sqlite3.Row, database: Database) -> Iterator[Verified]:
    """Each evaluation that the database has of the run `row`, computed again from the weights in its folder. Raises
    `SuiteError` if the weights are gone, or if other code than the present one made them."""
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
    here = row["machine"] == machine() and json.loads(row["versions"]) == versions()
    for stored in database.rows("select * from evaluations where run_id = ? order by id", row["id"]):
        evaluation = Evaluation(stored["name"], freeze(json.loads(stored["parameters"])))
        if stored["evaluation"] == evaluation_fingerprint(evaluation):       # else of an earlier code: no report has it
            result = evaluate(evaluation, finished.model, run, database.corpus if on_text else None, device)
            yield Verified(row["run"], stored["name"], differences(stored["id"], result, database), here)


def differences(evaluation: int, result: EvalResult, database: Database) -> np.ndarray:
    """Metrics by what they describe, arrays by name: all must be there, and nothing else."""
    def described(metric: sqlite3.Row | dict) -> tuple:
        return tuple(metric[name] for name in METRIC_COLUMNS if name != "value")

    metrics, arrays = (database.rows(f"select * from {table} where evaluation_id = ?", evaluation)
                       for table in ("metrics", "arrays"))
    old = {described(row): np.array(row["value"]) for row in metrics} | {row["name"]: array_of(row) for row in arrays}
    new = {described(vars(metric)): np.array(metric.value) for metric in result.metrics} | result.arrays
    return np.concatenate([distances(old.get(key), new.get(key)) for key in sorted({*old, *new}, key=str)])


def distances(old: np.ndarray | None, new: np.ndarray | None) -> np.ndarray:
    """Of each number from the stored one, relative to max(1, |stored|); infinite if one side has no finite number."""
    if old is None or new is None or np.shape(old) != np.shape(new):
        return np.full(np.size(new if old is None else old), math.inf)
    old, new = (np.ravel(side).astype(float) for side in (old, new))
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(old) & np.isfinite(new), np.abs(new - old) / np.maximum(1, np.abs(old)), math.inf)


def main(profile: str, corpus: str, prefix: str, every: bool) -> int:
    """Verify the run of this fingerprint; without one every run, or one at random, of those that have an evaluation.
    Prints a line for each result. 0: all agree; 1: some number differs."""
    from data_prep.build import existing
    from suite.settings.profiles import load
    database, results = Database(profile, existing(load(profile, corpus).corpus), create=False), []
    rows = [find(database, prefix)] if prefix else database.rows(
        "select * from runs where status = 'done' and id in (select run_id from evaluations) order by id")
    if not rows:
        raise SuiteError(f"profile {profile!r} has no finished run yet: make report PROFILE={profile}")
    for row in rows if prefix or every else [random.choice(rows)]:
        for verified in verify(row, database):
            print(verified.text(), flush=True)
            results.append(verified)
    apart = sum(not verified.agrees for verified in results)
    print(f"{len(results)} results, {sum(len(verified.away) for verified in results):,} numbers: "
          + (f"{apart} results do not agree with what is stored" if apart else "all agree with what is stored"))
    return 1 if apart else 0
