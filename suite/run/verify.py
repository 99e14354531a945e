"""A stored result computed again from its run's stored weights, and compared number by number.

    python -m suite.run.verify [RUN] [--profile small]          RUN: a fingerprint, or its first digits; without it, any run
    python -m suite.run.verify --all [--profile small]          every run

On the machine and with the versions that made a result, the same numbers must come out to the last bit; elsewhere, within
`ELSEWHERE`. Exit status: 0 all agree, 1 some number differs, 2 wrong input, or weights or text that are not there.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lib import paths
from lib.config import Evaluation, RunConfig, freeze
from lib.errors import SuiteError
from suite.run.browse import find
from suite.run.database import METRIC_COLUMNS, Database
from suite.settings.fingerprints import (code_fingerprint,
                                         evaluation_fingerprint,
                                         training_modules)
from suite.settings.machine import machine, versions

if TYPE_CHECKING:
    from lib.data import Corpus
    from lib.model import Transformer
    from suite.evals import EvalResult

# Another processor sums in another order, and bfloat16 has 8 bits: a loss moves in its fourth digit, rarely an answer.
ELSEWHERE = 1e-3              # of a value, or absolute below 1


@dataclass(frozen=True)
class Verified:
    """One evaluation of one run, computed again: how many numbers, and how far the farthest is from what is stored."""
    run: str
    evaluation: str
    numbers: int
    different: int
    farthest: float                    # largest difference relative to max(1, |stored|); inf: numbers missing or too many
    here: bool                         # made on this machine with these versions

    @property
    def agrees(self) -> bool:
        return self.different == 0 if self.here else self.farthest <= ELSEWHERE

    def text(self) -> str:
        found = "identical" if self.different == 0 else \
            f"{self.different} differ, by up to {self.farthest:.2g} of the value"
        where = "" if self.here else "; the result was made on another machine or with other versions"
        return f"{self.run[:8]}  {self.evaluation:<24} {self.numbers:>6} numbers: {found}{where}"


def verify(row: sqlite3.Row, database: Database) -> Iterator[Verified]:
    """Each evaluation that the database has of the run `row`, computed again from the weights in its folder.

    Raises `SuiteError` if the weights are gone, or if the code that determines them is no longer the one that made them.
    """
    run = RunConfig.from_dict(json.loads(row["config"]))
    if row["status"] != "done":
        raise SuiteError(f"the run {row['run']} is not trained (it is {row['status']}): nothing to verify")
    if row["code"] != code_fingerprint(training_modules(run)):
        raise SuiteError(f"the run {row['run']} was made by other code than is here: check out that code, or train it again "
                         "(make report)")
    if run.data.source == "text" and (database.corpus is None or row["data"] != database.corpus.fingerprint):
        raise SuiteError(f"the text that the run {row['run']} was trained on is not there: name its folder (CORPUS=), or run "
                         f"make report PROFILE={database.profile}, which builds the offline corpus")
    model = weights(run, row, database)
    here = row["machine"] == machine() and json.loads(row["versions"]) == versions()
    query = "select * from evaluations where run_id = ? order by id"
    for stored in database.connection.execute(query, (row["id"],)).fetchall():
        evaluation = Evaluation(stored["name"], freeze(json.loads(stored["parameters"])))
        if stored["evaluation"] != evaluation_fingerprint(evaluation):
            continue                                   # of an earlier code of this evaluation: no report shows it any more
        yield compare(row["run"], stored, measured(evaluation, model, run, database.corpus), database, here)


def weights(run: RunConfig, row: sqlite3.Row, database: Database) -> Transformer:
    import torch

    from lib.train_run import load_run
    torch.set_num_threads(row["threads"])              # sums are split by thread
    folder = paths.run_folder(database.profile, row["run"])
    finished = load_run(run, folder, device())
    if finished is None:
        raise SuiteError(f"{folder} has no finished weights of the run {row['run']}: delete outputs/{database.profile} or "
                         "restore the folder, and run make report")
    return finished.model


def device() -> str:
    import torch
    return "cuda" if torch.cuda.is_available() else "cpu"


def measured(evaluation: Evaluation, model: Transformer, run: RunConfig, corpus: Corpus | None) -> EvalResult:
    from suite.evals import evaluate
    return evaluate(evaluation, model, run, corpus if run.data.source == "text" else None, device())


def compare(run: str, stored: sqlite3.Row, result: EvalResult, database: Database, here: bool) -> Verified:
    """Metrics by what they describe, arrays by name: all must be there, and nothing else."""
    columns = ", ".join(METRIC_COLUMNS)
    rows = database.connection.execute(f"select {columns} from metrics where evaluation_id = ?", (stored["id"],))
    pairs = matched({key(row): row["value"] for row in rows}, {key(vars(metric)): metric.value for metric in result.metrics})
    arrays = {array["name"]: np.frombuffer(array["data"], dtype=array["dtype"]).reshape(json.loads(array["shape"]))
              for array in database.connection.execute("select * from arrays where evaluation_id = ?", (stored["id"],))}
    pairs += [both(arrays.get(name), result.arrays.get(name)) for name in sorted({*arrays, *result.arrays})]
    old, new = (np.concatenate([np.ravel(side).astype(float) for side in sides]) for sides in zip(*pairs, strict=True))
    there = np.isfinite(old) & np.isfinite(new)
    away = np.full(len(old), math.inf)
    away[there] = np.abs(new - old)[there] / np.maximum(1, np.abs(old[there]))
    return Verified(run, stored["name"], len(old), int((away != 0).sum()), float(away.max(initial=0.0)), here)


def key(metric: sqlite3.Row | dict) -> tuple:
    """What a value is of; a number that does not apply is None in both."""
    return tuple(metric[name] for name in METRIC_COLUMNS if name != "value")


def matched(old: dict[tuple, float], new: dict[tuple, float]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Values side by side; one that only one side has is infinitely far from the other."""
    return [(np.array([old.get(k, math.inf)]), np.array([new.get(k, math.inf)])) for k in sorted({*old, *new}, key=str)]


