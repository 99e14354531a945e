"""The benchmark: its clock, its counts, its memory and its rows, each against something known."""

import dataclasses
import json
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lib.errors import SuiteError
from lib.patterns.learned import fractional_rungs
from suite.bench import cases, counting, measure, memory, rows, run, tables, timing
from suite.bench.cases import Setting, Tensors
from suite.bench.measure import Bench, Scope, quiet
from suite.bench.rows import Row
from suite.bench.timing import Spread, interleaved, ratio
from suite.run import worker
from suite.settings import profiles

SMALL = Setting(batch=2, heads=4, kv_heads=2, head_dim=8, window=3, rungs=6)
torch.set_num_threads(1)                # tests share the cores
pytestmark = pytest.mark.usefixtures("outputs")


class Machine:
    """A clock that only calls move; `slow` multiplies what a call takes, by how many calls were made before."""

    def __init__(self, slow=lambda made: 1.0):
        self.now, self.slow, self.made = 0.0, slow, []

    def call(self, name: str, seconds: float, first: float = 0.0):
        def made():
            self.now += self.slow(len(self.made)) * (seconds + (first if name not in self.made else 0.0))
            self.made.append(name)
        return made

    def timed(self, calls, rounds: int, seconds: float = 1e9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: self.now))
            return interleaved(calls, rounds=rounds, seconds=seconds, timed=timing.by_clock())


@pytest.fixture
def bench() -> Bench:
    return Bench(SMALL, Scope((256,)), print)


# Time

def test_when_the_machine_is_slow_in_some_rounds_then_times_differ_and_ratios_do_not_and_the_first_call_is_left_out():
    clock = Machine(slow=lambda made: 8.0 if made // 2 % 3 == 0 else 1.0)                 # two calls a round
    found = clock.timed({"a": clock.call("a", 0.5, first=100), "b": clock.call("b", 2.0)}, 12)
    assert {*np.round(found["a"], 9)} == {0.5, 4.0} and len(found["a"]) == 12
    assert dataclasses.astuple(ratio(found["b"], found["a"])) == pytest.approx((4, 4, 4, 12))


def test_when_rounds_are_made_then_each_begins_with_another_call_and_none_after_the_time_is_up_but_the_least():
    clock = Machine()
    clock.timed({name: clock.call(name, 1.0) for name in "abc"}, 3)
    assert "".join(clock.made[3:]) == "abcbcacab"
    assert len(clock.timed({"a": clock.call("a", 1.0)}, 100, seconds=7.5)["a"]) == 8
    assert len(clock.timed({"a": clock.call("a", 1.0)}, 100, seconds=0)["a"]) == timing.LEAST_ROUNDS


def test_when_a_call_is_short_then_it_is_repeated_and_what_a_call_before_it_costs_is_not_counted():
    clock = Machine()
    found = clock.timed({"a": clock.call("a", 1e-4)}, 3)
    assert found["a"] == pytest.approx([1e-4] * 3) and len(clock.made) == 2 + 3 * (20 + 20)
    short = clock.call("short", 1e-2)

    def disturbed():
        clock.now += 1.0 * (clock.made[-1:] == ["long"])
        short()
    found = clock.timed({"short": disturbed, "long": clock.call("long", 0.5)}, 4)
    assert found["short"] == pytest.approx([1e-2] * 4) and found["long"] == pytest.approx([0.5] * 4)


def test_when_a_spread_is_taken_then_it_is_numpys_quartiles():
    values = [5.0, 1.0, 4.0, 2.0, 8.0, 7.0]
    assert dataclasses.astuple(Spread.of(values)) == (*np.quantile(values, [0.5, 0.25, 0.75]), 6)
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0, 1)


# Counts

@pytest.mark.parametrize("pass_", counting.PASSES)
def test_when_a_call_is_counted_then_operations_are_torchs_own_count_and_traffic_is_its_tensors(pass_):
    T = 24
    call = cases.call_of("gather", SMALL, T, pass_)
    with FlopCounterMode(display=False) as counter:
        call()
    counted = counting.flops(T * SMALL.keys(T), SMALL.batch * SMALL.heads, SMALL.head_dim, pass_)
    assert counted == counter.get_total_flops()
    x = Tensors.random(SMALL, T, grad=True)
    out = cases.attention("dense", SMALL, T, grad=True).attend(x)
    moved = [x.q, x.k, x.v, out]
    if pass_ != "forward":
        moved += [x.q, x.k, x.v, x.d_out, *torch.autograd.grad(out, (x.q, x.k, x.v), x.d_out)]
    assert counting.traffic(*SMALL.bytes(T), pass_) == sum(tensor.nbytes for tensor in moved)


