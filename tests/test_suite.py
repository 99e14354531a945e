"""The way from a plan to the page: what is executed when, what is fresh, and what a failure takes with it."""

import importlib
import io
import itertools
import signal
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import nbformat
import pytest
from fake_jobs import FAKE, TINY, events, folder, job, train

import data_prep.build
import suite.experiments
import suite.report
from lib import paths
from lib.config import Evaluation
from lib.text import duration
from suite import cli as suite
from suite.experiments import base
from suite.plan import estimate
from suite.plan import outlook as planning
from suite.run import compare as comparison
from suite.run import ray_hosts, stamps, worker
from suite.run.database import Database
from suite.run.seals import seal_all
from suite.settings import profiles, progress


def test_when_a_notebook_or_a_run_fails_then_the_others_go_on_and_the_failed_are_named(house, capsys):
    unlucky = base.Job.of(job(3).run, Evaluation.of("task", count=13))     # an evaluation that fails, of a shared run
    house.notebook("01_good", job(1), job(3))
    house.notebook("02_raises", job(1), code="1 / 0")
    house.notebook("03_lacks", job(2, behaviour="raise"), unlucky)
    house.notebook("04_last", job(4))
    assert house.run() == 1
    assert sorted(events("execute")) == ["execute 01_good", "execute 02_raises", "execute 04_last"]
    assert house.pages[-1] == {"01_good": "done", "02_raises": "failed", "03_lacks": "failed", "04_last": "done"}
    said = capsys.readouterr().err
    assert "failed: 02_raises" in said and "ZeroDivisionError: division by zero" in said
    assert "failed: 03_lacks" in said and "2 of its runs failed; the first: local, seed " in said
    assert "local, seed 2: ValueError: no such luck" in said and "evaluation task: ValueError: nothing to count" in said
    assert "ZeroDivisionError" in (paths.executed("tiny") / "02_raises.ipynb").read_text()
    house.notebook("02_raises", job(1))
    house.notebook("03_lacks", job(2))
    assert house.run() == 0
    assert sorted(events("execute")[3:]) == ["execute 02_raises", "execute 03_lacks"]
    assert house.pages[-1] == {"01_good": "fresh", "02_raises": "done", "03_lacks": "done", "04_last": "fresh"}


def test_when_nothing_changed_then_nothing_is_done_and_otherwise_exactly_what_is_stale(house, capsys):
    house.notebook("01_a", job(1))
    house.notebook("02_b", job(2))
    profile, page = paths.PROFILES / "tiny.yaml", paths.report("tiny") / "index.html"
    ledger, other = page.with_name("ledger.json"), paths.report("overnight") / "ledger.json"
    other.parent.mkdir(parents=True)
    text = profile.read_text() + "notebooks: {02_b: {seeds: [1]}}\n"

    def opened_and_saved():
        node = nbformat.read(paths.NOTEBOOKS / "01_a.ipynb", as_version=4)
        node.cells[1].outputs, node.cells[1].execution_count = [nbformat.v4.new_output("stream", text="seen")], 7
        nbformat.write(node, paths.NOTEBOOKS / "01_a.ipynb")

    for change, executed, written in [
            (None, ["01_a", "02_b"], True), (None, [], False), (opened_and_saved, [], False),
            (lambda: house.notebook("01_a", job(1), code="# said better"), ["01_a"], True),
            ((paths.results("tiny") / "02_b.csv").unlink, ["02_b"], True),
            (lambda: (paths.executed("tiny") / "02_b.ipynb").write_text("changed by hand"), ["02_b"], True),
            (lambda: profile.write_text(text), ["02_b"], True),
            (lambda: profile.write_text(text.replace("rungs: 5", "rungs: 4")), ["01_a", "02_b"], True),
            (lambda: setattr(house.text, "fingerprint", "other text"), ["01_a", "02_b"], True),
            # The page alone is written again, also without its ledger or with another profile's.
            (page.unlink, [], True), (ledger.unlink, [], True), (lambda: other.write_text("[]"), [], True),
            (lambda: other.write_text("[1]"), [], True), (None, [], False)]:
        if change:
            change()
        before, pages = len(events("execute")), len(house.pages)
        assert house.run() == 0 and page.exists()
        assert [line.split()[1] for line in events("execute")[before:]] == executed
        assert (len(house.pages) > pages) == written == ("nothing to do" not in capsys.readouterr().out)
        if not executed and written:
            assert house.pages[-1] == {"01_a": "fresh", "02_b": "fresh"} and len(house.pages) == pages + 1
    assert len(events("trained")) == 2


