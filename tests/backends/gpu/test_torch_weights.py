"""torch's calls for quantised weights: which are legal, and what the dequantising one computes (by torch's
CPU operations, which are the same calls)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.cuda.backend import CudaBackend
from backends.dtypes import DTYPES
from backends.gpu.torch_dequantise import dequantising, plain_of
from backends.gpu.torch_weights import TorchWeights
from backends.hip.backend import HipBackend
from backends.operands import layouts
from backends.problem import GemmProblem
from backends.quantisation import dequantised, groups_of
from backends.solution import Solution
from tests.backends.kernels.emulator.host import H200
from tests.backends.kernels.emulator.test_families import MI300X
from tests.backends.weight_samples import every_kind, fp8, mxfp4, weights
from tuners.inputs import host_inputs

CUDA, ROCM = TorchWeights("CUDA"), TorchWeights("ROCm")
HERE = replace(H200, libraries={**H200.libraries, "torch": "2.11.0+cu130"})


def calls(family: TorchWeights, problem: GemmProblem) -> list[str]:
    return [str(one.parameters["call"]) for one in family.solutions(problem, HERE)]


@pytest.mark.parametrize(
    ("problem", "wanted"),
    [
        (weights(1, 64, 1024, zero_b="eight"), ["int4pack", "dequantise"]),
        (weights(1, 64, 1024, "int4", scale_b="block_1x32"), ["int4pack", "dequantise"]),
        (weights(1, 64, 1024, zero_b="shift"), ["int4pack", "dequantise"]),
        (weights(1, 64, 1024, zero_b="uint4"), ["dequantise"]),
        (weights(1, 64, 1024, zero_b="eight", dtype_a="fp16"), ["dequantise"]),
        (weights(1, 64, 1024, zero_b="eight", scale_dtype="fp32"), ["dequantise"]),
        (weights(1, 60, 1024, zero_b="eight"), ["dequantise"]),
        (weights(1, 64, 1024, zero_b="eight", bias="bf16"), ["dequantise"]),
        (weights(1, 64, 1024, zero_b="eight", ldb=1040), ["dequantise"]),
        (weights(1, 64, 1024, "int8", scale_b="outer"), ["int8pack", "dequantise"]),
        (weights(1, 64, 1024, "int8"), ["dequantise"]),
        (weights(1, 64, 1024, dtype_d="fp32"), []),
        (mxfp4(1, 64, 1024), ["dequantise"]),
        (fp8(1, 64, 1024), ["dequantise"]),
        (fp8(1, 300, 1024, scale_b="block_128x128", scale_dtype="fp32"), ["dequantise"]),
        (mxfp4(1, 64, 1024, dtype_a="fp16", bias="fp16"), ["dequantise"]),
    ],
)
def test_the_calls_that_take_a_problem(problem: GemmProblem, wanted: list[str]) -> None:
    assert calls(CUDA, problem) == wanted
    assert calls(ROCM, problem) == [call for call in wanted if call == "dequantise"]


def test_what_is_refused_says_why() -> None:
    build = HERE.libraries["torch"]

    def rule(problem: GemmProblem, **parameters: Any) -> str:
        return str(CUDA.illegal(problem, Solution("torch-weights", 1, parameters, build), HERE))

    assert "would be rounded" in rule(weights(1, 64, 1024, zero_b="uint4"), call="int4pack")
    assert "one of int4pack, int8pack, dequantise" in rule(weights(1, 64, 1024), call="mm")
    assert "int8pack takes weights of int8" in rule(weights(1, 64, 1024), call="int8pack")
    assert "takes no padded rows" in rule(weights(2, 64, 1024, lda=1032), call="int4pack")
    assert "no call for" in rule(weights(1, 64, 1024, dtype_d="fp32"), call="dequantise")


def test_the_default_is_what_a_torch_user_runs() -> None:
    found = CudaBackend().baselines(weights(1, 64, 1024, zero_b="eight"), HERE)
    assert [one.name.split(", ")[1] for one in found] == ["int4pack", "dequantise"]
    assert all(one.framework for one in found)
    there = replace(MI300X, libraries={**MI300X.libraries, "torch": "2.11.0+rocm7.0"})
    names = [one.name for one in HipBackend().baselines(weights(1, 64, 1024, zero_b="eight"), there)]
    assert names == ["torch 2.11.0+rocm7.0, dequantise"]


def test_prepacked_weights_have_the_same_calls_and_default() -> None:
    """torch packs beforehand for stored weights, too; what is multiplied after dequantising is plain."""
    for p in every_kind(1, 64, 1024):
        packed = replace(p, prepacked=True)
        assert calls(CUDA, packed) == calls(CUDA, p)
        names = [[one.name for one in CudaBackend().baselines(one, HERE)] for one in (p, packed)]
        assert names[0] == names[1] != []
        assert plain_of(packed) == plain_of(p)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_dequantising_is_right(kind: str) -> None:
    torch = pytest.importorskip("torch")

    def tensor(array: Any) -> Any:
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        if array.dtype.name == "float8_e8m0fnu":
            return torch.from_numpy(array.view(np.uint8).copy())
        if array.dtype.name == "float8_e4m3fn":
            return torch.from_numpy(array.view(np.uint8).copy()).view(torch.float8_e4m3fn)
        return torch.from_numpy(array.copy())

    blocks = fp8(2, 300, 512, dtype_a=kind, scale_dtype="fp32", scale_b="block_128x128")
    for p in [*every_kind(2, 40, 512, dtype_a=kind, scale_dtype=kind), blocks]:
        inputs = host_inputs(p, 3, "normal")
        tensors = {name: tensor(inputs[name][0]) for name in layouts(p) if name != "d"}
        buffer, steps = dequantising(torch, p, tensors)
        for _ in range(2):  # a launch leaves nothing behind that the next one reads
            for step in steps:
                step()
        zeros = inputs["zero_a"][0] if "zero_a" in inputs else None
        want = dequantised(p, inputs["a"][0], inputs["scale_a"][0].reshape(-1, groups_of(p)), zeros)
        off = np.abs(buffer.float().numpy() - want)
        unit = DTYPES[kind].unit_roundoff
        assert np.all(off <= 2.1 * unit * np.abs(want) + 1e-30), (p.dtype_a, p.zero_a, p.scale_a)
        assert not p.mx or not off.any(), "numbers of MXFP4 have two bits"
