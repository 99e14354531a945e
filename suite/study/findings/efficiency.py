"""Notebook 7: measured rows as tables for its figures, and sentences about time that no claim of the ledger says."""

from collections.abc import Callable, Sequence

import pandas as pd
import torch

from suite.bench import cases, tables
from suite.bench import rows as benchmarks
from suite.bench.counting import blocks
from suite.bench.measure import BOTH
from suite.bench.rows import Row, select
from suite.experiments.efficiency import measured
from suite.settings import progress
from suite.settings.parameters import Parameters
from suite.settings.profiles import Profile
from suite.study.frames import Study

# Ways to attend, as figures call them. The float64 reference, which is for checks, is in no figure.
NAMES = {"dense": "Dense SDPA", "masked": "SDPA with a mask", "gather": "Materialised gather",
         "flex": "FlexAttention, compiled", "torch": "Suite: torch", "cpu": "Suite: compiled, CPU",
         "gpu": "Suite: compiled, GPU"}


def rows_of(parameters: Parameters, profile: Profile) -> list[Row]:
    """The measurements, made now where there are none of this machine and code; one line says what is measured."""
    shown = progress.display()
    say: Callable[[str], None] = shown.write if isinstance(shown, progress.Notebook) else shown.note
    rows = measured(parameters, profile, lambda line: say(f"measuring: {line}"))
    shown.close(f"{sum(row.ratio is not None for row in rows)} ratios")
    return rows


def say_source(rows: Sequence[Row]) -> str:
    """Which machine measured the rows, in which setting, and what was not measured."""
    first = next(row for row in rows if row.ratio is not None)
    by = "the last `make bench`" if list(rows) == benchmarks.read() else "this notebook"
    return " ".join(filter(None, [f"Measured by {by}. {tables.setting(first)}.", tables.disturbed(rows),
                                  *(f"Not measured: {line}." for line in tables.left_out(rows))]))


def errors(setting: cases.Setting, T: int) -> pd.Series:
    """By way to attend, the largest error of output and gradients against the float64 reference over its maximum."""
    def results(name: str) -> list[torch.Tensor]:
        x = cases.Tensors.random(setting, T, grad=True)
        out = cases.attention(name, setting, T, grad=True).attend(x)
        return [y.detach().double() for y in (out, *torch.autograd.grad(out, (x.q, x.k, x.v), x.d_out))]
    names = ["gather", *(name for name, lacks in cases.backends(setting).items() if not lacks and name != "reference")]
    expected = results("reference")
    scale = max(float(y.abs().max()) for y in expected)
    found = {name: float(torch.stack([(a - b).abs().max() for a, b in zip(results(name), expected, strict=True)]).max())
             for name in names}
    return pd.Series(found).fillna(float("inf")) / scale              # NaN is no small error


def by_pass(rows: Sequence[Row], table: Callable[..., pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """A table of `suite.bench.tables` by length for each pass; its columns are the ways to attend in `NAMES`."""
    found = {pass_: table(rows, pass_) for pass_ in tables.passes(rows)}
    return {pass_: own[[name for name in own if name in NAMES]].rename(columns=NAMES) for pass_, own in found.items()}


def block_shares(setting: cases.Setting, lengths: Sequence[int]) -> pd.DataFrame:
    """Per cent of the causal blocks of 128 x 128 pairs with an attended pair, and per cent of their pairs attended."""
    shares = {T: blocks(setting.fixed.plan(0, T).distances, T) for T in lengths}
    return 100 * pd.DataFrame.from_dict(shares, "index", columns=["blocks computed, %", "of use in them, %"])


def throughput(study: Study) -> pd.DataFrame:
    """Training tokens a second of the suite's own runs, beside whatever else ran, and training time over dense's; means
    over seeds. No claim is decided by it."""
    speeds = study.named.drop_duplicates("run").groupby("name")["run_tokens_per_s"].mean()
    times = speeds[study.model("Dense").name] / speeds
    return pd.DataFrame({"tokens a second": speeds, "time over dense": times}).sort_values("time over dense")


def faster(row: Row) -> str:
    """A ratio in words; below 1 it is slower."""
    ratio, low, high, word = row.ratio, *row.spread, "faster"
    if ratio < 1:
        ratio, low, high, word = 1 / ratio, 1 / high, 1 / low, "slower"
    return f"{ratio:.3g} times ({low:.3g} to {high:.3g}) {word}"


def say_times(rows: Sequence[Row]) -> str:
    """The suite's backend beside the other ways at the longest length, and from which length on it beats dense."""
    own = select(rows, "time", backend=tables.own_backend(rows), pass_=BOTH)
    longest = max(row.length for row in own)
    parts = [f"{faster(row)} than {NAMES[row.against]}" for row in own if row.length == longest]
    listed = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    dense = sorted((row for row in own if row.against == "dense"), key=lambda row: row.length)
    behind = max((row.length for row in dense if row.spread[0] <= 1), default=0)
    lead = next((f"from T = {row.length:,} on" for row in dense if row.length > behind), "at no length measured")
    return (f"At T = {longest:,}, forward and backward, {NAMES[own[0].backend]} is {listed}. It is "
            f"faster than dense in three rounds of four {lead}.")
