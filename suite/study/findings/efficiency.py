"""Notebook 7: what attention costs, counted and measured, on this machine; audit of the published cost of a learned alpha."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from suite import published
from suite.bench import tables
from suite.bench.counting import blocks, flops
from suite.bench.rows import Row, select
from suite.experiments.efficiency import measured
from suite.settings.parameters import Parameters
from suite.settings.profiles import Profile
from suite.settings.progress import Notebook as Progress
from suite.settings.progress import display
from suite.study.conclusions import correlation, listing
from suite.study.tables import named

BOTH = "forward+backward"
NAMES = {"dense": "Dense SDPA", "masked": "SDPA with a mask", "gather": "Materialised gather",
         "flex": "FlexAttention, compiled", "reference": "Reference, float64", "torch": "Suite: torch",
         "cpu": "Suite: compiled, CPU", "gpu": "Suite: compiled, GPU"}


def rows_of(parameters: Parameters, profile: Profile) -> list[Row]:
    """The measurements, made now where there are none of this machine and code; one line says what is measured."""
    shown = display()
    say: Callable[[str], None] = shown.write if isinstance(shown, Progress) else shown.note
    rows = measured(parameters, profile, lambda line: say(f"measuring: {line}"))
    shown.close(f"{sum(row.ratio is not None for row in rows)} ratios")
    return rows


def say_source(rows: Sequence[Row]) -> str:
    """Where the numbers are from, and in which setting."""
    from suite.bench import rows as kept
    first, lengths = next(row for row in rows if row.ratio is not None), sorted({row.length for row in select(rows, "time")})
    by = "the last `make bench`" if list(rows) == kept.read() else "this notebook"
    said = [f"Measured by {by} on {first.machine}, {first.threads} threads, {first.device}, {first.dtype}: batch x heads "
            f"{first.heads.partition(',')[0]}, head size {first.head_dim}, {first.pattern}, "
            f"T = {listing(list(map(str, lengths)))}.",
            "Ratios are medians over rounds in which everything is timed once, in one process.", tables.disturbed(rows),
            *(f"Not measured: {line}." for line in tables.left_out(rows))]
    return " ".join(filter(None, said))


# Checks

def check_equal(T: int = 200) -> str:
    """All that is timed computes the same as the float64 reference: output and gradients, within float32's rounding."""
    import torch

    from suite.bench import cases
    setting = cases.Setting()
    names = ["gather", *(name for name, lacks in cases.backends(setting).items() if not lacks)]
    results = {name: gradients(name, setting, T) for name in names}
    errors = {name: max(float((a - b).abs().max()) for a, b in zip(own, results["reference"], strict=True))
              for name, own in results.items()}
    scale = max(float(x.abs().max()) for x in results["reference"])
    assert max(errors.values()) <= 64 * torch.finfo(torch.float32).eps * scale, errors
    return f"T = {T}, largest error of output and gradients: " + ", ".join(f"{name} {e:.1e}" for name, e in errors.items())


def gradients(name: str, setting, T: int) -> list:
    """Output and the gradients of q, k and v of one attention."""
    import torch

    from suite.bench import cases
    x = cases.Tensors.random(setting, T, grad=True)
    out = cases.attention(name, setting, T, grad=True).attend(x)
    return [y.detach().double() for y in (out, *torch.autograd.grad(out, (x.q, x.k, x.v), x.d_out))]


def check_counts(T: int = 64) -> str:
    """The counted operations are those that torch counts in the materialised gather, whose every query has C keys."""
    from torch.utils.flop_counter import FlopCounterMode

    from suite.bench import cases
    setting, counted = cases.Setting(), {}
    pairs = T * setting.keys(T)
    for pass_ in ("forward", BOTH):
        with FlopCounterMode(display=False) as counter:
            cases.call_of("gather", setting, T, pass_)()
        counted[pass_] = counter.get_total_flops()
        assert counted[pass_] == flops(pairs, setting.heads, setting.head_dim, pass_), (pass_, counted[pass_])
    return (f"T = {T}: {counted['forward']:,} operations forward, {counted[BOTH]:,} with the backward pass, as torch counts "
            "them")


# Time

def times(rows: Sequence[Row]) -> dict[str, pd.DataFrame]:
    """Milliseconds of one call by length, a table a pass."""
    return {pass_: tables.times(rows, pass_).rename(columns=NAMES) for pass_ in tables.passes(rows)}


def ratios(rows: Sequence[Row], against: str = "dense") -> dict[str, pd.DataFrame]:
    """How many times faster than `against`, by length, a table a pass; the reference left out."""
    return {pass_: tables.faster(rows, pass_, against).drop(columns="reference", errors="ignore").rename(columns=NAMES)
            for pass_ in tables.passes(rows)}


