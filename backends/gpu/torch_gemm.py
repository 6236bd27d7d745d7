"""torch's own GEMM calls on the same memory: what a framework's user runs today, on CUDA and on ROCm builds.

Only the process that owns the device imports torch (it takes seconds). Tensors alias the operands' addresses,
and every call writes to `out`, so that nothing is allocated during a graph capture. A ROCm build of torch has
the same Python interface: its devices are called cuda, and hipBLASLt or rocBLAS runs its products.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from backends.dtypes import DTYPES, is_fp8
from backends.environment import Environment
from backends.gpu.context import GpuContext
from backends.gpu.library import WORDS, LibraryFamily, call, unscaled, untold_partial_sums
from backends.grouping import ungrouped
from backends.operands import Layout, Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Launch
from backends.solution import Solution

#: gemmtune type -> (typestr that numpy and torch share, torch's type).
_TENSOR_TYPES: Mapping[str, tuple[str, str]] = {
    "fp64": ("<f8", "float64"), "fp32": ("<f4", "float32"), "fp16": ("<f2", "float16"),
    "bf16": ("<i2", "bfloat16"), "int8": ("|i1", "int8"), "int32": ("<i4", "int32"),
    "fp8_e4m3": ("|u1", "float8_e4m3fn"), "fp8_e5m2": ("|u1", "float8_e5m2"),
    "fp8_e4m3_fnuz": ("|u1", "float8_e4m3fnuz"), "fp8_e5m2_fnuz": ("|u1", "float8_e5m2fnuz"),
    "int4": ("|u1", "uint8"), "uint4": ("|u1", "uint8"), "fp4_e2m1": ("|u1", "uint8"),
    "fp8_e8m0": ("|u1", "uint8"),
}  # fmt: skip
#: 8-bit floats by the Open Compute Project's definition, and AMD's earlier one without signed zeros.
_OCP, _FNUZ = ("fp8_e4m3", "fp8_e5m2"), ("fp8_e4m3_fnuz", "fp8_e5m2_fnuz")
_E5M2 = {"fp8_e5m2", "fp8_e5m2_fnuz"}
#: (input and output, compute) of torch.mm.
_COMPUTES = {
    ("fp64", "fp64"), ("fp32", "fp32"), ("fp32", "tf32"), ("fp16", "fp32"), ("fp16", "fp16"),
    ("bf16", "fp32"),
}  # fmt: skip
#: torch.version's name of a platform -> what the local part of a version begins with.
_SUFFIXES = {"cuda": "cu", "hip": "rocm"}
#: The first torch with allow_fp16_accumulation, and the first whose scales of blocks are known to be these.
_FP16_ACCUMULATION, _SCALED_BLOCKS = (2, 7), (2, 11)
#: Elements of k that share a scale of a block, and those whose scales are 16 bytes.
_BLOCK, _WHOLE_BLOCKS = 128, 512


def torch_build(platform: str) -> str | None:
    """The installed torch's version ("2.9.1+cu128", "2.9.1+rocm7.0"), read without importing it; None where
    torch is not installed or not built for the platform ("cuda" or "hip")."""
    try:
        found = distribution("torch")
    except PackageNotFoundError:
        return None
    try:
        text = Path(str(found.locate_file("torch/version.py"))).read_text()
    except OSError:
        text = ""
    suffix = _SUFFIXES[platform]
    built = re.search(rf"^{platform}\b[^=\n]*=\s*['\"]([0-9.]+)['\"]", text, re.MULTILINE)
    if built is None:
        return found.version if f"+{suffix}" in found.version else None
    if "+" in found.version:
        return found.version
    release = built[1].split(".")[:2]
    return f"{found.version}+{suffix}{''.join(release) if platform == 'cuda' else '.'.join(release)}"


def torch_version(build: str | None) -> tuple[int, ...]:
    """(2, 11) of torch's build "2.11.0+cu130"; empty where there is none."""
    return tuple(int(part) for part in re.findall(r"\d+", build or "")[:2])


