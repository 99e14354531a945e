"""The exponential function in a form that LLVM turns into vector code; a call of the C library stays one number at a time."""

from __future__ import annotations

import math

import numpy as np
from numba.core import types
from numba.extending import overload

# exp(x) = 2^n exp(r), |r| <= ln(2) / 2; ln(2) in two parts, so that n ln(2) is exact in the first (Cody and Waite, 1980).
LOG2E, LN2_HIGH, LN2_LOW = np.float32(1.4426950408889634), np.float32(0.693359375), np.float32(-2.12194440e-4)
LEAST = np.float32(-87.0)           # below it float32 would leave its normal range: 0
TERMS = tuple(np.float32(1 / math.factorial(n)) for n in range(8))      # Taylor's, whose error at ln(2) / 2 is 5e-9


def exponential(x):
    """`exp(x)` for x <= 0 to two units in the last place of float32, exactly 0 below -87; of a float64 in full precision."""
    raise NotImplementedError("for kernels only")


@overload(exponential, inline="always")
def _(x):
    if x == types.float64:
        return lambda x: math.exp(x)

    def single(x):
        n = np.floor(x * LOG2E + np.float32(0.5))
        r = (x - n * LN2_HIGH) - n * LN2_LOW
        value = TERMS[7]
        value = value * r + TERMS[6]
        value = value * r + TERMS[5]
        value = value * r + TERMS[4]
        value = value * r + TERMS[3]
        value = value * r + TERMS[2]
        value = value * r + TERMS[1]
        value = value * r + TERMS[0]
        power = np.int32((np.int32(max(n, np.float32(-126))) + 127) << 23).view(np.float32)
        return np.float32(0) if x < LEAST else value * power            # not a number stays one
    return single
