"""Local: the list's opening, then the neighbours of the fastest candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from backends.outcome import Outcome, Phase, Status
from backends.solution import Solution
from tests.tuners.strategies.contexts import context
from tuners.strategies.exhaustive import Exhaustive
from tuners.strategies.local import Local, LocalOptions

DEFAULTS = LocalOptions()
OPENING, LEAD_TURNS, TRIED, FAR = DEFAULTS.opening, DEFAULTS.lead_turns, DEFAULTS.tried, DEFAULTS.far
LEADERS, GAIN, NEAR_TURNS = DEFAULTS.leaders, DEFAULTS.gain, DEFAULTS.near_turns

LISTED = [Solution("family", 1, {"name": f"listed{i}"}) for i in range(OPENING + 30)]


def near(origin: Solution, count: int = 3) -> list[Solution]:
    """Neighbours that no list holds, named after their origin."""
    return [Solution("family", 1, {"name": f"{origin.parameters['name']}.{i}"}) for i in range(count)]


def tell(
    strategy: Local | Exhaustive, solution: Solution, seconds: float, status: Status = Status.OK
) -> None:
    samples = (seconds,) if status in (Status.OK, Status.UNSTABLE, Status.PRUNED) else ()
    strategy.tell(Outcome(solution, Phase.SCREEN, status, samples))


def opened(times: dict[int, float], expand: Callable[[Solution], Sequence[Solution]] = near) -> Local:
    """A strategy whose opening took 1 second each, but for the places in `times`."""
    strategy = Local(context(LISTED, 0, expand))
    asked = strategy.ask(OPENING)
    assert asked == LISTED[:OPENING]
    for place, solution in enumerate(asked):
        tell(strategy, solution, times.get(place, 1.0))
    return strategy


def names(solutions: Sequence[Solution]) -> list[str]:
    return [str(solution.parameters["name"]) for solution in solutions]


def neighbours(solutions: Sequence[Solution]) -> list[str]:
    """The names of those that near() made."""
    return [name for name in names(solutions) if "." in name]


@pytest.mark.parametrize("count", [1, 7, OPENING])
def test_the_opening_is_the_lists_own_order(count: int) -> None:
    strategy = Local(context(LISTED, 0, near))
    asked: list[Solution] = []
    while len(asked) < OPENING:
        batch = strategy.ask(min(count, OPENING - len(asked)))
        asked += batch
        for solution in batch:
            tell(strategy, solution, 1.0 / len(asked))
    assert asked == LISTED[:OPENING]


def test_then_the_neighbours_of_the_fastest_and_of_the_next() -> None:
    strategy = opened({5: 0.5, 30: 0.6})
    first = strategy.ask(4)
    assert neighbours(first) == ["listed5.0", "listed5.1", "listed5.2"]
    for solution in first:
        tell(strategy, solution, 0.9)
    assert neighbours(strategy.ask(3)) == ["listed30.0", "listed30.1"]


def test_the_list_has_a_turn_after_some_neighbours() -> None:
    asked = names(opened({5: 0.5}, lambda origin: near(origin, 90)).ask(4 * (NEAR_TURNS + 1)))
    assert asked[NEAR_TURNS :: NEAR_TURNS + 1] == [f"listed{OPENING + i}" for i in range(4)]
    assert len([name for name in asked if "." in name]) == 4 * NEAR_TURNS


def test_neighbours_do_not_hide_what_a_list_has() -> None:
    """Two libraries' families and five whose candidates compile; neighbours are of their origin's algorithm,
    as cuBLASLt's. The best one is not in the opening: the first of its list are of another."""
    others = [f"own{i}" for i in range(5)]
    listed = [
        Solution(family, 1, {"algorithm": place, "near": ""})
        for place in range(60)
        for family in ("library", "padded", *others)
    ]

    def many(origin: Solution) -> list[Solution]:
        if origin.family in others:
            return []
        first = f"{origin.parameters['near']}."
        return [Solution(origin.family, 1, {**origin.parameters, "near": f"{first}{i}"}) for i in range(40)]

    def seconds(solution: Solution) -> float:
        fast = solution.family == "padded" and int(solution.parameters["algorithm"] or 0) >= 12
        return 0.25 if fast else 1.1 if solution.family == "padded" else 1.0

    strategy = Local(context(listed, 0, many))
    asked: list[Solution] = []
    while len(asked) < 500:
        for solution in strategy.ask(24):
            tell(strategy, solution, seconds(solution))
            asked.append(solution)
    fast = [place for place, solution in enumerate(asked) if seconds(solution) < 1.0]
    assert fast
    assert fast[0] < 400
    assert len(fast) > (500 - fast[0]) // 2, "and from then on it leads"


