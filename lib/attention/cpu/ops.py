"""The kernels as a function of torch with a derivative: memory, sizes and threads of a call."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lib.attention.call import Call, arithmetic, cached, first_order
from lib.attention.cpu import edges, shifts
from lib.attention.cpu.blocks import BLOCK
from lib.attention.cpu.plans import Edges, Shifts, build
from lib.attention.cpu.vectors import WIDTHS, Row
from lib.attention.keys import span_bias
from lib.errors import SuiteError
from lib.fused.threads import over_threads

DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
LEAST = min(WIDTHS)             # rows are filled up with zeros to a multiple of it, which changes no product
ROWS = 4096                     # queries whose derivatives are taken from start to end before the next
Steps = Callable[[slice, np.ndarray, np.ndarray], list[tuple]]      # kernels and arguments for a slice of the heads


def attend(call: Call) -> Tensor:
    """Attention `[B, H, T, D]` of a call, whose tensors are cast to its dtype first."""
    q, k, v = (x.to(call.out_dtype) for x in (call.q, call.k, call.v))
    H, T = q.shape[1:3]
    plan = cached(("cpu", call.identity), lambda: build(call), stale=lambda plan: plan.alpha != call.alpha_value)
    bias = None
    if call.span is not None:
        bias = span_bias(call.span.to(arithmetic(q)), call.keys.ramp, min(call.keys.window, T - 1) + 1)
    slopes = np.zeros(H) if call.slopes is None else call.slopes.detach().double().cpu().numpy()
    learning = any(x is not None and x.requires_grad for x in (q, k, v, call.alpha, bias))
    return Attention.apply(q, k, v, call.alpha, bias, plan, slopes, learning and torch.is_grad_enabled())[0]


class Attention(torch.autograd.Function):
    """Attention `[B, H, T, D]` of q `[B, H, T, D]`, k and v `[B, G, T, D]`, all of one dtype.

    alpha (0-dim) is there for its derivative: the plan knows its value. bias `[H, C]` is added to the logits of the
    columns; slopes `[H]` are ALiBi's. The other results are what the derivative needs, empty unless `keep`: weights P,
    and for rungs the difference of the products with their two keys.
    """

    @staticmethod
    def forward(q, k, v, alpha, bias, plan, slopes, keep):
        call = Launch(q, k, slopes)
        q_, k_, v_ = map(call.rows, (q, k, v))
        out, written = out_like(q, q_)
        given, heads = call.given(q_, k_, v_, written), call.B * call.H if keep else 0
        if isinstance(plan, Edges):
            P, far = call.empty(heads, call.T, row_length(plan.keys.shape[-1])), call.empty(0)
            call.in_tasks(edges.forward, *given, plan.keys, plan.counts, call.scale, call.slopes, keep, P.numpy())
        else:
            P, far = (call.empty(heads, rows, column_length(call.T)) for rows in (plan.columns, len(plan.rungs)))
            to_logits = plan.bias(slopes, None if bias is None else bias.detach().double().numpy()).astype(call.numbers)
            call.in_tasks(shifts.forward, *given, *call.keys(plan), call.scale, to_logits, call.slopes, keep,
                          P.numpy(), far.numpy())
        return finished(out, written), P, far

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, alpha, bias, ctx.plan, ctx.slopes, _ = inputs
        ctx.save_for_backward(q, k, v, alpha, bias, *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)            # zeros for P and far would cost a pass over their memory

    @staticmethod
    @first_order
    def backward(ctx, dout, *_):
        if dout is None:
            return (None,) * 8
        q, k, v, alpha, bias, P, far = ctx.saved_tensors
        call, plan, P = Launch(q, k, ctx.slopes), ctx.plan, P.numpy()
        q_, k_, v_, dout_ = map(call.rows, (q, k, v, dout.to(q.dtype)))
        (dq, dq_), (dk, dk_), (dv, dv_) = out_like(q, q_), out_like(k, k_), out_like(v, v_)
        for_queries, dalpha, dbias = call.given(q_, k_, v_, dout_, dq_), None, None
        if isinstance(plan, Edges):
            for_keys = call.given(q_, dout_, dk_, dv_)
            call.in_turn(lambda heads, dS, _: [
                (edges.backward, *for_queries, plan.keys, plan.counts, call.scale, P, dS),
                (edges.pull, *for_keys, plan.starts, plan.queries, plan.slots, P, dS)], *P.shape[1:])
        else:
            keys, R = call.keys(plan), len(plan.rungs)
            wanted = bias is not None or (R > 0 and ctx.slopes.any())
            by_logit = np.zeros((len(P), call.blocks, plan.columns if wanted else 0), call.numbers)
            by_fraction = np.zeros((len(P), call.blocks, R))
            for_values, for_keys = call.given(dout_, dv_), call.given(q_, dk_)
            call.in_turn(lambda heads, dS, W: [
                (shifts.backward, *for_queries, *keys, call.scale, P, far.numpy(), dS, W, by_logit, by_fraction),
                (shifts.pull, *for_values, *keys[:4], W if R else P[heads]),
                (shifts.pull, *for_keys, *keys[:4], dS)], plan.products, P.shape[2])
            by_head = by_logit.sum(1, dtype=np.float64)
            by_head = by_head.reshape(call.B, call.H, by_logit.shape[2]).sum(0)                         # (H, C or 0)
            if alpha is not None:           # d fraction / d alpha is the base distance; so is d distance / d alpha
                total = by_fraction.sum((0, 1)) @ plan.base
                if wanted:
                    total -= ctx.slopes @ by_head[:, plan.plain:] @ plan.base
                dalpha = torch.tensor(total, dtype=alpha.dtype)
            dbias = None if bias is None else torch.from_numpy(by_head).to(bias.dtype)
        return finished(dq, dq_), finished(dk, dk_), finished(dv, dv_), dalpha, dbias, None, None, None

    @staticmethod
    def vmap(info, in_dims, *arguments):
        raise SuiteError("vmap is not valid over sparse_attention: put the dimension into the batch, "
                         "q, k, v [batch, heads, T, D]")


class Launch:
    """Sizes of a call, and its tensors as the kernels take them."""

    def __init__(self, q: Tensor, k: Tensor, slopes: np.ndarray) -> None:
        self.B, self.H, self.T, self.D = q.shape
        self.G, self.blocks, self.dtype = k.shape[1], -(-self.T // BLOCK), arithmetic(q)
        self.row, self.pieces = row_of(-(-self.D // LEAST) * LEAST, q.dtype)
        self.numbers = np.float64 if self.dtype == torch.float64 else np.float32
        self.scale, self.slopes = self.numbers(self.D ** -0.5), slopes.astype(self.numbers)

    def given(self, *tensors: Tensor) -> tuple[object, ...]:
        """What every kernel is given first."""
        places = np.array([[x.data_ptr(), *(step * x.element_size() for step in x.stride()[:3])] for x in tensors])
        return self.row, self.pieces, places, (self.B, self.H, self.G, self.T)

    def keys(self, plan: Shifts) -> tuple[object, ...]:
        return (plan.shifts, plan.counts, plan.leading, plan.causal, plan.plain, plan.rungs,
                plan.fractions.astype(self.numbers))

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype)

    def rows(self, x: Tensor) -> Tensor:
        """x with each row's numbers side by side, filled up to `LEAST`; x itself where they lie so already."""
        if self.D % LEAST:
            return F.pad(x, (0, -self.D % LEAST))
        return x if x.stride(-1) == 1 else x.contiguous()

    def in_tasks(self, kernel: Callable[..., None], *arguments: object) -> None:
        """A kernel over all blocks of all key/value heads."""
        over_threads(kernel, *arguments, tasks=self.B * self.G * self.blocks)

    def in_turn(self, steps: Steps, *shape: int) -> None:
        """Kernels of which each reads what those before it left of the same heads, in two arrays `[heads, *shape]`.

        Some groups of heads at a time, as many as have `ROWS` queries, so that this is still in the cache, and in
        little memory. Where there are fewer groups than threads, kernel by kernel instead.
        """
        groups, size, threads = self.B * self.G, self.H // self.G, torch.get_num_threads()
        if groups < threads:
            whole = (self.empty(groups * size, *shape).numpy() for _ in range(2))
            for kernel, *arguments in steps(slice(0, groups * size), *whole):
                self.in_tasks(kernel, *arguments, 0)
            return
        at_once = min(-(-groups // threads), max(1, ROWS // (size * self.T)))

        def some(begin: int, end: int) -> None:
            left, right = (self.empty(at_once * size, *shape).numpy() for _ in range(2))
            for first in range(begin, end, at_once):
                last = min(first + at_once, end)
                for kernel, *arguments in steps(slice(first * size, last * size), left, right):
                    kernel(*arguments, first * size, first * self.blocks, last * self.blocks)
        over_threads(some, tasks=groups)


def out_like(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """A result shaped as x, and where a kernel writes it: the same, unless rows had to be copied."""
    result = torch.empty_like(x)
    return result, result if result.stride(-1) == 1 and rows.shape == x.shape else torch.empty_like(rows)


def finished(result: Tensor, written: Tensor) -> Tensor:
    return result if result is written else result.copy_(written[..., :result.shape[-1]])


@lru_cache(maxsize=None)
def row_of(D: int, dtype: torch.dtype) -> tuple[Row, int]:
    """How a row of D numbers lies in memory, and its number of pieces."""
    width = next(width for width in WIDTHS if D % width == 0)
    return Row(width, DTYPES[dtype]), D // width


def column_length(T: int) -> int:
    """Numbers from column to column: an odd number of cache lines, so that columns do not compete for one place."""
    return (-(-T // 16) | 1) * 16


def row_length(C: int) -> int:
    """Numbers from query to query of an edge table's weights: whole cache lines."""
    return -(-C // 16) * 16
