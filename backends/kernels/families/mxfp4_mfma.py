"""MXFP4 times MXFP4 on the matrix cores of CDNA GPUs (mxfp4_mfma.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product as combinations
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import Values, number
from backends.kernels.legality import arch_of, first, grid_rule
from backends.kernels.matrix_core_tile import MatrixCoreFamily, MatrixTile
from backends.kernels.mx_products import MxConfig, MxGemm, unsupported_products
from backends.kernels.oriented_gemm import CPP_TYPES, flag
from backends.kernels.scaled import lines_rule
from backends.problem import GemmProblem
from backends.solution import Parameter

#: Elements of a lane in an instruction: those of a word of memory.
_ELEMENTS = 8
#: Rows, or columns, of a tile that is never too large; and steps along k of a slice, at least.
_LOW, _LEAST_STEPS = 32, 4
#: Instructions for a word of eight elements of a line, for a scale, and for a sum that is scaled. By
#: counting; nothing is measured on AMD hardware.
_CONVERT, _SCALE, _SUM = 20.0, 4.0, 3.0
#: Instructions of a compute unit in a clock.
_ISSUED = 4.0


class MxMatrixTile(MatrixTile):
    """A tile whose depth is in bytes."""

    @property
    def registers(self) -> int:
        """Beside what a tile of bytes takes: words and scales of four groups, and an instruction's sums."""
        rows, columns, sums = self.wm // self.shape[0], self.wn // self.shape[0], self.shape[0] ** 2 // 64
        words = 4 * (32 // self.shape[2]) * (rows + columns)
        return super().registers + words + rows * sums + columns + sums

    def step_clocks(self, here: int) -> float:
        """Roughly the clocks of a step along k of `here` blocks of one unit: what wavefronts convert and
        scale, or what is copied."""
        groups, waves = self.bk // 16, self.waves
        words = (self.wm + self.wn) / 64 * 4
        sums = self.wm * self.wn / 64
        each = words * _CONVERT + (self.wm + self.wn) / 64 * _SCALE + sums * _SUM
        issued = waves * groups * each / _ISSUED
        return here * max(issued, (self.bm + self.bn) * self.line_bytes / self.arch.rates.cache_bytes)


class Mxfp4Mfma(MatrixCoreFamily):
    """MXFP4 times MXFP4 on AMD matrix cores (MFMA of int8, gfx942 and gfx950): both operands are read as
    they are stored and converted in registers to twice their numbers, and the sums of every 32 are
    multiplied by both scales in fp32.

    mxfp4_mfma.h. Parameters: tile_m x tile_n of D a block, tile_k of k at a time, warp_m x warp_n of D a
    wavefront, instruction (rows and columns of one MFMA), stages (tiles along k in shared memory), splits
    (blocks along k), group (rows of tiles that blocks go through together)."""

    name = "mxfp4-mfma"
    template = "Mxfp4Mfma"
    computes = (("fp4_e2m1", "fp32"),)
    numbers = MxMatrixTile
    instructions = ("mfma",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (32, 64, 128, 256), "tile_n": (32, 64, 128, 256), "tile_k": (128, 256, 512),
        "warp_m": (32, 64), "warp_n": (32, 64), "instruction": (16, 32), "stages": (1, 2),
        "splits": (1, 2, 3, 4, 6, 8), "group": (1, 8),
    }  # fmt: skip
    listed = (
        (128, 128, 64, 64), (128, 128, 64, 32), (128, 128, 32, 64), (256, 128, 64, 64), (128, 256, 64, 64),
        (128, 64, 64, 32), (64, 128, 32, 64), (64, 64, 32, 32), (128, 32, 32, 32), (32, 128, 32, 32),
        (64, 32, 32, 32), (32, 64, 32, 32), (128, 64, 32, 32), (64, 128, 32, 32),
    )  # fmt: skip
    narrow = ()

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, or None."""
        return unsupported_products(problem)

    def shape(self, problem: GemmProblem, values: Values, arch: GpuArch) -> tuple[int, int, int] | None:
        """m, n and k of the architecture's int8 instruction of which a lane has eight elements, or None."""
        cores, rows = arch.matrix_cores, number(values, "instruction")
        if cores is None or cores.instruction not in self.instructions:
            return None
        shapes = cores.shapes.get("int8", ())
        return next((one for one in shapes if one[0] == rows and one[2] * rows // 64 == _ELEMENTS), None)

    def tile(self, problem: GemmProblem, values: Values, arch: GpuArch) -> MxMatrixTile:
        """The numbers of a configuration. Raises ValueError where the architecture has no instruction."""
        shape = self.shape(problem, values, arch)
        if shape is None:
            raise ValueError(f"{arch.name} has no instruction of {self.name}")
        bm, bn, deep, wm, wn, stages = (
            number(values, name) for name in ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "stages")
        )
        return MxMatrixTile(MxGemm(problem), arch, shape, bm, bn, deep // 2, wm, wn, stages)

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """By clocks(), of every listed tile with slices of several tiles along k; last the likeliest again,
        with group 1."""
        arch, found = arch_of(environment), []
        names = ("tile_k", "instruction", "stages", "splits")
        for (bm, bn, wm, wn), rest in combinations(
            self.listed, combinations(*(self.choices[name] for name in names))
        ):
            if bm >= 2 * max(problem.m, _LOW) or bn >= 2 * max(problem.n, _LOW):
                continue
            values: dict[str, Parameter] = {
                "tile_m": bm, "tile_n": bn, "warp_m": wm, "warp_n": wn,
                **dict(zip(names, rest, strict=True)), "group": 8,
            }  # fmt: skip
            splits = number(values, "splits")
            if splits > 1 and problem.k < _LEAST_STEPS * splits * number(values, "tile_k"):
                continue
            if self.rule(problem, values, environment) is None:
                clocks = self.tile(problem, values, arch).clocks(splits, environment)
                found.append((clocks, values))
        chosen = self.varied(found)
        if chosen:  # the order of blocks matters little, or nothing else does
            chosen.append({**chosen[0], "group": 1})
        yield from chosen

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: the instruction, 16-byte words of operands, the tile, the
        grid."""
        arch = arch_of(environment)
        if self.shape(problem, values, arch) is None:
            return f"{arch.name} has no MFMA of int8 of which a lane has {_ELEMENTS} elements"
        t = self.tile(problem, values, arch)
        return first(
            lines_rule(t.product),
            self.tile_rule(t),
            grid_rule(t.blocks, t.threads, t.product, t.arch, number(values, "splits")),
        )

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> MxConfig:
        """The instantiation, one block for each tile and slice of k. Raises ValueError where the architecture
        has no instruction."""
        t, product = self.tile(problem, values, arch), MxGemm(problem)
        ends = ", ".join(
            CPP_TYPES[kind] for kind in (problem.dtype_c, problem.dtype_d, problem.bias or problem.dtype_d)
        )
        numbers = (t.bm, t.bn, t.bk, t.wm, t.wn, *self.shape_arguments(t), t.stages, number(values, "group"))
        kinds = f"gemmtune::MxTypes<{ends}>, {flag(product.scale_words)}, {flag(t.far)}"
        return MxConfig(
            product, self.header, f"{self.template}<{kinds}, {', '.join(map(str, numbers))}>", t.threads,
            t.shared_bytes, t.blocks, number(values, "splits"), t.bk,
        )  # fmt: skip

    def shape_arguments(self, t: MatrixTile) -> tuple[int, int]:
        """The instruction's rows and elements of k."""
        return t.shape[0], t.shape[2]
