"""One attention call, checked: what every backend receives, and the cache that keeps what is built for it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from cachetools import LRUCache

from lib.errors import SuiteError, require
from lib.patterns.base import EdgeTable, HeadOffsets, Keys, LearnedOffsets, Pattern, SoftWindow

CACHE_BYTES = 256 * 2**20      # plans and masks together; a plan of 16,384 rows of 24 keys is 6 MiB
# An item has `nbytes`. One that is larger than the whole cache counts as the whole: it stays until the next one comes.
CACHE: LRUCache[Hashable, Any] = LRUCache(CACHE_BYTES, getsizeof=lambda item: min(item.nbytes, CACHE_BYTES))
_lock = threading.Lock()


def cached(key: Hashable, build: Callable[[], Any], stale: Callable[[Any], bool] = lambda item: False) -> Any:
    """The item of `key` in `CACHE`, built where it is missing or `stale`. Safe between threads."""
    with _lock:
        item = CACHE.get(key)
    if item is None or stale(item):
        item = build()
        with _lock:
            CACHE[key] = item
    return item


@dataclass(frozen=True, eq=False)
class Call:
    """q `[B, H, T, D]`, k and v `[B, G, T, D]`, and the keys of every query. Made by `checked` only."""
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    pattern: Pattern | None        # None when the caller gave bare keys
    keys: Keys
    layer: int
    alpha: torch.Tensor | None
    alpha_value: float | None      # read once: on an accelerator each read waits for the device
    span: torch.Tensor | None
    slopes: torch.Tensor | None

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        B, H, T, D = self.q.shape
        return B, H, self.k.shape[1], T, D

    @property
    def scale(self) -> float:
        return self.q.shape[-1] ** -0.5

    @property
    def out_dtype(self) -> torch.dtype:
        """As SDPA: the inputs' dtype, or autocast's."""
        return _autocast_dtype(self.q) or self.q.dtype

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """What a plan or a mask depends on, tensors' contents left out except the slopes."""
        rule = self.keys if self.pattern is None else self.pattern
        slopes = None if self.slopes is None else tuple(self.slopes.tolist())
        return rule, self.layer, *self.shape[1:4], self.q.device, slopes


def checked(q, k, v, pattern, layer, alpha, span, slopes) -> Call:
    """The call, if its shapes, devices, dtypes and parameters fit together; a `SuiteError` otherwise."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        require(x.ndim == 4, name, tuple(x.shape), "four dimensions [batch, heads, T, head size]")
        require(x.is_floating_point(), name, x.dtype, "a floating dtype")
        require(x.device == q.device, name, x.device, f"on the device of q, {q.device}")
        same = x.dtype == q.dtype or _autocast_dtype(q) is not None
        require(same, name, x.dtype, f"the dtype of q, {q.dtype}")
    B, H, T, D = q.shape
    require(min(q.shape) >= 1, "q", tuple(q.shape), "at least 1 in every dimension")
    require(k.shape == v.shape, "v", tuple(v.shape), f"the shape of k, {tuple(k.shape)}")
    fits = k.shape[0] == B and k.shape[2:] == q.shape[2:]
    require(fits, "k", tuple(k.shape), f"batch, T and head size as in q: [{B}, G, {T}, {D}]")
    require(k.shape[1] >= 1 and H % k.shape[1] == 0, "k", tuple(k.shape), f"G heads, a divisor of the {H} query heads")
    is_pattern = isinstance(pattern, Pattern)
    known = is_pattern or isinstance(pattern, Keys)
    require(known, "pattern", type(pattern).__name__, "a Pattern, or keys in a form of lib.patterns.base")
    keys = pattern.plan(layer, T) if is_pattern else pattern
    _check_keys(keys, H, T)
    alpha_value = _check_alpha(keys, alpha)
    _check_span(keys, H, span)
    if slopes is not None:
        require(tuple(slopes.shape) == (H,), "slopes", tuple(slopes.shape), f"one ALiBi slope a head, [{H}]")
        require(not slopes.requires_grad, "slopes", "requires_grad", "constants: ALiBi slopes are not learned")
    return Call(q, k, v, pattern if is_pattern else None, keys, layer, alpha, alpha_value, span, slopes)


def arithmetic(x: torch.Tensor) -> torch.dtype:
    """float64 for float64, float32 for all else: softmax in half precision loses the logits, and sums are slower."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward that refuses `create_graph=True`; torch would otherwise take its gradients for constants."""
    @functools.wraps(backward)
    def checked_backward(ctx, *grads):
        if torch.is_grad_enabled():
            raise SuiteError("create_graph = True is not valid: this attention has first derivatives only; "
                             "use backend='reference' for gradients of gradients")
        return backward(ctx, *grads)
    return checked_backward


def _autocast_dtype(q: torch.Tensor) -> torch.dtype | None:
    on = torch.is_autocast_enabled(q.device.type) and q.dtype != torch.float64
    return torch.get_autocast_dtype(q.device.type) if on else None


def _check_keys(keys: Keys, H: int, T: int) -> None:
    if isinstance(keys, HeadOffsets):
        require(len(keys.heads) == H, "pattern.heads", len(keys.heads), f"the number of query heads, {H}")
    if isinstance(keys, EdgeTable):
        table = keys.keys
        rows = table.ndim in (2, 3) and table.shape[-2] == T
        require(rows, "pattern", f"edge table {table.shape}", f"[T, C] or [H, T, C] with T = {T}")
        shared = table.ndim == 2 or table.shape[0] == H
        require(shared, "pattern.heads", table.shape[0], f"the number of query heads, {H}")


def _check_alpha(keys: Keys, alpha: torch.Tensor | None) -> float | None:
    if not isinstance(keys, LearnedOffsets):
        require(alpha is None, "alpha", alpha, "None, as the pattern's distances are not learned")
        return None
    shape = None if alpha is None else tuple(alpha.shape)
    require(shape == (), "alpha", shape, "a tensor of no dimension, shape (), as the pattern's distances are learned")
    value = float(alpha.detach())
    require(0.5 <= value <= 1.5, "alpha", value, "a number from 0.5 to 1.5")
    return value


def _check_span(keys: Keys, H: int, span: torch.Tensor | None) -> None:
    if not isinstance(keys, SoftWindow):
        require(span is None, "span", span, "None, as the pattern has no soft span")
        return
    shape = None if span is None else tuple(span.shape)
    require(shape == (H,), "span", shape, f"a tensor of shape ({H},), as each head learns its span")
    low = float(span.detach().min())
    require(low > -keys.ramp, "span", low,
            f"above -ramp = {-keys.ramp}; below it a query attends no key, not even itself")
