"""Shared offsets, offsets by head, and soft windows."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lib.attention.call import CACHE, Call
from lib.attention.rows import arithmetic
from lib.attention.pytorch.pairs import PairAttention
from lib.attention.pytorch.plans import Plan, build, unit_heads, units_at_once
from lib.errors import require
from lib.patterns.base import HeadOffsets, Keys, Offsets, SoftWindow


def attend(call: Call) -> torch.Tensor:
    """Attention `[B, H, T, D]` of a call whose keys are Offsets, HeadOffsets or a SoftWindow."""
    heads = unit_heads(call, keys_by_head=isinstance(call.keys, HeadOffsets | SoftWindow))
    units = units_at_once(call, heads)
    plan = CACHE.get(("offsets", call.identity, units, arithmetic(call.q)), lambda: _plan(call, heads, units))
    by_head = None if call.span is None else _span_bias(call, plan.bias.shape[1])
    return PairAttention.apply(call.q, call.k, call.v, by_head, plan, call.scale, call.out_dtype)


def _span_bias(call: Call, C: int) -> torch.Tensor:
    """Logarithm of the soft span's weights, `[H, C]`, -inf where a weight is 0 (no gradient there)."""
    span = call.span.to(arithmetic(call.q))
    weight = ((span[:, None] + call.keys.ramp - torch.arange(C, device=span.device)) / call.keys.ramp).clamp(0, 1)
    return torch.where(weight > 0, weight, 1).log().masked_fill(weight <= 0, float("-inf"))


def _plan(call: Call, heads: int, units: int) -> Plan:
    T = call.q.shape[2]
    pairs = [_pairs(keys, T) for keys in _by_head(call.keys)]
    C = max(key.shape[1] for key, _ in pairs)
    key, valid = (torch.stack([F.pad(x, (0, C - x.shape[1])) for x in which])     # shorter rows: not valid
                  for which in zip(*pairs, strict=True))
    return build(call, heads, units, key, valid, slopes=call.slopes)


def _by_head(keys: Keys) -> list[Offsets]:
    """One entry a head, or one for all."""
    if isinstance(keys, HeadOffsets):
        return list(keys.heads)
    return [Offsets(tuple(range(keys.window + 1)))] if isinstance(keys, SoftWindow) else [keys]


def _pairs(keys: Offsets, T: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Key of each pair and whether it exists, `[T, C]`; a leading key that a distance reaches already counts once."""
    require(len(set(keys.distances)) == len(keys.distances), "pattern", keys.distances, "distances without repeats")
    distances = torch.tensor([d for d in keys.distances if abs(d) < T], dtype=torch.int32)
    leading = torch.arange(min(keys.leading, T), dtype=torch.int32)
    t = torch.arange(T, dtype=torch.int32)[:, None]
    key = torch.cat([t - distances, leading.expand(T, -1)], -1)
    valid = (key >= 0) & (key < T)
    valid[:, len(distances):] &= ~torch.isin(t - leading, distances)
    return key, valid & (key <= t) if keys.causal else valid
