"""Families for products of any size on AMD's matrix cores (register_staged_tile.h): tile_mfma.py for CDNA,
tile_wmma.py for RDNA. What they share: types, scales, the tile with its rules and cost model, candidates."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product as combinations
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch, MatrixCores
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.grouping import gated, ungrouped
from backends.kernels.family import KernelConfig, KernelFamily, Values, number
from backends.kernels.legality import (
    arch_of,
    first,
    grid_rule,
    registers_rule,
    resident_blocks,
    shared_rule,
    sums_rule,
    threads_rule,
    whole_rule,
)
from backends.kernels.matrix_epilogue import MATRIX_TYPES, ScaledConfig, matrix_types
from backends.kernels.oriented_gemm import WIDE, OrientedGemm, flag
from backends.kernels.worthwhile import broad
from backends.problem import GemmProblem
from backends.solution import Parameter

#: 8-bit floats of each flavour (archs.py: MatrixCores.fp8).
FP8 = {"ocp": ("fp8_e4m3", "fp8_e5m2"), "fnuz": ("fp8_e4m3_fnuz", "fp8_e5m2_fnuz")}
#: At most so many candidates are listed, and so many of a tile: each is compiled, in seconds.
MOST, MOST_OF_SHAPE = 48, 6
#: Sums of a lane at most.
MOST_SUMS = 128
#: Bytes of a line of a tile in shared memory (staged_operand.h: kLineBytes).
LINE_BYTES = (64, 128, 256)
#: A tile whose lines lie within fewer bytes has 32-bit offsets.
FAR_BYTES = 2**31
#: Rows or columns of the tiles for products that have as few: those of the narrowest instruction.
NARROW = 16
#: Columns of a wavefront's sums that are on their way to D at once, and their pad (sum_patch.h).
_COLUMNS, _PAD = 16, 4
#: Registers for addresses, beside legality.OTHER_REGISTERS.
_ADDRESSES = 32

#: Clocks that a load takes to arrive, that a barrier costs, that a block takes to start and end, and that the
#: second launch of a split product takes. Estimates; nothing is measured on AMD hardware.
ARRIVAL, BARRIER, BLOCK_CLOCKS, _SECOND_LAUNCH = 1500.0, 60.0, 3000.0, 8000.0
#: How sharply the longest of what overlaps hides the others.
_OVERLAP = 4.0


def overlapped(*clocks: float) -> float:
    """Clocks of what overlaps: little more than the longest."""
    return float(sum(one**_OVERLAP for one in clocks) ** (1 / _OVERLAP))


def kind_of(dtype: str) -> str:
    """The input type by which archs.py lists matrix instructions: fp16, bf16, int8 or fp8."""
    return "fp8" if dtype.startswith("fp8") else dtype


@dataclass(frozen=True)
class MatrixTile:
    """register_staged_tile.h: RegisterStagedTile's numbers, and what is derived from them for one product on
    one architecture. `shape` is the instruction's m, n and k."""

    product: OrientedGemm
    arch: GpuArch
    shape: tuple[int, int, int]
    bm: int
    bn: int
    bk: int
    wm: int
    wn: int
    stages: int

    @property
    def cores(self) -> MatrixCores:
        """The architecture's matrix instructions. Raises ValueError where it has none."""
        if self.arch.matrix_cores is None:
            raise ValueError(f"{self.arch.name} has no matrix instructions")
        return self.arch.matrix_cores

    @property
    def waves(self) -> int:
        """Wavefronts of a block: one for each wm x wn elements of D."""
        return self.bm // self.wm * (self.bn // self.wn)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.arch.warp * self.waves

    @property
    def blocks(self) -> int:
        """Tiles that D is cut into."""
        return self.product.tiles(self.bm, self.bn)

    @property
    def line_bytes(self) -> int:
        """Bytes of a line of a tile: tile_k elements."""
        return self.bk * self.product.element_bytes

    @property
    def shared_bytes(self) -> int:
        """The tiles' in shared memory; at the end each wavefront's columns of sums lie in their place."""
        tile = (self.bm + self.bn) * self.line_bytes
        return max(self.stages * tile, self.patch_bytes)

    @property
    def patch_bytes(self) -> int:
        """Bytes of all wavefronts' columns of sums on their way to D (sum_patch.h)."""
        return self.waves * _COLUMNS * (self.wm + _PAD) * 4

    @property
    def operand_words(self) -> int:
        """32-bit registers of a lane for one line's elements of a step (staged_operand.h: Read)."""
        m, _, k = self.shape
        copies = 2 if self.cores.instruction == "wmma_gfx11" else 1
        size = DTYPES[self.product.problem.input_type].bytes
        return max(4, copies * m * k * size // 4 // self.arch.warp)

    @property
    def sums(self) -> int:
        """Registers of a lane for its wavefront's part of D."""
        return self.wm * self.wn // self.arch.warp

    @property
    def registers(self) -> int:
        """Sums, two steps' operands, the next tiles on their way (twice where they are transposed), and
        addresses."""
        steps = 2 * (self.wm + self.wn) // self.shape[0] * self.operand_words
        sides = ((self.bm, self.product.a_along_k), (self.bn, self.product.b_along_k))
        loads = sum(
            max(WIDE, lines * self.line_bytes // self.threads) // 4 * (1 if along_k else 2)
            for lines, along_k in sides
        )
        return self.sums + steps + loads + _ADDRESSES

    @property
    def far(self) -> bool:
        """Whether a thread's first load may lie beyond 32 bits of the block's first."""
        # Gated rows of both halves take turns.
        apart = self.product.m // 2 * self.product.line_bytes("a") if gated(self.product.problem) else 0
        extents = (
            apart + (self.bm if self.product.a_along_k else self.bk) * self.product.line_bytes("a"),
            (self.bn if self.product.b_along_k else self.bk) * self.product.line_bytes("b"),
        )
        return max(extents) + self.bm + self.bn >= FAR_BYTES

    @property
    def resident(self) -> int:
        """Blocks that a unit runs at once, about."""
        return resident_blocks(self.registers, self.threads, self.shared_bytes, self.arch)

    def clocks(self, splits: int, environment: Environment) -> float:
        """Roughly a launch's clocks: waves of blocks, and what adds slices of k. For the order of candidates
        only."""
        p, units = self.product, max(1, environment.units)
        here = min(self.resident, ceil(self.blocks * splits * p.batch / units))
        waves = max(1.0, self.blocks * p.batch * splits / (units * here))
        steps, last = ceil(ceil(p.k / self.bk) / splits), self.adding_clocks(splits, units)
        return (waves + ceil(waves)) / 2 * (steps * self.step_clocks(here) + BLOCK_CLOCKS) + last

    def adding_clocks(self, splits: int, units: int) -> float:
        """Roughly the clocks that adding slices of k takes on a GPU of `units` units."""
        if splits == 1:
            return 0.0
        moved = 2 * self.product.partial_bytes(splits)
        return _SECOND_LAUNCH + moved / (units * self.arch.rates.memory_bytes)

    def step_clocks(self, here: int) -> float:
        """Clocks of a step along k of `here` blocks of one unit: multiplications, shared memory (twice the
        bytes a clock of the L1 cache), L2 (half as many) or a load's latency, whichever is longest."""
        rates, kind = self.arch.rates, kind_of(self.product.problem.dtype_a)
        copied = (self.bm + self.bn) * self.line_bytes
        read = (self.bm * (self.bn // self.wn) + self.bn * (self.bm // self.wm)) * self.line_bytes
        hidden = overlapped(
            here * self.bm * self.bn * self.bk / self.cores.multiply_adds[kind],
            here * (copied + read) / (2 * rates.cache_bytes), here * copied / (rates.cache_bytes / 2),
            ARRIVAL,
        )  # fmt: skip
        return hidden + BARRIER * (3 - self.stages)


class MatrixCoreFamily(KernelFamily):
    """What tile-mfma and tile-wmma share."""

    vendors = ("hip",)
    computes = (
        ("fp16", "fp32"), ("bf16", "fp32"), ("int8", "int32"),
        *((kind, "fp32") for flavour in FP8.values() for kind in flavour),
    )  # fmt: skip
    #: The header's class, and the one of its numbers.
    template: ClassVar[str]
    numbers: ClassVar[type[MatrixTile]] = MatrixTile
    #: archs.py: MatrixCores.instruction.
    instructions: ClassVar[tuple[str, ...]]
    #: (tile_m, tile_n, warp_m, warp_n) worth trying.
    listed: ClassVar[tuple[tuple[int, int, int, int], ...]]
    #: (tile_m, warp_m) worth trying with NARROW columns, or (tile_n, warp_n) with NARROW rows.
    narrow: ClassVar[tuple[tuple[int, int], ...]]

    def unsupported(self, problem: GemmProblem) -> str | None:
        """The types, compute type, scaling or groups that the kernels do not have."""
        p = problem
        if (broken := ungrouped(p)) is not None:
            return broken
        if (p.dtype_a, p.compute) not in self.computes:
            known = ", ".join(dict.fromkeys(f"{kind} in {compute}" for kind, compute in self.computes))
            return f"matrix cores multiply {known}, not {p.dtype_a} in {p.compute}"
        if p.dtype_b != p.dtype_a and not any({p.dtype_a, p.dtype_b} <= set(kinds) for kinds in FP8.values()):
            return f"matrix cores do not multiply {p.dtype_a} by {p.dtype_b}"
        for kind in filter(None, (p.dtype_c, p.dtype_d, p.bias)):
            if kind not in MATRIX_TYPES:
                return f"our kernels have no C, D or bias of {kind}"
        for scale in (p.scale_a, p.scale_b, p.scale_d):
            if scale not in ("none", "tensor", "outer"):
                return f"our kernels have scales of tensors, rows and columns, not {scale}"
        if p.scale_dtype not in (None, "fp32"):
            return f"our kernels have scales of fp32, not {p.scale_dtype}"
        return None

    def shape(self, problem: GemmProblem, values: Values, arch: GpuArch) -> tuple[int, int, int] | None:
        """m, n and k of the architecture's instruction for the input types, or None."""
        cores, kind = arch.matrix_cores, problem.input_type
        if cores is None or cores.instruction not in self.instructions:
            return None
        if kind.startswith("fp8") and kind not in FP8.get(cores.fp8, ()):
            return None
        return cores.shape(kind_of(kind), number(values, "instruction") if "instruction" in values else 16)

    def tile(self, problem: GemmProblem, values: Values, arch: GpuArch) -> MatrixTile:
        """The numbers of a configuration. Raises ValueError where the architecture has no instruction."""
        shape = self.shape(problem, values, arch)
        if shape is None:
            raise ValueError(f"{arch.name} has no instruction of {self.name} for {problem.input_type}")
        names = ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "stages")
        return self.numbers(OrientedGemm(problem), arch, shape, *(number(values, name) for name in names))

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """By clocks(), of every listed tile with slices of several tiles along k; last the likeliest again,
        with group 1. Few rows or columns of 16-bit floats are left to the GEMV and skinny families, which
        have no 8-bit elements."""
        arch = arch_of(environment)
        instructions = [{"instruction": one} for one in self.choices.get("instruction", (16,))]
        if DTYPES[problem.dtype_a].bits > 8 and not broad(problem):
            return
        if all(self.shape(problem, one, arch) is None for one in instructions):
            return
        found: list[tuple[float, dict[str, Parameter]]] = []
        for values in self._worthwhile(problem):
            if self.rule(problem, values, environment) is None:
                t = self.tile(problem, values, arch)
                found.append((t.clocks(number(values, "splits"), environment), values))
        chosen = self.varied(found)
        if chosen:  # the order of blocks matters little, or nothing else does
            chosen.append({**chosen[0], "group": 1})
        yield from chosen

    def _worthwhile(self, problem: GemmProblem) -> Iterator[dict[str, Parameter]]:
        """Parameters of _sides(), with slices of at least four tiles along k."""
        size = DTYPES[problem.dtype_a].bytes
        names = [name for name in ("instruction", "stages", "splits") if name in self.choices]
        for (bm, bn, wm, wn), line in combinations(self._sides(problem), LINE_BYTES[:2]):
            tile = {"tile_m": bm, "tile_n": bn, "tile_k": line // size, "warp_m": wm, "warp_n": wn}
            for rest in combinations(*(self.choices[name] for name in names)):
                values: dict[str, Parameter] = {**tile, **dict(zip(names, rest, strict=True)), "group": 8}
                splits = number(values, "splits")
                if splits == 1 or problem.k >= 4 * splits * line // size:
                    yield {name: values[name] for name in self.choices}

    def _sides(self, problem: GemmProblem) -> Iterator[tuple[int, int, int, int]]:
        """tile_m, tile_n, warp_m and warp_n of tiles that are not mostly beyond D. The smallest of a product
        of few rows or columns is there in any case."""
        m, n = problem.m, problem.n
        if broad(problem):
            yield from (tile for tile in self.listed if tile[0] < 2 * m and tile[1] < 2 * n)
            return
        for length, part in self.narrow:
            if length < 2 * max(m, n, NARROW):
                yield (length, NARROW, part, NARROW) if n <= m else (NARROW, length, NARROW, part)

    def varied(self, found: list[tuple[float, dict[str, Parameter]]]) -> list[dict[str, Parameter]]:
        """At most MOST - 1 of those found, the fewest clocks first, and MOST_OF_SHAPE of every tile."""
        chosen: list[dict[str, Parameter]] = []
        tried: Counter[tuple[Parameter, ...]] = Counter()
        for _, values in sorted(found, key=lambda one: one[0]):
            shape = tuple(values[name] for name in ("tile_m", "tile_n", "warp_m", "warp_n"))
            if tried[shape] < MOST_OF_SHAPE and len(chosen) < MOST - 1:
                chosen.append(values)
                tried[shape] += 1
        return chosen

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: the instruction, the tile in whole parts, its depth, threads,
        shared memory, registers, grid."""
        broken = self.instruction_rule(problem, values, environment)
        if broken is not None:
            return broken
        t = self.tile(problem, values, arch_of(environment))
        return first(
            self.tile_rule(t),
            grid_rule(t.blocks, t.threads, t.product, t.arch, number(values, "splits")),
        )

    def instruction_rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The architecture has the instruction for the input types."""
        arch = arch_of(environment)
        if self.shape(problem, values, arch) is None:
            return f"{arch.name} has no {self.name.rpartition('-')[2]} instruction for {problem.input_type}"
        return None

    def tile_rule(self, t: MatrixTile) -> str | None:
        """The rule that a tile breaks, or None: whole parts, its depth, threads, shared memory, registers."""
        whole = first(
            whole_rule(t.bm, t.wm, "tile_m", "warp_m"), whole_rule(t.bn, t.wn, "tile_n", "warp_n"),
            whole_rule(t.wm, t.shape[0], "warp_m", "the instruction's rows,"),
            whole_rule(t.wn, t.shape[1], "warp_n", "the instruction's columns,"),
        )  # fmt: skip
        if whole is not None:
            return whole
        if t.line_bytes not in LINE_BYTES:
            return f"tile_k is 64, 128 or 256 bytes of {t.product.problem.dtype_a}, not {t.line_bytes}"
        return first(
            threads_rule(t.threads, t.arch),
            shared_rule(t.shared_bytes, t.arch),
            sums_rule(t.sums, MOST_SUMS),
            registers_rule(t.registers, t.threads, t.arch, t.sums),
        )

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """The instantiation, one block for each tile and slice of k. Raises ValueError where the architecture
        has no instruction."""
        t = self.tile(problem, values, arch)
        product = t.product
        sides = (product.a_along_k, product.b_along_k, product.whole("a"), product.whole("b"), t.far)
        numbers = (t.bm, t.bn, t.bk, t.wm, t.wn, *self.shape_arguments(t), t.stages, number(values, "group"))
        arguments = (matrix_types(problem), *map(flag, sides), *numbers)
        text = f"{self.template}<{', '.join(map(str, arguments))}>"
        return ScaledConfig(
            product, self.header, text, t.threads, t.shared_bytes, t.blocks, number(values, "splits"), t.bk
        )

    @abstractmethod
    def shape_arguments(self, t: MatrixTile) -> tuple[int, ...]:
        """The template arguments that choose the instruction."""
