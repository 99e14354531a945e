"""Fills a profile's database with as many runs and metric rows as one likes, by SQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lib.config import DataConfig, Evaluation, ModelConfig, PatternSpec, RunConfig, TrainConfig
from suite.experiments.base import Job
from suite.run.database import Database, Facts, now, transaction
from suite.settings.fingerprints import code_fingerprint, evaluation_fingerprint, training_modules
from suite.settings.machine import machine

MODEL = ModelConfig(vocab=64, d_model=16, layers=4, heads=2, kv_heads=1, head_dim=8, hidden=32)
TRAIN = TrainConfig(steps=400, batch=2, length=64, warmup=1, precision="fp32", eval_every=8)
WINDOWS = (2, 3, 4, 5)
EVALUATIONS = (Evaluation.of("task", count=64), Evaluation.of("task", count=64, lengths=(128,)),
               Evaluation.of("attention_memory"))
TRAINING_SHARE = 4              # one in so many metric rows of a run is of its training, by step


def jobs(runs: int) -> list[Job]:
    """Runs of several patterns, with one seed after the other, each with all evaluations."""
    base = RunConfig(PatternSpec.of("local", window=2), MODEL, TRAIN, DataConfig.of("copying"))
    return [Job.of(replace(base, pattern=PatternSpec.of("local", window=WINDOWS[n % len(WINDOWS)]),
                           train=replace(TRAIN, seed=n // len(WINDOWS))), *EVALUATIONS,
                   series="Local window", role="control", window=WINDOWS[n % len(WINDOWS)]) for n in range(runs)]


def fill(database: Database, planned: Sequence[Job], rows_a_run: int) -> None:
    """Every job trained and evaluated, with `rows_a_run` metric rows each and one small array an evaluation."""
    facts = Facts({"torch": "2.13.0", "python": "3.11"}, machine(), "cpu", 1)
    code = code_fingerprint(training_modules(planned[0].run))
    connection, evaluated = database.connection, (rows_a_run - rows_a_run // TRAINING_SHARE) // len(EVALUATIONS)
    with transaction(connection):
        for n, job in enumerate(planned):
            database.insert("runs", dict(
                run=database.fingerprint(job.run), pattern=job.run.pattern.name, config=json.dumps(job.run.to_dict()),
                data="", code=code, status="done", versions=json.dumps(facts.versions), machine=facts.machine,
                device=facts.device, threads=facts.threads, started=now(), ended=now(), seconds=30.0 + n % 7,
                tokens_per_s=1000.0 + n % 13, peak_memory_mib=300.0, parameters=1234, spent="{}"))
        for evaluation in EVALUATIONS:
            connection.execute("""insert into evaluations (run_id, evaluation, name, parameters, seconds, ended)
                                  select id, ?, ?, ?, 0.5, ended from runs order by id""",
                               (evaluation_fingerprint(evaluation), evaluation.name,
                                json.dumps(dict(evaluation.parameters))))
        connection.execute("insert into arrays select id, 'right', ?, '[8]', ? from evaluations",
                           (np.dtype(np.float32).str, np.arange(8, dtype=np.float32).tobytes()))
        count = "with recursive n(i) as (select 0 union all select i + 1 from n where i + 1 < ?) insert into metrics "
        connection.execute(f"""{count} select runs.id, null, 'train_loss', '', '', null, null, null, 8 * i,
                                   4.0 / (1 + i)
                               from runs, n order by runs.id, i""", (rows_a_run // TRAINING_SHARE,))
        connection.execute(f"""{count} select run_id, id, 'accuracy', 'copying', '', 64, i, null, null, 0.5 + 0.0001 * i
                               from evaluations, n order by run_id, id, i""", (evaluated,))
