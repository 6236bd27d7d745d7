"""hipBLASLt's solutions on a library of our own: which are listed, loaded, launched and refused."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import ContextLost, IllegalSolution, LaunchError
from backends.gpu.device import GpuDevice
from backends.gpu.null import NullTelemetry
from backends.hip.datatypes import fp8_formats
from backends.hip.driver import HipDriver
from backends.hip.hipblaslt import HipblasLt, HipblasLtHeuristic, first_heuristic, library
from backends.hip.hipblaslt_api import Algo, HeuristicResult
from backends.operands import Operands, layouts
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.solution import Solution
from backends.toolchains.hiprtc import Hiprtc

LT, HEURISTIC = HipblasLt(), HipblasLtHeuristic()
BUILD = "100202-dabb6df2b9"
ENVIRONMENT = Environment(
    "hip", "gfx942", "HIP on host", 4, 2**31, "GPU-0", libraries={"hipblaslt": BUILD, "rocblas": "5.2.0.a"}
)
PROBLEM = from_linear(5, 7, 9, "fp32")
MIB = 2**20


@pytest.fixture
def device(on_host: Path, cache: BinaryCache) -> GpuDevice:
    return GpuDevice(HipDriver(0), ENVIRONMENT, NullTelemetry(), Hiprtc(), cache, {})


def indices(solutions: Iterator[Solution]) -> list[Any]:
    return [solution.parameters["solution_index"] for solution in solutions]


def of_index(index: int, build: str | None = BUILD) -> Solution:
    return Solution(LT.name, 1, {"solution_index": index}, build)


def test_the_structures_are_as_long_as_the_librarys() -> None:
    assert (ctypes.sizeof(Algo), ctypes.sizeof(HeuristicResult)) == (24, 56)


# ---- what is listed ----------------------------------------------------------------------------


def test_the_union_is_listed_the_heuristics_answers_first(device: GpuDevice) -> None:
    assert indices(LT.enumerate_on(PROBLEM, device, None)) == [103, 101, 107, 102, 104, 105, 106]
    assert 108 not in indices(LT.enumerate_on(PROBLEM, device, None)), "it supports no problem"


@pytest.mark.parametrize(("limit", "left_out"), [(4 * MIB, set()), (2 * MIB, {104}), (0, {104, 107})])
def test_a_limit_on_workspace_is_kept(device: GpuDevice, limit: int, left_out: set[int]) -> None:
    found = list(LT.enumerate_on(PROBLEM, device, limit))
    assert {101, 102, 103, 104, 105, 106, 107} - set(indices(iter(found))) == left_out
    assert {one.parameters["solution_index"]: one.workspace_bytes for one in found} == {
        index: {104: 4 * MIB, 107: MIB}.get(int(index or 0), 0) for index in indices(iter(found))
    }


def test_what_is_listed_is_legal_and_of_the_build(device: GpuDevice) -> None:
    for solution in LT.enumerate_on(PROBLEM, device, None):
        assert solution.build == BUILD
        assert LT.illegal(PROBLEM, solution, ENVIRONMENT) is None
    assert list(LT.neighbours_on(PROBLEM, of_index(101), device, None)) == []
    assert list(LT.solutions(PROBLEM, ENVIRONMENT)) == []


def test_a_heuristic_that_fails_leaves_the_list(device: GpuDevice, on_host: Path) -> None:
    on_host.write_text("hipblasLtMatmulAlgoGetHeuristic 6\n")
    assert indices(LT.enumerate_on(PROBLEM, device, None)) == [101, 102, 103, 104, 105, 106]


def test_a_list_that_fails_is_a_launch_error(device: GpuDevice, on_host: Path) -> None:
    on_host.write_text("getAllAlgos 6\n")
    with pytest.raises(LaunchError, match=r"listing hipBLASLt's solutions for .*: HIPBLAS_STATUS_INTERNAL"):
        list(LT.enumerate_on(PROBLEM, device, None))


# ---- what is loaded ----------------------------------------------------------------------------


def product(device: GpuDevice, problem: GemmProblem, solution: Solution, family: HipblasLt = LT) -> Any:
    """D of a launch on random operands, and what it should be, in float64."""
    rng, found = np.random.default_rng(3), layouts(problem)
    host = {
        name: rng.standard_normal(layout.elements).astype(layout.dtype.storage)
        for name, layout in found.items()
    }
    buffers = {name: device.allocate(layout.bytes) for name, layout in found.items()}
    for name, buffer in buffers.items():
        buffer.upload(host[name].view(np.uint8))
    kernel = family.load(problem, solution, None, device)
    workspace = device.allocate(kernel.workspace_bytes)
    addresses = {name: buffer.address for name, buffer in buffers.items()}
    kernel.bind(Operands.at(addresses, problem.scalars), workspace.address)()
    device.synchronize()
    raw = buffers["d"].download(0, buffers["d"].size).view(found["d"].dtype.storage)
    views = {name: layout.view(host[name]).astype(np.float64) for name, layout in found.items()}
    right = views["a"] if problem.trans_a == "N" else views["a"].swapaxes(1, 2)
    left = views["b"] if problem.trans_b == "N" else views["b"].swapaxes(1, 2)
    alpha, beta = problem.scalars
    wanted = alpha * (left @ right)
    if problem.beta != "zero":
        wanted += beta * views["c"]
    return found["d"].view(raw).astype(np.float64), wanted


@pytest.mark.parametrize("index", [101, 102, 103, 104, 107])
def test_every_sound_solution_computes_right(device: GpuDevice, index: int) -> None:
    got, wanted = product(device, PROBLEM, of_index(index))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "problem",
    [
        from_mm(6, 5, 7, "fp32", trans_a="T", alpha=2.0, beta=0.5),
        from_bmm(3, 4, 5, 6, "fp32"),
        from_mm(6, 5, 7, "fp64", beta=1.0),
    ],
)
def test_scalars_batches_and_types(device: GpuDevice, problem: GemmProblem) -> None:
    got, wanted = product(device, problem, of_index(102))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_the_heuristics_first_answer_is_what_a_program_gets(device: GpuDevice) -> None:
    first = first_heuristic(ENVIRONMENT, None)
    got, wanted = product(device, PROBLEM, first, HEURISTIC)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    kernel = HEURISTIC.load(PROBLEM, first, None, device)
    assert kernel.names()["solution_name"].endswith("_103")
    third = replace(first, parameters={"rank": 2, "workspace_limit": MIB})
    assert HEURISTIC.load(PROBLEM, third, None, device).workspace_bytes == MIB
    beyond = replace(first, parameters={"rank": 2, "workspace_limit": 0})
    with pytest.raises(IllegalSolution, match=r"has 2 answers for .*, none of rank 2"):
        HEURISTIC.load(PROBLEM, beyond, None, device)


def test_the_wrong_solution_is_wrong_here_too(device: GpuDevice) -> None:
    got, wanted = product(device, PROBLEM, of_index(105))
    assert np.abs(got - wanted).max() > 0.1


def test_names_are_the_librarys(device: GpuDevice) -> None:
    assert LT.load(PROBLEM, of_index(102), None, device).names() == {
        "kernel_name": "Cijk_Ailk_Bljk_kernel_of_the_host_number_102",
        "solution_name": "Cijk_Ailk_Bljk_solution_of_the_host_number_102",
    }


def test_short_names_lie_within_the_string(device: GpuDevice) -> None:
    """libstdc++ keeps up to 15 characters in the object itself: nothing is freed there."""
    found = library(device)
    for index in (101, 102, 103):
        one = found.call(PROBLEM).by_index(index)
        assert one is not None
        for _ in range(50):
            assert found.api.names(found.handle, one)["kernel_name"].endswith(str(index))


# ---- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "why"), [(999, "has no solution 999 here"), (108, "108 does not support tn_7x5x9_fp32")]
)
def test_a_solution_that_is_not_there_or_does_not_fit(device: GpuDevice, index: int, why: str) -> None:
    with pytest.raises(IllegalSolution, match=why):
        LT.load(PROBLEM, of_index(index), None, device)


def test_a_solution_that_fails_is_told_by_a_wait(device: GpuDevice) -> None:
    with pytest.raises(ContextLost, match="hipErrorLaunchFailure"):
        product(device, PROBLEM, of_index(106))


def test_a_launch_that_is_refused_names_the_solution(device: GpuDevice, on_host: Path) -> None:
    launch = LT.load(PROBLEM, of_index(102), None, device).bind(Operands(256, 256, 0, 256, 0, 1.0, 0.0), 0)
    on_host.write_text("hipblasLtMatmul 7\n")
    with pytest.raises(IllegalSolution, match="solution 102 refuses it: HIPBLAS_STATUS_NOT_SUPPORTED"):
        launch()
    on_host.write_text("hipblasLtMatmul 2\n")
    with pytest.raises(LaunchError, match="solution 102: HIPBLAS_STATUS_ALLOC_FAILED"):
        launch()


FP8 = {"dtype_d": "bf16", "scale_a": "tensor", "scale_b": "tensor"}


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (from_linear(5, 7, 9, "fp32", compute="bf16x9"), "has no fp32 x fp32 -> fp32 in bf16x9"),
        (from_linear(5, 7, 9, "bf16", bias="bf16", bias_axis="n"), None),
        (from_mm(5, 7, 9, "bf16", bias="bf16", bias_axis="m"), "contiguous dimension"),
        (
            from_linear(16, 16, 16, "fp8_e4m3", **FP8),
            "gfx942 does not multiply fp8_e4m3: it has fp8_e4m3_f",
        ),
        (from_linear(16, 16, 16, "fp8_e4m3_fnuz", **FP8), None),
        (from_linear(16, 16, 16, "fp8_e4m3_fnuz", fast_accumulation=True, **FP8), "no fast accumulation"),
        (from_linear(5, 7, 9, "complex64"), "has no complex64"),
    ],
)
def test_rules(problem: GemmProblem, why: str | None) -> None:
    found = LT.illegal(problem, of_index(101), ENVIRONMENT)
    assert (found is None) == (why is None), found
    assert why is None or why in (found or "")


@pytest.mark.parametrize(
    ("solution", "why"),
    [
        (of_index(101, "100000-other"), "of hipBLASLt 100000-other means nothing to 100202-dabb6df2b9"),
        (of_index(-1), "solution_index must be from 0"),
        (Solution(LT.name, 1, {"solution_index": True}, BUILD), "has one number, solution_index"),
        (Solution(LT.name, 1, {"solution_index": 1, "x": 2}, BUILD), "has one number, solution_index"),
        (replace(of_index(1), version=2), "version 2 of hipblaslt is unknown"),
    ],
)
def test_parameters(solution: Solution, why: str) -> None:
    assert why in (LT.illegal(PROBLEM, solution, ENVIRONMENT) or "")


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"rank": 0}, "numbers rank and workspace_limit"),
        ({"rank": -1, "workspace_limit": 0}, "rank is from 0 to 4095"),
        ({"rank": 0, "workspace_limit": 0}, None),
    ],
)
def test_parameters_of_the_heuristic(parameters: dict[str, int], why: str | None) -> None:
    found = HEURISTIC.illegal(PROBLEM, Solution(HEURISTIC.name, 1, parameters, BUILD), ENVIRONMENT)
    assert found is None if why is None else why in (found or "")


@pytest.mark.parametrize(
    ("arch", "formats"),
    [("gfx942", "fnuz"), ("gfx950", "ocp"), ("gfx1201", "ocp"), ("gfx90a", ""), ("gfx1100", "")],
)
def test_8_bit_floats_are_an_architectures(arch: str, formats: str) -> None:
    expected = {"fnuz": ("fp8_e4m3_fnuz", "fp8_e5m2_fnuz"), "ocp": ("fp8_e4m3", "fp8_e5m2"), "": ()}
    assert fp8_formats(arch) == expected[formats]


def test_descriptors_are_kept_for_a_few_problems(device: GpuDevice) -> None:
    found = library(device)
    first = found.call(PROBLEM)
    assert found.call(PROBLEM) is first
    for m in range(1, 17):
        found.call(from_linear(m, 8, 8, "fp32"))
    assert found.call(PROBLEM) is not first
