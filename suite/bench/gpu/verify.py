"""Part 1: are the numbers right?"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from lib import patterns
from lib.attention import gpu, reference
from lib.attention.call import checked
from lib.patterns import EdgeTable, Keys, Offsets, Pattern
from suite.bench.rows import Row

# Limits of the error of the output, of gradients, and of those of alpha and span, long sums with terms of both signs.
# Float32: roundings of sums of up to 300 terms; bfloat16: the output, weights and their gradients are rounded to 8 bits
# each, and gradients once more.
ROUNDING = {torch.bfloat16: (2 ** -7, 2 ** -6, 2 ** -5), torch.float32: (2 ** -15, 2 ** -15, 2 ** -15)}


def verify(tiny: bool) -> Iterator[Row]:
    for name, keys, shape, alibi, learned in cases(tiny):
        B, H, G, T, D = shape
        for dtype in ROUNDING:
            row = partial(Row, "error", "gpu", "reference", length=T, pattern=name, heads=f"{B} x {H}, {G}", head_dim=D,
                          dtype=str(dtype).removeprefix("torch."))
            try:
                yield from (row(**error) for error in errors(tiny, keys, shape, dtype, alibi, learned))
            except Exception as error:      # the next form may still be right
                told = (str(error).strip().splitlines() or [""])[0][:300]
                yield row(pass_="all", ok=False, note=f"{type(error).__name__}: {told}")


def cases(tiny: bool) -> Iterator[tuple[str, Pattern | Keys, tuple[int, ...], bool, dict[str, float]]]:
    """Every form of keys: name, keys, (B, H, G, T, D), whether with ALiBi, and what is learned."""
    layers, H, G, T, D = (2, 2, 1, 19, 8) if tiny else (4, 8, 2, 1031, 64)
    size, shape, short = {"layers": layers, "heads": H}, (2, H, G, T, D), (2, H, G, 259, D)
    yield "fixed", patterns.build("scaled_base", window=12, **size), shape, False, {}
    yield "learned", patterns.build("learned", window=2, **size), shape, True, {"alpha": 1.2137}
    yield "table", patterns.build("power_law", window=4, budget=10, **size), shape, False, {}
    if tiny:
        return
    yield "fixed, ALiBi", patterns.build("scaled_base", window=1, **size), (1, H, G, 1024, D), True, {}
    yield "both ways", patterns.build("scaled_base", window=5, causal=False, **size), shape, True, {}
    yield "leading keys", patterns.build("streaming_sinks", **size), shape, False, {}
    ways = Offsets((-300, -2, 0, 1, 2, 3, 4, 77), leading=3, causal=False)
    yield "leading keys, both ways", ways, short, True, {}
    yield "by head", patterns.build("mswa", **size), shape, True, {}
    yield "wide window", patterns.build("local", window=300, **size), shape, False, {}
    yield "soft span", patterns.build("adaptive_span", **size), shape, True, {"span": 11.3}
    yield "learned at 1", patterns.build("learned", **size), shape, False, {"alpha": 1.0}
    random = np.random.default_rng(0)           # 1 to 40 random keys a query and head, past and future
    table = np.full((H, 259, 40), -1, np.int32)
    for row in table.reshape(-1, 40):
        chosen = random.choice(259, random.integers(1, 41), replace=False)
        row[:len(chosen)] = np.sort(chosen)
    yield "table by head", EdgeTable(table), short, True, {}
    for heads, D in (((8, 8), 64), ((6, 2), 80), ((8, 1), 128), ((4, 2), 256)):
        yield f"{heads[0]} over {heads[1]} heads", Offsets((*range(9), 13, 34, 200), 1), (1, *heads, 517, D), False, {}


def errors(tiny: bool, keys: Pattern | Keys, shape: tuple[int, ...], dtype: torch.dtype, alibi: bool,
           learned: dict[str, float]) -> Iterator[dict[str, Any]]:
    """What a row says of the output, and of each gradient. Tensors lie as in a model: heads between tokens."""
    (B, H, G, T, D), device = shape, "cpu" if tiny else "cuda"
    random = torch.Generator(device).manual_seed(0)
    whole = torch.randn(B, T, 2 * H + 2 * G, D, generator=random, device=device).to(dtype)
    *data, dout = (x.transpose(1, 2) for x in whole.split([H, G, G, H], dim=2))
    slopes = 2.0 ** -(1 + torch.arange(H, device=device)) if alibi else None
    found, expected = [], []
    for results, backend, kind in ((expected, reference, torch.float64), (found, gpu, dtype)):
        inputs = [x.detach().to(kind).requires_grad_() for x in data]
        given = {name: torch.full(() if name == "alpha" else (H,), value, device=device, requires_grad=True)
                 for name, value in learned.items()}
        out = backend.attend(checked(*inputs, keys, 0, given.get("alpha"), given.get("span"), slopes))
        results += [out.detach(), *torch.autograd.grad(out, [*inputs, *given.values()], dout.to(kind))]
    for name, a, b in zip(("out", "dq", "dk", "dv", "dlearned"), found, expected, strict=False):
        error = float((a.double() - b.double()).abs().max() / b.abs().max().clamp(min=1))
        limit = ROUNDING[dtype][{"out": 0, "dlearned": 2}.get(name, 1)]
        finite = math.isfinite(error)
        yield {"pass_": name, "ratio": error if finite else None, "limit": limit, "ok": finite and error <= limit,
               "note": "" if finite else "not a number"}
