"""rocBLAS as two families: every solution of rocblas_gemm_ex by its index, and the library's own choice."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from backends.environment import Environment
from backends.errors import IllegalSolution, LaunchError
from backends.gpu.context import GpuContext
from backends.gpu.library import LibraryCall, LibraryError, LibraryFamily, unscaled, untold_partial_sums
from backends.gpu.library import call as library_call
from backends.gpu.scalars import scalar
from backends.grouping import ungrouped
from backends.hip.datatypes import OPERATIONS, ROCBLAS_TYPES
from backends.hip.driver import device_count
from backends.hip.library import ROCBLAS, LibraryMissing, checked
from backends.hip.rocblas_api import (
    BY_INDEX,
    CHECK_INDEX,
    STANDARD,
    RocblasApi,
    missing_tables,
    rocblas,
)
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.protocol import Launch
from backends.solution import Solution

#: (A and B, D, compute) of rocblas_gemm_ex's table, without complex types.
_TYPES = {
    ("fp64", "fp64", "fp64"), ("fp32", "fp32", "fp32"), ("fp16", "fp16", "fp32"), ("fp16", "fp32", "fp32"),
    ("fp16", "fp16", "fp16"), ("bf16", "bf16", "fp32"), ("bf16", "fp32", "fp32"), ("int8", "int32", "int32"),
}  # fmt: skip
#: Where no limit is set: rocBLAS's own default (ROCBLAS_DEVICE_MEMORY_SIZE, 32 MiB on gfx9).
WORKSPACE_BYTES = 32 * 2**20
#: Sizes and leading dimensions are 32-bit.
_MOST = 2**31 - 1
#: Stands for an address where the library reads and writes nothing.
_SOMEWHERE = 256
#: The workspace, (address, bytes), while solutions are listed and checked, where nothing runs: what the
#: library lists, and what its check passes, depends on the workspace that the last launch left it.
_ROOMY = (_SOMEWHERE, 2**40)


def unsupported(p: GemmProblem) -> str | None:
    """The rule of rocblas_gemm_ex that a problem breaks, or None."""
    if (broken := ungrouped(p)) is not None:
        return broken
    typed = (p.dtype_a, p.dtype_d, p.compute) in _TYPES and p.dtype_c == p.dtype_d
    if not typed or p.dtype_b != p.dtype_a:
        return f"rocBLAS has no {p.dtype_a} x {p.dtype_b} -> {p.dtype_d} in {p.compute}"
    if not unscaled(p) or p.epilogue != "none":
        return f"rocBLAS has neither scales nor an epilogue, not {p.epilogue}"
    if max(p.m, p.n, p.k, p.lda, p.ldb, p.ldc, p.ldd, p.batch) > _MOST:
        return f"rocBLAS takes sizes and leading dimensions to {_MOST}"
    return None


class Library:
    """The process's rocBLAS handle on the device's stream, and the workspace that it was given."""

    def __init__(self, device: GpuContext) -> None:
        device_count()
        try:
            self.api: RocblasApi = rocblas()
        except LibraryMissing as error:
            raise LaunchError(f"rocBLAS: {error}") from error
        arch = device.environment.arch
        if (missing := missing_tables(arch)) is not None:
            raise IllegalSolution(f"rocBLAS has no kernels for {arch}: {missing}")
        self.handle = self.api.create(device.stream)
        self.workspace = (0, -1)

    def ask(self) -> None:
        """Gives the handle room for every solution: before solutions are listed or checked. Raises
        LibraryError."""
        if self.workspace != _ROOMY:
            checked(self.use(_ROOMY))

    def use(self, workspace: tuple[int, int]) -> int:
        """Gives the handle another workspace, (address, bytes): the status."""
        status = int(self.api.set_workspace(self.handle, *workspace))
        if not status:
            self.workspace = workspace
        return status


def call(device: GpuContext, what: str) -> LibraryCall:
    """A context manager for rocBLAS's calls; see backends.gpu.library.call()."""
    return library_call(device, what, ROCBLAS)


def library(device: GpuContext) -> Library:
    """The device's own."""
    with call(device, "rocblas_create_handle"):
        return device.keep("rocblas", lambda: Library(device))


