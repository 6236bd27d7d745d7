"""cuBLAS's GemmEx routines: what a C++ program that links the library calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from backends.cuda.datatypes import COMPUTE_TYPES, DATA_TYPES, OPERATIONS
from backends.cuda.driver import api, check
from backends.cuda.library import call
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.errors import GemmtuneError
from backends.gpu.context import GpuContext
from backends.gpu.library import LibraryFamily, unscaled, untold_partial_sums
from backends.gpu.scalars import scalar
from backends.grouping import ungrouped
from backends.kernels.legality import capability
from backends.operands import Layout, Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Launch
from backends.solution import Parameter, Solution

#: (input, compute) -> outputs: cublasGemmEx's table, without complex types.
_TYPES = {
    ("fp64", "fp64"): ("fp64",),
    ("fp32", "fp32"): ("fp32",),
    ("fp32", "tf32"): ("fp32",),
    ("fp16", "fp32"): ("fp16", "fp32"),
    ("fp16", "fp16"): ("fp16",),
    ("bf16", "fp32"): ("bf16", "fp32"),
    ("int8", "int32"): ("int32",),
}
#: cublasGemmAlgo_t. From sm_80 on the library ignores all but the default.
DEFAULT = -1
_ALGORITHMS = tuple(range(24))
_TENSOR_ALGORITHMS = tuple(range(99, 116))
_INT32_MAX = 2**31 - 1
#: No workspace of cuBLAS is larger than this one.
_MOST_BYTES = 2**30
_PARAMETERS = {"routine", "algo", "workspace"}


def recommended_workspace(environment: Environment) -> int:
    """Bytes that cuBLAS's manual recommends for cublasSetWorkspace: 32 MiB from Hopper on, else 4 MiB."""
    return 32 * 2**20 if capability(environment) >= 90 else 4 * 2**20


class Cublas(LibraryFamily):
    """cublasGemmEx, cublasGemmStridedBatchedEx and cublasGemmBatchedEx, which write D in C's place: where
    beta != 0 a launch copies C to D first, as their user must, and the time counts. Parameters: routine,
    algo (cublasGemmAlgo_t), workspace (bytes)."""

    name = "cublas"
    library = "cublas"
    title = "cuBLAS (nvmath-python)"

    def supports(self, problem: GemmProblem) -> bool:
        """Whether GemmEx takes the types: A and B of one type, C and D of one type, no scales, no
        epilogue."""
        p = problem
        if ungrouped(p):
            return False
        typed = p.dtype_d in _TYPES.get((p.dtype_a, p.compute), ()) and p.dtype_c == p.dtype_d
        return typed and p.dtype_a == p.dtype_b and unscaled(p) and p.epilogue == "none"

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """Legal candidates: every algorithm with every routine, with the recommended workspace."""
        build, workspace = environment.libraries.get(self.library), recommended_workspace(environment)
        for algo in _algorithms(problem, environment):
            for routine in _routines(problem):
                parameters: dict[str, Parameter] = {
                    "routine": routine, "algo": algo, "workspace": workspace,
                }  # fmt: skip
                solution = Solution(self.name, self.version, parameters, build, workspace, True)
                if self.illegal(problem, solution, environment) is None:
                    yield solution

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that is broken, or None: types, the library's build, the three parameters, alignment."""
        p, parameters = problem, solution.parameters
        if not self.supports(p):
            return f"cuBLAS has no GemmEx for {p.dtype_a} -> {p.dtype_d}, compute {p.compute}, {p.epilogue}"
        if rule := self.another_build(solution, environment):
            return rule
        if set(parameters) != _PARAMETERS:
            return f"parameters must be {', '.join(sorted(_PARAMETERS))}, not {', '.join(parameters)}"
        routine, algo, workspace = (parameters[name] for name in ("routine", "algo", "workspace"))
        if routine not in _routines(p):
            return f"routine {routine!r} is not for a batch of {p.batch}: {', '.join(_routines(p))}"
        if isinstance(algo, bool) or algo not in _algorithms(p, environment):
            if capability(environment) >= 80:
                return f"algo must be {DEFAULT} from sm_80 on, where no other has an effect; not {algo!r}"
            return f"algo {algo!r} is no cublasGemmAlgo_t for {p.dtype_a}"
        if isinstance(workspace, bool) or not isinstance(workspace, int) or not 0 <= workspace <= _MOST_BYTES:
            return f"workspace must be a number of bytes from 0 to {_MOST_BYTES}, not {workspace!r}"
        return _misaligned(p)

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: GpuContext
    ) -> CublasKernel:
        """The routine on the device; the cuBLAS handle is made once a process."""
        library = device.keep("cublas", lambda: _Library(device))
        return CublasKernel(problem, solution, device, library)


