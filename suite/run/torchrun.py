"""The runs of a profile, one after another, each on all processes that `torchrun` starts (docs/many_gpus.md).

    torchrun --nproc-per-node 8 -m suite.run.torchrun --profile paper [--corpus FOLDER] [--weights-only] [NOTEBOOK...]

The first process is a worker like those of the engine: it claims a run by its lock, enters it in the experiment database and
evaluates it. The others train with it, and wait meanwhile. A process that dies ends all: `torchrun` names it, and the same
command goes on from the last checkpoint, with as many processes as there are then.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from filelock import FileLock, Timeout

from lib import paths
from lib.config import RunConfig
from lib.errors import SuiteError
from lib.patterns import pattern_class
from lib.ranks import Ranks
from lib.text import duration
from lib.train_run import load_run
from suite.plan.outlook import Fresh, notebooks, planned
from suite.run.engine import Task, label, merged
from suite.run.replicates import numbered
from suite.run.worker import Real, Worker, described, logging_to
from suite.settings.machine import cores
from suite.settings.progress import Active, Display, Snapshot, display

if TYPE_CHECKING:
    from lib.data import Corpus
    from suite.settings.profiles import Profile

ANSWER = timedelta(minutes=10)          # a process that has not sent its gradients by then hangs, and ends all
PATIENCE = timedelta(days=30)           # of those that wait while the first evaluates; one that dies is noticed at once
PLACES = 2 ** 16                        # the batch system has given these processes theirs: no waiting for one here
END = "end"
TERMINATED = "terminated, as torchrun does with all when one has ended, and a batch system when the time is over"


def joined() -> tuple[Ranks, str]:
    """The group of processes that `torchrun` started, and this one's device."""
    if "RANK" not in os.environ:
        raise SuiteError("suite.run.torchrun is started by torchrun: torchrun --nproc-per-node 2 -m suite.run.torchrun --profile "
                         "small; one process alone: make report")
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        own, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if own >= there:
            raise SuiteError(f"process {own} of this machine has no GPU, as there are {there}: --nproc-per-node {there}")
        torch.cuda.set_device(own)
    else:
        torch.set_num_threads(max(1, cores() // int(os.environ["LOCAL_WORLD_SIZE"])))
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=ANSWER)
    control = dist.new_group(backend="gloo", timeout=PATIENCE)
    return Ranks(dist.get_rank(), dist.get_world_size(), control), "cuda" if on_gpu else "cpu"


def trained(run: RunConfig, corpus: Corpus | None, folder: Path, ranks: Ranks, device: str, progress: Any = None) -> Any:
    """One run, in every process at the same time."""
    from suite.tasks import make_source
    own = importlib.import_module(pattern_class(run.pattern.name).trainer)
    return own.train_run(run, make_source(run.data, corpus), corpus, folder, progress, device, ranks=ranks)


class Together(Real):
    """The trainer of the first process: it tells the others which run is next."""

    def __init__(self, ranks: Ranks, device: str) -> None:
        self.ranks, self.device = ranks, device

    def train(self, run, corpus, folder, progress):
        result = load_run(run, folder, self.device)
        if result is None:
            self.ranks.of_first(lambda: (run.to_dict(), str(folder), None if corpus is None else str(corpus.path)))
            try:
                result = trained(run, corpus, folder, self.ranks, self.device, progress)
            except SuiteError:                         # the others raise it too: the next run can follow
                raise
            except (Exception, SystemExit) as error:   # the others wait for what will not come
                if self.ranks.size == 1:
                    raise
                signal.signal(signal.SIGTERM, signal.SIG_IGN)      # there is something to say first
                traceback.print_exc()
                raise SystemExit(lost(run, folder, self.ranks, error)) from error
        return result.model, result, sum(p.numel() for p in result.model.parameters())


def lost(run: RunConfig, folder: Path, ranks: Ranks, error: BaseException) -> str:
    what = str(error) if isinstance(error, SystemExit) else described(error).splitlines()[0]
    if isinstance(error, dist.DistError) or "gloo" in what:
        what = f"one of the {ranks.size} processes ended or did not answer, as torchrun says below ({what})"
    return (f"run {folder.name} ({run.pattern.name}, seed {run.train.seed}) stopped: {what}. Start the same command again: "
            f"it goes on from the last checkpoint, with any number of processes. log: {folder / 'log.txt'}")


def follow(ranks: Ranks, device: str) -> None:
    """The work of all processes but the first."""
    trainer = Together(ranks, device)
    while (told := ranks.of_first(lambda: END)) != END:
        run, folder = RunConfig.from_dict(told[0]), Path(told[1])
        corpus = trainer.corpus(told[2]) if told[2] else None          # not on this machine: that ends all
        try:
            trained(run, corpus, folder, ranks, device)
        except SuiteError:                             # the first process has it too, and says it
            continue


class Voice:
    """In the place of a worker's channel to its engine: what it says is shown."""

    def __init__(self, shown: Display) -> None:
        self.shown, self.counts, self.state = shown, (0, 0, 0), Active("")
        self.last: dict[str, Any] = {}

    def say(self, event: str, **content: Any) -> None:
        self.last = {"event": event, **content}
        if event == "progress":
            self.state = replace(self.state, **content)
            done, total, failed = self.counts
            self.shown.show(Snapshot(done, total, failed, (self.state,)))


class Lead:
    """The work of the first process: the plan's missing runs, one after another. A run that another job has is left to it."""

    def __init__(self, profile: Profile, corpus: Corpus, names: list[str], ranks: Ranks, device: str,
                 weights_only: bool) -> None:
        self.profile, self.corpus, self.weights_only = profile, corpus, weights_only
        self.shown = display(os.fdopen(os.dup(2), "w", buffering=1))            # the log of a run takes the place of 2
        self.voice, self.trainer = Voice(self.shown), Together(ranks, device)
        self.worker = Worker(self.trainer, self.voice)
        if ranks.size > 1:
            self.worker.facts = replace(self.worker.facts, device=f"{ranks.size} x {device}")
        self.pending, self.there = self.missing(names or notebooks())

    def missing(self, names: list[str]) -> tuple[list[Task], int]:
        """Tasks, first seeds before second ones, and how many runs are there already."""
        from suite.run.database import Database
        database = Fresh(self.corpus) if self.weights_only else Database(self.profile.name, self.corpus)
        jobs = merged((job for name in names for job in planned(self.profile, name).jobs), database)
        seeds = dict(zip(jobs, numbered(job.run for job in jobs.values()), strict=True))
        lacking = {database.fingerprint(job.run): job for job in database.missing(jobs.values())}
        tasks = [Task(job, key, label(jobs[key]), replicate=seeds[key]) for key, job in lacking.items()]
        return sorted(tasks, key=lambda task: task.replicate), len(jobs) - len(tasks)

    def run(self) -> int:
        """All that is pending; the exit status."""
        started, total = time.monotonic(), len(self.pending)
        count = Counter()
        for task in self.pending:
            self.voice.state, self.voice.counts = Active(task.label), (count["done"], total, count["failed"])
            self.perform(task)
            count[self.voice.last["event"]] += 1
            if self.voice.last["event"] == "failed":
                log = paths.run_folder(self.profile.name, task.fingerprint) / "log.txt"
                self.shown.note(f"FAILED: {task.label}: {self.voice.last['error']}\n    log: {log}")
        others = f", {count['busy']} in the hands of another job" if count["busy"] else ""
        self.shown.close(f"{count['done']} of {total} runs finished in {duration(time.monotonic() - started)}, {self.there} "
                         f"there already{others}; make report PROFILE={self.profile.name} executes the notebooks with them")
        return 1 if count["failed"] else 0

    def perform(self, task: Task) -> None:
        """One run to its end; what the worker said last is the outcome."""
        if not self.weights_only:
            self.worker.perform(task.message(self.profile.name, self.corpus, PLACES))
            return
        folder = paths.run_folder(self.profile.name, task.fingerprint)
        folder.mkdir(parents=True, exist_ok=True)
        run, corpus = task.job.run, self.corpus if task.job.run.data.source == "text" else None
        try:
            with FileLock(folder / "lock", blocking=False), logging_to(folder / "log.txt", f"{task.label}, weights only"):
                self.trainer.train(run, corpus, folder, self.worker.progress())
        except Timeout:
            self.voice.say("busy")
        except Exception as error:                     # it belongs to this run alone: the others go on
            if not isinstance(error, SuiteError):
                traceback.print_exc()
            self.voice.say("failed", error=described(error))
        else:
            self.voice.say("done")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchrun --nproc-per-node N -m suite.run.torchrun", description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help="only the runs of these (default: of all)")
    parser.add_argument("--profile", default="small", help="a name in profiles/ (default: small)")
    parser.add_argument("--corpus", default="", metavar="FOLDER", help="a person's own text, one subfolder a domain")
    parser.add_argument("--weights-only", action="store_true", help="train, and leave database and evaluations to the next "
                        "`make report`: for jobs on several machines that share outputs/ over a network")
    return parser


def prepared(options: argparse.Namespace, ranks: Ranks, device: str) -> Lead:
    from suite.cli import opened
    if options.corpus:
        options.corpus = str(Path(options.corpus).expanduser().resolve())
    profile, corpus = opened(options)
    return Lead(profile, corpus, [name.removesuffix(".ipynb") for name in options.notebooks], ranks, device,
                options.weights_only)


def main(argv: list[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    try:
        ranks, device = joined()
    except SuiteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    status = 0
    if ranks.first:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))          # torchrun may be quicker than the broken link
        try:
            status = prepared(options, ranks, device).run()
        except SuiteError as error:                    # wrong input, said before any run began
            print(f"error: {error}", file=sys.stderr)
            status = 2
        ranks.of_first(lambda: END)
    else:
        follow(ranks, device)
    dist.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