def test_a_better_leader_is_turned_to_at_once_and_the_rest_comes_after() -> None:
    strategy = opened({5: 0.5})
    (first,) = strategy.ask(1)
    tell(strategy, first, 0.5 * (1 - GAIN) - 1e-6)
    found = neighbours(strategy.ask(7))
    assert found == ["listed5.0.0", "listed5.0.1", "listed5.0.2", "listed5.1", "listed5.2"]


def test_a_gain_too_small_waits_for_its_turn() -> None:
    strategy = opened({5: 0.5})
    (first,) = strategy.ask(1)
    tell(strategy, first, 0.5 * (1 - GAIN / 2))
    assert neighbours(strategy.ask(4)) == ["listed5.1", "listed5.2", "listed5.0.0"]


@pytest.mark.parametrize("status", [Status.PRUNED, Status.UNSTABLE, Status.WRONG_RESULT, Status.CRASH])
def test_who_did_not_run_well_leads_nowhere(status: Status) -> None:
    strategy = opened({5: 0.5})
    (first,) = strategy.ask(1)
    tell(strategy, first, 0.001, status)
    assert neighbours(strategy.ask(3)) == ["listed5.1", "listed5.2"]


def test_when_no_leader_is_left_the_list_goes_on() -> None:
    expanded: list[Solution] = []

    def none(origin: Solution) -> list[Solution]:
        expanded.append(origin)
        return []

    strategy = opened({place: 0.5 + place / 1000 for place in range(20)}, none)
    assert strategy.ask(4) == LISTED[OPENING : OPENING + 4]
    assert expanded == LISTED[:LEADERS], "the fastest, the fastest first, each once"
    strategy.ask(4)
    assert len(expanded) == LEADERS


def test_nobody_is_asked_twice() -> None:
    """Neighbours point at each other, at the list, and at themselves."""
    others = {
        s.id: [LISTED[(i + step) % len(LISTED)] for step in (-1, 0, 1, 9)] for i, s in enumerate(LISTED)
    }
    strategy = Local(context(LISTED, 0, lambda origin: others[origin.id]))
    asked: list[Solution] = []
    while batch := strategy.ask(7):
        for solution in batch:
            asked.append(solution)
            tell(strategy, solution, 1.0 / len(asked))
    assert len(asked) == len(set(asked)) == len(LISTED)


def test_outcomes_told_unasked_open_and_lead() -> None:
    strategy = Local(context(LISTED, 0, near))
    for place, solution in enumerate(LISTED[:OPENING]):
        tell(strategy, solution, 0.5 if place == 9 else 1.0)
    assert neighbours(strategy.ask(4)) == ["listed9.0", "listed9.1", "listed9.2"]


def test_replayed_neighbours_are_not_asked_again_and_lead() -> None:
    strategy = Local(context(LISTED, 0, near))
    for place, solution in enumerate(LISTED[:OPENING]):
        tell(strategy, solution, 0.5 if place == 9 else 1.0)
    tell(strategy, near(LISTED[9])[1], 0.3)
    assert neighbours(strategy.ask(6)) == ["listed9.1.0", "listed9.1.1", "listed9.1.2", "listed9.0"]


@pytest.mark.parametrize("count", [1, 3, 24])
def test_a_list_shorter_than_the_opening_is_expanded_too(count: int) -> None:
    strategy = Local(context(LISTED[:5], 0, lambda origin: near(origin) if origin in LISTED else []))
    asked: list[Solution] = []
    while batch := strategy.ask(count):
        for solution in batch:
            tell(strategy, solution, 1.0 + len(asked))
            asked.append(solution)
    assert asked[:5] == LISTED[:5]
    assert set(asked[5:]) == {one for origin in LISTED[:5] for one in near(origin)}


@pytest.mark.parametrize("count", [1, 7, 10**9])
def test_without_neighbours_it_is_the_exhaustive_order(count: int) -> None:
    local, exhaustive = Local(context(LISTED)), Exhaustive(context(LISTED))
    while batch := exhaustive.ask(count):
        assert local.ask(count) == batch
        for place, solution in enumerate(batch):
            tell(local, solution, 1.0 / (place + 1))
            tell(exhaustive, solution, 1.0 / (place + 1))
    assert local.ask(count) == []


def test_the_seed_changes_nothing() -> None:
    assert Local(context(LISTED, 1)).ask(OPENING) == Local(context(LISTED, 2)).ask(OPENING)


