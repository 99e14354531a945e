"""Versions and machine, as the database and the report state them, and what the machine can do."""

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
DRIVER = Path("/proc/driver/nvidia/version")     # looked for first, since importing torch takes a second


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {"python": platform.python_version(), "torch": metadata.version("torch"), "numpy": metadata.version("numpy"),
            "suite": project["version"]}


@lru_cache(maxsize=1)
def machine() -> str:
    """Processor, usable cores and system, without the name of the host."""
    processor = platform.processor() or platform.machine()
    if found := re.search(r"^model name\s*:\s*(.+)$", cpuinfo(), re.MULTILINE):
        processor = " ".join(found[1].split())
    elif platform.system() == "Darwin":
        processor = subprocess.check_output(["sysctl", "-n", "machdep.cpu.brand_string"], text=True).strip()
    return f"{processor}, {cores()} cores, {platform.system()} {platform.machine()}"


def cpuinfo() -> str:
    """What Linux says of the processor; empty on other systems."""
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def cores() -> int:
    """Cores that this process may use: a container or a batch system can allow fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side() -> int:
    """Runs that this machine trains at once, with a thread each: as many as it has cores and memory for, at most 8."""
    import psutil
    return max(1, min(8, cores(), int(psutil.virtual_memory().total / 2 ** 30 / WORKER_GIB)))


def has_bf16() -> bool:
    if DRIVER.exists():
        import torch
        if torch.cuda.is_available():
            return torch.cuda.is_bf16_supported(including_emulation=False)
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(cpuinfo().split())
