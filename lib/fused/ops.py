"""The model's element-wise parts: RMS norm, SwiGLU, rotation, cross-entropy.

On a CPU these operations are memory-bound, so each is one fused pass with a hand-written backward (in `kernels`).
Each equals the formula in its docstring, value and gradient (tests/test_ops.py). With autocast they return its type and
compute what needs more in float32. They have first derivatives only: a gradient of a gradient is for `torch.func`.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F

from lib.errors import SuiteError, require

try:
    from lib.fused import kernels
except ImportError:         # no numba, which a GPU does not need: the formulas do
    kernels = None

IGNORED = -100      # a target that is not scored


def working_dtype(x: torch.Tensor) -> torch.dtype:
    """The type matrix products have here: autocast's where it is on, else that of `x`."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if kind != "meta" and torch.is_autocast_enabled(kind) else x.dtype


@lru_cache(maxsize=None)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="attention")


if hasattr(os, "register_at_fork"):     # a child process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def over_threads(kernel: Callable[..., None], *arguments: object, tasks: int) -> None:
    """Call `kernel(*arguments, begin, end)` for parts of `range(tasks)`, at once where torch has several threads.

    Kernels release the interpreter's lock, so plain threads do. The pools that come with numba are not safe to call
    from two threads at once, or need a library that is not there everywhere.
    """
    threads = torch.get_num_threads()
    parts = min(threads, tasks)
    (begin, end), *others = ((tasks * part // parts, tasks * (part + 1) // parts) for part in range(parts))
    waiting = [_pool(threads).submit(kernel, *arguments, *other) for other in others]
    kernel(*arguments, begin, end)
    for other in waiting:
        other.result()


def over_rows(kernel: Callable[..., None], *arguments: torch.Tensor | np.ndarray | np.generic) -> None:
    """A kernel over all rows of its first argument, on as many threads as torch has."""
    arguments = tuple(kernels.array(x) if isinstance(x, torch.Tensor) else x for x in arguments)
    over_threads(kernel, *arguments, tasks=-(-len(arguments[0]) // kernels.ROWS))


def rows(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1, x.shape[-1])


def transformed() -> bool:
    """Whether `torch.func` transforms what is computed now, or forward-mode derivatives are taken (dual numbers)."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def in_memory(x: torch.Tensor) -> bool:
    """Whether a tensor has numbers: a meta tensor has none, nor has a fake, a wrapped or an empty one."""
    try:
        return not hasattr(x, "fake_mode") and x.data_ptr() != 0
    except RuntimeError:
        return False


def first_order(out: torch.Tensor) -> torch.Tensor:
    """out, whose backward pass now refuses to be differentiated: torch would take what it reads for constants."""
    def refuse(grads: tuple[torch.Tensor, ...]) -> None:
        if torch.is_grad_enabled() or transformed() or not all(grad is None or in_memory(grad) for grad in grads):
            raise SuiteError("create_graph = True or is_grads_batched = True is not valid: this has first derivatives "
                             "only, one at a time; use torch.func (jacrev, hessian), or attention's 'reference'")
    if out.grad_fn is not None and not torch.compiler.is_compiling():
        out.grad_fn.register_prehook(refuse)
    return out


def fused(x: torch.Tensor) -> bool:
    """Whether `lib.fused.kernels` computes this: numbers on a CPU, but not under `torch.compile`, which fuses by
    itself, nor under transforms, which need torch's own operations."""
    return (not torch.compiler.is_compiling() and kernels is not None and x.device.type == "cpu" and not transformed()
            and in_memory(x) and {x.dtype, working_dtype(x)} <= {*kernels.DTYPES})


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain, eps, dtype):
        x, gain = x.contiguous(), gain.contiguous()
        out, scale = torch.empty_like(x, dtype=dtype), x.new_empty(x.shape[:-1], dtype=torch.float32)
        over_rows(kernels.norm, rows(x), gain, np.float32(eps), rows(out), scale.view(-1))
        ctx.save_for_backward(x, scale, gain)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, scale, gain = ctx.saved_tensors
        d_x, parts = torch.empty_like(x), x.new_zeros(-(-scale.numel() // kernels.ROWS), len(gain), dtype=torch.float32)
        over_rows(kernels.norm_back, rows(grad.contiguous()), rows(x), scale.view(-1), gain, rows(d_x), parts)
        return d_x, parts.sum(0).to(gain.dtype), None, None


def rms_norm(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """`gain * x / sqrt(mean(x ** 2) + eps)` over the last dimension, in `working_dtype` (arxiv.org/abs/1910.07467)."""
    if fused(x):
        return first_order(_RMSNorm.apply(x, gain, eps, working_dtype(x)))
    return F.rms_norm(x, gain.shape, gain, eps).to(working_dtype(x))


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
        over_rows(kernels.swiglu, rows(x), rows(out))
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        d_x = torch.empty_like(x)
        over_rows(kernels.swiglu_back, rows(grad.contiguous()), rows(x), rows(d_x))
        return d_x


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up`, where x `[..., 2F]` is gate beside up: `[..., F]` (arxiv.org/abs/2002.05202)."""
    if fused(x):
        return first_order(_SwiGLU.apply(x))
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def turn_heads(x: torch.Tensor, at: int, out: torch.Tensor, to: int, heads: int, turns: torch.Tensor) -> None:
    """Heads `at`, `at + 1`, ... of x `[B T, .., D]` into those from `to` on of out, turned by `turns` `[T, D / 2]`."""
    over_rows(kernels.turn, kernels.pairs(x), at, kernels.pairs(out), to, heads, turns.resolve_conj())


def _slices(tokens: int, vocab: int, device: torch.device) -> list[slice]:
    """Slices of tokens whose logits stay in a CPU's second cache (2 MiB of float32), or fill a GPU (512 MiB).

    A slice has 128 tokens at least, since each one reads the table and adds to the whole of its gradient.
    """
    rows = max(128, (2 ** 19 if device.type == "cpu" else 2 ** 27) // vocab)
    return [slice(at, at + rows) for at in range(0, tokens, rows)]


class _CrossEntropy(torch.autograd.Function):
    """Logits exist for one slice of tokens at a time, so their gradient is taken while they are there."""

    @staticmethod
    def forward(ctx, hidden, table, targets, dtype):
        low, weights, exact = hidden.to(dtype), table.to(dtype), torch.promote_types(dtype, torch.float32)
        d_hidden, d_table = torch.empty_like(low), torch.zeros_like(table)
        total = torch.zeros((), dtype=exact, device=hidden.device)
        for part in _slices(len(hidden), len(table), hidden.device):
            losses, d_logits = surprise(low[part] @ weights.T, targets[part])          # (n), (n, V)
            total += losses.sum(dtype=torch.float64)
            torch.mm(d_logits, weights, out=d_hidden[part])
            d_table += d_logits.T @ low[part]
        ctx.save_for_backward(d_hidden, d_table)
        ctx.dtype = hidden.dtype
        return total / len(hidden)

    @staticmethod
    def backward(ctx, grad):
        d_hidden, d_table = ctx.saved_tensors
        grad = grad / len(d_hidden)
        return (d_hidden * grad).to(ctx.dtype), d_table * grad, None, None


def surprise(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`-log softmax(logits)[target]` of rows `[n, V]`, float32 or wider, and its gradient, in place of the logits."""
    if fused(logits):
        losses = logits.new_empty(len(logits), dtype=torch.float32)
        over_rows(kernels.surprise, logits, targets, losses)
        return losses, logits
    exact, target = torch.promote_types(logits.dtype, torch.float32), targets[:, None]
    share = logits.softmax(-1, dtype=exact)
    gap = logits.amax(-1, keepdim=True).to(exact) - logits.gather(-1, target).to(exact)
    losses = gap - share.amax(-1, keepdim=True).log()                      # the largest share cannot underflow
    return losses[:, 0], share.scatter_add_(-1, target, share.new_full(target.shape, -1.0)).to(logits.dtype)


def cross_entropy(hidden: torch.Tensor, table: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean `-log softmax(hidden @ table.T)[target]` in nats over the targets that are not -100.

    hidden `[..., d]`, table `[V, d]`, targets `[...]`. Only scored tokens meet the table, and never all at once: the
    logits of 32,768 tokens over a vocabulary of 32,768 are 4 GiB.
    """
    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    if transformed() or len(targets) and not in_memory(targets):        # it cannot be read which of them are scored
        return F.cross_entropy(F.linear(hidden, table), targets, ignore_index=IGNORED)
    scored = targets != IGNORED
    if not scored.all():
        hidden, targets = hidden[scored], targets[scored]
    require(len(targets) > 0, "targets", "all -100", "at least one scored target a batch")
    return first_order(_CrossEntropy.apply(hidden, table, targets, working_dtype(hidden)))


@torch.no_grad()
def token_losses(hidden: torch.Tensor, table: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """`-log softmax(hidden @ table.T)[target]` in nats of each token, float32, shaped as `targets`; NaN at -100."""
    shape, hidden, targets = targets.shape, hidden.flatten(0, -2), targets.flatten()
    known = targets.clamp(min=0)
    losses = [surprise(F.linear(hidden[part], table), known[part])[0].float()
              for part in _slices(len(hidden), len(table), hidden.device)]
    return torch.cat(losses).masked_fill(targets == IGNORED, torch.nan).view(shape)
