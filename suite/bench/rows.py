"""What a benchmark leaves: rows of one tidy list, in JSON, with the meaning of each field beside them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import SuiteError
from lib.files import write_atomically

MEASURES = {
    "time": "time of `against` over time of `backend`: how many times faster the backend is",
    "memory": "extra memory of `against` over that of `backend`: how many times less the backend takes",
    "memory_over_q": "extra memory of the backend over the size of q",
    "plan": "building what a call is planned with (plan or mask), over one warm call of the backend",
    "learned_over_fixed": "time with a learned alpha over the time with as many fixed distances, same backend",
    "length_growth": "time at `length` over the time at the length in `against`, same backend",
    "flops": "time over the time of the counted arithmetic at the machine's measured speed (a matrix product)",
    "bytes": "time over the time of the counted traffic at the machine's measured speed (a copy)",
    "pattern": "time of dense attention over the time of the pattern; `backend` is what `auto` chose",
    "training_step": "time of the step in `against` over that of the step in `backend`: how many times faster a step is",
}
FIELDS = {
    "measure": "what the ratio is; see below",
    "backend": "what was measured: a backend of lib.attention, dense (SDPA, causal), masked (SDPA with a Boolean mask), "
               "gather (keys and values materialised), flex (compiled FlexAttention), or a training step",
    "against": "what it was measured against",
    "pass": "forward, forward+backward, or step (a whole training step)",
    "length": "T, tokens",
    "ratio": "median over rounds; empty where nothing was measured, for the reason in `note`",
    "spread": "lower and upper quartile of the ratio over rounds; of memory and machine speeds there is one value",
    "rounds": "rounds in each of which everything of the comparison was timed once, in one process",
    "ms": "median time of the backend, milliseconds",
    "against_ms": "median time of what it was measured against, milliseconds",
    "mib": "extra memory of the backend, MiB: beyond the inputs, with results, gradients, plan or mask",
    "against_mib": "the same of what it was measured against",
    "counted": "operations (flops) or bytes (bytes) of the call, counted",
    "peak": "operations or bytes a second that this machine was measured to reach",
    "pattern": "pattern and what tells it from others",
    "keys": "keys a query, mean over queries",
    "heads": "batch x query heads, and key/value heads",
    "head_dim": "D",
    "dtype": "of the inputs",
    "device": "cpu, or the name of the GPU",
    "threads": "threads of torch",
    "machine": "processor, cores and system",
    "malloc": "GLIBC_TUNABLES of the process (the suite's training workers have some); empty: memory as any program gets it",
    "busy": "share of the machine's cores that other processes used when the measurements began",
    "code": "fingerprint of the code that was measured",
    "note": "why there is no ratio, or what a reader should know",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One ratio with what it was made from; see `FIELDS` (`pass_` is `pass` in the file)."""
    measure: str
    backend: str
    against: str
    pass_: str
    length: int
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    rounds: int = 0
    ms: float | None = None
    against_ms: float | None = None
    mib: float | None = None
    against_mib: float | None = None
    counted: float | None = None
    peak: float | None = None
    pattern: str = ""
    keys: float | None = None
    heads: str = ""
    head_dim: int | None = None
    dtype: str = ""
    device: str = ""
    threads: int | None = None
    machine: str = ""
    malloc: str = ""
    busy: float | None = None
    code: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        assert self.measure in MEASURES, self.measure
        assert self.ratio is not None or self.note, "a row without a ratio says why"

    def plain(self) -> dict[str, Any]:
        """As the file has it."""
        return {name.rstrip("_"): value for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def parse(cls, plain: dict[str, Any]) -> Row:
        values = {{"pass": "pass_"}.get(name, name): value for name, value in plain.items()}
        return cls(**values | {"spread": tuple(values["spread"]) if values["spread"] else None})


def folder() -> Path:
    """Where benchmarks are kept: they belong to the machine and the code, not to a profile's text or models."""
    return paths.outputs() / "bench"


def write(rows: Iterable[Row], name: str = "bench") -> Path:
    """`outputs/bench/<name>.json` as a list of rows, and the README beside it."""
    path = folder() / f"{name}.json"
    lines = ",\n".join(json.dumps(row.plain()) for row in rows)              # a row a line, for eyes and for grep
    write_atomically(path, f"[\n{lines}\n]\n".encode())
    write_atomically(folder() / "README.md", readme().encode())
    return path


def read(name: str = "bench") -> list[Row]:
    """The rows of `outputs/bench/<name>.json`; none without the file. A file of another kind is a `SuiteError`."""
    path = folder() / f"{name}.json"
    if not path.exists():
        return []
    try:
        return [Row.parse(plain) for plain in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
        raise SuiteError(f"{path} is not what `make bench` writes ({error}); delete it and run `make bench`") from None


def readme() -> str:
    fields = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in FIELDS.items())
    measures = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in MEASURES.items())
    return ("# Benchmarks\n\n`bench.json` is what `make bench` measured last, `quick.json` what `make bench ARGS=--quick` did,"
            "\nthe others are what notebook 07 measured for a profile. Each is a list of rows:\n\n"
            f"| field | meaning |\n|---|---|\n{fields}\n\n"
            f"What the ratio of each measure is:\n\n| measure | ratio |\n|---|---|\n{measures}\n")


def select(rows: Sequence[Row], measure: str, **where: Any) -> list[Row]:
    """Rows of a measure with a ratio that have every value of `where`."""
    return [row for row in rows if row.measure == measure and row.ratio is not None
            and all(getattr(row, name) == value for name, value in where.items())]
