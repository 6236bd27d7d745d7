"""tile-wgmma on copies: which problems have them, and what is charged for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from backends.cache import BinaryCache
from backends.cuda.backend import CudaBackend
from backends.errors import IllegalSolution
from backends.gpu.compiled_family import CompiledFamily
from backends.gpu.device import GpuDevice
from backends.gpu.padded import FACTORS, buffers, copied, padded_twin
from backends.gpu.padded_family import PaddedFamily
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem, from_bmm, from_linear
from backends.solution import Solution
from backends.toolchains.nvrtc import Nvrtc
from tests.backends.gpu.null_device import NullDevice
from tests.backends.kernels.emulator.host import H200
from tuners.inputs import Case
from tuners.verify import Verifier

FAMILY = PaddedFamily("tile-wgmma-padded", 3, CompiledFamily(FAMILIES["tile-wgmma"], Nvrtc()), Nvrtc())
ODD = from_linear(301, 299, 513, "bf16")
VALUES = {"tile_m": 128, "tile_n": 64, "stages": 3, "share": 1, "share_b": 1, "splits": 1, "group": 8}


def chosen(problem: GemmProblem, **changed: Any) -> Solution:
    size = buffers(problem, FACTORS)[1]
    return Solution(FAMILY.name, FAMILY.version, {**VALUES, **changed}, None, size, True)


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        (ODD, "ab"),
        (from_linear(301, 304, 513, "bf16"), "ab"),
        (from_linear(301, 299, 513, "bf16", beta=1.0), "ab"),  # C is read element by element
        (from_linear(301, 299, 513, "bf16", lda=520), "a"),
        (from_linear(304, 304, 512, "bf16"), ""),
        (from_linear(304, 299, 512, "bf16", beta=1.0), ""),  # C and D alone are misaligned
        (from_linear(301, 299, 513, "bf16", alignment=2), ""),  # and here all addresses
    ],
)
def test_inputs_are_copied_and_nothing_else(problem: GemmProblem, names: str) -> None:
    assert copied(problem, FACTORS) == tuple(names)
    assert FAMILY.supports(problem) == bool(names)
    found = list(FAMILY.solutions(problem, H200))
    assert bool(found) == bool(names)
    if names:
        twin = padded_twin(problem, FACTORS)
        assert (twin.m, twin.ldd, twin.ldc) == (problem.m, problem.ldd, problem.ldc)
        assert {one.workspace_bytes for one in found} == {buffers(problem, FACTORS)[1]}
        assert not any(FAMILY.illegal(problem, one, H200) for one in found)


def test_candidates_are_the_familys_of_the_copies() -> None:
    twin = padded_twin(ODD, FACTORS)
    inner = [one.parameters for one in FAMILIES["tile-wgmma"].solutions(twin, H200)]
    assert [one.parameters for one in FAMILY.solutions(ODD, H200)] == inner
    near = list(FAMILY.neighbours(ODD, chosen(ODD), H200))
    assert {one.family for one in near} == {"tile-wgmma-padded"}
    assert {one.parameters["tile_n"] for one in near} == {56, 64, 72}
    assert list(FAMILY.neighbours(from_linear(304, 304, 512, "bf16"), chosen(ODD), H200)) == []


@pytest.mark.parametrize(
    ("problem", "solution", "rule"),
    [
        (from_linear(304, 304, 512, "bf16"), chosen(ODD), "neither A nor B of .* is misaligned"),
        (ODD, Solution("tile-wgmma", 2, VALUES), "none of tile-wgmma-padded"),
        (ODD, Solution("tile-wgmma-padded", 1, VALUES), "version 1 of tile-wgmma-padded is none of"),
        (ODD, chosen(ODD, tile_m=96), "tile_m must be one of"),
        (ODD, chosen(ODD, share=4, splits=4), "a cluster has 8 blocks"),
        (from_bmm(3, 33, 35, 37, "bf16"), chosen(ODD), "contiguous along k"),
        (from_linear(301, 299, 513, "fp32"), chosen(ODD), "our kernels multiply"),
    ],
)
def test_illegal_solutions_name_the_rule(problem: GemmProblem, solution: Solution, rule: str) -> None:
    said = FAMILY.illegal(problem, solution, H200)
    assert said is not None
    assert re.search(rule, said), said


def test_nothing_to_copy_is_refused() -> None:
    with pytest.raises(IllegalSolution, match=r"neither A nor B of .* is to be copied"):
        FAMILY.load(from_linear(304, 304, 512, "bf16"), chosen(ODD), None, NullDevice())


def test_both_kernels_are_compiled_once(tmp_path: Path) -> None:
    cache = BinaryCache(tmp_path)
    binary = FAMILY.compile(ODD, chosen(ODD), H200, cache)
    assert binary is not None
    known = set(tmp_path.rglob("*.cubin"))
    assert len(known) == 2, "the product's and the copies'"
    assert FAMILY.compile(ODD, chosen(ODD), H200, cache) == binary
    assert set(tmp_path.rglob("*.cubin")) == known


@pytest.mark.cuda
@pytest.mark.parametrize(
    "problem",
    [ODD, from_linear(301, 304, 513, "fp16", beta=1.0), from_linear(129, 1000, 777, "bf16", bias="bf16")],
)
def test_products_on_a_gpu(problem: GemmProblem, cache: BinaryCache) -> None:
    device = CudaBackend().open(0, cache)
    assert isinstance(device, GpuDevice)
    verifier = Verifier(device)
    for solution in list(FAMILY.solutions(problem, device.environment))[:6]:
        binary = FAMILY.compile(problem, solution, device.environment, cache)
        kernel = FAMILY.load(problem, solution, binary, device)
        assert kernel.workspace_bytes == solution.workspace_bytes
        assert verifier.check(kernel, Case(problem, 3, "normal", "exact")).wrong == ""
