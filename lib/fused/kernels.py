"""The model's element-wise parts on a CPU, one pass over memory each: numba kernels for `lib.fused.ops`.

Arrays are C-contiguous; their numbers are float32, or bfloat16 as the uint16 that holds its bits. Arithmetic is
float32. A call does rows `ROWS * begin` to `ROWS * end`, so that several threads can share the work.

Results repeat bit for bit, wherever the arrays lie. LLVM has two versions of a loop that stores: vector code, and plain
code for arrays that may overlap, by a test that neighbours in memory fail too. So a loop that stores has IEEE
arithmetic, of which every version gives the same; sums in any order are loops that only read.

An inner loop becomes vector code where it runs over whole rows (`x[n, F:]`, then `[c]`): an index that is computed
might be negative for all that numba knows, and costs a choice a number.
"""

import math

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core.caching import FunctionCache
from numba.extending import intrinsic, overload

DTYPES = (torch.float32, torch.bfloat16)
ROWS = 64                   # rows of a block; a gain's gradient is summed over each, then over blocks: less rounding

kernel = njit(cache=True, nogil=True, error_model="numpy")
summing = njit(fastmath={"reassoc", "contract"})      # for loops that store nothing; without "nnan": NaN must stay NaN
WORD = ir.IntType(32)
one, half = np.float32(1), np.float32(0.5)


def load_or_forget(cache: FunctionCache, *given, load=FunctionCache.load_overload):
    """What numba has kept of a kernel; a cache that cannot be read is emptied, and the kernel is compiled again."""
    try:
        return load(cache, *given)
    except Exception:                   # of pickle, of what it has read instead, or of the system
        cache.flush()


FunctionCache.load_overload = load_or_forget


def array(x: torch.Tensor) -> np.ndarray:
    """The numbers of a contiguous tensor, shared, as the kernels take them."""
    x = x.detach().resolve_neg()
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


def pairs(x: torch.Tensor) -> np.ndarray:
    """As `array`, two neighbours as one: complex64, or a uint32 that holds two bfloat16."""
    return array(x).view(np.uint32 if x.dtype == torch.bfloat16 else np.complex64)


def alike(kind: ir.Type, scalar: ir.Type) -> ir.Type:
    """`scalar`, or a vector of it as long as the vector `kind`."""
    return ir.VectorType(scalar, kind.count) if isinstance(kind, ir.VectorType) else scalar


def every(kind: ir.Type, number: int) -> ir.Constant:
    return kind([number] * kind.count if isinstance(kind, ir.VectorType) else number)


def widened(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """float32 of bfloat16 bits, a number or a vector."""
    words = alike(bits.type, WORD)
    return builder.bitcast(builder.shl(builder.zext(bits, words), every(words, 16)), alike(bits.type, ir.FloatType()))


def rounded(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """bfloat16 bits of float32, a number or a vector: the nearest, ties to even; NaN stays NaN."""
    words = alike(value.type, WORD)
    word = builder.bitcast(value, words)
    odd = builder.and_(builder.lshr(word, every(words, 16)), every(words, 1))
    nearest = builder.add(word, builder.add(odd, every(words, 0x7FFF)))
    quiet = builder.or_(word, every(words, 0x400000))           # rounding could carry a NaN over to zero
    word = builder.select(builder.fcmp_unordered("uno", value, value), quiet, nearest)
    return builder.trunc(builder.lshr(word, every(words, 16)), alike(value.type, ir.IntType(16)))


@intrinsic
def wide(typing, x):
    """float32 of a stored number."""
    def code(context, builder, signature, arguments):
        return arguments[0] if x == types.float32 else widened(builder, arguments[0])
    return types.float32(x), code


@intrinsic
def narrow(typing, x, like):
    """What stores the float32 `x` in an array whose numbers are `like`: the nearest, ties to even."""
    def code(context, builder, signature, arguments):
        return arguments[0] if like == types.float32 else rounded(builder, arguments[0])
    return like(x, like), code


def split(pair):
    """float32 of both numbers of a pair."""


def joined(x, y, like):
    """What stores two float32 as a pair like `like`."""


@overload(split)
def _(pair):
    if isinstance(pair, types.Complex):
        return lambda pair: (pair.real, pair.imag)
    return lambda pair: (wide(np.uint16(pair)), wide(np.uint16(pair >> 16)))


@overload(joined)
def _(x, y, like):
    if isinstance(like, types.Complex):
        return lambda x, y, like: np.complex64(complex(x, y))
    return lambda x, y, like: np.uint32(narrow(x, np.uint16(0)) | narrow(y, np.uint16(0)) << 16)


@intrinsic
def fma(typing, x, y, z):
    """`x * y + z`, rounded once."""
    def code(context, builder, signature, arguments):
        return builder.fma(*arguments)
    return types.float32(x, y, z), code


@intrinsic
def maximum(typing, x, y):
    """Maximum of x and y; NaN if either is NaN. Of Python's `max` LLVM makes no vector code."""
    def code(context, builder, signature, arguments):
        number = ir.FloatType()
        function = builder.module.declare_intrinsic("llvm.maximum", [number], ir.FunctionType(number, [number, number]))
        return builder.call(function, arguments)
    return types.float32(x, y), code


SHIFT = np.float32(1.5 * 2 ** 23)
LOG2_E, LN2_HIGH, LN2_LOW = np.float32(1 / math.log(2)), np.float32(0.693359375), np.float32(-2.12194440e-4)
E0, E1, E2, E3, E4 = (np.float32(c) for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2,
                                              1.6666665459e-1))


@njit
def exp(x):
    """To 2e-7 of the value, for x up to 88; 0 below -87. Becomes vector instructions, unlike a call of `math.exp`."""
    shifted = fma(x, LOG2_E, SHIFT)
    n = shifted - SHIFT
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))
    p = fma(fma(fma(fma(fma(E0, r, E1), r, E2), r, E3), r, E4), r, half)
    power = np.int32((np.float32(shifted).view(np.int32) << 23) + 0x3F800000).view(np.float32)      # 2 ** n
    return np.float32(0) if x < np.float32(-87) else fma(p * r, r, r + one) * power


