"""Grouped products as kernels see them: the argument, the blocks of a launch, and the rules that their
families share (grouped.h)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from math import ceil

from backends.environment import Environment
from backends.grouping import counts_of
from backends.kernels.family import KernelConfig
from backends.kernels.legality import unsupported_types
from backends.kernels.oriented_gemm import WIDE, GemmArgs, OrientedGemm
from backends.kernels.tensor_map import argument_type
from backends.operands import Operands
from backends.problem import GemmProblem

#: Types of the operands, and of their sums.
COMPUTES = (("fp16", "fp32"), ("bf16", "fp32"))
#: The fewest groups that a kernel is compiled for.
_LEAST_GROUPS = 32


class GroupedArgs(GemmArgs):
    """grouped.h: GroupedArgs."""

    _fields_ = (("ends", ctypes.c_void_p), ("groups", ctypes.c_int), ("unused", ctypes.c_int))


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
    def argument_bytes(self) -> int:
        """Bytes of GroupedArgs, and of tensor maps behind them."""
        return ctypes.sizeof(argument_type(len(self.tensors), GroupedArgs))

    def arguments(self, operands: Operands, workspace: int) -> GroupedArgs:
        """The launch's argument."""
        found, gemm = GroupedArgs(), super().arguments(operands, workspace)
        ctypes.memmove(ctypes.addressof(found), ctypes.addressof(gemm), ctypes.sizeof(GemmArgs))
        found.blocks, found.ends, found.groups = self.blocks, operands.offsets, self.product.problem.groups
        return found


def capacity(p: GemmProblem) -> int:
    """The groups that a kernel is compiled for: a power of two."""
    return max(_LEAST_GROUPS, 1 << (p.groups - 1).bit_length())


def table_bytes(p: GemmProblem) -> int:
    """Shared memory of the groups' ends and tiles (grouped.h: GroupedTiles)."""
    return 8 * capacity(p)


def unsupported_groups(p: GemmProblem) -> str | None:
    """Why no family for grouped products has the problem, or None."""
    if p.groups == 0:
        return "these kernels multiply rows of groups by the groups' weights; this is a product of one matrix"
    return unsupported_types(p, COMPUTES)


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
    """The tiles of the problem's own counts."""
    across = sum(-(-int(count) // columns) for count in counts_of(product.problem))
    return ceil(product.m / rows) * across


def units_of(environment: Environment) -> int:
    """Multiprocessors."""
    return max(1, environment.units)
