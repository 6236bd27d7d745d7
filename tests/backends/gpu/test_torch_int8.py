"""torch's int8 product with scales: which problems, and the sums scaled in one pass (on the emulator)."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.cache import BinaryCache
from backends.cuda.backend import CudaBackend
from backends.gpu.torch_int8 import TorchInt8
from backends.operands import Layout, Operands
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from tests.backends.gpu.null_device import ENVIRONMENT, NullDevice, emulated
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = TorchInt8()
ROWS: dict[str, Any] = {"dtype_d": "bf16", "scale_a": "outer", "scale_b": "outer"}


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (from_linear(1, 64, 64, "int8", **ROWS), True),
        (from_linear(33, 64, 64, "int8", **ROWS, bias="bf16", activation="silu", beta=1.0), True),
        (from_linear(3, 64, 64, "int8", dtype_d="fp16", scale_a="tensor", scale_b="outer"), True),
        (from_linear(3, 64, 64, "int8"), True),
        (from_linear(17, 64, 64, "int8"), False),  # torch's own family has it
        (from_linear(3, 60, 64, "int8", **ROWS), False),
        (from_linear(3, 64, 60, "int8", **ROWS), False),
        (from_linear(3, 64, 64, "fp8_e4m3", **ROWS), False),
        (from_linear(3, 64, 128, "int8", dtype_d="bf16", scale_a="block_1x128", scale_b="none"), False),
    ],
)
def test_problems(problem: GemmProblem, expected: bool) -> None:
    assert FAMILY.supports(problem) == expected
    assert len(list(FAMILY.solutions(problem, ENVIRONMENT))) == expected


def test_rules() -> None:
    problem = from_linear(1, 64, 64, "int8", **ROWS)
    (solution,) = FAMILY.solutions(problem, ENVIRONMENT)
    assert FAMILY.illegal(problem, solution, ENVIRONMENT) is None
    refused = FAMILY.illegal(problem, replace(solution, parameters={"rows": 17}), ENVIRONMENT)
    assert refused == "torch-int8 takes no parameters, not rows"
    assert "no operands of" in (FAMILY.illegal(from_linear(1, 64, 60, "int8"), solution, ENVIRONMENT) or "")
    assert "means nothing to" in (FAMILY.illegal(problem, replace(solution, build="1.0"), ENVIRONMENT) or "")


def test_it_is_the_default_of_a_torch_user() -> None:
    backend = CudaBackend()
    scaled = backend.baselines(from_linear(8, 64, 64, "int8", **ROWS), ENVIRONMENT)
    assert scaled[0].name == "torch 2.9.1+cu128, _int_mm and scaling"
    assert scaled[0].framework
    plain = backend.baselines(from_linear(32, 64, 64, "int8"), ENVIRONMENT)
    assert plain[0].name == "torch 2.9.1+cu128"


class Tensor:
    """numpy in torch's words."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def mT(self) -> Tensor:  # noqa: N802  (torch's name)
        return Tensor(self.array.T)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def __getitem__(self, index: slice) -> Tensor:
        return Tensor(self.array[index])

    def copy_(self, other: Tensor) -> None:
        self.array[...] = other.array


class Runtime:
    """torch's runtime on the host's memory; keeps the rows of every product."""

    guard, device = nullcontext(), None

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.torch = SimpleNamespace(
            int32=np.int32, int8=np.int8, _int_mm=self._multiply,
            empty=lambda shape, dtype, device: Tensor(np.empty(shape, dtype)),
            zeros=lambda shape, dtype, device: Tensor(np.zeros(shape, dtype)),
        )  # fmt: skip

    def prepare(self, problem: GemmProblem) -> None:
        """Nothing."""

    def tensor(self, layout: Layout, address: int, batch: int) -> Tensor:
        raw = (ctypes.c_byte * layout.bytes).from_address(address)
        return Tensor(layout.view(np.ctypeslib.as_array(raw).view(np.int8))[0])

    def _multiply(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        self.rows.append(len(left.array))
        out.array[...] = left.array.astype(np.int32) @ right.array.astype(np.int32)


@pytest.mark.parametrize(
    "problem",
    [
        from_linear(1, 40, 72, "int8", **ROWS),
        from_linear(20, 40, 72, "int8", **ROWS, bias="bf16", activation="gelu", lda=80, ldd=44),
        from_linear(5, 24, 64, "int8", dtype_d="fp16", scale_a="tensor", scale_b="tensor", beta=1.0),
        from_linear(16, 8, 64, "int8", dtype_d="fp32", scale_b="outer", bias="fp32", bias_axis="m"),
        from_linear(3, 64, 64, "int8"),
    ],
    ids=lambda p: p.slug,
)
def test_it_computes_right(problem: GemmProblem, tmp_path: Path) -> None:
    device, runtime = emulated(BinaryCache(tmp_path)), Runtime()
    device.keep("torch", lambda: runtime)
    solution = Solution(FAMILY.name, FAMILY.version, {}, "2.9.1+cu128")
    kernel = FAMILY.load(problem, solution, None, device)
    assert kernel.workspace_bytes == 0
    finding = Verifier(device).check(kernel, Case(problem, 3, "normal", "exact"), runs=2)
    assert finding.wrong == ""
    assert set(runtime.rows) == {max(17, problem.n)}


def test_the_second_kernel_may_be_placed_early() -> None:
    """It waits itself for the product."""
    device, runtime = NullDevice(), Runtime()
    device.keep("torch", lambda: runtime)
    problem = from_linear(20, 40, 72, "int8", **ROWS)
    memory = np.zeros(2**14, np.int8)
    places = dict.fromkeys(("a", "b", "d", "scale_a", "scale_b"), memory.ctypes.data)
    operands = Operands.at(places, (1.0, 0.0))
    FAMILY.load(problem, Solution(FAMILY.name, 1, {}), None, device).bind(operands, 0)()
    (launched,) = device.launches
    assert (launched.entry, launched.grid, launched.block) == ("rescale", (1, 1, 1), (256, 1, 1))
    assert launched.dependent
