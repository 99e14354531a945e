"""The benchmark from the command line; `make bench` calls it.

    python -m suite.bench             measure everything, print it, write outputs/bench/bench.json (some minutes, alone)
    python -m suite.bench --quick     fewer lengths and rounds, into outputs/bench/quick.json
    python -m suite.bench --goals     the goals of the fast kernels beside what the last full benchmark measured, as Markdown
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
# Torch's threads sleep when they have nothing to do: while they wait for work awake, for milliseconds, whatever is measured
# after SDPA has one core less.
PROCESS = {"OMP_WAIT_POLICY": "PASSIVE"}


def run(quick: bool) -> None:
    import torch

    from suite.bench import rows
    from suite.bench.cases import Setting
    from suite.bench.measure import Scope, measure
    from suite.bench.steps import StepSetting
    from suite.settings import profiles
    from suite.study import speed_tables as tables
    setting, start = Setting.on(torch.device("cuda" if torch.cuda.is_available() else "cpu")), time.monotonic()
    step = StepSetting.of(profiles.load("small"), STEP_LENGTH, STEP_WINDOW)
    scope = (Scope(QUICK, rounds=5, seconds=1.0, memory_lengths=(4096,), step=step) if quick
             else Scope(LENGTHS, memory_lengths=MEMORY_LENGTHS, step=step, flex=True))

    def say(line: str) -> None:
        print(f"{time.monotonic() - start:4.0f} s  {line}", file=sys.stderr, flush=True)
    found = measure(setting, scope, say)
    path = rows.write(found, "quick" if quick else "bench")
    print(f"{tables.text(found)}\n\n{path}")


def goals() -> None:
    from suite.bench import rows
    from suite.bench.goals import markdown
    found = rows.read()
    if not found:
        raise SuiteError("nothing was measured yet: run `make bench` first")
    print(markdown(found))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m suite.bench", description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--quick", action="store_true", help="fewer lengths and rounds, into a file of its own")
    which.add_argument("--goals", action="store_true", help="the goals beside what was measured last, as Markdown")
    options = parser.parse_args(argv)
    try:
        goals() if options.goals else run(options.quick)
    except SuiteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    if PROCESS.items() - os.environ.items():           # they are read when a process starts: start again
        os.execve(sys.executable, [sys.executable, "-m", "suite.bench", *sys.argv[1:]], {**os.environ, **PROCESS})
    sys.exit(main())
