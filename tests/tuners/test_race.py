"""Races: export targets keep a candidate, within a share of the final's time."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from backends.outcome import Outcome, Phase, Status
from backends.solution import Solution
from tests.tuners.recorded import solution
from tuners.decide import DecisionRule
from tuners.options import RaceOptions
from tuners.race import Race

OPTIONS = RaceOptions()
RULE = DecisionRule()


class Bench:
    """Samples that take as long as they say, on a clock of their own. `speed`: name -> seconds a sample."""

    def __init__(self, speed: dict[str, float], noise: float = 0.002, seed: int = 0) -> None:
        self.now, self.speed = 0.0, speed
        self.calls: list[str] = []
        self.agains: dict[str, list[bool]] = {name: [] for name in speed}
        self.status: Callable[[str], Status] = lambda _: Status.OK
        self._noise, self._random = noise, random.Random(seed)

    def clock(self) -> float:
        return self.now

    def sample(self, candidate: Solution, again: bool) -> Outcome:
        name = str(candidate.parameters["name"])
        self.calls.append(name)
        self.agains[name].append(again)
        seconds = self.speed[name] * self._random.uniform(1 - self._noise, 1 + self._noise)
        self.now += seconds
        status = self.status(name)
        if status not in (Status.OK, Status.UNSTABLE):
            return Outcome(candidate, Phase.FINAL, status, (), {"error": "planted"})
        return Outcome(candidate, Phase.FINAL, status, (seconds,))

    def race(self, targets: dict[str, set[str]], reserved: tuple[str, ...] = ()) -> Race:
        """A race of everybody; the first is the baseline. The reserved are expected to take what they take,
        and the noise."""
        names = {name: solution(name) for name in self.speed}
        ids = {target: {names[name].id for name in members} for target, members in targets.items()}
        lengths = {names[name].id: self.speed[name] * (1 + self._noise) for name in reserved}
        first = names[next(iter(names))].id
        every = {one.id: one for one in names.values()}
        return Race(self.sample, every, first, OPTIONS, ids, lengths, self.clock)


def ran(race: Race, rounds: int) -> list[Outcome]:
    """The outcomes of so many rounds."""
    return [outcome for _ in range(rounds) for outcome in race.round()]


def names_of(ids: object) -> set[str]:
    return {str(one).removeprefix("recorded-name_").rsplit("-", 1)[0] for one in ids}  # type: ignore[attr-defined]


def test_a_heat_reserves_the_fastest_candidate_of_a_target_that_would_lose_its_last() -> None:
    speed = {"base": 1.0, "a": 0.5, "b": 0.6, "lib1": 0.95, "lib2": 0.9}
    race = Bench(speed).race({"library": {"lib1", "lib2"}, "ours": {"a", "b"}})
    ran(race, 3)
    race.halve([race.baseline])
    assert names_of(race.times) == {"base", "a", "b"}
    assert names_of(race.reserved) == {"lib2"}
    assert names_of(race.cut) == {"lib1", "lib2"}, "what the heats showed stays known"


def test_a_target_that_still_has_a_candidate_reserves_nobody() -> None:
    speed = {"base": 1.0, "a": 0.5, "lib1": 0.6, "b": 0.7, "lib2": 0.8}
    race = Bench(speed).race({"library": {"lib1", "lib2"}})
    ran(race, 3)
    race.halve([race.baseline])
    assert race.reserved == {}


def test_one_candidate_serves_two_targets() -> None:
    speed = {"base": 1.0, "a": 0.5, "b": 0.6, "small": 0.95, "large": 0.99}
    race = Bench(speed).race({"any": {"small", "large"}, "limited": {"small"}})
    ran(race, 3)
    race.halve([race.baseline])
    assert names_of(race.reserved) == {"small"}


def test_the_baseline_is_no_targets_candidate() -> None:
    race = Bench({"base": 1.0, "a": 0.5, "lib": 0.9}).race({"library": {"base", "lib"}})
    ran(race, 3)
    race.halve([race.baseline])
    assert names_of(race.reserved) == {"lib"}


def test_a_finalist_that_is_shown_slower_is_reserved_with_its_rounds_and_sampled_on() -> None:
    race = Bench({"base": 1.0, "a": 0.5, "b": 0.51, "lib": 0.9}).race({"library": {"lib"}})
    race.start_final()
    ran(race, OPTIONS.drop_after)
    dropped = list(race.drop_slower(RULE))
    assert dropped == [], "the baseline stays, and the library is its target's last"
    (lib,) = race.reserved
    assert names_of(race.slower) == {"lib"}
    assert list(race.reserved[lib]) == list(range(OPTIONS.drop_after))
    assert race.comparisons == 3
    ran(race, 8)
    assert len(race.reserved[lib]) > OPTIONS.drop_after
    assert set(race.reserved[lib]) <= set(range(race.rounds))
    assert race.times.keys().isdisjoint(race.reserved)


@pytest.mark.parametrize(
    ("behind", "known", "kept"),
    [
        (1.006, False, True),  # beyond a tie: others leave only by the margin
        (1.0199, False, True),
        (1.0201, False, False),
        (1.0299, True, True),
        (1.0301, True, False),
    ],
)
def test_finalists_leave_if_slower_by_the_margin_and_the_incumbent_by_one_and_a_half(
    behind: float, known: bool, kept: bool
) -> None:
    race = Bench({"base": 1.0, "a": 0.5, "old": 0.5 * behind}, noise=0.0).race({})
    race.start_final()
    ran(race, OPTIONS.drop_after)
    old = solution("old").id
    assert [one.solution.id for one in race.drop_slower(RULE, old if known else None)] == (
        [] if kept else [old]
    )


@pytest.mark.parametrize("finalists", [1, 3, 8])
@pytest.mark.parametrize("reserved", [1, 2, 4])
@pytest.mark.parametrize("factor", [0.3, 1.0, 7.0])
def test_reserved_candidates_never_take_more_than_their_share(
    finalists: int, reserved: int, factor: float
) -> None:
    """After every single round of the final, however slow they are and however few the others."""
    others = {f"a{i}": 0.5 for i in range(finalists)}
    extra = {f"lib{i}": factor * (1 + i / 10) for i in range(reserved)}
    speed = {"base": 1.0, **others, **extra}
    bench = Bench(speed, noise=0.0)
    race = bench.race({name: {name} for name in extra}, tuple(extra))
    race.start_final()
    for _ in range(RULE.max_rounds):
        ran(race, 1)
        taken = sum(bench.speed[name] for name in bench.calls if name in extra)
        assert taken <= OPTIONS.target_share * bench.now + 1e-9
    per_round = (1 + 0.5 * finalists) * OPTIONS.target_share / (1 - OPTIONS.target_share) / reserved
    for one, samples in race.reserved.items():
        (name,) = names_of([one])
        wanted = min(RULE.max_rounds, int(RULE.max_rounds * per_round / speed[name]))
        assert len(samples) >= wanted - 2, "each gets its part"


def test_reserved_candidates_take_no_part_in_heats() -> None:
    bench = Bench({"base": 1.0, "a": 0.5, "lib": 0.9})
    race = bench.race({"library": {"lib"}}, ("lib",))
    ran(race, 3)
    assert "lib" not in bench.calls
    race.start_final()
    ran(race, 6)
    assert "lib" in bench.calls


def test_a_disturbed_sample_of_a_reserved_candidate_costs_no_round() -> None:
    bench = Bench({"base": 1.0, "a": 0.5, "b": 0.5, "c": 0.5, "lib": 0.3})
    bench.status = lambda name: Status.UNSTABLE if name == "lib" else Status.OK
    race = bench.race({"library": {"lib"}}, ("lib",))
    race.start_final()
    ran(race, 20)
    assert (race.rounds, race.discarded) == (20, 0)
    (lib,) = race.reserved
    sampled = bench.calls.count("lib")
    assert len(race.reserved[lib]) == sampled // 2, "half are left out; on such a machine the others count"
    assert set(bench.agains["lib"]) == {False}
    assert set(bench.agains["a"]) == {True}


def test_a_reserved_candidate_that_fails_leaves_the_race() -> None:
    bench = Bench({"base": 1.0, "a": 0.5, "lib": 0.3})
    bench.status = lambda name: Status.CRASH if name == "lib" else Status.OK
    race = bench.race({"library": {"lib"}}, ("lib",))
    race.start_final()
    (crashed,) = ran(race, 5)
    assert crashed.status is Status.CRASH
    assert race.reserved == {}
    assert names_of(race.failed) == {"lib"}
    assert race.rounds == 5


def test_outcomes_name_the_rounds_of_reserved_candidates() -> None:
    bench = Bench({"base": 1.0, "a": 0.5, "lib": 1.2})
    race = bench.race({"library": {"lib"}}, ("lib",))
    race.start_final()
    ran(race, 12)
    found = {str(one.solution.parameters["name"]): one for one in race.finished()}
    assert set(found) == {"base", "a", "lib"}
    rounds = found["lib"].evidence["in_rounds"]
    assert 0 < len(rounds) == len(found["lib"].samples) < 12
    assert "in_rounds" not in found["a"].evidence


# ---- settled -------------------------------------------------------------------------------------


def rounds(times: dict[str, list[float]], **options: float) -> Race:
    """A race of "base" and others whose final has these times."""
    race = Race(
        lambda *_: Outcome(solution("base"), Phase.FINAL, Status.OK, ()),
        {name: solution(name) for name in times}, "base", RaceOptions(**options),  # type: ignore[arg-type]
    )  # fmt: skip
    race.times = times
    return race


def spread(middle: float, share: float, count: int = 12) -> list[float]:
    """Times evenly spread within a share around their middle."""
    return [middle * (1 + share * (2 * i / (count - 1) - 1)) for i in range(count)]


STEADY = [1.0] * 12


@pytest.mark.parametrize(
    ("base", "rival", "expected"),
    [
        (spread(2.0, 0.0), spread(1.5, 0.0), True),  # the leader's lead over both is known
        (spread(2.0, 0.02), spread(1.5, 0.0), False),  # the speed-up is not
        (spread(2.0, 0.0), spread(1.5, 0.02), False),
        (spread(2.0, 0.0), spread(1.001, 0.003), True),  # a tie is certain, though the ratio is not
        (spread(2.0, 0.0), spread(1.005, 0.004), False),  # at its edge
        (spread(2.0, 0.0), [0.99] * 5 + [1.001] * 7, False),  # it may be ahead by more than a tie
        (spread(2.0, 0.0), spread(1.012, 0.005), False),  # certain to lie within the margin is no tie
        (spread(2.0, 0.0), spread(1.012, 0.0019), True),  # no tie, and known
        (spread(1.001, 0.003), spread(1.001, 0.003), True),  # the default ties too
    ],
)
def test_a_final_is_settled_once_every_ratio_is_known_or_a_tie_is_certain(
    base: list[float], rival: list[float], expected: bool
) -> None:
    assert rounds({"base": base, "leader": STEADY, "rival": rival}).settled(RULE) is expected


def test_rivals_need_more_precision_than_the_default() -> None:
    close = {"base": spread(2.0, 0.004), "leader": STEADY}
    assert rounds(close).settled(RULE)
    assert not rounds({**close, "rival": spread(1.5, 0.004)}).settled(RULE)
    assert not rounds(close, precision=0.001).settled(RULE)
    assert rounds({**close, "rival": spread(1.5, 0.004)}, tie_precision=0.005).settled(RULE)


def test_a_final_that_is_too_long_loses_its_slowest_finalists() -> None:
    race = Bench({"base": 1.0, "kept": 0.9, "a": 0.5, "b": 0.6, "c": 0.7, "lib": 0.8}).race(
        {"library": {"lib"}}
    )
    race.start_final()
    ran(race, 3)
    assert list(race.narrow([race.baseline], 1.0)) == []
    kept = next(name for name in race.times if "kept" in name)
    (left,) = race.narrow([race.baseline, kept], 0.7)  # 4.5 s a round: 3.15 without lib and c
    assert (left.phase, left.status, len(left.samples)) == (Phase.FINAL, Status.PRUNED, 3)
    assert names_of(race.times) == {"base", "kept", "a", "b"}
    assert names_of(race.reserved) == {"lib"}, "a target keeps its last candidate"
    assert names_of(race.cut) == names_of(race.narrowed) == {"c"}
    assert race.slower == []
    assert race.comparisons == 5, "its samples chose whom the final compares"
    assert [names_of([one.solution.id]) for one in race.narrow([race.baseline, kept], 0.0)] == [{"b"}]
    assert names_of(race.times) == {"base", "kept", "a"}, "the last other one stays"