def say_times(rows: Sequence[Row]) -> str:
    """The suite's backend against the other ways at the longest length, and at the length where its lead begins."""
    own = tables.own_backend(rows)
    found = select(rows, "time", backend=own, pass_=BOTH)
    longest = max(row.length for row in found)
    against = {row.against: row for row in found if row.length == longest}
    parts = [f"{faster(row)} than {NAMES[other]}" for other, row in against.items()]
    return (f"At T = {longest:,}, forward and backward, {NAMES[own]} takes {next(iter(against.values())).ms:.3g} ms: "
            f"{listing(parts)}. {lead(rows, own)}")


def faster(row: Row) -> str:
    """A ratio in words; below 1 it is slower."""
    low, high = row.spread
    if row.ratio >= 1:
        return f"{row.ratio:.3g} times ({low:.3g} to {high:.3g}) faster"
    return f"{1 / row.ratio:.3g} times ({1 / high:.3g} to {1 / low:.3g}) slower"


def lead(rows: Sequence[Row], own: str) -> str:
    """From which length on a backend is faster than dense attention in three rounds of four, forward and backward."""
    found = sorted(select(rows, "time", backend=own, against="dense", pass_=BOTH), key=lambda row: row.length)
    behind = [row.length for row in found if row.spread[0] <= 1]
    if not behind:
        return f"It is faster than Dense SDPA at every length measured, from T = {found[0].length:,} on."
    after = [row.length for row in found if row.length > max(behind)]
    if not after:
        return f"At the longest length, T = {max(behind):,}, it is not faster than Dense SDPA in three rounds of four."
    return f"It is faster than Dense SDPA from T = {min(after):,} on; at T = {max(behind):,} it is not."


def say_growth(rows: Sequence[Row]) -> str:
    """How time grows when the length grows fourfold."""
    own = tables.own_backend(rows)
    row = tables.one(rows, "length_growth", backend=own)
    if row is None:
        return "Growth with length needs a length and a quarter of it among the lengths."
    return (f"From {row.against.replace('=', ' = ')} to T = {row.length:,} the time of {NAMES[own]} grows "
            f"{row.ratio:.2f} times ({row.spread[0]:.2f} to {row.spread[1]:.2f}); a cost in proportion to the length would "
            "grow 4 times, dense attention's 16 times.")


def say_blocks(lengths: Sequence[int]) -> str:
    """Why skipping empty blocks does not help; counted."""
    from suite.bench.cases import Setting
    setting = Setting()
    shares = {T: blocks(setting.fixed.plan(0, T).distances, T) for T in lengths}
    parts = [f"{100 * touched:.0f} % at T = {T:,}" for T, (touched, _) in shares.items()]
    useful = [100 * inside for _, inside in shares.values()]
    return (f"Of the causal blocks of 128 x 128 pairs, those that hold an attended pair are {listing(parts)}; within them "
            f"{min(useful):.1f} to {max(useful):.1f} % of the work is of use. A kernel that skips empty blocks, as "
            "FlexAttention does, computes the rest too.")


# Memory

def memory(rows: Sequence[Row]) -> dict[str, pd.DataFrame]:
    """Extra MiB of one call by length, a table a pass; learned distances and the reference left out."""
    found = {}
    for pass_ in tables.passes(rows):
        table = tables.memory(rows, pass_)
        found[pass_] = table[[name for name in table if name in NAMES and name != "reference"]].rename(columns=NAMES)
    return found


def say_memory(rows: Sequence[Row]) -> str:
    """Extra memory at the longest length, as multiples of q."""
    own, table = tables.own_backend(rows), tables.memory(rows, BOTH, "ratio")
    table = table[[name for name in table if name in NAMES and name != "reference"]].dropna(subset=[own])
    T, row = table.index[-1], table.iloc[-1]
    others = [f"{NAMES[name]} {row[name]:.1f}" for name in row.dropna().index if name != own]
    return (f"Forward and backward at T = {T:,}, {NAMES[own]} takes {row[own]:.1f} times the size of q beyond its inputs "
            f"(output and three gradients are 4); {listing(others)}.")


# Learned distances

def learned(rows: Sequence[Row]) -> pd.DataFrame:
    """Time of learned over fixed distances by length, one column a backend and pass."""
    table = tables.learned(rows)
    table.columns = [f"{NAMES[backend]}, {pass_}" for backend, pass_ in table.columns]
    return table


