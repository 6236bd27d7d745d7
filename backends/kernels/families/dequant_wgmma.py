"""Quantised weights times up to 128 columns by Hopper's wgmma, dequantised in registers (dequant_wgmma.h)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.dequant_chunk import together_costs, together_registers
from backends.kernels.families.dequant_ring import DequantRing
from backends.kernels.family import KernelConfig, Values, number
from backends.kernels.legality import capability
from backends.kernels.oriented_gemm import OrientedGemm
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The compute capability (times ten) of the one architecture that has wgmma.
_CAPABILITY = 90
#: Where a slot of a ring begins, in bytes: lines of eight are swizzled together.
_SLOT = 1024


class DequantWgmma(DequantRing):
    """Weights of int4, uint4, int8, fp8 or MXFP4 times 1 to 128 columns of bf16 or fp16 by wgmma; the weights
    are read once as they are stored, through rings of asynchronous copies, and are the instructions' register
    operand.

    Parameters: those of dequant-ring; warps_m is whole warpgroups. A warp has 16 rows: with 32, ptxas
    serialises the instructions (its advisory C7518)."""

    name, columns = "dequant-wgmma", (1, 128)
    version = 1
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "rows": (16,), "tile_k": (64, 128, 256, 512), "slots": (2, 3, 4, 6, 8),
        "warps_m": (4, 8, 12, 16), "warps_k": (1, 2, 3, 4), "splits": (1, 2, 4, 8),
    }  # fmt: skip

    def _columns(self, product: OrientedGemm) -> int:
        """Columns of the instantiation: whole eights."""
        return -(-product.n // 8) * 8

    def _slot_bytes(self, product: OrientedGemm, values: Values) -> int:
        """Bytes of a team's chunk, rounded up to where the next one may begin."""
        return -(-super()._slot_bytes(product, values) // _SLOT) * _SLOT

    def _at_once(self, product: OrientedGemm, values: Values) -> int:
        """No warp reads activations."""
        return 1

    def registers(self, product: OrientedGemm, values: Values) -> int:
        """Registers for sums, the sums of a group, and a group's weights."""
        return together_registers(product.problem, number(values, "rows") // 16, self._columns(product))

    def _each_load(self, product: OrientedGemm, values: Values) -> tuple[float, float, float]:
        """As dequant-ring's: instructions; multiplications in its clocks; clocks of shared memory."""
        rows, deep, warps = (number(values, name) for name in ("rows", "tile_k", "warps_m"))
        instructions, clocks = together_costs(product.problem, self._columns(product), rows, deep, warps)
        return instructions, clocks / self.multiply_clocks, 8.0

    def legal(self, product: OrientedGemm, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: Hopper, and dequant-ring's."""
        if capability(environment) != _CAPABILITY:
            return f"wgmma needs sm_90, not {environment.arch}"
        return super().legal(product, values, environment)

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """dequant-ring's, compiled for sm_90a: no other architecture has wgmma."""
        return replace(super().config(problem, values, arch), arch_specific=True)

    def instantiation(self, product: OrientedGemm, values: Values) -> str:
        """DequantRing by warpgroups."""
        by = f"gemmtune::ByWarpgroups<{self._columns(product)}>"
        return f"{super().instantiation(product, values)[:-1]}, {by}>"


__all__ = ["DequantWgmma"]
