"""The operations that the kernels are written with: rows of a head as vectors in registers, and the exponential.

Numba has loops and scalars only, and leaves to LLVM's guess what becomes a vector. Here a piece of a row is one LLVM
vector value: it stays in registers across a loop over keys, and four dot products share one tree of additions. LLVM
splits a vector into what the processor has (64 numbers of float32 are four AVX-512, eight AVX2 or sixteen NEON
registers).
"""

import hashlib
import math
from pathlib import Path

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import (NativeValue, intrinsic, models, overload, overload_attribute, register_model, typeof_impl,
                             unbox)

from lib.fused import kernels

BLOCK = 64                          # queries or keys of a task
WIDTHS = (64, 48, 32, 16)           # numbers of a piece
BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}
# Numba's cache on disk looks at the file of a kernel, not at what it calls. With this in the type of an argument, a
# kernel that was compiled with another version of one of these files is not found there.
FILES = [*sorted(Path(__file__).parent.glob("*.py")), Path(kernels.__file__)]
STAMP = hashlib.sha256(b"".join(path.read_bytes() for path in FILES)).hexdigest()[:12]

I8, I16, I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
LINE = 64                           # bytes of a cache line, or a divisor of it


class RowType(types.Type):
    """How a piece of a row lies in memory: `width` numbers of a dtype of `BYTES`. First argument of every kernel."""

    def __init__(self, width: int, dtype: str, stamp: str = STAMP) -> None:
        super().__init__(f"Row({width}, {dtype}, {stamp})")
        self.width, self.dtype = width, dtype
        # what is computed in: float32, or float64 for float64
        self.vector = Vector(types.float64 if dtype == "float64" else types.float32, width)


class Vector(types.Type):
    """`width` numbers of the type `scalar`, one value."""

    def __init__(self, scalar: types.Float, width: int) -> None:
        super().__init__(f"Vector({scalar}, {width})")
        self.scalar, self.width = scalar, width

    @property
    def llvm(self) -> ir.VectorType:
        return ir.VectorType(ir.DoubleType() if self.scalar == types.float64 else ir.FloatType(), self.width)


register_model(Vector)(lambda manager, vector: models.PrimitiveModel(manager, vector, vector.llvm))
# A row is its own type, and nothing at run time.
register_model(RowType)(models.OpaqueModel)
typeof_impl.register(RowType)(lambda row, context: row)
unbox(RowType)(lambda row, value, context: NativeValue(context.context.get_dummy_value()))


@overload_attribute(RowType, "nbytes", inline="always")
def _(row):
    nbytes = row.width * BYTES[row.dtype]
    return lambda row: nbytes


@intrinsic
def zero(typingctx, row):
    """A piece of zeros."""
    def codegen(context, builder, signature, arguments):
        return ir.Constant(row.vector.llvm, None)
    return row.vector(row), codegen


@intrinsic
def load(typingctx, row, address):
    """The piece of a row at an address, in the arithmetic's type."""
    def codegen(context, builder, signature, arguments):
        kind = row.vector.llvm if row.dtype != "bfloat16" else ir.VectorType(I16, row.width)
        value = builder.load(builder.inttoptr(arguments[1], kind.as_pointer()), align=BYTES[row.dtype])
        return value if row.dtype != "bfloat16" else kernels.widened(builder, value)
    return row.vector(row, types.int64), codegen


@intrinsic
def store(typingctx, row, address, vector):
    """Put a piece of a row to an address, rounded to nearest even where its dtype is narrower."""
    def codegen(context, builder, signature, arguments):
        _, address, value = arguments
        value = value if row.dtype != "bfloat16" else kernels.rounded(builder, value)
        builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=BYTES[row.dtype])
        return context.get_dummy_value()
    return types.none(row, types.int64, vector), codegen


def taken(builder, a, b, lanes):
    """Lanes of two vectors laid side by side."""
    lanes = list(lanes)
    return builder.shuffle_vector(a, b, ir.VectorType(I32, len(lanes))(lanes))


def plus_product(builder, total, a, b):
    """`total + a * b`, rounded once where the processor can."""
    product = builder.fmul(a, b, flags=("contract",))
    return product if total is None else builder.fadd(total, product, flags=("contract",))


@intrinsic
def fma(typingctx, total, factor, vector):
    """`total + factor * vector`; factor is a number."""
    def codegen(context, builder, signature, arguments):
        total, factor, vector = arguments
        alone = builder.insert_element(ir.Constant(vector.type, ir.Undefined), factor, I32(0))
        return plus_product(builder, total, taken(builder, alone, alone, [0] * vector.type.count), vector)
    return vector(vector, vector.scalar, vector), codegen


