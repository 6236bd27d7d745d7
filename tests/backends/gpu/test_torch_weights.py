"""torch's calls for quantised weights: which are legal, and what the dequantising one computes (by torch's
CPU operations, which are the same calls)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.cuda.backend import CudaBackend
from backends.dtypes import DTYPES
from backends.gpu.torch_dequantise import dequantising, dequantising_both, plain_of
from backends.gpu.torch_weights import TorchWeights
from backends.hip.backend import HipBackend
from backends.operands import layouts
from backends.problem import GemmProblem
from backends.quantisation import dequantised, groups_of, mx_numbers
from backends.solution import Solution
from tests.backends.kernels.emulator.host import H200
from tests.backends.kernels.emulator.test_families import MI300X
from tests.backends.weight_samples import every_kind, fp8, mx_product, mxfp4, weights
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
        (mx_product(16, 64, 1024), ["dequantise"]),
        (mx_product(16, 64, 1024, dtype_d="fp32", bias="fp32", activation="gelu"), ["dequantise"]),
        (mx_product(16, 64, 1024, dtype_d="fp16", lda=1056), ["dequantise"]),
        (mx_product(16, 64, 1024, bias="fp32"), []),
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
    assert "int4pack multiplies bf16, not fp4_e2m1" in rule(mx_product(16, 64, 1024), call="int4pack")
    there = replace(HERE, libraries={**HERE.libraries, "torch": "2.6.0"})
    old = Solution("torch-weights", 1, {"call": "dequantise"}, "2.6.0")
    assert "does not convert scales of e8m0" in str(CUDA.illegal(mx_product(16, 64, 1024), old, there))
    assert CUDA.illegal(mxfp4(16, 64, 1024), old, there) is None


def test_the_default_is_what_a_torch_user_runs() -> None:
    found = CudaBackend().baselines(weights(1, 64, 1024, zero_b="eight"), HERE)
    assert [one.name.split(", ")[1] for one in found] == ["int4pack", "dequantise"]
    assert all(one.framework for one in found)
    there = replace(MI300X, libraries={**MI300X.libraries, "torch": "2.11.0+rocm7.0"})
    names = [one.name for one in HipBackend().baselines(weights(1, 64, 1024, zero_b="eight"), there)]
    assert names == ["torch 2.11.0+rocm7.0, dequantise"]
    both = mx_product(16, 64, 1024)
    assert [one.name for one in HipBackend().baselines(both, there)] == names
    assert [one.name for one in CudaBackend().baselines(both, HERE)] == ["torch 2.11.0+cu130, dequantise"]


def test_prepacked_weights_have_the_same_calls_and_default() -> None:
    """torch packs beforehand for stored weights, too; what is multiplied after dequantising is plain."""
    for p in every_kind(1, 64, 1024):
        packed = replace(p, prepacked=True)
        assert calls(CUDA, packed) == calls(CUDA, p)
        names = [[one.name for one in CudaBackend().baselines(one, HERE)] for one in (p, packed)]
        assert names[0] == names[1] != []
        assert plain_of(packed) == plain_of(p)


def tensor(torch: Any, array: Any) -> Any:
    """An operand as torch reads it from memory."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    if array.dtype.name == "float8_e8m0fnu":
        return torch.from_numpy(array.view(np.uint8).copy())
    if array.dtype.name == "float8_e4m3fn":
        return torch.from_numpy(array.view(np.uint8).copy()).view(torch.float8_e4m3fn)
    return torch.from_numpy(array.copy())


@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp32"])
def test_dequantising_both_operands_is_exact(kind: str) -> None:
    """Scales of activations that change from launch to launch among them, and of 2^-127 and NaN where the
    type has such numbers."""
    torch = pytest.importorskip("torch")
    p = mx_product(3, 40, 512, dtype_d=kind, alpha=2.0, beta=1.0)
    inputs = host_inputs(p, 3, "normal")
    tensors = {name: tensor(torch, inputs[name][0]) for name in ("a", "b", "scale_a", "scale_b")}
    weights_of, inputs_of, steps = dequantising_both(torch, p, tensors)
    for change in (0, 1):
        if change and kind == "fp32":
            inputs["scale_b"].view(np.uint8)[0, 1, :3] = 0, 255, 254
        elif change:
            inputs["scale_b"].view(np.uint8)[0, 1, :3] = 120, 121, 131
        tensors["scale_b"].copy_(tensor(torch, inputs["scale_b"][0]))
        for step in steps:
            step()
        for found, name in ((weights_of, "a"), (inputs_of, "b")):
            want = mx_numbers(inputs[name][0], inputs[f"scale_{name}"][0])
            assert found.dtype == getattr(torch, {"bf16": "bfloat16", "fp16": "float16"}.get(kind, "float32"))
            with np.errstate(over="ignore"):
                assert np.array_equal(
                    found.double().numpy(), want.astype(DTYPES[kind].storage), equal_nan=True
                )
    plain = plain_of(p)
    assert (plain.dtype_a, plain.dtype_b, plain.dtype_d, plain.beta) == (kind, kind, kind, "one")
    assert plain.compute == ("tf32" if kind == "fp32" else "fp32")


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_dequantising_is_right(kind: str) -> None:
    torch = pytest.importorskip("torch")

    blocks = fp8(2, 300, 512, dtype_a=kind, scale_dtype="fp32", scale_b="block_128x128")
    for p in [*every_kind(2, 40, 512, dtype_a=kind, scale_dtype=kind), blocks]:
        inputs = host_inputs(p, 3, "normal")
        tensors = {name: tensor(torch, inputs[name][0]) for name in layouts(p) if name != "d"}
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
