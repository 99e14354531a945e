"""What a benchmark leaves: rows of one tidy list, in JSON, with the meaning of each field beside them."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import SuiteError
from lib.files import write_atomically

MEASURES: dict[str, str] = json.loads(Path(__file__).with_name("measures.json").read_text("utf-8"))


def field(meaning: str, default: Any = dataclasses.MISSING) -> Any:
    return dataclasses.field(default=default, metadata={"meaning": meaning})


@dataclasses.dataclass(frozen=True)
class Row:
    """One ratio with what it was made from. In the file `pass_` is `pass`."""
    measure: str = field("what the ratio is; see below")
    backend: str = field("what was measured: a backend of lib.attention, dense (SDPA, causal), masked (SDPA, mask), "
                         "gather (keys and values materialised), flex (compiled FlexAttention), or a training step")
    against: str = field("what it was measured against")
    pass_: str = field("forward, forward+backward, or step (a training step); of errors out, dq, dk, dv or dlearned")
    length: int = field("T, tokens")
    ratio: float | None = field("median over rounds; empty where nothing was measured, for the reason in `note`", None)
    spread: tuple[float, float] | None = field("quartiles of the ratio over rounds; memory has one value", None)
    rounds: int = field("rounds in each of which everything compared was timed once, in one process", 0)
    ms: float | None = field("median time of the backend, milliseconds", None)
    against_ms: float | None = field("median time of what it was measured against, milliseconds", None)
    mib: float | None = field("extra memory of the backend, MiB: results, gradients, what is kept, plan or mask", None)
    against_mib: float | None = field("the same of what it was measured against", None)
    counted: float | None = field("operations (flops) or bytes (bytes) of the call, counted", None)
    peak: float | None = field("operations or bytes a second that this machine was measured to reach", None)
    limit: float | None = field("the largest error that counts as right", None)
    ok: bool | None = field("whether an error is within its limit", None)
    tokens_per_s: float | None = field("of a training step in gpu-check", None)
    pattern: str = field("pattern and what tells it from others", "")
    keys: float | None = field("keys a query, mean over queries", None)
    heads: str = field("batch x query heads, and key/value heads", "")
    head_dim: int | None = field("D", None)
    dtype: str = field("of the inputs", "")
    device: str = field("cpu, or the name of the GPU", "")
    threads: int | None = field("threads of torch", None)
    machine: str = field("processor, cores and system", "")
    malloc: str = field("GLIBC_TUNABLES of the process; empty: memory as any program gets it", "")
    busy: float | None = field("share of the machine's cores that others used when the measurements began", None)
    code: str = field("fingerprint of the code that was measured", "")
    note: str = field("why there is no ratio, or what a reader should know", "")

    def __post_init__(self) -> None:
        assert self.measure in MEASURES, self.measure
        assert self.ratio is not None or self.note, "a row without a ratio says why"

    def plain(self) -> dict[str, Any]:
        return {name.rstrip("_"): value for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def parse(cls, plain: dict[str, Any]) -> "Row":
        spread = tuple(plain["spread"]) if plain["spread"] else None
        return cls(pass_=plain.pop("pass"), **plain | {"spread": spread})


FIELDS = {column.name.rstrip("_"): column.metadata["meaning"] for column in dataclasses.fields(Row)}
README = Path(__file__).with_name("readme.txt").read_text("utf-8")       # of outputs/bench


def write(rows: Iterable[Row], name: str = "bench") -> Path:
    """Write `outputs/bench/<name>.json`, a list of rows, and the README beside it; returns the path.

    Benchmarks belong to the machine and the code, not to a profile's text or models.
    """
    path = paths.outputs() / "bench" / f"{name}.json"
    lines = ",\n".join(json.dumps(row.plain()) for row in rows)              # a row a line, for eyes and for grep
    write_atomically(path, f"[\n{lines}\n]\n".encode())
    tables = ["\n".join(f"| `{name}` | {meaning} |" for name, meaning in part.items()) for part in (FIELDS, MEASURES)]
    write_atomically(path.with_name("README.md"), README.format(*tables).encode())
    return path


def read(name: str = "bench") -> list[Row]:
    """The rows of `outputs/bench/<name>.json`, empty without the file. A file of another kind is a `SuiteError`."""
    path = paths.outputs() / "bench" / f"{name}.json"
    try:
        return [Row.parse(plain) for plain in json.loads(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
        raise SuiteError(f"{path} is not what `make bench` writes ({error}); delete it and run `make bench`") from None


def select(rows: Sequence[Row], measure: str, **where: Any) -> list[Row]:
    """Rows of a measure with a ratio that have every value of `where`."""
    return [row for row in rows if row.measure == measure and row.ratio is not None
            and all(getattr(row, name) == value for name, value in where.items())]
