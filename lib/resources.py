"""Time and memory of a training: what it takes, and how many windows of a batch fit at once."""

import contextlib
import resource
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

PARTS = ("data", "forward", "backward", "optimizer", "evaluation")      # the rest of a run's seconds is checkpoints
SHARE = {"cpu": 0.5, "cuda": 0.9}               # of free memory that a training may take: others share the CPU's
WORK = {"cpu": 2 ** 26, "cuda": 2 ** 31}        # bytes of one slice of logits and its temporaries (`lib.fused.ops`)
CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Clock:
    """Adds up seconds by part (`PARTS`) in `spent`.

    Work of a GPU is timed by events on its own queue, so that timing never waits for it; `read` collects them, where
    the training loop waits for a number anyway.
    """

    def __init__(self, spent: dict[str, float], device: str) -> None:
        self.spent, self.cuda = spent, torch.device(device).type == "cuda"
        self.ends: list[tuple[str, Any]] = []           # of laps: part and moment

    def lap(self, part: str = "") -> None:
        """End a lap: the time since the last one belongs to `part`, or to no part."""
        moment = torch.cuda.Event(enable_timing=True) if self.cuda else time.perf_counter()
        if self.cuda:
            moment.record()
        self.ends.append((part, moment))

    def read(self) -> None:
        """Add the laps to `spent`; on a GPU this waits for the last of them."""
        if self.cuda:
            self.ends[-1][1].synchronize()
        for (_, begin), (part, end) in pairwise(self.ends):
            if part:
                seconds = begin.elapsed_time(end) / 1000 if self.cuda else end - begin
                self.spent[part] = self.spent.get(part, 0.0) + seconds
        self.ends.clear()


class PeakMemory:
    """Peak memory since this object was made, in MiB: of the GPU on one, else resident memory of this process.

    Where the kernel does not let the peak be reset (macOS, some containers) it is the peak since the process began.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.gpu = torch.device(device) if torch.device(device).type == "cuda" else None
        if self.gpu:
            torch.cuda.reset_peak_memory_stats(self.gpu)
        else:
            with contextlib.suppress(OSError):
                RESET.write_text("5")                                           # see proc(5), clear_refs

    def mib(self) -> float:
        if self.gpu:
            return torch.cuda.max_memory_allocated(self.gpu) / 2 ** 20
        if STATUS.exists():
            peak = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
            return int(peak.split()[1]) / 2 ** 10                               # kB there
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2 ** 20 if sys.platform == "darwin" else 2 ** 10)        # bytes on macOS, KiB elsewhere


def rows_at_once(loss: Callable[[int], torch.Tensor], rows: int, model: torch.nn.Module, held: int, device: str,
                 copies: int = 3) -> int:
    """How many of `rows` windows one forward and backward pass takes: at least 1, in parts as equal as can be.

    loss: the loss of that many windows, with its graph; it is measured, not assumed. held: bytes of the optimiser's
    state that are there already. copies: of the weights, that training keeps beside them (gradients, two moments).
    """
    kind = torch.device(device).type
    still = copies * sum(p.nbytes for p in model.parameters()) - held
    fixed, a_row = kept_bytes(loss, model, rows)
    passing = 1.1 + 2 / max(1, len(getattr(model, "blocks", ())))          # gradients of the layer that is at work
    room = SHARE[kind] * free_memory(device) - still - fixed - WORK[kind]
    fitting = max(1, min(rows, int(room / (passing * a_row)) if a_row else rows))
    return -(-rows // -(-rows // fitting))


def kept_bytes(loss: Callable[[int], torch.Tensor], model: torch.nn.Module, rows: int) -> tuple[int, int]:
    """Bytes that the forward pass keeps for the backward pass: for any batch, and for each window more."""
    one = kept_by(loss, 1, model)
    if rows == 1:
        return 0, one
    a_row = max(0, kept_by(loss, 2, model) - one)
    return max(0, one - a_row), a_row


def kept_by(loss: Callable[[int], torch.Tensor], rows: int, model: torch.nn.Module) -> int:
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return x
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        end = loss(rows)                        # as long as the graph lives nothing is freed: no address comes twice
    del end
    return sum(kept.values())


def free_memory(device: str) -> int:
    """Bytes that this process can still have: of the GPU, or of the machine and of the control groups it is in."""
    if torch.device(device).type == "cuda":
        free, _ = torch.cuda.mem_get_info(torch.device(device))
        return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    import psutil
    return min([psutil.virtual_memory().available, *allowed()])


def allowed() -> list[int]:
    """Bytes left under each limit of a container or of a batch system (control groups, version 2)."""
    if not OWN_CGROUP.exists():
        return []
    name = next((line[3:] for line in OWN_CGROUP.read_text().splitlines() if line.startswith("0::")), "/")
    left, folder = [], CGROUPS / name.lstrip("/")
    for group in (folder, *folder.parents):
        limit, used = group / "memory.max", group / "memory.current"
        if CGROUPS not in (group, *group.parents) or not limit.exists() or not used.exists():
            continue
        if (most := limit.read_text().strip()) != "max":
            cache = sum(int(line.split()[1]) for line in (group / "memory.stat").read_text().splitlines()
                        if line.startswith(("inactive_file ", "active_file ")))
            left.append(max(0, int(most) - int(used.read_text()) + cache))
    return left
