"""The engine: each run once, whoever asks and whatever dies. In all tests but one, tests/fake_worker.py trains."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
from fake_jobs import FAKE, Quiet, events, job, train
from filelock import FileLock

from lib import paths
from lib.config import Evaluation
from suite.run.database import Database
from suite.run.engine import Assignment, Engine, EngineError, ensure
from suite.run.hosts import WORKER, Local
from suite.settings.fingerprints import run_fingerprint
from suite.settings.progress import Active

pytestmark = pytest.mark.usefixtures("outputs")


def test_when_experiments_share_a_run_then_it_is_trained_once_and_a_later_evaluation_trains_nothing():
    done, shown = [], Quiet()
    jobs = (job(1, 1), job(2, 1), job(1, 2), job(1, 1))
    train(*jobs, workers=2, on_news=lambda run, failure: done.append((run, failure)))
    assert sorted(events("trained")) == ["trained 1", "trained 2"]
    assert sorted(events("evaluate 1")) == ["evaluate 1 task {'count': 1}", "evaluate 1 task {'count': 2}"]
    assert set(done) == {(run_fingerprint(job(s).run, None), None) for s in (1, 2)}
    database, before = Database("tiny"), events()
    assert database.missing([job(1, 1, 2), job(2, 1)]) == []
    assert database.metrics(job(1, 2)).query("measure == 'accuracy'")["value"].tolist() == [2.0]
    assert database.array(job(1, 2), Evaluation.of("task", count=2), "right").shape == (2, 3)
    ensure([job(1, 1)], "tiny", None, hosts=Local(1, ("no such program",)), shown=shown)     # all is there
    assert events() == before and shown.summary == "1 run there already"
    train(job(1, 1, 5))
    assert events()[len(before):] == ["load 1 from 4", "evaluate 1 task {'count': 5}"]


def test_when_a_worker_is_killed_then_its_run_goes_on_from_the_checkpoint():
    train(job(1, behaviour="die once"), job(2))
    assert events("train 1") == ["train 1 from 0", "train 1 from 2"]
    assert events("trained") == ["trained 1", "trained 2"]           # at once, before the others


def test_when_runs_fail_then_the_others_go_on_and_one_error_names_all():
    told, raising = {}, job(1, behaviour="raise")
    key = run_fingerprint(raising.run, None)
    with pytest.raises(EngineError) as error:
        train(raising, job(2, behaviour="die", pause=0.01), job(3), job(4, 1, 0, 2), workers=2,
              on_news=lambda run, failure: told.update({run: failure}))
    text, log = str(error.value), paths.run_folder("tiny", key) / "log.txt"
    assert sorted(events("trained")) == ["trained 3", "trained 4"]
    assert "3 runs failed" in text and "local, seed 1: ValueError: no such luck" in text
    assert "local, seed 2: its process died twice (killed by signal 9" in text and "| about to be killed" in text
    assert str(log) in text and "Traceback" in log.read_text()
    assert events("train 1") == ["train 1 from 0"]                   # an exception is no accident: it is not repeated
    assert events("train 2") == ["train 2 from 0", "train 2 from 2"]
    assert sum(failure is not None for failure in told.values()) == 3 and len(told) == 4
    row = Database("tiny").facts(key)
    assert (row["status"], row["error"]) == ("failed", "ValueError: no such luck")
    assert "seed 4: evaluation task: ValueError: nothing to count" in text
    assert Database("tiny").missing([job(3), job(4, 1, 2)]) == []    # the run's other evaluations are kept


def test_when_no_worker_starts_then_the_error_says_why():
    broken = (sys.executable, "-c", "raise SystemExit('torch is broken')")
    with pytest.raises(EngineError, match="does not start(.|\n)*torch is broken"):
        ensure([job(1), job(2)], "tiny", None, hosts=Local(2, broken), shown=Quiet())


SUITE = """
import sys
from tests.fake_jobs import Quiet, job, train
train(*[job(seed, pause=0.02) for seed in map(int, sys.argv[1:])], workers=2)
"""


def start_suite(*seeds: int, script: str = SUITE) -> subprocess.Popen:
    command = [sys.executable, "-c", script, *map(str, seeds)]
    return subprocess.Popen(command, cwd=paths.ROOT, stderr=subprocess.PIPE, text=True)


def test_when_two_suites_start_at_once_then_each_run_is_trained_exactly_once():
    suites = [start_suite(1, 2, 3, 4, 5, 6), start_suite(4, 5, 6, 1, 2, 7)]
    for suite in suites:
        assert suite.wait(60) == 0, suite.stderr.read()
        suite.stderr.close()
    assert sorted(events("trained")) == [f"trained {seed}" for seed in range(1, 8)]
    assert len(events("train ")) == 7 and len(events("evaluate")) == 7


SLOW = """
from tests.fake_jobs import job, train
train(job(1, pause=0.05, steps=400), job(2, linger=60.0), workers=2)
"""


def busy_workers(suite: subprocess.Popen) -> list[psutil.Process]:
    """The two workers, once one is in the midst of a training and the other of a long evaluation."""
    deadline = time.monotonic() + 60
    while not (events("step 2 of 1") and events("evaluate 2")):
        assert time.monotonic() < deadline and suite.poll() is None
        time.sleep(0.05)
    return psutil.Process(suite.pid).children()


def wait_gone(processes: list[psutil.Process], seconds: float) -> None:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    assert not alive


def test_when_the_engine_is_killed_then_its_workers_end_and_another_suite_goes_on():
    suite = start_suite(script=SLOW)
    workers = busy_workers(suite)
    assert len(workers) == 2
    suite.kill()
    suite.communicate()
    wait_gone(workers, 3)
    folder = paths.run_folder("tiny", run_fingerprint(job(1, pause=0.05, steps=400).run, None))
    with FileLock(folder / "lock", blocking=False):
        assert 0 < int((folder / "checkpoint.pt").read_text()) < 400


def test_when_ctrl_c_is_pressed_then_suite_and_workers_end_promptly():
    def heard() -> None:                        # children of a background process ignore the signal
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    suite = subprocess.Popen([sys.executable, "-c", SLOW], cwd=paths.ROOT, stderr=subprocess.PIPE, text=True,
                             start_new_session=True, preexec_fn=heard)
    workers = busy_workers(suite)
    os.killpg(suite.pid, signal.SIGINT)                               # a terminal sends it to the whole group
    _, error = suite.communicate(timeout=5)
    assert error.rstrip().endswith("KeyboardInterrupt") and error.count("Traceback") == 1
    wait_gone(workers, 3)


def test_when_another_suite_holds_a_run_then_the_others_come_first_and_that_one_is_waited_for():
    held = paths.run_folder("tiny", run_fingerprint(job(1).run, None))
    held.mkdir(parents=True)
    lock = FileLock(held / "lock", thread_local=False)
    lock.acquire()

    def release() -> None:
        while "trained 3" not in events():
            time.sleep(0.05)
        lock.release()
    threading.Thread(target=release, daemon=True).start()
    train(job(1), job(2), job(3))
    assert events("trained") == ["trained 2", "trained 3", "trained 1"]


def test_when_all_places_are_taken_then_a_suite_waits_for_one():
    (paths.outputs() / "slots").mkdir()
    lock = FileLock(paths.outputs() / "slots" / "0.lock", thread_local=False)
    lock.acquire()

    class Patient(Quiet):
        def show(self, snapshot):
            if any("waiting" in active.stage for active in snapshot.active):
                assert events() == []
                lock.release(force=True)
    train(job(1), shown=Patient())
    assert not lock.is_locked and events("trained") == ["trained 1"]


def test_when_a_run_goes_on_then_the_display_has_step_loss_rate_and_time_left():
    shown = Quiet()
    train(job(1, steps=40, pause=0.05), job(2), shown=shown)
    seen = [a for snapshot in shown.snapshots for a in snapshot.active if a.stage == "training" and "seed 1" in a.label]
    assert seen and all(a.steps == 40 and a.tokens_per_s == 1000 and a.loss for a in seen)
    assert "seed 1: step" in seen[-1].text() and "1,000 tokens/s" in seen[-1].text()
    assert {s.total for s in shown.snapshots} == {2} and max(s.done for s in shown.snapshots) == 2
    assert any(s.left is not None and 0 < s.left < 10 for s in shown.snapshots)
    assert shown.summary.startswith("2 runs finished in")


def test_when_the_code_of_a_run_changed_after_the_start_then_nothing_is_recorded_under_the_old_key(monkeypatch):
    message = Assignment.message
    monkeypatch.setattr(Assignment, "message", lambda *given: message(*given) | {"evaluation_fingerprints": []})
    with pytest.raises(EngineError, match="start it again"):
        train(job(1))
    assert events() == [] and Database("tiny").rows("select * from runs") == []


def test_when_a_run_is_really_trained_then_its_metrics_weights_and_facts_are_there():
    one = job(1, 8, steps=6)
    ensure([one], "tiny", None, 1, shown=Quiet())
    database = Database("tiny")
    metrics = database.metrics(one)
    row = database.facts(run_fingerprint(one.run, None))
    assert {"train_loss", "accuracy", "chance"} <= set(metrics["measure"])
    assert (metrics["run_tokens_per_s"] > 0).all() and (metrics["run_peak_memory_mib"] > 0).all()
    assert row["status"] == "done" and row["threads"] == 1 and row["parameters"] == metrics["parameters"].iloc[0] > 1000
    folder = paths.run_folder("tiny", row["run"])
    assert (folder / "model.safetensors").exists() and not (folder / "checkpoint.pt").exists()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc than glibc's")
def test_when_a_worker_frees_memory_then_the_next_step_has_it_without_new_pages():
    program = """if True:
        import resource
        def touch():
            blocks = [bytearray(2 ** 22) for _ in range(8)]
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        first = touch()
        print(touch() - first)"""
    pages = {name: int(subprocess.check_output([sys.executable, "-c", program], env=environment, text=True))
             for name, environment in (("plain", {"PATH": os.environ["PATH"]}), ("worker", WORKER))}
    assert pages["worker"] < 100 < pages["plain"]


def test_when_seeds_repeat_a_run_then_first_seeds_come_first_and_the_caller_orders_the_further_ones():
    asked = []

    def further(seeds):
        asked.append(seeds)
        return lambda job: 0 if job.run.train.steps == 5 else 1
    wanted = [job(seed, steps=steps) for steps in (4, 5, 6) for seed in (steps, 10 + steps, 20 + steps)]
    train(*wanted, further=further)
    assert [line.split()[1] for line in events("trained")] == ["4", "5", "6", "15", "14", "16", "25", "24", "26"]
    assert asked == [1, 2]
    events_before = events()
    train(*wanted, further=further)
    assert events() == events_before and asked == [1, 2]


def test_when_runs_are_in_their_first_steps_then_their_speed_is_no_estimate_yet():
    engine = Engine([], "tiny", None, Local(2, FAKE), Quiet(), lambda run, failure: None, lambda seeds: lambda job: 0)
    first, later = (Assignment(job(seed), "", state=Active("", "training", step, 100, tokens_per_s=rate))
                    for seed, step, rate in ((1, 1, 3.0), (2, 50, 4000.0)))
    assert not engine.first_impression([first]).knows
    assert engine.first_impression([first, later]).rate(first.job.run) == 4000.0
    engine.database.close()
