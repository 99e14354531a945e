"""pyproject.toml, the two locks, environment.yml and the Makefile agree, and set-up survives what happens to it."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from lib import paths
from tools import bootstrap

PYPROJECT = tomllib.loads((paths.ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
CONDA = yaml.safe_load((paths.ROOT / "environment.yml").read_text("utf-8"))
MAKEFILE = (paths.ROOT / "Makefile").read_text("utf-8")


ENVIRONMENTS = [{"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.9", "sys_platform": system.lower(),
                 "platform_system": system, "platform_machine": machine}
                for minor in (11, 12, 13) for system, machine in (("Linux", "x86_64"), ("Darwin", "arm64"))]


def pinned(lock: str, environment: dict[str, str]) -> dict[str, str]:
    """Versions that a lock gives such a machine, by name."""
    lines = map(Requirement, (paths.ROOT / lock).read_text("utf-8").splitlines())
    versions = [(canonicalize_name(own.name), *own.specifier) for own in lines
                if own.marker is None or own.marker.evaluate(environment)]
    assert len(dict(versions)) == len(versions) and all(version.operator == "==" for _, version in versions)
    return {name: version.version for name, version in versions}


# The files

@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_when_packages_are_asked_for_then_the_locks_pin_them_in_range_and_tests_change_no_report(environment):
    report, test = pinned(bootstrap.REPORT, environment), pinned(bootstrap.TEST, environment)
    tests = [*PYPROJECT["dependency-groups"]["test"], *EXTRAS["ray"], *EXTRAS["transformers"]]
    for versions, texts in ((report, PROJECT["dependencies"]), (test, tests)):
        for wanted in map(Requirement, texts):
            if not wanted.marker or wanted.marker.evaluate(environment):
                assert wanted.specifier.contains(versions[canonicalize_name(wanted.name)]), wanted
    assert all(test[name] == report[name] for name in set(test) & set(report))
    assert not {"ray", "transformers", "triton", "pytest", "hypothesis"} & set(report)
    libraries = set((paths.ROOT / "data_prep" / "libraries.txt").read_text("utf-8").splitlines())
    assert not libraries & (set(test) - set(report)), "the text would depend on whether there are tests"


def test_when_conda_pyproject_bootstrap_and_makefile_name_a_python_or_a_lock_then_they_agree():
    python, pip, packages = CONDA["dependencies"]              # a package beside the lock would not be pinned
    assert (CONDA["name"], pip, packages) == (PROJECT["name"], "pip", {"pip": ["-r requirements.lock", "-e ."]})
    required = SpecifierSet(PROJECT["requires-python"])
    assert required.contains(python.removeprefix("python="))
    for minor in range(9, 16):
        assert required.contains(f"3.{minor}") == (bootstrap.OLDEST <= (3, minor) <= bootstrap.NEWEST)
    assert f"{bootstrap.OLDEST} <= sys.version_info[:2] <= {bootstrap.NEWEST}" in MAKEFILE
    for option in ("pip compile --universal --python-version 3.11", "pyproject.toml -o requirements.lock",
                   "--group pyproject.toml:test -c requirements.lock -o requirements-test.lock", "--no-emit-index-url"):
        assert option in make("--dry-run", "lock").stdout


# The Makefile

def make(*arguments: str, folder: Path = paths.ROOT) -> subprocess.CompletedProcess:
    return subprocess.run(["make", "--no-print-directory", *arguments], cwd=folder, capture_output=True, text=True,
                          env={name: os.environ[name] for name in ("HOME", "PATH")})


@pytest.fixture
def clone(tmp_path) -> Path:
    """What make needs of the repository, without an environment."""
    folder = tmp_path / "a clone"
    (folder / "tools").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", bootstrap.REPORT, bootstrap.TEST, "tools/bootstrap.py"):
        shutil.copy(paths.ROOT / name, folder / name)
    return folder


@pytest.fixture
def installed(clone) -> Path:
    """A clone with an environment: this interpreter, and the stamps of finished installations."""
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / "python").symlink_to(sys.executable)
    (clone / ".venv" / "bin" / "python").symlink_to("../../python")
    for name in ("report", "test", "ray"):
        bootstrap.stamp(clone, name).write_text(bootstrap.wanted(clone.resolve(), name))
    return clone


def test_when_make_is_called_alone_then_it_shows_every_target_on_one_screen():
    shown = make().stdout
    (targets,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert len(shown.splitlines()) <= 24 and max(map(len, shown.splitlines())) <= 110
    assert all(f"make {target}" in shown for target in targets.split() if target != "help")


@pytest.mark.parametrize(("target", "command"), [
    (["report"], 'python -m suite report --profile "$PROFILE"'), (["evidence"], "python -m suite evidence"),
    (["plan"], "python -m suite plan"), (["lab"], "python -m jupyter lab"), (["test"], "python -m pytest"),
    (["test", "SLOW=1"], 'python -m pytest -m "not campaign"'),
    (["notebook", "NAME=03_extrapolation"], 'python -m suite notebook "$NAME" --profile "$PROFILE"'),
    (["compare", "PATTERN=dense"], 'python -m suite compare "$PATTERN" --profile "$PROFILE"')])
def test_when_a_target_is_made_then_its_command_runs_in_the_environment(installed, target, command):
    recipe = make("--dry-run", *target, folder=installed).stdout
    assert command in recipe and ".venv/bin/python" in recipe and "bootstrap" not in recipe


def test_when_a_variable_is_missing_or_no_python_fits_or_no_engine_is_needed_then_that_is_said_or_left_out(installed):
    for target, words in (("notebook", "NAME is missing"), ("compare", "PATTERN is missing")):
        found = make(target, folder=installed)
        assert found.returncode != 0 and words in found.stderr
    assert "--engine" not in make("--dry-run", "plan", "verify", "ENGINE=ray", folder=installed).stdout
    shutil.rmtree(installed / ".venv")
    found = make("report", "PYTHON=/nonexistent/python", folder=installed)
    assert found.returncode != 0 and "3.11, 3.12 or 3.13" in found.stderr and not (installed / ".venv").exists()


@pytest.mark.parametrize("change", [
    lambda clone: (clone / ".venv" / ".installed").unlink(), lambda clone: clone.rename(clone.with_name("elsewhere")),
    lambda clone: (clone / "python").unlink(),
    lambda clone: os.utime(clone / "requirements.lock", (2e9, 2e9))], ids=["missing", "moved", "no python", "new lock"])
def test_when_the_environment_is_missing_or_stale_then_it_is_made_first(installed, change):
    recipe = make("--dry-run", "-j2", "report", "test", folder=change(installed) or installed).stdout
    assert recipe.count("bootstrap.py report") == recipe.count("bootstrap.py test") == 1
    assert recipe.index("bootstrap.py report") < recipe.index("bootstrap.py test") < recipe.index("pytest")


def test_when_a_target_is_made_in_a_fresh_clone_then_only_what_it_needs_is_installed(clone):
    for target, sets in (("report", ["report"]), ("test", ["report", "test"]), ("plan ENGINE=ray", ["report"]),
                         ("report ENGINE=ray", ["report", "ray"])):
        assert re.findall(r"bootstrap\.py (\w+)", make("--dry-run", *target.split(), folder=clone).stdout) == sets


HOSTILE = ["$$(touch pwned)", "$(shell touch pwned)", "`touch pwned`", '"; touch pwned; "', "a b'c ",
           "é\u202e*?$HOME", "a\ntouch pwned\n", "';touch pwned;'", "$(eval X := $(shell touch pwned))", "\\"]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize(("target", "name", "option"), [
    ("report", "PROFILE", "--profile"), ("report", "CORPUS", "--corpus"), ("report", "ENGINE", "--engine"),
    ("plan", "GPU", "--gpu"), ("notebook", "NAME", "notebook"), ("compare", "PATTERN", "compare"),
    ("verify", "RUN", "verify")])
def test_when_a_variable_holds_what_a_shell_would_run_then_it_is_an_argument(installed, target, name, option, value):
    (installed / "python").unlink()
    (installed / "python").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')       # prints its arguments
    (installed / "python").chmod(0o755)
    found = make("-s", target, f"{name}={value}", folder=installed).stdout.split("\0")
    assert found[found.index(option) + 1] == value and not (installed / "pwned").exists()


@pytest.mark.parametrize("value", HOSTILE)
def test_when_python_or_slow_holds_what_a_shell_would_run_then_it_is_a_name_or_a_yes(installed, value):
    assert '-m pytest -m "not campaign"' in make("-n", "test", f"SLOW={value}", folder=installed).stdout
    assert f"No PYTHON={value} that is Python 3.11" in make("lock", f"PYTHON={value}", folder=installed).stderr
    assert not (installed / "pwned").exists()


# Set-up

@pytest.fixture
def pip(clone, monkeypatch, tmp_path) -> Path:
    """The clone with an environment whose pip only writes down what it was asked for."""
    (clone / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(paths.ROOT / "tests" / "data" / "only_pip.sh", clone / ".venv" / "bin" / "python")
    monkeypatch.setenv("PIP_LOG", str(tmp_path / "pip.log"))
    return tmp_path / "pip.log"


def test_when_sets_are_installed_then_each_is_once_the_others_stay_and_a_changed_lock_renews_what_it_pins(clone, pip):
    def asked(*names: str) -> list[str]:
        before = pip.read_text().splitlines() if pip.exists() else []
        assert [bootstrap.main(clone, name) for name in names] == [0] * len(names)
        return pip.read_text().splitlines()[len(before):]
    lock, suite = asked("report")
    assert lock.endswith("--no-compile -r requirements.lock")
    assert suite.endswith("--no-deps --no-build-isolation --editable .")
    assert (clone / ".venv" / ".installed").read_text() == bootstrap.wanted(clone)
    test, ray = asked("report", "test", "ray", "test", "report")
    assert test.endswith("--no-compile -r requirements-test.lock")
    assert ray.endswith("-c requirements.lock -c requirements-test.lock ray>=2.60,<3")
    (clone / "requirements-test.lock").write_text("pytest==9.2.0\n")
    assert [line.split()[-1] for line in asked("report", "test")] == ["requirements-test.lock"]
    (clone / "requirements.lock").write_text("numpy==2.4.6\n")
    assert [line.split()[-1] for line in asked("report")] == ["requirements.lock", "."]


def test_when_a_set_is_misspelt_or_installing_fails_then_there_is_no_stamp_and_the_next_start_begins_anew(
        clone, pip, monkeypatch, capsys):
    assert bootstrap.main(clone, "tests") == 2 and not pip.exists()
    assert "report, test, ray, transformers" in capsys.readouterr().out
    monkeypatch.setenv("PIP_STATUS", "1")
    assert bootstrap.main(clone) == 1
    assert "failed" in capsys.readouterr().out and not (clone / ".venv" / ".installed").exists()
    monkeypatch.setattr(sys, "executable", shutil.which("false"))               # no new environment can be made
    assert bootstrap.main(clone) == 1 and "-m venv" in capsys.readouterr().out and not (clone / ".venv").exists()
    monkeypatch.setattr(bootstrap.subprocess, "run", Mock(side_effect=OSError(28, "No space left on device")))
    assert bootstrap.main(clone) == 1 and "No space left on device: can the folder" in capsys.readouterr().out


def test_when_makes_start_at_once_then_one_installs_all_that_a_set_needs_and_a_killed_one_leaves_no_stamp(clone, pip):
    def start(seconds: str) -> subprocess.Popen:
        command = [sys.executable, "-I", str(clone / "tools" / "bootstrap.py"), "test"]
        return subprocess.Popen(command, env={**os.environ, "PIP_SLEEP": seconds}, start_new_session=True)
    assert [process.wait(timeout=60) for process in [start("0.3") for _ in range(3)]] == [0, 0, 0]
    last = [line.split()[-1] for line in pip.read_text().splitlines()]
    assert last == ["requirements.lock", ".", "requirements-test.lock"]
    bootstrap.stamp(clone, "report").write_text("of another lock")
    pip.unlink()
    killed = start("30")
    while not pip.exists():
        assert killed.poll() is None
    os.killpg(killed.pid, 9)
    killed.wait(timeout=60)
    assert not bootstrap.stamp(clone, "report").exists() and (clone / ".venv" / ".unfinished").exists()