def test_when_the_library_or_the_report_changes_then_their_stamps_do(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(stamps, "REPORT", tmp_path / "suite" / "report")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "audit.md").touch()
    both = (stamps.library.__wrapped__, stamps.page_code.__wrapped__)             # without their caches
    for name, changed in {"lib/model.py": (True, False), "suite/published/a.csv": (True, False),
                          "suite/report/page.css": (False, True), "docs/audit.md": (False, True)}.items():
        before = [stamp() for stamp in both]
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("2")
        assert tuple(stamp() != old for stamp, old in zip(both, before, strict=True)) == changed, name


def test_when_two_suites_run_at_once_then_each_notebook_is_executed_once_and_the_first_before_training_ends(house):
    house.notebook("01_a", job(1, pause=0.05), code="time.sleep(0.5)")
    house.notebook("02_b", job(2, steps=60, pause=0.05))
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: house.run(), range(2))) == [0, 0]
    assert sorted(events("execute")) == ["execute 01_a", "execute 02_b"] and len(events("trained")) == 2
    assert events().index("execute 01_a") < events().index("trained 2")
    assert {"01_a": "done", "02_b": "waiting"} in house.pages


def test_when_one_notebook_is_asked_for_then_only_it_and_its_runs_are_made(house, capsys):
    house.notebook("01_a", job(1))
    house.notebook("02_b", job(2))
    assert house.run("notebook", "02_b") == 0
    assert events("trained") == ["trained 2"] and house.pages[-1] == {"01_a": "waiting", "02_b": "done"}
    assert house.run("notebook", "02_b") == 0 and "nothing to do" in capsys.readouterr().out
    page = paths.report("tiny") / "index.html"
    page.unlink()                                          # it could not be written, say, as the disk was full
    assert house.run("notebook", "02_b") == 0 and page.is_file()
    assert house.run("notebook", "02_c") == 2 and "did you mean '02_b'" in capsys.readouterr().err


def test_when_a_plan_is_asked_for_then_what_is_there_counts_as_done_and_the_longest_comes_first(house, capsys):
    house.notebook("01_a", job(1, 1), job(2, 1))
    house.notebook("02_b", job(2, 1, 2), job(3, 1, steps=8))
    train(job(2, 1))
    assert house.run("plan") == 0
    text = capsys.readouterr().out
    total = next(line.split() for line in text.splitlines() if line.startswith("total"))
    assert total[1:5] == ["3", "0", "0", "2"]                  # evaluation 2 of run 2 is missing: it is not done
    assert "from runs timed on this machine" in text
    house.notebook("01_a", job(1), job(2, steps=8), job(3), job(4, steps=12))
    plan = planning.planned(profiles.load("tiny"), "01_a")
    assert [each.run.train.seed for each in plan.jobs] == [4, 2, 1, 3]                          # the longest first


def test_when_runs_were_timed_then_the_estimate_is_theirs(house):
    train(job(1, 1))
    known, run = estimate.Estimator.from_history(), job(9, 1).run
    assert known.training(run) == pytest.approx(run.train.tokens / 1000)                # what the fake worker says
    assert known.evaluation(run, Evaluation.of("task", count=1)) < 1
    twice = replace(run, model=replace(TINY, layers=4, hidden=64))
    assert known.rate(twice) == pytest.approx(1000 * estimate.operations(run) / estimate.operations(twice))
    for device, threads, counts in [("cpu", 1, True), ("cuda", 4, True), ("cpu", 4, False), ("8 x cuda", 1, False)]:
        with closing(Database("tiny")) as database:
            database.connection.execute("update runs set device = ?, threads = ?", (device, threads))
            seal_all(database.connection)
        assert bool(estimate.Estimator.from_history().speeds) == counts       # several cores or GPUs say nothing of one


