"""rocBLAS's solutions on a library of our own: which are listed, loaded, launched and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.errors import ContextLost, IllegalSolution, LaunchError
from backends.gpu.device import GpuDevice
from backends.gpu.null import NullTelemetry
from backends.hip.driver import HipDriver
from backends.hip.rocblas import Rocblas, RocblasDefault, default_solution
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.solution import Solution
from backends.toolchains.hiprtc import Hiprtc
from tests.backends.hip.test_hipblaslt import ENVIRONMENT, product

ROCBLAS, DEFAULT = Rocblas(), RocblasDefault()
BUILD = "5.2.0.a"
PROBLEM = from_linear(5, 7, 9, "fp32")
MIB = 2**20


@pytest.fixture
def device(on_host: Path, cache: BinaryCache) -> GpuDevice:
    return GpuDevice(HipDriver(0), ENVIRONMENT, NullTelemetry(), Hiprtc(), cache, {})


def of_index(index: int, build: str | None = BUILD) -> Solution:
    return Solution(ROCBLAS.name, 1, {"solution_index": index}, build)


def test_solutions_of_the_problem_then_those_of_its_types(device: GpuDevice) -> None:
    found = list(ROCBLAS.enumerate_on(PROBLEM, device, None))
    indices = [one.parameters["solution_index"] for one in found]
    assert (set(indices[:5]), indices[5:]) == ({-621, -622, -623, -624, -625}, [-626])
    assert {one.workspace_bytes for one in found} == {0, 2 * MIB}
    assert all(ROCBLAS.illegal(PROBLEM, one, ENVIRONMENT) is None for one in found)
    limited = ROCBLAS.enumerate_on(PROBLEM, device, MIB)
    assert -625 not in [one.parameters["solution_index"] for one in limited]
    assert list(ROCBLAS.neighbours_on(PROBLEM, found[0], device, None)) == []


@pytest.mark.parametrize("index", [-621, -622, -625, -626])
@pytest.mark.parametrize(
    "problem",
    [PROBLEM, from_mm(6, 5, 7, "fp32", trans_a="T", alpha=2.0, beta=0.5), from_bmm(3, 4, 5, 6, "fp64")],
)
def test_every_sound_solution_computes_right(device: GpuDevice, index: int, problem: GemmProblem) -> None:
    got, wanted = product(device, problem, of_index(index), ROCBLAS)  # type: ignore[arg-type]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_the_librarys_own_choice(device: GpuDevice) -> None:
    (solution,) = DEFAULT.solutions(PROBLEM, ENVIRONMENT)
    assert solution == default_solution(ENVIRONMENT)
    assert DEFAULT.illegal(PROBLEM, solution, ENVIRONMENT) is None
    got, wanted = product(device, PROBLEM, solution, DEFAULT)  # type: ignore[arg-type]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    assert list(DEFAULT.enumerate_on(PROBLEM, device, None)) == []
    assert list(DEFAULT.solutions(from_linear(5, 7, 9, "bf16", bias="bf16"), ENVIRONMENT)) == []


def test_the_wrong_and_the_failing_one(device: GpuDevice) -> None:
    got, wanted = product(device, PROBLEM, of_index(-623), ROCBLAS)  # type: ignore[arg-type]
    assert np.abs(got - wanted).max() > 0.1
    with pytest.raises(ContextLost, match="hipErrorLaunchFailure"):
        product(device, PROBLEM, of_index(-624), ROCBLAS)  # type: ignore[arg-type]


def test_a_solution_that_is_not_there(device: GpuDevice) -> None:
    with pytest.raises(IllegalSolution, match=r"solution 5 for .* refuses it: rocblas_status_inv"):
        ROCBLAS.load(PROBLEM, of_index(5), None, device)


def test_statuses_are_named(device: GpuDevice, on_host: Path) -> None:
    on_host.write_text("rocblas_gemm_ex_get_solutions 6\n")
    with pytest.raises(LaunchError, match=r"listing rocBLAS's solutions for .*_internal_error"):
        list(ROCBLAS.enumerate_on(PROBLEM, device, None))
    on_host.write_text("rocblas_set_workspace 5\n")
    with pytest.raises(LaunchError, match="of solution -621: rocblas_status_memory_error"):
        product(device, PROBLEM, of_index(-621), ROCBLAS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (from_linear(5, 7, 9, "bf16", bias="bf16"), "neither scales nor an epilogue, not bias"),
        (from_linear(5, 7, 9, "tf32"), "has no fp32 x fp32 -> fp32 in tf32"),
        (from_linear(5, 7, 9, "int8", dtype_d="int8"), "has no int8 x int8 -> int8"),
        (from_linear(5, 7, 9, "int8"), None),
        (from_linear(5, 7, 9, "bf16", dtype_d="fp32"), None),
    ],
)
def test_rules(problem: GemmProblem, why: str | None) -> None:
    found = ROCBLAS.illegal(problem, of_index(-621), ENVIRONMENT)
    assert found is None if why is None else why in (found or "")


@pytest.mark.parametrize(
    ("solution", "why"),
    [
        (of_index(-621, "4.0.0"), "of rocBLAS 4.0.0 means nothing to 5.2.0.a"),
        (of_index(0), "a 32-bit number other than 0"),
        (of_index(2**31), "a 32-bit number other than 0"),
        (Solution(ROCBLAS.name, 1, {}, BUILD), "has one number, solution_index"),
    ],
)
def test_parameters(solution: Solution, why: str) -> None:
    assert why in (ROCBLAS.illegal(PROBLEM, solution, ENVIRONMENT) or "")
    assert "takes no parameters" in (
        DEFAULT.illegal(PROBLEM, replace(default_solution(ENVIRONMENT), parameters={"x": 1}), ENVIRONMENT)
        or ""
    )
