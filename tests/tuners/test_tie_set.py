"""Candidates that tie: which enter the final, and which is preferred."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from tuners.options import RaceOptions
from tuners.race import Race
from tuners.tie_set import entrants, preference

OPTIONS = RaceOptions()
SQUARE = from_linear(64, 64, 64, "bf16")
#: 512 tokens, 8 of 128 experts each: 32 rows a group on average.
GROUPED = from_linear(4096, 1536, 2048, "bf16", groups=128, routing="uniform")
OWN = [Solution("own", 1, {"tile": tile}, None, 0, True) for tile in range(5)]


def screened(solution: Solution, seconds: float) -> Outcome:
    return Outcome(solution, Phase.SCREEN, Status.OK, (seconds,))


TIMED = [screened(one, 1.0 + 0.01 * place) for place, one in enumerate(OWN)]


def race(solutions: list[Solution]) -> Race:
    return Race(lambda *_: TIMED[0], {one.id: one for one in solutions}, solutions[0].id, OPTIONS)


def chosen(
    solutions: list[Solution],
    winners: list[Solution],
    incumbent: str | None = None,
    problem: GemmProblem = SQUARE,
) -> Solution:
    order = preference(race(solutions), problem, winners, incumbent)
    return min(solutions, key=lambda one: (order[one.id], one.id))


def test_of_equals_the_latest_winner_is_preferred_then_an_earlier_one_then_the_id() -> None:
    by_id = sorted(OWN, key=lambda one: one.id)
    assert chosen(OWN, []) == by_id[0]
    assert chosen(OWN, [by_id[3], by_id[1]]) == by_id[3]
    assert chosen([one for one in OWN if one != by_id[3]], [by_id[3], by_id[1]]) == by_id[1]


def test_a_winner_is_not_preferred_to_less_workspace_determinism_or_a_library() -> None:
    large = Solution("own", 1, {"tile": 9}, None, 4096, True)
    uncertain = Solution("own", 1, {"tile": 8}, None, 0, None)
    library = Solution("cublaslt", 1, {"tile": 0}, "13", 0, True)
    assert chosen([OWN[0], large], [large]) == OWN[0]
    assert chosen([OWN[0], uncertain], [uncertain]) == OWN[0]
    assert chosen([OWN[0], library], [OWN[0]]) == library


def test_the_incumbent_is_preferred_to_all_that_tie_with_it() -> None:
    large = Solution("own", 1, {"tile": 9}, None, 4096, None)
    library = Solution("cublaslt", 1, {"tile": 0}, "13", 0, True)
    assert chosen([OWN[0], large, library], [OWN[0], large], large.id) == large
    assert chosen([OWN[0], library], [OWN[0], large], large.id) == library, "where it is not in the race"


def test_of_a_grouped_product_fewer_readings_of_the_weights_are_preferred_to_an_earlier_winner() -> None:
    """Of 32 rows a group on average half of the groups have more than a tile of 32."""
    tiles = [Solution("grouped-wgmma", 1, {"tile_n": rows}, None, 0, True) for rows in (32, 48, 64, 80)]
    ring = Solution("grouped-ring", 1, {"columns": 128}, None, 0, True)
    triton = Solution("triton-fused-moe", 1, {"BLOCK_SIZE_M": 256}, "3.6.0", 0, True)
    call = Solution("torch-grouped", 1, {"call": "grouped_mm"}, None, 0, True)
    few = from_linear(8, 1536, 2048, "bf16", groups=128, routing="uniform")
    assert chosen(tiles[:2], [tiles[0]], problem=GROUPED) == tiles[1]
    assert chosen(tiles, [tiles[0], tiles[3], tiles[2]], problem=GROUPED) == tiles[3], "the latest of equals"
    skewed = replace(GROUPED, routing="skewed")  # the most popular group has 12 times the mean
    assert chosen(tiles, tiles, problem=skewed) == tiles[3]
    assert chosen([tiles[0], ring], [], problem=GROUPED) == ring
    assert chosen([tiles[0], triton], [], problem=GROUPED) == triton
    assert chosen([tiles[3], call], [tiles[3]], problem=GROUPED) == call, (
        "a library's call, whatever it reads"
    )
    plugin = Solution("plugin", 1, {"rows": 64}, None, 0, True)
    assert chosen([tiles[0], plugin], [plugin], problem=GROUPED) == tiles[0], "what it reads is not known"
    assert chosen(tiles, [tiles[0]], tiles[0].id, GROUPED) == tiles[0], "the incumbent"
    assert chosen(tiles, [tiles[1]], problem=few) == tiles[1], "all read the weights of a group once"
    assert chosen(tiles, [tiles[1]], problem=SQUARE) == tiles[1], "and of one matrix it is not asked"


def test_the_latest_winner_has_a_place_in_the_final_if_it_is_near_the_fastest() -> None:
    assert entrants(TIMED, 2, [], OPTIONS) == TIMED[:2]
    assert entrants(TIMED, 2, [OWN[3], OWN[4]], OPTIONS) == [TIMED[0], TIMED[3]]
    assert entrants(TIMED, 2, [OWN[1]], OPTIONS) == TIMED[:2]


@pytest.mark.parametrize("seconds", [1.0 + 2 * (OPTIONS.entry_ratio - 1), 10.0])
def test_a_winner_that_is_slow_here_has_no_place(seconds: float) -> None:
    timed = [*TIMED[:3], screened(OWN[3], seconds)]
    assert entrants(timed, 2, [OWN[3]], OPTIONS) == TIMED[:2]


def test_the_only_place_is_the_fastest_s() -> None:
    assert entrants(TIMED, 1, [OWN[3]], OPTIONS) == TIMED[:1]
    assert entrants([], 3, [OWN[3]], OPTIONS) == []