def test_families_that_tell_no_neighbours_have_their_turns() -> None:
    """Three families' lists in turns, of which the fastest's alone tells neighbours, and far more than time
    allows."""
    families = ("asked", "tiled", "streamed")
    listed = [Solution(name, 1, {"name": f"{name}{i}"}) for i in range(40) for name in families]

    def many(origin: Solution) -> list[Solution]:
        return [Solution("asked", 1, {"name": f"near{i}"}) for i in range(90)]

    strategy = Local(context(listed, 0, lambda origin: many(origin) if origin.family == "asked" else []))
    for place, solution in enumerate(strategy.ask(OPENING)):
        tell(strategy, solution, 0.5 + place / 1000)
    asked = names(strategy.ask(6 * (LEAD_TURNS + 1)))
    others = [name for name in asked if not name.startswith(("near", "asked"))]
    assert others == [f"{name}{i}" for i in (16, 17, 18) for name in ("tiled", "streamed")]
    lead = [name for name in asked if name not in others]
    assert len(lead) == 6 * LEAD_TURNS
    assert [name for name in lead if name.startswith("near")] == [f"near{i}" for i in range(8)]
    assert [name for name in lead if name.startswith("asked")] == [f"asked{i}" for i in range(16, 20)]
    assert asked.index(others[0]) == LEAD_TURNS, "neighbours first"


def test_the_turns_of_others_end_with_their_lists() -> None:
    few = [Solution("asked", 1, {"name": "asked"}), Solution("tiled", 1, {"name": "tiled"})]
    more = [Solution("asked", 1, {"name": f"near{i}"}) for i in range(5)]
    strategy = Local(context(few, 0, lambda origin: more if origin.family == "asked" else []))
    for solution in strategy.ask(2):
        tell(strategy, solution, 1.0)
    assert names(strategy.ask(10)) == [f"near{i}" for i in range(5)]


@pytest.mark.parametrize("seconds", [FAR + 0.01, None])
def test_a_family_far_behind_waits_for_the_others(seconds: float | None) -> None:
    """Three families in turns; of one the candidates are slow, or none runs."""
    families = ("fast", "slow", "near")
    listed = [Solution(name, 1, {"name": f"{name}{i}"}) for i in range(TRIED + 9) for name in families]
    strategy, asked = Local(context(listed)), []
    while batch := strategy.ask(1):
        asked += batch
        slow = batch[0].family == "slow"
        status = Status.CRASH if slow and seconds is None else Status.OK
        tell(strategy, batch[0], {"fast": 1.0, "near": 1.1}.get(batch[0].family, seconds or 1.0), status)
    assert set(asked) == set(listed), "nobody is lost"
    assert asked[:OPENING] == listed[:OPENING]
    rest = [one.family for one in asked[OPENING:]]
    assert rest[:18].count("fast") == rest[:18].count("near") == 9
    assert rest[18:] == ["slow"] * 9


def test_the_fastests_family_has_most_turns_though_another_tells_neighbours() -> None:
    families = ("asked", "fast")
    listed = [Solution(name, 1, {"name": f"{name}{i}"}) for i in range(60) for name in families]
    more = [Solution("asked", 1, {"name": f"near{i}"}) for i in range(30)]
    strategy = Local(context(listed, 0, lambda origin: more if origin.family == "asked" else []))
    for solution in strategy.ask(OPENING):
        tell(strategy, solution, 1.0 if solution.family == "fast" else 1.2)
    asked = names(strategy.ask(3 * (LEAD_TURNS + 1)))
    assert [name for name in asked if not name.startswith("fast")] == ["near0", "near1", "asked24"]
    assert [name for name in asked if name.startswith("fast")] == [f"fast{24 + i}" for i in range(6)]


def test_a_baseline_that_is_fastest_has_nothing_to_try_and_the_next_family_leads() -> None:
    listed = [Solution(name, 1, {"name": f"{name}{i}"}) for i in range(40) for name in ("first", "second")]
    strategy = Local(context(listed))
    tell(strategy, Solution("library", 1, {}), 0.5)
    for solution in strategy.ask(OPENING - 1):
        tell(strategy, solution, 0.6 if solution.family == "second" else 0.7)
    asked = [one.family for one in strategy.ask(LEAD_TURNS + 1)]
    assert asked == ["second"] * LEAD_TURNS + ["first"]


def test_neighbours_are_not_interrupted_by_a_family_far_behind() -> None:
    families = ("asked", "slow")
    listed = [Solution(name, 1, {"name": f"{name}{i}"}) for i in range(OPENING) for name in families]
    more = [Solution("asked", 1, {"name": f"near{i}"}) for i in range(30)]
    strategy = Local(context(listed, 0, lambda origin: more if origin.family == "asked" else []))
    for solution in strategy.ask(OPENING):
        tell(strategy, solution, 1.0 if solution.family == "asked" else 2.0)
    asked = names(strategy.ask(30))
    assert [name for name in asked if name.startswith("near")] == [f"near{i}" for i in range(20)]
    assert not [name for name in asked if name.startswith("slow")]
