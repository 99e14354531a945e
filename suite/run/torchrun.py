"""The runs of a profile, one after another, each on all processes that `torchrun` starts (docs/many_gpus.md).

    torchrun --nproc-per-node 8 -m suite.run.torchrun --profile paper [--corpus FOLDER] [--weights-only] [NOTEBOOK...]

The first process is a worker like those of the engine: it claims a run by its lock, enters it in the experiment
database and evaluates it. The others train with it, and wait meanwhile. A process that dies ends all: `torchrun` names
it, and the same command goes on from the last checkpoint, with as many processes as there are then.
"""


import argparse
import os
import signal
import sys
import time
import traceback
from collections import Counter
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lib.config import RunConfig
from lib.data import Corpus
from lib.errors import SuiteError
from lib.step import Ranks
from lib.text import duration
from lib.training import load_run
from suite.experiments.base import merged
from suite.plan.outlook import planned
from suite.run.database import Database
from suite.run.engine import assignments
from suite.run.worker import Worker, described
from suite.settings.machine import cores
from suite.settings.parameters import notebook_names
from suite.settings.profiles import Profile, opened
from suite.settings.progress import Active, Snapshot, display

ANSWER = timedelta(minutes=10)          # a process that has not sent its gradients by then hangs, and ends all
PATIENCE = timedelta(days=30)           # of processes that wait while the first evaluates; a death is noticed at once
END = "end"
TERMINATED = "terminated, as torchrun does with all when one has ended, and a batch system when the time is over"


def joined() -> tuple[Ranks, str]:
    """The group of processes that `torchrun` started, and this one's device."""
    if "RANK" not in os.environ:
        raise SuiteError("suite.run.torchrun is started by torchrun: torchrun --nproc-per-node 2 -m suite.run.torchrun "
                         "--profile small; one process alone: make report")
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        number, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if number >= there:
            raise SuiteError(f"process {number} of this machine has no GPU, as there are {there}: "
                             f"--nproc-per-node {there}")
        torch.cuda.set_device(number)
    else:
        torch.set_num_threads(max(1, cores() // int(os.environ["LOCAL_WORLD_SIZE"])))
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=ANSWER)
    control = dist.new_group(backend="gloo", timeout=PATIENCE)
    return Ranks(dist.get_rank(), dist.get_world_size(), control), "cuda" if on_gpu else "cpu"


class Member(Worker):
    """One of the processes. Each trains every run; the first also tells the others which run is next, and shows what a
    worker would say to its engine."""

    def __init__(self, ranks: Ranks, device: str) -> None:
        super().__init__(self, device)
        self.shown = display(os.fdopen(os.dup(2), "w", buffering=1))            # the log of a run takes the place of 2
        self.count, self.total, self.state = Counter(), 0, Active("")
        self.last: dict[str, Any] = {}
        self.ranks = ranks
        if ranks.size > 1:
            self.facts = replace(self.facts, device=f"{ranks.size} x {device}")

    def say(self, event: str, **content: Any) -> None:
        self.last = {"event": event, **content}
        if event == "progress":
            self.state = replace(self.state, **content)
            self.shown.show(Snapshot(self.count["done"], self.total, self.count["failed"], (self.state,)))

    def tell(self, call: str, *given: Any) -> None:
        """With `--weights-only` nothing is recorded: the next `make report` enters the run."""

    def follow(self) -> None:
        """The work of all processes but the first."""
        while (told := self.ranks.of_first(lambda: END)) != END:
            run, folder, corpus = RunConfig.from_dict(told[0]), Path(told[1]), self.corpus(told[2])
            try:
                super().train(run, corpus, folder, None, ranks=self.ranks)
            except SuiteError:                         # the first process has it too, and says it
                continue

    def train(self, run: RunConfig, corpus: Any, folder: Path, progress: Any) -> Any:
        result = load_run(run, folder, self.device)
        if result is not None:
            return result
        self.ranks.of_first(lambda: (run.to_dict(), str(folder), None if corpus is None else str(corpus.path)))
        try:
            return super().train(run, corpus, folder, progress, ranks=self.ranks)
        except (Exception, SystemExit) as error:
            # The others raise a SuiteError too, and the next run can follow; else they wait for what will not come.
            if isinstance(error, SuiteError) or self.ranks.size == 1:
                raise
            signal.signal(signal.SIGTERM, signal.SIG_IGN)          # there is something to say first
            traceback.print_exc()
            raise SystemExit(lost(run, folder, self.ranks, error)) from error


def lost(run: RunConfig, folder: Path, ranks: Ranks, error: BaseException) -> str:
    what = str(error) if isinstance(error, SystemExit) else described(error).splitlines()[0]
    if isinstance(error, dist.DistError) or "gloo" in what:
        what = f"one of the {ranks.size} processes ended or did not answer, as torchrun says below ({what})"
    return (f"run {folder.name} ({run.pattern.name}, seed {run.train.seed}) stopped: {what}. Start the same command "
            f"again: it goes on from the last checkpoint, with any number of processes. log: {folder / 'log.txt'}")


def lead(profile: Profile, corpus: Corpus | None, names: list[str], member: Member, weights_only: bool) -> int:
    """The work of the first process: the plan's missing runs, one after another; the exit status. It skips a run that
    another job has in hand. weights_only: no database is read or written."""
    started, jobs = time.monotonic(), merged(job for name in names for job in planned(profile, name).jobs)
    if weights_only:
        jobs = [replace(job, evaluations=()) for job in jobs]
    with nullcontext() if weights_only else closing(Database(profile.name, corpus)) as database:
        tasks = assignments(jobs, database, corpus)
    count, member.total = member.count, len(tasks)
    for task in tasks:
        member.state = Active(task.label)
        member.perform(task.message(profile.name, corpus, slots=0) | ({"trained": False} if weights_only else {}))
        count[member.last["event"]] += 1
        if member.last["event"] == "failed":
            member.shown.note(f"FAILED: {task.label}: {member.last['error']}\n    log: {task.log(profile.name)}")
    others = f", {count['busy']} in the hands of another job" if count["busy"] else ""
    spent = duration(time.monotonic() - started)
    member.shown.close(f"{count['done']} of {len(tasks)} runs finished in {spent}, {len(jobs) - len(tasks)} there "
                       f"already{others}; make report PROFILE={profile.name} executes the notebooks with them")
    return 1 if count["failed"] else 0



def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="torchrun --nproc-per-node N -m suite.run.torchrun",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help="only the runs of these (default: of all)")
    parser.add_argument("--profile", default="small", help="a name in profiles/ (default: small)")
    parser.add_argument("--corpus", default="", metavar="FOLDER", help="a person's own text, one subfolder per domain")
    parser.add_argument("--weights-only", action="store_true", help="train, and leave database and evaluations to the "
                        "next `make report`: for jobs on several machines that share outputs/ over a network")
    options, status = parser.parse_args(argv), 0
    try:
        member = Member(*joined())
        if member.ranks.first:
            # torchrun may be quicker than the broken link
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
            names = [name.removesuffix(".ipynb") for name in options.notebooks] or notebook_names()
            status = lead(*opened(options.profile, options.corpus), names, member, options.weights_only)
    except SuiteError as error:                        # wrong input, said before any run began
        print(f"error: {error}", file=sys.stderr)
        if not dist.is_initialized():
            return 2
        status = 2
    if member.ranks.first:
        member.ranks.of_first(lambda: END)
    else:
        member.follow()
    dist.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