def say_learned(rows: Sequence[Row]) -> str:
    """The cost of a learned alpha, beside what the paper's runs took."""
    own = tables.own_backend(rows)
    found = select(rows, "learned_over_fixed", backend=own, pass_=BOTH)
    longest = max(found, key=lambda row: row.length)
    theirs = published.learned_cost()
    word = "less than" if longest.spread[1] < theirs else "more than" if longest.spread[0] > theirs else "no less than"
    return (f"With a learned alpha {NAMES[own]} takes {longest.ratio:.2f} times ({longest.spread[0]:.2f} to "
            f"{longest.spread[1]:.2f}) as long as with fixed distances (forward and backward, T = {longest.length:,}), {word} "
            f"the published {theirs:.1f} times of a whole training. It must cost something: a rung takes two logits, not one.")


# Distance to what the machine can do

def distance(rows: Sequence[Row]) -> pd.DataFrame:
    """Time of the suite's backend over that of its counted arithmetic and traffic at the machine's peak, by length."""
    table = tables.distance(rows, tables.own_backend(rows))
    return table.rename(columns=lambda name: name.replace("flops", "arithmetic").replace("bytes", "traffic"))


def say_distance(rows: Sequence[Row]) -> str:
    own = tables.own_backend(rows)
    kinds = {measure: max(select(rows, measure, backend=own, pass_=BOTH), key=lambda row: row.length)
             for measure in ("flops", "bytes")}
    arithmetic, traffic = kinds["flops"], kinds["bytes"]
    bound = "arithmetic" if arithmetic.ratio < traffic.ratio else "memory traffic"
    return (f"This machine was measured to reach {arithmetic.peak / 1e9:,.0f} G operations/s (a matrix product) and "
            f"{traffic.peak / 1e9:,.1f} GB/s (a copy). Forward and backward at T = {arithmetic.length:,}, {NAMES[own]} takes "
            f"{arithmetic.ratio:.1f} times as long as its counted arithmetic would at that speed, and {traffic.ratio:.1f} "
            f"times as long as its counted traffic: the nearer bound is {bound}.")


# Patterns, plans, training

def patterns(rows: Sequence[Row]) -> pd.DataFrame:
    """Every pattern against dense, for `plots.intervals`: fastest first."""
    found = sorted(select(rows, "pattern"), key=lambda row: -row.ratio)
    return pd.DataFrame({"estimate": [row.ratio for row in found], "low": [row.spread[0] for row in found],
                         "high": [row.spread[1] for row in found]},
                        index=[f"{row.pattern} ({row.keys:.0f} keys)" for row in found])


def say_patterns(rows: Sequence[Row]) -> str:
    """Fastest and slowest pattern, and whether keys decide."""
    found = sorted(select(rows, "pattern"), key=lambda row: row.ms)
    slower = [row.pattern for row in found if row.ratio < 1]
    than = f"slower than dense: {listing(slower)}" if slower else "all are faster than dense"
    together = correlation([row.keys for row in found], [row.ms for row in found], "keys a query", "The time")
    return (f"At T = {found[0].length:,}, each pattern at its defaults: {found[0].pattern} is fastest ({faster(found[0])} "
            f"than dense), {found[-1].pattern} slowest ({faster(found[-1])}); {than}. {together}")


def say_plans(rows: Sequence[Row]) -> str:
    """Building a plan or a mask against one call."""
    found = select(rows, "plan")
    parts = [f"{NAMES[row.backend]}: {row.ratio:.2f} of a call ({row.ms:.2g} ms)" for row in found]
    return (f"Building plan or mask, once for a pattern, layer and length, against one call forward and backward at T = "
            f"{found[0].length:,} — {'; '.join(parts)}.")


def say_training(rows: Sequence[Row]) -> str:
    """The quickest training step against dense attention in float32, eager."""
    found = max(select(rows, "training_step"), key=lambda row: row.ratio)
    return (f"A whole training step at T = {found.length:,} takes {found.ms:,.0f} ms as `{found.backend}`, {faster(found)} "
            f"than `{found.against}`.")


def throughput(runs: pd.DataFrame) -> pd.DataFrame:
    """Training tokens a second of the suite's own runs, and over dense; mean over seeds."""
    speed = named(runs).drop_duplicates("run").groupby("name")["run_tokens_per_s"].mean().sort_values(ascending=False)
    table = pd.DataFrame({"tokens a second": speed})
    return table.assign(**{"over dense": speed / speed["Dense"]})


def say_throughput(table: pd.DataFrame, T: int) -> str:
    """The same as a sentence."""
    sparse = table.drop("Dense")["over dense"]
    best, worst = sparse.idxmax(), sparse.idxmin()
    return (f"In the suite's own training (T = {T:,}, one thread a run, several runs side by side) the fastest sparse model "
            f"is {best}, at {sparse[best]:.2f} times the tokens a second of dense, the slowest {worst}, at "
            f"{sparse[worst]:.2f} times.")
