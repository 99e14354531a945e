"""Parts 2 and 3: how fast is attention?

Calls are timed by the GPU's clock, back to back, interleaved with what they are compared with. They are checked beforehand:
what `sparse_attention` does around them (and its wait for the value of a learned alpha) is in the steps of part 4.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from lib import patterns
from lib.attention.call import Call, checked
from lib.attention.gpu import Gpu
from lib.attention.masked import Masked
from suite.bench.gpu import Bench, Row, about, first_line
from suite.bench.timing import Spread, ratio

TOKENS = 32_768
ROUNDS, SECONDS = 15, 4.0       # of one comparison

Calls = dict[str, Callable[[], object]]


def time_attention(bench: Bench) -> Iterator[Row]:
    for T, B in lengths(bench):
        data, fixed, learned = subjects(bench, T, B)
        common = about((B, 8, 2, T, 64), torch.bfloat16) | {"measure": "time"}
        for pass_ in ("forward", "forward+backward"):
            calls = {"fixed": steps(data, lambda: Gpu()(fixed), pass_), "learned": steps(data, lambda: Gpu()(learned), pass_),
                     "sdpa": steps(data, lambda: dense(data, "FLASH_ATTENTION"), pass_),
                     "cudnn": steps(data, lambda: dense(data, "CUDNN_ATTENTION"), pass_)}
            if fits(bench, B, T):
                calls["masked"] = steps(data, lambda: Masked()(fixed), pass_)
            yield from compared(bench, calls, {"fixed": ("sdpa", "cudnn", "masked"), "learned": ("sdpa", "fixed")},
                                common | {"pass": pass_})


def time_flex(bench: Bench) -> Iterator[Row]:
    attend = flex_attention if bench.tiny else torch.compile(flex_attention, dynamic=False)
    for T, B in lengths(bench):
        data, fixed, _ = subjects(bench, T, B)
        mask = create_block_mask(fixed.pattern.mask_mod(0, T, bench.device), None, None, T, T, device=bench.device)
        for pass_ in ("forward", "forward+backward"):
            calls = {"fixed": steps(data, lambda: Gpu()(fixed), pass_),
                     "flex": steps(data, lambda: attend(*data[:3], block_mask=mask, enable_gqa=True), pass_)}
            yield from compared(bench, calls, {"fixed": ("flex",)},
                                about((B, 8, 2, T, 64), torch.bfloat16) | {"measure": "time", "pass": pass_})


def lengths(bench: Bench) -> list[tuple[int, int]]:
    """T and the batch that makes as many tokens at each."""
    return [(16, 1)] if bench.tiny else [(T, TOKENS // T) for T in (1024, 4096, 16384)]


def subjects(bench: Bench, T: int, B: int) -> tuple[list[torch.Tensor], Call, Call]:
    """q, k, v and the gradient; calls of the paper's pattern with fixed distances and with learned ones, checked already."""
    data = bench.qkv(B, 8, 2, T, 64, torch.bfloat16)
    inputs = [x.requires_grad_() for x in data[:3]]
    alpha = torch.tensor(1.0371, device=bench.device, requires_grad=True)
    fixed, learned = (patterns.build(name, layers=16, heads=8) for name in ("scaled_base", "learned"))
    return data, checked(*inputs, fixed, 0, None, None, None), checked(*inputs, learned, 0, alpha, None, None)


def dense(data: list[torch.Tensor], kernel: str) -> torch.Tensor:
    with sdpa_kernel(getattr(SDPBackend, kernel)):
        return F.scaled_dot_product_attention(*data[:3], is_causal=True, enable_gqa=True)


def fits(bench: Bench, B: int, T: int) -> bool:
    """Whether the masked path's scores `[B, H, T, T]`, several times over with their gradients, fit into memory."""
    return bench.tiny or B * 8 * T * T * 4 * 5 < torch.cuda.mem_get_info()[0]


def steps(data: list[torch.Tensor], forward: Callable[[], torch.Tensor], pass_: str) -> Callable[[], object]:
    def without_gradients() -> torch.Tensor:
        with torch.no_grad():
            return forward()

    def both() -> object:
        return torch.autograd.grad(forward(), data[:3], data[3])
    return without_gradients if pass_ == "forward" else both


def compared(bench: Bench, calls: Calls, against: dict[str, tuple[str, ...]], common: Row) -> Iterator[Row]:
    """Rows of the ratios of times asked for; a call that fails is left out, its rows say why."""
    notes: dict[str, str] = {}
    for name, call in list(calls.items()):
        try:
            call()
            bench.wait()
        except Exception as error:
            notes[name] = first_line(error)
            del calls[name]
    found = interleaved(bench, calls)
    for name, others in against.items():
        for other in others:
            row = {**common, "backend": "gpu", "pattern": name, "against": other}
            if name in found and other in found:
                spread = ratio(found[other], found[name])
                row |= {"ratio": spread.median, "spread": (spread.low, spread.high), "rounds": spread.rounds,
                        "ms": Spread.of(found[name]).median, "against_ms": Spread.of(found[other]).median}
            yield row | {"note": notes.get(name) or notes.get(other) or ("" if other in found else "does not fit into memory")}


def interleaved(bench: Bench, calls: Calls) -> dict[str, list[float]]:
    """Milliseconds of one call by name, a value a round."""
    repeats = {name: 1 if bench.tiny else warmed(call) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    for number in range(0 if not calls else 2 if bench.tiny else ROUNDS):
        if number >= 3 and time.perf_counter() - begin > SECONDS:
            break
        for name in [*list(calls)[number % len(calls):], *list(calls)[:number % len(calls)]]:
            found[name].append(timed(bench, calls[name], repeats[name]))
    return found


def warmed(call: Callable[[], object]) -> int:
    """How often a call is repeated in one measurement: for about 4 ms, at most 20 times."""
    for _ in range(2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
    return max(1, min(20, round(4e-3 / (time.perf_counter() - begin))))


def timed(bench: Bench, call: Callable[[], object], repeats: int) -> float:
    """Milliseconds of one call by the GPU's clock. It first sleeps while the calls are queued, so no launch is waited for."""
    if bench.tiny:
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e3
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000 * repeats)          # clock cycles: about a millisecond a call
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats
