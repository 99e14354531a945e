"""From a plan to the page: runs are trained, each notebook is executed as soon as its runs are there, the page grows.

Worker processes train while a thread executes notebooks, one at a time. A notebook or run that fails stops no other.
"""

import queue
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from lib import paths
from lib.data import Corpus
from lib.errors import SuiteError
from lib.text import duration
from suite import claims, report
from suite.experiments.base import Job, merged
from suite.plan.outlook import Planned, outlook, plans_of
from suite.report import NotebookStatus
from suite.run import damage, evidence, execute, stamps
from suite.run.database import Damaged, Database, claim, make_way
from suite.run.engine import EngineError, Failure, by_need, ensure, with_seeds
from suite.run.worker import Hosts
from suite.settings.fingerprints import run_fingerprint
from suite.settings.parameters import notebook_names
from suite.settings.profiles import Profile
from suite.settings.progress import Display


class Waiting:
    """A notebook and its missing jobs by the run's fingerprint, until each is done or has failed."""

    def __init__(self, plan: Planned, database: Database) -> None:
        self.plan, self.database = plan, database
        self.failures: list[Failure] = []
        self.jobs = {database.fingerprint(job.run): job for job in merged(database.missing(plan.jobs))}

    def hear(self, run: str, failure: Failure | None) -> bool:
        """Whether this news of a run was the last that the notebook waited for."""
        if run not in self.jobs:
            return False
        missing = self.database.missing([self.jobs[run]])
        if missing and failure is None:
            return False
        del self.jobs[run]
        self.failures += [failure] if missing else []
        return not self.jobs