class Gemm:
    """rocblas_gemm_ex, or gemm_strided_batched_ex, for one problem on some operands."""

    def __init__(self, found: Library, problem: GemmProblem, operands: Operands) -> None:
        p = problem
        self._library, self.batched = found, p.batch > 1
        self._scalars = alpha, beta = scalar(p, operands.alpha), scalar(p, operands.beta)

        def matrix(name: str, address: int) -> tuple[int, ...]:
            kind = ROCBLAS_TYPES[getattr(p, f"dtype_{name}")]
            stride = (getattr(p, f"stride_{name}"),) if self.batched else ()
            return (address, kind, getattr(p, f"ld{name}"), *stride)

        # With beta = 0 C is not read: D in its place.
        c = "c" if p.beta != "zero" else "d"
        self.arguments = (
            found.handle, OPERATIONS[p.trans_a], OPERATIONS[p.trans_b], p.m, p.n, p.k,
            ctypes.addressof(alpha), *matrix("a", operands.a), *matrix("b", operands.b),
            ctypes.addressof(beta), *matrix(c, operands.c or operands.d), *matrix("d", operands.d),
            *([p.batch] if self.batched else []), ROCBLAS_TYPES[p.compute],
        )  # fmt: skip
        self._routine = found.api.gemm_strided if self.batched else found.api.gemm_ex

    def status(self, algo: int, index: int, flags: int = 0) -> int:
        """Calls it: the status."""
        return int(self._routine(*self.arguments, algo, index, flags))

    def launch(self, algo: int, index: int, workspace: tuple[int, int], guard: LibraryCall) -> Launch:
        """A launch with a workspace, (address, bytes)."""
        found = self._library
        queue = found.api.prepared(self._routine, (*self.arguments, algo, index, 0))

        def launch(_: Any = self) -> None:
            status = found.use(workspace) if found.workspace != workspace else 0
            status = status or queue()
            if status:
                with guard:
                    raise LibraryError(status)

        return launch


#: Addresses that stand for operands where solutions are asked for: none is read.
_NOWHERE = Operands(_SOMEWHERE, _SOMEWHERE, _SOMEWHERE, _SOMEWHERE, 0, 1.0, 1.0)


class RocblasKernel:
    """A solution for one problem."""

    def __init__(
        self, device: GpuContext, found: Library, problem: GemmProblem, algo: int, index: int, size: int
    ) -> None:
        self._library, self._problem, self._algo, self._index = found, problem, algo, index
        self.workspace_bytes = size
        self.partial_sums = untold_partial_sums(problem)
        name = f"solution {index}" if algo == BY_INDEX else "its own choice"
        self._guard = call(device, f"rocblas_gemm_ex of {name}")

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """See Kernel."""
        gemm = Gemm(self._library, self._problem, operands)
        # A workspace of no bytes would be the library's own, which it allocates and frees: a capture cannot.
        given = (workspace or _SOMEWHERE, max(1, self.workspace_bytes))
        return gemm.launch(self._algo, self._index, given, self._guard)

    def prepare(self) -> None:
        """Nothing: a launch gives the handle its workspace."""


