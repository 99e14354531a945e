"""One attention call, checked: what every backend receives; the cache of what is built for it; its keys, by head."""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from cachetools import LRUCache
from torch import Tensor

from lib.errors import SuiteError, require
from lib.fused.ops import in_memory, working_dtype
from lib.patterns.base import EdgeTable, HeadOffsets, Keys, LearnedOffsets, Offsets, Pattern, SoftWindow, expand
from lib.patterns.learned import fractional_rungs

CACHE_BYTES = 256 * 2**20      # plans and masks together; a plan of 16,384 rows of 24 keys is 6 MiB
# An item that is larger than the whole cache counts as the whole: it stays until the next one comes.
CACHE: LRUCache[Hashable, Any] = LRUCache(CACHE_BYTES, getsizeof=lambda kept: min(_nbytes(kept[1]), CACHE_BYTES))
_lock = threading.Lock()


def _nbytes(item: Any) -> int:
    """Of an array or tensor, or of those in a tuple, which may be a plan."""
    return sum(map(_nbytes, item)) if isinstance(item, tuple) else getattr(item, "nbytes", 0)


def cached(key: Hashable, build: Callable[[], Any], version: Hashable = None) -> Any:
    """The item of `key` in `CACHE`, built where it is missing or of another version. Safe between threads."""
    with _lock:
        known, item = CACHE.get(key, (None, None))
    if item is None or known != version:
        with torch.inference_mode(False), torch.device("cpu"):      # it must also serve training, and elsewhere
            item = build()
        with _lock:
            CACHE[key] = version, item
    return item


@dataclass(frozen=True, eq=False)
class Call:
    """q `[B, H, T, D]`, k and v `[B, G, T, D]`, and the keys of every query. Made by `checked` only."""
    q: Tensor
    k: Tensor
    v: Tensor
    pattern: Pattern | None        # None when the caller gave bare keys
    keys: Keys
    layer: int
    alpha: Tensor | None
    rungs: tuple[tuple[int, float, int], ...]   # `fractional_rungs`: alpha is read once, as an accelerator must wait
    span: Tensor | None
    slopes: Tensor | None

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        B, H, T, D = self.q.shape
        return B, H, self.k.shape[1], T, D

    @property
    def out_dtype(self) -> torch.dtype:
        """As SDPA: the inputs' dtype, or autocast's."""
        return _cast(self.q)

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """What a plan depends on, beside `steps`: contents of tensors are left out."""
        return self.keys if self.pattern is None else self.pattern, self.layer, *self.shape[1:4], self.q.device

    @property
    def steps(self) -> tuple[tuple[int, int], ...]:
        """Nearer distance and base distance of each rung: what a plan depends on of alpha."""
        return tuple((lo, f) for lo, _, f in self.rungs)

    @property
    def slope_values(self) -> tuple[float, ...] | None:
        return None if self.slopes is None else tuple(self.slopes.tolist())

    def distances(self) -> Tensor:
        """`i - j` of all pairs, `[T, T]`."""
        i = torch.arange(self.q.shape[2], device=self.q.device)
        return i[:, None] - i


class Backend(NamedTuple):
    """One implementation of the whole function."""
    attend: Callable[[Call], Tensor]                        # attention `[B, H, T, D]` in `call.out_dtype`
    supports: Callable[[Call], bool] = lambda call: True    # whether it can do a call, where nothing is missing
    missing: Callable[[], str] = str            # what this machine lacks for it and how to get that; empty: nothing


def plain(name: str, x: Tensor | None) -> Tensor | None:
    """An argument as every backend knows it: a dense tensor of torch's own class that a derivative may keep."""
    if x is None and name in ("alpha", "span", "slopes"):
        return None
    require(isinstance(x, Tensor), name, type(x).__name__, "a torch.Tensor")
    dense = x.layout == torch.strided and not x.is_nested and not hasattr(x, "__tensor_flatten__")
    require(dense, name, f"{type(x).__name__} in {x.layout}", "dense, by to_dense, to_padded_tensor or full_tensor")
    x = x.as_subclass(Tensor) if type(x) not in (Tensor, torch.nn.Parameter) and in_memory(x) else x
    return x.clone() if x.is_inference() and not torch.is_inference_mode_enabled() else x


