"""The Triton kernel of quantised weights (backends/quantisation.py says how they are stored). Needs Triton,
like kernels.py.

It computes D[M,N] = activation(alpha A[M,K] B[K,N] + beta C + bias), one tile of D per program. Either A
(WEIGHTS_FIRST) or B is the weights, contiguous along k like the activations. A step loads bytes of weights,
dequantises them in registers to the activations' type, and multiplies on the matrix cores.

FORMAT: int8, int4, uint4 or fp4_e2m1; 4-bit elements are two to a byte, the even one in the low half. ZERO:
none, eight, uint4, float or shift. GROUP: elements of k that share a scale and a zero point, 0 if a whole row
does. SCALED: weights are multiplied by their scales before they are rounded. Otherwise they are exact
integers, and finish() scales the sums.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from backends.kernels.triton.kernels import finish, span, store_sums, tile_of


@triton.jit
def elements_of(stored, FORMAT: tl.constexpr):
    """The numbers of stored weights as fp32: [rows, bytes] -> [rows, k]."""
    nibbles = stored if FORMAT == "int8" else tl.interleave(stored & 15, stored >> 4)
    if FORMAT == "int4":  # the sign bit counts -8
        found = (nibbles ^ 8).to(tl.float32) - 8.0
    elif FORMAT == "fp4_e2m1":
        # Two bits of exponent and one of mantissa: twice the magnitude is 0, 1, 2, 3, 4, 6, 8 or 12.
        code = (nibbles & 7).to(tl.int32)
        twice = tl.where(code < 2, code, (2 + (code & 1)) << tl.maximum((code >> 1) - 1, 0))
        size = twice.to(tl.float32) * 0.5
        found = tl.where(nibbles > 7, -size, size)
    else:
        found = nibbles.to(tl.float32)
    return found


@triton.jit
def power_of_two(code):
    """2^(code - 127) of the byte of an e8m0 scale, NaN of 255."""
    exponent = code.to(tl.int32)
    bits = tl.where(exponent == 0, 0x00400000, exponent << 23)  # 2^-127 is below fp32's normal numbers
    return tl.where(exponent == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def by_group(values, ROWS: tl.constexpr, COUNT: tl.constexpr, BLOCK_K: tl.constexpr):
    """One value a row and group, [ROWS, COUNT], for every element of a step: [ROWS, BLOCK_K] or [ROWS, 1]."""
    found = values
    if COUNT > 1:
        each = tl.broadcast_to(values[:, :, None], (ROWS, COUNT, BLOCK_K // COUNT))
        found = tl.reshape(each, (ROWS, BLOCK_K))
    return found


@triton.jit
def dequantise(
    stored, rows, group, groups, scales, zeros, FORMAT: tl.constexpr, ZERO: tl.constexpr,
    GROUP: tl.constexpr, SCALED: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The weights [ROWS, BLOCK_K] of a step in fp32. `group` is its first group of k, `groups` those of a
    row."""
    found = elements_of(stored, FORMAT)
    if ZERO == "eight" or ZERO == "shift":
        found -= 8.0
    COUNT: tl.constexpr = BLOCK_K // GROUP if GROUP > 0 and BLOCK_K > GROUP else 1
    at = group + tl.arange(0, COUNT)[None, :]
    inside = at < groups
    index = rows[:, None] * groups + at
    if ZERO == "uint4":  # the four bytes of a word hold the zero points of eight rows
        word = rows[:, None] // 8 * groups + at
        pair = tl.load(zeros + word * 4 + rows[:, None] % 8 // 2, mask=inside, other=0)
        zero = tl.where(rows[:, None] % 2 == 0, pair & 15, pair >> 4)
        found -= by_group(zero.to(tl.float32), ROWS, COUNT, BLOCK_K)
    if ZERO == "float":
        zero = tl.load(zeros + index, mask=inside, other=0.0)
        found -= by_group(zero.to(tl.float32), ROWS, COUNT, BLOCK_K)
    if SCALED:
        scale = tl.load(scales + index, mask=inside, other=0)
        if FORMAT == "fp4_e2m1":
            scale = power_of_two(scale)
        found *= by_group(scale.to(tl.float32), ROWS, COUNT, BLOCK_K)
    if ZERO == "shift":
        zero = tl.load(zeros + index, mask=inside, other=0.0)
        found += by_group(zero.to(tl.float32), ROWS, COUNT, BLOCK_K)
    return found


@triton.jit
def dequant_gemm(
    a, b, c, d, bias, scales, zeros, partial, M, N, K, lda, ldb, ldc, ldd, alpha, beta, slice_steps,
    WEIGHTS_FIRST: tl.constexpr, FORMAT: tl.constexpr, ZERO: tl.constexpr, GROUP: tl.constexpr,
    SCALED: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
    WIDE: tl.constexpr, ALPHA_ONE: tl.constexpr, BETA: tl.constexpr, BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr, SCALE_A: tl.constexpr, SCALE_B: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """See kernels.py's gemm(). The leading dimension of the weights is in bytes."""
    if DEPENDENT:
        gdc_wait()
    row, column = tile_of(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rm, rn = span(row, BLOCK_M, WIDE), span(column, BLOCK_N, WIDE)
    # Rows outside an operand are read as its first row, which is cheaper than a mask.
    row_a, row_b = tl.where(rm < M, rm, 0), tl.where(rn < N, rn, 0)
    PACKED: tl.constexpr = 1 if FORMAT == "int8" else 2
    ROWS: tl.constexpr = BLOCK_M if WEIGHTS_FIRST else BLOCK_N
    if WEIGHTS_FIRST:
        weights, rows = a + row_a[:, None] * lda, row_a
        activations = b + row_b[:, None] * ldb
    else:
        weights, rows = b + row_b[:, None] * ldb, row_b
        activations = a + row_a[:, None] * lda
    steps = tl.cdiv(K, BLOCK_K)
    first = 0
    if SPLIT:
        first = tl.program_id(1) * slice_steps
        steps = tl.minimum(slice_steps, steps - first)
    groups = 1
    if GROUP > 0:
        groups = K // GROUP
    rk, bytes_k = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_K // PACKED)
    at_w = weights + span(first, BLOCK_K // PACKED, WIDE)[None, :]
    at_x = activations + span(first, BLOCK_K, WIDE)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(steps):
        from_k = (first + step) * BLOCK_K
        left = K - from_k
        if EVEN_K:
            stored, x = tl.load(at_w), tl.load(at_x)
        else:
            stored = tl.load(at_w, mask=(bytes_k * PACKED < left)[None, :], other=0)
            x = tl.load(at_x, mask=(rk < left)[None, :], other=0.0)
        group = 0
        if GROUP > 0:
            group = from_k // GROUP
        w = dequantise(
            stored, rows, group, groups, scales, zeros, FORMAT, ZERO, GROUP, SCALED, ROWS, BLOCK_K,
        ).to(x.dtype)  # fmt: skip
        if WEIGHTS_FIRST:
            total = tl.dot(w, x.T, total)
        else:
            total = tl.dot(x, w.T, total)
        at_w += BLOCK_K // PACKED
        at_x += BLOCK_K
    index = tl.zeros((), dtype=tl.int64)
    if SPLIT:
        if DEPENDENT:
            gdc_launch_dependents()
        store_sums(total, rm, rn, index, partial, M, N, 1, not WEIGHTS_FIRST, EVEN_M, EVEN_N)
    else:
        finish(
            total, rm, rn, index, c, d, bias, scales, scales, scales, M, N, ldc, ldd, 0, 0, alpha, beta,
            not WEIGHTS_FIRST, EVEN_M, EVEN_N, False, ALPHA_ONE, BETA, BIAS, ACTIVATION, SCALE_A, SCALE_B,
            False,
        )  # fmt: skip
