"""What a person gives make arrives as it was written: nothing in it is executed."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from lib.paths import ROOT

HOSTILE = ["$$(touch pwned)", "$(shell touch pwned)", "`touch pwned`", '"; touch pwned; "', "a b'c", "é\u202e*?$HOME"]


@pytest.fixture
def made(tmp_path):
    """`made("plan", PROFILE="x")`: the arguments of the command that a copy of the Makefile calls."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\nfor argument in "$@"; do printf "%s\\n" "$argument"; done\n')
    python.chmod(0o755)
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).touch()
    (tmp_path / ".venv" / ".installed").write_text(f"hash\n{os.path.realpath(tmp_path)}\n")

    def call(target, **variables):
        command = ["make", "-s", target, *(f"{name}={value}" for name, value in variables.items())]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()
    yield call
    assert not (tmp_path / "pwned").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize(("target", "name", "option"), [
    ("report", "PROFILE", "--profile"), ("report", "CORPUS", "--corpus"), ("report", "ENGINE", "--engine"),
    ("plan", "GPU", "--gpu"), ("notebook", "NAME", "notebook"), ("compare", "PATTERN", "compare"),
    ("verify", "RUN", "verify")])
def test_when_a_variable_holds_what_a_shell_would_run_then_it_is_an_argument(made, target, name, option, value):
    found = made(target, **{name: value})
    assert found[found.index(option) + 1] == value
