"""Two clean executions of the profile `smoke` on this machine: text built anew, models trained anew, the same numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
from pandas.testing import assert_frame_equal

from lib import paths
from suite import claims
from suite.experiments.base import COLUMNS

TIMED = ("run_seconds", "run_tokens_per_s", "run_peak_memory_mib")       # what two executions cannot have in common


def started(outputs: Path) -> subprocess.Popen:
    """A whole report in an empty folder, begun; what it prints is in `log.txt` there."""
    outputs.mkdir()
    with open(outputs / "log.txt", "wb") as log:
        return subprocess.Popen([sys.executable, "-m", "suite", "report", "--profile", "smoke"], cwd=paths.ROOT,
                                env={**os.environ, "SUITE_OUTPUTS": str(outputs)}, stdout=log, stderr=subprocess.STDOUT)


def test_when_smoke_is_executed_twice_from_nothing_then_every_table_and_every_verdict_is_the_same(tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    ended = [suite.wait() for suite in [started(folder) for folder in folders]]      # both at once: each has pauses
    logs = [(folder / "log.txt").read_text(encoding="utf-8", errors="replace")[-4000:] for folder in folders]
    assert ended == [0, 0], "\n".join(logs)
    one, two = (folder / "smoke" for folder in folders)
    tables = sorted(path.name for path in (one / "results").glob("*.csv"))
    assert tables == sorted(f"{path.stem}.csv" for path in paths.NOTEBOOKS.glob("*.ipynb"))
    for name in tables:
        left, right = (pd.read_csv(folder / "results" / name, dtype=str, keep_default_na=False) for folder in (one, two))
        assert list(left.columns) == list(COLUMNS) and len(left) > 0
        assert_frame_equal(left.drop(columns=[*TIMED]), right.drop(columns=[*TIMED]))
    timed = {claim.id for claim in claims.load() if claim.call.measure.name == "speed_ratio"}
    left, right = ([entry for entry in json.loads((folder / "report" / "ledger.json").read_text(encoding="utf-8"))
                    if entry["identifier"] not in timed] for folder in (one, two))
    assert left == right and len(left) >= 30