class TorchMatmul(LibraryFamily):
    """torch.mm, addmm, bmm and baddbmm as F.linear calls them (its bias and relu or gelu fused where torch
    fuses them), torch._int_mm and torch._scaled_mm. No parameters."""

    name = "torch"
    library = "torch"

    def __init__(self, platform: str) -> None:
        """`platform` as torch names it: CUDA or ROCm."""
        self.title = f"torch with {platform}"
        self._fp8 = _OCP if platform == "CUDA" else (*_OCP, *_FNUZ)

    def supports(self, problem: GemmProblem) -> bool:
        """Whether torch has a call for the types, the bias and the scales (of fp8 alone)."""
        p = problem
        if ungrouped(p):
            return False
        if p.bias not in (None, p.dtype_d) or p.dtype_c != p.dtype_d:
            return False
        if is_fp8(DTYPES[p.dtype_a]):
            return _scaled_mm_takes(p, self._fp8)
        if not unscaled(p):
            return False
        if p.dtype_a == "int8":
            return _int_mm_takes(p)
        return p.dtype_d == p.dtype_a and (p.dtype_a, p.compute) in _COMPUTES

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """The one candidate, where it is legal."""
        solution = Solution(self.name, self.version, {}, environment.libraries.get(self.library))
        if self.illegal(problem, solution, environment) is None:
            yield solution

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that is broken, or None: types, torch's build, no parameters, and fp16 sums from torch 2.7
        on only."""
        if not self.supports(problem):
            return f"torch has no call for {problem.slug} ({problem.dtype_a} -> {problem.dtype_d})"
        if rule := self.another_build(solution, environment):
            return rule
        if solution.parameters:
            return f"torch takes no parameters, not {', '.join(solution.parameters)}"
        build = environment.libraries.get(self.library)
        if problem.compute == "fp16" and torch_version(build) < _FP16_ACCUMULATION:
            return f"torch {build} cannot accumulate in fp16; 2.7 can"
        if _in_blocks(problem):
            if not environment.arch.startswith("sm_90"):
                return f"torch has scales of blocks on sm_90 alone, not on {environment.arch}"
            if torch_version(build) < _SCALED_BLOCKS:
                return f"torch {build} is not known to have scales of blocks; 2.11 has them"
        return None

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: GpuContext
    ) -> TorchKernel:
        """The call on the device; torch's runtime on its stream is made once a process."""
        runtime = device.keep("torch", lambda: TorchRuntime(device))
        return TorchKernel(problem, device, runtime)


def _int_mm_takes(p: GemmProblem) -> bool:
    """torch._int_mm: more than 16 rows of the call, its k and columns multiples of 8, a packed output."""
    shaped = p.n > 16 and p.k % 8 == 0 and p.m % 8 == 0 and p.ldd == p.m and p.batch == 1
    return shaped and p.dtype_d == "int32" and p.alpha == "one" and p.beta == "zero" and p.epilogue == "none"


def _scaled_mm_takes(p: GemmProblem, known: Sequence[str]) -> bool:
    """torch._scaled_mm: row-major times column-major (BLAS: TN), k and columns multiples of 16, never e5m2
    on both sides, a packed 16-bit or fp32 output; scales a tensor or, to bf16, a row and a column, or of
    blocks. C is added after it."""
    kinds = {p.dtype_a, p.dtype_b}
    both_e5m2 = len(kinds) == 1 and kinds <= _E5M2
    if not kinds <= set(known) or both_e5m2 or (p.trans_a, p.trans_b) != ("T", "N"):
        return False
    if p.k % 16 or p.m % 16 or p.batch != 1 or p.ldd != p.m or p.alpha != "one":
        return False
    if p.dtype_d not in ("bf16", "fp16", "fp32") or (p.bias and (p.bias_axis != "m" or p.dtype_d == "fp32")):
        return False
    if p.scale_d != "none" or p.scale_dtype not in (None, "fp32"):
        return False
    scales = {p.scale_a, p.scale_b}
    rows = scales == {"outer"} and p.dtype_d == "bf16"
    return scales <= {"none", "tensor"} or rows or (_in_blocks(p) and _blocks_fit(p))


def _in_blocks(p: GemmProblem) -> bool:
    """Whether 128 x 128 weights share a scale, and 128 elements of a row of the call's first operand."""
    return (p.scale_a, p.scale_b) == ("block_128x128", "block_1x128")


def _blocks_fit(p: GemmProblem) -> bool:
    """torch._scaled_mm's scales of blocks: e4m3 to bf16 without fast accumulation, and columns of scales that
    are multiples of 16 bytes."""
    kinds = (p.dtype_a, p.dtype_b, p.dtype_d) == ("fp8_e4m3", "fp8_e4m3", "bf16")
    return kinds and p.bias is None and not p.fast_accumulation and p.k % _WHOLE_BLOCKS == 0


