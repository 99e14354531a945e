"""Attention over the keys that a pattern names: one function, several backends that never import one another."""

from __future__ import annotations

from typing import Protocol

import torch

from lib.attention import torch_edges, torch_learned, torch_offsets
from lib.attention.call import Call, checked
from lib.attention.cpu import Cpu
from lib.attention.dense import Masked, dense_kind
from lib.attention.reference import Reference
from lib.errors import SuiteError, one_of
from lib.patterns.base import EdgeTable, HeadOffsets, Keys, LearnedOffsets, Pattern, SoftWindow

__all__ = ["BACKENDS", "Backend", "Call", "choose", "sparse_attention"]


class Backend(Protocol):
    """One implementation of the whole function.

    `missing` says what this machine lacks for it and how to get that; empty: nothing. `supports` says whether it can do a
    call, values and gradients, where nothing is missing; calling it does it.
    """

    def missing(self) -> str: ...

    def supports(self, call: Call) -> bool: ...

    def __call__(self, call: Call) -> torch.Tensor: ...


class Torch:
    """Backend `torch`: only the listed pairs, backward written by hand; any pattern, any device."""

    def missing(self) -> str:
        return ""

    def supports(self, call: Call) -> bool:
        return True

    def __call__(self, call: Call) -> torch.Tensor:
        match call.keys:
            case LearnedOffsets():
                return torch_learned.attend(call)
            case EdgeTable():
                return torch_edges.attend(call)
        return torch_offsets.attend(call)


# A compiled backend (numba on a CPU, triton on a GPU) is one more entry here, and one more line in `choose`.
BACKENDS: dict[str, Backend] = {"reference": Reference(), "masked": Masked(), "torch": Torch(), "cpu": Cpu()}

FEW_PAIRS = 2**17      # B * H * T^2 below which a mask wins whatever the number of keys
MASK_LENGTH = 8192     # the longest T for which an accelerator gets a mask: 64 MiB a head


def choose(call: Call) -> str:
    """What `auto` means for this call.

    Measured with one thread, forward and backward, float32 and bfloat16: at C = T/2 keys `torch` and `masked` take the same
    time for T = 64, 128, 256 and 1024 (ratios 0.98, 1.00, 1.0, 1.04), at C = T/8 `torch` takes 0.1 to 0.7 of it; below
    `FEW_PAIRS` the dozen small operations of `torch` cost more than a whole `[T, T]` product (1.5 times at B*H = 4, T = 64).
    Accelerators have not been measured: a mask as long as it is small.
    """
    B, H, G, T, D = call.shape
    if not BACKENDS["masked"].supports(call):
        return "torch"
    if dense_kind(call) and call.slopes is None:
        return "masked"
    if call.q.device.type != "cpu":
        return "masked" if T <= MASK_LENGTH else "torch"
    return "masked" if B * H * T * T < FEW_PAIRS or 2 * _columns(call.keys) > T else "torch"


def _columns(keys: Keys) -> int:
    """C, keys of a query that has all of them."""
    match keys:
        case HeadOffsets():
            return max(_columns(offsets) for offsets in keys.heads)
        case EdgeTable():
            return keys.keys.shape[-1]
        case SoftWindow():
            return keys.window + 1
    return len(keys.distances) + keys.leading


def sparse_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pattern: Pattern | Keys, layer: int = 0, *,
                     alpha: torch.Tensor | None = None, span: torch.Tensor | None = None, slopes: torch.Tensor | None = None,
                     backend: str = "auto") -> torch.Tensor:
    """`softmax(q.k / sqrt(D)) v` over the keys of `pattern` in `layer`: `[B, H, T, D]`, in the dtype of q or of autocast.

    q `[B, H, T, D]`; k and v `[B, G, T, D]`, G divides H: query head h uses key/value head `h // (H // G)`.
    pattern: a `Pattern`, or keys in one of the forms of `lib.patterns.base` (an edge table of one's own, for instance).
    alpha: 0-dim, for LearnedOffsets. span: `[H]`, for SoftWindow. Both may require a gradient.
    slopes: `[H]`, ALiBi (arXiv 2108.12409): the bias `-slope * |i - j|`, a learned rung's real distance included.
    backend: `auto` (the fastest measured, see `choose`), `reference`, `masked` or `torch`.
    A `SuiteError` names what does not fit: shapes, a missing alpha, a backend that cannot do it, a query without any key.
    Of `torch` there are first derivatives only: `create_graph=True` is refused.
    """
    call = checked(q, k, v, pattern, layer, alpha, span, slopes)
    name = choose(call) if one_of(backend, [*BACKENDS, "auto"], "backend") == "auto" else backend
    if BACKENDS[name].missing():
        raise SuiteError(f"backend {name!r} is not available: {BACKENDS[name].missing()}")
    if not BACKENDS[name].supports(call):
        able = [other for other, one in BACKENDS.items() if not one.missing() and one.supports(call)]
        raise SuiteError(f"backend {name!r} cannot do {type(call.keys).__name__}; use one of: auto, {', '.join(able)}")
    return BACKENDS[name](call)
