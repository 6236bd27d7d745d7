"""A candidate's parameters for a kernel of framework_kernels.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean
from typing import ClassVar, Self

from backends.archs import GpuArch
from backends.grouping import counts_of, draws_of, scaled_blocks
from backends.kernels.triton.configuration import (
    INSTRUCTION,
    MAIN,
    PARAMETERS,
    Pointer,
    TritonConfig,
    request,
)
from backends.kernels.triton.description import Constant, Request
from backends.kernels.triton.moe_untuned import MOST_PROMOTED
from backends.kernels.triton.oriented_gemm import WIDEST, TritonOrientedGemm
from backends.problem import GemmProblem
from backends.problem_rules import BLOCKS
from backends.solution import Parameter

#: Options of Triton's compiler for AMD's GPUs, which the frameworks' files give beside the parameters.
AMD_OPTIONS = (INSTRUCTION, "waves_per_eu", "kpack")


@dataclass(frozen=True)
class FrameworkConfig(TritonConfig):
    """A tile of one of these kernels, in the row-major orientation, and AMD's options for the compiler."""

    options: tuple[tuple[str, int], ...] = ()
    kernel: ClassVar[str] = ""
    #: Registers for each sum of a thread beyond TritonConfig.registers(), in halves.
    halves_a_sum: ClassVar[int] = 0
    #: The frameworks launch their kernels one after another.
    waits: ClassVar[bool] = False

    @classmethod
    def of(cls, problem: GemmProblem, values: Mapping[str, Parameter]) -> Self:
        """The configuration of well-formed parameters, by TritonConfig's names. AMD's options of 0 leave the
        choice to the compiler, which is what Triton does without them."""
        given = {name: int(values[name] or 0) for name in AMD_OPTIONS if values.get(name)}

        def number(name: str) -> int:
            return int(values[name] or 0)

        return cls(
            TritonOrientedGemm(problem), number("block_m"), number("block_n"), number("block_k"),
            number("group_m"), number("num_warps"), number("num_stages"),
            instruction=given.get(INSTRUCTION), options=tuple(given.items()),
        )  # fmt: skip

    def spills(self, arch: GpuArch) -> bool:
        """Whether the compiler for an AMD GPU is likely to spill registers. This is no legality rule: the
        frameworks run configurations that spill."""
        threads = arch.warp * self.warps
        registers = self.registers(arch) + self.halves_a_sum * (self.block_m * self.block_n // threads) // 2
        if arch.name.startswith("gfx11"):  # every stage holds addresses of its own
            registers = (self.stages + 1) * registers // 2
        return registers > min(arch.thread_registers, arch.unit_registers // threads)

    @property
    def constants(self) -> dict[str, Constant]:
        """The kernel's compile-time constants, by name."""
        return {
            "WIDE": self.product.wide, "BLOCK_M": self.block_m, "BLOCK_N": self.block_n,
            "BLOCK_K": self.block_k, "GROUP_M": self.group_m,
        }  # fmt: skip

    def requests(self, arch: GpuArch) -> dict[str, Request]:
        """The one request. Triton's own launcher, which the frameworks use, sees whether a number or an
        address is a multiple of 16, and no smaller unit."""
        options = {"num_warps": self.warps, "num_stages": self.stages, **dict(self.options)}
        constants = {**self.constants, "IMPRECISE": self._imprecise(arch)}
        made = request(self.product, self.kernel, constants, options, arch)
        known = {name: unit for name, unit in made.divisibility.items() if unit == WIDEST}
        return {MAIN: replace(made, divisibility=known)}

    def arguments(
        self, entry: str, pointers: Mapping[str, Pointer], partial: Pointer, scalars: tuple[float, float]
    ) -> list[Pointer | int | float]:
        """See TritonConfig; there is no workspace, and the kernels take no scalars."""
        found = self.product.arguments(pointers, scalars)
        return [found[name] for name in PARAMETERS[self.kernel]]


@dataclass(frozen=True)
class BlockScaledConfig(FrameworkConfig):
    """vLLM's and SGLang's block-scaled kernel. A step's sums and their products with the scales are held
    beside the total (fitted to 66 kernels for gfx942 and gfx1201)."""

    kernel: ClassVar[str] = "block_scaled"
    halves_a_sum: ClassVar[int] = 3

    @property
    def constants(self) -> dict[str, Constant]:
        """Triton's launcher compiles a size of one in, and no other."""
        side, depth = BLOCKS["block_128x128"]
        return {**super().constants, "ONE_ROW": self.product.m == 1, "SCALED_N": side, "SCALED_K": depth}


@dataclass(frozen=True)
class InductorConfig(FrameworkConfig):
    """Inductor's template mm."""

    kernel: ClassVar[str] = "inductor_mm"

    @property
    def constants(self) -> dict[str, Constant]:
        """Sizes and strides, row-major."""
        p = self.product
        numbers = p.numbers
        along_a = {"STRIDE_AM": numbers["lda"], "STRIDE_AK": 1}
        across_a = {"STRIDE_AM": 1, "STRIDE_AK": numbers["lda"]}
        along_b = {"STRIDE_BK": 1, "STRIDE_BN": numbers["ldb"]}
        across_b = {"STRIDE_BK": numbers["ldb"], "STRIDE_BN": 1}
        return {
            **super().constants, "M": p.m, "N": p.n, "K": p.k, "LDD": numbers["ldd"],
            **(along_a if p.a_along_k else across_a), **(along_b if p.b_along_k else across_b),
            "EVEN_K": p.k % self.block_k == 0,
        }  # fmt: skip


@dataclass(frozen=True)
class FusedMoeConfig(FrameworkConfig):
    """vLLM's and SGLang's fused mixture of experts, one of its two products. M is all groups' rows."""

    kernel: ClassVar[str] = "fused_moe"

    @property
    def row_blocks(self) -> int:
        """The most blocks of rows that any ends make: a block of every group that has rows may not be
        full."""
        rows, side = self.product.m, self.block_m
        active = min(self.product.problem.groups, rows)
        return (rows + active * (side - 1)) // side

    @property
    def tiles(self) -> int:
        """Programs of the launch, whatever the ends are."""
        return self.row_blocks * -(-self.product.n // self.block_n)

    @property
    def constants(self) -> dict[str, Constant]:
        """The groups, and the power of two that a program counts."""
        groups = self.product.problem.groups
        return {**super().constants, "GROUPS": groups, "CAPACITY": 1 << (groups - 1).bit_length()}

    def arguments(
        self, entry: str, pointers: Mapping[str, Pointer], partial: Pointer, scalars: tuple[float, float]
    ) -> list[Pointer | int | float]:
        """See FrameworkConfig."""
        found = {**self.product.arguments(pointers, scalars), "row_blocks": self.row_blocks}
        return [found[name] for name in PARAMETERS[self.kernel]]


@dataclass(frozen=True)
class ScaledMoeConfig(FusedMoeConfig):
    """The same of 8-bit floats with scales of blocks or of rows. With scales of blocks a step's sums are held
    beside the total, as in BlockScaledConfig."""

    kernel: ClassVar[str] = "fused_moe_scaled"
    halves_a_sum: ClassVar[int] = 3

    def spills(self, arch: GpuArch) -> bool:
        """See FrameworkConfig. NVIDIA's compiler holds sums twice, as a step adds them up and in total."""
        if arch.vendor == "cuda":
            return self.block_m * self.block_n > MOST_PROMOTED * arch.warp * self.warps
        return super().spills(arch)

    @property
    def constants(self) -> dict[str, Constant]:
        """The sides of a block of scales; 0 for scales of rows."""
        blocks = scaled_blocks(self.product.problem)
        side, depth = BLOCKS["block_128x128"] if blocks else (0, 0)
        return {**super().constants, "SCALED_N": side, "SCALED_K": depth}


@dataclass(frozen=True)
class ExpectedMoeConfig(FusedMoeConfig):
    """The same with the programs that the problem's own counts give rows to, by which its time is
    estimated."""

    @property
    def tiles(self) -> int:
        """Tiles of the problem's own counts, a mean of its draws."""
        p = self.product.problem
        across = fmean(
            sum(-(-int(count) // self.block_m) for count in counts_of(p, draw)) for draw in range(draws_of(p))
        )
        return ceil(across * -(-self.product.n // self.block_n))
