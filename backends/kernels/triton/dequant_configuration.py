"""A candidate's parameters for the kernel of quantised weights (weight_kernels.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from backends.archs import GpuArch
from backends.dtypes import DTYPES
from backends.kernels.triton.configuration import TritonConfig
from backends.kernels.triton.description import Constant
from backends.kernels.triton.oriented_gemm import WIDEST, TritonOrientedGemm, divides
from backends.problem import GemmProblem
from backends.quantisation import GROUPS

#: The problem's operands that only quantised weights have -> the kernel's names of them.
_OWN: Mapping[str, str] = {"scales": "scale_a", "zeros": "zero_a", "zero_a": "zeros"}
#: Registers of a thread on an AMD GPU for each of its elements of a step's weights (of integers, of e2m1),
#: fitted to kernels for five architectures.
_DEQUANTISED, _E2M1 = 3, 6
#: The most sums and elements of a step's weights a thread that NVIDIA's compiler holds without spills.
_MOST_HELD = 160
#: Bits of weights, elements of k of a step and the fewest warps for which that compiler's code is right
#: (DequantConfig.miscompiled()).
_PACKED_BITS, _WRONG_K, _RIGHT_WARPS = 4, 16, 8


def scaled_weights(p: GemmProblem) -> bool:
    """Whether weights are multiplied by their scales in registers, and rounded once. Otherwise they are
    integers, which 16-bit floats hold exactly, and the sums are scaled in fp32."""
    return p.scale_a in GROUPS or p.zero_a in ("float", "shift")


@dataclass(frozen=True)
class OrientedWeights(TritonOrientedGemm):
    """A problem of quantised weights in one of its orientations: the weights are A if it is swapped, else B.
    Both operands are contiguous along k. Leading dimensions of weights are in bytes."""

    def own(self, name: str) -> str:
        """See TritonOrientedGemm."""
        return _OWN.get(name) or super().own(name)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element as it is multiplied."""
        return DTYPES[self.problem.input_type].bytes

    @property
    def stored_bits(self) -> int:
        """Bits of a weight in memory."""
        return DTYPES[self.problem.dtype_a].bits

    def load_bytes(self, name: str) -> int:
        """See TritonOrientedGemm; in bytes of memory."""
        if self.own(name) != "a":
            return super().load_bytes(name)
        line = divides(self.k * self.stored_bits // 8)
        return min(WIDEST, self.divisibility(name), divides(self.numbers[f"ld{name}"]), line)

    @property
    def numbers(self) -> dict[str, int]:
        """See TritonOrientedGemm."""
        leading = f"ld{self.own('a')}"  # own() is its own inverse
        found = super().numbers
        return {**found, leading: found[leading] // DTYPES[self.problem.dtype_a].packing}

    @property
    def epilogue(self) -> dict[str, Constant]:
        """See TritonOrientedGemm. Scales that weights were multiplied by are not applied again."""
        scales = {"SCALE_A": "none", "SCALE_B": "none"} if scaled_weights(self.problem) else {}
        return {**super().epilogue, **scales}


@dataclass(frozen=True)
class DequantConfig(TritonConfig):
    """A tile of the kernel of quantised weights."""

    product: OrientedWeights
    oriented: ClassVar[type[TritonOrientedGemm]] = OrientedWeights

    @property
    def main_kernel(self) -> str:
        """See TritonConfig."""
        return "dequant_gemm"

    @property
    def _weight_rows(self) -> int:
        return self.block_m if self.product.swapped else self.block_n

    @property
    def stage_bytes(self) -> int:
        """Bytes of shared memory of one pipeline stage: the weights as stored, and the activations."""
        others = self.block_m + self.block_n - self._weight_rows
        bits = self._weight_rows * self.product.stored_bits + others * 8 * self.product.element_bytes
        return bits * self.block_k // 8

    def shared_bytes(self, arch: GpuArch) -> int:
        """Shared memory of the stages, and of a step's dequantised weights on their way to the matrix
        cores."""
        return super().shared_bytes(arch) + self._weight_rows * self.block_k * self.product.element_bytes

    def registers(self, arch: GpuArch) -> int:
        """See TritonConfig; dequantising takes registers for every weight of a step."""
        each = _E2M1 if self.product.problem.mx else _DEQUANTISED
        return super().registers(arch) + each * self._weight_rows * self.block_k // (arch.warp * self.warps)

    def miscompiled(self, arch: GpuArch) -> str | None:
        """See TritonConfig. On an H100 all of 177 such candidates were wrong and none was right, where those
        of more warps, of 8 bits and of more elements of k are (benchmarks/recorded/h100-prepacked.npz,
        h100-weights-m64.npz); the interpreter finds the kernel right."""
        packed = self.product.stored_bits == _PACKED_BITS and self.block_k <= _WRONG_K
        if arch.vendor == "cuda" and packed and self.warps < _RIGHT_WARPS:
            return (
                f"Triton 3.6 miscompiles steps of {self.block_k} elements of 4 bits in blocks of "
                f"{self.warps} warps: take {_RIGHT_WARPS} warps or a larger block_k"
            )
        return None

    def spills(self, arch: GpuArch) -> bool:
        """Whether the compiler for an NVIDIA GPU is likely to spill registers. This is no legality rule; for
        AMD GPUs registers() is one. Every weight has a scale of its own where a step has several groups."""
        each = 2 if 0 < GROUPS.get(self.product.problem.scale_a, 0) < self.block_k else 1
        held = self.block_m * self.block_n + each * self._weight_rows * self.block_k
        return arch.vendor == "cuda" and held > _MOST_HELD * arch.warp * self.warps

    def constants_for(self, arch: GpuArch) -> dict[str, Constant]:
        """See TritonConfig."""
        p = self.product.problem
        return {
            **super().constants_for(arch), "WEIGHTS_FIRST": self.product.swapped, "FORMAT": p.dtype_a,
            "ZERO": p.zero_a, "GROUP": GROUPS.get(p.scale_a, 0), "SCALED": scaled_weights(p),
        }  # fmt: skip
