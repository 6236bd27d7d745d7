"""Members compiled without a device: once, resumably, and out of the way of jobs."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import CompileError
from backends.problem import GemmProblem, from_linear, from_mm
from backends.protocol import Backend
from backends.solution import Solution
from tests.tuners.recorded import ENVIRONMENT
from tuners.portfolio.precompile import plan, precompile
from tuners.portfolio.values import Group, Member


@dataclass
class Family:
    """Writes a file for each candidate and layout; `built` are the names in order."""

    name: str
    compiles: bool = True
    reason: str | None = None
    built: list[str] = field(default_factory=list)

    def unavailable(self, environment: Environment) -> str | None:
        return self.reason

    def supports(self, problem: GemmProblem) -> bool:
        return True

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        if solution.parameters["number"] == 14 and problem.activation == "swiglu":
            return "gated rows are pairs"
        return "it is illegal" if solution.parameters["number"] == 13 else None

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path:
        key = f"{solution.id}{problem.trans_a}{problem.trans_b}"

        def build(path: Path) -> None:
            if solution.parameters["number"] == 7:
                raise CompileError("it does not compile")
            self.built.append(key)
            path.write_text("binary")

        return cache.get(key, ".so") or cache.put(key, ".so", build)


@dataclass
class Made:
    known: Mapping[str, Family]

    def families(self) -> Mapping[str, Family]:
        return self.known


PLAIN, TURNED = from_mm(8, 64, 64), from_mm(8, 64, 64, trans_b="T")


def planned(*numbers: int, problems: tuple[GemmProblem, ...] = (PLAIN,), **families: Family) -> Any:
    known = families or {"own": Family("own")}
    members = [Member(Solution(name, 1, {"number": n}), problems) for name in known for n in numbers]
    group = Group("cpu", "x86-64-v3", "fp32", members, 1, 0.01, ())
    return *plan([group], cast(Backend, Made(known)), ENVIRONMENT), known


def test_members_are_compiled_once_for_each_layout(tmp_path: Path) -> None:
    many = (from_mm(80, 96, 64), from_mm(90, 96, 64), from_mm(80, 96, 64, trans_b="T"))
    items, notes, known = planned(1, 2, problems=many)
    assert not notes
    cache = BinaryCache(tmp_path)
    assert [one.cached for one in precompile(items, cache, 1)] == [False] * 4
    assert len(set(known["own"].built)) == len(known["own"].built) == 4
    again = list(precompile(items, cache, 1))
    assert [one.cached for one in again] == [True] * 4
    assert len(known["own"].built) == 4


def test_members_are_compiled_for_each_number_of_columns_if_they_are_few() -> None:
    few = (PLAIN, from_mm(9, 64, 64), from_mm(9, 640, 64), from_mm(64, 16, 64), from_mm(100, 16, 64))
    items, _, _ = planned(1, problems=few)
    assert [min(item.problem.m, item.problem.n) for item in items] == [8, 9, 16]


def test_members_for_experts_are_compiled_with_swiglu_too() -> None:
    """Once, however many products they serve; not where it is illegal, and not of other types or odd n."""
    layers = [from_linear(96, n, 64, "bf16", groups=4) for n in (96, 160)]
    items, notes, _ = planned(1, 14, problems=tuple(layers))
    assert [(one.solution.parameters["number"], one.problem.activation) for one in items] == [
        (1, "none"), (1, "swiglu"), (14, "none"),
    ]  # fmt: skip
    assert notes == [f"{Solution('own', 1, {'number': 14}).id} with swiglu is left out: gated rows are pairs"]
    scales: Any = {"scale_a": "block_1x128", "scale_b": "block_128x128", "dtype_d": "bf16"}
    without = (
        from_linear(96, 97, 64, "bf16", groups=4), from_linear(96, 128, 128, "bf16"),
        from_linear(96, 128, 128, "fp8_e4m3", groups=4, **scales),
    )  # fmt: skip
    assert all(one.problem.activation == "none" for one in planned(1, problems=without)[0])
    own = from_linear(96, 96, 64, "bf16", groups=4, activation="swiglu")
    items, _, _ = planned(1, problems=(*layers, own))
    assert [one.problem.activation for one in items] == ["none", "swiglu"]


def test_members_are_compiled_for_each_number_of_groups_and_epilogue() -> None:
    several = (
        from_linear(96, 96, 64, "fp16", bias="fp16"), from_linear(96, 96, 64, "fp16"),
        *(from_linear(96, 97, 64, "fp16", groups=groups) for groups in (4, 128)),
    )  # fmt: skip
    items, _, _ = planned(1, problems=several)
    assert [one.problem for one in items] == list(several)


def test_what_cannot_be_compiled_is_noted_and_left_out() -> None:
    absent = Family("absent", reason="no compiler")
    items, notes, _ = planned(
        1, 13, own=Family("own"), library=Family("library", compiles=False), absent=absent
    )
    assert [(item.solution.family, item.solution.parameters["number"]) for item in items] == [("own", 1)]
    assert notes == [
        f"{Solution('own', 1, {'number': 13}).id} is left out: it is illegal", "absent: no compiler",
    ]  # fmt: skip


def test_a_failure_costs_its_member_only(tmp_path: Path) -> None:
    items, _, known = planned(1, 7, 2)
    found = {
        one.item.solution.parameters["number"]: one.error for one in precompile(items, BinaryCache(tmp_path))
    }
    assert found == {1: None, 7: "it does not compile", 2: None}
    assert len(known["own"].built) == 2


def test_a_stopped_run_is_taken_up_by_another(tmp_path: Path) -> None:
    items, _, known = planned(1, 2, 3)
    run = precompile(items, BinaryCache(tmp_path), 1, stop=lambda: bool(known["own"].built))
    assert len(list(run)) == len(known["own"].built) == 1
    assert [one.cached for one in precompile(items, BinaryCache(tmp_path), 1)] == [True, False, False]


def test_nothing_begins_during_a_pause(tmp_path: Path) -> None:
    items, _, known = planned(1, 2)
    asked = 0

    def pause() -> bool:
        nonlocal asked
        asked += 1
        assert asked > 3 or not known["own"].built
        return asked <= 3

    assert len(list(precompile(items, BinaryCache(tmp_path), 1, pause=pause))) == 2


def test_a_compiler_holds_the_turn(tmp_path: Path) -> None:
    items, _, known = planned(1)
    turn = threading.Lock()
    with turn:
        found: list[object] = []
        thread = threading.Thread(
            target=lambda: found.extend(precompile(items, BinaryCache(tmp_path), 1, turn=turn))
        )
        thread.start()
        thread.join(0.1)
        assert not known["own"].built
    thread.join(30)
    assert len(found) == 1
