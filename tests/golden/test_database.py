"""A database that was written on an H200 before modules moved: its ids are today's, and its winners load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.problem import GemmProblem
from backends.solution import Solution
from tests.golden import access, texts
from tuners.policy import MeasurementPolicy


def test_problems_have_the_ids_they_were_stored_by(tmp_path: Path) -> None:
    rows = texts.stored(tmp_path, "SELECT id, content FROM problems")
    assert len(rows) == 39
    assert [GemmProblem.from_dict(json.loads(content)).id for _, content in rows] == [key for key, _ in rows]


def test_solutions_have_the_ids_they_were_stored_by(tmp_path: Path) -> None:
    rows = texts.stored(tmp_path, "SELECT id, family, version, parameters, build FROM solutions")
    assert len(rows) == 2145
    for key, family, version, parameters, build in rows:
        assert Solution(family, version, json.loads(parameters), build).id == key


def test_policies_and_environments_have_the_ids_they_were_stored_by(tmp_path: Path) -> None:
    for key, content in texts.stored(tmp_path, "SELECT id, content FROM policies"):
        assert MeasurementPolicy.from_dict(json.loads(content)).id == key
    for key, content in texts.stored(tmp_path, "SELECT id, content FROM environments"):
        assert Environment.from_dict(json.loads(content)).id == key


def _winners(folder: Path) -> list[tuple[GemmProblem, Solution]]:
    rows = texts.stored(folder, "SELECT document FROM best ORDER BY problem_id")
    bests = [json.loads(document) for (document,) in rows]
    problems = dict(texts.stored(folder, "SELECT id, content FROM problems"))
    return [
        (GemmProblem.from_dict(json.loads(problems[one["problem_id"]])), Solution.from_dict(one["solution"]))
        for one in bests
    ]


def test_every_winner_is_still_legal(tmp_path: Path) -> None:
    """Of families whose rules need no library."""
    environment = access.environment_of("sm_90")
    families, checked = access.families_of("sm_90"), set()
    for problem, solution in _winners(tmp_path):
        if solution.family in families:
            checked.add(solution.family)
            assert access.rule_broken(problem, solution, environment) is None, (problem.slug, solution.id)
    assert len(checked) >= 5


@pytest.mark.cuda
def test_every_winner_loads_and_runs(tmp_path: Path, cache: BinaryCache) -> None:
    """On the GPU that they won on, or another H200."""
    from tuners.inputs import Case
    from tuners.verify_device import DeviceVerifier

    device = access.open_gpu(cache)
    verifier, winners = DeviceVerifier(device), _winners(tmp_path)
    builds = device.environment.libraries
    assert len(winners) == 36
    for problem, solution in winners:
        if solution.build is not None and solution.build not in builds.values():
            continue  # of a library that this machine has another build of
        kernel = access.load(device, problem, solution, cache)
        case = Case(problem, 0, "normal", "exact")
        assert verifier.check(kernel, case).wrong == "", (problem.slug, solution.id)
    verifier.forget()
