"""Python bindings of our own C++ kernels: the argument struct of kernels/abi.h, and loading a library."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from backends.cache import BinaryCache
from backends.cpu.compiler import compile_unit
from backends.errors import LaunchError
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.protocol import Launch

ABI = 1
_ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "silu": 3}
_AXES = {None: 0, "m": 1, "n": 2}
_I64, _I32, _PTR, _F64 = ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p, ctypes.c_double


class GemmArgs(ctypes.Structure):
    """struct GemmArgs of kernels/abi.h, field by field."""

    _fields_: ClassVar[Any] = [
        *((name, _I64) for name in ("m", "n", "k", "batch", "lda", "ldb", "ldc", "ldd")),
        *((f"stride_{side}", _I64) for side in "abcd"),
        *((name, _PTR) for name in ("a", "b", "c", "d", "bias")),
        *(("alpha", _F64), ("beta", _F64), ("mc", _I64), ("nc", _I64), ("kc", _I64)),
        *(("workspace", _PTR), ("workspace_bytes", _I64), ("parallel", _PTR)),
        *((name, _I32) for name in ("trans_a", "trans_b", "bias_axis", "activation", "threads", "reserved")),
    ]


def compile_runtime(partition: str, cache: BinaryCache) -> Path:
    """Compiles the thread pool and the bandwidth kernels. Raises what compile_unit() raises."""
    return compile_unit('#include "runtime.cpp"\n', partition, cache)


@lru_cache(maxsize=1)
def runtime(path: Path) -> ctypes.CDLL:
    """The runtime library, loaded once per process, since all kernels share its thread pool."""
    library = ctypes.CDLL(str(path))
    library.gemmtune_read.restype = _F64
    library.gemmtune_read.argtypes = [_PTR, _I64, ctypes.c_int]
    library.gemmtune_copy.restype = None
    library.gemmtune_copy.argtypes = [_PTR, _PTR, _I64, ctypes.c_int]
    return library


def constants(problem: GemmProblem, blocks: Mapping[str, int]) -> dict[str, int]:
    """The fields of GemmArgs that the problem and the solution (cache blocks, threads) determine: all but
    addresses, scalars and the workspace's size."""
    p = problem
    return {
        **{name: getattr(p, name) for name in ("m", "n", "k", "batch", "lda", "ldb", "ldc", "ldd")},
        **{f"stride_{side}": getattr(p, f"stride_{side}") for side in "abcd"},
        **blocks,
        "trans_a": int(p.trans_a != "N"),
        "trans_b": int(p.trans_b != "N"),
        "bias_axis": _AXES[p.bias_axis],
        "activation": _ACTIVATIONS[p.activation],
    }


class NativeLibrary:
    """A kernel's shared library. Raises LaunchError if it cannot be loaded or has another ABI."""

    def __init__(self, library: Path) -> None:
        try:
            loaded = ctypes.CDLL(str(library))
            self.run, self._workspace = loaded.gemmtune_run, loaded.gemmtune_workspace
            abi = loaded.gemmtune_abi()
        except (OSError, AttributeError) as error:
            raise LaunchError(f"{library} cannot be loaded: {error}") from error
        if abi != ABI:
            raise LaunchError(f"{library} has ABI {abi}, not {ABI}; delete it and compile again")
        self.run.argtypes, self.run.restype = [_PTR], _I32
        self._workspace.argtypes, self._workspace.restype = [_PTR], _I64

    def workspace_bytes(self, found: Mapping[str, int]) -> int:
        """Bytes of workspace for these constants(). Raises LaunchError if the kernel refuses the problem."""
        size = int(self._workspace(ctypes.byref(GemmArgs(**found))))
        if size < 0:
            raise LaunchError(f"the kernel refuses this problem with status {-size}")
        return size


class NativeKernel:
    """A compiled kernel with its run-time parameters. Raises LaunchError if the library cannot be loaded, has
    another ABI, or refuses the problem."""

    def __init__(
        self, problem: GemmProblem, library: Path, pool: ctypes.CDLL, blocks: dict[str, int]
    ) -> None:
        loaded, found = NativeLibrary(library), constants(problem, blocks)
        self._run = loaded.run
        self._template = {**found, "parallel": ctypes.cast(pool.gemmtune_parallel, _PTR)}
        self.workspace_bytes = loaded.workspace_bytes(found)

    #: D is rounded once.
    partial_sums = 1

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """A call of gemmtune_run() with these operands; the call raises LaunchError for a nonzero status."""
        args = GemmArgs(
            **self._template,
            a=operands.a, b=operands.b, c=operands.c, d=operands.d, bias=operands.bias,
            alpha=operands.alpha, beta=operands.beta,
            workspace=workspace, workspace_bytes=self.workspace_bytes,
        )  # fmt: skip
        pointer = ctypes.pointer(args)
        run = self._run

        def launch() -> None:
            status = run(pointer)
            if status:
                raise LaunchError(f"the kernel answered status {status} (kernels/abi.h lists them)")

        return launch

    def prepare(self) -> None:
        """Does nothing: the thread count is an argument of each launch."""
