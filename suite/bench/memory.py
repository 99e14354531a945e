"""Extra memory of attention calls, in a process that does nothing else."""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial

import torch

from lib.errors import SuiteError
from lib.resources import PeakMemory
from suite.bench.cases import Setting, call_of, forget

Case = tuple[str, int, str]          # attention by name, T, pass
SMALL = 64                           # tokens of the call that loads and compiles before anything is measured
MALLOC = "glibc.malloc.mmap_threshold=65536"        # freed tensors go back to the system at once


def extra_memory(setting: Setting, cases: Sequence[Case]) -> list[float | None]:
    """MiB that each case takes beyond its inputs: output, gradients, what is kept for them, plan or mask.

    Measured at the peak of a call whose plan exists; building the plan is not counted. None where this system does not
    let the peak be measured.
    """
    before = os.environ.get("GLIBC_TUNABLES", "")
    os.environ["GLIBC_TUNABLES"] = MALLOC               # a process reads it when it starts
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            return list(process.map(partial(measured, setting), cases))
    except BrokenProcessPool as error:
        raise SuiteError(f"the process that measures memory was ended: has it as much as it needs? {error}") from error
    finally:
        os.environ["GLIBC_TUNABLES"] = before


def measured(setting: Setting, case: Case) -> float | None:
    import psutil
    name, T, pass_ = case
    call_of(name, setting, min(SMALL, T), pass_)()
    forget()
    call = call_of(name, setting, T, pass_)
    on_gpu = setting.device.type == "cuda"
    held = torch.cuda.memory_allocated(setting.device) if on_gpu else psutil.Process().memory_info().rss
    call()
    setting.wait()
    peak = PeakMemory(str(setting.device))
    at_rest = peak.mib()
    call()
    setting.wait()
    most = peak.mib()
    forget()
    return most - held / 2**20 if most > at_rest else None
