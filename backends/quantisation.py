"""Quantised weights: how their elements, scales and zero points are stored, and which combinations exist.

A product of 16-bit activations by quantised weights, x[m,k] w[n,k] transposed, means

    D = x W^T with W[i,k] = (q[i,k] - z[i,g]) * s[i,g]    in real arithmetic, g = k // group

In canonical terms the weights are A, transposed: every row of q is contiguous along k. 4-bit integers are
packed two to a byte, the even k in the low half. Scales are [n, groups], contiguous along the groups: one
group of 32, 64 or 128 elements of k (scale block_1x32, block_1x64, block_1x128), or all of k (outer); or one
scale for the whole matrix (tensor). The zero point is one of ZEROS:

    none    z = 0
    eight   z = 8
    uint4   stored as compressed-tensors does: 32-bit words [n / 8, groups] with the 4 bits of row 8 r + i at
            bit 4 i of word [r, g]
    float   stored like the scales, in their type: W = (q - z) * s (HQQ)
    shift   stored like the scales, in their type: W = (q - 8) * s + z (tinygemm and torchao)

Weights of fp8_e4m3 are one to a byte and have no zero point. They have the same scales, or one scale for 128
rows by 128 elements of k (block_128x128), [n / 128 rounded up, k / 128]. A weight that is NaN makes its row's
sums NaN.

MXFP4 (OCP Microscaling Formats 1.0) has q of fp4_e2m1, packed like 4-bit integers, and scales of fp8_e8m0,
one a group of 32 (block_1x32): the byte e is 2^(e - 127). There is no zero point. A scale of 255 is NaN, and
so is then every weight of its group; weights are packed without one, and kernels and the reference carry it
to the sums.

A product of two MXFP4 operands, x[m,k] w[n,k] transposed, has both stored so, each with its own scales:

    D = X W^T with X[i,k] = x[i,k] * 2^(e[i, k // 32] - 127), and W alike
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dtypes import DTYPES, E2M1, FP4, FP8_WEIGHT, INTEGER
from backends.errors import InvalidProblem
from backends.problem_rules import BLOCKS, MX_SCALE_DTYPES, ProblemFields, check_flag, one_of

#: Zero points of quantised weights.
ZEROS = ("none", "eight", "uint4", "float", "shift")
#: Zero points that are stored.
STORED_ZEROS = ("uint4", "float", "shift")
#: Sizes of a group of k that shares a scale, by the scale's name.
GROUPS = {"block_1x32": 32, "block_1x64": 64, "block_1x128": 128}
#: The scale of blocks of rows, which weights of fp8 alone have.
SQUARE = "block_128x128"
#: How many 8-bit floats of a group have errors of their own if numbers are uniform in [0, 1): one divided by
#: the sum of the squares of the codes' probabilities. A binade has eight codes, and half of the next one's
#: numbers.
_UNIFORM_FLOATS = 24
#: Rows whose 4-bit zero points share a word.
ZERO_ROWS = 8

#: The scale of MXFP4, and its elements of k.
MX_SCALE, MX_GROUP = "block_1x32", 32
#: The byte of an e8m0 scale that is NaN, and the exponents of the others.
MX_NAN, MX_EXPONENTS = 255, (-127, 127)

#: Names of scales that no problem has, and that a message of e2m1 weights names.
NVFP4_SCALES = ("block_1x16", "group_16")

#: Scale -> another word for it on the wire, which people write.
_WORDS = {"outer": "row", **{name: f"group_{size}" for name, size in GROUPS.items()}}
#: Of weights, after what they are: the same in column-major terms and in row-major ones.
TRANSPOSED = "and transposed, as F.linear's w[n,k]: give a row-major problem trans_b (--trans-b)"

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]


def check_weights(p: ProblemFields) -> None:
    """Checks what only quantised weights have, and that nothing else has it; and products of MXFP4. Raises
    InvalidProblem."""
    one_of(p.zero_a, "zero_a", ZEROS)
    _check_prepacked(p)
    if p.mx_product:
        _check_mx_product(p)
    if not p.weight_only:
        if p.zero_a != "none":
            raise InvalidProblem(f"zero_a {p.zero_a} is of quantised weights, not of {p.dtype_a}", "zero_a")
        return
    if p.trans_a != "T":
        raise InvalidProblem(
            f"trans_a {p.trans_a}: weights of {p.dtype_a} are contiguous along k {TRANSPOSED}", "trans_a"
        )
    if p.batch != 1:
        raise InvalidProblem(f"batch {p.batch}: quantised weights are of one product", "batch")
    for name in ("scale_b", "scale_d"):
        if getattr(p, name) != "none":
            raise InvalidProblem(f"{name} {getattr(p, name)}: only the weights have scales here", name)
    scales = scales_of(p.dtype_a)
    if p.scale_a not in scales:
        known, kind = ", ".join(map(scale_words, scales)), p.dtype_a
        raise InvalidProblem(
            f"scale_a {p.scale_a} is no scale of quantised weights of {kind}; known: {known}", "scale_a"
        )
    _check_sizes(p)
    _check_zero(p)


def _check_prepacked(p: ProblemFields) -> None:
    check_flag(p.prepacked, "prepacked")
    if p.prepacked and not p.weight_only:
        raise InvalidProblem(
            f"prepacked true is of quantised weights, not of {p.dtype_a} x {p.dtype_b}: leave it out",
            "prepacked",
        )
    if p.prepacked and p.groups:
        raise InvalidProblem(
            "prepacked true: weights of groups are read as they are stored; leave it out", "prepacked"
        )


def scale_words(scale: str) -> str:
    """A scale and in brackets the word for it that problems may have on the wire: outer (row), block_1x128
    (group_128); its name alone where there is none."""
    return f"{scale} ({_WORDS[scale]})" if scale in _WORDS else scale


def scales_of(dtype_a: str) -> tuple[str, ...]:
    """The scales that weights of a type may have."""
    if dtype_a == FP4:
        return (MX_SCALE,)
    return ("tensor", "outer", *GROUPS, *((SQUARE,) if dtype_a == FP8_WEIGHT else ()))


def check_mx(p: ProblemFields) -> None:
    """Checks the scales of e2m1 operands, with the names of what they would be. Raises InvalidProblem."""
    if not (p.mx or p.mx_product):
        return
    nvfp4 = (
        "NVFP4, of e4m3 scales of groups of 16 and an fp32 scale of the matrix, is not supported; MXFP4 has "
    )
    for name in ("scale_a", "scale_b") if p.mx_product else ("scale_a",):
        if getattr(p, name) in NVFP4_SCALES:
            raise InvalidProblem(f"{name} {getattr(p, name)}: {nvfp4}groups of 32 (block_1x32)", name)
    if p.scale_dtype in ("fp8_e4m3", "fp32"):
        raise InvalidProblem(f"scale_dtype {p.scale_dtype}: {nvfp4}scales of fp8_e8m0", "scale_dtype")


def _check_mx_product(p: ProblemFields) -> None:
    """Checks the layout, the scales and k of a product of two MXFP4 operands."""
    for name, along_k in (("trans_a", "T"), ("trans_b", "N")):
        if getattr(p, name) != along_k:
            raise InvalidProblem(
                f"{name} {getattr(p, name)}: operands of {FP4} are contiguous along k, x[m,k] as it is and w "
                f"{TRANSPOSED}",
                name,
            )
    if p.batch != 1:
        raise InvalidProblem(f"batch {p.batch}: products of {FP4} are single ones", "batch")
    for name in ("scale_a", "scale_b"):
        if getattr(p, name) != MX_SCALE:
            known = f"{scale_words(MX_SCALE)} on both sides"
            raise InvalidProblem(f"{name} {getattr(p, name)} is no scale of {FP4}; known: {known}", name)
    if p.scale_d != "none":
        raise InvalidProblem(f"scale_d {p.scale_d}: only the operands of {FP4} have scales", "scale_d")
    if p.k % MX_GROUP:
        raise InvalidProblem(f"k {p.k} is no multiple of the scale's group of {MX_GROUP}", "k")
    for name in ("lda", "ldb"):
        if getattr(p, name) % 2:
            raise InvalidProblem(
                f"{name} {getattr(p, name)} is odd: two elements of {FP4} share a byte", name
            )


def _check_sizes(p: ProblemFields) -> None:
    group, packing = group_size(p.scale_a), DTYPES[p.dtype_a].packing
    if group is not None and p.k % group:
        raise InvalidProblem(
            f"k {p.k} is no multiple of the scale's group of {group}: pad the weights and rows to "
            f"k {-(-p.k // group) * group}, or give scales of groups that divide it",
            "k",
        )
    for name in ("k", "lda", *(("stride_a",) if p.groups else ())):
        if getattr(p, name) % packing:
            raise InvalidProblem(
                f"{name} {getattr(p, name)} is odd: two elements of {p.dtype_a} share a byte; pad it by one",
                name,
            )


def _check_zero(p: ProblemFields) -> None:
    if p.mx and p.zero_a != "none":
        raise InvalidProblem(f"zero_a {p.zero_a}: {FP4} has a sign, and MXFP4 no zero point", "zero_a")
    if p.dtype_a != "uint4" and p.zero_a != "none":
        instead = "" if p.dtype_a == FP8_WEIGHT else "; store the weights as uint4"
        raise InvalidProblem(
            f"zero_a {p.zero_a}: {p.dtype_a} is signed and has no zero point{instead}", "zero_a"
        )
    if p.scale_a == "tensor" and p.zero_a in STORED_ZEROS:
        raise InvalidProblem(
            f"zero_a {p.zero_a} is one a group or a row; a single scale has none or eight", "zero_a"
        )
    if p.zero_a == "uint4" and p.m % ZERO_ROWS:
        raise InvalidProblem(
            f"m {p.m}: zero points of uint4 are packed {ZERO_ROWS} rows to a word, and the weights have "
            f"{p.m} rows",
            "m",
        )


def group_size(scale: str) -> int | None:
    """Elements of k that share a scale of this name; None where a whole row, or all, have one."""
    return BLOCKS[SQUARE][1] if scale == SQUARE else GROUPS.get(scale)


def group_of(p: ProblemFields) -> int:
    """Elements of k that share a scale and a zero point."""
    return group_size(p.scale_a) or p.k


def scale_rows(p: ProblemFields) -> int:
    """Rows of weights that share a scale of a group: one, or those of a block. (A single scale is apart.)"""
    return BLOCKS[SQUARE][0] if p.scale_a == SQUARE else 1


def groups_of(p: ProblemFields) -> int:
    """Groups of k in a row."""
    return p.k // group_of(p)


def unpacked(p: ProblemFields, stored: Array) -> Float:
    """The integers (floats' numbers) of stored weights, [..., bytes] -> [..., k], as float64."""
    if DTYPES[p.dtype_a].packing == 1:
        return stored.astype(np.float64)
    low, high = stored & 15, stored >> 4
    nibbles = np.stack([low, high], axis=-1).reshape(*stored.shape[:-1], -1)
    if p.dtype_a == FP4:
        return np.array(E2M1)[nibbles]
    found = nibbles.astype(np.float64)
    return np.where(found > 7, found - 16, found) if p.dtype_a == "int4" else found


def mx_numbers(stored: Array, scales: Array) -> Float:
    """The numbers of an MXFP4 operand [..., rows, k] in float64: of bytes [..., rows, k / 2] as stored, and
    scales [..., rows, k / 32] of e8m0."""
    low, high = stored & 15, stored >> 4
    nibbles = np.stack([low, high], axis=-1).reshape(*stored.shape[:-1], -1)
    numbers: Float = np.array(E2M1)[nibbles]
    numbers *= np.repeat(scales.astype(np.float64), MX_GROUP, axis=-1)
    return numbers


def packed(integers: Array, dtype_a: str) -> Array:
    """Integers (numbers of floats) [..., k] as weights of `dtype_a` are stored: the inverse of unpacked().
    Raises ValueError for one that the type does not have, and for an odd k of a 4-bit type."""
    kind = DTYPES[dtype_a]
    if dtype_a == FP4:
        return _pairs(_e2m1_codes(integers), kind.name)
    if dtype_a == FP8_WEIGHT:
        return _e4m3(integers)
    low = 0 if dtype_a.startswith("u") else -(2 ** (kind.bits - 1))
    high = low + 2**kind.bits - 1
    if integers.size and not (low <= integers.min() and integers.max() <= high):
        raise ValueError(f"{dtype_a} holds {low} to {high}, not {integers.min()} to {integers.max()}")
    if kind.packing == 1:
        return integers.astype(kind.storage)
    return _pairs((integers.astype(np.int16) & 15).astype(np.uint8), dtype_a)


def _pairs(nibbles: Array, dtype_a: str) -> Array:
    """Two to a byte, the even one in the low half."""
    if nibbles.shape[-1] % 2:
        raise ValueError(f"two elements of {dtype_a} share a byte: {nibbles.shape[-1]} is odd")
    pairs: Array = nibbles[..., 0::2] | nibbles[..., 1::2] << 4
    return pairs


def _e4m3(numbers: Array) -> Array:
    found: Array = numbers.astype(DTYPES[FP8_WEIGHT].storage)
    other = found.astype(np.float64) != numbers
    if other.any():
        raise ValueError(f"{FP8_WEIGHT} does not hold {numbers[other][0]}: round to it first")
    return found


def _e2m1_codes(numbers: Array) -> Array:
    magnitudes, sizes = np.array(E2M1[:8]), np.abs(numbers)
    codes = np.searchsorted(magnitudes, sizes).clip(0, 7)
    other = magnitudes[codes] != sizes
    if other.any():
        raise ValueError(f"{FP4} holds 0, 0.5, 1, 1.5, 2, 3, 4 and 6 with a sign, not {numbers[other][0]}")
    found: Array = (codes | np.signbit(numbers) << 3).astype(np.uint8)
    return found


def packed_scales(scales: Array) -> Array:
    """Scales of MXFP4, powers of two from 2^-127 to 2^127, as stored, one byte each. Raises ValueError for
    others, NaN among them: a group whose scale is NaN has no numbers."""
    mantissas, exponents = np.frexp(scales.astype(np.float64))
    exponents = exponents - 1
    low, high = MX_EXPONENTS
    other = (mantissas != 0.5) | (exponents < low) | (exponents > high)
    if other.any():
        raise ValueError(
            f"scales of MXFP4 are powers of two from 2^{low} to 2^{high}, not {scales[other][0]}"
        )
    codes: Array = (exponents - low).astype(np.uint8).view(DTYPES[MX_SCALE_DTYPES[0]].storage)
    return codes


def unpacked_zeros(stored: Array) -> Float:
    """4-bit zero points as stored, bytes [n / 8, 4 groups], as float64 [n, groups]."""
    words = np.stack([stored & 15, stored >> 4], axis=-1)  # [n / 8, 4 groups, 2]
    rows, size = stored.shape
    by_word = words.reshape(rows, size // 4, ZERO_ROWS)
    return by_word.transpose(0, 2, 1).reshape(rows * ZERO_ROWS, size // 4).astype(np.float64)


def packed_zeros(zeros: Array) -> Array:
    """Zero points [n, groups] of 0 to 15 as stored, bytes [n / 8, 4 groups]: the inverse of unpacked_zeros().
    Raises ValueError for one beyond that range, and unless n is a multiple of 8."""
    n, groups = zeros.shape
    if n % ZERO_ROWS:
        raise ValueError(f"zero points of {ZERO_ROWS} rows share a word: {n} rows are no multiple")
    if zeros.size and not (zeros.min() >= 0 and zeros.max() <= 15):
        raise ValueError(f"zero points are 0 to 15, not {zeros.min()} to {zeros.max()}")
    by_word = zeros.astype(np.uint8).reshape(n // ZERO_ROWS, ZERO_ROWS, groups).transpose(0, 2, 1)
    pairs: Array = by_word[..., 0::2] | by_word[..., 1::2] << 4
    return pairs.reshape(n // ZERO_ROWS, groups * 4)


def dequantised(
    p: ProblemFields, weights: Array, scales: Array, zeros: Array | None, rows: Any = slice(None)
) -> Float:
    """The weights' numbers [..., rows, k] in float64, exactly as the module says, from what is stored:
    weights [..., n, bytes], scales [n, groups] (of blocks [n / 128 rounded up, groups], or one), zeros as
    stored. `rows` selects rows of n."""
    q = unpacked(p, weights[..., rows, :])
    s = scales.astype(np.float64)
    if p.scale_a == SQUARE:
        s = np.repeat(s, scale_rows(p), axis=0)[: p.m]
    s = s.reshape(1, 1) if p.scale_a == "tensor" else s[rows]
    group = group_of(p)
    spread = np.repeat(s, group, axis=1)
    if p.zero_a in ("eight", "shift"):
        q -= 8.0
    if p.zero_a in ("uint4", "float"):
        assert zeros is not None
        z = unpacked_zeros(zeros) if p.zero_a == "uint4" else zeros.astype(np.float64)
        q -= np.repeat(z[rows], group, axis=1)
    q *= spread
    if p.zero_a == "shift":
        assert zeros is not None
        q += np.repeat(zeros[rows].astype(np.float64), group, axis=1)
    return q


def roundings(p: ProblemFields) -> int:
    """Independent rounding errors of a row of weights that are rounded once each: equal numbers of a group
    have equal errors."""
    if p.dtype_a == FP8_WEIGHT:
        return min(p.k, groups_of(p) * _UNIFORM_FLOATS)
    assert DTYPES[p.dtype_a].kind == INTEGER
    return min(p.k, groups_of(p) << DTYPES[p.dtype_a].bits)
