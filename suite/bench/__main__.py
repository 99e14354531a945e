"""The benchmark from the command line; `make bench` calls it.

    python -m suite.bench             measure everything, print it, write outputs/bench/bench.json (some minutes, alone)
    python -m suite.bench --quick     fewer lengths and rounds, into outputs/bench/quick.json
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from lib.errors import SuiteError

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
QUICK = (256, 1024, 4096)
MEMORY_LENGTHS = (1024, 4096, 16384)
STEP_LENGTH, STEP_WINDOW = 512, 6
# Torch's idle threads sleep. Threads that stay awake for milliseconds would take a core from the call after SDPA.
PROCESS = {"OMP_WAIT_POLICY": "PASSIVE"}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m suite.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer lengths and rounds, into a file of its own")
    quick, start = parser.parse_args(argv).quick, time.monotonic()
    from suite.bench import measure, rows, tables
    from suite.bench.cases import Setting
    from suite.bench.steps import StepSetting
    from suite.settings import profiles

    def say(line: str) -> None:
        print(f"{time.monotonic() - start:4.0f} s  {line}", file=sys.stderr, flush=True)
    try:
        step = StepSetting.of(profiles.load("small"), STEP_LENGTH, STEP_WINDOW)
        scope = (measure.Scope(QUICK, rounds=5, seconds=1.0, memory_lengths=(4096,), step=step) if quick
                 else measure.Scope(LENGTHS, memory_lengths=MEMORY_LENGTHS, step=step, flex=True))
        measured = measure.measure(Setting.here(), scope, say)
    except SuiteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    path = rows.write(measured, "quick" if quick else "bench")
    print(f"{tables.text(measured)}\n\n{path}")
    return 0


if __name__ == "__main__":
    if PROCESS.items() - os.environ.items():           # they are read when a process starts: start again
        os.execve(sys.executable, [sys.executable, "-m", "suite.bench", *sys.argv[1:]], {**os.environ, **PROCESS})
    sys.exit(main())
