"""torch's calls for grouped products of 8-bit floats with scales: which take a problem, and that what they
run is right, on torch for CPUs. Calls that it lacks there are stood in for, with what a GPU's asks of its
operands."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from backends.cuda.backend import CudaBackend
from backends.environment import Environment
from backends.errors import UnsupportedProblem
from backends.gpu.torch_grouped import TorchGrouped, TorchGroupedKernel
from backends.gpu.torch_scaled_grouped import DEQUANTISED_CALL, SCALED_CALLS
from backends.grouping import spans_of
from backends.hip.backend import HipBackend
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from tuners.inputs import Case
from tuners.reference import make_reference
from tuners.verify import compare

CUDA, ROCM = TorchGrouped("CUDA"), TorchGrouped("ROCm")
BUILD = "2.11.0+cu130"
HERE = Environment("cuda", "sm_90", "NVIDIA H100", 132, 2**36, "GPU-1", libraries={"torch": BUILD})
BLOCKS: dict[str, Any] = {"scale_a": "block_1x128", "scale_b": "block_128x128"}
ROWS: dict[str, Any] = {"scale_a": "outer", "scale_b": "outer"}


def fp8(m: int, n: int, k: int, scales: dict[str, Any], **more: Any) -> GemmProblem:
    return from_linear(m, n, k, "fp8_e4m3", **{"groups": 4, "routing": [0, m - 4, 0, 4], **scales, **more})


def calls(family: TorchGrouped, problem: GemmProblem, environment: Environment = HERE) -> list[object]:
    return [one.parameters["call"] for one in family.solutions(problem, environment)]


def test_which_calls_take_a_problem() -> None:
    """The default comes first: the call for rows, and for blocks, which it does not take, a loop."""
    blocks, rows = fp8(9, 256, 512, BLOCKS), fp8(9, 48, 80, ROWS)
    assert calls(CUDA, rows) == list(SCALED_CALLS)
    assert calls(CUDA, blocks) == ["scaled_loop"]
    fnuz = from_linear(9, 256, 400, "fp8_e4m3_fnuz", groups=4, dtype_d="fp32", **BLOCKS)
    assert calls(ROCM, blocks) == calls(ROCM, rows) == calls(ROCM, fnuz) == [DEQUANTISED_CALL]
    assert calls(CUDA, fnuz) == []
    assert calls(CUDA, fp8(9, 256, 640, BLOCKS)) == ["scaled_loop"], "scales of 20 bytes are padded"
    assert calls(CUDA, fp8(9, 256, 384, BLOCKS)) == ["scaled_loop"]
    assert calls(CUDA, fp8(9, 256, 656, BLOCKS)) == []
    assert calls(CUDA, fp8(9, 256, 512, BLOCKS, ldd=320)) == [], "out= is packed"
    assert calls(CUDA, fp8(9, 48, 80, ROWS, ldd=64)) == ["scaled_grouped_mm"]
    for other in ({"dtype_d": "fp32"}, {"dtype_d": "fp16"}):
        assert (
            calls(CUDA, fp8(9, 256, 512, BLOCKS, **other)) == calls(CUDA, fp8(9, 48, 80, ROWS, **other)) == []
        )
    assert calls(CUDA, rows, replace(HERE, arch="sm_89")) == ["scaled_loop"]
    old = replace(HERE, libraries={"torch": "2.7.1+cu126"})
    assert calls(CUDA, rows, old) == ["scaled_loop"]
    assert calls(CUDA, blocks, old) == []


def test_what_is_illegal() -> None:
    def rule(call: str, problem: GemmProblem) -> str:
        return str(CUDA.illegal(problem, Solution("torch-grouped", 1, {"call": call}, BUILD), HERE))

    blocks = fp8(9, 256, 512, BLOCKS)
    assert "not of blocks" in rule("scaled_grouped_mm", blocks)
    assert "one of scaled_grouped_mm, scaled_loop" in rule("grouped_mm", blocks)
    assert "one of grouped_mm, loop" in rule("scaled_loop", from_linear(9, 24, 40, "bf16", groups=4))
    assert "multiples of 16" in rule("scaled_grouped_mm", fp8(9, 40, 80, ROWS))
    assert "no call" in rule("scaled_loop", fp8(9, 256, 656, BLOCKS))


def test_the_default_is_the_first_baseline() -> None:
    for problem, first in (
        (fp8(9, 256, 512, BLOCKS), "scaled_loop"),
        (fp8(9, 48, 80, ROWS), "scaled_grouped_mm"),
    ):
        found = CudaBackend().baselines(problem, HERE)
        assert (found[0].solution.parameters["call"], found[0].framework) == (first, True)
    amd = Environment(
        "hip", "gfx942", "AMD MI300X", 304, 2**37, "GPU-2", libraries={"torch": "2.9.1+rocm7.0"}
    )
    (default,) = HipBackend().baselines(fp8(9, 48, 80, ROWS), amd)
    assert (default.solution.parameters["call"], default.framework) == (DEQUANTISED_CALL, True)


@pytest.mark.parametrize("backend", [CudaBackend(), HipBackend()], ids=["cuda", "hip"])
def test_without_any_baseline_a_problem_is_refused(backend: Any) -> None:
    """There is nothing that a kernel could be faster than."""
    bare = replace(HERE, vendor=backend.name, libraries={"nvrtc": "13.0"})
    with pytest.raises(UnsupportedProblem):
        backend.baselines(fp8(9, 256, 512, BLOCKS), bare)


class GpuCalls:
    """torch, with what its scaled calls do on a GPU by their definition."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.log = torch, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.torch, name)

    def _scaled_mm(
        self, left: Any, right: Any, of_left: Any, of_right: Any, bias: Any, *, out_dtype: Any,
        use_fast_accum: bool, out: Any,
    ) -> None:  # fmt: skip
        assert (bias, use_fast_accum, out.dtype, out.is_contiguous()) == (None, False, out_dtype, True)
        assert left.stride(1) == right.stride(0) == 1, "row-major by column-major"
        self.log.append("scaled_mm")
        left, right = left.double(), right.double()
        if of_left.shape[1] == 1:
            assert (of_left.shape[0], of_right.shape) == (left.shape[0], (1, right.shape[1]))
            out.copy_(left @ right * of_left * of_right)
            return
        assert of_right.shape == (right.shape[0] // 128, right.shape[1] // 128), "not padded"
        out.copy_(self._of_blocks(left, right, of_left, of_right))

    def _of_blocks(self, left: Any, right: Any, of_left: Any, of_right: Any) -> Any:
        assert left.shape[0] % 8 == 0, "what cuBLASLt takes"
        assert of_left.stride() == (1, left.shape[0]), "contiguous along the rows"
        assert (of_right.stride(0), of_right.stride(1) % 4) == (1, 0), "columns of whole 16 bytes"
        along_k = left.shape[1] // 128
        assert (of_left.shape[1], of_right.shape[0]) in ((along_k, along_k), (along_k, -(-along_k // 4) * 4))
        of_columns = of_right[:along_k].repeat_interleave(128, 0).repeat_interleave(128, 1)
        return (left.double() * of_left.repeat_interleave(128, 1)) @ (right.double() * of_columns)

    @property
    def nn(self) -> Any:
        def scaled_mm(
            left: Any, right: Any, of_left: Any, left_mode: str, of_right: Any, right_mode: str, *,
            output_dtype: Any,
        ) -> Any:  # fmt: skip
            assert (left_mode, right_mode) == ("1x128", "128x128")
            self.log.append("scaled_mm")
            return self._of_blocks(left, right, of_left, of_right).to(output_dtype)

        modes = SimpleNamespace(BlockWise1x128="1x128", BlockWise128x128="128x128")
        return SimpleNamespace(functional=SimpleNamespace(scaled_mm=scaled_mm, ScalingType=modes))

    def _scaled_grouped_mm(
        self, x: Any, weights: Any, of_x: Any, of_w: Any, offs: Any, out_dtype: Any
    ) -> Any:
        assert (of_x.shape, of_w.shape) == ((x.shape[0],), (weights.shape[0], weights.shape[2]))
        self.log.append("scaled_grouped_mm")
        out = self.torch.empty((x.shape[0], weights.shape[2]), dtype=out_dtype)
        for group, (start, end) in enumerate(zip([0, *offs.tolist()[:-1]], offs.tolist(), strict=True)):
            sums = x[start:end].double() @ weights[group].double()
            out[start:end] = (sums * of_x[start:end, None] * of_w[group][None]).to(out_dtype)
        return out


@pytest.mark.torch
@pytest.mark.parametrize("call", SCALED_CALLS)
@pytest.mark.parametrize("distribution", ["normal", "uniform", "integers"])
def test_what_they_run_is_right(call: str, distribution: str) -> None:
    torch = pytest.importorskip("torch")
    problems = [
        fp8(21, 128, 512, BLOCKS), fp8(26, 256, 640, BLOCKS, routing=[1, 8, 0, 17]), fp8(21, 48, 256, ROWS),
        fp8(3, 256, 512, BLOCKS, routing=[0, 1, 0, 2]),
    ]  # fmt: skip
    taken = [one for one in problems if call in calls(CUDA, one)]
    assert taken
    for problem in taken:
        reference, inputs = make_reference(Case(problem, 3, distribution, "exact"))

        def tensor(name: str) -> Any:
            raw = np.ascontiguousarray(inputs[name])  # noqa: B023  # used in this round alone
            found = torch.from_numpy(raw.view(np.uint8) if raw.itemsize == 1 else raw)
            return found.view(torch.float8_e4m3fn) if raw.itemsize == 1 else found

        rows = problem.scale_a == "outer"
        given = {
            "a": tensor("a"), "b": tensor("b")[0], "offsets": tensor("offsets").reshape(-1),
            "scale_a": tensor("scale_a")[:, 0] if rows else tensor("scale_a"),
            "scale_b": tensor("scale_b").reshape(-1) if rows else tensor("scale_b")[0],
            "d": torch.full((problem.n, problem.m), float("nan"), dtype=torch.bfloat16),
        }  # fmt: skip
        fake = GpuCalls(torch)
        kernel = TorchGroupedKernel(problem, call, None)  # type: ignore[arg-type]  # the device is not asked
        for step in kernel._steps(fake, problem, given):
            step()
        expected = {
            "scaled_loop": ["scaled_mm"] * len(spans_of(problem)),
            "scaled_grouped_mm": ["scaled_grouped_mm"],
        }
        assert fake.log == expected.get(call, [])
        assert compare(reference, given["d"].float().numpy()[None]).wrong == "", problem.slug


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["fp8_e4m3", "fp8_e4m3_fnuz"])
def test_what_rocm_runs_is_right(kind: str) -> None:
    """Where blocks are not whole, too, and for launches that share their buffers."""
    torch = pytest.importorskip("torch")
    of_torch = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e4m3_fnuz": torch.float8_e4m3fnuz}[kind]
    for scales in (BLOCKS, ROWS):
        problem = from_linear(21, 150, 400, kind, groups=4, routing=[0, 17, 0, 4], dtype_d="bf16", **scales)
        reference, inputs = make_reference(Case(problem, 3, "normal", "exact"))
        raw = {name: np.ascontiguousarray(one) for name, one in inputs.items()}
        a, b = (torch.from_numpy(raw[name].view(np.uint8)).view(of_torch) for name in "ab")
        of_w, of_x = (torch.from_numpy(raw[name]) for name in ("scale_a", "scale_b"))
        rows = scales is ROWS
        given = {
            "a": a, "b": b[0], "offsets": torch.from_numpy(raw["offsets"]).reshape(-1),
            "scale_a": of_w[:, 0] if rows else of_w, "scale_b": of_x.reshape(-1) if rows else of_x[0],
            "d": torch.full((problem.n, problem.m), float("nan"), dtype=torch.bfloat16),
        }  # fmt: skip
        kernel = TorchGroupedKernel(problem, DEQUANTISED_CALL, None)  # type: ignore[arg-type]
        steps = kernel._steps(torch, problem, given)
        for step in (*steps, *steps):
            step()
        assert compare(reference, given["d"].float().numpy()[None]).wrong == "", problem.slug