@pytest.mark.parametrize("T, size", [(64, 16), (70, 16), (10, 16), (129, 32)])
def test_when_blocks_are_counted_then_they_are_those_of_the_mask(T, size):
    mask = SMALL.fixed.mask(0, T)[0]
    n = -(-T // size)
    padded = np.zeros((n * size, n * size), bool)
    padded[:T, :T] = mask
    touched = padded.reshape(n, size, n, size).any(axis=(1, 3)).sum()
    share, useful = counting.blocks(SMALL.fixed.plan(0, T).distances, T, size)
    assert share == touched / (n * (n + 1) / 2) and useful == mask.sum() / (touched * size**2)


# What is measured

@pytest.mark.parametrize("T", [5, 33, 70])
def test_when_keys_are_gathered_then_values_and_gradients_are_the_references(T):
    x = Tensors.random(SMALL, T, grad=True)
    own, expected = ([how.attend(x), *cases.prepared(how, SMALL, T, "forward+backward")()] for how in (
        cases.attention(name, SMALL, T, grad=True) for name in ("gather", "reference")))
    for a, b in zip(own, expected, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=32 * torch.finfo(torch.float32).eps * float(b.detach().abs().max()))


def test_when_a_call_is_prepared_then_it_gives_the_output_or_every_gradient_and_alpha_moves_while_rungs_stay():
    out = cases.call_of("torch", SMALL, 20, "forward")()
    assert out.shape == (2, 4, 20, 8) and not out.requires_grad
    how = cases.attention("torch" + cases.LEARNED, SMALL, 20, grad=True)
    call, alpha = cases.prepared(how, SMALL, 20, "forward+backward"), how.learned[0]
    assert [tuple(x.shape) for x in call()] == [(2, 4, 20, 8), (2, 2, 20, 8), (2, 2, 20, 8), ()] and call()
    assert alpha.item() == pytest.approx(cases.ALPHA + 2 * cases.MOVES, abs=3e-7)
    base, window = Setting().learned.keys(0, 1024).base, Setting().window
    first, last = (fractional_rungs(base, window, cases.ALPHA + moved, 1024) for moved in (0, 5e3 * cases.MOVES))
    assert [f for _, _, f in first] == [f for _, _, f in last] == [f for f in base if f > window]
    assert all(0 < t < 1 for _, t, _ in first)


def test_when_a_call_needs_too_much_memory_or_time_or_fails_then_it_is_left_out_and_the_reason_is_kept(monkeypatch):
    large = Bench(Setting(), Scope((256,)), print)
    assert large.left_out("dense", 2**17, "forward") == "" and large.left_out("torch", 2**17, "forward+backward") == ""
    assert all("GiB" in large.left_out(*call, "forward") for call in (("masked", 2**14), ("reference", 2**13)))
    assert large.left_out("gather", 4096, "forward+backward") == "" and large.left_out("masked", 8192, "forward") == ""
    large.seconds = {("dense", "forward"): (1024, 1.0), ("torch", "forward"): (1024, 1.0)}
    assert large.left_out("dense", 2048, "forward") == "" and "16 seconds" in large.left_out("dense", 4096, "forward")
    assert large.left_out("torch", 4096, "forward") == ""               # its time grows with the length alone
    assert "backward" in large.left_out("flex", 256, "forward+backward")

    def fails():
        raise RuntimeError("no compiler\nhere")
    monkeypatch.setattr(cases, "flex", lambda setting, T: lambda x: fails())
    monkeypatch.setattr(Bench, "peak", counting.Peak(1e9, 1e9))
    scope = Scope((16,), rounds=1, seconds=0, names=("dense", "flex"))
    found = Bench(SMALL, scope, print).contest(16, "forward")
    assert [(row.backend, row.note) for row in found if row.measure == "time"] == [
        ("flex", "left out: RuntimeError (no compiler)")]
    assert {row.backend for row in found if row.ratio is not None} == {"dense"}


@pytest.mark.slow
def test_when_memory_is_measured_then_the_gather_takes_what_its_keys_and_values_take():
    setting, T = Setting(), 1000
    asked = [("dense", T, "forward"), ("gather", T, "forward"), ("gather", T, "forward+backward")]
    dense, gathered, both = memory.extra_memory(setting, asked)
    q = setting.bytes(T)[0] / 2**20
    expected = 2 * setting.keys(T) * q
    assert q <= dense <= 2 * q and expected <= gathered <= 1.2 * expected
    assert both > 1.3 * gathered


def test_when_the_process_that_measures_memory_is_ended_then_it_is_said(monkeypatch):
    monkeypatch.setattr(memory, "measured", exec)
    with pytest.raises(SuiteError, match="the process that measures memory was ended"):
        memory.extra_memory("import os; os._exit(1)", [{}])


def test_when_everything_is_measured_then_every_measure_has_rows_with_all_that_a_reader_needs(monkeypatch):
    monkeypatch.setattr(counting, "SQUARE", {"cpu": 64})
    monkeypatch.setattr(counting, "COPIED", {"cpu": 2**16})
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: 25.0)
    monkeypatch.setattr(measure.memory, "extra_memory", lambda setting, asked: [3.0 * n + 1 for n in range(len(asked))])
    scope = Scope((16, 64), rounds=3, seconds=0, memory_lengths=(64,), plan_length=32, pattern_length=40,
                  steps=cases.step_runs(profiles.load("smoke"), 32, 4))
    heard = []
    found = measure.measure(dataclasses.replace(SMALL, batch=1), scope, heard.append)
    assert {row.measure for row in found if row.ratio is not None} == set(rows.MEASURES) - {"error"} and len(heard) > 8
    for row in found:
        measured = row.ratio is not None and row.ratio >= 0 and row.spread[0] <= row.ratio <= row.spread[1]
        assert row.note or (measured and row.rounds in (1, 3)), row
        assert row.pass_ in (*counting.PASSES, "step") and row.keys and row.machine and row.code and row.threads
    (time,) = rows.select(found, "time", backend="torch", against="dense", length=64, pass_="forward")
    assert time.ms > 0 and time.against_ms > 0
    shown = {row.pattern for row in rows.select(found, "pattern")}
    assert len(shown) == 20 and {"scaled_base", "learned", "adaptive_span", "power_law"} <= shown
    assert "scaled_base" in tables.text(found) and "used 25 % of the cores" in tables.text(found)
    assert rows.write(found).name == "bench.json" and rows.read() == found


