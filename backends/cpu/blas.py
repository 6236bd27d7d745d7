"""numpy's BLAS (OpenBLAS in numpy's wheels) as baseline and candidates.

`matmul` is numpy's own call, which uses gemv for vectors; it is what numpy users run. `gemm` calls
cblas_?gemm of the same library directly, so that alpha and beta need no passes of their own. BLAS has no
routines for 16-bit and int8 operands: they are upcast, multiplied, and cast down.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from backends.cache import BinaryCache
from backends.cpu.host import HostOperands, activate, finish
from backends.environment import Environment
from backends.errors import LaunchError
from backends.grouping import ungrouped
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Kernel, Launch
from backends.solution import Solution

#: fp32 sums of int8 products are exact up to this k: 128 * 128 * 2**10 = 2**24.
EXACT_FP32_K = 2**10
_COLUMN_MAJOR = 102
_OPS = {"N": 111, "T": 112}
#: cblas symbol names: numpy's own wheels (64-bit ints), then plain ILP64 and LP64 builds.
_SYMBOLS = (("scipy_cblas_{}gemm64_", ctypes.c_int64), ("cblas_{}gemm64_", ctypes.c_int64),
            ("cblas_{}gemm", ctypes.c_int32))  # fmt: skip


@lru_cache(maxsize=1)
def _controller() -> Any:
    """The threadpoolctl controller of numpy's BLAS, or None."""
    np.ones((2, 2)) @ np.ones((2, 2))  # makes sure that the library is loaded
    found = ThreadpoolController().select(user_api="blas").lib_controllers
    ours = [lib for lib in found if "numpy" in lib.filepath]
    return next(iter(ours or found), None)


def blas_build() -> str:
    """Name, version and kernel set of numpy's BLAS, such as "openblas 0.3.31 SkylakeX"; numpy's version if
    the BLAS is unknown."""
    lib = _controller()
    if lib is None:
        return f"numpy {np.__version__}, BLAS unknown"
    info = lib.info()
    words = [info.get("internal_api"), info.get("version"), info.get("architecture")]
    return " ".join(str(word) for word in words if word)


def set_blas_threads(count: int) -> None:
    """Sets the thread count of numpy's BLAS. The setting is process-wide and only changed if it differs."""
    lib = _controller()
    if lib is not None and lib.get_num_threads() != count:
        lib.set_num_threads(count)


@lru_cache
def _cblas_gemm(letter: str) -> tuple[Any, Any] | None:
    """(cblas_?gemm, its integer type) of numpy's BLAS, or None if it exports no known name."""
    lib = _controller()
    if lib is None:
        return None
    library = ctypes.CDLL(lib.filepath)
    for pattern, integer in _SYMBOLS:
        if hasattr(library, pattern.format(letter)):
            function = getattr(library, pattern.format(letter))
            real = ctypes.c_float if letter == "s" else ctypes.c_double
            pointer = ctypes.c_void_p
            function.restype = None
            function.argtypes = [ctypes.c_int] * 3 + [integer] * 3 + [
                real, pointer, integer, pointer, integer, real, pointer, integer]  # fmt: skip
            return function, integer
    return None


def thread_counts(units: int) -> list[int]:
    """The powers of two up to `units`, and `units`, the largest first."""
    powers = [2**i for i in range(units.bit_length()) if 2**i <= units]
    return sorted({*powers, units}, reverse=True)


class LibraryKernel:
    """A library call. `make` builds a launch from operand views, operands and the workspace's address;
    `threads(count)` is called before each sample."""

    def __init__(
        self,
        problem: GemmProblem,
        threads: Callable[[int], None],
        count: int,
        make: Callable[[HostOperands, Operands, int], Launch],
        workspace_bytes: int = 0,
    ) -> None:
        self._problem, self._threads, self._count, self._make = problem, threads, count, make
        self.workspace_bytes = workspace_bytes
        self.partial_sums = 1

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """See Kernel."""
        return self._make(HostOperands.of(self._problem, operands), operands, workspace)

    def prepare(self) -> None:
        """Sets the library's thread count."""
        self._threads(self._count)


class LibraryFamily(ABC):
    """Base of the families that have no compiled binary."""

    name = ""
    compiles = False

    def unavailable(self, environment: Environment) -> str | None:
        """None, since the library is always installed unless a subclass says otherwise."""
        return None

    @abstractmethod
    def supports(self, problem: GemmProblem) -> bool:
        """See Family."""

    @abstractmethod
    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """See Family."""

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """None if solutions() lists the solution for the problem; every other solution is illegal."""
        if self.supports(problem) and solution in list(self.solutions(problem, environment)):
            return None
        return f"{solution.slug} is not among the calls that {self.name} offers for this problem"

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        """None: a library call has no binary."""
        return None

    @abstractmethod
    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None, device: object) -> Kernel:
        """See Family."""


def _plain(problem: GemmProblem) -> bool:
    return problem.scale_a == problem.scale_b == problem.scale_d == "none" and ungrouped(problem) is None


