"""Attention over the keys that a pattern names: one function, several backends that never import one another.

Read next: `call` (what a backend is given), `reference` (what is correct), `masked` (SDPA with a mask). Then the three
that touch only the pairs of the pattern: `pytorch` (plain torch; the shortest), `cpu` (numba, what training uses on a
CPU) and `gpu` (Triton). The forms that keys take are in `lib.patterns.base`.
"""

import warnings

import torch

from lib.attention import cpu, gpu, masked, pytorch, reference
from lib.attention.call import Backend, Call, checked, plain
from lib.errors import SuiteError, one_of, require
from lib.fused.ops import first_order, in_memory, transformed
from lib.patterns.base import EdgeTable, Keys, Pattern, offsets_by_head

BACKENDS = {"reference": Backend(reference.attend), "masked": Backend(masked.attend, masked.supports),
            "torch": Backend(pytorch.attend), "cpu": Backend(cpu.attend, cpu.supports, cpu.missing),
            "gpu": Backend(gpu.attend, gpu.supports, gpu.missing)}

FEW_PAIRS = {"cpu": 2**15, "torch": 2**17}     # B * H * T^2 below which a mask wins whatever the number of keys
MASK_LENGTH = 8192                             # the longest T for which an accelerator gets a mask: 64 MiB a head


def choose(call: Call) -> str:
    """The name of the backend that `auto` means for this call.

    On a CPU, measured with one thread, forward and backward: the call itself costs `cpu` 0.25 ms, in which SDPA with a
    mask does 4 heads of T = 64 in float32; `cpu` takes 0.7 of SDPA's time at T = 128, 0.2 at T = 256, and as much as
    SDPA where every query attends every key. In bfloat16 SDPA is slower from T = 16 on. Without numba it is `torch`,
    which costs as much as a mask at C = T/2 keys, and 1.5 times as much below `FEW_PAIRS`. Dense patterns need no mask,
    and SDPA halves the work of causal ones. Accelerators have not been measured.
    """
    B, H, G, T, D = call.shape
    if masked.dense_kind(call) or not in_memory(call.q):
        return "masked"
    kernels = "gpu" if call.q.device.type == "cuda" else "cpu"
    missing = BACKENDS[kernels].missing()
    if missing:
        warnings.warn(f"attention without its fast backend {kernels!r}: {missing}", stacklevel=4)
    if missing or not BACKENDS[kernels].supports(call):
        kernels = "torch"
    if not BACKENDS["masked"].supports(call):
        return kernels
    if kernels == "torch" and call.q.device.type != "cpu":
        return "masked" if T <= MASK_LENGTH else "torch"
    few = kernels in FEW_PAIRS and B * H * T * T < FEW_PAIRS[kernels]
    if kernels == "torch":      # C, keys of a query that has all of them
        C = (call.keys.keys.shape[-1] if isinstance(call.keys, EdgeTable)
             else max(len(offsets.distances) + offsets.leading for offsets in offsets_by_head(call.keys)))
        return "masked" if few or 2 * C > T else "torch"
    return "masked" if few and call.out_dtype != torch.bfloat16 else kernels


@torch.compiler.disable(reason="plans of attention are built in Python and numpy: compile without fullgraph")
def sparse_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pattern: Pattern | Keys, layer: int = 0, *,
                     alpha: torch.Tensor | None = None, span: torch.Tensor | None = None,
                     slopes: torch.Tensor | None = None, backend: str = "auto") -> torch.Tensor:
    """`softmax(q.k / sqrt(D)) v` over the keys of `pattern` in `layer`: `[B, H, T, D]`, in q's or autocast's dtype.

    q `[B, H, T, D]`; k and v `[B, G, T, D]`, G divides H: query head h uses key/value head `h // (H // G)`.
    pattern: a `Pattern`, or keys in one of the forms of `lib.patterns.base` (an edge table of your own, for instance).
    alpha: 0-dim, for LearnedOffsets. span: `[H]`, in tokens, for SoftWindow. Both may require a gradient.
    slopes: `[H]`, ALiBi (arXiv 2108.12409): the bias `-slope * |i - j|`, with the real distance of a learned rung.
    backend: `auto` (the fastest measured, see `choose`), `cpu` (numba), `gpu` (Triton), `torch`, `masked` or
    `reference`. Errors: a `SuiteError` names what does not fit: shapes, a missing alpha, a backend that is absent or
    cannot do the call, a query without any key. All but `reference` have first derivatives only: they refuse
    `create_graph=True`. Under transforms (`torch.func`, dual numbers) `reference` computes, whatever the backend; meta
    and fake tensors, as of `torch.export`, are for `masked`.
    """
    if torch.jit.is_tracing():
        raise SuiteError("torch.jit.trace cannot record attention, whose plans are built in Python: use torch.export")
    given = {"q": q, "k": k, "v": v, "alpha": alpha, "span": span, "slopes": slopes}
    call = checked(pattern=pattern, layer=layer, **{name: plain(name, x) for name, x in given.items()})
    name = choose(call) if one_of(backend, [*BACKENDS, "auto"], "backend") == "auto" else backend
    name = "reference" if transformed() else name
    real = transformed() or in_memory(call.q)
    require(real or name == "masked" and masked.supports(call), "backend", name, "masked for a meta or fake tensor")
    if BACKENDS[name].missing():
        raise SuiteError(f"backend {name!r} is not available: {BACKENDS[name].missing()}")
    if not BACKENDS[name].supports(call):
        able = [other for other, one in BACKENDS.items() if not one.missing() and one.supports(call)]
        what = f"{type(call.keys).__name__} in {call.out_dtype} on {call.q.device}"
        raise SuiteError(f"backend {name!r} cannot do {what}; use one of: auto, {', '.join(able)}")
    out = BACKENDS[name].attend(call)
    return first_order(out) if real and name != "reference" else out
