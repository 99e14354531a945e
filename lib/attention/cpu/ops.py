"""The kernels as PyTorch operators: opaque to tracing, with derivatives and shapes declared.

An operator takes tensors and numbers only, so the keys are named by the number of their `Rule`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lib.attention.cpu import edges, shifts
from lib.attention.cpu.blocks import BLOCK
from lib.attention.cpu.plans import Edges, Shifts
from lib.attention.cpu.rules import (column_length, remember, row_length,
                                     rule_of)
from lib.attention.cpu.threads import over_threads
from lib.attention.cpu.vectors import WIDTHS, Row
from lib.attention.rows import arithmetic, first_order
from lib.errors import SuiteError

DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
LEAST = min(WIDTHS)             # rows are filled up with zeros to a multiple of it, which changes no product
ROWS = 4096                     # queries whose derivatives are taken from start to end before the next
Optional = Tensor | None
Steps = Callable[[slice, np.ndarray, np.ndarray], list[tuple]]      # of the heads of a slice: kernels, each with its arguments


class Launch:
    """Sizes of a call, and its tensors as the kernels take them."""

    def __init__(self, q: Tensor, k: Tensor, rule: int) -> None:
        self.B, self.H, self.T, self.D = q.shape
        self.G, self.dtype = k.shape[1], arithmetic(q)
        self.rule = rule_of(rule)
        self.row, self.pieces = row_of(-(-self.D // LEAST) * LEAST, q.dtype)
        self.numbers = np.float64 if self.dtype == torch.float64 else np.float32
        self.scale = self.numbers(self.D ** -0.5)
        self.slopes = self.rule.slopes.astype(self.numbers)

    def given(self, *tensors: Tensor) -> tuple[object, ...]:
        """What every kernel is given first."""
        places = np.array([[x.data_ptr(), *(stride * x.element_size() for stride in x.stride()[:3])] for x in tensors])
        return self.row, self.pieces, places, (self.B, self.H, self.G, self.T)

    def in_turn(self, steps: Steps, *shape: int) -> None:
        """Kernels of which each reads what those before it left of the same heads, in two arrays `[heads, *shape]`.

        Some groups of heads at a time, as many as have `ROWS` queries, so that this is still in the cache, and in little
        memory. Where there are fewer groups than threads, kernel by kernel instead.
        """
        groups, size, threads = self.B * self.G, self.H // self.G, torch.get_num_threads()
        if groups < threads:
            whole = self.array(groups * size, *shape), self.array(groups * size, *shape)
            for kernel, *arguments in steps(slice(0, groups * size), *whole):
                over_threads(kernel, *arguments, 0, tasks=groups * self.blocks)
            return
        at_once = min(-(-groups // threads), max(1, ROWS // (size * self.T)))

        def some(begin: int, end: int) -> None:
            left, right = self.array(at_once * size, *shape), self.array(at_once * size, *shape)
            for first in range(begin, end, at_once):
                last = min(first + at_once, end)
                for kernel, *arguments in steps(slice(first * size, last * size), left, right):
                    kernel(*arguments, first * size, first * self.blocks, last * self.blocks)
        over_threads(some, tasks=groups)

    @property
    def blocks(self) -> int:
        return -(-self.T // BLOCK)

    def rows(self, x: Tensor) -> Tensor:
        """x with its rows in succession, filled up; itself where it is so."""
        return F.pad(x, (0, -self.D % LEAST)) if self.D % LEAST else x if x.stride(-1) == 1 else x.contiguous()

    def array(self, *shape: int) -> np.ndarray:
        return torch.empty(shape, dtype=self.dtype).numpy()

    def keys(self, plan: Shifts) -> tuple[object, ...]:
        return plan.shifts, plan.counts, plan.leading, plan.causal

    def rungs(self, plan: Shifts) -> tuple[object, ...]:
        return plan.plain, plan.rungs, plan.fractions.astype(self.numbers)

    def columns(self, saved: np.ndarray, plan: Shifts) -> tuple[np.ndarray, np.ndarray]:
        """P `[B * H, C, Tp]` and far `[B * H, R, Tp]` in what is saved; of no head where nothing is."""
        heads, C, R, Tp = (self.B * self.H if saved.size else 0), plan.columns, len(plan.rungs), column_length(self.T)
        split = heads * C * Tp
        saved[split + heads * R * Tp:] = 0               # rungs that this alpha does not have
        return saved[:split].reshape(heads, C, Tp), saved[split:split + heads * R * Tp].reshape(heads, R, Tp)

    def table(self, saved: np.ndarray, plan: Edges) -> np.ndarray:
        """P `[B * H, T, Cp]`."""
        return saved.reshape(self.B * self.H if saved.size else 0, self.T, row_length(plan.keys.shape[-1]))


def out_like(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """A result shaped as x, and where a kernel writes it: the same, unless rows had to be copied."""
    result = torch.empty_like(x)
    return result, result if result.stride(-1) == 1 and rows.shape == x.shape else torch.empty_like(rows)


def finished(result: Tensor, written: Tensor) -> Tensor:
    return result if result is written else result.copy_(written[..., :result.shape[-1]])


@lru_cache(maxsize=None)
def row_of(D: int, dtype: torch.dtype) -> tuple[Row, int]:
    width = next(width for width in WIDTHS if D % width == 0)
    return Row(width, DTYPES[dtype]), D // width


def number(alpha: Optional) -> float | None:
    return None if alpha is None else float(alpha)


def plain_array(x: Optional) -> np.ndarray | None:
    return None if x is None else x.detach().double().numpy()


@torch.library.custom_op("sparse_attention_suite::cpu", mutates_args=(), device_types="cpu")
def attend(q: Tensor, k: Tensor, v: Tensor, alpha: Optional, bias: Optional, rule: int, keep: bool) -> tuple[Tensor, Tensor]:
    """Attention `[B, H, T, D]`, and where `keep` the numbers that its derivative needs.

    q `[B, H, T, D]`, k and v `[B, G, T, D]`, of one dtype; bias `[H, C]` is added to the logits of the columns.
    """
    call = Launch(q, k, rule)
    plan = call.rule.plan(number(alpha))
    saved = torch.empty(call.rule.saved(call.B) if keep else 0, dtype=call.dtype)
    q_, k_, v_ = (call.rows(x) for x in (q, k, v))
    out, written = out_like(q, q_)
    given, tasks = call.given(q_, k_, v_, written), call.B * call.G * call.blocks
    if isinstance(plan, Edges):
        over_threads(edges.forward, *given, plan.keys, plan.counts, call.scale, call.slopes, keep,
                     call.table(saved.numpy(), plan), tasks=tasks)
    else:
        bias_ = call.rule.bias(plan, number(alpha), plain_array(bias)).astype(call.numbers)
        over_threads(shifts.forward, *given, *call.keys(plan), *call.rungs(plan), call.scale, bias_, call.slopes, keep,
                     *call.columns(saved.numpy(), plan), tasks=tasks)
    return finished(out, written), saved


@attend.register_fake
def _(q, k, v, alpha, bias, rule, keep):
    return torch.empty_like(q), q.new_empty(rule_of(rule).saved(q.shape[0]) if keep else 0, dtype=arithmetic(q))


@torch.library.custom_op("sparse_attention_suite::cpu_backward", mutates_args=(), device_types="cpu")
def attend_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Optional, bias: Optional, saved: Tensor,
                    rule: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Derivatives by q, k, v, alpha and bias; of no number by one that is None."""
    call = Launch(q, k, rule)
    plan = call.rule.plan(number(alpha))
    q_, k_, v_, dout_ = (call.rows(x) for x in (q, k, v, dout.to(q.dtype)))
    (dq, dq_), (dk, dk_), (dv, dv_) = out_like(q, q_), out_like(k, k_), out_like(v, v_)
    for_queries, dbias, dt = call.given(q_, k_, v_, dout_, dq_), None, None
    if isinstance(plan, Edges):
        P = call.table(saved.numpy(), plan)
        for_keys = call.given(q_, dout_, dk_, dv_)
        call.in_turn(lambda heads, dS, _: [
            (edges.backward, *for_queries, plan.keys, plan.counts, call.scale, P, dS),
            (edges.pull, *for_keys, plan.starts, plan.queries, plan.slots, P, dS)], *P.shape[1:])
    else:
        P, far = call.columns(saved.numpy(), plan)
        heads, C, Tp = P.shape
        R, keys, rungs = len(plan.rungs), call.keys(plan), call.rungs(plan)
        wanted = bias is not None or (R > 0 and call.rule.slopes.any())
        dbias, dt = np.zeros((heads, call.blocks, C if wanted else 0), call.numbers), np.zeros((heads, call.blocks, R))
        for_values, for_keys = call.given(dout_, dv_), call.given(q_, dk_)
        call.in_turn(lambda heads, dS, W: [
            (shifts.backward, *for_queries, *keys, *rungs, call.scale, P, far, dS, W, dbias, dt),
            (shifts.pull, *for_values, *keys, W if R else P[heads]),
            (shifts.pull, *for_keys, *keys, dS)], plan.shifts.shape[1] + plan.most_leading, Tp)
    return (finished(dq, dq_), finished(dk, dk_), finished(dv, dv_), by_alpha(call, plan, alpha, dbias, dt),
            by_bias(call, bias, dbias))


