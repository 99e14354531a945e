"""Plans: the pairs of a pattern as lists of rows, in both directions, built once for a pattern, layer and length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from lib.attention.call import Call, arithmetic, cached
from lib.attention.keys import check_table, distances_at, keys_by_head, offsets_by_head, order_by_key, refuse_empty
from lib.errors import require
from lib.patterns.base import EdgeTable, LearnedOffsets, Offsets
from lib.patterns.learned import fractional_rungs

ROWS = 4096       # query rows at once: the fastest of 1024 … 65,536 measured, and intermediate tensors stay small


@dataclass(frozen=True, eq=False)
class Plan:
    """The pairs of `units` units: key/value heads with their query heads or, where heads differ, batch elements.

    Rows are numbered head by head, `h * T + t`, unit after unit; index tensors are int32.
    A pair that does not exist has a bias of -inf, hence weight and gradient 0, and may point at any row.
    """
    units: int
    heads: int                         # query heads of a unit
    kv_heads: int                      # key/value heads of a unit
    index: torch.Tensor                # (N, C) key row of each pair; N = units * heads * T
    bias: torch.Tensor                 # (N, C) added to the logits
    starts: torch.Tensor               # (N + 1) 0, C, 2C, …
    back_starts: torch.Tensor          # (M + 1) where the list of each key begins; M = units * kv_heads * T
    back_index: torch.Tensor           # query row of each entry of these lists
    back_slots: torch.Tensor           # its place in the flattened pairs
    lo: tuple[int, ...] = ()           # the rungs' nearer distances, which alpha moves
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        tensors = [x for x in vars(self).values() if isinstance(x, torch.Tensor)]
        object.__setattr__(self, "nbytes", sum(x.nbytes for x in tensors))

    def first(self, units: int) -> Plan:
        """The plan of the first `units` units."""
        if units == self.units:
            return self
        N, M = (len(x) // self.units * units for x in (self.starts, self.back_starts))
        entries = len(self.back_index) // self.units * units
        return Plan(units, self.heads, self.kv_heads, self.index[:N], self.bias[:N], self.starts[:N + 1],
                    self.back_starts[:M + 1], self.back_index[:entries], self.back_slots[:entries], self.lo)

    def pull_back(self, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Transpose of `pull`: `out[m] = sum weights[n, c] x[n]` over the pairs of key m; (N, C), (N, D) -> (M, D)."""
        return pull(self.back_starts, self.back_index, weights.view(-1).index_select(0, self.back_slots), x)

    def bias_with(self, by_head: torch.Tensor | None) -> torch.Tensor:
        """The bias plus one of each head, `[H, C]`: (N, C). Units are batch elements then."""
        if by_head is None:
            return self.bias
        H, C = by_head.shape
        return (self.bias.view(self.units, H, -1, C) + by_head.to(self.bias.dtype)[:, None]).view(-1, C)


