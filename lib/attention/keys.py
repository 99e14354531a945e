"""What the backends ask of a pattern's keys: checks, distances by head, order of the transpose, the soft span."""

from __future__ import annotations

import numpy as np
import torch

from lib.errors import SuiteError, require
from lib.patterns.base import EdgeTable, HeadOffsets, Keys, LearnedOffsets, Offsets, SoftWindow, expand


def refuse_empty(has_key: torch.Tensor | np.ndarray) -> None:
    """An error if a query has no key: softmax over no key is NaN. `has_key` is Boolean, queries last."""
    has_key = torch.as_tensor(has_key)
    if not bool(has_key.all()):
        query = int((~has_key).nonzero()[0, -1])
        raise SuiteError(f"pattern: query {query} attends no key; every query needs one "
                         "(its own position, for instance)")


def check_table(keys: EdgeTable, T: int) -> None:
    """Rows of an edge table must ascend without repeats, end in -1s where they are short, and name keys below T."""
    table = keys.keys
    low, high = (int(table.min()), int(table.max())) if table.size else (-1, -1)
    within = -1 <= low and high < T
    require(within, "pattern", f"edge table of keys {low} to {high}", f"keys 0 to T - 1 = {T - 1}, or -1")
    left, right = table[..., :-1], table[..., 1:]
    ascends = (right > left) & (left >= 0) | (right == -1)
    require(bool(ascends.all()), "pattern", "edge table", "rows that ascend without repeats, with -1 at the end only")


def keys_by_head(keys: Keys) -> bool:
    """Whether heads have keys of their own."""
    return isinstance(keys, HeadOffsets) or isinstance(keys, EdgeTable) and keys.keys.ndim == 3


def mask_of(keys: Keys, T: int, H: int) -> torch.Tensor:
    """Boolean `[H or 1, T, T]`: whether a query has a key."""
    if isinstance(keys, EdgeTable):
        check_table(keys, T)
    return torch.from_numpy(expand(keys, T, H if keys_by_head(keys) else 1))


def offsets_by_head(keys: Keys) -> tuple[Offsets, ...]:
    """Offsets of each head, or of one for all. Of learned offsets and soft windows: the window."""
    match keys:
        case HeadOffsets():
            return keys.heads
        case LearnedOffsets() | SoftWindow():
            return (Offsets(tuple(range(keys.window + 1))),)
    return (keys,)


def distances_at(offsets: Offsets, T: int) -> np.ndarray:
    """The distances whose keys exist at T tokens, int64, ascending; an error if one repeats or a query has no key."""
    distances = np.array(sorted(offsets.distances), np.int64)
    require(len(np.unique(distances)) == len(distances), "pattern", offsets.distances, "distances without repeats")
    distances = distances[(abs(distances) < T) & ((distances >= 0) | (not offsets.causal))]
    if not offsets.leading:         # the key at distance d exists for queries max(0, d) <= i < T + min(0, d)
        change = np.zeros(T + 1, np.int64)
        np.add.at(change, np.maximum(distances, 0), 1)
        np.add.at(change, T + np.minimum(distances, 0), -1)
        refuse_empty(np.cumsum(change[:T]) > 0)
    return distances


def order_by_key(key: np.ndarray, keys: int) -> np.ndarray:
    """Order that puts pairs key by key and is otherwise stable; `key` is below `keys`."""
    return np.argsort(key.astype(np.uint16) if keys <= 2**16 else key, kind="stable")   # numpy sorts 16 bits by radix


def span_bias(span: torch.Tensor, ramp: int, columns: int) -> torch.Tensor:
    """Logarithm of a soft window's weights `clamp((span + ramp - d) / ramp, 0, 1)` at distances d below `columns`.

    span `[H]`: `[H, columns]`, -inf where a weight is 0 (no gradient there). Source: Adaptive Span, arXiv 1905.07799.
    """
    weight = ((span[:, None] + ramp - torch.arange(columns, device=span.device)) / ramp).clamp(0, 1)
    return torch.where(weight > 0, weight, 1).log().masked_fill(weight <= 0, float("-inf"))
