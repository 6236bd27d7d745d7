"""Grouped products of 4-bit weights on AMD's matrix cores (grouped_weight_tile.h): what
grouped_dequant_mfma.py for CDNA and grouped_dequant_wmma.py for RDNA share."""

from __future__ import annotations

from math import ceil

from backends.environment import Environment
from backends.kernels.family import Values, number
from backends.kernels.grouped import tiles, units_of
from backends.kernels.grouped_matrix_core import GroupedMatrixCoreFamily
from backends.kernels.grouped_weights import unsupported_group_elements
from backends.kernels.legality import arch_of
from backends.kernels.matrix_core_tile import BLOCK_CLOCKS, MatrixTile
from backends.kernels.weight_tile import WeightTile, faster, scales_rule
from backends.kernels.weights import quantised
from backends.problem import GemmProblem


class GroupedMatrixWeights(GroupedMatrixCoreFamily):
    """What grouped-dequant-mfma and grouped-dequant-wmma share."""

    numbers = WeightTile

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, or None."""
        return unsupported_group_elements(problem)

    def depths(self, problem: GemmProblem) -> tuple[int, ...]:
        """All: the deeper a tile, the more of it is on its way."""
        return tuple(int(one or 0) for one in self.choices["tile_k"])

    def further_sums(self, t: MatrixTile) -> int:
        """Registers for the sums of a group of k, and of its activations."""
        assert isinstance(t, WeightTile)
        return t.further

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: scales of a whole tile in every row, within 32 bits, and the
        rules of grouped products. (Blocks of fewer threads than a row of X has loads lack registers.)"""
        return scales_rule(problem, values) or super().rule(problem, values, environment)

    def clocks(self, problem: GemmProblem, values: Values, environment: Environment) -> float:
        """Roughly a launch's clocks: waves of tiles of the problem's own counts. It only orders the
        candidates.

        Weights are read from memory once for all tiles that a group has across. A unit has `here` blocks, of
        which each has one tile of weights on its way. With few rows a load's latency is the bound, which
        favours deep tiles and many blocks. With many rows conversions are, which favours wide tiles whose
        wavefronts have all columns."""
        t, units = self.tile(problem, values, arch_of(environment)), units_of(environment)
        assert isinstance(t, WeightTile)
        count = tiles(t.product, t.bm, t.bn)
        again = count / max(1, tiles(t.product, t.bm, problem.n))
        here = min(number(values, "blocks_per_unit"), ceil(count / units))
        waves = max(1.0, count / (units * here))
        weights = min(t.bm, problem.m) * t.bk * t.weight_bytes / again
        step = t.weight_clocks(here, weights / faster(count, units))
        return (waves + ceil(waves)) / 2 * (ceil(problem.k / t.bk) * step + BLOCK_CLOCKS)

    def kinds(self, problem: GemmProblem) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Template arguments behind the types, and the last ones."""
        return (quantised(problem),), ()