class Rocblas(LibraryFamily):
    """Parameters: solution_index, as TunableOp's results name a solution (negative ones too)."""

    name = "rocblas"
    library = "rocblas"
    title = "rocBLAS"

    def __init__(self) -> None:
        #: The problem of the last listing that the library refused, and why.
        self._refused: tuple[str, str] | None = None

    def supports(self, problem: GemmProblem) -> bool:
        """Whether rocblas_gemm_ex takes the problem's types."""
        return unsupported(problem) is None

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """None: only the library can tell, on its device (enumerate_on)."""
        return ()

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that is broken, or None, as far as it shows without a device."""
        index = solution.parameters.get("solution_index")
        if len(solution.parameters) != 1 or isinstance(index, bool) or not isinstance(index, int):
            return "a rocblas solution has one number, solution_index"
        if not index or not -(2**31) <= index < 2**31:
            return f"solution_index must be a 32-bit number other than 0, not {index}"
        return unsupported(problem) or self.another_build(solution, environment)

    def enumerate_on(
        self, problem: GemmProblem, device: GpuContext, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        """The solutions that the library lists for the problem, then those of its types that its check
        passes; by index, for the library lists each in no order. None where the library has no kernels for
        the device; notes() then says so."""
        limit = WORKSPACE_BYTES if max_workspace_bytes is None else max_workspace_bytes
        build, p = device.environment.libraries.get(self.library), problem
        try:
            with call(device, f"listing rocBLAS's solutions for {problem.slug}"):
                found = library(device)
                found.ask()
                gemm = Gemm(found, problem, _NOWHERE)
                listed = found.api.of_problem(gemm.arguments, gemm.batched)
                kinds = (ROCBLAS_TYPES[name] for name in (p.dtype_a, p.dtype_d, p.compute))
                typed = found.api.of_types(found.handle, *kinds)
                known = dict.fromkeys(index for index in sorted(listed) if index)
                known |= {
                    index: None
                    for index in sorted(typed)
                    if index and index not in known and not gemm.status(BY_INDEX, index, CHECK_INDEX)
                }
                for index in known:
                    size = _workspace(found, gemm, BY_INDEX, index)
                    if size is not None and size <= limit:
                        yield Solution(self.name, 1, {"solution_index": index}, build, size, None)
        except IllegalSolution as error:
            self._refused = (problem.id, f"no candidates from rocBLAS on {device.environment.arch}: {error}")

    def notes(self, problem: GemmProblem, environment: Environment) -> Sequence[str]:
        """Why the library listed nothing for the problem, where it refused to."""
        return (self._refused[1],) if self._refused and self._refused[0] == problem.id else ()

    def neighbours_on(
        self, problem: GemmProblem, solution: Solution, device: GpuContext, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        """None: all are listed, and an index says nothing of what is near it."""
        return iter(())

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: GpuContext
    ) -> RocblasKernel:
        """Raises IllegalSolution where the library has no such solution for the problem."""
        index = int(solution.parameters["solution_index"] or 0)
        with call(device, f"rocBLAS's solution {index} for {problem.slug}"):
            found = library(device)
            found.ask()
            gemm = Gemm(found, problem, _NOWHERE)
            status = gemm.status(BY_INDEX, index, CHECK_INDEX)
            if status:
                raise LibraryError(status)
            size = _workspace(found, gemm, BY_INDEX, index)
        if size is None:
            raise IllegalSolution(f"rocBLAS's solution {index} does not support {problem.slug}")
        return RocblasKernel(device, found, problem, BY_INDEX, index, size)


def _workspace(found: Library, gemm: Gemm, algo: int, index: int) -> int | None:
    return found.api.workspace_bytes(found.handle, lambda: gemm.status(algo, index))


class RocblasDefault(Rocblas):
    """What a program that names no solution gets: the library's own choice. No parameters."""

    name = "rocblas-default"

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that is broken, or None: no parameters, types, the library's build."""
        if solution.parameters:
            return f"{self.name} takes no parameters, not {', '.join(solution.parameters)}"
        return unsupported(problem) or self.another_build(solution, environment)

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """The one candidate."""
        return (default_solution(environment),) if self.supports(problem) else ()

    def enumerate_on(
        self, problem: GemmProblem, device: GpuContext, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        """None: solutions() has the one."""
        return iter(())

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: GpuContext
    ) -> RocblasKernel:
        """Raises IllegalSolution where the library has no solution for the problem."""
        with call(device, f"rocBLAS's own choice for {problem.slug}"):
            found = library(device)
            found.ask()
            size = _workspace(found, Gemm(found, problem, _NOWHERE), STANDARD, 0)
        if size is None:
            raise IllegalSolution(f"rocBLAS has no solution for {problem.slug}")
        return RocblasKernel(device, found, problem, STANDARD, 0, size)


def default_solution(environment: Environment) -> Solution:
    """The baseline: rocblas_gemm_ex without an index."""
    return Solution(RocblasDefault.name, 1, {}, environment.libraries.get("rocblas"), 0, None)