def test_when_something_is_wrong_or_interrupted_then_one_line_and_the_status_say_so_before_any_work(
        house, monkeypatch, capsys):
    house.notebook("01_a", job(1))
    profile = paths.PROFILES / "tiny.yaml"
    profile.write_text(profile.read_text() + "notebooks: {01_a: {sede: [1]}}")
    monkeypatch.setattr(ray_hosts.importlib.util, "find_spec", lambda name: None)
    for line, words in ((["report", "--engine", "slurm"], "--engine"), (["reprot"], "reprot"), ([], "command"),
                        # A wrong place for the runs is said first: there is no profile small here.
                        (["report", "--engine", "ray"], "python3 tools/bootstrap.py ray"),
                        (["report", "--run-gpus", "1"], "--run-gpus = 1.0 is not valid: it is for --engine ray"),
                        (["compare", "dense", "-p", "window"], "NAME=VALUE, for instance window=8"),
                        (["plan", "--profile", "tiny", "--gpu", "h1000"], "unknown GPU 'h1000'; did you mean 'h100'?"),
                        (["report", "--profile", "tiny"], "tiny.yaml, notebooks: 01_a: unknown parameter 'sede'")):
        assert suite.main(line) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ") and words in said and said.count("\n") == 1

    assert events() == []
    monkeypatch.setattr(suite, "up_to_date", Mock(side_effect=KeyboardInterrupt))
    assert house.run() == 130 and capsys.readouterr().err.startswith("interrupted: what is finished is kept")


@pytest.mark.parametrize(("name", "value", "words"), [
    ("NUMBA_NUM_THREADS", "0", "NUMBA_NUM_THREADS = '0' is not valid: a number from 1"),
    ("OMP_NUM_THREADS", "abc", "OMP_NUM_THREADS = 'abc'"), ("SUITE_OUTPUTS", "/proc/x", "name a folder that can be"),
    ("SUITE_OUTPUTS", "file", "file' is not valid (Not a directory)"), ("SUITE_OUTPUTS", "file/x", "(Not a directory)"),
    ("SUITE_OUTPUTS", "dangling", "dangling' is not valid"), ("SUITE_OUTPUTS", "loop/x", "(Too many levels"),
    ("SUITE_OUTPUTS", "x" * 300, "(File name too long)"),
    ("SUITE_OUTPUTS", "~nouser/x", "there is no such user"), ("SUITE_OUTPUTS", "\udcff", "a text in UTF-8")])
def test_when_the_surroundings_are_wrong_then_one_line_says_so_before_any_work(
        house, monkeypatch, capsys, name, value, words):
    house.notebook("01_a", job(1))
    monkeypatch.chdir(house.root)
    Path("file").touch()
    for link, target in (("dangling", "nowhere"), ("loop", "loop")):
        Path(link).symlink_to(target)
    monkeypatch.setattr(data_prep.build, "existing", lambda config: None)
    monkeypatch.setattr(data_prep.build, "corpus", Mock(side_effect=AssertionError))
    monkeypatch.setenv(name, value if value[0] in "~/" or name != "SUITE_OUTPUTS" else str(house.root / value))
    assert house.run() == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and words in said and said.count("\n") == 1


def test_when_a_plan_is_wrong_or_would_not_end_then_that_is_said_before_a_corpus_is_built(house, monkeypatch, capsys):
    house.notebook("01_a", job(1))
    monkeypatch.setattr(data_prep.build, "existing", lambda config: None)
    monkeypatch.setattr(data_prep.build, "corpus", Mock(side_effect=AssertionError))
    monkeypatch.setattr(planning, "PLAN_SECONDS", 0.1)
    endless = SimpleNamespace(alone=False, plan=lambda parameters, profile: swallowing(itertools.count()))
    for plan, line, words in ((endless, ["report"], "01_a: the plan takes more than 0.1 s of computing"),
                              (None, ["compare", "local", "-p", "windw=3"], "did you mean 'window'"),
                              (None, ["compare", "local", "-p", "window=[[3"], "window = '[[3' is not valid")):
        house.experiments["01_a"] = plan
        assert house.run(*line) == 2 and words in capsys.readouterr().err
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def swallowing(numbers):
    """An endless plan that takes its own errors for ones of a pattern."""
    for _ in numbers:
        with suppress(Exception):
            sum(range(1000))