def test_when_two_are_compared_then_more_is_faster_except_where_growth_is_told(bench):
    growth = {"learned_over_fixed", "length_growth", "plan", "flops", "bytes"}
    for name in {"time", "pattern", "training_step", *growth}:
        found = bench.compared(name, "torch", "dense", "forward", 256, [0.1, 0.2, 0.4], [0.3, 0.6, 1.2])
        assert (found.ratio, *found.spread) == pytest.approx([1 / 3 if name in growth else 3] * 3), name
        assert (found.ms, found.against_ms) == pytest.approx((200, 600))


def test_when_a_time_is_held_against_the_machine_then_it_is_over_what_the_counted_work_takes_at_its_peak(bench):
    bench.peak, T = counting.Peak(flops=1e9, bytes=1e6), 50
    for name, pairs in (("torch", SMALL.fixed.mask(0, T)[0].sum()), ("dense", T * (T + 1) / 2)):
        arithmetic, traffic = bench.distances(name, T, "forward", [0.5] * 3)
        assert arithmetic.counted == 4 * 2 * SMALL.head_dim * 4 * pairs                    # B = 2, H = 4
        assert traffic.counted == 4 * 2 * T * 8 * (2 * 4 + 2 * 2)
        assert (arithmetic.ratio, traffic.ratio) == pytest.approx((5e8 / arithmetic.counted, 5e5 / traffic.counted))


def test_when_memory_becomes_rows_then_it_is_over_q_and_the_others_over_it(bench):
    mib = {"dense": 6.0, "gather": 30.0, "torch": 2.0, "cpu": None}
    found = {(name, 256, "forward"): value for name, value in mib.items()} | {("masked", 512, "forward"): 9.0}
    q = 2 * 4 * 256 * 8 * 4 / 2**20
    assert [(row.measure, row.against, row.ratio, row.mib, row.against_mib) for row in bench.memory_rows(
        ("torch", 256, "forward"), found)] == [("memory_over_q", "q", pytest.approx(2.0 / q), 2.0, q), (
            "memory", "dense", 3.0, 2.0, 6.0), ("memory", "gather", 15.0, 2.0, 30.0)]
    assert [row.measure for row in bench.memory_rows(("dense", 256, "forward"), found)] == ["memory_over_q"]
    unseen, = bench.memory_rows(("cpu", 256, "forward"), found)
    assert unseen.ratio is None and "peak" in unseen.note


# Rows

ROW = Row("time", "cpu", "dense", "forward", 1024, 3.0, (2.7, 3.3), 9, ms=2.0, against_ms=6.0)


def test_when_rows_are_written_then_the_file_is_a_list_with_the_fields_that_the_readme_explains():
    path = rows.write([ROW])
    assert all(set(plain) == set(rows.FIELDS) for plain in json.loads(path.read_text())) and "pass" in rows.FIELDS
    readme = (path.parent / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in (*rows.FIELDS, *rows.MEASURES))
    path.write_text(path.read_text().replace('"ratio"', '"rate"'))
    with pytest.raises(SuiteError, match="make bench"):
        rows.read()
    assert rows.read("never") == []


def test_when_the_command_is_given_then_a_quick_measurement_leaves_the_full_one_alone(monkeypatch, capsys):
    asked, found = [], [ROW]
    monkeypatch.setattr(measure, "measure", lambda setting, scope, say: asked.append(scope) or found)
    monkeypatch.setattr(tables, "text", lambda found: f"{len(found)} row")
    run(quick=True)
    assert (rows.read(), rows.read("quick")) == ([], found)
    run(quick=False)
    assert rows.read() == found and "1 row" in capsys.readouterr().out and set(asked[0].lengths) < set(asked[1].lengths)


# A quiet machine

@pytest.mark.parametrize("first", ["measures", "trains"])
def test_when_one_measures_or_trains_then_the_other_waits_until_it_is_done(first):
    events, said = [], []
    ways = {"measures": lambda: quiet(said.append), "trains": lambda: worker.slot(1, lambda: time.sleep(0.01))}
    (second,) = ways.keys() - {first}

    def wait():
        with ways[second]():
            events.append(second)
    with ways[first]():
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.3)
        events.append(first)
    thread.join()
    assert events == [first, second] and (first == "measures" or "trains now" in said[0])
