"""The benchmark: clock, counts, memory and rows against something known; notebook 7, which shows them; gpu-check."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_jobs import events, job
from made_up_results import MadeUpDatabase
from plans import planned
from torch.utils.flop_counter import FlopCounterMode

from lib import paths
from lib.attention import gpu, reference
from lib.errors import SuiteError
from lib.patterns.learned import fractional_rungs
from suite.bench import cases, counting, measure, memory, rows, run, tables, timing
from suite.bench.cases import Setting, Tensors
from suite.bench.gpu import __main__ as gpu_check
from suite.bench.gpu import verify
from suite.bench.measure import BOTH, Bench, Scope, quiet
from suite.bench.rows import Row
from suite.bench.timing import Spread, interleaved, ratio
from suite.experiments.efficiency import measured as measured_rows
from suite.run import stamps, worker
from suite.settings import profiles
from suite.settings.machine import machine
from suite.study.findings import efficiency
from suite.study.frames import Study

SMALL = Setting(batch=2, heads=4, kv_heads=2, head_dim=8, window=3, rungs=6)
OTHERS = ("tokenizers datasets matplotlib seaborn scipy psutil filelock safetensors yaml tqdm jinja2 bs4 nbformat "
          "papermill IPython transformers numba llvmlite pandas").split()
torch.set_num_threads(1)                # tests share the cores
pytestmark = pytest.mark.usefixtures("outputs")
interpreted = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton exists for Linux only")


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


def row(measure: str, ratio: float, length: int = 1024, backend: str = "cpu", against: str = "dense", **more) -> Row:
    values = {"ms": 2.0, "against_ms": 2.0 * ratio, "mib": 8.0, "against_mib": 2.0, "counted": 1e9, "peak": 2e11,
              "keys": 20.0, "pattern": "p", "heads": "8, 8", "head_dim": 64, "dtype": "float32", "device": "cpu",
              "threads": 2, "machine": "M", "code": "c"}
    return Row(measure, backend, against, BOTH, length, ratio, (ratio * 0.9, ratio * 1.1), 9, **values | more)


# Time

def test_when_the_machine_is_slow_in_some_rounds_then_times_differ_and_ratios_and_their_quartiles_do_not():
    clock = Machine(slow=lambda made: 8.0 if made // 2 % 3 == 0 else 1.0)                 # two calls a round
    found = clock.timed({"a": clock.call("a", 0.5, first=100), "b": clock.call("b", 2.0)}, 12)
    assert {*np.round(found["a"], 9)} == {0.5, 4.0} and len(found["a"]) == 12
    assert dataclasses.astuple(ratio(found["b"], found["a"])) == pytest.approx((4, 4, 4, 12))
    values = [5.0, 1.0, 4.0, 2.0, 8.0, 7.0]
    assert dataclasses.astuple(Spread.of(values)) == (*np.quantile(values, [0.5, 0.25, 0.75]), 6)
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0, 1)


def test_when_rounds_are_made_then_each_begins_with_another_call_and_short_calls_are_repeated_until_time_is_up():
    clock = Machine()
    clock.timed({name: clock.call(name, 1.0) for name in "abc"}, 3)
    assert "".join(clock.made[3:]) == "abcbcacab"
    assert len(clock.timed({"a": clock.call("a", 1.0)}, 100, seconds=7.5)["a"]) == 8
    assert len(clock.timed({"a": clock.call("a", 1.0)}, 100, seconds=0)["a"]) == timing.LEAST_ROUNDS
    # What is short is repeated; what the call before it costs it is not counted.
    clock = Machine()
    found = clock.timed({"a": clock.call("a", 1e-4)}, 3)
    assert found["a"] == pytest.approx([1e-4] * 3) and len(clock.made) == 2 + 3 * (20 + 20)
    short = clock.call("short", 1e-2)

    def disturbed():
        clock.now += 1.0 * (clock.made[-1:] == ["long"])
        short()
    found = clock.timed({"short": disturbed, "long": clock.call("long", 0.5)}, 4)
    assert found["short"] == pytest.approx([1e-2] * 4) and found["long"] == pytest.approx([0.5] * 4)


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


def test_when_times_are_compared_then_more_is_faster_but_for_growth_and_what_the_peak_would_take():
    bench = Bench(SMALL, Scope((256,)), print)
    growth = {"learned_over_fixed", "length_growth", "plan", "flops", "bytes"}
    for name in {"time", "pattern", "training_step", *growth}:
        found = bench.compared(name, "torch", "dense", "forward", 256, [0.1, 0.2, 0.4], [0.3, 0.6, 1.2])
        assert (found.ratio, *found.spread) == pytest.approx([1 / 3 if name in growth else 3] * 3), name
        assert (found.ms, found.against_ms) == pytest.approx((200, 600))
    bench.peak, T = counting.Peak(flops=1e9, bytes=1e6), 50
    for name, pairs in (("torch", SMALL.fixed.mask(0, T)[0].sum()), ("dense", T * (T + 1) / 2)):
        arithmetic, traffic = bench.distances(name, T, "forward", [0.5] * 3)
        assert arithmetic.counted == 4 * 2 * SMALL.head_dim * 4 * pairs                    # B = 2, H = 4
        assert traffic.counted == 4 * 2 * T * 8 * (2 * 4 + 2 * 2)
        assert (arithmetic.ratio, traffic.ratio) == pytest.approx((5e8 / arithmetic.counted, 5e5 / traffic.counted))


def test_when_memory_becomes_rows_then_it_is_over_q_and_the_others_over_it():
    bench = Bench(SMALL, Scope((256,)), print)
    mib = {"dense": 6.0, "gather": 30.0, "torch": 2.0, "cpu": None}
    found = {(name, 256, "forward"): value for name, value in mib.items()} | {("masked", 512, "forward"): 9.0}
    q = 2 * 4 * 256 * 8 * 4 / 2**20
    assert [(row.measure, row.against, row.ratio, row.mib, row.against_mib) for row in bench.memory_rows(
        ("torch", 256, "forward"), found)] == [("memory_over_q", "q", pytest.approx(2.0 / q), 2.0, q), (
            "memory", "dense", 3.0, 2.0, 6.0), ("memory", "gather", 15.0, 2.0, 30.0)]
    assert [row.measure for row in bench.memory_rows(("dense", 256, "forward"), found)] == ["memory_over_q"]
    unseen, = bench.memory_rows(("cpu", 256, "forward"), found)
    assert unseen.ratio is None and "peak" in unseen.note


def test_when_rows_are_written_then_the_file_is_a_list_with_the_fields_that_the_readme_explains():
    path = rows.write([row("time", 3.0)])
    assert all(set(plain) == set(rows.FIELDS) for plain in json.loads(path.read_text())) and "pass" in rows.FIELDS
    readme = (path.parent / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in (*rows.FIELDS, *rows.MEASURES))
    path.write_text(path.read_text().replace('"ratio"', '"rate"'))
    with pytest.raises(SuiteError, match="make bench"):
        rows.read()
    assert rows.read("never") == []


def test_when_the_command_is_given_then_a_quick_measurement_leaves_the_full_one_alone(monkeypatch, capsys):
    asked, found = [], [row("time", 3.0)]
    monkeypatch.setattr(measure, "measure", lambda setting, scope, say: asked.append(scope) or found)
    monkeypatch.setattr(tables, "text", lambda found: f"{len(found)} row")
    run(quick=True)
    assert (rows.read(), rows.read("quick")) == ([], found)
    run(quick=False)
    assert rows.read() == found and "1 row" in capsys.readouterr().out and set(asked[0].lengths) < set(asked[1].lengths)


@pytest.mark.parametrize("first", ["measures", "trains"])
def test_when_one_measures_or_trains_then_the_other_waits_until_it_is_done(first):
    order, said = [], []
    ways = {"measures": lambda: quiet(said.append), "trains": lambda: worker.slot(1, lambda: time.sleep(0.01))}
    (second,) = ways.keys() - {first}

    def wait():
        with ways[second]():
            order.append(second)
    with ways[first]():
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.3)
        order.append(first)
    thread.join()
    assert order == [first, second] and (first == "measures" or "trains now" in said[0])


# Notebook 7

def test_when_runs_were_timed_then_tokens_a_second_are_told_against_dense():
    study = Study(planned("07_efficiency"), MadeUpDatabase(), "07_efficiency")
    study.database.metrics = lambda job: MadeUpDatabase.metrics(study.database, job).assign(
        run_tokens_per_s=1000.0 if job.labels.series == "Dense" else 500.0)
    table = efficiency.throughput(study)
    assert set(table.index) == {model.name for model in study.language_models}
    assert set(table.drop("Dense").itertuples(index=False, name=None)) == {(500.0, 2.0)}
    assert table.loc["Dense"].tolist() == [1000.0, 1.0]


def test_when_the_machine_was_benched_with_this_code_then_the_notebook_shows_that_and_else_measures(monkeypatch):
    profile, asked = profiles.load("smoke"), []
    parameters = profile.parameters("07_efficiency")

    def measured(setting, scope, say):
        asked.append(scope)
        return [row("time", 2.0)]
    monkeypatch.setattr(measure, "measure", measured)
    monkeypatch.setattr(measure, "code", lambda: "this code")
    assert measured_rows(parameters, profile, print) == [row("time", 2.0)] and len(asked) == 1
    assert asked[0].lengths == parameters.lengths and asked[0].steps["dense"].train.length == parameters.step_length
    assert rows.read("smoke") == [row("time", 2.0)] and rows.read() == []
    benched = [row("time", 9.0, machine=machine(), code="this code")]
    rows.write(benched)
    assert measured_rows(parameters, profile, print) == benched and len(asked) == 1
    assert "make bench" in efficiency.say_source(benched)
    assert "this notebook" in efficiency.say_source([row("time", 2.0)])
    for stale in ({"machine": "another"}, {"code": "older"}):
        rows.write([dataclasses.replace(benched[0], **stale)])
        assert measured_rows(parameters, profile, print) == [row("time", 2.0)]
    assert len(asked) == 3


@pytest.mark.parametrize("fails", [False, True])
def test_when_a_notebook_measures_time_then_it_is_executed_after_all_that_trains_and_fails_alone(house, fails):
    house.notebook("01_measures", job(1, **{"behaviour": "raise"} if fails else {}))
    house.experiments["01_measures"].alone = True
    house.notebook("02_trains", *([job(2)] if fails else [job(1), job(2), job(3)]))
    assert house.run() == fails
    assert house.pages[-1] == {"01_measures": "failed" if fails else "done", "02_trains": "done"}
    assert fails or events()[-1] == "execute 01_measures" and len(events("train")) >= 3


def test_when_a_benchmark_is_made_then_notebook_7_alone_is_out_of_date():
    before = {name: stamps.stamp("smoke", name, "text") for name in ("06_capacity_battery", "07_efficiency")}
    rows.write([row("time", 2.0)])
    after = {name: stamps.stamp("smoke", name, "text") for name in before}
    assert [name for name in before if before[name] != after[name]] == ["07_efficiency"]
    rows.write([row("time", 3.0)], "small")
    assert {name: stamps.stamp("smoke", name, "text") for name in before} == after
    assert (paths.NOTEBOOKS / f"{stamps.BENCHED}.ipynb").exists()


def test_when_rows_are_tabled_then_numbers_are_theirs_and_the_reference_and_learned_distances_are_left_out():
    measured = [row("flops", 1.0, against="peak"), *(row("memory_over_q", 4.7, backend=name, against="q")
                                                     for name in ("cpu", "reference", "cpu" + cases.LEARNED))]
    found = efficiency.by_pass(measured, tables.memory)
    assert list(found) == [BOTH] and found[BOTH].to_dict() == {"Suite: compiled, CPU": {1024: 8.0}}
    shares = efficiency.block_shares(cases.Setting(window=127, rungs=1), [128])
    assert shares.loc[128].tolist() == [100.0, 100 * 129 / 256], "dense keys in one block are half of it"
    measured = [row("flops", 3.0, against="peak"), row("bytes", 8.0, against="peak"),
                row("length_growth", 4.2, 4096, against="T=1024"),
                *(row("pattern", ratio, pattern=name, ms=10 / ratio, keys=keys)
                  for name, ratio, keys in (("slow", 0.5, 90.0), ("quick", 9.0, 5.0)))]
    assert tables.distance(measured, "cpu").loc[1024].to_dict() == {f"{BOTH}, arithmetic": 3.0, f"{BOTH}, traffic": 8.0}
    assert list(tables.growth(measured).loc["cpu"]) == ["T=1024", "T=4096", 4.2, *measured[2].spread]
    assert tables.growth([]).empty
    fastest_first = tables.patterns(measured)[["estimate", "low", "keys a query"]]
    assert list(fastest_first.itertuples(name=None)) == [("quick", 9.0, 9.0 * 0.9, 5.0), ("slow", 0.5, 0.5 * 0.9, 90.0)]


def test_when_a_way_is_faster_or_slower_or_not_measured_or_disturbed_then_the_sentences_say_so():
    assert "4 times (3.6 to 4.4) faster" in efficiency.faster(row("time", 4.0))
    assert efficiency.faster(row("time", 0.5)).startswith("2 times (1.82 to 2.22) slower")
    times = [row("time", ratio, length, against=against) for length, ratio in ((256, 0.8), (1024, 3.0), (4096, 9.0))
             for against in ("dense", "gather")]
    said = efficiency.say_times([row("time", 2.0, 4096, backend="torch"), *times])
    assert said.startswith("At T = 4,096, forward and backward, Suite: compiled, CPU is 9 times (8.1 to 9.9) faster")
    assert "Dense SDPA and" in said and said.endswith("faster than dense in three rounds of four from T = 1,024 on.")
    assert efficiency.say_times([row("time", 1.05, 4096)]).endswith("at no length measured.")
    lacking = Row("time", "gpu", "dense", "forward", 256, note="not available: a GPU that torch sees")
    large = [Row("time", "masked", "dense", "forward", T, note="left out: one call would need 6.0 GiB")
             for T in (8192, 16384)]
    said = efficiency.say_source([row("time", 2.0, busy=0.02), lacking, *large])
    assert "Not measured: gpu: a GPU that torch sees." in said and "Other processes" not in said
    assert "Not measured: masked: would need too much memory or time, at T = 8192 (forward), 16384 (forward)." in said
    assert "Other processes used 35 % of the cores" in efficiency.say_source([row("time", 2.0, busy=0.35)])


@pytest.mark.parametrize("T", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_when_the_notebook_checks_then_every_way_agrees_with_the_reference_with_gradients(T, monkeypatch):
    setting = cases.Setting(heads=2, kv_heads=2, head_dim=16) if T < 100 else cases.Setting()
    if T < 100:                                         # compiling the others takes seconds
        monkeypatch.setattr(cases, "backends", lambda setting: {"torch": ""})
    errors = efficiency.errors(setting, T)
    assert {"gather", "torch"} <= set(errors.index) and errors.max() <= 64 * torch.finfo(torch.float32).eps
    right, wrong = cases.attention, {"gather": "dense"}
    monkeypatch.setattr(cases, "backends", lambda setting: {})
    monkeypatch.setattr(cases, "attention", lambda name, *more, grad: right(wrong.get(name, name), *more, grad))
    assert efficiency.errors(setting, T)["gather"] > 0.01


# make gpu-check: it needs little, says when there is no GPU, runs whole in the interpreter, and sees what is wrong

def python(*arguments, **variables):
    inherited = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "SUITE_OUTPUTS")}
    return subprocess.run([sys.executable, *arguments], cwd=paths.ROOT, capture_output=True, text=True,
                          env={**inherited, "OMP_NUM_THREADS": "1", **variables})


def test_when_make_runs_it_then_torch_triton_and_numpy_are_enough_and_it_takes_less_than_eight_minutes():
    found = python("-c", f"import sys; sys.modules.update(dict.fromkeys({OTHERS})); import suite.bench.gpu.__main__")
    assert found.returncode == 0, found.stderr
    assert sum(gpu_check.LIMITS.values()) <= 460 and set(gpu_check.LIMITS) == set(gpu_check.PARTS)
    makefile = (paths.ROOT / "Makefile").read_text("utf-8")
    assert "$(SUITE) gpu-check $(ARGS)" in makefile.partition("\ngpu-check:")[2].partition("\n\n")[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("option", [[], ["--tiny"]])
def test_when_there_is_no_gpu_then_one_line_says_so_and_what_to_do(option, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert gpu_check.main(["--out", str(tmp_path / "out.json"), *option]) == 2 and not list(tmp_path.iterdir())
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert out == "" and line.startswith("gpu-check: ") and "TRITON_INTERPRET=1" in line


@pytest.mark.slow
@interpreted
def test_when_it_runs_in_the_interpreter_then_every_part_leaves_its_rows(tmp_path):
    out = tmp_path / "deep" / "gpu-check.json"
    found = python("-m", "suite.bench.gpu", "--out", str(out), TRITON_INTERPRET="1")
    assert found.returncode == 0, found.stdout + found.stderr
    report = json.loads(out.read_text())
    assert {name: part["status"] for name, part in report["parts"].items()} == dict.fromkeys(gpu_check.PARTS, "ok")
    assert {"device", "torch", "triton"} <= set(report["machine"]) and report["fields"] == rows.FIELDS
    found_rows = report["rows"]
    assert all(set(row) <= set(rows.FIELDS) for row in found_rows)
    errors = [row for row in found_rows if row["measure"] == "error"]
    assert all(row["ok"] and row["ratio"] <= row["limit"] for row in errors)
    assert {row["pass"] for row in errors} == {"out", "dq", "dk", "dv", "dlearned"}
    timed = {(row["measure"], row["backend"], row["against"], row["pass"]): row for row in found_rows}
    for pair in (("time", "gpu", "dense"), ("time", "gpu", "masked"), ("learned_over_fixed", "gpu", "gpu")):
        assert all(timed[*pair, pass_]["ms"] > 0 for pass_ in counting.PASSES)
    assert timed["time", "gpu", "flex", "forward"]["ratio"] > 0
    assert "CPU" in timed["time", "flex", "dense", "forward+backward"]["note"]
    assert [row["pattern"] for row in found_rows if row["tokens_per_s"]] == ["fixed", "learned", "dense"]
    assert "0 wrong" in found.stdout and "tokens/s" in found.stdout


@pytest.mark.slow
@interpreted
def test_when_a_part_hangs_or_fails_then_it_is_ended_and_says_how(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    begin = time.monotonic()
    found, end = gpu_check.watched("time", True, seconds=0.2)
    assert end["status"] == "out of time" and found == [] and time.monotonic() - begin < 10
    assert "out of time" in gpu_check.table("time", found, end)
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found, end = gpu_check.watched("verify", False, seconds=60)
    assert end["status"] == "failed" and "torch sees no GPU" in end["log"]


def refuse(out):
    raise RuntimeError("an illegal memory access\nwas encountered")


@pytest.mark.parametrize(("change", "right"), [(lambda out: out, True), (lambda out: out * 1.1, False),
                                               (lambda out: out * float("nan"), False), (refuse, False)])
def test_when_numbers_are_wrong_then_the_check_says_so(change, right, monkeypatch):
    monkeypatch.setattr(gpu, "attend", lambda call: change(reference.attend(call)))
    found = [row.plain() for row in verify.verify(tiny=True)]
    assert len(found) >= 6 and all(row["ok"] == right for row in found)
    json.dumps(found, allow_nan=False)
    assert change is not refuse or {row["note"] for row in found} == {"RuntimeError: an illegal memory access"}
    assert ("WRONG" in gpu_check.table("verify", found, {"status": "ok", "seconds": 1.0})) != right


@pytest.mark.parametrize(("ok", "status", "code"), [(True, "ok", 0), (False, "ok", 1), (True, "out of time", 1)])
def test_when_verification_fails_then_the_exit_status_is_one(ok, status, code, monkeypatch, tmp_path):
    found = json.loads(json.dumps(row("error", 0.5, limit=0.1, ok=ok).plain()))
    monkeypatch.setattr(gpu, "missing", str)
    monkeypatch.setattr(gpu_check, "machine", dict)
    monkeypatch.setattr(gpu_check, "LIMITS", {"verify": 1})
    monkeypatch.setattr(gpu_check, "watched", lambda *given: ([found], {"status": status, "seconds": 1.0}))
    assert gpu_check.main(["--out", str(tmp_path / "out.json")]) == code
    assert json.loads((tmp_path / "out.json").read_text())["rows"] == [found]
