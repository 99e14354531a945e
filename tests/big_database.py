"""Fills a profile's database with as many runs and metric rows as one likes."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from fake_jobs import job

from lib.config import Evaluation, PatternSpec
from suite.evals import EvalResult, Metric
from suite.experiments.base import Job
from suite.run.database import Database, Facts, now
from suite.settings.machine import machine

WINDOWS = (2, 3, 4, 5)
EVALUATIONS = (Evaluation.of("task", count=64), Evaluation.of("task", count=64, lengths=(128,)),
               Evaluation.of("attention_memory"))
TRAINING_SHARE = 4              # one in so many metric rows of a run is of its training, by step


def jobs(runs: int) -> list[Job]:
    """Runs of several patterns, with one seed after the other, each with all evaluations."""
    runs_of = [(job(n // len(WINDOWS), steps=400).run, WINDOWS[n % len(WINDOWS)]) for n in range(runs)]
    return [Job.of(replace(run, pattern=PatternSpec.of("local", window=window)), *EVALUATIONS, series="Local window",
                   role="control", window=window) for run, window in runs_of]


def fill(database: Database, planned: Sequence[Job], rows_a_run: int) -> None:
    """Every job trained and evaluated, with `rows_a_run` metric rows each and one small array an evaluation."""
    facts, of_training = Facts({"torch": "2.13.0", "python": "3.11"}, machine(), "cpu", 1), rows_a_run // TRAINING_SHARE
    database.connection.execute("pragma synchronous = off")
    measured = EvalResult([Metric("accuracy", 0.5 + 0.0001 * i, split="copying", length=64, position=i)
                           for i in range((rows_a_run - of_training) // len(EVALUATIONS))],
                          {"right": np.arange(8, dtype=np.float32)})
    for n, planned_job in enumerate(planned):
        result = SimpleNamespace(metrics=[Metric("train_loss", 4.0 / (1 + i), step=8 * i) for i in range(of_training)],
                                 seconds=30.0 + n % 7, tokens_per_s=1000.0 + n % 13, peak_memory_mib=300.0, spent={})
        database.record_training(planned_job.run, facts, result, 1234, now())
        for evaluation in EVALUATIONS:
            database.record_evaluation(planned_job.run, evaluation, measured, 0.5)
