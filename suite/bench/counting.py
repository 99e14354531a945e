"""What a call must compute and move at the least, and what this machine was measured to reach."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from suite.bench.timing import by_clock

TRIALS = 5
SQUARE = {"cpu": 2048, "cuda": 8192}             # rows of the matrices whose product shows the speed of arithmetic
COPIED = {"cpu": 2**28, "cuda": 2**32}           # bytes of a tensor beyond any cache, whose copy shows that of memory

PASSES = ("forward", "forward+backward")


def flops(pairs: float, heads: int, head_dim: int, pass_: str) -> float:
    """Operations of attention over `pairs` (query, key) pairs in each of `heads` heads (batch times query heads).

    A multiplication and an addition count as two. Forward: a logit and a weighted value a pair, 2 D each. Backward: the
    gradients of weights, values, queries and keys, 2 D each; weights count as kept, the softmax as free.
    """
    return float(pairs) * heads * 2 * head_dim * (2 if pass_ == "forward" else 6)


def traffic(query_bytes: int, key_bytes: int, pass_: str) -> int:
    """Bytes to and from memory if every tensor is read or written once a pass and all else stays in cache.

    query_bytes: size of q, of the output and of their gradients. key_bytes: that of k, of v and of their gradients.
    """
    forward = 2 * query_bytes + 2 * key_bytes                                  # q, k, v in; the output out
    backward = 3 * query_bytes + 4 * key_bytes                                 # q, k, v, d_out in; d_q, d_k, d_v out
    return forward if pass_ == "forward" else forward + backward


def blocks(distances: Sequence[int], T: int, size: int = 128) -> tuple[float, float]:
    """Of the causal blocks of `size` x `size` pairs: the share with an attended pair, and the attended share of those.

    A kernel that skips empty blocks (FlexAttention) computes the first; the second of that is of use.
    """
    touched, pairs = set(), 0
    for d in (d for d in distances if d < T):
        i = np.arange(d, T)
        touched |= set(zip((i // size).tolist(), ((i - d) // size).tolist(), strict=True))
        pairs += len(i)
    rows = -(-T // size)
    return len(touched) / (rows * (rows + 1) / 2), pairs / (len(touched) * size**2)


@dataclass(frozen=True)
class Peak:
    """Operations and bytes a second, each the best of `TRIALS` after one that warms up."""
    flops: float
    bytes: float

    @classmethod
    def measured(cls, device: torch.device, dtype: torch.dtype, wait: Callable[[], None]) -> "Peak":
        """Of a large matrix product in `dtype`, and of a copy (counted as read and written), with all threads."""
        n, size, timed = SQUARE[device.type], COPIED[device.type], by_clock(wait)
        a, b = (torch.ones(n, n, dtype=dtype, device=device) for _ in range(2))
        source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
        product, copy = (min(timed(call, 1) for _ in range(TRIALS + 1))
                         for call in (lambda: torch.mm(a, b), lambda: target.copy_(source)))
        return cls(2 * n**3 / product, 2 * size / copy)
