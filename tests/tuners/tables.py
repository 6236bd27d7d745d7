"""A recorded table that is made up: two layers, a family with a grid of tiles, and failures."""

from __future__ import annotations

from random import Random

from backends.environment import Environment
from backends.outcome import Status
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from tuners.policy import MeasurementPolicy
from tuners.recorded_table import RecordedProblem, RecordedTable, Row

ENVIRONMENT = Environment("cpu", "x86_64", "Made up", 4, 2**34, "CPU-made", "x86-64-v3")
#: Tiles and unrolls of the family "packed"; the fastest are at tile 64, unroll 4, 2e-5 s.
TILES, UNROLLS = (8, 16, 32, 64, 128), (1, 2, 4, 8)
BEST = 2e-5
DEFAULT = Solution("openblas", 1, {"threads": 4}, "build", 0, True)
CRASHES = Solution("packed", 1, {"tile": 256, "unroll": 1}, None, 0, True)
#: Far slower than the best: without a second pass.
SLOW = Solution("openblas", 1, {"threads": 1}, "build", 64, None)


def packed(tile: int, unroll: int) -> Solution:
    return Solution("packed", 1, {"tile": tile, "unroll": unroll}, None, 0, True)


def recorded(problem: GemmProblem, seed: int) -> RecordedProblem:
    """Samples with 1% of noise. Every other tile is listed, small ones first."""
    rng = Random(seed)

    def samples(seconds: float) -> tuple[float, ...]:
        return tuple(seconds * rng.uniform(1.0, 1.01) for _ in range(5))

    rows = [
        Row(DEFAULT, Status.OK, samples(4e-5), samples(4e-5)),
        Row(SLOW, Status.OK, samples(4e-4), ()),
        Row(CRASHES, Status.CRASH),
    ]
    for place, tile in enumerate(TILES):
        for turn, unroll in enumerate(UNROLLS):
            seconds = BEST * (1 + 0.3 * abs(place - 3) + 0.1 * abs(turn - 2))
            listed = None if tile in (16, 64) else len(rows)
            row = Row(packed(tile, unroll), Status.OK, samples(seconds), samples(seconds), listed, 1980.0)
            rows.append(row)
    return RecordedProblem(
        problem, tuple(rows), (("numpy", DEFAULT.id),), {"before": {"sm_mhz": 1980}, "after": {}}
    )


PROBLEMS = (from_linear(1, 768, 512), from_linear(16, 768, 512), from_linear(1, 512, 2048))
TABLE = RecordedTable(
    ENVIRONMENT, "0123abc", "2026-01-01T00:00:00+00:00", "made up", MeasurementPolicy(),
    tuple(recorded(problem, seed) for seed, problem in enumerate(PROBLEMS)),
)  # fmt: skip