def test_when_a_library_warns_then_the_display_says_it_once_and_without_a_line_of_code(house, capsys):
    house.notebook("01_a", job(1))
    jobs = house.experiments["01_a"].plan(None, None)

    def plan(parameters, profile):
        warnings.warn("a remark\nmore")
        warnings.warn("a remark\nmore")                         # Python would say it once a line of code
        return jobs
    house.experiments["01_a"].plan = plan
    for command in ("plan", "report"):
        assert house.run(command) == 0
        said = capsys.readouterr().err
        assert said.count("a remark") == 1 and "Warning" not in said and "more" not in said


def test_when_the_output_is_full_or_closed_or_a_library_fails_then_no_traceback_is_shown(monkeypatch, capsys, tmp_path):
    class Broken(io.StringIO):
        def flush(self):
            raise error
    for error, status, words in ((OSError(28, "No space left"), 2, "error: output: No space left\n"),
                                 (BrokenPipeError(), 1, "")):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", Broken())
            with suppress(SystemExit):                         # typer's own answer to a closed pipe, also status 1
                assert suite.main(["runs", "--help"]) == status
        assert capsys.readouterr().err == words
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "particular.py").write_text("int('x')")
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    monkeypatch.setenv("NUMBA_THINGS", "x")
    monkeypatch.setattr(suite, "up_to_date", lambda *given, **more: importlib.import_module("particular"))
    assert suite.main(["report"]) == 2
    said = capsys.readouterr().err
    assert "invalid literal for int() with base 10: 'x'): are its" in said and "NUMBA_THINGS='x'" in said
    assert suite.main(["runs", "show", "\udcff"]) == 2 and "a text in UTF-8" in capsys.readouterr().err


# Where runs are trained

def test_when_the_engine_is_ray_then_a_report_a_notebook_and_a_comparison_train_there(house, monkeypatch, capsys):
    asked = []

    class Elsewhere(worker.Hosts):
        def __init__(self, *given):
            super().__init__(1, FAKE)
            asked.append(given)

        def start(self, events):
            asked.append("started")
            return super().start(events)
    monkeypatch.setattr(ray_hosts, "Ray", Elsewhere)
    house.notebook("01_a", job(1))
    assert house.run("report", "--engine", "ray", "--run-cpus", "4", "--run-gpus", "0.5") == 0
    assert asked == [(4, 0.5), "started"] and events("trained") == ["trained 1"]
    assert "these are times of this machine" in capsys.readouterr().err
    house.notebook("01_a", job(2), code="# changed\n")
    assert house.run("notebook", "01_a", "--engine", "ray") == 0
    assert asked[2:] == [(None, None), "started"] and events("trained") == ["trained 1", "trained 2"]
    monkeypatch.setattr(comparison, "compare", lambda *given: type(given[-1]).__name__)
    assert house.run("compare", "dense", "--engine", "ray") == 0 and "Elsewhere" in capsys.readouterr().out


# Damage

def replaced(path: Path) -> None:
    """A folder in place of a file."""
    path.unlink()
    path.mkdir()