def checked(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern | Keys, layer: int, alpha: Tensor | None,
            span: Tensor | None, slopes: Tensor | None) -> Call:
    """The call, if its shapes, devices, dtypes and parameters fit together; a `SuiteError` otherwise."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        require(x.ndim == 4, name, tuple(x.shape), "four dimensions [batch, heads, T, head size]")
        require(x.is_floating_point() and x.itemsize > 1, name, x.dtype, "a floating dtype of 16, 32 or 64 bits")
        require(x.device == q.device, name, x.device, f"on the device of q, {q.device}")
        require(_cast(x) == _cast(q), name, x.dtype, f"the dtype of q, {q.dtype}")
    B, H, T, D = q.shape
    require(min(q.shape) >= 1, "q", tuple(q.shape), "at least 1 in every dimension")
    require(k.shape == v.shape, "v", tuple(v.shape), f"the shape of k, {tuple(k.shape)}")
    G = k.shape[1]
    require(k.shape == (B, G, T, D), "k", tuple(k.shape), f"batch, T and head size as in q: [{B}, G, {T}, {D}]")
    require(G >= 1 and H % G == 0, "k", tuple(k.shape), f"G heads, a divisor of the {H} query heads")
    require(isinstance(pattern, Pattern | Keys), "pattern", type(pattern).__name__, "a Pattern or Keys of lib.patterns")
    keys = pattern.plan(layer, T) if isinstance(pattern, Pattern) else pattern
    heads = len(keys.heads) if isinstance(keys, HeadOffsets) else H
    if isinstance(keys, EdgeTable):
        *of_heads, rows, _ = keys.keys.shape if keys.keys.ndim in (2, 3) else (0, 0)
        require(rows == T, "pattern", f"edge table {keys.keys.shape}", f"[T, C] or [H, T, C] with T = {T}")
        heads = of_heads[0] if of_heads else H
    require(heads == H, "pattern.heads", heads, f"the number of query heads, {H}")
    for name, x, form, shape in (("alpha", alpha, LearnedOffsets, ()), ("span", span, SoftWindow, (H,))):
        learned, given = isinstance(keys, form), None if x is None else tuple(x.shape)
        wanted = f"a tensor of shape {shape}, as the pattern learns it" if learned else "None: the pattern learns none"
        require(given == (shape if learned else None), name, given, wanted)
    if slopes is not None:
        require(tuple(slopes.shape) == (H,), "slopes", tuple(slopes.shape), f"one ALiBi slope a head, [{H}]")
        require(not slopes.requires_grad, "slopes", "requires_grad", "constants: ALiBi slopes are not learned")
    try:
        low = [None if x is None else float(x.detach().min()) for x in (alpha, span, slopes)]
    except RuntimeError as error:
        raise SuiteError("alpha, span and slopes are read: give real numbers, and a loop in place of vmap") from error
    rungs = () if alpha is None else tuple(fractional_rungs(keys.base, keys.window, low[0], T))
    if span is not None:
        require(low[1] > -keys.ramp, "span", low[1], f"above -ramp = {-keys.ramp}; below it a query attends no key")
    return Call(q, k, v, pattern if isinstance(pattern, Pattern) else None, keys, layer, alpha, rungs, span, slopes)


def arithmetic(x: Tensor) -> torch.dtype:
    """float64 for float64, float32 for all else: softmax in half precision loses the logits, and sums are slower."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def in_rows(x: Tensor) -> Tensor:
    """x, with the numbers of a row side by side, each with its sign (a conjugate's imaginary part has a lazy one)."""
    return x.resolve_neg() if x.stride(-1) == 1 else x.contiguous().resolve_neg()


def _cast(x: Tensor) -> torch.dtype:
    return x.dtype if x.dtype == torch.float64 else working_dtype(x)


def refuse_empty(has_key: torch.Tensor | np.ndarray) -> None:
    """An error if a query has no key: softmax over no key is NaN. `has_key` is Boolean, queries last."""
    if not bool(has_key.all()):
        query = int(torch.as_tensor(~has_key).nonzero()[0, -1])
        raise SuiteError(f"pattern: query {query} attends no key; every query needs one, such as its own position")


def checked_table(keys: EdgeTable, T: int) -> np.ndarray:
    """An edge table, int32 `[H or 1, T, C]`.

    Its rows must ascend without repeats, end in -1s where they are short, name keys below T, and none may be empty.
    """
    table = keys.keys.reshape(-1, T, keys.keys.shape[-1])
    low, high = (int(table.min()), int(table.max())) if table.size else (-1, -1)
    within = -1 <= low and high < T
    require(within, "pattern", f"edge table of keys {low} to {high}", f"keys 0 to T - 1 = {T - 1}, or -1")
    left, right = table[..., :-1], table[..., 1:]
    ascends = (right > left) & (left >= 0) | (right == -1)
    require(bool(ascends.all()), "pattern", "edge table", "rows that ascend without repeats, with -1 at the end only")
    refuse_empty((table >= 0).any(-1))
    return np.ascontiguousarray(table, np.int32)


def keys_by_head(keys: Keys) -> bool:
    """Whether heads have keys of their own."""
    return isinstance(keys, HeadOffsets) or isinstance(keys, EdgeTable) and keys.keys.ndim == 3


def mask_of(keys: Keys, T: int, H: int) -> np.ndarray:
    """Boolean `[H or 1, T, T]`: whether a query has a key."""
    if isinstance(keys, EdgeTable):
        checked_table(keys, T)
    return expand(keys, T, H if keys_by_head(keys) else 1)


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


def by_key(key: np.ndarray, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Stable order of pairs that puts them key by key, and where each key's begin, `[keys + 1]`; `key` is below `keys`.
    """
    order = np.argsort(key.astype(np.uint16) if keys <= 2**16 else key, kind="stable")  # numpy sorts 16 bits by radix
    return order, np.concatenate([[0], np.bincount(key, minlength=keys).cumsum()])


def span_bias(span: torch.Tensor, ramp: int, columns: int) -> torch.Tensor:
    """Logarithm of a soft window's weights `clamp((span + ramp - d) / ramp, 0, 1)` at distances d below `columns`.

    span `[H]`: `[H, columns]`, -inf where a weight is 0 (no gradient there). Source: Adaptive Span, arXiv 1905.07799.
    """
    weight = ((span[:, None] + ramp - torch.arange(columns, device=span.device)) / ramp).clamp(0, 1)
    return torch.where(weight > 0, weight, 1).log().masked_fill(weight <= 0, float("-inf"))
