"""The contract of a backend, run on every registered one. Without hardware its first part still holds."""

from __future__ import annotations

import pytest

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import LaunchError, UnsupportedProblem
from backends.operands import Operands
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.protocol import Backend
from backends.registry import BACKENDS, backend
from backends.solution import Solution
from tuners.inputs import cases
from tuners.verify import Verifier

PROBLEMS = {
    "fp32 nn": from_mm(33, 70, 129),
    "fp32 decode bias gelu": from_linear(5, 257, 511, bias="fp32", activation="gelu"),
    "fp64 tt beta": from_mm(40, 30, 50, "fp64", trans_a="T", trans_b="T", alpha=2.0, beta=1.0),
    "fp16 linear bias": from_linear(17, 65, 300, "fp16", bias="fp16"),
    "fp16 few rows": from_mm(200, 3, 300, "fp16", activation="silu"),
    "bf16 to fp32": from_linear(9, 100, 200, "bf16", dtype_d="fp32"),
    "bf16 batch broadcast": from_bmm(3, 20, 30, 40, "bf16", stride_b=0, activation="relu"),
    "int8": from_linear(31, 70, 90, "int8"),
    "bias along rows": from_mm(30, 50, 20, bias="fp32", bias_axis="m"),
}


@pytest.fixture(params=sorted(BACKENDS))
def one(request: pytest.FixtureRequest) -> Backend:
    return backend(request.param)


def first_device(one: Backend) -> Environment:
    found = one.probe().devices
    if not found:
        pytest.fail(f"{one.name} is registered, but this machine has none of its devices")
    return found[0]


def test_probe_is_repeatable_and_its_environment_survives_json(one: Backend) -> None:
    first, second = one.probe(), one.probe()
    assert first == second
    for environment in first.devices:
        assert environment.vendor == one.name
        assert Environment.from_dict(environment.to_dict()) == environment
        assert environment.units >= 1
        assert environment.memory_bytes > 0


@pytest.mark.parametrize("name", PROBLEMS)
def test_candidates_are_distinct_legal_and_of_their_family(one: Backend, name: str) -> None:
    problem, environment = PROBLEMS[name], first_device(one)
    ids = []
    for family_name, family in one.families().items():
        assert family.name == family_name
        if family.unavailable(environment) or not family.supports(problem):
            continue
        for solution in family.solutions(problem, environment):
            assert solution.family == family_name
            assert family.illegal(problem, solution, environment) is None, solution
            ids.append(solution.id)
    assert len(ids) == len(set(ids))
    assert len(ids) > 3


def test_a_problem_of_no_backend_is_refused_by_name(one: Backend) -> None:
    with pytest.raises(UnsupportedProblem, match="fp8_e4m3"):
        one.baselines(from_linear(16, 16, 16, "fp8_e4m3"), first_device(one))


def sample_of(one: Backend, problem: GemmProblem, environment: Environment) -> list[Solution]:
    """The baselines, and of each family every instantiation once, at the fewest and the most threads."""
    found = {b.solution.id: b.solution for b in one.baselines(problem, environment)}
    for family in one.families().values():
        if family.unavailable(environment) or not family.supports(problem):
            continue
        seen = set()
        for solution in family.solutions(problem, environment):
            blocks = ("mc", "nc", "kc")
            key = tuple(value for name, value in solution.parameters.items() if name not in blocks)
            if key not in seen:
                seen.add(key)
                found[solution.id] = solution
    return list(found.values())


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_candidate_computes_right(one: Backend, name: str, cache: BinaryCache) -> None:
    problem, environment = PROBLEMS[name], first_device(one)
    device = one.open(0, cache)
    verifier = Verifier(device)
    families = one.families()
    checked = 0
    for solution in sample_of(one, problem, environment):
        family = families[solution.family]
        for case in cases(problem, 2, 11):
            if not family.supports(case.problem) or family.illegal(case.problem, solution, environment):
                continue
            binary = family.compile(case.problem, solution, environment, cache)
            finding = verifier.check(device.load(case.problem, solution, binary), case)
            assert finding.wrong == "", (solution.id, case.name, case.distribution)
            checked += 1
    assert checked >= 6


def test_a_sample_times_the_launches_it_was_given(one: Backend, cache: BinaryCache) -> None:
    problem, environment = from_mm(64, 64, 64), first_device(one)
    device = one.open(0, cache)
    kernel = device.load(problem, one.baselines(problem, environment)[0].solution, None)
    buffers = [device.allocate(64 * 64 * 4) for _ in range(3)]
    operands = Operands(buffers[0].address, buffers[1].address, 0, buffers[2].address, 0, 1.0, 0.0)
    series = device.series(kernel, [kernel.bind(operands, 0)] * 7, one.modes[0])
    sample = series.sample()
    series.close()
    assert sample.launches == 7
    assert 0 < sample.seconds < 1


def test_an_unknown_family_is_a_launch_error(one: Backend, cache: BinaryCache) -> None:
    with pytest.raises(LaunchError, match="family 'nobody' is unknown; known: "):
        one.open(0, cache).load(from_mm(4, 4, 4), Solution("nobody", 1, {}), None)
