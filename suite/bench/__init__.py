"""Speed and memory of attention and of training steps: `make bench`, and what notebook 07 measures."""

import sys
import time


def run(quick: bool) -> None:
    """Measure everything, print it and write outputs/bench/bench.json; fewer lengths and rounds go into quick.json."""
    from suite.bench import measure, rows, tables
    from suite.bench.cases import Setting, step_runs
    from suite.settings import profiles
    start = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - start:4.0f} s  {line}", file=sys.stderr, flush=True)
    steps = step_runs(profiles.load("small"), length=512, window=6)
    scope = (measure.Scope((256, 1024, 4096), rounds=5, seconds=1.0, memory_lengths=(4096,), steps=steps) if quick else
             measure.Scope((256, 512, 1024, 2048, 4096, 8192, 16384), memory_lengths=(1024, 4096, 16384), steps=steps,
                           flex=True))
    measured = measure.measure(Setting.here(), scope, say)
    path = rows.write(measured, "quick" if quick else "bench")
    print(f"{tables.text(measured)}\n\n{path}")
