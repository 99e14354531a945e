"""Peak memory of this process, on Linux, macOS and a GPU."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """Most memory held since this was made, MiB: of the GPU on one, else resident memory of the process.

    Where the kernel does not let the peak be reset (macOS, some containers) it is that since the process began.
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
