"""Extra memory of attention calls, in a process that does nothing else.

    python -m suite.bench.memory      a JSON object {"setting", "cases"} on standard input, a JSON list of MiB on standard output
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lib import paths
from lib.errors import SuiteError

if TYPE_CHECKING:
    from suite.bench.cases import Setting

Case = tuple[str, int, str]          # attention by name, T, pass
SMALL = 64                           # tokens of the call that loads and compiles before anything is measured


def extra_memory(setting: Setting, cases: Sequence[Case]) -> list[float | None]:
    """MiB that each case takes beyond its inputs: output, gradients, what is kept for them, plan or mask.

    Measured at the peak of a call whose plan is there already; building it is not counted. None where this system does
    not let the peak be measured.
    """
    environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=65536"}     # freed tensors go back at once
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(paths.ROOT), os.environ.get("PYTHONPATH"))))
    plain = asdict(setting) | {"dtype": str(setting.dtype).removeprefix("torch."), "device": str(setting.device)}
    done = subprocess.run([sys.executable, "-m", "suite.bench.memory"], input=json.dumps({"setting": plain, "cases": cases}),
                          capture_output=True, text=True, env=environment, cwd=paths.ROOT)
    if done.returncode:
        tail = "\n".join(done.stderr.splitlines()[-8:])
        raise SuiteError(f"the process that measures memory ended with status {done.returncode}:\n{tail}")
    return json.loads(done.stdout.splitlines()[-1])


# In that process

def measured(setting: Setting, case: Case) -> float | None:
    import psutil

    from lib.memory import PeakMemory
    from suite.bench.cases import call_of, forget
    name, T, pass_ = case
    call_of(name, setting, min(SMALL, T), pass_)()
    forget()
    call = call_of(name, setting, T, pass_)
    on_gpu = setting.device.type == "cuda"
    before = held(setting) if on_gpu else psutil.Process().memory_info().rss / 2**20
    call()
    setting.wait()
    peak = PeakMemory(str(setting.device))
    at_rest = peak.mib()
    call()
    setting.wait()
    found = peak.mib()
    forget()
    return found - before if found > at_rest else None


def held(setting: Setting) -> float:
    import torch
    return torch.cuda.memory_allocated(setting.device) / 2**20


def main() -> None:
    import torch

    from suite.bench.cases import Setting
    asked: dict[str, Any] = json.load(sys.stdin)
    plain = asked["setting"]
    setting = Setting(**plain | {"dtype": getattr(torch, plain["dtype"]), "device": torch.device(plain["device"])})
    print(json.dumps([measured(setting, tuple(case)) for case in asked["cases"]]))


if __name__ == "__main__":
    main()