def by_alpha(call: Launch, plan: Shifts | Edges, alpha: Optional, dbias: np.ndarray | None,
             dt: np.ndarray | None) -> Tensor:
    """A rung's fraction grows with alpha by its base distance, and so does ALiBi's distance."""
    if alpha is None:
        return torch.empty(0)
    total = dt.sum((0, 1)) @ plan.base
    if dbias.shape[2]:
        by_head = dbias[:, :, plan.plain:].sum(1, dtype=np.float64).reshape(call.B, call.H, -1).sum(0)      # (H, R)
        total -= call.rule.slopes @ by_head @ plan.base
    return torch.tensor(total, dtype=alpha.dtype)


def by_bias(call: Launch, bias: Optional, dbias: np.ndarray | None) -> Tensor:
    if bias is None:
        return torch.empty(0)
    by_head = dbias.sum(1, dtype=np.float64).reshape(call.B, call.H, -1).sum(0)                            # (H, C)
    found = torch.zeros_like(bias)
    found[:, :by_head.shape[1]] = torch.from_numpy(by_head)
    return found


@attend_backward.register_fake
def _(dout, q, k, v, alpha, bias, saved, rule):
    return (*(torch.empty_like(x) for x in (q, k, v)),
            *(torch.empty(0, device=q.device) if x is None else torch.empty_like(x) for x in (alpha, bias)))


def _keep(ctx, inputs, output):
    q, k, v, alpha, bias, ctx.number, keep = inputs
    ctx.rule = rule_of(ctx.number)
    ctx.save_for_backward(q, k, v, alpha, bias, output[1])
    ctx.set_materialize_grads(True)


@first_order
def _backward(ctx, dout, _):
    q, k, v, alpha, bias, saved = ctx.saved_tensors
    remember(ctx.rule)
    dq, dk, dv, dalpha, dbias = attend_backward(dout, q, k, v, alpha, bias, saved, ctx.number)
    return dq, dk, dv, None if alpha is None else dalpha, None if bias is None else dbias, None, None


attend.register_autograd(_backward, setup_context=_keep)


@attend.register_vmap
def _(info, in_dims, *arguments):
    raise SuiteError("vmap is not valid over sparse_attention: put the dimension into the batch, q, k, v [batch, heads, T, D]")
