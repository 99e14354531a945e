"""What the kernels read beside tensors: lists of keys, both ways, built once for a pattern, layer and length."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from lib.attention.call import Call, by_key, checked_table, distances_at, keys_by_head
from lib.errors import require
from lib.patterns.base import EdgeTable, LearnedOffsets, Offsets, SoftWindow, offsets_by_head

NOTHING, OFFSETS, TABLE, RUNGS = range(4)       # what the list of keys holds, beside the bands
# Distances in succession that make a band, for tensor cores, rather than as many listed keys; in half precision, in
# float32. Estimated from counted instructions: a tile of 32 keys costs as much as two listed ones; without tensor
# cores, as 32.
BAND = {True: 4, False: 32}
PIECE = 128             # entries of a key's list that one row of a kernel sums; longer lists are cut
NOWHERE = 2**30         # the offset of a column that no query has

Bands = list[tuple[int, int, int]]                      # nearest and farthest distance, first key


class Tiling(NamedTuple):
    """Sizes that the kernels are compiled for."""
    R: int              # query heads of a unit: they share keys, values and lists, and lie side by side in a tile
    RP: int             # rounded up to a power of two
    DP: int             # head size, likewise, at least 16
    BM: int             # rows of a tile of queries
    KM: int             # rows of a tile of keys


def tiling(H: int, G: int, D: int, by_head: bool) -> Tiling:
    """At least 16 positions a tile, as tensor cores want; at most 32 keys, as their sums need twice the registers."""
    DP = max(16, _power(D))
    BM = 64 if DP <= 128 else 32 if DP == 256 else 16
    R = 1 if by_head else max(r for r in range(1, min(4, BM // 16) + 1) if (H // G) % r == 0)
    return Tiling(R, _power(R), DP, BM, min(BM, 32 * _power(R)))


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


class Plan(NamedTuple):
    """Tensors int32 on the device of the call. `heads` is 1, or the number of query heads where lists differ.

    keys: by form, OFFSETS `[heads, columns, 4]`, TABLE `[heads, columns, T]`, RUNGS `[columns, 2]` (nearer distance,
    base).
    """
    form: int
    tiling: Tiling
    by_head: bool
    columns: int
    band_tile: int                  # keys of a band taken at once; 0: there are no bands
    keys: torch.Tensor
    query_ranges: torch.Tensor      # (heads, blocks, 2) columns that a block of queries has
    key_ranges: torch.Tensor        # (heads, blocks, 2) columns by which a block of keys is read
    bands: torch.Tensor             # (heads, n_bands, 3) `Bands`
    band_counts: torch.Tensor       # (heads)
    pieces: tuple[torch.Tensor, ...]        # starts, lengths, entries, firsts, places (`_pieces`); empty: none


def build(call: Call, half: bool) -> Plan:
    """The plan of a call in half precision or in float32."""
    B, H, G, T, D = call.shape
    by_head = keys_by_head(call.keys)
    tiles = tiling(H, G, D, by_head)
    if isinstance(call.keys, EdgeTable):
        form, columns, keys, ranges, bands, pieces = _table(call.keys, T, tiles, BAND[half])
    else:
        least = 1 if isinstance(call.keys, LearnedOffsets | SoftWindow) else BAND[half]     # a window is always a band
        of_heads = offsets_by_head(call.keys, rungs=False)
        bands, heads = zip(*(_lists(offsets, T, least) for offsets in of_heads), strict=True)
        rungs = np.array(sorted(call.steps), np.int32)
        form, columns, keys, ranges, pieces = _rungs(rungs, T, tiles) if len(rungs) else _columns(heads, T, tiles)
    widest = max((far - near + 1 for head in bands for near, far, _ in head), default=0)
    tile = 0 if not widest else (64 if widest >= 64 else 32) if half else 16
    count = np.array([len(of_head) for of_head in bands])
    table = np.zeros((len(bands), max(1, *count), 3))
    for row, of_head in zip(table, bands, strict=True):
        row[:len(of_head)] = np.array(of_head).reshape(-1, 3)

    def device(*arrays: np.ndarray) -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(np.ascontiguousarray(x, np.int32)).to(call.q.device) for x in arrays)
    return Plan(form, tiles, by_head, columns, tile, *device(keys, *ranges, table, count), device(*pieces))


def _lists(offsets: Offsets, T: int, least: int) -> tuple[Bands, np.ndarray]:
    """Bands of a head, and columns (a, o, first, ahead) of its single keys, leading keys before distances."""
    leading, ahead, runs = min(offsets.leading, T), 0 if offsets.causal else T, _runs(distances_at(offsets, T))
    bands = [(int(run[0]), int(run[-1]), leading) for run in runs if len(run) >= least]
    single = [(1, -int(d), leading, T) for run in runs if len(run) < least for d in run]
    return bands, np.array([(0, m, 0, ahead) for m in range(leading)] + single, np.int32).reshape(-1, 4)


def _runs(distances: np.ndarray) -> list[np.ndarray]:
    """Ascending distances, cut wherever one is missing."""
    return np.split(distances, np.flatnonzero(np.diff(distances) > 1) + 1)


def _ranges(there: np.ndarray, rows: int, tiles: Tiling) -> np.ndarray:
    """Range of columns `[heads, blocks, 2]` that each tile of so many rows has; `there` `[heads, columns, T]`.

    A range begins at an even column, as the kernels take two at a time.
    """
    columns = there.shape[1]
    some = np.logical_or.reduceat(there, np.arange(0, there.shape[2], rows // tiles.RP), axis=2)
    number = np.arange(columns)[:, None]
    begin = np.where(some, number, columns).min(1, initial=columns) // 2 * 2
    return np.stack([begin, np.where(some, number + 1, 0).max(1, initial=0)], -1)


def _columns(heads: Sequence[np.ndarray], T: int, tiles: Tiling):
    """Single keys at distances: columns, the ranges of them in both directions, and the lists of leading keys."""
    columns, i = -(-max(map(len, heads)) // 2) * 2, np.arange(T)       # the kernels take two at a time
    keys = np.full((len(heads), columns, 4), (1, -NOWHERE, 0, T), np.int32)
    for row, entries in zip(keys, heads, strict=True):
        row[:len(entries)] = entries
    a, o, first, ahead = np.moveaxis(keys, 2, 0)[..., None]                                 # (heads, columns, 1)
    key, query = a * i + o, i - o
    listed = (key >= first) & (key < T) & (key <= i + ahead)                                # by query, then by key
    asking = (a == 1) & (i >= first) & (query >= 0) & (query < T)
    head, column, query = np.nonzero(listed & (a == 0))                                     # leading key m is column m
    pieces = _pieces(head, column, query, column, len(heads), T) if len(head) else ()
    ranges = _ranges(listed, tiles.BM, tiles), _ranges(asking, tiles.KM, tiles)
    return (OFFSETS if columns else NOTHING), columns, keys, ranges, pieces


def _rungs(rungs: np.ndarray, T: int, tiles: Tiling):
    i, lo = np.arange(T), rungs[None, :, :1]
    return RUNGS, len(rungs), rungs, (_ranges(i >= lo, tiles.BM, tiles), _ranges(i + lo < T, tiles.KM, tiles)), ()


def _table(keys: EdgeTable, T: int, tiles: Tiling, least: int):
    """A table: distances that all queries have become bands where enough lie in succession, what is left is listed."""
    rest, bands = zip(*(_without_bands(rows, T, least) for rows in checked_table(keys, T)), strict=True)
    columns = -(-max(int((rows >= 0).sum(-1).max()) for rows in rest) // 2) * 2
    listed = np.full((len(rest), columns, T), -1, np.int32)
    for head, rows in zip(listed, rest, strict=True):
        head[:rows.shape[1]] = rows.T[:columns]
    there = listed >= 0
    ranges = _ranges(there, tiles.BM, tiles), _ranges(there & False, tiles.KM, tiles)       # keys have pieces alone
    pieces = _pieces(*np.nonzero(there), listed[there], len(rest), T) if columns else ()
    return (TABLE if columns else NOTHING), columns, listed, ranges, list(bands), pieces


def _without_bands(rows: np.ndarray, T: int, least: int) -> tuple[np.ndarray, Bands]:
    """The keys `[T, C]` that lie in no band, at the front of their rows, and the bands."""
    d = np.where(rows >= 0, np.arange(T)[:, None] - rows, T)
    counts = np.bincount((d + T - 1).ravel(), minlength=2 * T)[:2 * T - 1]
    full = np.flatnonzero(counts == T - abs(np.arange(1 - T, T))) - (T - 1)     # distances at which no key is missing
    runs = [run for run in _runs(full) if len(run) >= least]
    if not runs:
        return rows, []
    left = np.where(np.isin(d, np.concatenate(runs)), -1, rows)
    order = np.argsort(left < 0, axis=1, kind="stable")
    return np.take_along_axis(left, order, 1), [(int(run[0]), int(run[-1]), 0) for run in runs]


def _pieces(head: np.ndarray, column: np.ndarray, query: np.ndarray, key: np.ndarray, heads: int,
            T: int) -> tuple[np.ndarray, ...]:
    """The queries of each key, cut into pieces of at most PIECE, from the head, column, query and key of each pair.

    starts, lengths `[heads, pieces]`, longest first, so that the rows of a tile end together; entries `[n, 2]`, column
    and query; firsts `[heads, T + 1]`: where in `places` the pieces of a key are named.
    """
    require(len(key) < 2**31, "pattern", f"{len(key)} pairs", "below 2^31 pairs")
    key = head * T + key
    order, starts = by_key(key, heads * T)
    counts = np.diff(starts)
    cut = -(-counts // PIECE)                                                               # pieces of each key
    owner, bounds = np.repeat(np.arange(heads * T), cut), np.concatenate([[0], np.cumsum(cut)])
    number, of_head = np.arange(len(owner)) - bounds[owner], owner // T
    length = np.minimum(PIECE, counts[owner] - number * PIECE)
    longest, places = np.lexsort((-length, of_head)), np.empty_like(owner)
    places[longest] = np.arange(len(owner)) - bounds[of_head * T]
    tables = np.zeros((2, heads, places.max() + 1), np.int32)
    tables[:, of_head, places] = starts[owner] + number * PIECE, length
    firsts = bounds[np.arange(heads)[:, None] * T + np.arange(T + 1)]
    return *tables, np.stack([column, query], 1)[order], firsts, places
