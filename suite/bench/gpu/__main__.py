"""What the GPU backend is worth on this machine: `make gpu-check`, or with another Python `python3 -m suite.bench.gpu`.

Needs little beside torch, triton and numpy, so it runs with what a GPU machine has. Four parts, each in a process of
its own that is ended when its time is up, so that the whole takes less than eight minutes whatever happens:

verify  values and gradients of every form of keys, float32 and bfloat16, against the float64 reference on the GPU
time    attention forward and forward + backward at 32,768 tokens, T = 1k, 4k and 16k: gpu against SDPA and masked
flex    the same against compiled FlexAttention with the pattern's `mask_mod`
train   steps of the paper's configuration (60.85 M parameters, 32 windows of 1024 tokens, bfloat16) on random tokens

One JSON file is written anew after each part: `rows` (see `suite.bench.rows`), `fields` (what they mean), `parts` (how
each ended) and `machine`. The exit status is 1 if a verification or a part failed, 2 if there is no GPU. With
TRITON_INTERPRET=1 all is tiny and runs on the CPU.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from lib import paths
from lib.attention import gpu
from lib.files import write_atomically
from suite.bench.cases import LEARNED
from suite.bench.gpu import speed, verify
from suite.bench.rows import FIELDS
from suite.settings.machine import versions

Plain = dict[str, Any]          # a row as the file has it, or facts of a part or the machine
PARTS = {"verify": verify.verify, "time": partial(speed.contests, names=("dense", "masked", "gpu", "gpu" + LEARNED)),
         "flex": partial(speed.contests, names=("flex", "gpu")), "train": speed.train}
LIMITS = {"verify": 150, "time": 120, "flex": 100, "train": 90}      # seconds; 7:40 together


def machine() -> Plain:
    facts = {"device": "CPU, interpreted"}
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        facts = {"device": gpu.name, "multiprocessors": gpu.multi_processor_count, "memory_mib": gpu.total_memory >> 20,
                 "capability": [gpu.major, gpu.minor], "cuda": torch.version.cuda}
    return facts | versions() | {"triton": metadata.version("triton")}


def watched(name: str, tiny: bool, seconds: float) -> tuple[list[Plain], Plain]:
    """Rows of a part, run in a process that is ended after `seconds`, and how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        rows, log, begin = Path(folder) / "rows", Path(folder) / "log", time.perf_counter()
        command = [sys.executable, "-m", "suite.bench.gpu", "--part", name, "--rows", str(rows), *["--tiny"] * tiny]
        with log.open("w") as output:
            process = subprocess.Popen(command, cwd=paths.ROOT, stdout=output, stderr=output, start_new_session=True)
            try:
                status = "ok" if process.wait(timeout=seconds) == 0 else "failed"
            except subprocess.TimeoutExpired:
                status = "out of time"
            finally:                            # compilers that it started too
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        lines = rows.read_text().splitlines() if rows.exists() else []
        plain = [json.loads(line) for line in lines if line.endswith("}")]
        end = {"status": status, "seconds": round(time.perf_counter() - begin, 1), "rows": len(plain)}
        return plain, end if status == "ok" else end | {"log": log.read_text(errors="replace")[-2000:]}


def table(part: str, rows: list[Plain], end: Plain) -> str:
    lines = [f"\n{part}: {end['status']}, {end['seconds']:.0f} s"]
    if part == "verify":
        wrong = [row for row in rows if not row["ok"]]
        nearest = max((row["ratio"] / row["limit"] for row in rows if row["ratio"] is not None), default=0.0)
        lines.append(f"  {len(rows)} comparisons with the float64 reference, {len(wrong)} wrong; the largest error is "
                     f"{nearest:.0%} of its limit")
        lines += [f"  WRONG {row['pattern']}, {row['dtype']}, {row['pass']}: "
                  + (row["note"] or f"{row['ratio']:.1e}, limit {row['limit']:.1e}") for row in wrong]
    else:
        lines += [f"  T {row['length']:6d}  {row['pattern'] if part == 'train' else row['backend']:8s} "
                  f"{row['measure']:18s} {row['pass']:17s} {figures(row)}" for row in rows]
    return "\n".join([*lines, *filter(None, [end.get("log")])])


def figures(row: Plain) -> str:
    if row["ratio"] is None:
        return row["note"]
    speed = f", {row['tokens_per_s']:,.0f} tokens/s" if row["tokens_per_s"] else ""
    return (f"{row['ratio']:6.2f} x ({row['spread'][0]:.2f} to {row['spread'][1]:.2f})  {row['ms']:8.3f} ms, "
            f"{row['against']}: {row['against_ms']:.3f} ms{speed}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m suite.bench.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the JSON file (outputs/gpu/gpu-check.json)")
    parser.add_argument("--tiny", action="store_true", help="a few small cases on the CPU; needs TRITON_INTERPRET=1")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    missing, tiny = gpu.missing(), given.tiny or gpu.interpreted()
    if not missing and tiny and not gpu.interpreted():
        missing = "--tiny runs in the interpreter: set TRITON_INTERPRET=1"
    if missing:
        print(f"gpu-check: {missing}", file=sys.stderr)
        return 2
    if given.part:                              # in the part's own process: a row a line, as they come
        with given.rows.open("w", encoding="utf-8") as file:
            for row in PARTS[given.part](tiny):
                print(json.dumps(row.plain()), file=file, flush=True)
        return 0
    rows: list[Plain] = []
    report = {"fields": FIELDS, "machine": machine(), "parts": {}, "rows": rows}
    print("gpu-check:", ", ".join(f"{name} {value}" for name, value in report["machine"].items()))
    for name, seconds in LIMITS.items():
        found, end = watched(name, tiny, seconds)
        rows += found
        report["parts"][name] = end
        write_atomically(given.out or paths.gpu_check(), (json.dumps(report, indent=1) + "\n").encode())
        print(table(name, found, end), flush=True)
    print(f"\n{given.out or paths.gpu_check()}")
    right = all(row["ok"] for row in rows if row["measure"] == "error") and report["parts"]["verify"]["status"] == "ok"
    return 0 if right and all(end["status"] != "failed" for end in report["parts"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
