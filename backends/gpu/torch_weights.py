"""torch's own calls for quantised weights, and for products of MXFP4, on the same memory: what a framework's
user runs today.

Where a call wants the weights packed in a layout of its own, they are packed when the launch is bound, which
no sample times: a user packs them once, when a model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from backends.environment import Environment
from backends.gpu.context import GpuContext
from backends.gpu.library import LibraryFamily, untold_partial_sums
from backends.gpu.torch_dequantise import dequantising, dequantising_both, plain_of
from backends.gpu.torch_gemm import TorchKernel, TorchRuntime, torch_version
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Kernel, Launch
from backends.quantisation import GROUPS, group_of, groups_of
from backends.solution import Solution

#: torch._weight_int4pack_mm, torch._weight_int8pack_mm, and dequantising into a buffer before torch.mm. The
#: first that takes a problem is a user's default.
CALLS = ("int4pack", "int8pack", "dequantise")
#: The first build that has torch.float8_e8m0fnu.
_E8M0 = (2, 7)
#: k tiles that torch._convert_weight_to_int4pack interleaves, and the elements of k that it then wants whole.
_K_TILES, _WHOLE_K = 8, 128


class TorchWeights(LibraryFamily):
    """torch's calls for quantised weights and for products of MXFP4. Parameters: call (int4pack | int8pack,
    torch's kernels for weights; dequantise, into a buffer, or two, by elementwise operations, then
    torch.mm)."""

    name = "torch-weights"
    library = "torch"

    def __init__(self, platform: str) -> None:
        """`platform` as torch names it: CUDA or ROCm. (A ROCm build packs 4-bit weights another way.)"""
        self.title = f"torch with {platform}"
        self._calls = CALLS if platform == "CUDA" else CALLS[2:]

    def supports(self, problem: GemmProblem) -> bool:
        """Whether the weights are quantised, or both operands MXFP4, and torch's product of the dequantised
        ones exists."""
        p = problem
        if p.mx_product:
            return p.dtype_c == p.dtype_d and p.bias in (None, p.dtype_d)
        one_type = p.dtype_d == p.dtype_c == p.dtype_b and p.bias in (None, p.dtype_d)
        return p.weight_only and not p.groups and one_type and p.compute == "fp32"

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """The calls that take the problem, a user's default first."""
        for call in self._calls:
            solution = Solution(
                self.name, self.version, {"call": call}, environment.libraries.get(self.library)
            )
            if self.illegal(problem, solution, environment) is None:
                yield solution

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that is broken, or None: types, torch's build, the call and what it takes."""
        if not self.supports(problem):
            return f"torch has no call for {problem.slug} to {problem.dtype_d}"
        if rule := self.another_build(solution, environment):
            return rule
        call = solution.parameters.get("call")
        if len(solution.parameters) != 1 or call not in self._calls:
            known = ", ".join(self._calls)
            return f"a torch-weights solution has call, one of {known}, not {solution.parameters}"
        build = environment.libraries.get(self.library)
        if problem.mx_product and torch_version(build) < _E8M0:
            return f"torch {build} does not convert scales of e8m0; 2.7 does"
        if call == "int4pack":
            return _int4pack_rule(problem)
        return _int8pack_rule(problem) if call == "int8pack" else None

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: GpuContext
    ) -> Kernel:
        """The call on the device; torch's runtime on its stream is made once a process."""
        runtime = device.keep("torch", lambda: TorchRuntime(device))
        return TorchWeightsKernel(problem, str(solution.parameters["call"]), device, runtime)


def _plain_rule(p: GemmProblem, call: str) -> str | None:
    if p.dtype_b != "bf16":
        return f"{call} multiplies bf16, not {p.dtype_b}"
    if p.lda != p.k or (p.ldb != p.k and p.n > 1) or p.ldd != p.m:
        return f"{call} takes no padded rows"
    if (p.alpha, p.beta, p.epilogue) != ("one", "zero", "none"):
        return f"{call} has no scalars and no epilogue"
    return None


def _int4pack_rule(p: GemmProblem) -> str | None:
    """torch._weight_int4pack_mm: groups of 32, 64, 128; W = (q - 8) s + z in bf16. Zero points that this form
    cannot hold exactly are refused."""
    if rule := _plain_rule(p, "int4pack"):
        return rule
    if p.dtype_a not in ("int4", "uint4") or p.scale_a not in GROUPS or p.scale_dtype != "bf16":
        return f"int4pack takes 4-bit weights in groups with scales of bf16, not {p.dtype_a}, {p.scale_a}"
    if p.zero_a in ("uint4", "float"):
        return f"int4pack adds zero points of bf16, to which those of {p.zero_a} would be rounded"
    if p.k % _WHOLE_K or p.m % 8:
        return f"int4pack takes k in multiples of {_WHOLE_K} and rows in multiples of 8, not {p.k} and {p.m}"
    return None


