"""What a hostile day does to a run of the suite: kills, full disks, limits, missing folders. The tables stay the same.

Every test runs one notebook of a small profile: text, seven trainings, their evaluations, notebook, table and page.
`undisturbed` is the same without any disturbance, and every test ends with a comparison of all its result cells.
"""

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from frame import TRACEBACK, Place, place

from lib import paths
from tools import compare_tables

pytestmark = [pytest.mark.slow, pytest.mark.campaign]

NAME = "01_window_sweep"
COMMAND = f"notebook {NAME} --profile tiny"
# `smoke` at a third of its text and half of its steps.
PROFILE = (paths.PROFILES / "smoke.yaml").read_text("utf-8").replace("60000", "20000").replace("steps: 24", "steps: 12")
LIVES, KILLS, SEED, LATEST = 2, 10, 13, 10.0      # kills in each life, after at most so many seconds
SECONDS = 280                         # the most that one start may take, on a busy machine
PIPED = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}


@dataclass
class Suite:
    """A copy of the repository, and the finished outputs of an undisturbed run there."""
    here: Place
    finished: Path

    def outputs(self, name: str, corpus: bool = True) -> dict[str, str]:
        """The variable for new outputs `name` in the copy; `corpus`: they have the text already."""
        folder = self.here.root / name
        folder.mkdir()
        if corpus:
            shutil.copytree(self.finished / "data", folder / "data")
        self.here.outputs = folder
        return {"SUITE_OUTPUTS": str(folder)}

    def equal(self) -> bool:
        return compare_tables.main(self.finished / "tiny", self.here.outputs / "tiny") == 0

    def finishes(self, env: dict[str, str | None], **options) -> None:
        """The command comes to its end, with the tables of the undisturbed run, and leaves nothing behind."""
        said = self.here.run(COMMAND, env, SECONDS, **options)
        assert said.status == 0 and TRACEBACK not in said.stderr, said.stderr
        assert self.equal() and self.here.remains() == []


@pytest.fixture(scope="module")
def suite(tmp_path_factory) -> Iterator[Suite]:
    with place(tmp_path_factory.mktemp("disturbed") / "place") as here:
        here.write({"profiles/tiny.yaml": PROFILE})
        said = here.run(COMMAND, seconds=SECONDS)              # compiles the kernels, too
        assert said.status == 0 and here.remains() == [], said.stderr
        yield Suite(here, here.outputs)


def until(happened: Callable[[], object], process: subprocess.Popen, seconds: float = 60) -> None:
    """Wait until something has happened while the process lives."""
    end = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, f"the suite has ended before: {process.communicate()}"
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.02)


def worker_of(process: subprocess.Popen) -> psutil.Process | None:
    """A worker that trains, of a suite."""
    with suppress(psutil.Error):
        return next((child for child in psutil.Process(process.pid).children() if "worker" in child.cmdline()), None)


# Killed, stopped, twice at once

def test_when_the_suite_is_killed_at_random_moments_then_it_ends_with_the_same_tables(suite):
    chance = random.Random(SEED)
    for life in range(LIVES):
        env, kills = suite.outputs(f"kills-{life}", corpus=False), 0
        while kills < KILLS:
            process = suite.here.start(COMMAND, env, **PIPED)
            try:
                said, _ = process.communicate(timeout=chance.uniform(0.3, LATEST))
                assert process.returncode == 0 and TRACEBACK not in said, said
                shutil.rmtree(suite.here.outputs / "tiny")     # it has ended before: all but the text once more
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                kills += 1
                psutil.wait_procs(suite.here.processes(), timeout=10)
                assert suite.here.processes() == []
        suite.finishes(env)


