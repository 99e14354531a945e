"""Bases of rungs and the schedules that scale them. Source: Fibonacci document, section 3.

alpha is a double, as in the published code: some distances `round(alpha * f)` lie at a half (audit row 26).
"""

import math
from bisect import bisect
from typing import Literal

import numpy as np

from lib.errors import require

Base = Literal["fibonacci", "matched_pow2", "pow2"]
Schedule = Literal["coprime", "descending", "fixed", "linear", "permuted"]


def fibonacci(count: int) -> tuple[int, ...]:
    """The `count` numbers 1, 2, 3, 5, 8, …; 15 of them reach 987."""
    numbers = [1, 2]
    while len(numbers) < count:
        numbers.append(numbers[-2] + numbers[-1])
    return tuple(numbers[:count])


def matched_pow2(count: int) -> tuple[int, ...]:
    """Geometric base with as many rungs as `fibonacci(count)` and its reach F: integers nearest `F^(n/(count-1))`.

    `m` is nearest to `x` where `m = (floor(2x) + 1) // 2`. `floor(2x)` is the last integer whose power does not exceed
    that of `2x`: no float rounds anything.
    """
    reach, order = fibonacci(count)[-1], max(1, count - 1)
    doubled = range(1, 2 * reach + 1)
    return tuple((bisect(doubled, 2 ** order * reach ** n, key=lambda m: m ** order) + 1) // 2 for n in range(count))


def base_rungs(base: str, count: int, length: int) -> tuple[int, ...]:
    """Rungs of a base at `length` tokens. `pow2`, the paper's control, has as many as fit: 1, 2, 4, ... < length."""
    if base == "fibonacci":
        return fibonacci(count)
    return matched_pow2(count) if base == "matched_pow2" else tuple(1 << n for n in range((length - 1).bit_length()))


def coprime_stride(layers: int) -> int:
    """The largest s with 1 < s <= L // 2 that is coprime to L: 7 for 16, 3 for 8, none for 2, 3, 4 and 6 (an error)."""
    strides = [s for s in range(2, layers // 2 + 1) if math.gcd(s, layers) == 1]
    require(bool(strides), "schedule", "coprime",
            f"it needs a stride 1 < s <= L // 2 coprime to the depth, and layers = {layers} has none")
    return strides[-1]


def schedule_alphas(schedule: str, layers: int, seed: int = 0) -> tuple[float, ...]:
    """alpha of each layer: 1, or the ramp `0.5 + l / (L - 1)` in the order of the schedule; 1 where L = 1."""
    if schedule == "fixed" or layers == 1:
        return (1.0,) * layers
    order = list(range(layers))
    if schedule == "coprime":
        stride = coprime_stride(layers)
        order = [stride * at % layers for at in order]
    elif schedule == "descending":
        order.reverse()
    elif schedule == "permuted":
        order = np.random.default_rng(seed).permutation(layers).tolist()
    return tuple(0.5 + step / (layers - 1) for step in order)
