"""What the kernels need to know of keys, as arrays: built once for the keys, the number of tokens and the heads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lib.attention.call import check_table, refuse_empty
from lib.errors import require
from lib.patterns.base import (EdgeTable, HeadOffsets, LearnedOffsets, Offsets,
                               SoftWindow)
from lib.patterns.learned import fractional_rungs


@dataclass(frozen=True, eq=False)
class Shifts:
    """Keys at distances. The words are those of `lib.attention.cpu.shifts`."""
    shifts: np.ndarray              # int32 [H or 1, N]
    counts: np.ndarray              # int64 [H or 1]
    leading: np.ndarray             # int64 [H or 1]
    causal: bool
    plain: int
    rungs: np.ndarray               # int32 [R, 2]
    fractions: np.ndarray           # float64 [R]
    base: np.ndarray                # float64 [R], a rung's distance at alpha = 1

    @property
    def nbytes(self) -> int:
        return self.shifts.nbytes

    @property
    def most_leading(self) -> int:
        return int(self.leading.max())

    @property
    def columns(self) -> int:
        """C"""
        return self.plain + len(self.rungs) + self.most_leading

    def alibi(self, slopes: np.ndarray, alpha: float | None) -> np.ndarray:
        """`-slope * distance` of the columns but the leading keys', `[H, plain + R]`."""
        near = np.abs(self.shifts[:, :self.plain].astype(np.float64))
        rungs = np.broadcast_to(self.base * (1.0 if alpha is None else alpha), (len(near), len(self.base)))
        return -slopes[:, None] * np.concatenate([near, rungs], 1)


def shifts_plan(keys: Offsets | HeadOffsets | SoftWindow, T: int) -> Shifts:
    """Of keys without interpolation."""
    if isinstance(keys, SoftWindow):
        keys = Offsets(tuple(range(keys.window + 1)))
    heads = keys.heads if isinstance(keys, HeadOffsets) else (keys,)
    found = [_distances(offsets, T) for offsets in heads]
    counts = np.array([len(distances) for distances in found])
    shifts = np.zeros((len(heads), max(counts)), np.int32)
    for row, distances in zip(shifts, found, strict=True):
        row[:len(distances)] = distances
    leading = np.array([min(offsets.leading, T) for offsets in heads])
    none = np.zeros(0)
    return Shifts(shifts, counts, leading, heads[0].causal, shifts.shape[1], np.zeros((0, 2), np.int32), none, none)


def _distances(keys: Offsets, T: int) -> np.ndarray:
    """Distances of keys that exist at T tokens, checked to leave no query without a key."""
    require(len(set(keys.distances)) == len(keys.distances), "pattern", keys.distances, "distances without repeats")
    kept = np.array(sorted(d for d in keys.distances if abs(d) < T and not (keys.causal and d < 0)), np.int64)
    if 0 not in kept and keys.leading == 0:
        key = np.arange(T)[:, None] - kept
        refuse_empty(torch.from_numpy(((key >= 0) & (key < T)).any(1)))
    return kept


def learned_plan(keys: LearnedOffsets, alpha: float, T: int) -> Shifts:
    """Of the window and the rungs at `alpha * f`: the shifts `floor(alpha * f)` and the next, each once."""
    found = fractional_rungs(keys.base, keys.window, alpha, T)
    plain = min(keys.window, T - 1) + 1
    low = np.array([lo for lo, _, _ in found], np.int64)
    shifts = np.union1d(np.arange(plain), np.concatenate([low, low + 1]))
    rungs = np.stack([np.searchsorted(shifts, low), np.searchsorted(shifts, low + 1)], 1)
    return Shifts(shifts.astype(np.int32)[None], np.array([len(shifts)]), np.array([0]), True, plain, rungs.astype(np.int32),
                  np.array([t for _, t, _ in found]), np.array([float(f) for _, _, f in found]))


@dataclass(frozen=True, eq=False)
class Edges:
    """Keys of every query, and the transpose. The words are those of `lib.attention.cpu.edges`."""
    keys: np.ndarray                # int32 [H or 1, T, C]
    counts: np.ndarray              # int32 [H or 1, T]
    starts: np.ndarray              # int64 [H or 1, T + 1]
    queries: np.ndarray             # int32 [H or 1, E], E the most edges of a head
    slots: np.ndarray               # int32 [H or 1, E]

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.queries.nbytes + self.slots.nbytes


def edges_plan(keys: EdgeTable, T: int) -> Edges:
    check_table(keys, T)
    table = np.ascontiguousarray(keys.keys, np.int32).reshape(-1, T, keys.keys.shape[-1])
    counts = (table >= 0).sum(-1, dtype=np.int32)
    refuse_empty(torch.from_numpy(counts > 0))
    most = int(counts.sum(1).max())
    starts = np.zeros((len(table), T + 1), np.int64)
    queries, slots = np.zeros((2, len(table), most), np.int32)
    for h, of_head in enumerate(table):
        query, slot = np.nonzero(of_head >= 0)
        key = of_head[query, slot]
        small = key.astype(np.uint16) if T <= 2**16 else key            # numpy sorts 16 bits by radix, ten times as fast
        order = np.argsort(small, kind="stable")
        queries[h, :len(order)], slots[h, :len(order)] = query[order], slot[order]
        starts[h, 1:] = np.bincount(key, minlength=T).cumsum()
    return Edges(table, counts, starts, queries, slots)
