"""The engine: each run once, whoever asks and whatever dies. In all tests but one, tests/fake_worker.py trains."""

import os
import platform
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
from fake_jobs import FAKE, Quiet, events, folder, job, train, until
from filelock import FileLock

from lib import paths
from lib.config import Evaluation, PatternSpec, RunConfig, TrainConfig
from suite.experiments import experiment
from suite.experiments.base import Job
from suite.run.database import Database
from suite.run.engine import Assignment, Engine, EngineError, apart_from_seed, by_need, ensure, with_seeds
from suite.run.worker import WORKER, Hosts
from suite.settings import profiles
from suite.settings.progress import Active

pytestmark = pytest.mark.usefixtures("outputs")


def test_when_experiments_share_a_run_then_it_is_trained_once_and_a_later_evaluation_trains_nothing():
    done, shown = [], Quiet()
    jobs = (job(1, 1), job(2, 1), job(1, 2), job(1, 1))
    train(*jobs, workers=2, on_news=lambda run, failure: done.append((run, failure)))
    assert sorted(events("trained")) == ["trained 1", "trained 2"]
    assert sorted(events("evaluate 1")) == ["evaluate 1 task {'count': 1}", "evaluate 1 task {'count': 2}"]
    assert set(done) == {(folder(job(seed)).name, None) for seed in (1, 2)}
    database, before = Database("tiny"), events()
    assert database.missing([job(1, 1, 2), job(2, 1)]) == []
    assert database.metrics(job(1, 2)).query("measure == 'accuracy'")["value"].tolist() == [2.0]
    assert database.array(job(1, 2), Evaluation.of("task", count=2), "right").shape == (2, 3)
    ensure([job(1, 1)], "tiny", None, hosts=Hosts(1, ("no such program",)), shown=shown)     # all is there
    assert events() == before and shown.summary == "1 run there already"
    train(job(1, 1, 5))
    assert events()[len(before):] == ["load 1 from 4", "evaluate 1 task {'count': 5}"]


def test_when_runs_fail_or_workers_die_then_the_others_go_on_and_one_error_names_all_that_failed():
    told, raising = {}, job(1, behaviour="raise")
    with pytest.raises(EngineError) as error:
        train(job(5, behaviour="die once"), raising, job(2, behaviour="die", pause=0.01), job(3), job(4, 1, 0, 2),
              on_news=lambda run, failure: told.update({run: failure}))
    text, log = str(error.value), folder(raising) / "log.txt"
    assert events("trained") == ["trained 5", "trained 3", "trained 4"]              # 5 again before the others
    assert events("train 5") == ["train 5 from 0", "train 5 from 2"]                 # the second from the checkpoint
    assert "3 runs failed" in text and "local, seed 1: ValueError: no such luck" in text
    assert "local, seed 2: its process died twice (killed by signal 9" in text and "| about to be killed" in text
    assert str(log) in text and "Traceback" in log.read_text()
    assert events("train 1") == ["train 1 from 0"]                   # an exception is no accident: it is not repeated
    assert events("train 2") == ["train 2 from 0", "train 2 from 2"]
    assert sum(failure is not None for failure in told.values()) == 3 and len(told) == 5
    row = Database("tiny").facts(folder(raising).name)
    assert (row["status"], row["error"]) == ("failed", "ValueError: no such luck")
    assert "seed 4: evaluation task: ValueError: nothing to count" in text
    assert Database("tiny").missing([job(3), job(4, 1, 2)]) == []    # the run's other evaluations are kept


def test_when_no_worker_starts_then_the_error_says_why():
    broken = (sys.executable, "-c", "raise SystemExit('torch is broken')")
    with pytest.raises(EngineError, match="2 runs failed(.|\n)*does not start(.|\n)*torch is broken"):
        ensure([job(1), job(2)], "tiny", None, hosts=Hosts(2, broken), shown=Quiet())