def _routines(problem: GemmProblem) -> tuple[str, ...]:
    if problem.batch == 1:
        return ("gemm_ex",)
    return ("gemm_strided_batched_ex", "gemm_batched_ex")


def _algorithms(problem: GemmProblem, environment: Environment) -> tuple[int, ...]:
    if capability(environment) >= 80:
        return (DEFAULT,)
    tensor = problem.dtype_a in ("fp16", "bf16", "int8")
    return (DEFAULT, *_ALGORITHMS, *(_TENSOR_ALGORITHMS if tensor else ()))


def _misaligned(p: GemmProblem) -> str | None:
    """The rule of int8 operands (cublasGemmEx, notes on CUDA_R_8I) that is broken, or None."""
    if p.dtype_a != "int8":
        return None
    for name in ("lda", "ldb", "stride_a", "stride_b"):
        if getattr(p, name) % 4:
            return f"{name} of int8 operands must be a multiple of 4, not {getattr(p, name)}"
    return f"int8 operands must be aligned to 4 bytes, not {p.alignment}" if p.alignment < 4 else None


class _Library:
    """The process's cuBLAS handle on the device's stream, and the workspace that it was given."""

    def __init__(self, device: GpuContext) -> None:
        from nvmath.bindings import cublas  # noqa: PLC0415  (optional)

        self.api: Any = cublas
        self._guard = call(device, "cuBLAS")
        self.workspace = (0, 0)
        with self._guard:
            self.handle = int(cublas.create())
            cublas.set_stream(self.handle, device.stream)  # which also forgets any workspace

    def use(self, workspace: tuple[int, int]) -> None:
        """Gives the handle another workspace: (address, bytes)."""
        with self._guard:
            self.api.set_workspace(self.handle, *workspace)
        self.workspace = workspace


class _Pointers:
    """Device arrays of the addresses of every matrix of a batch; freed with the launch that owns them."""

    def __init__(self, device: GpuContext, problem: GemmProblem, operands: Operands) -> None:
        found = layouts(problem)
        starts = {"a": operands.a, "b": operands.b, "d": operands.d}
        steps = {name: layout.stride * layout.dtype.bytes for name, layout in found.items()}
        index = np.arange(problem.batch, dtype=np.int64)
        rows = [start + index * steps[name] for name, start in starts.items()]
        self._buffer = device.allocate(3 * index.nbytes)
        self._buffer.upload(np.concatenate(rows).view(np.uint8))
        self.a, self.b, self.d = (self._buffer.address + i * index.nbytes for i in range(3))

    def __del__(self) -> None:
        with suppress(AttributeError, GemmtuneError):  # never made, or the context is lost
            self._buffer.free()


