"""Evolution: cells, parents, children near them and crossings that are members."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backends.family_space import GridSpace, ParameterGrid
from backends.outcome import Outcome, Phase, Status
from backends.solution import Parameter, Solution
from tests.tuners.strategies.contexts import context
from tuners.strategies import SearchContext
from tuners.strategies.evolutionary import Cell, Evolutionary, cell

SIDES = (8, 16, 32, 64, 128, 256)


def of(m: int, n: int) -> Solution:
    return Solution("family", 1, {"tile_m": m, "tile_n": n})


def make(values: dict[str, Parameter]) -> Solution | None:
    """Square tiles of 256 are illegal."""
    return None if values["tile_m"] == values["tile_n"] == 256 else Solution("family", 1, values)


SPACE = GridSpace("family", 1, None, ParameterGrid.of({"tile_m": SIDES, "tile_n": SIDES}), make)
LISTED = [of(8, 8), of(256, 8), of(8, 256), of(16, 16)]


def given(seed: int = 0, **options: int | float) -> SearchContext:
    spaces = {"family": SPACE}
    return context(LISTED, seed, lambda origin: (), spaces=spaces, options={"opening": 4, **options})


def seconds(one: Solution) -> float:
    """Fastest at 64 x 128."""
    m, n = (SIDES.index(int(one.parameters[name] or 0)) for name in ("tile_m", "tile_n"))
    return 1.0 + abs(m - 3) + abs(n - 4)


def run(strategy: Evolutionary, count: int) -> list[Solution]:
    asked: list[Solution] = []
    while len(asked) < count and (batch := strategy.ask(1)):
        asked += batch
        strategy.tell(Outcome(batch[0], Phase.SCREEN, Status.OK, (seconds(batch[0]),)))
    return asked


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ({"tile_m": 64, "tile_n": 64, "splits": 1}, ("family", 6, False)),
        ({"tile_m": 64, "tile_n": 32, "splits": 4}, ("family", 5, True)),
        ({"block_m": 64, "block_n": 128, "swap": True}, ("family", 6, False)),
        ({"threads": 2}, ("family", 0, False)),
        ({"stream": "a", "rows": 4, "splits": 2}, ("family", 1, True)),
    ],
)
def test_a_cell_is_the_family_the_tile_and_whether_k_is_split(
    parameters: dict[str, Parameter], found: Cell
) -> None:
    assert cell(Solution("family", 1, parameters)) == found


@pytest.mark.parametrize("seed", range(4))
def test_it_reaches_the_best_of_a_space_of_which_the_list_has_the_corners(seed: int) -> None:
    asked = run(Evolutionary(given(seed)), 10**6)
    assert asked[:4] == LISTED
    assert of(64, 128) in asked
    assert len(asked) == len(set(asked))
    assert of(256, 256) not in asked, "illegal"
    assert all(one in SPACE for one in asked)


class Still(GridSpace):
    """A space in which nothing is near anything."""

    def steps(self, index: int) -> Iterator[int]:
        return iter(())


def test_crossings_take_each_parameter_of_one_of_two_parents() -> None:
    still = Still("family", 1, None, SPACE.grid, make)
    strategy = Evolutionary(
        context(LISTED, spaces={"family": still}, options={"opening": 4, "crossing": 1.0})
    )
    opening, children = run(strategy, 4), run(strategy, 3)
    assert children
    assert not set(children) & set(opening)
    for place, child in enumerate(children):
        known = (*opening, *children[:place])
        for name in ("tile_m", "tile_n"):
            assert child.parameters[name] in {one.parameters[name] for one in known}


def test_without_crossings_children_are_a_step_away() -> None:
    strategy = Evolutionary(given(crossing=0.0, listed_share=0.0))
    known = set(run(strategy, 4))
    for _ in range(8):
        (child,) = run(strategy, 1)
        assert any(child in set(SPACE.neighbours(parent)) for parent in known)
        known.add(child)


def test_the_seed_chooses_the_parents() -> None:
    orders = {tuple(run(Evolutionary(given(seed)), 20)) for seed in range(5)}
    assert len(orders) > 2
    assert run(Evolutionary(given(3)), 20) == run(Evolutionary(given(3)), 20)


def test_the_list_keeps_its_share() -> None:
    listed = [Solution("other", 1, {"number": number}) for number in range(40)]
    options = {"opening": 4, "listed_share": 0.25}
    strategy = Evolutionary(context([*LISTED, *listed], spaces={"family": SPACE}, options=options))
    asked: list[Solution] = []
    for _ in range(24):
        (one,) = strategy.ask(1)
        asked.append(one)
        ran = Status.OK if one.family == "family" else Status.CRASH
        samples = (seconds(one),) if ran is Status.OK else ()
        strategy.tell(Outcome(one, Phase.SCREEN, ran, samples))
    assert [one.family for one in asked[4:]].count("other") == 5
