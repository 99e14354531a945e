"""Make `.venv` and install exactly what `requirements.lock` pins. Run by make with any Python of the right version.

Only the standard library is used, since nothing is installed yet. A file lock lets two makes at once share one installation;
an installation that was interrupted starts over; the stamp appears when all is there, never before.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = (3, 11), (3, 13)
INPUTS = ("requirements.lock", "pyproject.toml")


def wanted(root: Path) -> str:
    """The stamp of a finished environment: the inputs' content, and the folder, since an environment cannot be moved."""
    digest = hashlib.sha256()
    for name in INPUTS:
        digest.update((root / name).read_bytes())
    return f"{digest.hexdigest()}\n{root}\n"


def fresh(root: Path, stamp: Path) -> bool:
    """Whether the environment is whole and made from the present inputs; then the stamp is as young as they are."""
    return stamp.exists() and stamp.read_text() == wanted(root) and os.access(root / ".venv" / "bin" / "python", os.X_OK)


def install(root: Path) -> None:
    """Create the environment if there is none (or a broken one) and bring it to the lock's versions."""
    venv, unfinished = root / ".venv", root / ".venv" / ".unfinished"
    python = venv / "bin" / "python"
    if unfinished.exists() or not works(python):
        shutil.rmtree(venv, ignore_errors=True)
        create(venv)
    unfinished.touch()
    say("installing the pinned packages into .venv (some minutes the first time)")
    # Python compiles what is imported, when it is; compiling all that is there, as pip would, doubles the time of this.
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*pip, "-r", "requirements.lock"], check=True, cwd=root)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--editable", "."], check=True, cwd=root)
    unfinished.unlink()


def create(venv: Path) -> None:
    say(f"creating .venv with Python {sys.version.split()[0]}")
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)


def works(python: Path) -> bool:
    """Whether the environment's Python is there, starts (it is a link to one that may be gone) and has a right version."""
    if not python.exists():
        return False
    code = f"import sys, pip; sys.exit(not {OLDEST} <= sys.version_info[:2] <= {NEWEST})"
    return subprocess.run([str(python), "-c", code], capture_output=True).returncode == 0


def say(text: str) -> None:
    print(f"[set-up] {text}", flush=True)


def main(root: Path = ROOT) -> int:
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        say(f"Python {sys.version.split()[0]} is not supported; 3.11, 3.12 or 3.13 is: make PYTHON=python3.12")
        return 2
    stamp = root / ".venv" / ".installed"
    with open(root / "pyproject.toml", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)          # the other make waits here, then finds all done
        if fresh(root, stamp):
            stamp.touch()
            return 0
        stamp.unlink(missing_ok=True)
        try:
            install(root)
        except subprocess.CalledProcessError as error:
            say(f"failed: {' '.join(map(str, error.cmd))} (exit {error.returncode}); run make again when that is mended")
            return 1
        stamp.write_text(wanted(root))
    return 0


if __name__ == "__main__":
    sys.exit(main())