@njit
def sigmoid(x):
    return one / (one + exp(np.float32(88) if x < np.float32(-88) else -x))


@summing
def squares(row):
    total = np.float32(0)
    for c in range(len(row)):
        total += wide(row[c]) * wide(row[c])
    return total


@summing
def triple(a, b, c):
    """Sum of the products of three rows."""
    total = np.float32(0)
    for n in range(len(a)):
        total += wide(a[n]) * wide(b[n]) * wide(c[n])
    return total


@summing
def summed(row):
    total = np.float32(0)
    for c in range(len(row)):
        total += row[c]
    return total


@kernel
def norm(x, gain, eps, out, scale, begin, end):
    """x `[N, C]`: `scale[n] = (mean(x[n] ** 2) + eps) ** -0.5`, `out = gain * x * scale`."""
    N, C = x.shape
    for n in range(ROWS * begin, min(ROWS * end, N)):
        row, result = x[n], out[n]
        r = one / np.sqrt(squares(row) / np.float32(C) + eps)
        scale[n] = r
        for c in range(C):
            result[c] = narrow(wide(row[c]) * r * wide(gain[c]), result[c])


@kernel
def norm_back(grad, x, scale, gain, d_x, d_gain, begin, end):
    """d_gain `[ceil(N / ROWS), C]`, zeros before: sums over `ROWS` rows each."""
    N, C = x.shape
    for n in range(ROWS * begin, min(ROWS * end, N)):
        r, grads, row, result, part = scale[n], grad[n], x[n], d_x[n], d_gain[n // ROWS]
        along = triple(grads, row, gain) * r / np.float32(C)
        for c in range(C):
            g, unit = wide(grads[c]), wide(row[c]) * r
            part[c] += g * unit
            result[c] = narrow((g * wide(gain[c]) - unit * along) * r, result[c])


@kernel
def swiglu(x, out, begin, end):
    """x `[N, 2F]`, gate beside up: `out = silu(gate) * up`, `[N, F]`."""
    N, F = out.shape
    for n in range(ROWS * begin, min(ROWS * end, N)):
        gates, ups, results = x[n, :F], x[n, F:], out[n]
        for c in range(F):
            gate = wide(gates[c])
            results[c] = narrow(gate * sigmoid(gate) * wide(ups[c]), results[c])


@kernel
def swiglu_back(grad, x, d_x, begin, end):
    N, F = grad.shape
    for n in range(ROWS * begin, min(ROWS * end, N)):
        grads, gates, ups, d_gates, d_ups = grad[n], x[n, :F], x[n, F:], d_x[n, :F], d_x[n, F:]
        for c in range(F):
            d, gate = wide(grads[c]), wide(gates[c])
            share = sigmoid(gate)
            d_gates[c] = narrow(d * wide(ups[c]) * share * (one + gate * (one - share)), d_gates[c])
            d_ups[c] = narrow(d * gate * share, d_ups[c])


@kernel
def turn(x, at, out, to, heads, turns, begin, end):
    """`out[n, to + h] = x[n, at + h] * turns[n % T]` for h below `heads`.

    x and out `[N, .., D / 2]` of pairs (`pairs`), turns complex64 `[T, D / 2]`.
    """
    for n in range(ROWS * begin, min(ROWS * end, len(x))):
        row = turns[n % len(turns)]
        for h in range(heads):
            before, after = x[n, at + h], out[n, to + h]
            for c in range(len(row)):
                a, b = split(before[c])
                real, imaginary = row[c].real, row[c].imag
                after[c] = joined(a * real - b * imaginary, a * imaginary + b * real, after[c])


@kernel
def surprise(logits, targets, losses, begin, end):
    """`losses[n] = -log softmax(logits[n])[targets[n]]`; the logits `[N, V]` become its gradient by them."""
    N, V = logits.shape
    share = np.empty(V, np.float32)
    for n in range(ROWS * begin, min(ROWS * end, N)):
        row, target = logits[n], targets[n]
        if not 0 <= target < V:
            raise IndexError("a target lies outside the vocabulary")
        aim, top = wide(row[target]), wide(row[0])
        for c in range(V):
            top = maximum(top, wide(row[c]))
        for c in range(V):
            share[c] = exp(wide(row[c]) - top)
        mass = summed(share)
        losses[n] = top - aim + np.log(mass)
        share[target] -= mass
        over = one / mass
        for c in range(V):
            row[c] = narrow(share[c] * over, row[c])
