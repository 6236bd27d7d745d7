"""The stored form of quantised weights, and what tells one from another.

W[i, j] = (q - z) * s for row i of N and column j of K; a row's K elements have one scale a group. 4-bit
integers are packed along K, two to a byte, the even element in the low half: uint8 [N, K / 2]. Scales are [N,
K / group]. The zero point is one of ZERO_POINTS:

    none     z = 0
    eight    z = 8: symmetric weights
    uint4    stored as compressed-tensors does: int32 [N / 8, K / group], the 4 bits of row 8 r + i at bit 4 i
             of word [r, g]
    float    stored like the scales, in their type: W = (q - z) * s
    shift    stored like the scales, in their type: W = (q - 8) * s + z (tinygemm and torchao)
    signed   the 4 bits are a two's complement, from -8 to 7, and z = 0

8-bit integers are int8 [N, K] without a zero point. 8-bit floats are torch.float8_e4m3fn [N, K] without one,
with the same scales, or with one for 128 rows by 128 elements of K: [N / 128 rounded up, K / 128].

MXFP4 (OCP's microscaling formats) has 4-bit floats (e2m1) instead of integers, packed alike, and scales of
powers of two, one for each 32 elements of K: uint8 [N, K / 32], or torch.float8_e8m0fnu, whose byte e is
2^(e - 127). It has no zero point. Scales of that type tell it apart.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from gemmtune.errors import GemmtuneError
from gemmtune.weights import FP4, FP8, SQUARE_SIDE

ZERO_POINTS = ("none", "eight", "uint4", "float", "shift", "signed")
#: Zero points that are a tensor beside the scales.
STORED = ("uint4", "float", "shift")
#: Rows whose 4-bit zero points share a word.
ZERO_ROWS = 8
SCALE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Types of weights of 8 bits, and their names.
EIGHT_BITS = {torch.int8: "int8", torch.float8_e4m3fn: FP8}
#: Types of MXFP4's scales, its elements of K that share one, and the scale that is NaN.
MX_SCALES = (
    torch.uint8,
    *(getattr(torch, name) for name in ("float8_e8m0fnu",) if hasattr(torch, name)),
)
MX_GROUP, MX_NAN = 32, 255


class WeightError(GemmtuneError, ValueError):
    """Quantised weights, scales or zero points that are not what they are given as; the text says which."""


class Form(NamedTuple):
    """What tells quantised weights [n, k] apart: `kind` is "uint4", "int4", "int8", "fp8_e4m3" or "fp4_e2m1"
    (MXFP4, whose scales are uint8 here), `zero` a zero point as a problem has it, `groups` those of a row, 0
    where one scale is for the whole matrix, `side` the rows that share a scale of a group."""

    n: int
    k: int
    kind: str
    zero: str
    groups: int
    scale_dtype: Any
    side: int = 1

    @property
    def group(self) -> int:
        """Elements of k that share a scale."""
        return self.k // max(self.groups, 1)

    @property
    def mx(self) -> bool:
        """Whether the weights are MXFP4."""
        return self.kind == FP4


def form_of(
    weight: Any, scales: Any, zeros: Any, group_size: int | None, zero_point: str | None, bits: int
) -> Form:
    """The form of stored weights of 4 or 8 bits. `group_size` -1 is a whole row; None is what the scales'
    shape says. Without `zero_point` there are zero points of uint4 where `zeros` is of int32, and z = 8 where
    there is none. Only shapes and types are looked at. Raises WeightError."""
    _check_words(weight, bits)
    packed = 8 // bits
    n, k = int(weight.shape[0]), int(weight.shape[1]) * packed
    if bits == 4 and scales.dtype in MX_SCALES:
        return _mxfp4(n, k, scales, zeros, group_size, zero_point)
    zero_point = _zero_point(zeros, zero_point, bits)
    _check_scales(scales, bits)
    kind = "uint4" if bits == 4 else EIGHT_BITS[weight.dtype]
    side = SQUARE_SIDE if kind == FP8 and _of_blocks(scales, n, k) else 1
    if side > 1 and group_size not in (None, side):
        raise WeightError(
            f"scales is {list(scales.shape)}, one for {side} x {side} weights of [{n}, {k}]; group_size is "
            f"{group_size}"
        )
    groups = k // side if side > 1 else _groups(scales, n, k, group_size, "scales")
    if not scales.is_contiguous():
        raise WeightError("scales must be contiguous: call .contiguous() once, when the weights are loaded")
    if zero_point in STORED:
        _check_zeros(zeros, scales, zero_point, n, groups)
    if zero_point == "signed":
        kind, zero_point = "int4", "none"
    return Form(n, k, kind, zero_point, groups, scales.dtype, side)


def _of_blocks(scales: Any, n: int, k: int) -> bool:
    """Whether scales are one for 128 x 128 weights, and no others of the same shape."""
    blocks = -(-n // SQUARE_SIDE), k // SQUARE_SIDE
    return k % SQUARE_SIDE == 0 and blocks != (1, 1) and blocks[0] != n and tuple(scales.shape) == blocks


def _check_scales(scales: Any, bits: int) -> None:
    if scales.dtype is torch.float8_e4m3fn and bits == 4:
        raise WeightError(
            f"scales are {scales.dtype}: NVFP4, of e4m3 scales of groups of 16 and an fp32 scale of the "
            "matrix, is not supported; MXFP4's are uint8 (e8m0), one for each 32 elements of K"
        )
    if scales.dtype not in SCALE_DTYPES:
        raise WeightError(f"scales are {scales.dtype}; they must be float32, bfloat16 or float16")


def _mxfp4(n: int, k: int, scales: Any, zeros: Any, group_size: int | None, zero_point: str | None) -> Form:
    """The form of MXFP4."""
    if zeros is not None or zero_point not in (None, "none"):
        given = "zeros" if zeros is not None else f"zero_point {zero_point!r}"
        raise WeightError(f"{given}: scales of {scales.dtype} are MXFP4's (e8m0), which has no zero point")
    if k % MX_GROUP or group_size not in (None, MX_GROUP):
        wrong = f"K {k} is no multiple of that" if k % MX_GROUP else f"group_size is {group_size}"
        raise WeightError(f"MXFP4 has groups of {MX_GROUP} elements of K, and {wrong}")
    if tuple(scales.shape) != (n, k // MX_GROUP):
        raise WeightError(
            f"scales is {list(scales.shape)}; MXFP4 weights of [{n}, {k}] have scales of "
            f"[{n}, {k // MX_GROUP}]"
        )
    if not scales.is_contiguous():
        raise WeightError("scales must be contiguous: call .contiguous() once, when the weights are loaded")
    return Form(n, k, FP4, "none", k // MX_GROUP, MX_SCALES[0])


def _check_words(weight: Any, bits: int) -> None:
    if weight.dtype is torch.int32 and weight.dim() == 4:
        raise WeightError(
            f"weight {list(weight.shape)} of int32 is prepacked by torch._convert_weight_to_int4pack, and "
            "only torch._weight_int4pack_mm reads that: convert it with gemmtune.torch.from_tinygemm"
        )
    if weight.dtype is torch.int32:
        raise WeightError(
            f"weight {list(weight.shape)} of int32 is no [N, K / 2] of uint8: it is stored in 32-bit "
            "words, or prepacked for another library's kernel, such as Marlin's or Machete's, and only "
            "that kernel reads it. Convert a checkpoint's words with "
            "gemmtune.torch.from_compressed_tensors, from_gptq or from_awq"
        )
    wanted = (torch.uint8,) if bits == 4 else tuple(EIGHT_BITS)
    if weight.dtype not in wanted or weight.dim() != 2 or not weight.numel():
        shape = (
            "[N, K / 2] of uint8, two elements of K to a byte"
            if bits == 4
            else "[N, K] of int8 or float8_e4m3fn"
        )
        raise WeightError(f"weight is {list(weight.shape)} of {weight.dtype}; {bits}-bit weights are {shape}")
    if not weight.is_contiguous():
        raise WeightError("weight must be contiguous: call .contiguous() once, when the weights are loaded")


def _zero_point(zeros: Any, zero_point: str | None, bits: int) -> str:
    if bits == 8:
        if zeros is not None or zero_point not in (None, "none"):
            raise WeightError("weights of 8 bits are signed and have no zero point")
        return "none"
    if zero_point is None:
        if zeros is None:
            return "eight"
        if zeros.dtype is torch.int32:
            return "uint4"
        raise WeightError(
            f"zeros of {zeros.dtype} may mean two things; give zero_point='float' for W = (q - z) s, or "
            "'shift' for W = (q - 8) s + z (tinygemm and torchao)"
        )
    if zero_point not in ZERO_POINTS:
        raise WeightError(f"zero_point {zero_point!r} is unknown; known: {', '.join(ZERO_POINTS)}")
    if (zeros is not None) != (zero_point in STORED):
        has = "takes the zeros as a tensor" if zero_point in STORED else "has no zeros"
        raise WeightError(f"zero_point {zero_point!r} {has}; zeros is {'None' if zeros is None else 'given'}")
    return zero_point


def _groups(scales: Any, n: int, k: int, group_size: int | None, name: str) -> int:
    """Groups of a row by the scales' shape, 0 for one scale; checked against `group_size`."""
    shape = list(scales.shape)
    if group_size is not None and (group_size == 0 or group_size < -1):
        raise WeightError(f"group_size {group_size} must be positive, or -1 for a whole row")
    if group_size is not None and group_size > 0 and k % group_size:
        raise WeightError(f"group_size {group_size} does not divide K {k}: the last group would be shorter")
    if scales.numel() == 1 and n > 1:
        if group_size not in (None, -1, k):
            raise WeightError(
                f"{name} is one value, and group_size {group_size} wants {n} x {k // group_size}"
            )
        return 0
    groups = shape[1] if len(shape) == 2 else 1
    if len(shape) not in (1, 2) or shape[0] != n or groups == 0 or k % groups:
        hint = ": it may be transposed" if len(shape) == 2 and shape[1] == n else ""
        raise WeightError(
            f"{name} is {shape}; weights of [{n}, {k}] have {name} of [{n}, K / group], with groups that "
            f"divide K{hint}"
        )
    wanted = groups if group_size is None else 1 if group_size == -1 else k // group_size
    if groups != wanted:
        raise WeightError(
            f"{name} is {shape}, which is groups of {k // groups}; group_size {group_size} wants [{n}, "
            f"{wanted}]"
        )
    return groups


def _check_zeros(zeros: Any, scales: Any, zero_point: str, n: int, groups: int) -> None:
    if groups == 0:
        raise WeightError("one scale for all weights has no stored zero points: give a scale a row")
    if not zeros.is_contiguous():
        raise WeightError("zeros must be contiguous: call .contiguous() once, when the weights are loaded")
    shape = list(zeros.shape)
    if zero_point != "uint4":
        if zeros.dtype is not scales.dtype or zeros.numel() != n * groups or shape[0] != n:
            raise WeightError(
                f"zeros is {shape} of {zeros.dtype}; they are stored like the scales, [{n}, {groups}] of "
                f"{scales.dtype}"
            )
        return
    if n % ZERO_ROWS:
        raise WeightError(
            f"zero points of {ZERO_ROWS} rows share a word, and {n} rows are no multiple of that"
        )
    if zeros.dtype is not torch.int32 or shape != [n // ZERO_ROWS, groups]:
        raise WeightError(
            f"zeros is {shape} of {zeros.dtype}; packed zero points are [{n // ZERO_ROWS}, {groups}] of int32"
        )
