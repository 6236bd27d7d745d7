"""Strategies that go beyond the listed candidates into the families' spaces."""

from __future__ import annotations

from itertools import chain

from backends.family_space import FamilySpace, GridSpace, ParameterGrid
from backends.outcome import Outcome, Phase, Status
from backends.solution import Parameter, Solution
from tests.tuners.strategies.contexts import context
from tuners.strategies import STRATEGIES, SearchContext, Strategy


def space(family: str, size: int) -> FamilySpace:
    """Tiles from 0; odd ones are illegal."""

    def make(values: dict[str, Parameter]) -> Solution | None:
        return None if int(values["tile"] or 0) % 2 else Solution(family, 1, values)

    return GridSpace(family, 1, None, ParameterGrid.of({"tile": range(size)}), make)


def of(family: str, *tiles: int) -> list[Solution]:
    return [Solution(family, 1, {"tile": tile}) for tile in tiles]


def given(listed: list[Solution], seed: int = 0, **options: int | bool) -> SearchContext:
    spaces = {"first": space("first", 9), "second": space("second", 5)}
    return context(listed, seed, spaces=spaces, options=options)


def drain(strategy: Strategy, count: int = 4) -> list[Solution]:
    return list(chain.from_iterable(iter(lambda: strategy.ask(count), [])))


LISTED = [*of("first", 6), *of("second", 2), *of("first", 0)]


def test_exhaustive_tries_every_legal_member_the_listed_ones_first() -> None:
    in_turns = [*of("second", 0), *of("first", 2, 4), *of("second", 4), *of("first", 8)]
    assert drain(STRATEGIES["exhaustive"](given(LISTED))) == [*LISTED, *in_turns]


def test_exhaustive_asks_for_no_member_that_was_reported() -> None:
    strategy = STRATEGIES["exhaustive"](given(LISTED))
    first = strategy.ask(4)
    replayed = of("first", 8)
    strategy.tell(Outcome(replayed[0], Phase.SCREEN, Status.OK, (1.0,)))
    rest = drain(strategy)
    assert not {*first, *replayed} & set(rest)
    assert len(rest) == 3


def test_random_draws_from_the_whole_spaces_where_it_is_told_to() -> None:
    whole = drain(STRATEGIES["random"](given(LISTED, whole=True)))
    assert sorted(one.id for one in whole) == sorted(
        one.id for one in (*of("first", 0, 2, 4, 6, 8), *of("second", 0, 2, 4))
    )
    assert set(drain(STRATEGIES["random"](given(LISTED)))) == set(LISTED)
    orders = {tuple(drain(STRATEGIES["random"](given(LISTED, seed, whole=True)))) for seed in range(8)}
    assert len(orders) > 4
