"""The legal candidates of a problem, from a backend made of plain lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import UnsupportedProblem
from backends.problem import GemmProblem, from_blas
from backends.protocol import Baseline, Device, Family, Kernel, Probe
from backends.solution import Solution
from backends.traits import HOST_TRAITS, MeasurementTraits
from tuners.policy import MeasurementPolicy
from tuners.space import Listing, Space, listed, search_space

PROBLEM = from_blas(64, 64, 64, "fp32")
ENVIRONMENT = Environment("cpu", "avx2", "Some CPU", 4, 2**30, "uuid")


def solution(family: str, tile: int, deterministic: bool | None = True) -> Solution:
    return Solution(family, 1, {"tile": tile}, deterministic=deterministic)


@dataclass
class ListedFamily:
    """A family whose candidates are a list."""

    name: str
    listed: Sequence[Solution]
    reason: str | None = None
    dtypes: tuple[str, ...] = ("fp32",)
    compiles: bool = False

    def unavailable(self, environment: Environment) -> str | None:
        assert environment == ENVIRONMENT
        return self.reason

    def supports(self, problem: GemmProblem) -> bool:
        assert self.reason is None, "a family that is not there is asked nothing"
        return problem.dtype_a in self.dtypes

    def solutions(self, problem: GemmProblem, environment: Environment) -> Sequence[Solution]:
        assert self.supports(problem), "asked for solutions of a problem that it does not support"
        return self.listed

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        return None

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        raise AssertionError("this double is never asked for it")

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None, device: Any) -> Kernel:
        raise AssertionError("this double is never asked for it")


@dataclass
class ListedBackend:
    """A backend whose families and baselines are lists."""

    listed: Sequence[ListedFamily]
    defaults: Sequence[Baseline] = ()
    name: str = "listed"
    traits: MeasurementTraits = HOST_TRAITS
    asked: list[GemmProblem] = field(default_factory=list)

    @property
    def process_variables(self) -> Mapping[str, str]:
        return {}

    def probe(self) -> Probe:
        raise AssertionError("this double is never asked for it")

    def families(self) -> Mapping[str, Family]:
        return {family.name: family for family in self.listed}

    def product(self, dtype: str) -> GemmProblem:
        raise AssertionError("this double is never asked for it")

    def baselines(
        self, problem: GemmProblem, environment: Environment, max_workspace_bytes: int | None = None
    ) -> Sequence[Baseline]:
        if not self.defaults:
            raise UnsupportedProblem(f"nothing runs {problem.slug}")
        return self.defaults

    def open(self, index: int, cache: BinaryCache) -> Device:
        raise AssertionError("this double is never asked for it")


LONG = ListedFamily("long", [solution("long", tile) for tile in range(4)])
SHORT = ListedFamily("short", [solution("short", tile) for tile in range(2)])
LIBRARY = ListedFamily("library", [solution("library", 0)])
DEFAULT = Baseline("the library", solution("library", 0))


def space(
    families: Sequence[ListedFamily],
    defaults: Sequence[Baseline] = (DEFAULT,),
    asked: Sequence[str] | None = None,
    problem: GemmProblem = PROBLEM,
    **policy: Any,
) -> Space:
    backend = ListedBackend(families, defaults)
    return search_space(problem, backend, ENVIRONMENT, MeasurementPolicy(**policy), asked)


def tiles(found: Space) -> list[tuple[str, object]]:
    return [(s.family, s.parameters["tile"]) for s in found.candidates]


def test_families_take_turns_each_in_its_own_order() -> None:
    assert tiles(space([LONG, SHORT])) == [
        ("long", 0),
        ("short", 0),
        ("long", 1),
        ("short", 1),
        ("long", 2),
        ("long", 3),
    ]


def test_candidates_over_the_workspace_limit_are_left_out_and_counted() -> None:
    sizes = ListedFamily("sizes", [Solution("sizes", 1, {"tile": n}, None, n * 512) for n in range(4)])
    found = space([sizes], max_workspace_bytes=1024)
    assert tiles(found) == [("sizes", 0), ("sizes", 1), ("sizes", 2)]
    assert found.notes == ("1 candidate left out: more than 1024 bytes of workspace",)


def test_baselines_are_listed_in_order_and_never_candidates() -> None:
    second = Baseline("another default", LONG.listed[1])
    found = space([LIBRARY, LONG], [DEFAULT, second])
    assert found.baselines == (DEFAULT, second)
    assert tiles(found) == [("long", 0), ("long", 2), ("long", 3)]
    assert found.notes == ()


def test_a_baseline_is_known_by_its_identity_not_by_its_properties() -> None:
    # The same solution listed with another workspace and without a word on determinism.
    listed = Solution("library", 1, {"tile": 0}, workspace_bytes=4096, deterministic=None)
    assert tiles(space([ListedFamily("library", [listed])])) == []


def test_a_family_that_cannot_run_here_gives_a_note_and_no_candidates() -> None:
    gone = ListedFamily("gone", [solution("gone", 0)], "no compiler was found")
    found = space([gone, SHORT])
    assert found.notes == ("gone: no compiler was found",)
    assert tiles(found) == [("short", 0), ("short", 1)]


@dataclass
class TellingFamily(ListedFamily):
    """One that explains how its candidates were generated."""

    def notes(self, problem: GemmProblem, environment: Environment) -> Sequence[str]:
        assert self.supports(problem), "asked about a problem that it does not support"
        assert environment == ENVIRONMENT
        return ("in the order of a model",)


def test_what_several_families_say_of_their_candidates_is_quoted_once() -> None:
    first, second = (TellingFamily(name, [solution(name, 0)]) for name in ("first", "second"))
    halves = TellingFamily("halves", [solution("halves", 0)], dtypes=("bf16",))
    gone = TellingFamily("gone", [solution("gone", 0)], "no compiler was found")
    found = space([halves, first, SHORT, second, gone])
    assert found.notes == ("gone: no compiler was found", "in the order of a model")
    assert space([halves, SHORT]).notes == ()


def test_what_another_process_says_of_its_list_is_quoted() -> None:
    said = Listing([solution("asked", 7)], ("the library refused one",))
    found = search_space(
        PROBLEM, ListedBackend([DeviceFamily("asked", [])], (DEFAULT,)), ENVIRONMENT, MeasurementPolicy(),
        lister=lambda _: {"asked": said},
    )  # fmt: skip
    assert tiles(found) == [("asked", 7)]
    assert found.notes == ("the library refused one",)


def test_a_family_that_does_not_support_the_problem_is_left_out() -> None:
    halves = ListedFamily("halves", [solution("halves", 0)], dtypes=("bf16",))
    assert tiles(space([halves, SHORT])) == [("short", 0), ("short", 1)]
    bf16 = from_blas(64, 64, 64, "bf16")
    assert tiles(space([halves, SHORT], problem=bf16)) == [("halves", 0)]


MIXED = ListedFamily(
    "mixed", [solution("mixed", 0, False), solution("mixed", 1, True), solution("mixed", 2, None)]
)


def test_deterministic_only_leaves_out_what_is_known_not_to_be_and_counts_it() -> None:
    found = space([MIXED, SHORT], deterministic_only=True)
    assert tiles(found) == [("short", 0), ("mixed", 1), ("short", 1)]
    assert found.notes == ("2 candidates left out: not known to be deterministic",)


def test_without_deterministic_only_nothing_is_left_out() -> None:
    found = space([MIXED])
    assert len(found.candidates) == 3
    assert found.notes == ()


def test_only_the_families_asked_for() -> None:
    gone = ListedFamily("gone", [], "no compiler was found")
    found = space([LONG, gone, SHORT], asked=["short"])
    assert tiles(found) == [("short", 0), ("short", 1)]
    assert found.notes == ()  # of a family that nobody asked for
    assert found.baselines == (DEFAULT,)


def test_families_keep_the_order_of_the_backend_not_of_the_request() -> None:
    assert tiles(space([LONG, SHORT], asked=["short", "long"])) == tiles(space([LONG, SHORT]))


def test_an_unknown_family_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UnsupportedProblem, match=r"'lnog' is unknown to listed; known: long, short"):
        space([LONG, SHORT], asked=["long", "lnog"])


def test_a_problem_without_a_baseline_is_refused() -> None:
    with pytest.raises(UnsupportedProblem, match=PROBLEM.slug):
        space([LONG], defaults=())


# ---- families that only the open device can enumerate --------------------------------------------


class DeviceFamily(ListedFamily):
    """A family whose list is the device's."""

    def enumerate_on(
        self, problem: GemmProblem, device: Any, max_workspace_bytes: int | None
    ) -> Sequence[Solution]:
        return [solution(self.name, tile) for tile in device.tiles]

    def neighbours_on(
        self, problem: GemmProblem, solution: Solution, device: Any, max_workspace_bytes: int | None
    ) -> Sequence[Solution]:
        raise AssertionError("this double is never asked for it")


@dataclass
class Opened:
    """An open device that lists tiles."""

    tiles: Sequence[int] = (5, 6)
    environment: Environment = ENVIRONMENT


def test_what_another_process_lists_takes_the_same_turns() -> None:
    families = [LONG, DeviceFamily("asked", []), SHORT, ListedFamily("other", [], dtypes=("bf16",))]
    backend, device = ListedBackend(families, (DEFAULT,)), Opened()
    asked: list[str] = []

    def elsewhere(names: Sequence[str]) -> dict[str, Listing]:
        asked.extend(names)
        return listed(names, PROBLEM, backend, ENVIRONMENT, None, device)  # type: ignore[arg-type]

    apart = search_space(PROBLEM, backend, ENVIRONMENT, MeasurementPolicy(), lister=elsewhere)
    assert asked == ["long", "asked", "short"], "only families that run the problem are listed"
    assert tiles(apart)[:4] == [("long", 0), ("asked", 5), ("short", 0), ("long", 1)]
    assert apart.families == ("long", "asked", "short")
    assert tiles(search_space(PROBLEM, backend, ENVIRONMENT, MeasurementPolicy())) == [
        one for one in tiles(apart) if one[0] != "asked"
    ], "without a device its families list nothing"