SLOW = """
import signal
from tests.fake_jobs import job, train
signal.signal(signal.SIGINT, signal.default_int_handler)        # children of a background process ignore the signal
train(job(1, pause=0.05, steps=400), job(2, linger=60.0), workers=2)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_when_the_suite_is_killed_or_interrupted_then_its_workers_end_and_another_suite_goes_on(how):
    suite = subprocess.Popen([sys.executable, "-c", SLOW], cwd=paths.ROOT, stderr=subprocess.PIPE, text=True,
                             start_new_session=True)
    # One trains, the other is in a long evaluation.
    until(lambda: events("step 2 of 1") and events("evaluate 2"), suite)
    workers = psutil.Process(suite.pid).children()
    (os.killpg if how == signal.SIGINT else os.kill)(suite.pid, how)     # a terminal sends Ctrl-C to the whole group
    _, error = suite.communicate(timeout=5)
    assert how == signal.SIGKILL or error.rstrip().endswith("KeyboardInterrupt") and error.count("Traceback") == 1
    _, alive = psutil.wait_procs(workers, timeout=3)
    assert len(workers) == 2 and not alive
    left = folder(job(1, pause=0.05, steps=400))
    with FileLock(left / "lock", blocking=False):
        assert 0 < int((left / "checkpoint.pt").read_text()) < 400


class Holder(Quiet):
    """Another suite: it holds the lock at `path` until `released` is true of what this one shows."""

    def __init__(self, path, released):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.lock, self.released = FileLock(path), released
        self.lock.acquire()

    def show(self, snapshot):
        if self.released(snapshot):
            self.lock.release(force=True)


def test_when_another_suite_holds_a_run_or_all_places_then_other_runs_come_first_and_it_is_waited_for():
    train(job(1), job(2), job(3), shown=Holder(folder(job(1)) / "lock", lambda snapshot: "trained 3" in events()))
    assert events("trained") == ["trained 2", "trained 3", "trained 1"]
    before, shown = events(), Holder(paths.outputs() / "slots" / "0.lock", lambda snapshot: any(
        "waiting" in active.stage for active in snapshot.active) and events() == before)
    train(job(4), shown=shown)
    assert not shown.lock.is_locked and events("trained 4") == ["trained 4"]


def test_when_folders_lie_where_files_belong_then_they_make_way_or_the_run_says_so():
    for place in (folder(job(1)) / "lock", folder(job(2)) / "log.txt"):
        place.mkdir(parents=True)
    folder(job(3)).write_text("no folder")
    with pytest.raises(EngineError, match="2 runs failed(.|\n)*seed 2: .* is no folder for a run .*log.txt") as failed:
        train(job(1), job(2), job(3))
    assert "seed 3: " in str(failed.value) and events("trained") == ["trained 1"]
    assert (folder(job(1)) / "lock.damaged").is_dir()


def test_when_a_run_goes_on_then_the_display_has_step_loss_rate_and_time_left():
    shown = Quiet()
    train(job(1, steps=20, pause=0.05), job(2), shown=shown)
    seen = [a for snapshot in shown.snapshots for a in snapshot.active if a.stage == "training" and "seed 1" in a.label]
    assert seen and all(a.steps == 20 and a.tokens_per_s == 1000 and a.loss for a in seen)
    assert {s.total for s in shown.snapshots} == {2} and max(s.done for s in shown.snapshots) == 2
    assert any(s.left is not None and 0 < s.left < 10 for s in shown.snapshots)
    assert shown.summary.startswith("2 runs finished in")


def test_when_runs_are_in_their_first_steps_then_their_speed_is_no_estimate_yet():
    engine = Engine([], "tiny", None, Hosts(2, FAKE), Quiet(), None, None)
    first, later = (Assignment(job(seed), "", state=Active("", "training", step, 100, tokens_per_s=rate))
                    for seed, step, rate in ((1, 1, 3.0), (2, 50, 4000.0)))
    engine.workers = [SimpleNamespace(task=first)]
    assert engine.left() is None
    engine.workers.append(SimpleNamespace(task=later))
    assert engine.left() == pytest.approx(0.99 * 512 / 3, rel=0.1)
    engine.database.close()


def test_when_the_code_of_a_run_changed_after_the_start_then_nothing_is_recorded_under_the_old_key(monkeypatch):
    message = Assignment.message
    monkeypatch.setattr(Assignment, "message", lambda *given: message(*given) | {"evaluation_fingerprints": []})
    with pytest.raises(EngineError, match="start it again"):
        train(job(1))
    assert events() == [] and Database("tiny").rows("select * from runs") == []


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc than glibc's")
def test_when_a_worker_frees_memory_then_the_next_step_has_it_without_new_pages():
    program = """if True:
        import resource
        def touch():
            blocks = [bytearray(2 ** 22) for _ in range(8)]
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        first = touch()
        print(touch() - first)"""
    plain, worker = (int(subprocess.check_output([sys.executable, "-c", program], env=environment, text=True))
                     for environment in ({"PATH": os.environ["PATH"]}, WORKER))
    assert worker < 100 < plain


# Further seeds: which runs they repeat, and which of them are trained first

def test_when_seeds_repeat_a_run_then_first_seeds_come_first_and_the_caller_orders_the_further_ones():
    asked = []

    def further(seeds):
        asked.append(seeds)
        return lambda job: 0 if job.run.train.steps == 5 else 1
    wanted = [job(seed, steps=steps) for steps in (4, 5, 6) for seed in (steps, 10 + steps, 20 + steps)]
    train(*wanted, further=further)
    assert [line.split()[1] for line in events("trained")] == ["4", "5", "6", "15", "14", "16", "25", "24", "26"]
    assert asked == [1, 2]
    before = events()
    train(*wanted, further=further)
    assert events() == before and asked == [1, 2]


def seeded(pattern: str, seed: int, **recipe) -> RunConfig:
    return RunConfig(PatternSpec.of(pattern), train=TrainConfig(seed=seed, **recipe))


def test_when_a_profile_is_cut_to_its_first_seeds_then_its_plan_is_a_part_of_the_whole():
    whole = profiles.load("overnight")
    first = with_seeds(whole, 1)
    for name in ("01_window_sweep", "02_learned_alpha", "09_long_rungs"):     # of 09 the seeds are the defaults
        plans = [{job.run for job in experiment(name).plan(p.parameters(name), p)} for p in (whole, first)]
        assert plans[1] < plans[0] and len(set(map(apart_from_seed, plans[1]))) == len(plans[1])
        assert with_seeds(whole, 99).parameters(name) == whole.parameters(name)


def test_when_further_seeds_are_ordered_then_undecided_claims_come_first_and_unclaimed_runs_last():
    configurations = {name: seeded(name, 42) for name in ("local", "dense", "strided", "bigbird", "longnet")}
    judged = [SimpleNamespace(verdict=verdict, seeds=seeds, runs=runs) for verdict, seeds, *runs in (
        ("supported", 1, "local", "dense"), ("undecided", 1, "dense", "gone"), ("contradicted", 2, "strided"),
        ("not tested", 0))]
    jobs = [Job.of(seeded(name, 43)) for name in ("bigbird", "strided", "local", "dense", "longnet")]
    ordered = [job.run.pattern.name for job in sorted(jobs, key=by_need(judged, configurations))]
    assert ordered == ["dense", "local", "strided", "bigbird", "longnet"]