@intrinsic
def dot4(typingctx, a, b):
    """Four dot products `a[n] . b[n]` of tuples of four pieces, as a vector of 4."""
    def codegen(context, builder, signature, arguments):
        sums = []
        for n in range(4):
            x, y = (builder.extract_value(argument, n) for argument in arguments)
            total = None
            for start in range(0, x.type.count, 16):
                part = range(start, start + 16)
                total = plus_product(builder, total, taken(builder, x, x, part), taken(builder, y, y, part))
            sums.append(total)
        return added_up(builder, *sums)
    return Vector(a.dtype.scalar, 4)(a, b), codegen


def added_up(builder, a, b, c, d):
    """`(sum a, sum b, sum c, sum d)` of four vectors of 16, in groups of four lanes, which are added at the end."""
    def fours(x, y, step):
        low = [lane for i in range(0, 16, 4) for lane in (i, i + step, 16 + i, 16 + i + step)]
        return builder.fadd(taken(builder, x, y, low), taken(builder, x, y, [lane + 3 - step for lane in low]))
    total = fours(fours(a, b, 1), fours(c, d, 1), 2)
    for lanes in (8, 4):
        halves = (taken(builder, total, total, range(start, start + lanes)) for start in (0, lanes))
        total = builder.fadd(*halves)
    return total


@intrinsic
def put4(typingctx, array, n, r, four, add):
    """`array[n, r:r + 4] = four`, or `+= four` where `add` is true; without a check of bounds."""
    def codegen(context, builder, signature, arguments):
        array_type, (array, n, r, four, add) = signature.args[0], arguments
        array = context.make_array(array_type)(context, builder, array)
        item = cgutils.get_item_pointer(context, builder, array_type, array, (n, r), wraparound=False)
        pointer, align = builder.bitcast(item, four.type.as_pointer()), array_type.dtype.bitwidth // 8
        total = builder.fadd(builder.load(pointer, align=align), four)
        builder.store(builder.select(add, total, four), pointer, align=align)
        return context.get_dummy_value()
    return types.none(array, types.intp, types.intp, four, types.boolean), codegen


@intrinsic
def prefetch(typingctx, address):
    """Ask for the cache line at an address to be brought to the second-level cache."""
    def codegen(context, builder, signature, arguments):
        pointer = I8.as_pointer()
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer],
                                                    ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32]))
        builder.call(function, [builder.inttoptr(arguments[0], pointer), I32(0), I32(2), I32(1)])     # read, L2, data
        return context.get_dummy_value()
    return types.none(types.int64), codegen


@njit
def prefetch_rows(x, first, last, nbytes):
    """Prefetch `nbytes` of rows `first` to `last - 1` of x, an address and the bytes from row to row."""
    for r in range(first, last):
        for at in range(0, nbytes, LINE):
            prefetch(x[0] + r * x[1] + at)


@njit
def head_of(places, tensor, b, h):
    """Address of the first row of a head of a tensor, and bytes from row to row.

    places int64 `[n, 4]`: of each tensor the address, and the strides in bytes of batch element, head and token.
    """
    return places[tensor, 0] + b * places[tensor, 1] + h * places[tensor, 2], places[tensor, 3]


# exp(x) = 2^n exp(r), |r| <= ln(2) / 2; ln(2) in two parts, so that n ln(2) is exact in the first (Cody and Waite,
# 1980).
LOG2E, LN2_HIGH, LN2_LOW = np.float32(1.4426950408889634), np.float32(0.693359375), np.float32(-2.12194440e-4)
LEAST = np.float32(-87.0)           # below it float32 would leave its normal range: 0
TERMS = tuple(np.float32(1 / math.factorial(n)) for n in range(8))      # Taylor's, whose error at ln(2) / 2 is 5e-9


def exponential(x):
    """`exp(x)` for x <= 0 to two units in the last place of float32, 0 below -87; of float64 in full precision.

    LLVM turns this form into vector code; a call of the C library stays one number at a time. `lib.fused.kernels.exp`
    rounds otherwise (it is made for x above 0 too), so the two cannot be one without changing results.
    """


@overload(exponential, inline="always")
def _(x):
    if x == types.float64:
        return lambda x: math.exp(x)

    def single(x):
        n = np.floor(x * LOG2E + np.float32(0.5))
        r = (x - n * LN2_HIGH) - n * LN2_LOW
        high = ((TERMS[7] * r + TERMS[6]) * r + TERMS[5]) * r + TERMS[4]
        value = (((high * r + TERMS[3]) * r + TERMS[2]) * r + TERMS[1]) * r + TERMS[0]
        power = np.int32((np.int32(max(n, np.float32(-126))) + 127) << 23).view(np.float32)
        return np.float32(0) if x < LEAST else value * power            # NaN stays NaN
    return single
