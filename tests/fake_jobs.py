"""Tiny jobs that `fake_worker.py` trains, a display that keeps what it is shown, and the events that workers write."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lib import paths
from lib.config import DataConfig, Evaluation, ModelConfig, PatternSpec, RunConfig, TrainConfig
from lib.data import Corpus
from suite.experiments.base import Job
from suite.run.engine import ensure
from suite.run.worker import Hosts
from suite.settings.fingerprints import run_fingerprint

FAKE = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))
TINY = ModelConfig(vocab=64, d_model=16, layers=2, heads=2, kv_heads=1, head_dim=8, hidden=32)


def until(there: Callable[[], object], process: subprocess.Popen) -> None:
    """Wait until `there()` is true, while `process` lives."""
    deadline = time.monotonic() + 120
    while not there():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)


class Quiet:
    """A display that keeps what it was shown."""

    def __init__(self):
        self.snapshots, self.summary = [], ""

    def show(self, snapshot):
        self.snapshots.append(snapshot)

    def note(self, text):
        pass

    def close(self, summary):
        self.summary = summary


def job(seed: int, *evaluations: int, steps: int = 4, **data) -> Job:
    train = TrainConfig(steps=steps, batch=2, length=64, warmup=1, precision="fp32", eval_every=0, seed=seed)
    run = RunConfig(PatternSpec.of("local", window=3), TINY, train, DataConfig.of("copying", **data))
    return Job.of(run, *(Evaluation.of("task", count=count) for count in evaluations or (1,)))


def folder(one: Job, corpus: Corpus | None = None) -> Path:
    return paths.run_folder("tiny", run_fingerprint(one.run, corpus))


def train(*jobs: Job, workers: int = 1, **more):
    ensure(jobs, "tiny", None, hosts=Hosts(workers, FAKE), shown=more.pop("shown", Quiet()), **more)


def events(prefix: str = "") -> list[str]:
    path = paths.outputs() / "events.txt"
    return [line for line in path.read_text().splitlines() if line.startswith(prefix)] if path.exists() else []
