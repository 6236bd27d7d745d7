"""Users' kernels on the host: a Python function on torch tensors or numpy arrays (a Triton kernel runs in
Triton's interpreter), or C++ source with an extern "C" function."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from backends.cache import BinaryCache
from backends.cpu.blas import LibraryKernel, set_blas_threads
from backends.cpu.compiler import compile_unit, find_compiler, missing
from backends.cpu.host import HostOperands
from backends.cpu.torch_gemm import import_torch, set_torch_threads, tensor, torch_build
from backends.environment import Environment
from backends.errors import LaunchError, ReadError
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.protocol import Kernel, Launch
from backends.solution import Solution
from backends.user_kernels.arguments import bound, keywords
from backends.user_kernels.family import UserFamily, source_copy
from backends.user_kernels.gemm_call import HEADERS, gemm_call
from backends.user_kernels.module import load_module
from backends.user_kernels.source import ENTRY, UserKernel


def user_family(kernel: UserKernel) -> UserFamily:
    """The kernel's family on this CPU. Raises ReadError for a language that it does not run."""
    if kernel.language == "python":
        return PythonKernel(kernel)
    if kernel.language == "c++":
        return NativeUserKernel(kernel)
    raise ReadError(
        f"{kernel.file} is CUDA source, which no CPU runs; judge it with --device cuda, or as .cpp"
    )


class PythonKernel(UserFamily):
    """A function gemm(a, b, out) of row-major views."""

    def unavailable(self, environment: Environment) -> str | None:
        """None, or that torch is missing and the function is not stated to take numpy's arrays."""
        if self.kernel.arrays == "torch" and torch_build() is None:
            return "torch is not installed, and the file does not say ARRAYS = 'numpy'"
        return None

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path:
        """The source's copy."""
        return source_copy(self.kernel, cache)

    def run(self, problem: GemmProblem, binary: Path, device: Any) -> Kernel:
        """Imports the file, once a process. Raises LaunchError."""
        function = load_module(self.kernel, binary, interpret_triton=True).function
        torch = import_torch() if self.kernel.arrays == "torch" else None

        def make(o: HostOperands, operands: Operands, _: int) -> Launch:
            def shaped(array: Any) -> Any:
                """[rows, columns], or [batch, rows, columns]."""
                if torch is not None:
                    found = tensor(torch, array)
                    return found.expand(problem.batch, -1, -1) if problem.batch > 1 else found[0]
                if problem.batch == 1:
                    return array[0]
                wide = (problem.batch, *array.shape[1:])
                return np.broadcast_to(array, wide) if array.shape != wide else array

            bias = None if o.bias is None else shaped(o.bias)
            if bias is not None and problem.batch == 1:  # a vector along the columns; a column along the rows
                bias = bias.reshape(-1) if problem.bias_axis == "m" else bias
            views = {"c": None if o.c is None else shaped(o.c), "bias": bias}
            out = shaped(o.d)
            given = keywords(problem, operands, views)

            def store(result: Any) -> None:
                if torch is None:
                    out[...] = result
                else:
                    out.copy_(result)

            return bound(self.kernel, function, shaped(o.left), shaped(o.right), out, given, store)

        # All cores, as the defaults have.
        threads = set_blas_threads if torch is None else set_torch_threads
        return LibraryKernel(problem, threads, device.environment.units, make)


class NativeUserKernel(UserFamily):
    """extern "C" int gemm(const GemmCall*), compiled by the system's C++ compiler."""

    def unavailable(self, environment: Environment) -> str | None:
        """None where there is a compiler."""
        return None if find_compiler() else missing()

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path:
        """The shared library. Raises what compile_unit() raises."""
        unit = f'#line 1 "{self.kernel.file}"\n{self.kernel.text}\n'
        return compile_unit(unit, environment.partition, cache, (f"-I{HEADERS}",))

    def run(self, problem: GemmProblem, binary: Path, device: Any) -> Kernel:
        """The library's function. Raises LaunchError."""
        try:
            function = getattr(ctypes.CDLL(str(binary)), ENTRY)
        except (OSError, AttributeError) as error:
            raise LaunchError(f'{self.kernel.file} has no extern "C" {ENTRY}: {error}') from error
        function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_int
        return _NativeCall(problem, function, self.kernel.file)


class _NativeCall:
    """The function for one problem."""

    workspace_bytes = 0
    partial_sums = 1

    def __init__(self, problem: GemmProblem, function: Any, file: str) -> None:
        self._problem, self._function, self._file = problem, function, file

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """A call with these operands; it raises LaunchError for a status other than 0."""
        call = gemm_call(self._problem, operands)
        pointer, function, file = ctypes.pointer(call), self._function, self._file

        def launch() -> None:
            status = function(pointer)
            if status:
                raise LaunchError(f"{file}: {ENTRY} returned {status}")

        return launch

    def prepare(self) -> None:
        """Does nothing."""
