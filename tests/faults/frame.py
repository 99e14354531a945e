"""The frame of the fault tests: a fresh copy of the repository to break, a command in it, and what it may leave."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import psutil

from lib import paths
from tools import bootstrap

TINY = (paths.ROOT / "tests" / "data" / "tiny.yaml").read_text("utf-8")
TRACEBACK = "Traceback (most recent call last)"
SECONDS = 120                       # the most that a command of a row may take
COPIED = ("lib", "suite", "data_prep", "profiles", "notebooks", "evidence", "docs", "tools", "Makefile",
          "pyproject.toml", bootstrap.REPORT, bootstrap.TEST)


@dataclass(frozen=True)
class Row:
    """One bad input. `{root}` in the command and in the values of `env` is the folder of the copy.

    name      what is wrong, in words
    command   after `python -m suite`; or it begins with `make` or `python`. It runs in the root of the copy
    line      regular expression: one line of standard error matches it (with status 0, of standard output as well)
    status    exit status: 2 wrong input, 1 something failed, 0 a remark
    files     path below the root of the copy -> content; None: an empty folder. `outputs/...` are the outputs
    profile   text of profiles/tiny.yaml (default: tests/data/tiny.yaml); see `tiny`
    env       environment variables; None: the variable is not there
    prepare   a function of the root, for what is no file: links, permissions
    stdout    where standard output goes, for instance /dev/full
    """
    name: str
    command: str
    line: str
    status: int = 2
    files: Mapping[str, bytes | str | None] = field(default_factory=dict)
    profile: str | bytes = TINY
    env: Mapping[str, str | None] = field(default_factory=dict)
    prepare: Callable[[Path], object] = lambda root: None
    stdout: str = ""


def tiny(old: str = "", new: str = "", more: str = "") -> str:
    """The profile `tiny` with `new` in place of `old`, and `more` below it."""
    assert old in TINY, f"tests/data/tiny.yaml has no {old!r}"
    return TINY.replace(old, new, 1) + more


class Place:
    """A copy of the repository in a folder of its own, with a home, a folder for temporary files, and its outputs."""

    def __init__(self, folder: Path) -> None:
        self.root, self.home, self.temporary, cache = (folder / name for name in ("suite", "home", "tmp", "cache"))
        for made in (self.root, self.home, self.temporary, cache):
            made.mkdir(parents=True)
        for name in COPIED:                                # times are kept, so that compiled modules stay valid
            copy = shutil.copytree if (paths.ROOT / name).is_dir() else shutil.copy2
            copy(paths.ROOT / name, self.root / name)
        self.outputs = self.root / "outputs"
        self.input, self.keyboard = os.pipe()              # what waits for the end of its input goes on
        self.environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(self.home),
                            "TMPDIR": str(self.temporary), "SUITE_OUTPUTS": str(self.outputs),
                            "TORCHINDUCTOR_CACHE_DIR": str(cache)}

    def write(self, files: Mapping[str, bytes | str | None]) -> None:
        for name, content in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir(exist_ok=True)
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)

    def words(self, command: str) -> list[str]:
        """The words of a command; `make` finds an environment whose Python is this one."""
        words = shlex.split(command.replace("{root}", str(self.root)))
        if words[:1] == ["make"]:
            python = self.root / ".venv" / "bin" / "python"
            python.parent.mkdir(parents=True, exist_ok=True)
            python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
            python.chmod(0o755)
            bootstrap.stamp(self.root, "report").write_text(bootstrap.wanted(self.root.resolve()))
            return words
        return [sys.executable, *(words[1:] if words[:1] == ["python"] else ["-m", "suite", *words])]

    def start(self, command: str, env: Mapping[str, str | None] = {}, before: Sequence[str] = (),
              **options) -> subprocess.Popen:
        """The command, leader of a process group of its own. before: a command that executes the words behind it."""
        given = {name: value if value is None else value.replace("{root}", str(self.root))
                 for name, value in {**self.environment, **env}.items()}
        return subprocess.Popen([*before, *self.words(command)], cwd=self.root, start_new_session=True,
                                env={name: value for name, value in given.items() if value is not None},
                                **{"stdin": self.input, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
                                   "text": True, "errors": "replace"} | options)

    def run(self, command: str, env: Mapping[str, str | None] = {}, seconds: float = SECONDS,
            **options) -> SimpleNamespace:
        """`status`, `stdout` and `stderr` of the command; what runs longer is killed, and is an error."""
        process = self.start(command, env, **options)
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said = process.communicate()
            raise AssertionError(f"{command} runs for more than {seconds:.0f} s: {said}") from None
        return SimpleNamespace(status=process.returncode, stdout=stdout or "", stderr=stderr or "")

    def processes(self) -> list[psutil.Process]:
        """Processes that a command of this copy has started and that live: they have its folder in their variables."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            try:
                mine = str(self.root) in process.environ().get("SUITE_OUTPUTS", "") or process.cwd() == str(self.root)
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def remains(self, seconds: float = 5.0) -> list[str]:
        """What a command has left behind: processes that do not end within `seconds`, temporary files and folders."""
        psutil.wait_procs(self.processes(), timeout=seconds)
        names = [f"process {process.pid}: {process.info}" for process in self.processes()]      # without the dead ones
        unfinished = [path for path in self.outputs.rglob("*") if is_unfinished(path.name)]
        return names + [str(path) for path in [*self.temporary.iterdir(), *unfinished]]


def is_unfinished(name: str) -> bool:
    """Whether a file or folder of the outputs is one that is written before it takes its place. Locks stay."""
    hidden = name.startswith(".") and not name.endswith(".lock")
    return hidden or ".partial" in name


@contextmanager
def place(folder: Path) -> Iterator[Place]:
    """A `Place` that is removed in the end, with its processes."""
    made = Place(folder)
    try:
        yield made
    finally:
        for process in made.processes():
            process.kill()
        for end in (made.input, made.keyboard):
            os.close(end)
        shutil.rmtree(folder, ignore_errors=True)
