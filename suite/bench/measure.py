"""All that is measured, as rows: one comparison after the other, each interleaved in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from suite.bench import cases, counting, memory, steps
from suite.bench.cases import LEARNED, OTHERS, Setting
from suite.bench.counting import PASSES
from suite.bench.quiet import busy, quiet
from suite.bench.rows import Row
from suite.bench.steps import BASELINE, StepSetting
from suite.bench.timing import Samples, Spread, interleaved, ratio
from suite.settings.fingerprints import code_fingerprint, package_modules
from suite.settings.machine import machine

SLOW = 15.0                        # seconds: a call that would take longer, by its time at a shorter length, is left out
SQUARE = ("dense", "masked", "reference")          # whose time grows as T x T
BOTH = "forward+backward"
GROWTH = ("learned_over_fixed", "length_growth")   # ratios of which less is better


@dataclass(frozen=True)
class Scope:
    """How much is measured. Lengths in tokens; seconds of one comparison, beyond its first three rounds."""
    lengths: tuple[int, ...]
    rounds: int = 15
    seconds: float = 6.0
    memory_lengths: tuple[int, ...] = ()
    plan_length: int = 1024
    pattern_length: int = 1024
    step: StepSetting | None = None
    flex: bool = False              # FlexAttention too, which a compiler needs seconds for at every length

    @property
    def growth(self) -> tuple[int, int] | None:
        """The longest length and a quarter of it, if both are measured."""
        longest = max(self.lengths)
        return (longest // 4, longest) if longest // 4 in self.lengths else None


def measure(setting: Setting, scope: Scope, say: Callable[[str], None] = lambda line: None) -> list[Row]:
    """Everything in `scope`, while no worker of the suite trains. `say` hears what is being measured."""
    with quiet(say):
        return Bench(setting, scope, say).rows()


def code() -> str:
    """Fingerprint of the code whose speed is measured, and of what measures it."""
    return code_fingerprint(("suite.bench.measure", *package_modules("lib.attention"), *package_modules("lib.patterns")))


@dataclass
class Bench:
    setting: Setting
    scope: Scope
    say: Callable[[str], None]
    seconds: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)       # of the last length timed

    def rows(self) -> list[Row]:
        _ = self.busy                                  # looked at before anything is measured
        parts = (self.times, self.growth, self.plans, self.memory, self.patterns, self.training)
        return [*self.unavailable(), *(row for part in parts for row in part())]

    @cached_property
    def busy(self) -> float:
        return busy()

    @cached_property
    def lacking(self) -> dict[str, str]:
        return cases.backends(self.setting)

    @cached_property
    def available(self) -> list[str]:
        return [name for name, lacks in self.lacking.items() if not lacks]

    @cached_property
    def names(self) -> list[str]:
        """All attentions: those without the suite, its backends, and these with learned distances."""
        own = [name for name in self.available if name not in OTHERS]
        others = [name for name in OTHERS if name != "flex" or self.scope.flex]
        learning = [name for name in own if name not in SQUARE and cases.learns(name, self.setting)]
        return [*others, *own, *(name + LEARNED for name in learning)]

    @cached_property
    def peak(self) -> counting.Peak:
        self.say("this machine's arithmetic and memory")
        return counting.measured_peak(self.setting.device, self.setting.dtype, self.setting.wait)

    def interleaved(self, what: str, calls: dict[str, Callable[[], object]]) -> Samples:
        self.say(what)
        return interleaved(calls, rounds=self.scope.rounds, seconds=self.scope.seconds, wait=self.setting.wait)

    # Rows

    def row(self, measure: str, backend: str, against: str, pass_: str, T: int, found: Spread | None = None,
            **more: Any) -> Row:
        """A row of the setting's own pattern unless `more` names another."""
        s = self.setting
        described = {"pattern": f"scaled_base W={s.window}, {s.rungs} rungs", "keys": s.fixed.pairs(T) / T,
                     "heads": f"{s.batch * s.heads}, {s.kv_heads}", "head_dim": s.head_dim,
                     "dtype": str(s.dtype).removeprefix("torch."), "device": self.device, "threads": torch.get_num_threads(),
                     "machine": machine(), "malloc": os.environ.get("GLIBC_TUNABLES", ""), "busy": self.busy, "code": code()}
        if found is not None:
            described |= {"ratio": found.median, "spread": (found.low, found.high), "rounds": found.rounds}
        return Row(measure, backend, against, pass_, T, **described | more)

    @property
    def device(self) -> str:
        return torch.cuda.get_device_name(self.setting.device) if self.setting.device.type == "cuda" else "cpu"

    def compared(self, measure: str, backend: str, against: str, pass_: str, T: int, own: Sequence[float],
                 other: Sequence[float], **more: Any) -> Row:
        """How many times faster `backend` (seconds `own`) is than `against` (`other`); of `GROWTH` how many times slower."""
        found = ratio(own, other) if measure in GROWTH else ratio(other, own)
        return self.row(measure, backend, against, pass_, T, found, ms=1e3 * Spread.of(own).median,
                        against_ms=1e3 * Spread.of(other).median, **more)

    def unavailable(self) -> list[Row]:
        return [self.row("time", name, "dense", pass_, T, note=f"not available: {lacks}")
                for name, lacks in self.lacking.items() if lacks for pass_ in PASSES for T in self.scope.lengths[:1]]

    def left_out(self, name: str, T: int, pass_: str) -> str:
        """Why a call is not made; empty: it is."""
        if name == "flex" and pass_ != "forward" and self.setting.device.type == "cpu":
            return "left out: FlexAttention has no backward pass on a CPU"
        needed = cases.needed(name, self.setting, T, pass_)
        if needed > cases.MEMORY[self.setting.device.type]:
            return f"left out: one call would need {needed / 2**30:.1f} GiB"
        known = self.seconds.get((name, pass_))
        if known is not None:
            expected = known[1] * (T / known[0]) ** (2 if name in SQUARE else 1)
            if expected > SLOW:
                return f"left out: one call would take {expected:.0f} seconds"
        return ""

    # Parts

    def times(self) -> list[Row]:
        return [row for pass_ in PASSES for T in self.scope.lengths for row in self.contest(T, pass_)]

    def contest(self, T: int, pass_: str) -> list[Row]:
        """Every attention at one length: against those without the suite, learned against fixed, and against the peak."""
        why = {name: self.left_out(name, T, pass_) for name in self.names}
        calls = {name: cases.call_of(name, self.setting, T, pass_) for name in self.names if not why[name]}
        if "flex" in calls and (reason := failure(calls["flex"])):
            why["flex"] = f"left out: {reason}"
            del calls["flex"]
        samples = self.interleaved(f"T = {T}, {pass_}: {', '.join(calls)}", calls)
        cases.forget()
        self.seconds |= {(name, pass_): (T, min(own)) for name, own in samples.items()}
        rows = [self.row("time", name, "dense", pass_, T, note=reason) for name, reason in why.items() if reason]
        for name, own in samples.items():
            fixed = name.removesuffix(LEARNED)
            if name != fixed:
                rows.append(self.compared("learned_over_fixed", fixed, fixed, pass_, T, own, samples[fixed]))
                continue
            rows += [self.compared("time", name, other, pass_, T, own, samples[other])
                     for other in OTHERS if other in samples and name not in ("dense", other)]
            rows += self.distances(name, T, pass_, own)
        return rows

    def distances(self, name: str, T: int, pass_: str, seconds: Sequence[float]) -> list[Row]:
        """How far a time is from the machine's peak, in arithmetic and in traffic."""
        s = self.setting
        pairs = T * (T + 1) / 2 if name == "dense" else s.fixed.pairs(T)
        counts = {"flops": (counting.flops(pairs, s.batch * s.heads, s.head_dim, pass_), self.peak.flops),
                  "bytes": (counting.traffic(*s.bytes(T), pass_), self.peak.bytes)}
        return [self.row(measure, name, "peak", pass_, T, Spread.of([t * peak / counted for t in seconds]),
                         ms=1e3 * Spread.of(seconds).median, against_ms=1e3 * counted / peak, counted=counted, peak=peak)
                for measure, (counted, peak) in counts.items()]

    def growth(self) -> list[Row]:
        """Each backend at the longest length against itself at a quarter of it."""
        if self.scope.growth is None:
            return []
        short, long = self.scope.growth
        rows = []
        for name in (name for name in self.available if name not in SQUARE):
            calls = {str(T): cases.call_of(name, self.setting, T, BOTH) for T in (short, long)}
            samples = self.interleaved(f"{name}, T = {long} against T = {short}", calls)
            rows.append(self.compared("length_growth", name, f"T={short}", BOTH, long, samples[str(long)],
                                      samples[str(short)]))
        return rows

    def plans(self) -> list[Row]:
        """A call whose plan or mask is still to be built, beyond a call that has one, over that call."""
        T, rows = self.scope.plan_length, []
        for name in (name for name in self.available if name != "reference"):
            call = cases.call_of(name, self.setting, T, BOTH)
            samples = self.interleaved(f"{name}, building its plan, T = {T}", {"cold": lambda c=call: anew(c), "warm": call})
            cold, warm = samples["cold"], samples["warm"]
            beyond = [max(0.0, a - b) for a, b in zip(cold, warm, strict=True)]
            rows.append(self.row("plan", name, name, BOTH, T, ratio(beyond, warm), ms=1e3 * Spread.of(beyond).median,
                                 against_ms=1e3 * Spread.of(warm).median))
        return rows

    def memory(self) -> list[Row]:
        """Extra memory of every attention, against those without the suite and against the size of q."""
        asked = [(name, T, pass_) for T in sorted(self.scope.memory_lengths) for pass_ in PASSES for name in self.names
                 if name != "flex" and not self.left_out(name, T, pass_)]
        if not asked:
            return []
        self.say(f"memory, T = {', '.join(map(str, self.scope.memory_lengths))}")
        found = dict(zip(asked, memory.extra_memory(self.setting, asked), strict=True))
        return [row for case in asked for row in self.memory_rows(case, found)]

    def memory_rows(self, case: memory.Case, found: dict[memory.Case, float | None]) -> list[Row]:
        """One case over the size of q, and the others at its length and pass over it."""
        name, T, pass_ = case
        own, q = found[case], self.setting.bytes(T)[0] / 2**20
        if not own:
            why = "left out: the peak did not rise above what the process held before"
            return [self.row("memory", name, "dense", pass_, T, note=why)]
        others = {other: mib for other in OTHERS if other != name and (mib := found.get((other, T, pass_)))}
        return [self.row("memory_over_q", name, "q", pass_, T, Spread.of([own / q]), mib=own, against_mib=q),
                *(self.row("memory", name, other, pass_, T, Spread.of([mib / own]), mib=own, against_mib=mib)
                  for other, mib in others.items() if name != "dense")]

    def patterns(self) -> list[Row]:
        """Every pattern at its defaults, in the middle of a stack, by the backend that `auto` chooses for it."""
        T, found = self.scope.pattern_length, cases.every_pattern(self.setting)
        layer = {name: pattern.layers // 2 for name, pattern in found.items()}
        calls = {"dense": cases.call_of("dense", self.setting, T, BOTH)}
        for name, pattern in found.items():
            how = cases.by_backend("auto", pattern, self.setting, layer[name], grad=True)
            calls[name] = cases.prepared(how, self.setting, T, BOTH)
        samples = self.interleaved(f"every pattern, T = {T}", calls)
        return [self.compared("pattern", cases.chosen(pattern, self.setting, T, layer[name]), "dense", BOTH, T, samples[name],
                              samples["dense"], pattern=name, keys=pattern.pairs(T, layer[name]) / T)
                for name, pattern in found.items()]

    def training(self) -> list[Row]:
        """Whole steps against dense attention in float32, eager."""
        setting = self.scope.step
        if setting is None:
            return []
        samples = self.interleaved(f"training steps, T = {setting.train.length}", steps.steps(setting, self.setting.device))
        T, spec = setting.train.length, setting.sparse
        described = f"scaled_base, {', '.join(f'{name}={value}' for name, value in spec.parameters)}"
        keys = steps.pairs(setting) / setting.model.layers / T
        return [self.compared("training_step", name, BASELINE, "step", T, own, samples[BASELINE],
                              pattern=described if name.startswith("sparse") else "dense",
                              keys=keys if name.startswith("sparse") else (T + 1) / 2, dtype=name.split()[1],
                              heads=f"{setting.train.batch * setting.model.heads}, {setting.model.kv_heads}",
                              head_dim=setting.model.head_dim)
                for name, own in samples.items() if name != BASELINE]


def anew(call: Callable[[], object]) -> object:
    """The call, with nothing built for it."""
    cases.forget()
    return call()


def failure(call: Callable[[], object]) -> str:
    """Why a call that compiles something cannot be made on this machine; empty: it can."""
    try:
        call()
    except Exception as error:                     # the compiler's, whatever it is
        return f"{type(error).__name__} ({str(error).strip().splitlines()[0][:100]})"
    return ""