def plan_of(call: Call) -> tuple[Plan, list[tuple[int, float, int]]]:
    """The plan of a call, kept for the next one, and its `fractional_rungs` (none without a learned alpha)."""
    B, H, G, T, D = call.shape
    rungs = []
    if isinstance(call.keys, LearnedOffsets):
        rungs = fractional_rungs(call.keys.base, call.keys.window, call.alpha_value, T)
    lo = tuple(low for low, _, _ in rungs)
    shared = call.slopes is None and call.span is None and not keys_by_head(call.keys)
    heads = H // G if shared else H
    per_batch, fitting = H // heads, max(1, ROWS // (heads * T))        # whole batch elements, or some heads of one
    units = min(B, fitting // per_batch) * per_batch if fitting >= per_batch else fitting
    plan = cached(("torch", call.identity, units, arithmetic(call.q)), lambda: build(call, heads, units, lo),
                  stale=lambda plan: plan.lo != lo)
    return plan, rungs


def build(call: Call, heads: int, units: int, lo: tuple[int, ...]) -> Plan:
    """The plan of `units` units of so many query heads; `lo` are the rungs' nearer distances.

    The bias holds ALiBi's `-slope * |t - key|`, but for learned offsets, whose distances move with alpha.
    """
    B, H, G, T, D = call.shape
    key, valid = _pairs(call, lo)                                       # (heads or 1, T, C + R)
    refuse_empty(valid.any(-1))
    kv_heads, C, device, dtype = heads * G // H, key.shape[-1], call.q.device, arithmetic(call.q)
    N, M = heads * T, kv_heads * T
    require(units * N * C < 2**31, "pattern", f"{units * N * C} pairs at once", "below 2^31 pairs in one batch element")
    bias = torch.zeros(heads, T, C, dtype=dtype)
    if call.slopes is not None and not isinstance(call.keys, LearnedOffsets):
        bias -= call.slopes.to("cpu", dtype)[:, None, None] * (torch.arange(T)[:, None] - key).abs()
    bias = bias.masked_fill_(~valid, float("-inf"))[..., :C - len(lo)]
    head = torch.arange(heads, dtype=torch.int32)[:, None, None]
    index = (key.where(valid, 0) + head // (heads // kv_heads) * T).view(N, C)
    slots = valid.expand(heads, T, C).reshape(-1).nonzero()[:, 0]
    of_slots = index.view(-1)[slots].numpy()
    slots = slots[torch.from_numpy(order_by_key(of_slots, M))].int()    # key by key, queries ascending
    counts = torch.from_numpy(np.bincount(of_slots, minlength=M))
    per_key = torch.cat([counts.new_zeros(1), counts.repeat(units).cumsum(0)]).int()
    return Plan(units, heads, kv_heads, index=_tiled(index, units, M).to(device),
                bias=_tiled(bias.reshape(N, -1), units, 0).to(device),
                starts=(torch.arange(units * N + 1, dtype=torch.int32) * C).to(device), back_starts=per_key.to(device),
                back_index=_tiled(slots // C, units, N).to(device), back_slots=_tiled(slots, units, N * C).to(device),
                lo=lo)


def _pairs(call: Call, lo: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Key of each pair, int32, and whether it exists, `[H or 1, T, C + R]`."""
    T = call.q.shape[2]
    if isinstance(call.keys, EdgeTable):
        check_table(call.keys, T)
        table = call.keys.keys[..., :T].astype(np.int32)        # torch's sampled product must not be wider than T
        key = torch.from_numpy(table).view(-1, T, table.shape[-1])
        return key, key >= 0
    if isinstance(call.keys, LearnedOffsets):       # window, nearer keys, further keys (as valid, clamped at key 0)
        near = torch.tensor([*range(min(call.keys.window, T - 1) + 1), *lo], dtype=torch.int32)
        key = torch.arange(T, dtype=torch.int32)[:, None] - near
        rungs = key[:, len(near) - len(lo):]
        return torch.cat([key, (rungs - 1).clamp(min=0)], -1)[None], (torch.cat([key, rungs], -1) >= 0)[None]
    pairs = [_of_offsets(offsets, T) for offsets in offsets_by_head(call.keys)]
    C = max(key.shape[1] for key, _ in pairs)
    key, valid = (torch.stack([F.pad(x, (0, C - x.shape[1])) for x in which])     # shorter rows: not valid
                  for which in zip(*pairs, strict=True))
    return key, valid


def _of_offsets(offsets: Offsets, T: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and existence of each pair, `[T, C]`; a leading key that a distance reaches already counts once."""
    distances = torch.from_numpy(distances_at(offsets, T).astype(np.int32))
    leading = torch.arange(min(offsets.leading, T), dtype=torch.int32)
    t = torch.arange(T, dtype=torch.int32)[:, None]
    key = torch.cat([t - distances, leading.expand(T, -1)], -1)
    valid = (key >= 0) & (key < T)
    valid[:, len(distances):] &= ~torch.isin(t - leading, distances)
    return key, valid & (key <= t) if offsets.causal else valid


def _tiled(x: torch.Tensor, units: int, step: int) -> torch.Tensor:
    """`units` copies one below the other, `step` added from each to the next."""
    shift = torch.arange(units, dtype=x.dtype).mul_(step).view(-1, *[1] * x.ndim)
    return (x + shift).flatten(0, 1)


def pull(starts: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`out[n] = sum_e weights[e] * x[index[e]]` over the entries `starts[n] <= e < starts[n + 1]`."""
    return F.embedding_bag(index.view(-1), x, starts, mode="sum", per_sample_weights=weights.view(-1),
                           include_last_offset=True)


@dataclass(frozen=True)
class Step:
    """One slice of a call: a plan's units, `batch` x `heads` of q, `batch` x `kv_heads` of k and v."""
    plan: Plan
    q: tuple[slice, slice]
    kv: tuple[slice, slice]


def steps(q: torch.Tensor, plan: Plan) -> Iterator[Step]:
    """The slices of `[B, H, T, D]` in order; the last one, or that of each batch element, may be less than the plan."""
    B, per_batch = len(q), q.shape[1] // plan.heads
    batches = max(1, plan.units // per_batch)
    for b in range(0, B, batches):
        batch = slice(b, min(B, b + batches))
        for u in range(0, per_batch, plan.units):
            end = min(per_batch, u + plan.units)
            yield Step(plan.first((batch.stop - b) * (end - u)), (batch, slice(u * plan.heads, end * plan.heads)),
                       (batch, slice(u * plan.kv_heads, end * plan.kv_heads)))
