"""Extra memory of attention calls, in a process that does nothing else: `python -m suite.bench.memory`.

Standard input: a pickled setting and list of cases. Standard output: a JSON list of MiB.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lib import paths
from lib.errors import SuiteError

if TYPE_CHECKING:
    from suite.bench.cases import Setting

Case = tuple[str, int, str]          # attention by name, T, pass
SMALL = 64                           # tokens of the call that loads and compiles before anything is measured
MALLOC = "glibc.malloc.mmap_threshold=65536"        # freed tensors go back to the system at once


def extra_memory(setting: Setting, cases: Sequence[Case]) -> list[float | None]:
    """MiB that each case takes beyond its inputs: output, gradients, what is kept for them, plan or mask.

    Measured at the peak of a call whose plan exists; building the plan is not counted. None where this system does not
    let the peak be measured.
    """
    path = os.pathsep.join(filter(None, (str(paths.ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run([sys.executable, "-m", "suite.bench.memory"], input=pickle.dumps((setting, cases)),
                          capture_output=True, env={**os.environ, "GLIBC_TUNABLES": MALLOC, "PYTHONPATH": path},
                          cwd=paths.ROOT)
    if done.returncode:
        tail = "\n".join(done.stderr.decode(errors="replace").splitlines()[-8:])
        raise SuiteError(f"the process that measures memory ended with status {done.returncode}:\n{tail}")
    return json.loads(done.stdout.splitlines()[-1])


def measured(setting: Setting, case: Case) -> float | None:
    """The same of one case, in this process."""
    import psutil
    import torch

    from lib.resources import PeakMemory
    from suite.bench.cases import call_of, forget
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


if __name__ == "__main__":
    asked = pickle.load(sys.stdin.buffer)
    print(json.dumps([measured(asked[0], case) for case in asked[1]]))
