"""torch's own calls for grouped products on the same memory: what a framework's user runs today."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from backends.environment import Environment
from backends.gpu.context import GpuContext
from backends.gpu.library import LibraryFamily, untold_partial_sums
from backends.gpu.torch_dequantise import Empty, buffers, plain_of
from backends.gpu.torch_gemm import TorchRuntime, torch_version
from backends.gpu.torch_grouped_weights import WEIGHT_CALLS, mm_to, weight_steps
from backends.gpu.torch_scaled_grouped import (
    DEQUANTISED_CALL,
    SCALED_CALLS,
    dequantised_steps,
    scaled_rule,
    scaled_steps,
)
from backends.grouping import (
    SCALED_TYPE,
    SCALED_TYPES,
    TYPES,
    gated,
    quantised_groups,
    routing_of_draw,
    scaled_blocks,
    spans_of,
)
from backends.kernels.oriented_gemm import WIDE, OrientedGemm
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Kernel, Launch
from backends.solution import Solution

#: torch._grouped_mm, and torch.mm of every group that has rows. The first that takes a problem is a user's
#: default.
CALLS = ("grouped_mm", "loop")
#: The first torch whose mm of 16-bit floats has fp32 outputs, on CUDA alone.
_FP32_OUTPUT = (2, 8)
#: The first torch with torch._grouped_mm for rows, and the architectures for which it has a kernel. On others
#: it copies the offsets to the host and runs a loop, which no graph can hold.
_GROUPED_MM, _ARCHS = (2, 8), ("sm_90", "sm_100")


class TorchGrouped(LibraryFamily):
    """torch's calls for grouped products. Parameters: call (grouped_mm | loop, torch.mm of every group that
    has rows; the host knows the counts, as it does in no model that runs as a graph). Of 8-bit floats with
    scales: scaled_grouped_mm | scaled_loop, torch._scaled_mm of every group; with ROCm dequantise_fp32_loop.
    swiglu follows as two operations, silu and a multiplication in D's type. Outputs of fp32 are those of
    torch.mm's out_dtype, so that loops alone have them, with CUDA.
    Of 4-bit weights: dequantise_grouped_mm | dequantise_loop, into a buffer by elementwise operations before
    those of 16-bit floats."""

    name = "torch-grouped"
    library = "torch"

    def __init__(self, platform: str) -> None:
        """`platform` as torch names it: CUDA or ROCm."""
        self.title = f"torch with {platform}"
        self._cuda = platform == "CUDA"

    def _calls(self, problem: GemmProblem) -> tuple[str, ...]:
        if problem.dtype_a in SCALED_TYPES:
            return SCALED_CALLS if self._cuda else (DEQUANTISED_CALL,)
        if problem.weight_only:
            return WEIGHT_CALLS if self._cuda else WEIGHT_CALLS[1:]
        return CALLS if self._cuda else CALLS[1:]

    def supports(self, problem: GemmProblem) -> bool:
        """Whether the problem is a grouped product whose output has the type of its operands (of the rows,
        beside quantised weights) or, on CUDA, fp32; of 8-bit floats on CUDA bf16."""
        if problem.dtype_a in SCALED_TYPES:
            known = problem.dtype_a == SCALED_TYPE and problem.dtype_d == "bf16"
            return problem.groups > 0 and (known or not self._cuda)
        plain = problem.groups > 0 and problem.dtype_a in TYPES
        outputs = (problem.dtype_b, "fp32") if self._cuda else (problem.dtype_b,)
        return (plain or quantised_groups(problem)) and problem.dtype_d in outputs

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """The calls that take the problem, a user's default first."""
        for call in self._calls(problem):
            solution = Solution(
                self.name, self.version, {"call": call}, environment.libraries.get(self.library)
            )
            if self.illegal(problem, solution, environment) is None:
                yield solution

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that is broken, or None: types, torch's build, the call and what it takes."""
        if not self.supports(problem):
            return f"torch has no grouped call for {problem.slug} to {problem.dtype_d}"
        if rule := self.another_build(solution, environment):
            return rule
        call, calls = solution.parameters.get("call"), self._calls(problem)
        if len(solution.parameters) != 1 or call not in calls:
            known = ", ".join(calls)
            return f"a torch-grouped solution has call, one of {known}, not {solution.parameters}"
        if call in SCALED_CALLS:
            return scaled_rule(problem, str(call), environment)
        if call in ("grouped_mm", "dequantise_grouped_mm"):
            return _grouped_mm_rule(plain_of(problem) if problem.weight_only else problem, environment)
        return _loop_rule(problem, environment)

    def missing(self, problem: GemmProblem, environment: Environment) -> str:
        """Why no call takes a grouped product: torch is not there, or the rule that the loop breaks; "" where
        one does."""
        build = environment.libraries.get(self.library)
        loop = Solution(self.name, self.version, {"call": self._calls(problem)[-1]}, build)
        return self.unavailable(environment) or self.illegal(problem, loop, environment) or ""

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: GpuContext
    ) -> Kernel:
        """The call on the device; torch's runtime on its stream is made once a process."""
        runtime = device.keep("torch", lambda: TorchRuntime(device))
        return TorchGroupedKernel(problem, str(solution.parameters["call"]), runtime)


def _loop_rule(p: GemmProblem, environment: Environment) -> str | None:
    if p.dtype_d == p.dtype_b or p.dtype_a in SCALED_TYPES:
        return None
    build = environment.libraries.get("torch")
    if torch_version(build) < _FP32_OUTPUT:
        return f"torch {build} has no mm of {p.dtype_b} to fp32; {'.'.join(map(str, _FP32_OUTPUT))} has"
    return None


