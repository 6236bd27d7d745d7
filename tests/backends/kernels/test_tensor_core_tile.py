"""tensor_core_tile.py: the order of tiles by clocks(), also against recorded times."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, median

import pytest

from backends.environment import Environment
from backends.kernels.families import FAMILIES
from backends.kernels.oriented_gemm import OrientedGemm
from backends.kernels.tensor_core_tile import Tile, TileFamily
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from tests.backends.kernels.emulator.host import H200
from tuners.recorded_table import RecordedProblem, RecordedTable

RECORDED = Path(__file__).parents[3] / "benchmarks" / "recorded"


def tile(problem: GemmProblem, bm: int, bn: int, wm: int, wn: int) -> Tile:
    return Tile(OrientedGemm(problem), bm, bn, 64, wm, wn, 4)


def test_a_block_that_is_mostly_beyond_d_may_begin_a_wave() -> None:
    """Of 6144 x 512 elements: 144 blocks of 128 x 192 on 132 multiprocessors, or 128 of 192 x 128."""
    problem = from_linear(512, 6144, 4096, "bf16")
    uneven, even = tile(problem, 128, 192, 64, 48), tile(problem, 192, 128, 48, 64)
    assert (uneven.tiles, even.tiles) == (144, 128)
    assert uneven.clocks(1, H200) > 1.2 * even.clocks(1, H200)


def test_slices_pay_for_their_partial_sums() -> None:
    """They are worth it for few columns, whose tiles leave multiprocessors idle, not for one full wave."""
    few, wave = from_linear(64, 1280, 8192, "bf16"), from_linear(512, 6144, 4096, "bf16")
    assert tile(few, 128, 64, 64, 32).clocks(4, H200) < tile(few, 128, 64, 64, 32).clocks(1, H200)
    one, two = (tile(wave, 192, 128, 48, 64).clocks(splits, H200) for splits in (1, 2))
    stored = wave.m * wave.n * 2 * 4  # bytes, loaded again
    assert two - one > 2 * stored / (H200.units * 12.0)  # memory's rate in bytes a clock, or less


def _clocks(family: TileFamily, one: Solution, problem: GemmProblem, environment: Environment) -> float:
    splits = one.parameters["splits"]
    assert isinstance(splits, int)
    return family.tile(OrientedGemm(problem), one.parameters).clocks(splits, environment)


def _regret(family: TileFamily, one: RecordedProblem, environment: Environment, first: int) -> float | None:
    """Of the fastest of the `first` candidates by clocks(); None where few were timed. Pruned ones have the
    samples of their screening."""
    timed = [
        (_clocks(family, row.solution, one.problem, environment), median(row.first))
        for row in one.rows
        if row.solution.family == family.name and row.first
    ]
    if len(timed) < 2 * first:
        return None
    timed.sort()
    return min(seconds for _, seconds in timed[:first]) / min(seconds for _, seconds in timed) - 1


@pytest.mark.parametrize(("name", "table"), [("bytes-tile-mma", "h100-bytes"), ("tile-mma", "h200-bf16")])
def test_the_first_candidates_are_among_the_fastest_that_were_recorded(name: str, table: str) -> None:
    family, recorded = FAMILIES[name], RecordedTable.load(RECORDED / f"{table}.npz")
    assert isinstance(family, TileFamily)
    found = [
        regret
        for one in recorded.problems
        if one.problem.dtype_a != "fp8_e4m3"  # which sm_90 converts, and none is listed of
        and (regret := _regret(family, one, recorded.environment, 4)) is not None
    ]
    assert len(found) >= 5
    assert fmean(found) <= 0.02
