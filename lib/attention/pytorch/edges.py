"""Edge tables: keys that differ from query to query."""

from __future__ import annotations

import numpy as np
import torch

from lib.attention.call import CACHE, Call, check_table
from lib.attention.rows import arithmetic
from lib.attention.pytorch.pairs import PairAttention
from lib.attention.pytorch.plans import Plan, build, unit_heads, units_at_once


def attend(call: Call) -> torch.Tensor:
    """Attention `[B, H, T, D]` of a call whose keys are an EdgeTable."""
    heads = unit_heads(call, keys_by_head=call.keys.keys.ndim == 3)
    units = units_at_once(call, heads)
    plan = CACHE.get(("edges", call.identity, units, arithmetic(call.q)), lambda: _plan(call, heads, units))
    return PairAttention.apply(call.q, call.k, call.v, None, plan, call.scale, call.out_dtype)


def _plan(call: Call, heads: int, units: int) -> Plan:
    T = call.q.shape[2]
    check_table(call.keys, T)
    key = torch.from_numpy(call.keys.keys.astype(np.int32))
    key = key.view(-1, T, key.shape[-1])                       # (heads or 1, T, C)
    return build(call, heads, units, key, key >= 0, slopes=call.slopes)