class Pipeline:
    """One profile with one corpus. `status` is what the page says of every notebook."""

    def __init__(self, profile: Profile, corpus: Corpus, shown: Display, hosts: Hosts | None = None,
                 trains: bool = True) -> None:
        self.profile, self.corpus, self.shown, self.hosts, self.trains = profile, corpus, shown, hosts, trains
        self.stamps = {name: stamps.stamp(profile.name, name, corpus.fingerprint) for name in notebook_names()}
        self.status = {name: NotebookStatus("fresh" if self.fresh(name) else "waiting") for name in self.stamps}
        self.ready: queue.Queue[Planned | None] = queue.Queue()
        self.process: execute.NotebookProcess | None = None
        self.stopped = False
        self.page_error = ""
        self.lacking: dict[str, str] = {}              # what notebooks lack whose runs ship: they may show less
        self.on_page: dict[str, NotebookStatus] = {}   # the status that the page shows

    def fresh(self, name: str) -> bool:
        return stamps.whole(self.profile.name, name, self.stamps[name])

    def run(self, names: Sequence[str]) -> list[str]:
        """Bring `names` up to date; returns those that failed. `SuiteError` for wrong parameters, before any work."""
        for line in damage.look_over(self.profile.name):
            self.shown.note(line)
        for name, status in self.status.items():       # what was executed with damaged runs is executed again
            self.status[name] = status if self.fresh(name) else NotebookStatus("waiting")
        plans = plans_of(self.profile, (name for name in names if not self.fresh(name)), self.fail)
        if not self.trains:
            plans = [replace(plan, jobs=self.shipped(plan)) for plan in plans]
        if evidence.shipped(self.profile.name, self.profile.corpus.folder):
            with closing(Database(self.profile.name, self.corpus)) as database:
                entered, errors = evidence.enter(database, merged(job for plan in plans for job in plan.jobs))
            self.shown.note("\n".join([f"{len(entered)} runs of evidence/ are entered as they ship", *errors]))
        view = outlook(plans, self.profile, self.corpus)
        if not view.nothing_to_do and self.trains:
            elsewhere = "\nthese are times of this machine; those of the cluster show as its runs train"
            self.shown.note(view.text() + elsewhere * bool(self.hosts))
        thread = threading.Thread(target=self.execute_all, daemon=True)
        thread.start()
        try:
            try:
                self.train(plans)
            except Damaged as error:                   # what is executed already stays on the page
                for plan in plans:
                    if self.status[plan.notebook].state == "waiting":
                        self.fail(plan.notebook, str(error))
            self.ready.put(None)
            while thread.is_alive():                   # join without a limit would not hear Ctrl-C
                thread.join(0.5)
        finally:
            self.stop()
        self.build_page()
        return [name for name in names if self.status[name].state == "failed"]

    def shipped(self, plan: Planned) -> tuple[Job, ...]:
        """What is shown of a notebook whose runs ship; a note says where some are missing."""
        jobs = tuple(evidence.there(self.profile.name, self.profile.corpus.folder, plan.jobs))
        if missing := len(plan.jobs) - len(jobs):
            self.lacking[plan.notebook] = f"{missing} of {len(plan.jobs)} runs are not in evidence/ yet (make evidence)"
            self.shown.note(f"{plan.notebook}: {self.lacking[plan.notebook]}")
        return jobs

    def train(self, plans: Sequence[Planned]) -> None:
        """All runs of all plans in their order. A notebook is handed on when all its runs are there, or, if it is
        executed alone, when nothing trains any more. What fails holds up only the notebooks that asked for it."""
        database, jobs = Database(self.profile.name, self.corpus), [job for plan in plans for job in plan.jobs]
        waiting = [Waiting(plan, database) for plan in plans]

        ships = self.trains and evidence.shipped(self.profile.name, self.profile.corpus.folder)
        by_run = {database.fingerprint(job.run): job for job in merged(jobs)} if ships else {}

        def on_news(run: str, failure: Failure | None) -> None:
            if run in by_run:                          # before a notebook asks which runs ship
                evidence.write(database, by_run[run])
            for notebook in waiting:
                if notebook.hear(run, failure) and not notebook.plan.alone:
                    self.hand_on(notebook)

        for notebook in waiting:
            if not notebook.jobs and not notebook.plan.alone:
                self.hand_on(notebook)
        if not self.trains:
            for notebook in [own for own in waiting if own.jobs]:
                waiting.remove(notebook)
                self.fail(notebook.plan.notebook, f"{len(notebook.jobs)} of its runs are not in evidence/; train them "
                                                  "with: make evidence")
            jobs = []
        with suppress(EngineError):                    # each notebook that lacks a run says which, and why
            ensure(jobs, self.profile.name, self.corpus, self.profile.workers, on_news, shown=self.shown,
                   further=lambda seeds: self.order_of_further(seeds, jobs), hosts=self.hosts)
        for notebook in waiting:
            assert not notebook.jobs, f"{notebook.plan.notebook} waits for runs that nobody makes"
            if notebook.plan.alone:
                self.hand_on(notebook)

    def order_of_further(self, seeds: int, jobs: Sequence[Job]) -> Callable[[Job], int]:
        """Further seeds go first where the claims are undecided from the first `seeds`."""
        try:
            judged = claims.judge(with_seeds(self.profile, seeds), self.corpus, notebook_names())
        except Exception:                              # a claim that cannot be judged must not stop the training
            self.shown.note(f"claims cannot be judged yet, further seeds are trained in the plan's order:\n"
                            f"{traceback.format_exc()}")
            return lambda job: 0
        # A measure fails now if one of its runs is not trained yet; the page names a measure that is really broken.
        verdicts = Counter("not judged yet" if found.verdict == "failed" else found.verdict for found in judged)
        counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        self.shown.note(f"claims after {seeds} {'seed' if seeds == 1 else 'seeds'}: {counts}; further seeds of the "
                        "undecided come first")
        return by_need(judged, {run_fingerprint(job.run, self.corpus): job.run for job in jobs})

    def hand_on(self, waiting: Waiting) -> None:
        if failures := waiting.failures:
            self.fail(waiting.plan.notebook, "\n".join([
                *(failure.text() for failure in failures), f"not executed, as {len(failures)} of its runs failed; the "
                f"first: {failures[0].label}: {failures[0].reason}"]))
        else:
            self.ready.put(waiting.plan)

    def fail(self, name: str, error: str, seconds: float | None = None) -> None:
        self.status[name] = NotebookStatus("failed", error, seconds)
        self.shown.note(f"{name}: FAILED: {error.strip().splitlines()[-1].strip()}")

    # In the thread that executes

    def execute_all(self) -> None:
        while (plan := self.ready.get()) is not None and not self.stopped:
            try:
                self.execute_one(plan)
            except SuiteError as error:
                self.fail(plan.notebook, str(error))
            except Exception:                          # a fault of the suite, which belongs on the page
                self.fail(plan.notebook, traceback.format_exc())
            if not self.stopped:
                self.build_page()

    def execute_one(self, plan: Planned) -> None:
        """Execute, once no other suite executes the notebook, unless that one has brought it up to date."""
        folder, name, told = paths.executed(self.profile.name), plan.notebook, False
        while not self.stopped:
            with claim(folder / f".{name}.lock") as mine:
                if mine:
                    return self.execute_now(plan, folder / f"{name}.ipynb")
            if not told:
                self.shown.note(f"{name}: another suite is executing it; waiting")
            told = True
            time.sleep(0.2)

    def execute_now(self, plan: Planned, output: Path) -> None:
        name = plan.notebook
        self.status[name] = NotebookStatus("fresh" if self.fresh(name) else "running")
        if self.status[name].state == "fresh":
            return
        for path in (output, paths.results(self.profile.name) / f"{name}.csv", stamps.record(self.profile.name, name)):
            make_way(path)
        self.shown.note(f"{name}: executing")
        self.process = execute.NotebookProcess(paths.NOTEBOOKS / f"{name}.ipynb", output, plan.parameters.model_dump())
        ended = self.process.wait()
        self.process = None
        if ended.error and name in self.lacking and not self.stopped:
            self.status[name] = NotebookStatus("lacking", self.lacking[name], ended.seconds)
            self.shown.note(f"{name}: not shown, {self.lacking[name]}; it ended with {ended.error.splitlines()[-1]}")
        elif ended.error and not self.stopped:
            self.fail(name, ended.error, ended.seconds)
        elif not self.stopped:
            stamps.write(self.profile.name, name, self.stamps[name], seconds=ended.seconds)
            self.status[name] = NotebookStatus("done", "", ended.seconds)
            self.shown.note(f"{name}: done in {duration(ended.seconds)}")

    def build_page(self) -> None:
        """The page with what is there. One that cannot be written is said so, and the work goes on."""
        for name, own in list(self.status.items()):
            if own.state in ("done", "fresh") and not self.fresh(name):
                self.fail(name, "its executed notebook or its table has changed since it was made: run the report "
                                "again")
        status = dict(self.status)
        if status == self.on_page:
            return
        try:
            report.build(self.profile.name, status, self.profile.corpus.folder)
            self.on_page, self.page_error = status, ""
            if all(notebook.state in ("done", "fresh") for notebook in status.values()):
                stamps.write(self.profile.name, stamps.PAGE, self.page_stamp())
        except Exception as error:
            self.page_error = f"the page could not be written: {error}"
            self.shown.note(self.page_error if isinstance(error, SuiteError) else traceback.format_exc())

    def page_stamp(self) -> str:
        text = self.profile.corpus.folder, *self.corpus.manifest["notes"]
        return stamps.page_stamp(self.profile.name, self.stamps, *text)

    def page_shows(self, names: Sequence[str]) -> bool:
        """Whether the page is that of these notebooks; of some of them, whether it was written after the last one."""
        if len(names) == len(self.status):
            return stamps.whole(self.profile.name, stamps.PAGE, self.page_stamp())
        page = paths.report(self.profile.name) / "index.html"           # the last of the files that are written
        made = [stamps.record(self.profile.name, name).stat().st_mtime_ns for name in names]
        return page.is_file() and page.stat().st_mtime_ns >= max(made)

    def stop(self) -> None:
        """End what is being executed; called in the end too, when nothing is."""
        self.stopped = True
        self.ready.put(None)
        if (process := self.process) is not None:
            process.end()