def _int8pack_rule(p: GemmProblem) -> str | None:
    """torch._weight_int8pack_mm: one scale a row, of the activations' type."""
    if rule := _plain_rule(p, "int8pack"):
        return rule
    if p.dtype_a != "int8" or p.scale_a != "outer" or p.scale_dtype != p.dtype_b:
        return (
            f"int8pack takes weights of int8 with a scale of {p.dtype_b} a row, not {p.dtype_a}, {p.scale_a}"
        )
    return None


class TorchWeightsKernel:
    """One of CALLS for one problem."""

    workspace_bytes = 0

    def __init__(self, problem: GemmProblem, call: str, device: GpuContext, runtime: TorchRuntime) -> None:
        self._problem, self._call, self._device, self._runtime = problem, call, device, runtime
        self.partial_sums = untold_partial_sums(problem)

    def prepare(self) -> None:
        """Sets torch's stream and the modes of what is multiplied."""
        p = self._problem
        self._runtime.prepare(plain_of(p) if p.mx_product else p)

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """See Kernel. Packs the weights, or allocates the buffer for the dequantised ones."""
        p, runtime = self._problem, self._runtime
        with runtime.guard:
            self.prepare()
            tensors = {
                name: runtime.tensor(layout, getattr(operands, name), 1)
                for name, layout in layouts(p).items()
            }
        if self._call == "dequantise":
            return self._dequantised(tensors, operands)
        with runtime.guard:
            steps = self._int4pack(tensors) if self._call == "int4pack" else self._int8pack(tensors)
        guard, d = runtime.guard, tensors["d"]

        def launch() -> None:
            with guard:
                d.copy_(steps())

        return launch

    def _int4pack(self, tensors: dict[str, Any]) -> Callable[[], Any]:
        torch, p = self._runtime.torch, self._problem
        packed, scales_and_zeros = int4pack(torch, p, tensors)
        x, size, multiply = tensors["b"], group_of(p), torch._weight_int4pack_mm
        return lambda: multiply(x, packed, size, scales_and_zeros)

    def _int8pack(self, tensors: dict[str, Any]) -> Callable[[], Any]:
        multiply, scales = self._runtime.torch._weight_int8pack_mm, tensors["scale_a"].reshape(-1)
        x, weights = tensors["b"], tensors["a"]
        return lambda: multiply(x, weights, scales)

    def _dequantised(self, tensors: dict[str, Any], operands: Operands) -> Launch:
        p, runtime = self._problem, self._runtime
        given = operands
        with runtime.guard:
            if p.mx_product:
                weights, inputs, steps = dequantising_both(runtime.torch, p, tensors)
                given = replace(operands, a=weights.data_ptr(), b=inputs.data_ptr())
            else:
                buffer, steps = dequantising(runtime.torch, p, tensors)
                given = replace(operands, a=buffer.data_ptr())
        product = TorchKernel(plain_of(p), self._device, runtime).bind(given, 0)
        guard = runtime.guard

        def launch() -> None:
            with guard:
                for step in steps:
                    step()
            product()

        return launch


def int4pack(torch: Any, p: GemmProblem, tensors: dict[str, Any]) -> tuple[Any, Any]:
    """Weights and (scale, zero point) [groups, n, 2] as torch._weight_int4pack_mm takes them. Its packing
    wants the even element of k in the high half of a byte, and W = (q - 8) s + z."""
    bytes_of = tensors["a"]
    swapped = (bytes_of << 4) | (bytes_of >> 4)
    if p.dtype_a == "int4":
        swapped = swapped ^ 0x88
    packed = torch._convert_weight_to_int4pack(swapped.contiguous(), _K_TILES)
    scales = tensors["scale_a"].reshape(p.m, groups_of(p))
    if p.zero_a == "shift":
        zeros = tensors["zero_a"].reshape(scales.shape)
    else:  # uint4 without a zero point is q s = (q - 8) s + 8 s
        zeros = scales * (8 if (p.dtype_a, p.zero_a) == ("uint4", "none") else 0)
    return packed, torch.stack([scales.T, zeros.T], dim=-1).contiguous()
