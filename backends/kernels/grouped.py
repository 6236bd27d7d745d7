"""Grouped products as kernels see them: the argument, the blocks of a launch, and the rules that their
families share (grouped.h)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from math import ceil

from backends.environment import Environment
from backends.grouping import SCALED_TYPE, SCALED_TYPES, gated, scaled_blocks, weight_reads
from backends.kernels.family import KernelConfig
from backends.kernels.legality import unsupported_types
from backends.kernels.matrix_epilogue import matrix_types
from backends.kernels.oriented_gemm import WIDE, GemmArgs, OrientedGemm
from backends.kernels.tensor_map import argument_type
from backends.operands import Operands, layouts
from backends.problem import GemmProblem

#: Types of the operands, and of their sums.
COMPUTES = (("fp16", "fp32"), ("bf16", "fp32"))
#: The same for families that also multiply 8-bit floats with scales.
SCALED_COMPUTES = (*COMPUTES, (SCALED_TYPE, "fp32"))
#: The fewest groups that a kernel is compiled for.
_LEAST_GROUPS = 32


class GroupedArgs(GemmArgs):
    """grouped.h: GroupedArgs."""

    _fields_ = (("ends", ctypes.c_void_p), ("groups", ctypes.c_int), ("unused", ctypes.c_int))


class ScaledGroupedArgs(GroupedArgs):
    """grouped.h: ScaledGroupedArgs."""

    _fields_ = (  # type: ignore[assignment]  # mypy wants the fields of GroupedArgs
        ("scale_a", ctypes.c_void_p), ("scale_b", ctypes.c_void_p),
        ("scale_a_bytes", ctypes.c_longlong), ("scale_b_bytes", ctypes.c_longlong),
    )  # fmt: skip


class GroupedWeightArgs(GroupedArgs):
    """grouped_weights.h: GroupedWeightArgs."""

    _fields_ = (  # type: ignore[assignment]  # mypy wants the fields of GroupedArgs
        ("scales", ctypes.c_void_p), ("zeros", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in ("scale_row", "scale_group", "zero_group")),
        *((name, ctypes.c_longlong) for name in ("scale_bytes", "zero_bytes")),
    )  # fmt: skip


@dataclass(frozen=True)
class GroupedConfig(KernelConfig):
    """A configuration of a family for grouped products. Its launch has `resident` blocks for each
    multiprocessor, but no more than the tiles that there can be: `blocks`, whatever the counts are.
    `clustered` blocks along x are a cluster."""

    resident: int = 1
    clustered: int = 1

    def on(self, units: int) -> GroupedConfig:
        """See KernelConfig. Blocks take tiles round-robin, so any number of them is correct."""
        blocks = min(self.blocks, self.resident * units) // self.clustered * self.clustered
        return replace(self, blocks=max(self.clustered, blocks))

    @property
    def cluster(self) -> tuple[int, int, int] | None:
        """Blocks of a cluster along x, y and z; None without clusters."""
        return None if self.clustered == 1 else (self.clustered, 1, 1)

    @property
    def qualifiers(self) -> str:
        """The cluster's size for the entry point; empty without clusters."""
        return "" if self.clustered == 1 else f", GEMMTUNE_CLUSTER({self.clustered}, 1)"

    @property
    def _argument(self) -> type[GroupedArgs]:
        p = self.product.problem
        if p.weight_only:
            return GroupedWeightArgs
        return ScaledGroupedArgs if p.dtype_a in SCALED_TYPES else GroupedArgs

    @property
    def argument_bytes(self) -> int:
        """Bytes of the argument, and of tensor maps behind it."""
        return ctypes.sizeof(argument_type(len(self.tensors), self._argument))

    def arguments(self, operands: Operands, workspace: int) -> GroupedArgs:
        """The launch's argument."""
        found, gemm = self._argument(), super().arguments(operands, workspace)
        ctypes.memmove(ctypes.addressof(found), ctypes.addressof(gemm), ctypes.sizeof(GemmArgs))
        found.blocks, found.ends, found.groups = self.blocks, operands.offsets, self.product.problem.groups
        shapes = layouts(self.product.problem)
        if isinstance(found, GroupedWeightArgs):
            found.stride_a = shapes["a"].stride  # in bytes
            found.scales, found.zeros = operands.scale_a, operands.zero_a
            scales, zeros = shapes["scale_a"], shapes.get("zero_a")
            found.scale_row, found.scale_bytes = scales.ld, scales.bytes
            found.scale_group = scales.stride * scales.dtype.bytes
            if zeros is not None:
                found.zero_group, found.zero_bytes = zeros.stride * zeros.dtype.bytes, zeros.bytes
        if isinstance(found, ScaledGroupedArgs):
            found.scale_a, found.scale_b = operands.scale_a, operands.scale_b
            found.scale_a_bytes, found.scale_b_bytes = shapes["scale_a"].bytes, shapes["scale_b"].bytes
        return found

    @property
    def sums(self) -> str:
        """The class of a second launch, which these families never make."""
        p = self.product.problem
        return f"gemmtune::AddSlices<{matrix_types(p)}>" if p.dtype_a in SCALED_TYPES else super().sums


