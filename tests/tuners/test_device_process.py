"""Candidates in the child, alone and together: who is to blame for what, and what goes on afterwards."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends import registry
from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import DeviceLost
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem, from_linear
from backends.protocol import Sample
from backends.registry import FoundDevice, find_device
from backends.solution import Solution
from backends.traits import GPU_TRAITS, HOST_TRAITS
from tests.tuners.asked import BEYOND, OPENED, ToldFamily, candidate
from tests.tuners.planted import PlantedFamily
from tuners import evaluate as trial
from tuners.budget import Budget, Search
from tuners.device_calls import LOST_EXIT_CODE
from tuners.device_client import DeviceClient
from tuners.device_process import Task
from tuners.inputs import cases
from tuners.options import ScreeningOptions
from tuners.policy import MeasurementPolicy
from tuners.screening_noise import ScreeningNoise
from tuners.session import Session
from tuners.tuning_settings import TuningSettings
from tuners.verify import Finding

PROBLEM = from_linear(48, 64, 80)
OPTIONS = ScreeningOptions()
TASK = Task(PROBLEM, MeasurementPolicy(), 0)
HALF = Task(from_linear(16, 333, 257, "fp16"), MeasurementPolicy(), 0)
#: Of a right candidate: a busy machine disturbs samples.
MEASURED = (Status.OK, Status.UNSTABLE)


def device_of(monkeypatch: pytest.MonkeyPatch, name: str) -> FoundDevice:
    monkeypatch.setitem(registry.BACKENDS, "asked", f"tests.tuners.asked:{name}")
    return FoundDevice("asked", 0, find_device("cpu").environment)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, cache: BinaryCache) -> Iterator[DeviceClient]:
    with DeviceClient(device_of(monkeypatch, "AskedBackend"), cache, hang_seconds=2.0) as runner:
        runner.open(TASK)
        yield runner


@pytest.fixture
def planting(
    planted: FoundDevice, cache: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DeviceClient]:
    """A runner of planted candidates that knows how long one takes."""
    monkeypatch.setattr("tuners.device_client.LONG", 1.0)  # ten times as long is minutes on a busy machine
    with DeviceClient(planted, cache, hang_seconds=4.0) as runner:
        runner.open(HALF)
        (first,) = runner.screen([kind(runner, "right")], None)
        assert first.status in MEASURED
        yield runner


def kind(runner: DeviceClient, name: str) -> Solution:
    found = PlantedFamily().solutions(HALF.problem, runner.environment)
    return next(solution for solution in found if solution.parameters["kind"] == name)


# ---- together ----------------------------------------------------------------------------------


def test_candidates_screened_together_have_one_outcome_each_in_order(planting: DeviceClient) -> None:
    names = ["right", "one_element", "refuses", "last_row", "right_once"]
    batch = [kind(planting, name) for name in names]
    outcomes = planting.screen(batch, None)
    assert [o.solution for o in outcomes] == batch
    wrong = Status.WRONG_RESULT
    assert outcomes[0].status in MEASURED
    assert [o.status for o in outcomes[1:]] == [wrong, Status.LAUNCH_ERROR, wrong, wrong]
    assert all(o.phase is Phase.SCREEN for o in outcomes)


def test_one_that_breaks_a_rule_keeps_its_place_among_the_others(planting: DeviceClient) -> None:
    right = kind(planting, "right")
    broken = Solution("planted", 1, {**right.parameters, "nr": -4})
    wrong = kind(planting, "last_row")
    outcomes = planting.screen([wrong, broken, right], None)
    assert [o.solution for o in outcomes] == [wrong, broken, right]
    assert [o.status for o in outcomes[:2]] == [Status.WRONG_RESULT, Status.ILLEGAL]
    assert outcomes[2].status in MEASURED


@pytest.mark.parametrize(
    ("culprit", "status", "words"),
    [
        ("crashes", Status.CRASH, "SIGSEGV"),
        ("aborts", Status.CRASH, "planted: heap is corrupt"),
        ("hangs", Status.TIMEOUT, "no answer within"),
    ],
)
def test_of_a_batch_that_ends_the_child_only_the_culprit_is_to_blame(
    culprit: str, status: Status, words: str, planting: DeviceClient
) -> None:
    batch = [kind(planting, name) for name in ("last_row", culprit, "right")]
    outcomes = planting.screen(batch, None)
    assert [o.solution for o in outcomes] == batch
    assert [o.status for o in outcomes[:2]] == [Status.WRONG_RESULT, status]
    assert outcomes[2].status in MEASURED
    assert words in str(dict(outcomes[1].evidence))


def test_the_best_of_a_batch_prunes_the_rest(asked: DeviceClient) -> None:
    first, second = asked.screen([candidate("right", 1), candidate("right", 2)], 1e-12)
    assert (first.status, second.status) == (Status.PRUNED, Status.PRUNED)
    assert first.evidence["best_seconds"] == 1e-12
    third, _ = asked.screen([candidate("right", 3), candidate("right", 4)], None)
    assert third.status is not Status.PRUNED


# ---- what a device does to its process ---------------------------------------------------------


@pytest.mark.parametrize("together", [False, True])
def test_a_lost_context_ends_the_child_and_the_next_candidate_runs(
    together: bool, asked: DeviceClient
) -> None:
    lost, right = candidate("loses the context"), candidate("right")
    outcomes = asked.screen([lost, right], None) if together else [
        *asked.screen([lost], None), *asked.screen([right], None)
    ]  # fmt: skip
    assert [o.solution.id for o in outcomes] == [lost.id, right.id]
    assert outcomes[0].status is Status.CRASH
    assert f"exit code {LOST_EXIT_CODE}" in outcomes[0].evidence["error"]
    assert "the device's context is lost: waiting for the device: CUDA_ERROR" in outcomes[0].evidence["log"]
    assert outcomes[1].status in MEASURED


def test_a_child_that_comes_back_with_another_device_is_stopped(
    monkeypatch: pytest.MonkeyPatch, cache: BinaryCache, tmp_path: Path
) -> None:
    monkeypatch.setenv(OPENED, str(tmp_path / "opened"))
    with DeviceClient(device_of(monkeypatch, "AskedBackend"), cache) as runner:
        runner.open(TASK)
        uuid = runner.environment.uuid
        with pytest.raises(DeviceLost, match=rf"^device 0 of asked is CPU-another, not {uuid}$"):
            runner.screen([candidate("crashes")], None)


def test_a_child_that_can_never_start_is_a_lost_device(
    monkeypatch: pytest.MonkeyPatch, cache: BinaryCache
) -> None:
    with (
        DeviceClient(device_of(monkeypatch, "DyingBackend"), cache) as runner,
        pytest.raises(DeviceLost, match=r"the process that owns the device cannot open it: .*exit code 3"),
    ):
        runner.open(TASK)


# ---- what a library refuses --------------------------------------------------------------------


def test_refused_at_load_it_is_illegal_by_the_librarys_rule(asked: DeviceClient) -> None:
    (outcome,) = asked.screen([candidate("refused at load")], None)
    assert outcome.status is Status.ILLEGAL
    assert outcome.evidence["rule"] == "the library's check refuses it"
    assert outcome.samples == ()


def test_refused_at_launch_it_is_illegal_too(asked: DeviceClient) -> None:
    (outcome,) = asked.screen([candidate("refused at launch")], None)
    assert outcome.status is Status.ILLEGAL
    assert PROBLEM.slug in outcome.evidence["rule"]


def test_a_case_refused_at_launch_has_its_stand_in(asked: DeviceClient) -> None:
    names = {case.name for case in cases(PROBLEM, 1, 0)}
    assert {"ragged", "ragged, aligned", "exact"} <= names
    plain, vectors = asked.screen([candidate("right"), candidate("wants whole vectors")], None)
    assert set(plain.evidence["cases"]) == {"exact", "ragged", "ragged, own scalars"}
    assert set(vectors.evidence["cases"]) == {"exact", "ragged, aligned", "ragged, own scalars, aligned"}
    assert vectors.status in (Status.OK, Status.UNSTABLE, Status.PRUNED)
    assert plain.evidence["checks"] == vectors.evidence["checks"] == 3


class Stub:
    """An owner whose verifier finds the same of every case, and whose timer the same seconds."""

    seconds = 1e-3

    def __init__(self, finding: Finding, policy: MeasurementPolicy) -> None:
        self.task, self.timed, self.screening = Task(PROBLEM, policy, 0), 0, cases(PROBLEM, 1, 0)
        self.families = {"told": ToldFamily()}
        self.device = SimpleNamespace(traits=GPU_TRAITS, environment=find_device("cpu").environment)
        self.verifier = SimpleNamespace(check=lambda *_, **__: finding)
        self.noise = ScreeningNoise(OPTIONS, GPU_TRAITS)

    def load(self, *_: object) -> object:
        return SimpleNamespace(workspace_bytes=0, partial_sums=1)

    def timer(self, *_: object) -> Any:
        self.timed += 1
        taken = Sample(self.seconds, 1)
        return SimpleNamespace(sample=lambda **_: taken, size=lambda **_: taken)


@pytest.mark.parametrize(
    ("seconds", "best", "own_clock", "status", "samples"),
    [
        (1e-3, 3e-4, True, Status.PRUNED, 1),
        (1e-3, 4e-4, True, Status.PRUNED, 1),  # by its first sample
        (1e-3, 8e-4, True, Status.OK, 3),
        (4e-5, 1e-6, True, Status.PRUNED, 1),  # by its first sample: eager launches so short say little
        (1e-3, 3e-4, False, Status.PRUNED, 1),
    ],
)
def test_far_slower_than_the_best_it_is_timed_no_further(
    seconds: float, best: float, own_clock: bool, status: Status, samples: int
) -> None:
    stub: Any = Stub(Finding("", 0.1, 0.1, 1.0, None), MeasurementPolicy())
    stub.seconds = seconds
    stub.device.traits = GPU_TRAITS if own_clock else HOST_TRAITS
    outcome = trial.screen(stub, candidate("right"), {}, best)
    assert (outcome.status, len(outcome.samples)) == (status, samples)
    long, far = seconds > OPTIONS.host_bound_seconds, seconds > OPTIONS.prune_sized * best
    assert outcome.evidence.get("sized_only", False) is (own_clock and long and far)


@pytest.mark.parametrize("best", [None, 1e-6], ids=["ok", "pruned"])
def test_what_a_compiled_kernel_takes_is_evidence(best: float | None) -> None:
    stub: Any = Stub(Finding("", 0.1, 0.1, 1.0, None), MeasurementPolicy())
    outcome = trial.screen(stub, candidate("right"), {}, best)
    assert "resources" not in outcome.evidence, "a library's kernels tell nothing"
    taken = {"registers": 128, "local_bytes": 0, "shared_bytes": 4096, "threads": 256, "blocks_per_unit": 2}
    stub.load = lambda *_: SimpleNamespace(workspace_bytes=0, partial_sums=1, resources=lambda: taken)
    outcome = trial.screen(stub, candidate("right"), {}, best)
    assert outcome.status is (Status.OK if best is None else Status.PRUNED)
    assert outcome.evidence["resources"] == taken
    assert Outcome.from_dict(json.loads(json.dumps(outcome.to_dict()))) == outcome
    stub.verifier = SimpleNamespace(check=lambda *_, **__: Finding("off by one", 1.0, 1.0, 1.0, None))
    outcome = trial.screen(stub, candidate("right"), {}, best)
    assert outcome.status is Status.WRONG_RESULT
    assert "resources" not in outcome.evidence


@pytest.mark.parametrize(
    ("repeatable", "wanted", "status", "deterministic"),
    [
        (False, False, Status.OK, False),
        (False, True, Status.ILLEGAL, False),
        (True, True, Status.OK, True),
        (None, True, Status.OK, True),
    ],
)
def test_whether_two_runs_gave_the_same_bits(
    repeatable: bool | None, wanted: bool, status: Status, deterministic: bool
) -> None:
    finding = Finding("", 0.5, 0.0, 1.0, repeatable)
    stub = Stub(finding, MeasurementPolicy(deterministic_only=wanted))
    outcome = trial.screen(stub, candidate("right"), {}, None)  # type: ignore[arg-type]
    assert outcome.status is status
    assert outcome.solution.deterministic is deterministic
    assert outcome.evidence.get("repeatable") is repeatable
    assert stub.timed == (status is Status.OK)
    if status is Status.ILLEGAL:
        assert "different bits; the policy wants deterministic solutions" in outcome.evidence["rule"]


# ---- families that are asked -------------------------------------------------------------------


def told(outcomes: list[Outcome]) -> list[Solution]:
    found = [o.solution for o in outcomes if o.phase is Phase.SCREEN]
    return [solution for solution in found if solution.family == "told"]


def test_candidates_are_listed_where_the_device_is_open(asked: DeviceClient) -> None:
    space = asked.space(TASK, ["told"])
    assert [s.parameters["number"] for s in space.candidates] == [0, 1, 2]
    assert os.getpid() not in {s.parameters["process"] for s in space.candidates}
    near = asked.neighbours(TASK, space.candidates[1])
    assert [s.parameters["number"] for s in near] == [BEYOND + 2, BEYOND + 3]
    assert os.getpid() not in {s.parameters["process"] for s in near}
    baseline = space.baselines[0].solution
    assert (asked.tells_neighbours("told"), asked.tells_neighbours(baseline.family)) == (True, False)
    assert asked.neighbours(TASK, baseline) == []


def test_a_space_that_the_device_lists_is_looked_into_there(asked: DeviceClient) -> None:
    listed = asked.space(TASK, ["told"]).candidates
    space = asked.family_space(TASK, "told")
    assert list(space) == list(listed)
    assert [space.index(solution) for solution in listed] == [0, 1, 2]
    assert os.getpid() not in {one.parameters["process"] for one in space}
    own = asked.family_space(TASK, "packed")
    assert own.size > 10**4
    assert next(iter(own)).family == "packed"


def test_a_family_that_knows_its_neighbours_is_not_asked_on_the_device(
    asked: DeviceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Knows:
        def neighbours(
            self, problem: GemmProblem, solution: Solution, environment: Environment
        ) -> Iterable[Solution]:
            assert (problem, environment) == (PROBLEM, asked.environment)
            return [replace(solution, workspace_bytes=size) for size in (0, 64, 65)]

    monkeypatch.setitem(asked._near, "knows", Knows())
    assert asked.tells_neighbours("knows")
    solution = Solution("knows", 1, {})
    assert [one.workspace_bytes for one in asked.neighbours(TASK, solution)] == [0, 64, 65]
    limited = replace(TASK, policy=replace(TASK.policy, max_workspace_bytes=64))
    assert [one.workspace_bytes for one in asked.neighbours(limited, solution)] == [0, 64]


def test_neighbours_reach_the_search_and_are_replayed(asked: DeviceClient) -> None:
    search, budget = Search(families=("told",)), Budget(20.0)
    first = Session(asked, PROBLEM, TuningSettings(budget=budget, search=search))
    outcomes = list(first.run())
    found = told(outcomes)
    assert len(found) == len(set(found))
    numbers = [int(s.parameters["number"] or 0) for s in found]
    assert numbers[:3] == [0, 1, 2]
    assert numbers[3:], "neighbours were tried"
    assert all(number >= BEYOND for number in numbers[3:])
    again = Session(asked, PROBLEM, TuningSettings(budget=budget, search=search), replay=outcomes)
    second = list(again.run())
    assert again.counts.replayed == sum(o.phase is Phase.SCREEN for o in outcomes)
    assert set(found) <= set(told(second))
    assert len(told(second)) == len(set(told(second)))
