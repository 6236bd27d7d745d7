"""torch's calls for grouped products: which take a problem, and that what they run is right, on torch for
CPUs."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.environment import Environment
from backends.gpu.torch_grouped import TorchGrouped, TorchGroupedKernel
from backends.grouping import ends_of, routing_of_draw, spans_of
from backends.operands import Layout, Operands
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution

CUDA, ROCM = TorchGrouped("CUDA"), TorchGrouped("ROCm")
BUILD = "2.11.0+cu130"
HERE = Environment("cuda", "sm_90", "NVIDIA H100", 132, 2**36, "GPU-1", libraries={"torch": BUILD})
PROBLEM = from_linear(9, 24, 40, "bf16", groups=4, routing=[0, 5, 0, 4])


def calls(family: TorchGrouped, problem: GemmProblem, environment: Environment = HERE) -> list[object]:
    return [one.parameters["call"] for one in family.solutions(problem, environment)]


def test_which_calls_take_a_problem() -> None:
    assert calls(CUDA, PROBLEM) == ["grouped_mm", "loop"]
    assert calls(ROCM, PROBLEM) == ["loop"]
    assert calls(CUDA, from_linear(9, 24, 40, "bf16")) == []
    assert calls(CUDA, replace(PROBLEM, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16", dtype_d="fp16")) == [
        "loop"
    ]
    fp32 = from_linear(9, 24, 40, "bf16", groups=4, dtype_d="fp32")
    assert calls(CUDA, fp32) == ["loop"], "_grouped_mm has outputs of its operands' type"
    assert calls(CUDA, fp32, replace(HERE, libraries={"torch": "2.7.1+cu126"})) == []
    assert calls(ROCM, fp32) == [], "mm to fp32 is CUDA's alone"
    for k, other in ((41, {}), (40, {"ldb": 44}), (40, {"lda": 41}), (40, {"alignment": 8})):
        assert calls(CUDA, from_linear(9, 24, k, "bf16", groups=4, **other)) == ["loop"]
    assert calls(CUDA, PROBLEM, replace(HERE, arch="sm_89")) == ["loop"], "it would copy the ends to the host"
    assert calls(CUDA, PROBLEM, replace(HERE, libraries={"torch": "2.7.1+cu126"})) == ["loop"]


def test_what_is_illegal() -> None:
    def rule(parameters: dict[str, Any], build: str | None = BUILD) -> str:
        return str(CUDA.illegal(PROBLEM, Solution("torch-grouped", 1, parameters, build), HERE))

    assert "one of grouped_mm, loop" in rule({"call": "bmm"})
    assert "one of grouped_mm, loop" in rule({"call": "loop", "more": 1})
    assert "means nothing to" in rule({"call": "loop"}, "2.9")
    assert CUDA.illegal(PROBLEM, Solution("torch-grouped", 1, {"call": "loop"}, BUILD), HERE) is None


def test_why_there_is_no_default() -> None:
    fp32 = from_linear(9, 24, 40, "bf16", groups=4, dtype_d="fp32")
    assert CUDA.missing(fp32, HERE) == ""
    older = replace(HERE, libraries={"torch": "2.7.1+cu126"})
    assert CUDA.missing(fp32, older) == "torch 2.7.1+cu126 has no mm of bf16 to fp32; 2.8 has"
    assert "torch has no grouped call for" in ROCM.missing(fp32, HERE)
    scaled = from_linear(
        9, 24, 128, "fp8_e4m3", groups=4, dtype_d="fp32", scale_a="block_1x128", scale_b="block_128x128"
    )  # fmt: skip
    assert "_fp8_e4m3 to fp32" in CUDA.missing(scaled, HERE)
    assert "torch" in CUDA.missing(fp32, replace(HERE, libraries={}))


@pytest.mark.torch
@pytest.mark.parametrize("call", ["grouped_mm", "loop"])
def test_what_they_run_is_right(call: str) -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.randn(9, 40).bfloat16(), torch.randn(4, 24, 40).bfloat16()
    d, ends = torch.full((9, 24), float("nan")).bfloat16(), torch.from_numpy(np.array(ends_of(PROBLEM)))
    kernel = TorchGroupedKernel(PROBLEM, call, None)  # type: ignore[arg-type]  # the device is not asked
    for step in kernel._steps(torch, PROBLEM, {"b": x, "a": w, "d": d, "offsets": ends}):
        step()
    for group, start, end in spans_of(PROBLEM):
        assert torch.allclose(d[start:end], x[start:end] @ w[group].t(), rtol=0.02, atol=0.05)


@pytest.mark.torch
@pytest.mark.parametrize("call", ["grouped_mm", "loop"])
def test_the_activation_follows_as_operations(call: str) -> None:
    torch = pytest.importorskip("torch")
    problem = from_linear(9, 24, 40, "bf16", groups=4, routing=[0, 5, 0, 4], activation="swiglu")
    assert calls(CUDA, problem) == ["grouped_mm", "loop"]
    assert calls(ROCM, problem) == ["loop"]
    x, w = torch.randn(9, 40).bfloat16(), torch.randn(4, 24, 40).bfloat16()
    d, ends = torch.full((9, 12), float("nan")).bfloat16(), torch.from_numpy(np.array(ends_of(problem)))
    kernel = TorchGroupedKernel(problem, call, None)  # type: ignore[arg-type]  # the device is not asked
    for step in kernel._steps(torch, problem, {"b": x, "a": w, "d": d, "offsets": ends}):
        step()
    for group, start, end in spans_of(problem):
        y = x[start:end].float() @ w[group].float().t()
        wanted = torch.nn.functional.silu(y[:, :12]) * y[:, 12:]
        assert torch.allclose(d[start:end].float(), wanted, rtol=0.03, atol=0.1)


@pytest.mark.torch
@pytest.mark.parametrize("activation", ["none", "swiglu"])
def test_outputs_of_fp32_are_sums_that_are_not_rounded(activation: str, mm_to_fp32: list[str]) -> None:
    torch = pytest.importorskip("torch")
    routing = [0, 5, 0, 4]
    problem = from_linear(9, 24, 40, "bf16", groups=4, routing=routing, dtype_d="fp32", activation=activation)
    assert calls(CUDA, problem) == ["loop"]
    x, w = torch.randn(9, 40).bfloat16(), torch.randn(4, 24, 40).bfloat16()
    d = torch.full((9, 24 if activation == "none" else 12), float("nan"))
    kernel = TorchGroupedKernel(problem, "loop", None)  # type: ignore[arg-type]  # the device is not asked
    for step in kernel._steps(torch, problem, {"b": x, "a": w, "d": d, "offsets": None}):
        step()
    assert mm_to_fp32 == ["torch.bfloat16 to torch.float32"] * 2
    for group, start, end in spans_of(problem):
        wanted = x[start:end].float() @ w[group].float().t()
        if activation == "swiglu":
            wanted = torch.nn.functional.silu(wanted[:, :12]) * wanted[:, 12:]
        assert torch.allclose(d[start:end], wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize("draw", [0, 1, 3])
def test_a_loop_is_over_the_groups_of_the_operands_draw(draw: int) -> None:
    torch = pytest.importorskip("torch")
    problem = from_linear(9, 24, 40, "bf16", groups=4)
    x, w, d = torch.randn(9, 40).bfloat16(), torch.randn(4, 24, 40).bfloat16(), torch.zeros(9, 24).bfloat16()
    ends = torch.from_numpy(ends_of(problem, draw))
    at = {1: w, 2: x, 3: d, 4: ends}

    def tensor(layout: Layout, address: int, copies: int) -> Any:
        return at[address]

    runtime: Any = SimpleNamespace(
        torch=torch, guard=nullcontext(), tensor=tensor, prepare=lambda problem: None
    )
    operands = Operands.at({"a": 1, "b": 2, "d": 3, "offsets": 4}, (1.0, 0.0), draw)
    TorchGroupedKernel(problem, "loop", runtime).bind(operands, 0)()
    spans = spans_of(replace(problem, routing=routing_of_draw(problem, draw)))
    assert [end for _, _, end in spans] == sorted(set(ends.tolist()) - {0})
    for group, start, end in spans:
        assert torch.allclose(d[start:end], x[start:end] @ w[group].t(), rtol=0.02, atol=0.05)