def both(old: np.ndarray | None, new: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of one shape as they are; else infinitely far apart."""
    if old is not None and new is not None and old.shape == np.shape(new):
        return old, np.asarray(new)
    one = old if old is not None else np.asarray(new)
    return one, np.full(one.shape, math.inf)


def chosen(database: Database, prefix: str, every: bool) -> Sequence[sqlite3.Row]:
    """The run that is named; else every run, or one at random, of those that have an evaluation."""
    if prefix:
        return [find(database, prefix)]
    query = "select * from runs where status = 'done' and exists (select 1 from evaluations where run_id = runs.id) order by id"
    rows = database.connection.execute(query).fetchall()
    if not rows:
        raise SuiteError(f"profile {database.profile!r} has no finished run yet: make report PROFILE={database.profile}")
    return rows if every else [random.choice(rows)]


def opened(profile: str, corpus: str) -> Database:
    """The database with the text that its language models read."""
    from data_prep.build import existing
    from suite.settings.profiles import load
    return Database(profile, existing(load(profile, corpus).corpus), create=False)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m suite.run.verify", description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", default="", help="fingerprint of a run, or its first digits (default: any run)")
    parser.add_argument("--all", action="store_true", help="every run")
    parser.add_argument("--profile", default="small", help="profile whose runs are meant (default: small)")
    parser.add_argument("--corpus", default="", metavar="FOLDER", help="the folder that CORPUS named when the run was made")
    options = parser.parse_args(argv)
    try:
        database = opened(options.profile, options.corpus)
        found = []
        for row in chosen(database, options.run, options.all):
            for each in verify(row, database):
                print(each.text(), flush=True)
                found.append(each)
    except SuiteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    apart = sum(not each.agrees for each in found)
    print(f"{len(found)} results, {sum(each.numbers for each in found):,} numbers: "
          + (f"{apart} results do not agree with what is stored" if apart else "all agree with what is stored"))
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