def types_of(p: GemmProblem) -> str:
    """The types of the product's elements as template argument: Types<...>, or MatrixTypes<...> of 8-bit
    floats."""
    return matrix_types(p) if p.dtype_a in SCALED_TYPES else OrientedGemm(p).types


def scales_of(p: GemmProblem) -> str:
    """grouped.h: enum GroupedScales, for the problem."""
    if p.dtype_a not in SCALED_TYPES:
        return "gemmtune::kUnscaled"
    return "gemmtune::kBlockScales" if scaled_blocks(p) else "gemmtune::kRowScales"


def gated_of(p: GemmProblem) -> tuple[str, ...]:
    """The last template argument of kernels that apply swiglu (gated_rows.h); none for others."""
    return ("true",) if gated(p) else ()


def capacity(p: GemmProblem) -> int:
    """The groups that a kernel is compiled for: a power of two."""
    return max(_LEAST_GROUPS, 1 << (p.groups - 1).bit_length())


def table_bytes(p: GemmProblem) -> int:
    """Shared memory of the groups' ends and tiles (grouped.h: GroupedTiles)."""
    return 8 * capacity(p)


def unsupported_groups(p: GemmProblem, computes: tuple[tuple[str, str], ...]) -> str | None:
    """Why a family for grouped products of these types does not have the problem, or None. (A grouped problem
    of 8-bit floats has no scales or output but those that kernels have.)"""
    if p.groups == 0:
        return "these kernels multiply rows of groups by the groups' weights; this is a product of one matrix"
    if p.dtype_a in SCALED_TYPES and (p.dtype_a, p.compute) in computes:
        return None
    return unsupported_types(p, computes)


def lines_rule(product: OrientedGemm) -> str | None:
    """Rows of weights and columns start at multiples of 16 bytes and are whole 16-byte words."""
    p = product.problem
    if not product.whole("a") or p.stride_a * product.element_bytes % WIDE:
        return f"rows of weights must start at multiples of {WIDE} bytes and be whole numbers of them"
    if not product.whole("b"):
        return f"rows of X must start at multiples of {WIDE} bytes and be whole numbers of them"
    return None


def most_tiles(product: OrientedGemm, rows: int, columns: int) -> int:
    """The most tiles of so many rows and columns that any counts make: every active group may have one that
    is not full."""
    p = product.problem
    across = p.n // columns + min(p.groups, p.n)
    return ceil(product.m / rows) * min(across, p.n)


def tiles(product: OrientedGemm, rows: int, columns: int) -> int:
    """The tiles of the problem's own counts, a mean of its draws."""
    return ceil(ceil(product.m / rows) * weight_reads(product.problem, columns))


def units_of(environment: Environment) -> int:
    """Multiprocessors."""
    return max(1, environment.units)
