"""Quantised weights of groups times more columns on Hopper's tensor cores (grouped_dequant_wgmma.h)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.dequant_chunk import chunk_bytes, together_costs, together_registers
from backends.kernels.families.grouped_ring import GroupedRing
from backends.kernels.family import Values, number
from backends.kernels.grouped import GroupedConfig
from backends.kernels.grouped_weights import unsupported_group_weights, weights_cost
from backends.kernels.legality import capability
from backends.kernels.oriented_gemm import OrientedGemm
from backends.problem import GemmProblem
from backends.solution import Parameter

#: Compute capability of wgmma.
_CAPABILITY = 90
#: Where a slot of a ring begins, in bytes: lines of eight are swizzled together.
_SLOT = 1024


class GroupedDequantWgmma(GroupedRing):
    """Grouped products of int4, uint4 or MXFP4 weights by wgmma, for more rows a group than grouped-ring is
    for: through the same rings, and the weights, dequantised in registers, are the instructions' register
    operand.

    grouped_dequant_wgmma.h. Parameters: those of grouped-ring; warps_m is whole warpgroups, and a warp has 16
    rows, as in dequant-wgmma."""

    name = "grouped-dequant-wgmma"
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "columns": (8, 16, 32, 48, 64, 96, 128), "rows": (16,), "tile_k": (128, 256, 512),
        "slots": (2, 3, 4, 6), "warps_m": (4, 8, 12, 16), "warps_k": (1, 2, 4), "blocks_per_unit": (1, 2, 3),
    }  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, or None."""
        return unsupported_group_weights(problem)

    def slot_bytes(self, problem: GemmProblem, values: Values) -> int:
        """Bytes of a team's chunk, rounded up to where the next one may begin."""
        columns, deep = number(values, "columns"), number(values, "tile_k")
        return -(-chunk_bytes(problem, self.rows(values), columns, deep) // _SLOT) * _SLOT

    def shared_bytes(self, problem: GemmProblem, values: Values) -> int:
        """grouped-ring's, in whole slots' places."""
        return -(-super().shared_bytes(problem, values) // _SLOT) * _SLOT

    def registers(self, problem: GemmProblem, values: Values) -> int:
        """Registers for sums, the sums of a group, and a group's weights."""
        return together_registers(problem, number(values, "rows") // 16, number(values, "columns")) + 32

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: Hopper, and grouped-ring's."""
        if capability(environment) != _CAPABILITY:
            return f"wgmma needs sm_90, not {environment.arch}"
        return super().rule(problem, values, environment)

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """As grouped-ring's, with the tensor cores' own reading of columns."""
        given = (number(values, name) for name in ("columns", "rows", "tile_k", "warps_m"))
        instructions, clocks = together_costs(product.problem, *given)
        return weights_cost(product, values, environment, (instructions, clocks, 8.0))

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> GroupedConfig:
        """The instantiation, compiled for sm_90a: no other architecture has wgmma."""
        found = super().config(problem, values, arch)
        name = found.instantiation.replace("GroupedWeightRing<", "GroupedDequantWgmma<")
        return replace(found, instantiation=name, arch_specific=True)


__all__ = ["GroupedDequantWgmma"]
