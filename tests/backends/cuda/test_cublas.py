"""cuBLAS: which problems and parameters, and exactly what it is called with."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from backends.cuda import cublas as module
from backends.cuda.cublas import Cublas, copy_plan
from backends.errors import IllegalSolution
from backends.operands import Operands, layouts
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear
from backends.solution import Solution
from tests.backends.cuda.fakes import LibraryError
from tests.backends.gpu.null_device import ENVIRONMENT, NullDevice

CUBLAS = Cublas()
MIB = 2**20


@pytest.mark.parametrize(
    "problem",
    [
        from_linear(8, 16, 32, "fp64"),
        from_linear(8, 16, 32, "fp32"),
        from_linear(8, 16, 32, "tf32"),
        from_linear(8, 16, 32, "fp16"),
        from_linear(8, 16, 32, "fp16", dtype_d="fp32"),
        from_linear(8, 16, 32, "fp16", compute="fp16"),
        from_linear(8, 16, 32, "bf16", dtype_d="fp32", beta=0.5),
        from_linear(8, 16, 32, "int8"),
        from_bmm(5, 8, 16, 32, "bf16", alpha=2.0),
    ],
)
def test_problems_that_it_runs(problem: GemmProblem) -> None:
    assert CUBLAS.supports(problem)
    first = next(iter(CUBLAS.solutions(problem, ENVIRONMENT)))
    assert CUBLAS.illegal(problem, first, ENVIRONMENT) is None
    assert (first.build, first.deterministic, first.workspace_bytes) == ("13.1.0.3", True, 32 * MIB)


@pytest.mark.parametrize(
    "problem",
    [
        from_linear(8, 16, 32, "fp32", compute="bf16x9"),
        from_linear(8, 16, 32, "fp16", bias="fp16"),
        from_linear(8, 16, 32, "fp16", activation="relu"),
        from_linear(8, 16, 32, "fp16", dtype_c="fp32", dtype_d="fp16", beta=1.0),
        from_linear(8, 16, 32, "int8", dtype_d="int8"),
        from_linear(8, 16, 32, "fp8_e4m3"),
        from_linear(8, 16, 32, "int8", scale_a="tensor"),
        from_blas(8, 16, 32, "complex64"),
    ],
)
def test_problems_that_it_does_not(problem: GemmProblem) -> None:
    assert not CUBLAS.supports(problem)
    assert list(CUBLAS.solutions(problem, ENVIRONMENT)) == []


def test_algorithms_only_where_they_have_an_effect() -> None:
    volta = replace(ENVIRONMENT, arch="sm_70")
    plain, half = from_linear(8, 16, 32, "fp32"), from_linear(8, 16, 32, "fp16")
    assert [s.parameters["algo"] for s in CUBLAS.solutions(half, ENVIRONMENT)] == [-1]
    assert [s.parameters["algo"] for s in CUBLAS.solutions(plain, volta)] == [-1, *range(24)]
    found = list(CUBLAS.solutions(half, volta))
    assert [s.parameters["algo"] for s in found] == [-1, *range(24), *range(99, 116)]
    assert {s.parameters["workspace"] for s in found} == {4 * MIB}


def test_routines_of_a_batch() -> None:
    found = [s.parameters["routine"] for s in CUBLAS.solutions(from_bmm(3, 8, 16, 32), ENVIRONMENT)]
    assert found == ["gemm_strided_batched_ex", "gemm_batched_ex"]


def _solution(**changed: Any) -> Solution:
    parameters = {"routine": "gemm_ex", "algo": -1, "workspace": 0, **changed}
    return Solution("cublas", 1, {k: v for k, v in parameters.items() if v is not None}, "13.1.0.3")


@pytest.mark.parametrize(
    ("problem", "solution", "rule"),
    [
        (from_linear(8, 16, 32), _solution(routine="gemm_batched_ex"), "not for a batch of 1"),
        (from_linear(8, 16, 32), _solution(routine="sgemm"), "gemm_ex"),
        (from_linear(8, 16, 32), _solution(algo=3), "algo must be -1"),
        (from_linear(8, 16, 32), _solution(algo=None), "parameters must be"),
        (from_linear(8, 16, 32), _solution(split=1), "parameters must be"),
        (from_linear(8, 16, 32), _solution(workspace=-1), "from 0"),
        (from_linear(8, 16, 32), _solution(workspace=True), "from 0"),
        (from_linear(8, 16, 30, "int8"), _solution(), "multiple of 4, not 30"),
        (from_linear(8, 16, 32, "int8", alignment=2), _solution(), "aligned to 4 bytes"),
        (from_linear(8, 16, 32, activation="relu"), _solution(), "no GemmEx"),
    ],
)
def test_rules(problem: GemmProblem, solution: Solution, rule: str) -> None:
    assert rule in (CUBLAS.illegal(problem, solution, ENVIRONMENT) or "")


def test_unavailable_without_the_bindings() -> None:
    assert CUBLAS.unavailable(ENVIRONMENT) is None
    without = replace(ENVIRONMENT, libraries={})
    assert CUBLAS.unavailable(without) == "cuBLAS (nvmath-python) is not installed"


class Bindings(ModuleType):
    """nvmath.bindings.cublas, writing down its calls."""

    def __init__(self) -> None:
        super().__init__("nvmath.bindings.cublas")
        self.calls: list[tuple[Any, ...]] = []
        self.fault: Exception | None = None

    def create(self) -> int:
        return 4242

    def __getattr__(self, name: str) -> Any:
        def record(*arguments: Any) -> None:
            if self.fault is not None and "gemm" in name:
                raise self.fault
            self.calls.append((name, *arguments))

        return record


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> Bindings:
    fake, parent = Bindings(), ModuleType("nvmath.bindings")
    parent.cublas = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvmath.bindings", parent)
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublas", fake)
    return fake


OPERANDS = Operands(a=0xA000, b=0xB000, c=0xC000, d=0xD000, bias=0, alpha=1.5, beta=-0.5)


def _value(kind: Any, address: int) -> Any:
    return kind.from_address(address).value


def test_gemm_ex_is_called_with(bindings: Bindings) -> None:
    device, problem = NullDevice(), from_linear(8, 16, 32, "bf16", alpha=1.5, dtype_d="fp32")
    solution = next(iter(CUBLAS.solutions(problem, ENVIRONMENT)))
    kernel = CUBLAS.load(problem, solution, None, device)
    assert kernel.workspace_bytes == 32 * MIB
    launch = kernel.bind(OPERANDS, 0x5000)
    launch()
    launch()
    assert bindings.calls[:2] == [("set_stream", 4242, 77), ("set_workspace", 4242, 0x5000, 32 * MIB)]
    first, second = bindings.calls[2:]
    assert first == second
    name, *arguments = first
    alpha, beta = arguments.pop(6), arguments.pop(12)
    assert name == "gemm_ex"
    assert arguments == [4242, 1, 0, 16, 8, 32, 0xA000, 14, 32, 0xB000, 14, 32, 0xD000, 0, 16, 68, -1]
    assert (_value(ctypes.c_float, alpha), _value(ctypes.c_float, beta)) == (1.5, -0.5)


def test_the_workspace_is_set_when_it_changes(bindings: Bindings) -> None:
    device, problem = NullDevice(), from_linear(8, 16, 32)
    kernels = [CUBLAS.load(problem, _solution(workspace=size), None, device) for size in (1024, 2048)]
    launches = [kernel.bind(OPERANDS, 0x5000) for kernel in kernels]
    for i in (0, 0, 1, 1, 0):
        launches[i]()
    sizes = [one[3] for one in bindings.calls if one[0] == "set_workspace"]
    assert sizes == [1024, 2048, 1024]


def test_half_scalars_of_half_arithmetic(bindings: Bindings) -> None:
    problem = from_linear(8, 16, 32, "fp16", compute="fp16", alpha=1.5)
    launch = CUBLAS.load(problem, _solution(), None, NullDevice()).bind(OPERANDS, 0)
    launch()
    alpha = _value(ctypes.c_uint16, bindings.calls[-1][7])
    assert np.uint16(alpha).view(np.float16) == 1.5


def test_strided_batches(bindings: Bindings) -> None:
    problem = from_bmm(5, 8, 16, 32, "fp16", stride_b=0)
    solution = _solution(routine="gemm_strided_batched_ex")
    CUBLAS.load(problem, solution, None, NullDevice()).bind(OPERANDS, 0)()
    name, *arguments = bindings.calls[-1]
    del arguments[6], arguments[14]
    assert name == "gemm_strided_batched_ex"
    # A is the call's second operand, which every matrix of the batch shares.
    assert arguments == [
        4242, 0, 0, 16, 8, 32, 0xA000, 2, 16, 0, 0xB000, 2, 32, 256, 0xD000, 2, 16, 128, 5, 68, -1,
    ]  # fmt: skip


def test_arrays_of_pointers_live_as_long_as_the_launch(bindings: Bindings) -> None:
    device, problem = NullDevice(), from_bmm(3, 8, 16, 32, "fp16", stride_b=0)
    launch = CUBLAS.load(problem, _solution(routine="gemm_batched_ex"), None, device).bind(OPERANDS, 0)
    (buffer,) = device.buffers
    launch()
    name, *arguments = bindings.calls[-1]
    assert (name, arguments[7], arguments[10], arguments[14]) == (
        "gemm_batched_ex", buffer.address, buffer.address + 24, buffer.address + 48,
    )  # fmt: skip
    assert arguments[-3:] == [3, 68, -1]
    pointers = buffer.download(0, buffer.size).view(np.int64).reshape(3, 3).tolist()
    assert pointers == [
        [0xA000] * 3,
        [0xB000 + 512 * i for i in range(3)],
        [0xD000 + 256 * i for i in range(3)],
    ]
    assert buffer.address
    del launch
    assert not buffer.address, "it is freed"


def test_wide_leading_dimensions_take_the_wide_routine(bindings: Bindings) -> None:
    problem = from_blas(8, 1, 32, "fp16", lda=2**31)
    CUBLAS.load(problem, _solution(), None, NullDevice()).bind(OPERANDS, 0)()
    assert bindings.calls[-1][0] == "gemm_ex_64"


def test_a_refusal_makes_the_solution_illegal(bindings: Bindings) -> None:
    launch = CUBLAS.load(from_linear(8, 16, 32), _solution(), None, NullDevice()).bind(OPERANDS, 0)
    bindings.fault = LibraryError(15)
    with pytest.raises(IllegalSolution, match="cuBLAS gemm_ex refuses it: CUBLAS_STATUS_NOT_SUPPORTED"):
        launch()


class Driver:
    """The driver's copies, written down."""

    class CUmemorytype:
        CU_MEMORYTYPE_DEVICE = 2

    class CUDA_MEMCPY2D:  # noqa: N801  (the driver's name)
        pass

    def __init__(self) -> None:
        self.log: list[Any] = []

    def cuMemcpyDtoDAsync(self, *arguments: int) -> tuple[int]:  # noqa: N802
        self.log.append(arguments)
        return (0,)

    def cuMemcpy2DAsync(self, rows: Any, stream: int) -> tuple[int]:  # noqa: N802
        self.log.append({**vars(rows), "stream": stream})
        return (0,)