class CublasKernel:
    """A routine with its parameters on a device."""

    def __init__(
        self, problem: GemmProblem, solution: Solution, device: GpuContext, library: _Library
    ) -> None:
        self._problem, self._device, self._library = problem, device, library
        self._routine = str(solution.parameters["routine"])
        self._algo = int(solution.parameters["algo"] or 0)
        self.workspace_bytes = int(solution.parameters["workspace"] or 0)
        self.partial_sums = untold_partial_sums(problem)

    def prepare(self) -> None:
        """Nothing: the handle's modes are never changed, and a launch sees to its workspace."""

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """See Kernel. A launch copies C to D first where beta is not zero, and calls the 64-bit interface
        where a leading dimension does not fit 32 bits."""
        p, library = self._problem, self._library
        # Kept alive by the closure: the routine reads them when it is called.
        alpha, beta = scalar(p, operands.alpha), scalar(p, operands.beta)
        pointers = _Pointers(self._device, p, operands) if self._routine == "gemm_batched_ex" else None
        a, b, d = (pointers and (pointers.a, pointers.b, pointers.d)) or (operands.a, operands.b, operands.d)
        strided = self._routine == "gemm_strided_batched_ex"

        def matrix(address: int, dtype: str, ld: int, stride: int) -> tuple[int, ...]:
            return (address, DATA_TYPES[dtype], ld, *([stride] if strided else []))

        arguments = (
            library.handle, OPERATIONS[p.trans_a], OPERATIONS[p.trans_b], p.m, p.n, p.k,
            ctypes.addressof(alpha),
            *matrix(a, p.dtype_a, p.lda, p.stride_a),
            *matrix(b, p.dtype_b, p.ldb, p.stride_b),
            ctypes.addressof(beta),
            *matrix(d, p.dtype_d, p.ldd, p.stride_d),
            *([] if self._routine == "gemm_ex" else [p.batch]),
            COMPUTE_TYPES[p.compute], self._algo,
        )  # fmt: skip
        wide = max(p.lda, p.ldb, p.ldd) > _INT32_MAX
        gemm = getattr(library.api, self._routine + ("_64" if wide else ""))
        wanted = (workspace, self.workspace_bytes)
        copies = _copies(p, operands, self._device.stream) if p.beta != "zero" else []
        guard, held = call(self._device, f"cuBLAS {self._routine}"), (alpha, beta, pointers)

        def launch(_held: object = held) -> None:
            if library.workspace != wanted:
                library.use(wanted)
            for copy in copies:
                copy()
            with guard:
                gemm(*arguments)

        return launch


def _copies(problem: GemmProblem, operands: Operands, stream: int) -> list[Callable[[], None]]:
    """C to D's place, as few copies as the layouts allow; D's padding stays as it is."""
    found = layouts(problem)
    copies: list[Callable[[], None]] = []
    for c_offset, d_offset, width, height, c_pitch, d_pitch in copy_plan(problem, found["c"], found["d"]):
        source, target = operands.c + c_offset, operands.d + d_offset
        if height == 1:
            copies.append(partial(_copy, target, source, width, stream))
        else:
            copies.append(partial(_copy_rows, _rows(target, source, width, height, c_pitch, d_pitch), stream))
    return copies


def copy_plan(problem: GemmProblem, c: Layout, d: Layout) -> list[tuple[int, int, int, int, int, int]]:
    """Copies of C to D in bytes: (offset in C, offset in D, width, height, pitch of C, pitch of D). Columns
    or matrices that follow each other in both are one."""
    p, size = problem, DTYPES[problem.dtype_d].bytes
    whole = c.ld == d.ld == p.m or p.n == 1  # each matrix is one run
    width, height = (p.m * p.n, 1) if whole else (p.m, p.n)
    c_pitch, d_pitch = (c.stride, d.stride) if whole else (c.ld, d.ld)
    matrices = p.batch
    if matrices > 1 and whole:
        if c.stride == d.stride == width:
            width, height, matrices = width * matrices, 1, 1
        else:  # the matrices are the rows of one copy, unless they overlap
            height, matrices = (matrices, 1) if c.stride >= width else (1, matrices)
    elif matrices > 1 and c.stride == c.ld * p.n and d.stride == d.ld * p.n:
        height, matrices = height * matrices, 1
    return [
        (i * c.stride * size, i * d.stride * size, width * size, height, c_pitch * size, d_pitch * size)
        for i in range(matrices)
    ]


def _copy(target: int, source: int, size: int, stream: int) -> None:
    result = api().cuMemcpyDtoDAsync(target, source, size, stream)
    if result[0] != 0:
        check(result, f"copying {size} bytes of C")


def _rows(target: int, source: int, width: int, height: int, c_pitch: int, d_pitch: int) -> Any:
    cu = api()
    rows = cu.CUDA_MEMCPY2D()
    rows.srcMemoryType = rows.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
    rows.srcDevice, rows.srcPitch = source, c_pitch
    rows.dstDevice, rows.dstPitch = target, d_pitch
    rows.WidthInBytes, rows.Height = width, height
    return rows


def _copy_rows(rows: Any, stream: int) -> None:
    result = api().cuMemcpy2DAsync(rows, stream)
    if result[0] != 0:
        check(result, "copying the columns of C")
