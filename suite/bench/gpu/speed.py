"""Parts 2 and 3: how fast is attention?

Calls are timed by the GPU's clock, back to back, interleaved with what they are compared with. They are checked
beforehand: what `sparse_attention` does around them (and its wait for a learned alpha) is in the steps of part 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from lib import patterns
from lib.attention.call import Call, checked
from lib.attention.gpu import Gpu
from lib.attention.masked import Masked
from suite.bench.counting import PASSES
from suite.bench.gpu import Bench, about, first_line
from suite.bench.rows import Row
from suite.bench.timing import Spread, by_clock, interleaved, ratio

TOKENS = 32_768
ROUNDS, SECONDS = 15, 4.0       # of one comparison

Calls = dict[str, Callable[[], object]]


def time_attention(bench: Bench) -> Iterator[Row]:
    for T, B in lengths(bench):
        data, fixed, learned = subjects(bench, T, B)
        forwards = {"fixed": lambda: Gpu()(fixed), "learned": lambda: Gpu()(learned),
                    "sdpa": lambda: dense(data, "FLASH_ATTENTION"), "cudnn": lambda: dense(data, "CUDNN_ATTENTION")}
        if fits(bench, B, T):
            forwards["masked"] = lambda: Masked()(fixed)
        yield from both_passes(bench, (B, 8, 2, T, 64), data, forwards,
                               {"fixed": ("sdpa", "cudnn", "masked"), "learned": ("sdpa", "fixed")})


def time_flex(bench: Bench) -> Iterator[Row]:
    attend = flex_attention if bench.tiny else torch.compile(flex_attention, dynamic=False)
    for T, B in lengths(bench):
        data, fixed, _ = subjects(bench, T, B)
        mask = create_block_mask(fixed.pattern.mask_mod(0, T, bench.device), None, None, T, T, device=bench.device)
        forwards = {"fixed": lambda: Gpu()(fixed),
                    "flex": lambda: attend(*data[:3], block_mask=mask, enable_gqa=True)}
        yield from both_passes(bench, (B, 8, 2, T, 64), data, forwards, {"fixed": ("flex",)})


def lengths(bench: Bench) -> list[tuple[int, int]]:
    """T and the batch that makes as many tokens at each."""
    return [(16, 1)] if bench.tiny else [(T, TOKENS // T) for T in (1024, 4096, 16384)]


def subjects(bench: Bench, T: int, B: int) -> tuple[list[torch.Tensor], Call, Call]:
    """q, k, v and the gradient; calls of the paper's pattern with fixed and with learned distances, checked already."""
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


def both_passes(bench: Bench, shape: tuple[int, ...], data: list[torch.Tensor],
                forwards: dict[str, Callable[[], torch.Tensor]], against: dict[str, tuple[str, ...]]) -> Iterator[Row]:
    for pass_ in PASSES:
        calls = {name: call_of(data, forward, pass_) for name, forward in forwards.items()}
        yield from compared(bench, calls, against, about(shape, torch.bfloat16) | {"pass_": pass_})


def call_of(data: list[torch.Tensor], forward: Callable[[], torch.Tensor], pass_: str) -> Callable[[], object]:
    if pass_ == "forward":
        return torch.no_grad()(forward)
    return lambda: torch.autograd.grad(forward(), data[:3], data[3])


def compared(bench: Bench, calls: Calls, against: dict[str, tuple[str, ...]], common: dict[str, Any]) -> Iterator[Row]:
    """Rows of the ratios of times asked for; a call that fails is left out, its rows say why."""
    notes: dict[str, str] = {}
    for name, call in list(calls.items()):
        try:
            call()
            bench.wait()
        except Exception as error:
            notes[name] = first_line(error)
            del calls[name]
    timed = by_clock() if bench.tiny else by_events
    samples = interleaved(calls, rounds=1 if bench.tiny else ROUNDS, seconds=SECONDS, timed=timed)
    for name, others in against.items():
        for other in others:
            row: dict[str, Any] = {"pattern": name, **common}
            if name in samples and other in samples:
                spread = ratio(samples[other], samples[name])
                ms, against_ms = (1e3 * Spread.of(samples[one]).median for one in (name, other))
                row |= {"ratio": spread.median, "spread": (spread.low, spread.high), "rounds": spread.rounds, "ms": ms,
                        "against_ms": against_ms}
            missing = "" if other in samples else "does not fit into memory"
            yield Row("time", "gpu", other, note=notes.get(name) or notes.get(other) or missing, **row)


def by_events(call: Callable[[], object], repeats: int) -> float:
    """Seconds of one call by the GPU's clock. The GPU sleeps while the calls are queued, so it waits for no launch."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000 * repeats)          # clock cycles: about a millisecond a call
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats / 1e3