def import_torch() -> Any:
    """torch. Takes seconds: only the process that owns the device pays them. A TunableOp that is switched on
    would tune itself, write files, and be no default: it stays off."""
    for name in [name for name in os.environ if name.startswith("PYTORCH_TUNABLEOP_")]:
        del os.environ[name]
    import torch  # noqa: PLC0415  (optional)

    return torch


class TorchRuntime:
    """torch made ready in this process: its current stream is ours, gradients are off."""

    def __init__(self, device: GpuContext) -> None:
        self.torch = torch = import_torch()
        self.guard = call(device, "torch", WORDS)
        with self.guard:
            self.device = torch.device("cuda", device.driver.ordinal())
            self._stream = torch.cuda.ExternalStream(device.stream, device=self.device)
            # For the process's life: entering it around each launch is time that no user pays.
            torch.set_grad_enabled(False)

    def prepare(self, problem: GemmProblem) -> None:
        """Sets the stream and the modes that the problem's compute type asks for, where they differ."""
        torch = self.torch
        with self.guard:
            if torch.cuda.current_stream(self.device) != self._stream:
                torch.cuda.set_stream(self._stream)
            matmul = torch.backends.cuda.matmul
            if problem.dtype_a == "fp32":
                if hasattr(matmul, "fp32_precision"):  # from 2.9 on, where it replaces allow_tf32
                    _set(matmul, "fp32_precision", "tf32" if problem.compute == "tf32" else "ieee")
                else:
                    _set(matmul, "allow_tf32", problem.compute == "tf32")
            if problem.dtype_a == "fp16" and hasattr(matmul, "allow_fp16_accumulation"):
                _set(matmul, "allow_fp16_accumulation", problem.compute == "fp16")

    def tensor(self, layout: Layout, address: int, batch: int) -> Any:
        """The operand as torch sees it, [columns, rows] or [batch, columns, rows]: BLAS's transpose."""
        view = _Memory(layout, address)
        typestr, kind = _TENSOR_TYPES[layout.dtype.name]
        tensor = self.torch.as_tensor(view, device=self.device)
        if typestr[1:] in ("i2", "u1"):  # formats that the interface has no name for
            tensor = tensor.view(getattr(self.torch, kind))
        return tensor.expand(batch, -1, -1) if batch > 1 else tensor[0]


def _set(owner: Any, name: str, value: object) -> None:
    if getattr(owner, name) != value:
        setattr(owner, name, value)


@dataclass(frozen=True)
class _Memory:
    """Device memory in the words of the CUDA array interface, version 3."""

    layout: Layout
    address: int

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        found, size = self.layout, self.layout.dtype.bytes
        return {
            "version": 3,
            "shape": (found.copies, found.columns, found.rows),
            "strides": (found.stride * size, found.ld * size, size),
            "typestr": _TENSOR_TYPES[found.dtype.name][0],
            "data": (self.address, False),
            "stream": None,
        }