class OpenBlas(LibraryFamily):
    """fp32 and fp64 through numpy's BLAS. Parameters: routine (matmul | gemm), threads."""

    name = "openblas"

    def supports(self, problem: GemmProblem) -> bool:
        """Whether A and the compute type are both fp32 or both fp64, without scales."""
        return problem.dtype_a in ("fp32", "fp64") and problem.compute == problem.dtype_a and _plain(problem)

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """Each routine with each thread count, all cores first. `gemm` only without a batch, and only if the
        library exports cblas_?gemm."""
        build = environment.libraries.get("blas")
        routines = ["matmul"]
        if problem.batch == 1 and _cblas_gemm(_letter(problem)) is not None:
            routines.append("gemm")
        for threads in thread_counts(environment.units):
            for routine in routines:
                yield Solution(self.name, 1, {"routine": routine, "threads": threads}, build, 0, True)

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: object
    ) -> LibraryKernel:
        """The call, ready to bind."""
        gemm = solution.parameters["routine"] == "gemm"
        make = _gemm(problem) if gemm else (lambda o, _operands, _workspace: _matmul(problem, o))
        return LibraryKernel(problem, set_blas_threads, int(solution.parameters["threads"] or 1), make)


def _letter(problem: GemmProblem) -> str:
    return "s" if problem.dtype_a == "fp32" else "d"


def _matmul(problem: GemmProblem, o: HostOperands) -> Launch:
    def launch() -> None:
        np.matmul(o.left, o.right, out=o.d)
        finish(problem, o, o.d)

    return launch


def _gemm(problem: GemmProblem) -> Callable[[HostOperands, Operands, int], Launch]:
    found = _cblas_gemm(_letter(problem))
    if found is None:
        raise LaunchError("numpy's BLAS exports no cblas gemm under a known name")
    function, _ = found
    p = problem

    def make(o: HostOperands, operands: Operands, _: int) -> Launch:
        call = (
            _COLUMN_MAJOR, _OPS[p.trans_a], _OPS[p.trans_b], p.m, p.n, p.k, operands.alpha,
            operands.a, p.lda, operands.b, p.ldb, operands.beta, operands.d, p.ldd,
        )  # fmt: skip

        def launch() -> None:
            if o.c is not None:
                np.copyto(o.d, o.c)
            function(*call)
            if o.bias is not None:
                np.add(o.d, o.bias, out=o.d)
            activate(p.activation, o.d)

        return launch

    return make


class OpenBlasUpcast(LibraryFamily):
    """fp16, bf16 and int8 upcast, multiplied by numpy's BLAS, and cast down, as numpy code without a 16-bit
    library does. int8 goes through fp64 where fp32 sums would not be exact."""

    name = "openblas_upcast"

    def supports(self, problem: GemmProblem) -> bool:
        """Whether A is fp16 or bf16 computed in fp32, or int8 summed in int32 with an int32 D; without
        scales."""
        kinds = {"fp16": "fp32", "bf16": "fp32", "int8": "int32"}
        exact = problem.dtype_a != "int8" or problem.dtype_d == "int32"
        return kinds.get(problem.dtype_a) == problem.compute and exact and _plain(problem)

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """One candidate for each thread count, all cores first."""
        build = environment.libraries.get("blas")
        for threads in thread_counts(environment.units):
            yield Solution(self.name, 1, {"threads": threads}, build, 0, True)

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: object
    ) -> LibraryKernel:
        """The call, ready to bind. The upcast copies are in the workspace, so that casting is timed and
        allocating is not."""
        p = problem
        kind: Any = np.float32
        plain = p.alpha == "one" and p.beta == "zero" and p.bias is None
        if p.dtype_a == "int8" and not (p.k <= EXACT_FP32_K and plain):
            kind = np.float64
        shapes = layouts(p)
        # In the operands' own memory order, so that casts access memory sequentially.
        sides = {
            "left": (shapes["b"].copies, *((p.n, p.k) if p.trans_b == "N" else (p.k, p.n))),
            "right": (shapes["a"].copies, *((p.k, p.m) if p.trans_a == "N" else (p.m, p.k))),
            "product": (p.batch, p.n, p.m),
        }
        size = np.dtype(kind).itemsize
        bytes_of = {name: prod(shape) * size for name, shape in sides.items()}

        def make(o: HostOperands, _: Operands, workspace: int) -> Launch:
            arrays, at = {}, workspace
            for name, shape in sides.items():
                raw = (ctypes.c_char * bytes_of[name]).from_address(at)
                arrays[name] = np.frombuffer(memoryview(raw), dtype=kind).reshape(shape)
                at += bytes_of[name]
            left, right, product = (arrays[name] for name in sides)
            left = left if p.trans_b == "N" else left.swapaxes(1, 2)
            right = right if p.trans_a == "N" else right.swapaxes(1, 2)

            def launch() -> None:
                np.copyto(left, o.left)
                np.copyto(right, o.right)
                np.matmul(left, right, out=product)
                finish(p, o, product)

            return launch

        threads = int(solution.parameters["threads"] or 1)
        return LibraryKernel(p, set_blas_threads, threads, make, sum(bytes_of.values()))
