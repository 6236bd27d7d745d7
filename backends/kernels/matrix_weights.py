"""Products of quantised weights on AMD's matrix cores (dequant_matrix_tile.h): what dequant_mfma.py for CDNA
and dequant_wmma.py for RDNA share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product as combinations
from math import ceil

from backends.archs import GpuArch
from backends.dtypes import FP8_WEIGHT
from backends.environment import Environment
from backends.kernels.family import KernelConfig, Values, number
from backends.kernels.legality import arch_of, first, grid_rule, registers_rule, sums_rule
from backends.kernels.matrix_core_tile import MOST_SUMS, MatrixCoreFamily
from backends.kernels.matrix_epilogue import matrix_types
from backends.kernels.oriented_gemm import OrientedGemm, flag
from backends.kernels.weight_tile import WeightTile, scales_rule
from backends.kernels.weights import WeightConfig, bits, group, quantised, unsupported_weights
from backends.problem import GemmProblem
from backends.solution import Parameter

#: Rows and columns of a tile that is never too large.
_LOW, _NARROW = 64, 16
#: Columns of a tile that is never too narrow, and tiles across of narrower ones, at most: every one of them
#: converts the weights.
_WIDE, _MOST_ACROSS = 64, 8
#: Steps along k of a slice, at least.
_LEAST_STEPS = 2


class MatrixWeights(MatrixCoreFamily):
    """What dequant-mfma and dequant-wmma share."""

    numbers = WeightTile

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, scales or layout, or None."""
        p = problem
        if (broken := unsupported_weights(p)) is not None:
            return broken
        if p.dtype_a == FP8_WEIGHT:
            return f"these kernels multiply weights of integers or MXFP4, not {p.dtype_a}"
        return None if OrientedGemm(p).b_along_k else "columns must be contiguous along k"

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """By clocks(), of every listed tile; last the likeliest again, with group 1."""
        found: list[tuple[float, dict[str, Parameter]]] = []
        for values in self._listed(problem):
            if self.rule(problem, values, environment) is None:
                t = self.tile(problem, values, arch_of(environment))
                found.append((t.clocks(number(values, "splits"), environment), values))
        chosen = self.varied(found)
        if chosen:  # the order of blocks matters little, or nothing else does
            chosen.append({**chosen[0], "group": 1})
        yield from chosen

    def _listed(self, problem: GemmProblem) -> Iterator[dict[str, Parameter]]:
        """Parameters of tiles that are neither mostly beyond D (unless they are small) nor too narrow for
        its columns, with slices of several steps along k."""
        names = [name for name in ("instruction", "stages", "splits") if name in self.choices]
        least = min(_WIDE, problem.n // _MOST_ACROSS)
        for (bm, bn, wm, wn), deep in combinations(self.listed, self.choices["tile_k"]):
            if bm >= 2 * max(problem.m, _LOW) or not least <= bn < 2 * max(problem.n, _NARROW):
                continue
            tile = {"tile_m": bm, "tile_n": bn, "tile_k": deep, "warp_m": wm, "warp_n": wn}
            for rest in combinations(*(self.choices[name] for name in names)):
                values: Mapping[str, Parameter] = {**tile, **dict(zip(names, rest, strict=True)), "group": 8}
                splits, steps = number(values, "splits"), ceil(problem.k / number(values, "tile_k"))
                full = ceil(steps / splits) * (splits - 1) < steps  # no slice is empty
                if splits == 1 or (steps >= _LEAST_STEPS * splits and full):
                    yield {name: values[name] for name in self.choices}

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: the instruction, scales, the tile, registers, the grid."""
        broken = self.instruction_rule(problem, values, environment) or scales_rule(problem, values)
        if broken is not None:
            return broken
        t = self._weight_tile(problem, values, arch_of(environment))
        if (broken := self.tile_rule(t)) is not None:
            return broken
        return first(
            _group_rule(t),
            sums_rule(t.sums + t.further, MOST_SUMS, " with the scaled ones"),
            registers_rule(t.registers + t.further, t.threads, t.arch, t.sums),
            grid_rule(t.blocks, t.threads, t.product, t.arch, number(values, "splits")),
        )

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """The instantiation, one block for each tile and slice of k. Raises ValueError where the architecture
        has no instruction."""
        t = self._weight_tile(problem, values, arch)
        sides = (t.product.whole("a"), t.product.whole("b"), t.far)
        numbers = (t.bm, t.bn, t.bk, t.wm, t.wn, *self.shape_arguments(t), t.stages, number(values, "group"))
        arguments = (matrix_types(problem), quantised(problem), *map(flag, sides), *numbers)
        text = f"{self.template}<{', '.join(map(str, arguments))}>"
        return WeightConfig(
            t.product, self.header, text, t.threads, t.shared_bytes, t.blocks, number(values, "splits"), t.bk
        )

    def _weight_tile(self, problem: GemmProblem, values: Values, arch: GpuArch) -> WeightTile:
        """tile(), whose class is `numbers`."""
        t = self.tile(problem, values, arch)
        assert isinstance(t, WeightTile)
        return t


def _group_rule(t: WeightTile) -> str | None:
    """A group of 8-bit weights is what the lanes of a row read at once, or several times as much."""
    deep, own = t.read_deep, group(t.problem)
    if bits(t.problem) == 8 and own % deep:
        return f"groups of {own} elements of k; the lanes of a row read {deep} of {t.problem.dtype_a} at once"
    return None
