"""What a pattern answers, and the forms its answer takes. Next: `lib.patterns.kinds`, and any pattern.

`i` is a query, `j` a key, `d = i - j`. A window W means `0 <= d <= W`: W + 1 keys, the query itself included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, dataclass_transform

import numpy as np

from lib.errors import require
from lib.registry import Count, Positive, check

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Offsets:
    """Keys `i - d` for each `d` in `distances`, and the first `leading` keys; those outside `0 <= j < T` do not exist.

    `distances` ascends without repeats. A negative distance is a key in the future (bidirectional patterns only);
    leading keys in the future of a query are seen by it only when the pattern is bidirectional.
    """
    distances: tuple[int, ...]
    leading: int = 0
    causal: bool = True


@dataclass(frozen=True)
class HeadOffsets:
    """Offsets of each head; `len(heads)` is the number of query heads."""
    heads: tuple[Offsets, ...]


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """Keys of every query: int32 `[T, C]`, or `[H, T, C]` when heads differ. Rows ascend; -1 fills them at the end."""
    keys: np.ndarray


@dataclass(frozen=True)
class LearnedOffsets:
    """Window `0 <= d <= window` and rungs at the real distances `alpha * f`; `alpha` belongs to the caller."""
    window: int
    base: tuple[int, ...]


@dataclass(frozen=True)
class SoftWindow:
    """Window `0 <= d <= window` with weights `clamp((span + ramp - d) / ramp, 0, 1)`; the caller has `span`, `[H]`."""
    window: int
    ramp: int


Keys = Offsets | HeadOffsets | EdgeTable | LearnedOffsets | SoftWindow
PerLayer = Count | tuple[Count, ...]                        # one for all, or one for each layer
PerHead = Count | tuple[Count | tuple[Count, ...], ...]     # or for each layer one for each head
PositivePerHead = Positive | tuple[Positive | tuple[Positive, ...], ...]


class Knob(NamedTuple):
    """A parameter that `match_edges` may turn: its values by ascending number of pairs, and how finely it divides."""
    parameter: str
    values: Sequence[Any]
    per: str = "stack"                      # stack: one value for all; layer: also one a layer; head: also one a head


@dataclass_transform(kw_only_default=True, frozen_default=True)     # of every subclass, as `__init_subclass__` does
@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One rule for which keys a query attends, in a stack of `layers` layers of `heads` heads.

    A subclass has a file of its own in `lib/patterns`, where it is found by its `name`. It defines `keys` (the most
    special form that fits) and `attends` (the same rule as an inequality, which makes the oracle mask). It becomes a
    frozen dataclass by itself: its annotated names are its parameters, and their types are checked.
    """
    name: ClassVar[str]                     # what --pattern and profiles call it
    family: ClassVar[str]                   # scaled-base | power-law | christoffel | literature | comparator
    source: ClassVar[str]                   # paper or document, with its section or address
    by_head: ClassVar[str] = ""             # the parameter that may differ by layer and head, if there is one
    learned: ClassVar[str | None] = None    # what the model learns for it: "alpha" (one a layer), "span" (one a head)
    bidirectional: ClassVar[bool] = False   # whether causal=False is defined
    blurs: ClassVar[bool] = False           # whether its rungs are blurred while a model trains (`half_width`)
    shown: ClassVar[Sequence[dict[str, Any]]] = ({},)       # parameters of `examples`

    layers: Positive = 1
    heads: Positive = 1
    causal: bool = True

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        check(self)
        require(self.causal or self.bidirectional, "causal", self.causal,
                f"True, as {self.name} is defined for decoders only")
        _ = self.by_head and self.widths

    @cached_property
    def widths(self) -> tuple[tuple[int, ...], ...]:
        """The parameter `by_head` of each layer and head, `[layers][heads]`; a `SuiteError` if its shape is wrong."""
        name, value = self.by_head, getattr(self, self.by_head)
        by_layer = value if isinstance(value, tuple) else (value,) * self.layers
        require(len(by_layer) == self.layers, name, value, f"one integer, or one for each of {self.layers} layers")
        full = tuple(row if isinstance(row, tuple) else (row,) * self.heads for row in by_layer)
        require({len(row) for row in full} == {self.heads}, name, value,
                f"in each layer one integer, or one for each of {self.heads} heads")
        return full

    @property
    def widest(self) -> int:
        return max(map(max, self.widths))

    def keys(self, layer: int, length: int) -> Keys:
        """Keys of every query in `layer` at `length` tokens."""
        raise NotImplementedError(f"{type(self).__name__} does not define keys")

    def attends(self, i: np.ndarray, j: np.ndarray, layer: int, length: int, head: int) -> np.ndarray:
        """The rule itself: whether query `i` attends key `j`, Boolean, for integer arrays that broadcast."""
        raise NotImplementedError(f"{type(self).__name__} does not define attends")

    @classmethod
    def examples(cls) -> list[Pattern]:
        """Small instances (1 to 8 layers, 1 to 4 heads) that show every option, for the tests and the gallery."""
        return [cls(**parameters) for parameters in cls.shown]

    def knobs(self, length: int) -> tuple[Knob, ...]:
        """What `match_edges` may turn, coarse first; the last one fills up, by layer and head where it may."""
        return ()

    def arguments(self, theta: torch.Tensor | None, layer: int) -> dict[str, torch.Tensor]:
        """What `sparse_attention` needs beside the pattern, from the layer's learned parameter: alpha, or spans."""
        return {}

    def half_width(self, step: int, steps: int) -> float | None:
        """Half-width of a blurred rung at optimiser step `step` of `steps`, tokens; None: rungs are not blurred."""
        return None

    def check(self, layer: int, length: int) -> None:
        require(0 <= layer < self.layers, "layer", layer, f"0 to layers - 1 = {self.layers - 1}")
        require(length >= 1, "length", length, "an integer of at least 1 (T, in tokens)")

    def mask(self, layer: int, length: int) -> np.ndarray:
        """The oracle: Boolean `[H, T, T]` from `attends` alone; True where query (row) attends key (column)."""
        self.check(layer, length)
        i, j = np.arange(length)[:, None], np.arange(length)[None, :]
        order = (j <= i) if self.causal else np.ones((length, length), bool)
        return np.stack([np.broadcast_to(self.attends(i, j, layer, length, h), order.shape) & order
                         for h in range(self.heads)])

    def pairs(self, length: int, layer: int | None = None) -> float:
        """Attended (query, key) pairs at `length`, the mean over heads; the sum over layers when `layer` is None."""
        self.check(layer or 0, length)
        which = range(self.layers) if layer is None else [layer]
        return float(sum(self.layer_pairs(at, length) for at in which))

    def layer_pairs(self, layer: int, length: int) -> float:
        """`pairs` of one layer. A pattern whose row sizes have a closed form overrides this, and draws nothing."""
        return count_pairs(self.plan(layer, length), length)

    def expected_pairs(self, length: int) -> float:
        """Expected `pairs`, without drawing a graph of thousands of tokens where a closed form exists."""
        return self.pairs(length)

    @lru_cache(maxsize=4096)
    def plan(self, layer: int, length: int) -> Keys:
        """`keys`, kept for the next call with an equal pattern, layer and length."""
        self.check(layer, length)
        return self.keys(layer, length)

    def mask_mod(self, layer: int, length: int, device: torch.device | str = "cpu") -> Callable[..., torch.Tensor]:
        """FlexAttention's `mask_mod(b, h, q_idx, kv_idx)`: a table look-up, by distance where the form allows it.

        An edge table becomes bits: T^2 / 8 bytes, for each head where heads differ. device: where q lies; on another
        one the table is copied at each call. Learned patterns use alpha = 1 and the full span.
        """
        import torch
        plan = self.plan(layer, length)
        listed = isinstance(plan, EdgeTable)
        if listed:
            heads, tables = [], plan.keys.reshape(-1, length, plan.keys.shape[-1])
            rows = np.stack([np.packbits(expand(EdgeTable(own), length)[0], axis=-1, bitorder="little")
                             for own in tables])                                        # (H or 1, T, T / 8)
        else:
            heads, d = offsets_by_head(plan), np.arange(1 - length, length)
            rows = np.stack([np.isin(d, offsets.distances) for offsets in heads])       # (H or 1, 2T - 1)
        table = torch.from_numpy(rows).to(device)
        leading = torch.tensor([offsets.leading for offsets in heads], device=device)

        def mod(b: Any, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
            here, head = table.to(q_idx.device), h if len(table) > 1 else 0 * h
            if listed:
                return (here[head, q_idx, kv_idx // 8] >> (kv_idx % 8)) & 1 == 1
            d = torch.where(kv_idx < length, q_idx - kv_idx, length)    # a key beyond `length` is an IndexError
            allowed = here[head, d + length - 1] | (kv_idx < leading.to(q_idx.device)[head])
            return allowed & (kv_idx <= q_idx) if self.causal else allowed
        return mod


def offsets_by_head(keys: Keys, rungs: bool = True) -> tuple[Offsets, ...]:
    """Offsets of each head, or of one for all, of any form but an edge table.

    A learned form is taken at its start (alpha = 1, full span), or without `rungs` its window alone.
    """
    if isinstance(keys, LearnedOffsets | SoftWindow):
        base = keys.base if rungs and isinstance(keys, LearnedOffsets) else ()
        return (Offsets(tuple(sorted({*range(keys.window + 1), *base}))),)
    return keys.heads if isinstance(keys, HeadOffsets) else (keys,)


def expand(keys: Keys, length: int, heads: int = 1) -> np.ndarray:
    """Boolean mask `[H, T, T]` of any form, for comparison with the oracle."""
    i, j = np.arange(length)[:, None], np.arange(length)[None, :]
    mask = np.zeros((heads, length, length), bool)
    for h in range(heads):
        if isinstance(keys, EdgeTable):
            table = keys.keys if keys.keys.ndim == 2 else keys.keys[h]
            rows, columns = np.nonzero(table >= 0)
            mask[h, rows, table[rows, columns]] = True
        else:
            of_heads = offsets_by_head(keys)
            offsets = of_heads[h if len(of_heads) > 1 else 0]
            mask[h] = np.isin(i - j, offsets.distances) | (j < offsets.leading)
            if offsets.causal:
                mask[h] &= j <= i
    return mask


def count_pairs(keys: Keys, length: int) -> float:
    """Attended pairs of one layer, the mean over its heads, without a `[T, T]` object."""
    if isinstance(keys, EdgeTable):
        return float((keys.keys >= 0).sum() / (keys.keys.shape[0] if keys.keys.ndim == 3 else 1))
    if isinstance(keys, HeadOffsets):
        by_form = {offsets: count_pairs(offsets, length) for offsets in set(keys.heads)}
        return sum(map(by_form.get, keys.heads)) / len(keys.heads)
    offsets, = offsets_by_head(keys)
    d = np.array(offsets.distances)
    total = np.maximum(0, length - abs(d)).sum()
    for j in range(min(offsets.leading, length)):                 # leading keys that no distance reaches already
        first = j if offsets.causal else 0                        # the first query that sees it
        total += length - first - np.count_nonzero((first <= d + j) & (d + j < length))
    return float(total)
