"""Rows as tables: what the terminal and the notebook show."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from suite.bench.rows import Row, select

FASTEST = ("gpu", "cpu", "torch")          # backends, the one that `auto` prefers first
BUSY = 0.1                                 # share of the cores in use by others above which times say less


def own_backend(rows: Sequence[Row]) -> str:
    """The fastest kind of backend that was measured."""
    there = {row.backend for row in select(rows, "time")}
    return next(name for name in FASTEST if name in there)


def setting(row: Row) -> str:
    """Machine, tensors and pattern of a measured row, in one line."""
    return (f"{row.machine}, {row.threads} threads, {row.device}, {row.dtype}; batch x heads "
            f"{row.heads.partition(',')[0]}, head size {row.head_dim}, {row.pattern}")


def by_length(rows: Sequence[Row], value: str, columns: str = "backend") -> pd.DataFrame:
    """One line a length, one column a backend (or what `columns` names), in the order of the rows."""
    names = list(dict.fromkeys(getattr(row, columns) for row in rows))
    table = pd.DataFrame({"length": [row.length for row in rows], "name": [getattr(row, columns) for row in rows],
                          "value": [getattr(row, value) for row in rows]})
    return table.pivot(index="length", columns="name", values="value").reindex(columns=names).rename_axis(columns=None)


def times(rows: Sequence[Row], pass_: str) -> pd.DataFrame:
    """Milliseconds of one call."""
    return by_length(select(rows, "flops", pass_=pass_), "ms")


def faster(rows: Sequence[Row], pass_: str, against: str = "dense") -> pd.DataFrame:
    """How many times faster than `against`."""
    return by_length(select(rows, "time", pass_=pass_, against=against), "ratio")


def learned(rows: Sequence[Row], pass_: str) -> pd.DataFrame:
    """Time of learned over fixed distances."""
    return by_length(select(rows, "learned_over_fixed", pass_=pass_), "ratio")


def passes(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.pass_ for row in rows if row.measure == "flops"))


def memory(rows: Sequence[Row], pass_: str, value: str = "mib") -> pd.DataFrame:
    """Extra MiB of one call, or with `ratio` its multiple of q."""
    return by_length(select(rows, "memory_over_q", pass_=pass_), value)


def distance(rows: Sequence[Row], backend: str) -> pd.DataFrame:
    """How many times longer a call takes than its counted arithmetic, and its traffic, at the machine's peak."""
    return pd.DataFrame({
        f"{pass_}, {word}": by_length(select(rows, measure, backend=backend, pass_=pass_), "ratio")[backend]
        for pass_ in passes(rows) for word, measure in (("arithmetic", "flops"), ("traffic", "bytes"))})


def patterns(rows: Sequence[Row]) -> pd.DataFrame:
    """Every pattern: keys a query, backend, time, and how many times faster than dense (estimate, and quartiles low and
    high); fastest first."""
    lines = [{"pattern": row.pattern, "backend": row.backend, "keys a query": row.keys, "ms": row.ms,
              "estimate": row.ratio, "low": row.spread[0], "high": row.spread[1]} for row in select(rows, "pattern")]
    return pd.DataFrame(lines).set_index("pattern").sort_values("estimate", ascending=False)


def growth(rows: Sequence[Row]) -> pd.DataFrame:
    """How many times longer a call takes at the longest length than at a quarter of it, with quartiles."""
    lines = [{"backend": row.backend, "from": row.against, "to": f"T={row.length}", "times longer": row.ratio,
              "low": row.spread[0], "high": row.spread[1]} for row in select(rows, "length_growth")]
    return pd.DataFrame(lines, columns=["backend", "from", "to", "times longer", "low", "high"]).set_index("backend")


def plans(rows: Sequence[Row]) -> pd.DataFrame:
    """Building plan or mask, in milliseconds, and over one warm call."""
    return pd.DataFrame([{"backend": row.backend, "building, ms": row.ms, "one call, ms": row.against_ms,
                          "building / call": row.ratio} for row in select(rows, "plan")]).set_index("backend")


def training(rows: Sequence[Row]) -> pd.DataFrame:
    """Training steps: milliseconds, and how many times faster than dense in float32."""
    steps = select(rows, "training_step")
    lines = [(steps[0].against, steps[0].against_ms, 1.0), *((row.backend, row.ms, row.ratio) for row in steps)]
    return pd.DataFrame(lines, columns=["step", "ms", "times faster"]).set_index("step")


def left_out(rows: Sequence[Row]) -> list[str]:
    """What was not measured, and why; lengths of one reason together."""
    why: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.ratio is None:
            kind, _, reason = row.note.partition(": ")
            words = "would need too much memory or time" if reason.startswith("one call would") else reason
            what = "memory, " if row.measure == "memory" else ""
            at = why.setdefault((row.backend, words), [])
            if kind == "left out":
                at.append(f"{row.length} ({what}{row.pass_})")
    return [f"{name}: {words}" + (f", at T = {', '.join(dict.fromkeys(at))}" if at else "")
            for (name, words), at in why.items()]


def disturbed(rows: Sequence[Row]) -> str:
    """A warning where other processes were using the machine; otherwise empty."""
    share = max((row.busy or 0.0 for row in rows), default=0.0)
    return "" if share < BUSY else (f"Other processes used {100 * share:.0f} % of the cores when this began: times "
                                    "would be steadier without them.")


def text(rows: Sequence[Row]) -> str:
    """Everything for a terminal."""
    first = next(row for row in rows if row.ratio is not None)
    parts = [setting(first), disturbed(rows)]
    for pass_ in passes(rows):
        parts += [titled(f"{pass_}: milliseconds of a call", times(rows, pass_), 3),
                  titled(f"{pass_}: times faster than dense SDPA", faster(rows, pass_), 1),
                  titled(f"{pass_}: times faster than the materialised gather", faster(rows, pass_, "gather"), 1)]
        if select(rows, "learned_over_fixed", pass_=pass_):
            parts.append(titled(f"{pass_}: learned over fixed distances, time", learned(rows, pass_), 2))
        if select(rows, "memory_over_q", pass_=pass_):
            parts.append(titled(f"{pass_}: extra memory, MiB", memory(rows, pass_), 1))
    backend = own_backend(rows)
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
