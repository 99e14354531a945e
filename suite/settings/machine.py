"""What a result was made with: versions and machine, as the database and the report state them."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import tomllib
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from lib import paths

WORKER_GIB = 2                  # of memory, for each run: one of `small` takes half of it


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Versions of Python, torch, numpy and this suite."""
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {"python": platform.python_version(), "torch": metadata.version("torch"), "numpy": metadata.version("numpy"),
            "suite": project["version"]}


@lru_cache(maxsize=1)
def machine() -> str:
    """Processor, usable cores and system, without the name of the host."""
    return f"{processor()}, {cores()} cores, {platform.system()} {platform.machine()}"


def processor() -> str:
    if platform.system() == "Linux":
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            return " ".join(found[1].split())
    if platform.system() == "Darwin":
        return subprocess.check_output(["sysctl", "-n", "machdep.cpu.brand_string"], text=True).strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Cores that this process may use: a container or a batch system can allow fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side() -> int:
    """Runs that this machine trains at once, with a thread each: as many as it has cores and memory for, at most 8."""
    import psutil
    return max(1, min(8, cores(), int(psutil.virtual_memory().total / 2 ** 30 / WORKER_GIB)))
