"""Everything that is measured, as rows: comparisons one by one, each interleaved, while the suite trains nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from lib import paths, patterns
from lib.attention import BACKENDS, choose
from lib.config import RunConfig
from lib.errors import SuiteError
from lib.model import build_pattern
from suite.bench import cases, counting, memory
from suite.bench.cases import BASELINE, LEARNED, OTHERS, Setting
from suite.bench.counting import PASSES
from suite.bench.rows import Row
from suite.bench.timing import Samples, Spread, Timed, by_clock, interleaved, ratio
from suite.settings.fingerprints import code_fingerprint, package_modules
from suite.settings.machine import cores, machine

SLOW = 15.0                        # seconds: a call that would take longer, by a shorter length's time, is left out
SQUARE = ("dense", "masked", "reference")          # whose time grows as T x T
BOTH = "forward+backward"
GROWTH = ("learned_over_fixed", "length_growth", "plan", "flops", "bytes")     # ratios of which less is better
WATCHED = 1.0                      # seconds in which the use of the cores is watched


@dataclass(frozen=True)
class Scope:
    """How much is measured. Lengths in tokens; seconds of one comparison, beyond its first three rounds."""
    lengths: tuple[int, ...]
    rounds: int = 15
    seconds: float = 6.0
    memory_lengths: tuple[int, ...] = ()
    plan_length: int = 1024
    pattern_length: int = 1024
    steps: dict[str, RunConfig] = field(default_factory=dict)       # of `cases.step_runs`: a step of each is timed
    flex: bool = False              # FlexAttention too, for which a compiler needs seconds at every length
    names: tuple[str, ...] = ()     # the attentions that are timed; empty: all that this machine has


def measure(setting: Setting, scope: Scope, say: Callable[[str], None] = lambda line: None) -> list[Row]:
    """The rows of everything in `scope`, measured while no worker of the suite trains. `say` receives progress."""
    with quiet(say):
        return Bench(setting, scope, say).rows()


@contextmanager
def quiet(say: Callable[[str], None] = lambda line: None) -> Iterator[None]:
    """Hold every slot that a training worker needs (`suite.run.worker.slot`), after waiting for the runs in hand.

    Slots are taken in one order, so that two processes that want all of them cannot block each other.
    """
    from filelock import FileLock, Timeout
    folder = paths.outputs() / "slots"
    folder.mkdir(parents=True, exist_ok=True)
    known = {int(path.stem) for path in folder.glob("*.lock") if path.stem.isdigit()}
    with ExitStack() as held:
        for lock in (FileLock(folder / f"{number}.lock") for number in sorted(known | set(range(cores())))):
            try:
                held.enter_context(lock.acquire(timeout=0))
            except Timeout:
                say("waiting until what trains now is done: times are measured alone")
                held.enter_context(lock.acquire())
        yield


def code() -> str:
    """Fingerprint of the code whose speed is measured, and of what measures it."""
    modules = (*package_modules("lib.attention"), *package_modules("lib.patterns"))
    return code_fingerprint(("suite.bench.measure", *modules))


@dataclass
class Bench:
    setting: Setting
    scope: Scope
    say: Callable[[str], None]
    timed: Timed | None = None                         # how a call is timed; None: by the clock
    busy: float | None = None
    seconds: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)       # of the last length timed

    def rows(self) -> list[Row]:
        import psutil
        self.busy = psutil.cpu_percent(interval=WATCHED) / 100      # by others, before anything is measured
        parts = (self.unavailable, self.times, self.growth, self.plans, self.memory, self.patterns, self.training)
        return [row for part in parts for row in part()]

    def __post_init__(self) -> None:
        self.lacking = cases.backends(self.setting)
        self.available = [name for name, lacks in self.lacking.items() if not lacks]

    @cached_property
    def names(self) -> list[str]:
        """All attentions: those without the suite, its backends, and these with learned distances."""
        learned = cases.checked_call(self.setting.learned, self.setting)
        backends = [name for name in self.available if name not in OTHERS]
        learning = [name + LEARNED for name in backends if name not in SQUARE and BACKENDS[name].supports(learned)]
        every = [*OTHERS, *backends, *learning]
        return [name for name in every if (name in self.scope.names if self.scope.names else
                                           name != "flex" or self.scope.flex)]

    @cached_property
    def peak(self) -> counting.Peak:
        self.say("this machine's arithmetic and memory")
        return counting.Peak.measured(self.setting.device, self.setting.dtype, self.setting.wait)

    def interleaved(self, what: str, calls: dict[str, Callable[[], object]]) -> Samples:
        self.say(what)
        return interleaved(calls, rounds=self.scope.rounds, seconds=self.scope.seconds,
                           timed=self.timed or by_clock(self.setting.wait))

    # Rows

    def row(self, measure: str, backend: str, against: str, pass_: str, T: int, measured: Spread | None = None,
            **more: Any) -> Row:
        """A row of the setting's own pattern unless `more` names another."""
        s = self.setting
        described = {"pattern": f"scaled_base W={s.window}, {s.rungs} rungs", "keys": s.fixed.pairs(T) / T,
                     "heads": f"{s.batch * s.heads}, {s.kv_heads}", "head_dim": s.head_dim,
                     "dtype": str(s.dtype).removeprefix("torch."), "threads": torch.get_num_threads(),
                     "device": torch.cuda.get_device_name(s.device) if s.device.type == "cuda" else "cpu",
                     "machine": machine(), "malloc": os.environ.get("GLIBC_TUNABLES", ""), "busy": self.busy,
                     "code": code()}
        if measured is not None:
            described |= {"ratio": measured.median, "spread": (measured.low, measured.high), "rounds": measured.rounds}
        return Row(measure, backend, against, pass_, T, **described | more)

    def compared(self, measure: str, backend: str, against: str, pass_: str, T: int, mine: Sequence[float],
                 other: Sequence[float], **more: Any) -> Row:
        """How many times faster `backend` (seconds `mine`) is than `against`; of `GROWTH` how many times slower."""
        speed = ratio(mine, other) if measure in GROWTH else ratio(other, mine)
        return self.row(measure, backend, against, pass_, T, speed, ms=1e3 * Spread.of(mine).median,
                        against_ms=1e3 * Spread.of(other).median, **more)

    def unavailable(self) -> list[Row]:
        return [self.row("time", name, "dense", pass_, self.scope.lengths[0], note=f"not available: {lacks}")
                for name, lacks in self.lacking.items() if lacks for pass_ in PASSES]

    def left_out(self, name: str, T: int, pass_: str) -> str:
        device = self.setting.device.type
        if name == "flex" and pass_ != "forward" and device == "cpu":
            return "left out: FlexAttention has no backward pass on a CPU"
        if (needed := cases.needed(name, self.setting, T, pass_)) > cases.MEMORY[device]:
            return f"left out: one call would need {needed / 2**30:.1f} GiB"
        known, seconds = self.seconds.get((name, pass_), (T, 0.0))
        expected = seconds * (T / known) ** (2 if name in SQUARE else 1)
        return f"left out: one call would take {expected:.0f} seconds" if expected > SLOW else ""

    # Parts

    def times(self) -> list[Row]:
        return [row for pass_ in PASSES for T in self.scope.lengths for row in self.contest(T, pass_)]

    def contest(self, T: int, pass_: str) -> list[Row]:
        """Every attention at one length: against the others, learned against fixed, and against the peak."""
        why, calls = {}, {}
        for name in self.names:
            if not (reason := self.left_out(name, T, pass_)):
                calls[name] = cases.call_of(name, self.setting, T, pass_)
                tried = name == "flex" or self.setting.device.type == "cuda"
                reason = failure(calls[name]) if tried else ""
            if reason:
                why[name] = reason
                calls.pop(name, None)
        samples = self.interleaved(f"T = {T}, {pass_}: {', '.join(calls)}", calls)
        cases.forget()
        self.seconds |= {(name, pass_): (T, min(seconds)) for name, seconds in samples.items()}
        rows = [self.row("time", name, "dense", pass_, T, note=reason) for name, reason in why.items()]
        for name, seconds in samples.items():
            fixed = name.removesuffix(LEARNED)
            if name != fixed:
                if fixed in samples:
                    rows.append(self.compared("learned_over_fixed", fixed, fixed, pass_, T, seconds, samples[fixed]))
                continue
            rows += [self.compared("time", name, other, pass_, T, seconds, samples[other])
                     for other in OTHERS if other in samples and name not in ("dense", other)]
            rows += self.distances(name, T, pass_, seconds)
        return rows

    def distances(self, name: str, T: int, pass_: str, seconds: Sequence[float]) -> list[Row]:
        """How far a time is from the machine's peak, in arithmetic and in traffic."""
        s = self.setting
        pairs = T * (T + 1) / 2 if name == "dense" else s.fixed.pairs(T)
        counts = {"flops": (counting.flops(pairs, s.batch * s.heads, s.head_dim, pass_), self.peak.flops),
                  "bytes": (counting.traffic(*s.bytes(T), pass_), self.peak.bytes)}
        return [self.compared(measure, name, "peak", pass_, T, seconds, [counted / peak] * len(seconds),
                              counted=counted, peak=peak) for measure, (counted, peak) in counts.items()]

    def growth(self) -> list[Row]:
        """Each backend at the longest length against itself at a quarter of it, if both are measured."""
        long, rows = max(self.scope.lengths), []
        short = long // 4
        for name in self.available if short in self.scope.lengths else ():
            if name not in SQUARE:
                calls = {str(T): cases.call_of(name, self.setting, T, BOTH) for T in (long, short)}
                samples = self.interleaved(f"{name}, T = {long} against T = {short}", calls)
                rows.append(self.compared("length_growth", name, f"T={short}", BOTH, long, *samples.values()))
        return rows

    def plans(self) -> list[Row]:
        """A call whose plan or mask is still to be built, beyond a call that has one, over that call."""
        T, rows = self.scope.plan_length, []
        for name in (name for name in self.available if name != "reference"):
            warm = cases.call_of(name, self.setting, T, BOTH)
            calls = {"cold": lambda call=warm: (cases.forget(), call()), "warm": warm}
            samples = self.interleaved(f"{name}, building its plan, T = {T}", calls)
            beyond = [max(0.0, a - b) for a, b in zip(*samples.values(), strict=True)]
            rows.append(self.compared("plan", name, name, BOTH, T, beyond, samples["warm"]))
        return rows

    def memory(self) -> list[Row]:
        """Extra memory of every attention, against those without the suite and against the size of q."""
        asked = [(name, T, pass_) for T in sorted(self.scope.memory_lengths) for pass_ in PASSES for name in self.names
                 if name != "flex" and not self.left_out(name, T, pass_)]
        if not asked:
            return []
        self.say(f"memory, T = {', '.join(map(str, self.scope.memory_lengths))}")
        extra = dict(zip(asked, memory.extra_memory(self.setting, asked), strict=True))
        return [row for case in asked for row in self.memory_rows(case, extra)]

    def memory_rows(self, case: memory.Case, extra: dict[memory.Case, float | None]) -> list[Row]:
        """One case over the size of q, and the others at its length and pass over it."""
        name, T, pass_ = case
        mine, q = extra[case], self.setting.bytes(T)[0] / 2**20
        if not mine:
            why = "left out: the peak did not rise above what the process held before"
            return [self.row("memory", name, "dense", pass_, T, note=why)]
        others = {other: mib for other in OTHERS if name not in ("dense", other)
                  and (mib := extra.get((other, T, pass_)))}
        return [self.row("memory_over_q", name, "q", pass_, T, Spread.of([mine / q]), mib=mine, against_mib=q),
                *(self.row("memory", name, other, pass_, T, Spread.of([mib / mine]), mib=mine, against_mib=mib)
                  for other, mib in others.items())]

    def patterns(self) -> list[Row]:
        """Every pattern that has defaults, in the middle of a stack, by the backend that `auto` chooses for it; without
        dense, and `blurred`, which attends as `learned` does."""
        T, s, calls, about = self.scope.pattern_length, self.setting, {}, {}
        for name in (name for name in patterns.names() if name not in ("dense", "blurred")):
            try:
                pattern, layer = patterns.build(name, layers=8, heads=s.heads), 4
            except SuiteError:
                continue
            about[name] = (choose(cases.checked_call(pattern, s, T, layer)), pattern.pairs(T, layer) / T)
            calls[name] = cases.prepared(cases.by_backend("auto", pattern, s, layer, grad=True), s, T, BOTH)
        samples = self.interleaved(f"every pattern, T = {T}", {"dense": cases.call_of("dense", s, T, BOTH), **calls})
        return [self.compared("pattern", backend, "dense", BOTH, T, samples[name], samples["dense"], pattern=name,
                              keys=keys) for name, (backend, keys) in about.items()]

    def training(self) -> list[Row]:
        if not self.scope.steps:
            return []
        T, rows = self.scope.steps["dense"].train.length, []
        samples = self.interleaved(f"training steps, T = {T}", cases.steps(self.scope.steps, self.setting.device))
        for name in (name for name in samples if name != BASELINE):
            kind, precision = name.split()
            run = self.scope.steps[kind]
            pattern = ", ".join([run.pattern.name, *(f"{key}={value}" for key, value in run.pattern.parameters)])
            rows.append(self.compared("training_step", name, BASELINE, "step", T, samples[name], samples[BASELINE],
                                      pattern=pattern, keys=build_pattern(run).pairs(T) / run.model.layers / T,
                                      dtype=precision, head_dim=run.model.head_dim,
                                      heads=f"{run.train.batch * run.model.heads}, {run.model.kv_heads}"))
        return rows


def failure(call: Callable[[], object]) -> str:
    """Why a call cannot be made on this machine (what it compiles, or its memory); empty: it can."""
    try:
        call()
    except Exception as error:                     # the compiler's, whatever it is
        return f"left out: {type(error).__name__} ({(str(error).strip().splitlines() or [''])[0][:100]})"
    return ""
