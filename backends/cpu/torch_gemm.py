"""torch's CPU GEMM (oneDNN, MKL), if torch is installed: called as torch's users call it."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from backends.cpu.blas import LibraryFamily, LibraryKernel, thread_counts
from backends.cpu.host import HostOperands
from backends.environment import Environment
from backends.grouping import ungrouped
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.protocol import Launch
from backends.solution import Solution


def torch_build() -> str | None:
    """The installed torch's version, without importing it; None if torch is not installed."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def import_torch() -> Any:
    """torch. Takes seconds: only the process that owns the device imports it."""
    import torch  # noqa: PLC0415

    return torch


def set_torch_threads(count: int) -> None:
    """Sets torch's thread count, where it differs."""
    torch = import_torch()
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


class TorchMatmul(LibraryFamily):
    """torch.matmul, addmm, baddbmm or _int_mm, with F.linear's bias fused where torch fuses it.
    Parameters: threads."""

    name = "torch"

    def unavailable(self, environment: Environment) -> str | None:
        """None if the environment has torch, else a message that it is not installed."""
        return None if environment.libraries.get("torch") else "torch is not installed"

    def supports(self, problem: GemmProblem) -> bool:
        """Whether torch has a CPU call: fp32, fp64, fp16 or bf16 with A, C, D and the bias of one type, or a
        plain int8 GEMM into a packed int32 D; no scales."""
        p = problem
        if ungrouped(p):
            return False
        if p.scale_a != "none" or p.scale_b != "none" or p.scale_d != "none":
            return False
        if p.dtype_a == "int8":  # torch._int_mm takes no scalars, no bias, no batch and no padded output
            plain = p.alpha == "one" and p.beta == "zero" and p.epilogue == "none"
            return p.dtype_d == "int32" and plain and p.batch == 1 and p.ldd == p.m
        computes = {"fp32": "fp32", "fp64": "fp64", "fp16": "fp32", "bf16": "fp32"}
        one_type = p.dtype_d == p.dtype_a == p.dtype_c and p.bias in (None, p.dtype_d)
        return computes.get(p.dtype_a) == p.compute and one_type

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """One candidate for each thread count, all cores first."""
        build = environment.libraries.get("torch")
        for threads in thread_counts(environment.units):
            yield Solution(self.name, 1, {"threads": threads}, build, 0, None)

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: object
    ) -> LibraryKernel:
        """The call, ready to bind."""

        def make(o: HostOperands, _operands: Operands, _workspace: int) -> Launch:
            return _launch(import_torch(), problem, o)

        return LibraryKernel(problem, set_torch_threads, int(solution.parameters["threads"] or 1), make)


def tensor(torch: Any, array: Any) -> Any:
    """A tensor that shares the array's memory. bf16 is passed as int16, which numpy and torch both have."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _activate(torch: Any, activation: str, d: Any) -> None:
    functional = torch.nn.functional
    if activation == "relu":
        functional.relu(d, inplace=True)
    elif activation == "gelu":
        d.copy_(functional.gelu(d, approximate="tanh"))
    elif activation == "silu":
        functional.silu(d, inplace=True)


def _launch(torch: Any, p: GemmProblem, o: HostOperands) -> Launch:
    batched = p.batch > 1

    def shaped(array: Any) -> Any:
        found = tensor(torch, array)
        return found.expand(p.batch, -1, -1) if batched else found[0]

    left, right, d = shaped(o.left), shaped(o.right), shaped(o.d)
    c = None if o.c is None else shaped(o.c)
    bias = None if o.bias is None else shaped(o.bias)
    addmm = torch.baddbmm if batched else torch.addmm
    fused = c if c is not None else bias
    beta = o.beta if c is not None else 1.0

    def launch() -> None:
        with torch.inference_mode():
            if p.dtype_a == "int8":
                torch._int_mm(left, right, out=d)
            elif fused is None:
                torch.matmul(left, right, out=d)
                if o.alpha != 1.0:
                    d.mul_(o.alpha)
            else:
                addmm(fused, left, right, beta=beta, alpha=o.alpha, out=d)
                if c is not None and bias is not None:
                    d.add_(bias)
            _activate(torch, p.activation, d)

    return launch