def _grouped_mm_rule(p: GemmProblem, environment: Environment) -> str | None:
    if p.dtype_d != p.dtype_b:
        return f"torch._grouped_mm has outputs of {p.dtype_b}, the type of its operands, not {p.dtype_d}"
    build = environment.libraries.get("torch", "")
    if tuple(int(part) for part in re.findall(r"\d+", build)[:2]) < _GROUPED_MM:
        return f"torch {build} has no _grouped_mm of rows; {'.'.join(map(str, _GROUPED_MM))} has"
    if p.dtype_a != "bf16" or environment.arch not in _ARCHS:
        return f"torch's kernel for groups is of bf16 on {' and '.join(_ARCHS)}, not {p.dtype_a} here"
    product = OrientedGemm(p)
    if not (product.aligned("a") and product.aligned("b")) or p.stride_a * 2 % WIDE:
        return f"_grouped_mm takes rows that start at multiples of {WIDE} bytes"
    return None


class TorchGroupedKernel:
    """One of CALLS, SCALED_CALLS, DEQUANTISED_CALL or WEIGHT_CALLS for one problem."""

    workspace_bytes = 0

    def __init__(self, problem: GemmProblem, call: str, runtime: TorchRuntime) -> None:
        self._problem, self._call, self._runtime = problem, call, runtime
        self.partial_sums = untold_partial_sums(problem)
        #: Of dequantised weights: those of all experts may be gigabytes, and launches follow one another.
        self._empty: Empty | None = None

    def prepare(self) -> None:
        """Sets torch's stream and modes."""
        self._runtime.prepare(self._problem)

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """See Kernel. _grouped_mm takes no output: its result is copied to D, and the copy is timed. Loops
        are over the groups of the operands' draw."""
        p, runtime = self._problem, self._runtime
        if operands.draw:
            p = replace(p, routing=routing_of_draw(p, operands.draw))
        shapes = layouts(p)
        with runtime.guard:
            self.prepare()
            x, d, offsets = (
                runtime.tensor(shapes[name], getattr(operands, name), 1) for name in ("b", "d", "offsets")
            )
            weights = runtime.tensor(shapes["a"], operands.a, p.groups).reshape(p.groups, p.m, -1)
            tensors = {"b": x, "a": weights, "d": d, "offsets": offsets.reshape(-1)}
            if p.weight_only:
                for name in ("scale_a", "zero_a"):
                    if name in shapes:
                        stored = runtime.tensor(shapes[name], getattr(operands, name), p.groups)
                        tensors[name] = stored.reshape(p.groups, -1, shapes[name].rows)
            elif "scale_a" in shapes:
                of_a, of_b = shapes["scale_a"], shapes["scale_b"]
                rows = runtime.tensor(of_a, operands.scale_a, p.groups).reshape(p.groups, -1, of_a.rows)
                columns = runtime.tensor(of_b, operands.scale_b, 1)
                tensors["scale_a"] = rows if scaled_blocks(p) else rows.reshape(p.groups, -1)
                tensors["scale_b"] = columns if scaled_blocks(p) else columns.reshape(-1)
            steps = self._steps(runtime.torch, p, tensors)
        guard = runtime.guard

        def launch() -> None:
            with guard:
                for step in steps:
                    step()

        return launch

    def _steps(self, torch: Any, p: GemmProblem, tensors: Mapping[str, Any]) -> list[Callable[[], Any]]:
        if self._call in SCALED_CALLS:
            return scaled_steps(torch, p, self._call, tensors)
        if self._call == DEQUANTISED_CALL:
            self._empty = buffers(torch) if self._empty is None else self._empty
            return dequantised_steps(torch, p, tensors, self._empty)
        if self._call in WEIGHT_CALLS:
            self._empty = buffers(torch) if self._empty is None else self._empty
            return weight_steps(torch, p, self._call, tensors, self._empty)
        x, weights, d, offsets = (tensors[name] for name in ("b", "a", "d", "offsets"))
        if gated(p):
            return self._gated_steps(torch, p, x, weights, d, offsets)
        if self._call == "grouped_mm":
            multiply, across = torch._grouped_mm, weights.mT
            return [lambda: d.copy_(multiply(x, across, offs=offsets))]
        return _loop(torch, p, x, weights, d)

    def _gated_steps(
        self, torch: Any, p: GemmProblem, x: Any, weights: Any, d: Any, offsets: Any
    ) -> list[Callable[[], Any]]:
        """The product, then its activation as a model has it. Rows of no group are left alone, as the host
        knows how many there are."""
        rows = spans_of(p)[-1][2]
        multiply, across = torch._grouped_mm, weights.mT

        def finish(product: Any) -> None:
            gate, up = product[:rows].chunk(2, dim=-1)
            torch.mul(torch.nn.functional.silu(gate), up, out=d[:rows])

        if self._call == "grouped_mm":
            return [lambda: finish(multiply(x, across, offs=offsets))]
        product = d.new_empty((p.n, p.m))
        return [*_loop(torch, p, x, weights, product), lambda: finish(product)]


def _loop(torch: Any, p: GemmProblem, x: Any, weights: Any, out: Any) -> list[Callable[[], Any]]:
    """torch.mm of every group that has rows."""

    def of_group(left: Any, right: Any, to: Any) -> Callable[[], Any]:
        return lambda: mm_to(torch, left, right, to)

    return [of_group(x[start:end], weights[g].t(), out[start:end]) for g, start, end in spans_of(p)]
