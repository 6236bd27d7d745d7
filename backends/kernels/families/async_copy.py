"""The last SGEMM step: a pipeline of tiles filled by asynchronous copies (async_copy.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product as combinations
from math import log
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import KernelConfig, KernelFamily, Values, number
from backends.kernels.legality import (
    arch_of,
    first,
    fp32_rule,
    grid_rule,
    registers_rule,
    shared_rule,
    threads_rule,
    whole_rule,
)
from backends.kernels.oriented_gemm import WIDE, OrientedGemm, flag
from backends.kernels.worthwhile import broad
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The most candidates that are listed.
MOST = 48
#: Instructions for a tile beside its multiplications and reads: copies, their addresses, the loop.
_OTHER_INSTRUCTIONS = 50
#: Warps that keep a multiprocessor busy; clocks of a second launch.
_BUSY_WARPS, _SECOND_LAUNCH = 8, 5000
#: Costs that differ by less than this (in natural logarithms) count as equal.
_ALIKE = 0.05


@dataclass(frozen=True)
class Pipeline:
    """The template numbers of async_copy.h: AsyncCopy."""

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    stages: int
    group: int

    @property
    def threads(self) -> int:
        """Threads of a block: one for each tm x tn elements of D."""
        return self.bm // self.tm * (self.bn // self.tn)

    @property
    def resident(self) -> int:
        """Blocks of a multiprocessor that the registers suffice for."""
        return max(1, (512 if self.tm * self.tn <= 64 else 256) // self.threads)

    @property
    def warp_tile(self) -> tuple[int, int]:
        """Rows and columns of 32 threads: 8 x 4 of them, or 4 x 8 if the thread tile is taller than wide."""
        across = 4 if self.tm > self.tn else 8
        return across * self.tm, 32 // across * self.tn

    def registers(self, arch: GpuArch) -> int:
        """Registers for sums, the operands of two steps of k, and addresses of the elements of C and D where
        the accesses to them do not share one."""
        sums = self.tm * self.tn
        return sums + 2 * (self.tm + self.tn) + arch.address_registers * sums

    def shared_bytes(self, product: OrientedGemm) -> int:
        """Bytes of all stages, with four elements of padding for each row of an operand that is transposed on
        its way."""
        pads = 4 * (product.a_along_k + product.b_along_k)
        return self.stages * self.bk * (self.bm + self.bn + pads) * 4


class AsyncCopy(KernelFamily):
    """Tiles are copied asynchronously, several at a time, and the next step's fragments are read during the
    current step.

    async_copy.h. Parameters: tile_m x tile_n of D per block, tile_k of k at a time, thread_m x thread_n of D
    per thread, stages (tiles in shared memory), group (rows of tiles in a band of the tile order), splits
    (blocks along k)."""

    name = "async-copy"
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (64, 128, 256), "tile_n": (64, 128, 256), "tile_k": (8, 16), "thread_m": (8, 16),
        "thread_n": (8, 16), "stages": (2, 3, 4, 5), "group": (4, 8, 16), "splits": (1, 2, 4, 8),
    }  # fmt: skip
    #: Configurations worth trying, in the parameters' order without splits; of equal cost() the first is the
    #: likeliest.
    listed: ClassVar[tuple[tuple[int, ...], ...]] = (
        (256, 128, 8, 16, 8, 4, 8), (128, 128, 16, 16, 8, 3, 8), (256, 128, 16, 16, 8, 3, 8),
        (128, 128, 8, 16, 8, 4, 16), (128, 256, 8, 8, 16, 4, 8), (128, 128, 16, 8, 16, 3, 8),
        (128, 256, 16, 8, 16, 3, 8), (128, 128, 16, 8, 8, 3, 8), (128, 128, 8, 8, 8, 4, 8),
        (256, 128, 8, 16, 8, 5, 4), (256, 128, 16, 16, 8, 4, 4), (128, 256, 8, 8, 16, 3, 4),
        (128, 128, 8, 16, 8, 5, 8), (128, 128, 16, 16, 8, 4, 16), (128, 64, 16, 8, 8, 4, 8),
        (64, 128, 16, 8, 8, 4, 8), (256, 64, 16, 16, 8, 4, 8), (64, 256, 16, 8, 16, 4, 8),
        (64, 64, 16, 8, 8, 4, 8), (128, 64, 16, 16, 8, 4, 8), (64, 128, 16, 8, 16, 4, 8),
        (64, 64, 16, 8, 8, 5, 8), (128, 256, 16, 8, 8, 3, 8),
    )  # fmt: skip

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """Candidates by cost() as far as it distinguishes them, then in the order of `listed`. Only for
        devices with asynchronous copies: elsewhere loads through registers are better (double-buffered)."""
        if not broad(problem) or not arch_of(environment).async_copies:
            return
        found = []
        for splits, row in combinations(self.choices["splits"], self.listed):
            values = dict(zip(self.choices, (*row, splits), strict=True))
            if self.rule(problem, values, environment) is None:
                found.append((self.cost(OrientedGemm(problem), values, environment), values))
        found.sort(key=lambda one: round(log(one[0]) / _ALIKE))
        yield from (values for _, values in found[:MOST])

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """Roughly the clocks of the busiest multiprocessor. It only orders the candidates; timing decides."""
        t, splits = self.pipeline(values), number(values, "splits")
        blocks = product.tiles(t.bm, t.bn) * product.batch * splits
        busiest = -(-blocks // environment.units)
        multiplied = t.tm * t.tn * t.bk
        slots = multiplied + (t.tm + t.tn) // 4 * t.bk + _OTHER_INSTRUCTIONS
        arch = arch_of(environment)
        room = arch.unit_shared_bytes // t.shared_bytes(product)
        warps = min(busiest, t.resident, room) * t.threads / 32
        tiles = -(-product.k // (splits * t.bk)) + t.stages  # along k; the first ones are waited for
        clocks = busiest * t.bm * t.bn * t.bk * tiles / arch.rates.multiply_adds * slots / multiplied
        clocks *= max(1.0, _BUSY_WARPS / warps)
        if splits > 1:
            moved = 2 * product.partial_bytes(splits) / environment.units
            clocks += moved / arch.rates.memory_bytes + _SECOND_LAUNCH
        return clocks

    def pipeline(self, values: Values) -> Pipeline:
        """The numbers of a configuration."""
        names = ("tile_m", "tile_n", "tile_k", "thread_m", "thread_n", "stages", "group")
        return Pipeline(*(number(values, name) for name in names))

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: fp32, the tile in whole warps and whole copies of 16 bytes by all
        threads, threads, shared memory, registers, grid."""
        product, arch, t = OrientedGemm(problem), arch_of(environment), self.pipeline(values)
        copied = WIDE // 4 * t.threads  # elements, if every thread has a copy
        return first(
            fp32_rule(product),
            whole_rule(t.bm, t.warp_tile[0], "tile_m", "a warp's rows,"),
            whole_rule(t.bn, t.warp_tile[1], "tile_n", "a warp's columns,"),
            threads_rule(t.threads, arch),
            whole_rule(t.bm * t.bk, copied, "A's tile of", "the copies of all threads,"),
            whole_rule(t.bn * t.bk, copied, "B's tile of", "the copies of all threads,"),
            shared_rule(t.shared_bytes(product), arch),
            registers_rule(t.registers(arch), t.threads, arch),
            grid_rule(product.tiles(t.bm, t.bn), t.threads, product, arch, number(values, "splits")),
        )

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """The instantiation of AsyncCopy; an operand that is contiguous along k is copied element by
        element."""
        product, t = OrientedGemm(problem), self.pipeline(values)
        numbers = ", ".join(map(str, (t.bm, t.bn, t.bk, t.tm, t.tn, t.stages, t.group)))
        # A transposed operand is copied by elements, whatever its alignment.
        wide = (product.whole("a") and not product.a_along_k, product.whole("b") and not product.b_along_k)
        text = f"AsyncCopy<{product.sides}, {numbers}, {', '.join(map(flag, wide))}>"
        return KernelConfig(
            product, self.header, text, t.threads, t.shared_bytes(product), product.tiles(t.bm, t.bn),
            number(values, "splits"), t.bk,
        )  # fmt: skip