class TorchKernel:
    """A call of torch's for one problem."""

    workspace_bytes = 0

    def __init__(self, problem: GemmProblem, device: GpuContext, runtime: TorchRuntime) -> None:
        self._problem, self._device, self._runtime = problem, device, runtime
        self.partial_sums = untold_partial_sums(problem)

    def prepare(self) -> None:
        """Sets torch's stream and the modes that the compute type asks for."""
        self._runtime.prepare(self._problem)

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """See Kernel. What torch does not fuse (alpha, a bias beside C, the activation) follows the product
        as steps of the launch."""
        p, runtime, torch = self._problem, self._runtime, self._runtime.torch
        tensors: dict[str, Any] = {}
        with runtime.guard:
            self.prepare()  # what is made here belongs to our stream too
            for name, layout in layouts(p).items():
                flat = name == "bias" or name.startswith("scale")
                tensors[name] = runtime.tensor(layout, getattr(operands, name), 1 if flat else p.batch)
        # op(B)^T and op(A)^T: their product is D's transpose, which is D as torch sees it.
        left = tensors["b"] if p.trans_b == "N" else tensors["b"].mT
        right = tensors["a"] if p.trans_a == "N" else tensors["a"].mT
        steps = [self._product(torch, left, right, tensors, operands), *_after(p, tensors, operands.beta)]
        steps += self._activation(torch, tensors["d"])
        guard = runtime.guard
        first, rest = steps[0], steps[1:]

        def launch() -> None:
            with guard:
                first()
                for step in rest:
                    step()

        return launch

    def _product(
        self, torch: Any, left: Any, right: Any, tensors: Mapping[str, Any], operands: Operands
    ) -> Callable[[], object]:
        p, d = self._problem, tensors["d"]
        if is_fp8(DTYPES[p.dtype_a]):
            return _scaled_mm(torch, p, left, right, tensors, self._runtime.device)
        if p.dtype_a == "int8":
            return lambda: torch._int_mm(left, right, out=d)
        added, beta, alpha = tensors.get("c"), operands.beta, operands.alpha
        if added is None:
            added, beta = _bias(p, tensors), 1.0
        if added is None:
            multiply = torch.bmm if p.batch > 1 else torch.mm
            return lambda: multiply(left, right, out=d)
        if self._fuses_activation():
            gelu, fused = p.activation == "gelu", torch._addmm_activation
            return lambda: fused(added, left, right, alpha=alpha, use_gelu=gelu, out=d)
        add = torch.baddbmm if p.batch > 1 else torch.addmm
        return lambda: add(added, left, right, beta=beta, alpha=alpha, out=d)

    def _fuses_activation(self) -> bool:
        """Where torch has the bias and the activation in one call; its gelu is the tanh approximation."""
        p = self._problem
        linear = p.bias is not None and p.bias_axis == "m" and p.beta == "zero" and p.batch == 1
        plain = not is_fp8(DTYPES[p.dtype_a]) and p.dtype_a != "int8"
        return linear and plain and p.activation in ("relu", "gelu")

    def _activation(self, torch: Any, d: Any) -> list[Callable[[], object]]:
        kind = self._problem.activation
        if kind == "none" or self._fuses_activation():
            return []
        # In place, by the functions below torch.nn.functional's, which has no gelu in place.
        functions: Mapping[str, Callable[[], object]] = {
            "relu": lambda: torch.relu_(d),
            "gelu": lambda: torch._C._nn.gelu_(d, approximate="tanh"),
            "silu": lambda: torch._C._nn.silu_(d),
        }
        return [functions[kind]]


def _bias(p: GemmProblem, tensors: Mapping[str, Any]) -> Any:
    """The bias in a shape that broadcasts to D's transpose: along its columns [m], or its rows [n, 1]."""
    if p.bias is None:
        return None
    flat = tensors["bias"].reshape(-1)
    return flat if p.bias_axis == "m" else flat.unsqueeze(1)


def _after(p: GemmProblem, tensors: Mapping[str, Any], beta: float) -> list[Callable[[], object]]:
    """What the multiplying call has no argument for: alpha without an addend, a bias beside C, and C of 8-bit
    floats, whose call has the bias."""
    d, steps = tensors["d"], list[Callable[[], object]]()
    if p.alpha != "one" and p.beta == "zero" and p.bias is None:
        alpha = p.scalars[0]
        steps.append(lambda: d.mul_(alpha))
    if p.beta != "zero" and is_fp8(DTYPES[p.dtype_a]):
        c = tensors["c"]
        steps.append(lambda: d.add_(c, alpha=beta))
    elif p.bias is not None and p.beta != "zero":
        bias = _bias(p, tensors)
        steps.append(lambda: d.add_(bias))
    return steps


def _scaled_mm(
    torch: Any, p: GemmProblem, left: Any, right: Any, tensors: Mapping[str, Any], device: Any
) -> Callable[[], object]:
    d, bias, multiply = tensors["d"], _bias(p, tensors), torch._scaled_mm
    one = torch.ones((), dtype=torch.float32, device=device)

    def scale(name: str, shape: tuple[int, int]) -> Any:
        if name not in tensors:
            return one
        if name == "scale_b" and _in_blocks(p):  # [m, k / 128], and contiguous along m: copied once
            return tensors[name].reshape(p.n, p.k // _BLOCK).t().contiguous().t()
        if _in_blocks(p):  # [k / 128, n / 128] of w^T
            return tensors[name].reshape(-1, p.k // _BLOCK).t()
        flat = tensors[name].reshape(-1)
        return flat.reshape(shape) if getattr(p, name) == "outer" else flat.reshape(())

    scale_left, scale_right = scale("scale_b", (-1, 1)), scale("scale_a", (1, -1))
    kind, fast = d.dtype, p.fast_accumulation

    def product() -> object:
        return multiply(
            left, right, scale_left, scale_right, bias, out_dtype=kind, use_fast_accum=fast, out=d
        )

    return product