def test_c_is_copied_to_d_first(bindings: Bindings, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setattr(module, "api", lambda: driver)
    packed = from_blas(8, 4, 16, "fp32", beta=1.0)
    CUBLAS.load(packed, _solution(), None, NullDevice()).bind(OPERANDS, 0)()
    assert driver.log == [(0xD000, 0xC000, 128, 77)]
    padded = from_blas(8, 4, 16, "fp32", beta=1.0, ldc=10, ldd=12)
    CUBLAS.load(padded, _solution(), None, NullDevice()).bind(OPERANDS, 0)()
    assert driver.log[1] == {
        "srcMemoryType": 2, "dstMemoryType": 2, "srcDevice": 0xC000, "srcPitch": 40, "dstDevice": 0xD000,
        "dstPitch": 48, "WidthInBytes": 32, "Height": 4, "stream": 77,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "copies"),
    [
        ({"batch": 3}, 1),
        ({"batch": 3, "ldc": 10, "ldd": 12, "stride_c": 40, "stride_d": 48}, 1),
        ({"batch": 3, "stride_c": 40, "stride_d": 50}, 1),
        ({"batch": 3, "ldc": 9, "stride_c": 50}, 3),
        ({"batch": 3, "stride_c": 0, "stride_d": 32}, 3),
        ({"batch": 3, "stride_c": 5, "stride_d": 32}, 3),
        ({"batch": 3, "ldd": 30, "stride_d": 10}, 3),
        ({"n": 1, "ldc": 20, "ldd": 30}, 1),
        ({"n": 1, "batch": 3, "ldc": 20, "stride_c": 25, "stride_d": 8}, 1),
        ({"m": 1, "ldc": 3}, 1),
    ],
)
def test_the_plan_copies_every_element_and_nothing_else(arguments: dict[str, Any], copies: int) -> None:
    sizes = {"m": 8, "n": 4, **arguments}
    problem = from_blas(sizes.pop("m"), sizes.pop("n"), 16, "fp32", beta=1.0, **sizes)
    c, d = layouts(problem)["c"], layouts(problem)["d"]
    source = np.arange(1, c.elements + 1, dtype=np.float32)
    target, expected = (np.zeros(d.elements, np.float32) for _ in range(2))
    d.view(expected)[:] = c.view(source)
    plan = copy_plan(problem, c, d)
    for c_offset, d_offset, width, height, c_pitch, d_pitch in plan:
        assert height == 1 or min(c_pitch, d_pitch) >= width
        for row in range(height):
            start, end = (c_offset + row * c_pitch) // 4, (d_offset + row * d_pitch) // 4
            target[end : end + width // 4] = source[start : start + width // 4]
    assert np.array_equal(target, expected)
    assert len(plan) == copies
