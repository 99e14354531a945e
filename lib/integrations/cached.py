"""Attention of a few queries over a cache: the keys of their rows are gathered, and no `[T, T]` object is made.

Generation needs an answer that a whole sequence does not: which keys has query `i` while the text is still growing?
Here they are those of `pattern.plan(layer, length)` at one fixed `length`, the longest sequence, however far the text
has come. A few patterns would answer otherwise at another length (`random_offsets` without a reach, scaled powers of
two); most do not.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import zip_longest

import numpy as np
import torch

from lib.attention.call import arithmetic, cached, offsets_by_head, span_bias
from lib.patterns.base import EdgeTable, Keys, LearnedOffsets, Pattern
from lib.patterns.learned import fractional_rungs

GATHERED = 2**22        # numbers of gathered keys at a time: 16 MiB in float32
Rungs = tuple[torch.Tensor, torch.Tensor]   # nearer of the two distances, and share of the farther one, `[R]` each


@lru_cache(maxsize=1024)
def first_rows(pattern: Pattern, layer: int, length: int, T: int) -> Keys:
    """Keys of the first `T` queries of a causal pattern at `length` tokens. Cached: plans are kept by object."""
    keys = pattern.plan(layer, length)
    if isinstance(keys, EdgeTable) and T < length:
        return EdgeTable(np.ascontiguousarray(keys.keys[..., :T, :]))
    return keys                                     # of all other forms, what does not fit T tokens drops out


def attend_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: Keys, positions: torch.Tensor,
                start: torch.Tensor | int = 0, *, alpha: torch.Tensor | None = None,
                span: torch.Tensor | None = None) -> torch.Tensor:
    """`softmax(q.k / sqrt(D)) v` over the rows `positions` of a causal pattern's keys: `[B, H, Q, D]`, q's dtype.

    q `[B, H, Q, D]`, its places in their sequences `positions` `[B or 1, Q]`; k and v `[B, G, S, D]`, whose column
    `start` (`[B or 1]`, for sequences with padding on the left) holds place 0. alpha and span as in `sparse_attention`.
    """
    (B, _, _, D), G = q.shape, k.shape[1]
    rungs = _rungs(keys, alpha) if isinstance(keys, LearnedOffsets) else None
    index = _key_places(keys, rungs, positions)                                         # (P, H or 1, Q, C)
    start = torch.as_tensor(start, device=q.device).view(-1, 1, 1, 1)
    bias = None if span is None else span_bias(span.to(arithmetic(q)), keys.ramp, keys.window + 1)      # (H, C)
    step = max(1, GATHERED // (B * max(G, index.shape[1]) * index.shape[3] * D))
    return torch.cat([_attend(part, k, v, places, start, rungs, bias)
                      for part, places in zip(q.split(step, 2), index.split(step, 2), strict=True)], 2)


def _rungs(keys: LearnedOffsets, alpha: torch.Tensor) -> Rungs:
    """All rungs of the base that exist at alpha: those that reach beyond a sequence's start have no key there."""
    rungs = fractional_rungs(keys.base, keys.window, float(alpha.detach()), 2 * max(keys.base) + 1)
    lo, t, f = (torch.tensor([rung[at] for rung in rungs], device=alpha.device) for at in range(3))
    return lo.long(), t + (alpha - alpha.detach()) * f             # t is from float64: alpha * 987 in float32 loses it


def _key_places(keys: Keys, rungs: Rungs | None, positions: torch.Tensor) -> torch.Tensor:
    """Places of the keys of queries at `positions` `[P, Q]`: `[P, H or 1, Q, C]`, negative where there is none."""
    if isinstance(keys, EdgeTable):
        table = cached(("rows", keys, positions.device), lambda: torch.from_numpy(keys.keys).to(positions.device))
        table = table if table.ndim == 3 else table[None]
        return table[:, positions].transpose(0, 1).long()
    back, leading = distances(keys, positions.device)
    back = back if rungs is None else torch.cat([back, rungs[0][None]], -1)
    query = positions[:, None, :, None]
    near = query - back[:, None]                                                        # (P, H or 1, Q, C)
    lead = torch.arange(max(offsets.leading for offsets in offsets_by_head(keys)), device=positions.device)
    missed = (query - lead)[..., None].ne(back[:, None, None]).all(-1)                  # no distance reaches it already
    seen = missed & (lead <= query) & (lead < leading[:, None, None])
    return torch.cat([near, lead.where(seen, -1)], -1)


@lru_cache(maxsize=1024)
def distances(keys: Keys, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Distances of each head, or of one for all, `[H or 1, C]`, and numbers of leading keys, `[H or 1]`."""
    heads = offsets_by_head(keys)
    beyond = torch.iinfo(torch.int32).max               # a distance that no query reaches
    filled = zip(*zip_longest(*(offsets.distances for offsets in heads), fillvalue=beyond), strict=True)
    return torch.tensor([*filled], device=device), torch.tensor([offsets.leading for offsets in heads], device=device)


def _attend(q, k, v, index, start, rungs: Rungs | None, bias) -> torch.Tensor:
    B, H, Q, D = q.shape
    G, dtype = k.shape[1], arithmetic(q)
    R = H // G
    keys, values = (_gathered(x, index, start, rungs, dtype) for x in (k, v))           # (B, G, R or 1, Q, C, D)
    logits = torch.einsum("bgrqd,bgrqcd->bgrqc", q.to(dtype).view(B, G, R, Q, D), keys) * D ** -0.5
    if bias is not None:
        logits = logits + bias.view(G, R, 1, -1)
    none = (index < 0).unflatten(1, (G, R) if index.shape[1] == H else (1, 1))          # (P, G or 1, R or 1, Q, C)
    weights = logits.masked_fill(none, -math.inf).softmax(-1)
    return torch.einsum("bgrqc,bgrqcd->bgrqd", weights, values).reshape(B, H, Q, D).to(q.dtype)


def _gathered(x, index, start, rungs: Rungs | None, dtype: torch.dtype) -> torch.Tensor:
    """Rows of `[B, G, S, D]` at the places `[P, H or 1, Q, C]` (any row where there is none), rungs interpolated."""
    B, G = x.shape[:2]
    heads = index.shape[1]
    batch = torch.arange(B, device=x.device).view(-1, 1, 1, 1, 1)
    group = torch.arange(G, device=x.device).view(-1, 1, 1, 1)

    def take(places: torch.Tensor) -> torch.Tensor:
        columns = places.clamp(min=0) + start
        return x[batch, group, columns.unflatten(1, (G, heads // G) if heads > 1 else (1, 1))].to(dtype)
    near = take(index)
    if rungs is None:
        return near
    _, t = rungs
    C = index.shape[-1] - len(t)
    far = take(index[..., C:] - 1)                  # clamped at the sequence's start, as in `lib.attention`
    return torch.cat([near[..., :C, :], near[..., C:, :].lerp(far, t.to(dtype)[:, None])], -2)
