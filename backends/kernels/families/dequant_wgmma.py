"""Quantised weights times up to 128 columns by Hopper's wgmma, dequantised in registers (dequant_wgmma.h)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.families.dequant_ring import DequantRing
from backends.kernels.family import KernelConfig, Values, number
from backends.kernels.legality import capability
from backends.kernels.oriented_gemm import OrientedGemm
from backends.kernels.weights import bits, wide
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The compute capability (times ten) of the one architecture that has wgmma.
_CAPABILITY = 90
#: Where a slot of a ring begins, in bytes: lines of eight are swizzled together.
_SLOT = 1024
#: Clocks of a multiprocessor's tensor cores for 64 rows and 16 of k times eight columns, and for their
#: weights, which come from registers. Estimated; they only order the candidates.
_COLUMNS_CLOCKS, _HELD_CLOCKS = 4.0, 16.0


class DequantWgmma(DequantRing):
    """Weights of int4, uint4, int8 or MXFP4 times 1 to 128 columns of bf16 or fp16 by wgmma; the weights are
    read once as they are stored, through rings of asynchronous copies, and are the instructions' register
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
        p, tiles, columns = product.problem, number(values, "rows") // 16, self._columns(product)
        sums = tiles * columns // 2
        grouped = sums if self.scales_sums(p) else 0
        ahead = 32 if p.mx else 0  # the next group's weights and scales, too
        return sums + grouped + tiles * 32 + ahead + 20

    def _each_load(self, product: OrientedGemm, values: Values) -> tuple[float, float, float]:
        """As dequant-ring's: instructions; multiplications in its clocks; clocks of shared memory."""
        p, columns = product.problem, self._columns(product)
        convert = {4: 60.0, 8: 30.0}[bits(p)] + (columns / 2 if self.scales_sums(p) else 0)
        if p.mx:  # two groups of a tile
            convert = 110.0 + columns
        rows, deep, warps = number(values, "rows"), number(values, "tile_k"), number(values, "warps_m")
        loads = rows * deep * bits(p) // 8 // 512
        inputs = columns * deep * 2 / (512 * warps)  # instructions that copy activations, of a warp and chunk
        products = wide(p) * 512 / 16 / 256  # 16 x 16 products of a load
        clocks = products / 4 * (_HELD_CLOCKS + _COLUMNS_CLOCKS * columns / 8)
        return convert + (60 + 3 * inputs) / loads, clocks / self.multiply_clocks, 8.0

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