def test_when_rows_or_files_are_damaged_then_they_are_made_again_and_what_cannot_be_is_named(house, capsys):
    house.notebook("01_a", job(1))
    house.notebook("02_b", job(2))
    executed, made = paths.executed("tiny"), paths.report("tiny")
    assert house.run() == 0
    for change, again in [
            (lambda: (executed / "01_a.ipynb").write_text("{"), ["01_a"]),
            (lambda: (paths.results("tiny") / "02_b.csv").write_bytes(b"\xff\0"), ["02_b"]),
            (lambda: (executed / "01_a.json").write_text('{"stamp": '), ["01_a"]),
            (lambda: (made / "index.html").write_text("<html"), []),
            (lambda: (replaced(executed / ".02_b.lock"), replaced(executed / "02_b.json")), ["02_b"]),
            (lambda: replaced(executed / "01_a.ipynb"), ["01_a"]),
            (lambda: replaced(paths.results("tiny") / "01_a.csv"), ["01_a"])]:
        before, pages = len(events("execute")), len(house.pages)
        change()
        assert house.run() == 0 and len(house.pages) > pages
        assert [line.split()[1] for line in events("execute")[before:]] == again
    # A damaged row: its run is entered again from its weights, and all that was executed with it is executed again.
    with closing(Database("tiny")) as database:
        database.connection.execute("update runs set config = replace(config, '16', '17') where pattern = 'local'")
    (made / "index.html").unlink()
    assert house.run("plan") == 0
    assert len(events("trained")) == 2 and house.run() == 0
    said = capsys.readouterr().err
    assert said.count("is damaged: set aside; make report makes it again") == 2 and len(events("trained")) == 2
    assert events("load") == ["load 1 from 4", "load 2 from 4"]
    assert sorted(line.split()[1] for line in events("execute")[-2:]) == ["01_a", "02_b"]
    # A notebook that is damaged while others are executed fails; the page shows the others.
    house.notebook("02_b", job(2), code="(paths.executed(profile) / '01_a.ipynb').write_text('{')\n")
    assert house.run() == 1 and house.pages[-1] == {"01_a": "failed", "02_b": "done"}
    assert "01_a: FAILED: its executed notebook or its table has changed" in capsys.readouterr().err


# The display

SNAPSHOT = progress.Snapshot(1, 3, 0, (progress.Active("Local, seed 1", "training", 5, 10, 2.5, 1234.0),), 130.0)


def test_when_the_stream_is_a_log_then_there_is_at_most_a_line_in_the_given_time():
    stream = io.StringIO()
    log = progress.Display(stream, 0.2, 0.2)
    begin = time.monotonic()
    while time.monotonic() - begin < 0.5:
        log.show(SNAPSHOT)
    log.close("3 runs finished")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3 and lines[-1].endswith("3 runs finished")
    assert "1/3 runs, 2 min left; Local, seed 1: step 5/10, loss 2.500, 1,234 tokens/s" in lines[0]
    assert type(progress.display(stream)) is progress.Display


def test_when_the_stream_is_a_terminal_then_the_lines_are_redrawn_in_place(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    stream.isatty = lambda: True
    shown = progress.display(stream)
    assert isinstance(shown, progress.Terminal)
    shown.show(SNAPSHOT)
    shown.note("a remark")
    shown.close("3 runs finished")
    text = stream.getvalue()
    assert "1/3 runs" in text and "2 min left" in text and "step 5/10, loss 2.500" in text and "\r" in text
    assert text.rstrip().endswith("3 runs finished") and "a remark" in text


def test_when_shown_in_jupyter_then_one_output_is_updated_and_ends_as_one_line(monkeypatch):
    handle = Mock()
    monkeypatch.setattr("IPython.display.DisplayHandle", lambda: handle)
    monkeypatch.setattr(progress, "REDRAW_SECONDS", 0.0)
    shown = progress.Notebook()
    for _ in range(3):
        shown.show(SNAPSHOT)
    shown.close("3 runs finished")
    assert [name for name, *_ in handle.mock_calls] == ["display", "update", "update", "update"]
    texts = [given[0]["text/plain"] for _, given, _ in handle.mock_calls]
    assert texts[0].splitlines()[1].strip().startswith("Local, seed 1: step 5/10") and texts[-1] == "3 runs finished"
    assert all(more["metadata"] == {"progress": True} for *_, more in handle.mock_calls)


def test_when_a_duration_is_shown_then_it_has_a_fitting_unit():
    assert [duration(s) for s in (5, 89, 600, 5700, 500_000, 6e10)] == [
        "5 s", "89 s", "10 min", "1 h 35 min", "6 days", "1,901 years"]
