"""The kernels as a function of torch with a derivative: plans of keys, memory and threads of a call."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lib.attention.call import Call, arithmetic, by_key, cached, checked_table, distances_at, in_rows, span_bias
from lib.attention.cpu import edges, shifts
from lib.attention.cpu.vectors import BLOCK, WIDTHS, RowType
from lib.fused.ops import over_threads
from lib.patterns.base import EdgeTable, LearnedOffsets, offsets_by_head

DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
LEAST = min(WIDTHS)             # rows are filled up with zeros to a multiple of it, which changes no product
ROWS = 4096                     # queries whose derivatives are taken from start to end before the next
Steps = Callable[[slice, np.ndarray, np.ndarray], list[tuple]]      # kernels and arguments for a slice of the heads


class Shifts(NamedTuple):
    """Keys at distances, as the kernels of `lib.attention.cpu.shifts` take them."""
    shifts: np.ndarray              # int32 [H or 1, N]
    counts: np.ndarray              # int64 [H or 1]
    leading: np.ndarray             # int64 [H or 1]
    causal: bool
    plain: int
    rungs: np.ndarray               # int32 [R, 2]


class Edges(NamedTuple):
    """Keys of every query, and the transpose, as the kernels of `lib.attention.cpu.edges` take them."""
    keys: np.ndarray                # int32 [H or 1, T, C]
    counts: np.ndarray              # int32 [H or 1, T]
    starts: np.ndarray              # int64 [T or H T, + 1], where the edges of a key begin
    queries: np.ndarray             # int32 [E], by edge
    slots: np.ndarray               # int32 [E]


def build(call: Call) -> Shifts | Edges:
    """The plan of a call: what the kernels need to know of its keys, as arrays."""
    T, heads = call.q.shape[2], offsets_by_head(call.keys, rungs=False)
    if isinstance(call.keys, EdgeTable):
        return _edges(call.keys, T)
    distances, plain = [distances_at(offsets, T) for offsets in heads], None
    rungs = np.zeros((0, 2), np.int32)
    if isinstance(call.keys, LearnedOffsets):       # beside the window the shifts floor(alpha * f) and the next
        low, plain = np.array([lo for lo, _ in call.steps], np.int64), len(distances[0])
        distances = [np.union1d(distances[0], [low, low + 1])]
        rungs = np.stack([np.searchsorted(distances[0], at) for at in (low, low + 1)], 1).astype(np.int32)
    counts = np.array([len(of_head) for of_head in distances])
    table = np.zeros((len(heads), max(counts)), np.int32)
    for row, of_head in zip(table, distances, strict=True):
        row[:len(of_head)] = of_head
    leading = np.array([min(offsets.leading, T) for offsets in heads])
    return Shifts(table, counts, leading, heads[0].causal, table.shape[1] if plain is None else plain, rungs)


def _edges(keys: EdgeTable, T: int) -> Edges:
    table = checked_table(keys, T)
    head, query, slot = np.nonzero(table >= 0)
    order, starts = by_key(head * T + table[head, query, slot], len(table) * T)
    counts = (table >= 0).sum(-1, dtype=np.int32)
    return Edges(table, counts, starts, query[order].astype(np.int32), slot[order].astype(np.int32))


def attend(call: Call) -> Tensor:
    """Attention `[B, H, T, D]` of a call, whose tensors are cast to its dtype first."""
    q, k, v = (x.to(call.out_dtype) for x in (call.q, call.k, call.v))
    plan = cached(("cpu", call.identity), lambda: build(call), call.steps)
    bias = None
    if call.span is not None:
        bias = span_bias(call.span.to(arithmetic(q)), call.keys.ramp, min(call.keys.window, q.shape[2] - 1) + 1)
    slopes = np.array(call.slope_values or [0.0] * q.shape[1])
    learning = any(x is not None and x.requires_grad for x in (q, k, v, call.alpha, bias))
    rungs = np.array(call.rungs).reshape(-1, 3)
    return Attention.apply(q, k, v, call.alpha, bias, plan, rungs, slopes, learning and torch.is_grad_enabled())


class Attention(torch.autograd.Function):
    """Attention `[B, H, T, D]` of q `[B, H, T, D]`, k and v `[B, G, T, D]`, all of one dtype.

    alpha (0-dim) is there for its derivative: its value is in the rungs `[R, 3]`, as of `fractional_rungs`. bias
    `[H, C]` is added to the logits of the columns; slopes `[H]` are ALiBi's. Kept for the derivative, where `keep`, are
    the weights P, and for rungs the difference of the products with their two keys.
    """

    @staticmethod
    def forward(ctx, q, k, v, alpha, bias, plan, rungs, slopes, keep):
        run, (q_, k_, v_) = Launch(q, k), map(whole_rows, (q, k, v))
        out_, heads = torch.empty_like(q_), run.B * run.H if keep else 0
        given, scalars = run.given(q_, k_, v_, out_), (run.scale, slopes.astype(run.numbers), keep)
        if isinstance(plan, Edges):
            Cp = -(-plan.keys.shape[-1] // 16) * 16     # whole cache lines from query to query
            P, far = run.empty(heads, run.T, Cp), run.empty(0)
            run.in_tasks(edges.forward, *given, plan.keys, plan.counts, *scalars, P.numpy())
        else:
            Tp = (-(-run.T // 16) | 1) * 16         # an odd number of cache lines: columns do not compete for one place
            C, R = plan.plain + len(rungs), len(rungs)
            P, far = run.empty(heads, C + int(plan.leading.max()), Tp), run.empty(heads, R, Tp)
            to_logits = np.zeros((run.H, C)) if bias is None else bias.detach().double().numpy()
            if slopes.any():
                reach = np.tile(rungs[:, 0] + rungs[:, 1], (len(plan.shifts), 1))
                to_logits = to_logits - slopes[:, None] * np.hstack([abs(plan.shifts[:, :plan.plain]), reach])
            run.in_tasks(shifts.forward, *given, *plan, rungs[:, 1].astype(run.numbers), to_logits.astype(run.numbers),
                         *scalars, P.numpy(), far.numpy())
        ctx.save_for_backward(q, k, v, alpha, bias, P, far)
        ctx.plan, ctx.rungs, ctx.slopes = plan, rungs, slopes
        return cut(out_, q)

    @staticmethod
    def backward(ctx, dout):
        q, k, v, alpha, bias, P, far = ctx.saved_tensors
        run, plan, P, R = Launch(q, k), ctx.plan, P.numpy(), len(ctx.rungs)
        q_, k_, v_, dout_ = map(whole_rows, (q, k, v, dout.to(q.dtype)))
        dq_, dk_, dv_ = map(torch.empty_like, (q_, k_, v_))
        for_queries, dalpha, dbias = run.given(q_, k_, v_, dout_, dq_), None, None
        if isinstance(plan, Edges):
            for_keys = run.given(q_, dout_, dk_, dv_)
            run.in_turn(lambda heads, dS, _: [
                (edges.backward, *for_queries, plan.keys, plan.counts, run.scale, P, dS),
                (edges.pull, *for_keys, plan.starts, plan.queries, plan.slots, P, dS)], *P.shape[1:])
        else:
            wanted = bias is not None or (R > 0 and ctx.slopes.any())
            by_logit = np.zeros((len(P), run.blocks, P.shape[1] if wanted else 0), run.numbers)
            by_fraction, fractions = np.zeros((len(P), run.blocks, R)), ctx.rungs[:, 1].astype(run.numbers)
            for_values, for_keys = run.given(dout_, dv_), run.given(q_, dk_)
            products = plan.shifts.shape[1] + int(plan.leading.max())
            run.in_turn(lambda heads, dS, W: [
                (shifts.backward, *for_queries, *plan, fractions, run.scale, P, far.numpy(), dS, W, by_logit,
                 by_fraction),
                (shifts.pull, *for_values, *plan[:3], W if R else P[heads]),
                (shifts.pull, *for_keys, *plan[:3], dS)], products, P.shape[2])
            by_head = by_logit.sum(1, dtype=np.float64)
            by_head = by_head.reshape(run.B, run.H, by_logit.shape[2]).sum(0)                           # (H, C or 0)
            if alpha is not None:           # d fraction / d alpha is the base distance; so is d distance / d alpha
                base = ctx.rungs[:, 2].copy()       # a sum of numbers side by side has an order of its own
                total = by_fraction.sum((0, 1)) @ base
                if wanted:
                    total -= ctx.slopes @ by_head[:, plan.plain:] @ base
                dalpha = torch.tensor(total, dtype=alpha.dtype, device="cpu")
            dbias = None if bias is None else torch.from_numpy(by_head).to(bias.dtype)
        return cut(dq_, q), cut(dk_, k), cut(dv_, v), dalpha, dbias, None, None, None, None


class Launch:
    """Sizes of a call of q and k, and how its kernels are called."""

    def __init__(self, q: Tensor, k: Tensor) -> None:
        self.B, self.H, self.T, D = q.shape
        self.G, self.blocks, self.dtype = k.shape[1], -(-self.T // BLOCK), arithmetic(q)
        self.row, self.pieces = row_of(-(-D // LEAST) * LEAST, q.dtype)
        self.numbers = np.float64 if self.dtype == torch.float64 else np.float32
        self.scale = self.numbers(D ** -0.5)

    def given(self, *tensors: Tensor) -> tuple[object, ...]:
        """What every kernel is given first."""
        places = np.array([[x.data_ptr(), *(step * x.element_size() for step in x.stride()[:3])] for x in tensors])
        return self.row, self.pieces, places, (self.B, self.H, self.G, self.T)

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device="cpu")

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


def whole_rows(x: Tensor) -> Tensor:
    """x with each row's numbers side by side, filled up to `LEAST`; x itself where they lie so already."""
    return F.pad(x, (0, -x.shape[-1] % LEAST)) if x.shape[-1] % LEAST else in_rows(x)


def cut(rows: Tensor, like: Tensor) -> Tensor:
    """Rows as long as those of a tensor."""
    return rows if rows.shape == like.shape else torch.empty_like(like).copy_(rows[..., :like.shape[-1]])


@lru_cache(maxsize=None)
def row_of(D: int, dtype: torch.dtype) -> tuple[RowType, int]:
    """How a row of D numbers lies in memory, and its number of pieces."""
    width = next(width for width in WIDTHS if D % width == 0)
    return RowType(width, DTYPES[dtype]), D // width
