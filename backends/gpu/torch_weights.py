"""torch's own calls for quantised weights on the same memory: what a framework's user runs today.

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
from backends.gpu.torch_gemm import TorchKernel, TorchRuntime
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Kernel, Launch
from backends.quantisation import GROUPS, MX_NAN, ZERO_ROWS, group_of, groups_of
from backends.solution import Solution

#: torch._weight_int4pack_mm, torch._weight_int8pack_mm, and dequantising into a buffer before torch.mm. The
#: first that takes a problem is a user's default.
CALLS = ("int4pack", "int8pack", "dequantise")
#: A type's name -> the bits that a 4-bit float's exponent and mantissa are shifted by, and the power of two
#: by which the number is then too small.
_FLOAT_PLACES = {"bf16": (6, 126), "fp16": (9, 14)}
#: k tiles that torch._convert_weight_to_int4pack interleaves, and the elements of k that it then wants whole.
_K_TILES, _WHOLE_K = 8, 128


class TorchWeights(LibraryFamily):
    """torch's calls for quantised weights. Parameters: call (int4pack | int8pack, torch's kernels for
    weights; dequantise, into a buffer by elementwise operations, then torch.mm)."""

    name = "torch-weights"
    library = "torch"

    def __init__(self, platform: str) -> None:
        """`platform` as torch names it: CUDA or ROCm. (A ROCm build packs 4-bit weights another way.)"""
        self.title = f"torch with {platform}"
        self._calls = CALLS if platform == "CUDA" else CALLS[2:]

    def supports(self, problem: GemmProblem) -> bool:
        """Whether the weights are quantised and torch's product of the dequantised ones exists."""
        p = problem
        one_type = p.dtype_d == p.dtype_c == p.dtype_b and p.bias in (None, p.dtype_d)
        return p.weight_only and one_type and p.compute == "fp32"

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
        """Sets torch's stream and modes."""
        self._runtime.prepare(self._problem)

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
        plain = replace(p, dtype_a=p.dtype_b, scale_a="none", scale_dtype=None, zero_a="none", lda=p.k)
        with runtime.guard:
            buffer, steps = dequantising(runtime.torch, p, tensors)
        product = TorchKernel(plain, self._device, runtime).bind(replace(operands, a=buffer.data_ptr()), 0)
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


def dequantising(torch: Any, p: GemmProblem, tensors: dict[str, Any]) -> tuple[Any, list[Callable[[], Any]]]:
    """A buffer [n, k] of the activations' type, and the operations that fill it with the dequantised weights,
    without allocating."""
    stored, n, k, groups = tensors["a"], p.m, p.k, groups_of(p)
    kind = tensors["b"].dtype
    if p.mx:
        return _dequantising_mxfp4(torch, p, tensors)
    buffer = torch.empty((n, k), dtype=kind, device=stored.device)
    steps: list[Callable[[], Any]] = []
    if p.dtype_a == "int8":
        steps.append(lambda: buffer.copy_(stored))
    else:
        halves = torch.empty((n, k // 2, 2), dtype=torch.uint8, device=stored.device)
        low, high, whole = halves[..., 0], halves[..., 1], halves.reshape(n, k)
        steps.append(lambda: torch.bitwise_and(stored, 15, out=low))
        steps.append(lambda: torch.bitwise_right_shift(stored, 4, out=high))
        if p.dtype_a == "int4":
            steps.append(lambda: halves.bitwise_xor_(8))
        steps.append(lambda: buffer.copy_(whole))
    by_group = buffer.reshape(n, groups, k // groups)
    scales = tensors["scale_a"].reshape(-1, groups, 1)
    if p.dtype_a == "int4" or p.zero_a in ("eight", "shift"):
        steps.append(lambda: buffer.sub_(8))
    if p.zero_a == "uint4":
        words = tensors["zero_a"].reshape(n // ZERO_ROWS, groups, 4, 1)
        shifts = torch.tensor([0, 4], dtype=torch.uint8, device=stored.device)
        places = torch.bitwise_and(torch.bitwise_right_shift(words, shifts), 15)  # [n / 8, groups, 4, 2]
        zeros = places.reshape(n // ZERO_ROWS, groups, ZERO_ROWS).transpose(1, 2).reshape(n, groups, 1)
        subtracted = zeros.to(kind)
        steps.append(lambda: by_group.sub_(subtracted))
    if p.zero_a == "float":
        subtracted = tensors["zero_a"].reshape(n, groups, 1)
        steps.append(lambda: by_group.sub_(subtracted))
    if p.zero_a == "shift":
        added, own = tensors["zero_a"].reshape(n, groups, 1).to(kind), scales.to(kind)
        steps.append(lambda: torch.addcmul(added, by_group, own, out=by_group))
    else:
        steps.append(lambda: by_group.mul_(scales))
    return buffer, steps


def _dequantising_mxfp4(
    torch: Any, p: GemmProblem, tensors: dict[str, Any]
) -> tuple[Any, list[Callable[[], Any]]]:
    """The same for MXFP4, which torch has no call for. A float's bits are shifted to where the other type has
    them, which takes fewer operations than a table."""
    stored, n, k, groups = tensors["a"], p.m, p.k, groups_of(p)
    places, power = _FLOAT_PLACES[p.dtype_b]
    halves = torch.empty((n, k // 2, 2), dtype=torch.int16, device=stored.device)
    signs = torch.empty_like(halves)
    low, high = halves[..., 0], halves[..., 1]
    buffer = halves.view(tensors["b"].dtype).reshape(n, k)
    by_group = buffer.reshape(n, groups, k // groups)
    exponents = tensors["scale_a"].reshape(n, groups, 1).to(torch.int32)
    scales = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents - 127)
    scales = torch.where(exponents == MX_NAN, float("nan"), scales)
    steps = [
        lambda: low.copy_(stored),
        lambda: torch.bitwise_right_shift(low, 4, out=high),
        lambda: torch.bitwise_left_shift(halves, 12, out=signs),
        lambda: signs.bitwise_and_(-(2**15)),
        lambda: halves.bitwise_and_(7),
        lambda: halves.bitwise_left_shift_(places),
        lambda: halves.bitwise_or_(signs),
        lambda: buffer.mul_(2.0**power),
        lambda: by_group.mul_(scales),
    ]
    return buffer, steps
