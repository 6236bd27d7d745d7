"""The Triton families: their parameters, and how each extends a tile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from backends.environment import Environment
from backends.kernels.legality import arch_of
from backends.kernels.triton.configuration import TritonConfig
from backends.kernels.triton.dequant import TritonDequant
from backends.kernels.triton.family import TILE, TritonFamily, Values
from backends.kernels.triton.framework_families import TritonBlockFp8, TritonInductorMm
from backends.kernels.triton.fused_moe import TritonFusedMoe
from backends.problem import GemmProblem
from backends.solution import Parameter


class TritonGemm(TritonFamily):
    """One tile of D per program; tiles are ordered in groups of rows."""

    name = "triton-gemm"
    choices = TILE

    def vary(self, problem: GemmProblem, values: Values, environment: Environment) -> Iterator[Values]:
        """The tile itself: the family has no other parameters."""
        yield values


class TritonSplitK(TritonFamily):
    """k is split into slices among programs; a second launch adds their sums in order, so that results are
    reproducible."""

    name = "triton-split-k"
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        **TILE,
        "split_k": (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64),
    }

    def vary(self, problem: GemmProblem, values: Values, environment: Environment) -> Iterator[Values]:
        """Slices of at least two steps, if the tiles alone leave multiprocessors idle."""
        one = TritonConfig.of(problem, {**values, "split_k": 1})
        if one.tiles >= environment.units:
            return
        for slices in (2, 3, 4, 6, 8, 12, 16, 32):
            if one.tiles * slices <= 4 * environment.units and one.steps >= 2 * slices:
                yield {**values, "split_k": slices}

    def adopt(
        self, problem: GemmProblem, values: Values, split: int, environment: Environment
    ) -> Iterator[Values]:
        """The proposed tile with the proposed number of slices."""
        yield {**values, "split_k": split}  # a single slice is not among this family's choices


class TritonPersistent(TritonFamily):
    """As many programs as run at once, each computing tile after tile; `loads` says how operands are
    loaded."""

    name = "triton-persistent"
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        **TILE,
        "programs_per_unit": (1, 2, 3, 4),
        "flatten": (True, False),
        "loads": ("pointer", "tma"),
    }

    def vary(self, problem: GemmProblem, values: Values, environment: Environment) -> Iterator[Values]:
        """Candidates with more tiles than programs: otherwise every program has one tile, and nothing
        overlaps. With the tensor memory accelerator for any number of tiles, because no other family uses
        it."""
        for programs, loads in ((1, "tma"), (1, "pointer"), (2, "tma"), (2, "pointer")):
            made = {**values, "programs_per_unit": programs, "flatten": True, "loads": loads}
            one = TritonConfig.of(problem, made)
            arch = arch_of(environment)
            fits = programs * one.shared_bytes(arch) <= arch.unit_shared_bytes
            useful = one.tiles > programs * environment.units or (one.tma and programs == 1)
            if fits and useful:
                yield made


#: In the order in which a search visits them.
FAMILIES: Mapping[str, TritonFamily] = {
    family.name: family
    for family in (
        TritonGemm(), TritonSplitK(), TritonPersistent(), TritonBlockFp8(), TritonInductorMm(),
        TritonFusedMoe(), TritonDequant(),
    )
}  # fmt: skip
