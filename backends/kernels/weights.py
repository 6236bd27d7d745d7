"""Quantised weights as kernels see them: the types, the argument and the rules that their families share
(dequantise.h)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from backends.dtypes import DTYPES, FP4, FP8_WEIGHT
from backends.grouping import ungrouped
from backends.kernels.cluster import ClusterConfig
from backends.kernels.family import KernelConfig
from backends.kernels.oriented_gemm import CPP_TYPES, WIDE, GemmArgs, OrientedGemm, flag
from backends.kernels.tensor_map import argument_type
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.quantisation import GROUPS, MX_GROUP, STORED_ZEROS, group_size, groups_of, scale_rows

#: dequantise.h: enum Zero.
ZEROS = {"none": "kNoZero", "eight": "kEight", "uint4": "kWords", "float": "kSubtracted", "shift": "kAdded"}


class WeightArgs(GemmArgs):
    """dequantise.h: WeightArgs."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("scales", "zeros")),
        *((name, ctypes.c_longlong) for name in ("scale_row", "scale_bytes", "zero_bytes")),
    )


def _weight_arguments(gemm: GemmArgs, p: GemmProblem, operands: Operands) -> WeightArgs:
    """The argument with a problem's scales and zero points. A second launch reads only what it begins
    with."""
    found = WeightArgs()
    ctypes.memmove(ctypes.addressof(found), ctypes.addressof(gemm), ctypes.sizeof(GemmArgs))
    found.scales, found.zeros = operands.scale_a, operands.zero_a
    found.scale_row = 0 if p.scale_a == "tensor" else groups_of(p)
    shapes = layouts(p)
    found.scale_bytes = shapes["scale_a"].bytes
    found.zero_bytes = shapes["zero_a"].bytes if "zero_a" in shapes else 0
    return found


@dataclass(frozen=True)
class WeightConfig(KernelConfig):
    """A configuration of a family for quantised weights."""

    @property
    def argument_bytes(self) -> int:
        """Bytes of WeightArgs."""
        return ctypes.sizeof(WeightArgs)

    def arguments(self, operands: Operands, workspace: int) -> WeightArgs:
        """The argument of both launches."""
        return _weight_arguments(super().arguments(operands, workspace), self.product.problem, operands)


class PackedWeightArgs(WeightArgs):
    """packed_weights.h: PackedWeightArgs."""

    _fields_ = (("packed", ctypes.c_void_p), ("packed_bytes", ctypes.c_longlong))


@dataclass(frozen=True)
class WeightClusterConfig(ClusterConfig):
    """The same of blocks in clusters, with tensor maps."""

    @property
    def argument_bytes(self) -> int:
        """Bytes of WeightArgs and the maps."""
        return ctypes.sizeof(argument_type(len(self.tensors), WeightArgs))

    def arguments(self, operands: Operands, workspace: int) -> WeightArgs:
        """The launch's argument."""
        return _weight_arguments(super().arguments(operands, workspace), self.product.problem, operands)


def group(p: GemmProblem) -> int:
    """Elements of k that share a scale; 0 if a whole row does."""
    return group_size(p.scale_a) or 0


def bits(p: GemmProblem) -> int:
    """Bits of a weight."""
    return DTYPES[p.dtype_a].bits


def floats(p: GemmProblem) -> bool:
    """Whether weights are floats, of 4 bits or 8: converting them takes more instructions than integers."""
    return p.dtype_a in (FP4, FP8_WEIGHT)


def wide(p: GemmProblem) -> int:
    """Weights in 16 bytes."""
    return 8 * WIDE // bits(p)


def read_step(p: GemmProblem) -> int:
    """Elements of k that the four lanes of a row of a fragment read at once (dequant_ring.h: kStep)."""
    return MX_GROUP if p.mx else 4 * wide(p)


def quantised(p: GemmProblem) -> str:
    """dequantise.h: Quantised<...> of the problem's weights, Fp8Weights<...>, or Mxfp4."""
    if p.mx:
        return "gemmtune::Mxfp4"
    signed, scale = flag(p.dtype_a != "uint4"), CPP_TYPES[p.scale_dtype or "fp32"]
    if p.dtype_a == FP8_WEIGHT:
        return f"gemmtune::Fp8Weights<{group(p)}, {scale_rows(p)}, {scale}>"
    return f"gemmtune::Quantised<{bits(p)}, {signed}, gemmtune::{ZEROS[p.zero_a]}, {group(p)}, {scale}>"


def split_scales(p: GemmProblem) -> bool:
    """Whether a scale that multiplies weights is two numbers of bf16 (dequantise.h: PairScale)."""
    return p.dtype_a == FP8_WEIGHT and group(p) > 0 and p.scale_dtype == "fp32" and p.dtype_b == "bf16"


def unsupported_weights(p: GemmProblem) -> str | None:
    """Why no family for quantised weights has the problem's types, or None."""
    return ungrouped(p) or unsupported_elements(p)


def unsupported_elements(p: GemmProblem) -> str | None:
    """unsupported_weights() of a grouped product, too."""
    if not p.weight_only:
        return f"these kernels multiply quantised weights by bf16 or fp16, not {p.dtype_a} x {p.dtype_b}"
    if p.compute != "fp32":
        return f"quantised weights are multiplied in fp32, not {p.compute}"
    if p.dtype_d not in CPP_TYPES or p.dtype_c not in CPP_TYPES:
        return f"our kernels have no C of {p.dtype_c} or D of {p.dtype_d}"
    if p.bias is not None and p.bias not in CPP_TYPES:
        return f"our kernels add no bias of {p.bias}"
    return None


def unsupported_scaled_weights(p: GemmProblem) -> str | None:
    """Why no kernel that multiplies weights by their scales has the problem's types, scales or zero points,
    or None."""
    if (why := unsupported_weights(p)) is not None:
        return why
    if p.zero_a in STORED_ZEROS and p.scale_a not in GROUPS:
        return f"zero points of {p.zero_a} are of groups of 32, 64 or 128, not of scale {p.scale_a}"
    if p.mx and p.dtype_b != "bf16":
        return f"weights are multiplied by their scales here, whose range bf16 alone has, not {p.dtype_b}"
    if group(p) and not p.mx and p.scale_dtype != p.dtype_b and not split_scales(p):
        return f"weights of {p.dtype_b} are multiplied by scales of their type here, not of {p.scale_dtype}"
    return None


def lines_rule(product: OrientedGemm) -> str | None:
    """Rows of weights and columns of activations start at multiples of 16 bytes and are whole 16-byte
    words."""
    p = product.problem
    if not product.whole("a"):
        return f"rows of weights must start at multiples of {WIDE} bytes and be whole numbers of them"
    if not product.b_along_k or not product.whole("b"):
        whole = f"start at multiples of {WIDE} bytes and be whole numbers of them"
        return f"columns must be contiguous along k, {whole}"
    if p.k % wide(p):
        return f"k {p.k} is no multiple of the {wide(p)} weights in {WIDE} bytes"
    return None
