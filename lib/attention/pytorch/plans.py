"""Plans: the pairs of a pattern as lists of rows, in both directions, built once for a pattern, layer and length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from lib.attention.call import Call, refuse_empty
from lib.attention.rows import arithmetic, pull
from lib.errors import require

ROWS = 4096       # query rows handled at once: the fastest of 1024 … 65,536 measured, and intermediate tensors stay small


@dataclass(frozen=True, eq=False)
class Plan:
    """The pairs of `units` units. A unit is one key/value head with its query heads or, where heads differ, a batch element.

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
    built_for: object = None           # what the plan depends on beyond its place in the cache
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
                    self.back_starts[:M + 1], self.back_index[:entries], self.back_slots[:entries], self.built_for)

    def pull_back(self, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The transpose of `pull`: `out[m] = sum weights[n, c] * x[n]` over the pairs of key m; (N, C), (N, D) -> (M, D)."""
        return pull(self.back_starts, self.back_index, weights.view(-1).index_select(0, self.back_slots), x)

    def bias_with(self, by_head: torch.Tensor | None) -> torch.Tensor:
        """The bias plus one of each head, `[H, C]`: (N, C). Units are batch elements then."""
        if by_head is None:
            return self.bias
        H, C = by_head.shape
        return (self.bias.view(self.units, H, -1, C) + by_head.to(self.bias.dtype)[:, None]).view(-1, C)


def unit_heads(call: Call, keys_by_head: bool) -> int:
    """Query heads of a unit: all when keys or bias differ from head to head, otherwise those of one key/value head."""
    B, H, G, T, D = call.shape
    return H if keys_by_head or call.slopes is not None else H // G


def units_at_once(call: Call, heads: int) -> int:
    """How many units one step takes: whole batch elements, or some heads of one, `ROWS` rows where they are so many."""
    B, H, G, T, D = call.shape
    per_batch = H // heads
    fitting = max(1, ROWS // (heads * T))
    return min(B, fitting // per_batch) * per_batch if fitting >= per_batch else fitting


def build(call: Call, heads: int, units: int, key: torch.Tensor, valid: torch.Tensor, *,
          slopes: torch.Tensor | None = None, biased: int | None = None, built_for: object = None) -> Plan:
    """The plan of pairs (t, key) `[heads or 1, T, C]` int32, of which those `valid` exist.

    The bias has the first `biased` columns only (all by default), and ALiBi's `-slope * |t - key|` when `slopes` are given.
    """
    B, H, G, T, D = call.shape
    refuse_empty(valid.any(-1))
    kv_heads, C, device = heads * G // H, key.shape[-1], call.q.device
    N, M = heads * T, kv_heads * T
    require(units * N * C < 2**31, "pattern", f"{units * N * C} pairs at once", "below 2^31 pairs in one batch element")
    dtype = arithmetic(call.q)
    bias = torch.zeros(heads, T, C, dtype=dtype)
    if slopes is not None:
        bias -= slopes.to("cpu", dtype)[:, None, None] * (torch.arange(T)[:, None] - key).abs()
    bias = bias.masked_fill_(~valid, float("-inf"))[..., :biased]
    head = torch.arange(heads, dtype=torch.int32)[:, None, None]
    index = (key.where(valid, 0) + head // (heads // kv_heads) * T).view(N, C)
    slots, counts = _by_key(index, valid.expand(heads, T, C).reshape(-1), M)
    per_key = torch.cat([counts.new_zeros(1), counts.repeat(units).cumsum(0)]).int()
    return Plan(units, heads, kv_heads, index=_tiled(index, units, M).to(device),
                bias=_tiled(bias.reshape(N, -1), units, 0).to(device),
                starts=(torch.arange(units * N + 1, dtype=torch.int32) * C).to(device), back_starts=per_key.to(device),
                back_index=_tiled(slots // C, units, N).to(device), back_slots=_tiled(slots, units, N * C).to(device),
                built_for=built_for)


def _by_key(index: torch.Tensor, valid: torch.Tensor, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Places of the existing pairs, int32, key by key and queries ascending; and how many each key has."""
    slots = valid.nonzero()[:, 0]
    key = index.view(-1)[slots].numpy()
    small = key.astype(np.uint16) if keys <= 2**16 else key            # numpy sorts 16 bits by radix, ten times as fast
    order = torch.from_numpy(np.argsort(small, kind="stable"))
    return slots[order].int(), torch.from_numpy(np.bincount(key, minlength=keys))


def _tiled(x: torch.Tensor, units: int, step: int) -> torch.Tensor:
    """`units` copies one below the other, `step` added from each to the next."""
    shift = torch.arange(units, dtype=x.dtype).mul_(step).view(-1, *[1] * x.ndim)
    return (x + shift).flatten(0, 1)


@dataclass(frozen=True)
class Step:
    """One slice of a call: a plan's units, `batch` x `heads` of q, `batch` x `kv_heads` of k and v."""
    plan: Plan
    q: tuple[slice, slice]
    kv: tuple[slice, slice]


def steps(q: torch.Tensor, plan: Plan) -> Iterator[Step]:
    """The slices of `[B, H, T, D]` in order; the last, or the last of each batch element, may be smaller than the plan."""
    B, per_batch = len(q), q.shape[1] // plan.heads
    batches = max(1, plan.units // per_batch)
    for b in range(0, B, batches):
        batch = slice(b, min(B, b + batches))
        for u in range(0, per_batch, plan.units):
            end = min(per_batch, u + plan.units)
            yield Step(plan.first((batch.stop - b) * (end - u)), (batch, slice(u * plan.heads, end * plan.heads)),
                       (batch, slice(u * plan.kv_heads, end * plan.kv_heads)))
