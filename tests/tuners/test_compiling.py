"""Compilers of a task: in lockstep for the host, beside a device that does not feel them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from backends.cache import BinaryCache, CompiledOnly
from backends.environment import Environment
from backends.errors import CompileError, NotCompiled
from backends.outcome import Status
from backends.problem import GemmProblem, from_mm
from backends.protocol import Backend, Family
from backends.solution import Solution
from backends.traits import GPU_TRAITS, HOST_TRAITS, MeasurementTraits
from tests.tuners.recorded import ENVIRONMENT
from tuners.compiling import HOST_COMPILE_SECONDS, Compilers
from tuners.device_process import Task
from tuners.inputs import screening_cases
from tuners.policy import MeasurementPolicy

TASK = Task(from_mm(64, 64, 64, alpha=1.0), MeasurementPolicy(), 0)


@dataclass
class Gated:
    """A family whose compiler waits for `gate`; `compiled` are the problems of each candidate in order."""

    compiles: bool = True
    gate: threading.Event = field(default_factory=threading.Event)
    compiled: list[tuple[str, GemmProblem]] = field(default_factory=list)
    started: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    broken: str = ""
    #: Ids of the problems whose binaries are in the cache.
    kept: set[str] = field(default_factory=set)

    def supports(self, problem: GemmProblem) -> bool:
        return True

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        return None

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        if isinstance(cache, CompiledOnly):
            if problem.id not in self.kept:
                raise NotCompiled("planted")
            return Path(f"kept-{problem.id}")
        self.started.release()
        assert self.gate.wait(30)
        name = str(solution.parameters["name"])
        if name == self.broken:
            raise CompileError("it does not compile", "the log")
        self.compiled.append((name, problem))
        return Path(f"{name}-{problem.id}")


@dataclass
class Made:
    """A backend with such families."""

    traits: MeasurementTraits
    made: Mapping[str, Gated]

    def families(self) -> Mapping[str, Family]:
        return cast("Mapping[str, Family]", self.made)


def one(name: str, family: str = "slow") -> Solution:
    return Solution(family, 1, {"name": name})


Make = Callable[..., tuple[Compilers, Gated]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[tuple[Compilers, Gated]] = []

    def build(beside: bool = True, **options: Any) -> tuple[Compilers, Gated]:
        slow, quick = Gated(**options), Gated(compiles=False)
        quick.gate.set()
        backend = cast(Backend, Made(GPU_TRAITS if beside else HOST_TRAITS, {"slow": slow, "quick": quick}))
        made.append((Compilers(backend, ENVIRONMENT, BinaryCache(tmp_path)), slow))
        return made[-1]

    yield build
    for compilers, slow in made:
        slow.gate.set()
        compilers.close()


def test_beside_a_device_beginning_returns_at_once_and_the_quick_are_ready(make: Make) -> None:
    compilers, slow = make()
    compilers.begin(TASK, [one("a"), one("b", "quick")])
    assert (compilers.ready(one("a")), compilers.ready(one("b", "quick"))) == (False, True)
    compilers.await_any([one("a")], 0.01)
    assert not compilers.ready(one("a")), "waiting has a limit"
    slow.gate.set()
    compilers.await_any([one("a")], 30)
    assert compilers.ready(one("a"))
    assert compilers.binaries(one("a")) == {p.id: f"a-{p.id}" for _, p in slow.compiled}


def test_on_the_host_compilers_run_only_while_the_caller_waits_for_them(make: Make) -> None:
    compilers, slow = make(beside=False)
    slow.gate.set()
    compilers.begin(TASK, [one("a"), one("b", "quick")])
    assert (compilers.ready(one("a")), compilers.ready(one("b", "quick"))) == (False, True)
    compilers.await_any([one("a")], HOST_COMPILE_SECONDS / 2)
    assert not compilers.ready(one("a")), "it would not end in that time"
    compilers.await_any([one("a")], HOST_COMPILE_SECONDS)
    assert compilers.ready(one("a"))
    assert not compilers.cached(one("a"))
    assert compilers.seconds > 0


@pytest.mark.parametrize("beside", [True, False])
def test_a_candidate_in_the_cache_never_waits_behind_a_compiler(
    make: Make, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)  # one compiler
    compilers, slow = make(beside=beside)
    other = Gated(kept={case.problem.id for case in screening_cases(TASK.problem, TASK.seed, every=True)})
    cast("dict[str, Gated]", compilers._families)["kept"] = other
    compilers.begin(TASK, [one("a"), one("b", "kept")])
    if beside:
        assert slow.started.acquire(timeout=30)
        compilers.await_any([one("b", "kept")], 30)
    assert (compilers.ready(one("a")), compilers.ready(one("b", "kept"))) == (False, True)
    assert compilers.cached(one("b", "kept"))
    assert not other.compiled


def test_settling_leaves_what_is_begun_to_the_cache_where_it_does_not_wait(make: Make) -> None:
    compilers, slow = make()
    compilers.begin(TASK, [one("a")])
    assert slow.started.acquire(timeout=30)
    compilers.settle(wait_for_running=False)
    assert not slow.compiled, "it is still being compiled"
    assert not compilers.ready(one("a"))


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("waits", [True, False])
def test_what_a_search_ended_without_is_told_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, beside: bool, waits: bool
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)  # one compiler beside a device
    compilers, slow = make(beside=beside)
    slow.gate.set()
    compilers.compile(TASK, [one("done")])
    slow.gate.clear()
    compilers.begin(TASK, [one("done"), one("a"), one("b", "quick"), one("c")])
    if beside:
        assert slow.started.acquire(timeout=30)
    threading.Timer(0.05, slow.gate.set).start()
    compilers.settle(wait_for_running=waits)
    assert compilers.take_uncompiled() == [(TASK.problem, one("a")), (TASK.problem, one("c"))]
    assert compilers.take_uncompiled() == []


def test_only_the_newest_that_nobody_takes_are_kept(make: Make) -> None:
    compilers, _ = make(beside=False)
    compilers.begin(TASK, [one(str(number)) for number in range(1200)])
    compilers.settle()
    assert [s.parameters["name"] for _, s in compilers.take_uncompiled()] == [
        str(n) for n in range(200, 1200)
    ]


@pytest.mark.parametrize(("beside", "screened", "proven"), [(True, 2, 3), (False, 3, 3)])
def test_beside_a_device_a_proofs_problems_are_compiled_for_it_alone(
    make: Make, beside: bool, screened: int, proven: int
) -> None:
    """The ragged problem with scalars of its own is another kernel to many compilers."""
    compilers, slow = make(beside=beside)
    slow.gate.set()
    assert compilers.compile(TASK, [one("a")]) == {}
    assert len({problem.id for _, problem in slow.compiled}) == screened
    found = compilers.for_proof(TASK, one("a"))
    assert isinstance(found, Mapping)
    assert len(found) == proven


def test_nothing_is_compiled_twice_and_another_task_starts_afresh(make: Make) -> None:
    compilers, slow = make()
    slow.gate.set()
    for _ in range(2):
        compilers.compile(TASK, [one("a")])
    assert len(slow.compiled) == 2
    compilers.turn_to(Task(from_mm(8, 8, 8), MeasurementPolicy(), 0))
    assert compilers.binaries(one("a")) is None
    compilers.compile(TASK, [one("a")])
    assert len(slow.compiled) == 4


def test_a_failure_is_an_outcome_with_the_log_and_is_kept(make: Make) -> None:
    compilers, slow = make(broken="a")
    slow.gate.set()
    for _ in range(2):
        (outcome,) = compilers.compile(TASK, [one("a"), one("b")]).values()
        assert outcome.status is Status.COMPILE_ERROR
        assert outcome.evidence == {"error": "it does not compile", "log": "the log"}
    assert compilers.binaries(one("a")) is None
    assert slow.started._value == 3, "once for a, twice for b"


def test_settling_drops_what_is_not_begun_and_waits_for_what_is(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)  # one compiler
    compilers, slow = make()
    compilers.begin(TASK, [one("a"), one("b")])
    assert slow.started.acquire(timeout=30)
    threading.Timer(0.05, slow.gate.set).start()
    compilers.settle()
    assert [compilers.ready(one(name)) for name in "ab"] == [False, False]
    assert [name for name, _ in slow.compiled] == ["a"], "of two binaries the one that was begun"
    assert compilers.compile(TASK, [one("a"), one("b")]) == {}, "they can be asked for again"
    assert sorted(name for name, _ in slow.compiled) == ["a", "a", "a", "b", "b"]
    assert all(compilers.binaries(one(name)) for name in "ab")
