"""torch's calls for grouped products of 4-bit weights: which take a problem, and that their steps are right,
on torch's CPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.gpu.torch_grouped import TorchGrouped, TorchGroupedKernel
from backends.gpu.torch_grouped_weights import WEIGHT_CALLS
from backends.gpu.torch_weights import TorchWeights
from backends.grouping import ends_of
from backends.operands import layouts
from backends.problem import GemmProblem
from backends.solution import Solution
from tests.backends.kernels.emulator.host import H200
from tests.backends.weight_samples import mxfp4, weights
from tuners.inputs import Case
from tuners.reference import make_reference
from tuners.verify import compare

BUILD = "2.11.0+cu130"
HERE = replace(H200, libraries={**H200.libraries, "torch": BUILD})
CUDA, ROCM = TorchGrouped("CUDA"), TorchGrouped("ROCm")
GROUPS: dict[str, Any] = {"groups": 5, "routing": [0, 6, 0, 2, 1]}
PROBLEMS = {
    "uint4": weights(9, 40, 128, zero_b="uint4", scale_b="block_1x64", **GROUPS),
    "float": weights(9, 40, 128, zero_b="float", ldb=192, stride_b=192 * 40 + 64, **GROUPS),
    "shift": weights(9, 40, 128, zero_b="shift", dtype_a="fp16", **GROUPS),
    "int4": weights(9, 40, 128, "int4", scale_dtype="fp32", **GROUPS),
    "mxfp4": mxfp4(9, 40, 96, **GROUPS),
    "mxfp4 fp16": mxfp4(9, 40, 96, dtype_a="fp16", **GROUPS),
}


def calls(family: TorchGrouped, p: GemmProblem, environment: Any = HERE) -> list[object]:
    build = environment.libraries["torch"]
    return [
        call
        for call in (*WEIGHT_CALLS, "grouped_mm", "loop")
        if family.illegal(p, Solution(family.name, 1, {"call": call}, build), environment) is None
    ]


def test_which_calls_take_a_problem() -> None:
    both = ["dequantise_grouped_mm", "dequantise_loop"]
    for name in ("uint4", "float", "int4", "mxfp4"):
        assert calls(CUDA, PROBLEMS[name]) == both, name
    assert calls(CUDA, PROBLEMS["mxfp4 fp16"]) == both[1:], "torch's kernel for groups is of bf16"
    assert calls(CUDA, PROBLEMS["mxfp4"], replace(HERE, arch="sm_89")) == both[1:]
    assert calls(ROCM, PROBLEMS["mxfp4"]) == both[1:]
    fp32 = replace(PROBLEMS["mxfp4"], dtype_d="fp32", dtype_c="fp32")
    assert calls(CUDA, fp32) == both[1:], "_grouped_mm has outputs of its operands' type"
    older = "2.7.1+cu126"
    assert calls(CUDA, fp32, replace(HERE, libraries={"torch": older})) == []
    assert calls(ROCM, fp32) == []
    assert not TorchWeights("CUDA").supports(PROBLEMS["mxfp4"])


class Stub:
    """torch with a grouped product of fp16 and fp32 too, whatever its version."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def _grouped_mm(self, x: Any, weights: Any, offs: Any) -> Any:
        starts = [0, *offs.tolist()]
        parts = [x[a:b] @ weights[g] for g, (a, b) in enumerate(pairwise(starts))]
        return self._torch.cat(parts)


@pytest.mark.torch
@pytest.mark.parametrize("call", WEIGHT_CALLS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_what_they_run_is_right(name: str, call: str) -> None:
    run(PROBLEMS[name], call)


@pytest.mark.torch
@pytest.mark.parametrize("name", PROBLEMS)
def test_sums_to_fp32_are_not_rounded(name: str, mm_to_fp32: list[str]) -> None:
    run(replace(PROBLEMS[name], dtype_c="fp32", dtype_d="fp32"), "dequantise_loop")
    assert {called.partition(" to ")[2] for called in mm_to_fp32} == {"torch.float32"}


def run(p: GemmProblem, call: str) -> None:
    """Runs a call on torch's CPU twice and compares its output with the reference."""
    torch = pytest.importorskip("torch")
    reference, inputs = make_reference(Case(p, 3, "normal", "exact"))

    def tensor(array: Any) -> Any:
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        if array.dtype.name == "float8_e8m0fnu":
            return torch.from_numpy(array.view(np.uint8).copy())
        return torch.from_numpy(array.copy())

    given = {"b": tensor(inputs["b"][0]), "offsets": torch.from_numpy(np.array(ends_of(p)))}
    given |= {name: tensor(inputs[name]) for name in ("a", "scale_a", "zero_a") if name in layouts(p)}
    kind = torch.float32 if p.dtype_d == "fp32" else given["b"].dtype
    given["d"] = torch.full((p.n, p.m), float("nan"), dtype=kind)
    kernel = TorchGroupedKernel(p, call, SimpleNamespace())  # type: ignore[arg-type]  # not asked
    steps = kernel._steps(Stub(torch), p, given)
    for _ in range(2):  # a launch leaves nothing behind that the next one reads
        for step in steps:
            step()
    found = given["d"].float().numpy()[None]
    found = found if p.dtype_d == "fp32" else found.astype(inputs["b"].dtype)
    assert compare(reference, found).wrong == ""