def test_when_two_suites_share_their_outputs_then_the_notebook_is_executed_once(suite):
    env = suite.outputs("two", corpus=False)
    both = [suite.here.start(COMMAND, env, **PIPED) for _ in range(2)]
    said = [process.communicate(timeout=SECONDS)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert "".join(said).count(f"{NAME}: executing") == 1
    assert suite.equal() and suite.here.remains() == []


def test_when_a_worker_is_stopped_then_the_suite_can_be_interrupted_or_killed_and_goes_on_with_it(suite):
    env = suite.outputs("stopped")
    signal.signal(signal.SIGINT, signal.default_int_handler)       # what a shell starts behind it ignores Ctrl-C
    for end in (signal.SIGINT, signal.SIGKILL, signal.SIGCONT):
        process = suite.here.start(COMMAND, env, **PIPED)
        until(lambda: list(suite.here.outputs.glob("tiny/runs/*/log.txt")) and worker_of(process), process)
        worker = worker_of(process)
        worker.suspend()
        time.sleep(1)
        assert process.poll() is None
        if end != signal.SIGCONT:
            process.send_signal(end)
        if end != signal.SIGINT:                               # of a suite that is killed alone it ends when it goes on
            process.poll()
            worker.resume()
        said, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == {signal.SIGINT: 130, signal.SIGKILL: -9, signal.SIGCONT: 0}[end], said
        assert suite.here.remains() == []
    assert suite.equal()


# A full disk

@contextmanager
def mounted(folder: Path, size: str) -> Iterator[None]:
    """A small disk of its own at `folder`; where mounting is not allowed the test is skipped."""
    folder.mkdir(parents=True, exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> None:
    """Leave no byte free on the disk of `folder`."""
    with open(folder / ".ballast", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(2 ** 16))
        except OSError:
            pass


FULL = {"data": "Free some", "tiny": "make room", "tiny/runs": "make room",
        "tiny/executed": "make room", "tiny/results": "make room", "tiny/report": "make room"}


def test_when_a_disk_is_full_then_one_line_names_file_and_remedy_and_with_room_it_goes_on(suite):
    """Corpus, database, checkpoints, notebook, table and page have disks of their own, which are full one by one."""
    env = suite.outputs("full", corpus=False)
    with ExitStack() as disks:
        for name in FULL:
            disks.enter_context(mounted(suite.here.outputs / name, "80m" if name == "data" else "8m"))
        for name, line in FULL.items():
            folder = suite.here.outputs / name
            fill(folder)
            said = suite.here.run(COMMAND, env, SECONDS)
            (folder / ".ballast").unlink()
            assert said.status in (1, 2) and TRACEBACK not in said.stderr, said.stderr
            named = [row for row in said.stderr.splitlines() if f"/{name}" in row and re.search(line, row)]
            assert named, said.stderr
            assert suite.here.remains() == []
        suite.finishes(env)


def test_when_the_disk_becomes_full_while_a_corpus_is_built_then_one_line_says_so_and_nothing_is_left(suite):
    env = suite.outputs("filling", corpus=False)
    with mounted(suite.here.outputs, "80m"):
        process = suite.here.start(COMMAND, env, **PIPED)
        until(lambda: list(suite.here.outputs.glob("data/.building-*")), process)
        fill(suite.here.outputs)
        said, _ = process.communicate(timeout=60)
        (suite.here.outputs / ".ballast").unlink()
        assert process.returncode == 2 and TRACEBACK not in said, said
        assert re.search(r"^error: .*cannot be written.*make room", said, re.MULTILINE), said
        assert suite.here.remains() == [] and not list(suite.here.outputs.glob("data/*/manifest.json"))


# Limits

def limited(**limits: int) -> Callable[[], None]:
    def set_limits() -> None:
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), (value, value))
    return set_limits


LIMITS = {"RLIMIT_FSIZE": (4096, "cannot be written .*make room"), "RLIMIT_AS": (600 * 2 ** 20, "memory|failed to map"),
          "RLIMIT_NOFILE": (16, "open files")}


def test_when_a_limit_is_too_small_then_one_line_names_it_and_without_it_the_next_start_finishes(suite):
    env = suite.outputs("limits", corpus=False)
    for name, (value, line) in LIMITS.items():
        said = suite.here.run(COMMAND, env, SECONDS, preexec_fn=limited(**{name: value}))
        assert said.status in (1, 2) and TRACEBACK not in said.stderr, said.stderr
        assert any(re.search(line, row) for row in said.stderr.splitlines()), said.stderr
        assert suite.here.remains() == []
    suite.finishes(env)


# What is not there

def test_when_home_and_the_temporary_folder_are_missing_then_the_suite_works_all_the_same(suite):
    suite.finishes(suite.outputs("homeless") | {"HOME": None, "TMPDIR": "/proc/nowhere"})


def test_when_all_but_the_outputs_is_read_only_then_the_suite_works_all_the_same(suite):
    env = suite.outputs("alone") | {"HOME": "/proc/nowhere"}
    outputs = suite.here.outputs
    (outputs / "tmp").mkdir()
    script = ('mount --bind "$0" "$0" && { [ -z "$TMPDIR" ] || mount --bind "$0/tmp" "$TMPDIR"; } && '
              'mount -o remount,bind,ro / && ! touch "$0/../written" 2>/dev/null && exec "$@"')
    alone = ("unshare", "--mount", "sh", "-c", script, str(outputs))       # mounts that this process alone sees
    if subprocess.run([*alone, "true"], capture_output=True, env={"PATH": os.environ["PATH"]}).returncode:
        pytest.skip("mounting is not allowed here")
    said = suite.here.run(COMMAND, env | {"TMPDIR": None}, SECONDS, before=alone)
    assert said.status == 2 and "TMPDIR" in said.stderr and TRACEBACK not in said.stderr, said.stderr
    suite.finishes(env | {"TMPDIR": "/var/tmp"}, before=alone)     # a short path, as sockets need one
