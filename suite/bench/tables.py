"""Rows as tables: what the terminal and the notebook show."""

from collections.abc import Sequence
from functools import partial

import pandas as pd

from suite.bench.rows import Row, select

FASTEST = ("gpu", "cpu", "torch")          # backends, the one that `auto` prefers first
BUSY = 0.1                                 # share of the cores in use by others above which times say less


def own_backend(rows: Sequence[Row]) -> str:
    there = {row.backend for row in select(rows, "time")}
    return next(name for name in FASTEST if name in there)


def setting(row: Row) -> str:
    """Machine, tensors and pattern of a measured row, in one line."""
    return (f"{row.machine}, {row.threads} threads, {row.device}, {row.dtype}; batch x heads "
            f"{row.heads.partition(',')[0]}, head size {row.head_dim}, {row.pattern}")


def by_length(rows: Sequence[Row], pass_: str, value: str = "ratio", *, measure: str, **where: str) -> pd.DataFrame:
    """One line a length, one column a backend, in the order of the rows."""
    found = [(row.length, row.backend, getattr(row, value)) for row in select(rows, measure, pass_=pass_, **where)]
    table = pd.DataFrame(found, columns=["length", "name", "value"])
    names = list(dict.fromkeys(table["name"]))
    return table.pivot(index="length", columns="name", values="value").reindex(columns=names).rename_axis(columns=None)


times = partial(by_length, measure="flops", value="ms")             # milliseconds of one call
faster = partial(by_length, measure="time", against="dense")        # how many times faster than `against`
learned = partial(by_length, measure="learned_over_fixed")          # time of learned over fixed distances


def memory(rows: Sequence[Row], pass_: str, value: str = "mib") -> pd.DataFrame:
    """Extra MiB of one call, or with `ratio` its multiple of q."""
    return by_length(rows, pass_, value, measure="memory_over_q")


def passes(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.pass_ for row in rows if row.measure == "flops"))


def distance(rows: Sequence[Row], backend: str) -> pd.DataFrame:
    """How many times longer a call takes than its counted arithmetic, and its traffic, at the machine's peak."""
    words = {"flops": "arithmetic", "bytes": "traffic"}
    return pd.DataFrame({f"{pass_}, {word}": by_length(rows, pass_, measure=measure, backend=backend)[backend]
                         for pass_ in passes(rows) for measure, word in words.items()})


def lines(rows: Sequence[Row], measure: str, columns: dict[str, str]) -> pd.DataFrame:
    """The rows of a measure, one a line; `columns` names fields as the table calls them, the index first."""
    found = [vars(row) | {"low": row.spread[0], "high": row.spread[1], "T": f"T={row.length}"}
             for row in select(rows, measure)]
    return pd.DataFrame(found, columns=list(columns)).rename(columns=columns).set_index(next(iter(columns.values())))


# How many times longer a call takes at the longest length than at a quarter of it, with quartiles.
growth = partial(lines, measure="length_growth", columns={
    "backend": "backend", "against": "from", "T": "to", "ratio": "times longer", "low": "low", "high": "high"})
# Building plan or mask, in milliseconds, and over one warm call.
plans = partial(lines, measure="plan", columns={
    "backend": "backend", "ms": "building, ms", "against_ms": "one call, ms", "ratio": "building / call"})


def patterns(rows: Sequence[Row]) -> pd.DataFrame:
    """Every pattern: keys a query, backend, time, and how many times faster than dense (estimate, and quartiles low and
    high); fastest first."""
    columns = {"pattern": "pattern", "backend": "backend", "keys": "keys a query", "ms": "ms", "ratio": "estimate",
               "low": "low", "high": "high"}
    return lines(rows, "pattern", columns).sort_values("estimate", ascending=False)


def training(rows: Sequence[Row]) -> pd.DataFrame:
    """Training steps: milliseconds, and how many times faster than dense in float32."""
    steps = lines(rows, "training_step", {"backend": "step", "ms": "ms", "ratio": "times faster"})
    first = select(rows, "training_step")[0]
    return pd.concat([pd.DataFrame({"ms": first.against_ms, "times faster": 1.0}, [first.against]), steps]).rename_axis(
        "step")


def left_out(rows: Sequence[Row]) -> list[str]:
    """What was not measured, and why; lengths of one reason together."""
    why: dict[tuple[str, str], list[str]] = {}
    for row in (row for row in rows if row.ratio is None):
        kind, _, reason = row.note.partition(": ")
        words = "would need too much memory or time" if reason.startswith("one call would") else reason
        what = "memory, " if row.measure == "memory" else ""
        why.setdefault((row.backend, words), []).extend([f"{row.length} ({what}{row.pass_})"] * (kind == "left out"))
    return [f"{name}: {words}" + (f", at T = {', '.join(dict.fromkeys(at))}" if at else "")
            for (name, words), at in why.items()]


def disturbed(rows: Sequence[Row]) -> str:
    """A warning where other processes were using the machine; otherwise empty."""
    share = max((row.busy or 0.0 for row in rows), default=0.0)
    return "" if share < BUSY else (f"Other processes used {100 * share:.0f} % of the cores when this began: times "
                                    "would be steadier without them.")


def text(rows: Sequence[Row]) -> str:
    first = next(row for row in rows if row.ratio is not None)
    parts, backend = [setting(first), disturbed(rows)], own_backend(rows)
    for pass_ in passes(rows):
        found = [("milliseconds of a call", times(rows, pass_), 3),
                 ("times faster than dense SDPA", faster(rows, pass_), 1),
                 ("times faster than the materialised gather", faster(rows, pass_, against="gather"), 1),
                 ("learned over fixed distances, time", learned(rows, pass_), 2),
                 ("extra memory, MiB", memory(rows, pass_), 1)]
        parts += [titled(f"{pass_}: {title}", table, digits) for title, table, digits in found if len(table)]
    parts.append(titled(f"{backend}: time over counted work at the machine's peak", distance(rows, backend), 1))
    for title, measure, table in (("building plan or mask", "plan", plans),
                                  ("training step", "training_step", training),
                                  ("every pattern at its defaults, forward+backward", "pattern", patterns),
                                  ("growth with length, forward+backward", "length_growth", growth)):
        if select(rows, measure):
            parts.append(titled(title, table(rows), 2))
    parts.append("\n".join(f"not measured, {line}" for line in left_out(rows)))
    return "\n\n".join(filter(None, parts))


def titled(title: str, table: pd.DataFrame, digits: int) -> str:
    return f"{title}\n{table.to_string(float_format=lambda value: f'{value:,.{digits}f}', na_rep='-')}"
