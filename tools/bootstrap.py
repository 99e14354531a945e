"""Make `.venv` and install exactly what the locks pin: `tools/bootstrap.py [report | test | ray | transformers]`.

`make` runs this with any Python of a right version; only the standard library is used, since nothing is installed yet.
`report` is what a report needs (requirements.lock). Every other set is added to it and leaves it as it is: `test` is
requirements-test.lock; an extra of pyproject.toml (ray, transformers) is installed at the versions of the two locks.

Two makes at once share one installation through a file lock. An installation that was interrupted starts over. The
stamp of a set appears when the whole set is installed.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = (3, 11), (3, 13)
REPORT, TEST = "requirements.lock", "requirements-test.lock"
SETS = ("report", "test", "ray", "transformers")


def stamp(root: Path, name: str) -> Path:
    """The file that says that the set `name` is installed."""
    return root / ".venv" / (".installed" if name == "report" else f".installed-{name}")


def wanted(root: Path, name: str = "report") -> str:
    """Content of a finished set's stamp: a hash of its inputs, and the folder, since an environment cannot move."""
    digest = hashlib.sha256()
    for file in (REPORT, "pyproject.toml") if name == "report" else (REPORT, "pyproject.toml", TEST):
        digest.update((root / file).read_bytes())
    return f"{digest.hexdigest()}\n{root}\n"


def asked(root: Path, name: str) -> list[str]:
    if name in ("report", "test"):
        return ["-r", REPORT if name == "report" else TEST]
    extras = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    return ["-c", REPORT, "-c", TEST, *extras[name]]


def install(root: Path, name: str) -> None:
    """Bring the environment to the versions of the set `name`; nothing that has its version already is touched."""
    say(f"installing the pinned packages of the set '{name}' into .venv (minutes the first time)")
    # Python compiles a module at its first import. pip would compile all of them, which doubles the time of this step.
    python = str(root / ".venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    unfinished = root / ".venv" / ".unfinished"
    unfinished.touch()
    subprocess.run([*pip, *asked(root, name)], check=True, cwd=root)
    if name == "report":
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--editable", "."], check=True, cwd=root)
    unfinished.unlink()


def works(python: Path) -> bool:
    """Whether the environment's Python exists, starts (it links to one that may be gone) and has a right version."""
    code = f"import sys, pip; sys.exit(not {OLDEST} <= sys.version_info[:2] <= {NEWEST})"
    return os.access(python, os.X_OK) and not subprocess.run([str(python), "-c", code], capture_output=True).returncode


def say(text: str) -> None:
    print(f"[set-up] {text}", flush=True)


def main(root: Path = ROOT, name: str = "report") -> int:
    """Install `report` and the set `name`. Returns 0 when all is there, 1 if pip failed, 2 if the call is wrong."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        say(f"Python {sys.version.split()[0]} is not supported; 3.11, 3.12 or 3.13 is: make PYTHON=python3.12")
        return 2
    if name not in SETS:
        say(f"there is no set '{name}'; the sets are {', '.join(SETS)}")
        return 2
    with open(root / "pyproject.toml", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)          # another make waits here, then finds its sets installed
        venv = root / ".venv"
        try:
            if (venv / ".unfinished").exists() or not works(venv / "bin" / "python"):
                shutil.rmtree(venv, ignore_errors=True)
                say(f"creating .venv with Python {sys.version.split()[0]}")
                subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
            for part in dict.fromkeys(("report", name)):
                done = stamp(root, part)
                if not done.exists() or done.read_text() != wanted(root, part):
                    done.unlink(missing_ok=True)
                    install(root, part)
                done.write_text(wanted(root, part))   # also if nothing was to be done: make compares times
        except subprocess.CalledProcessError as error:
            say(f"failed: {' '.join(map(str, error.cmd))} (exit {error.returncode}); run make again when it is mended")
            return 1
        except OSError as error:
            say(f"failed: {error}: can the folder be written, and is there room on the disk? Then run make again")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(ROOT, *sys.argv[1:2]))
