"""rocBLAS's C interface through ctypes: handles, versions, solutions, and products."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from backends.hip.library import checked, function, open_library, prepared
from backends.toolchains.rocm import find_library

_P, _INT, _SIZE, _STRIDE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_size_t, ctypes.c_int64
#: rocblas_gemm_algo: the default's own choice, and a solution by its index.
STANDARD, BY_INDEX = 0, 1
#: rocblas_gemm_flags_check_solution_index: whether a solution could run, without running it. (0x4 would
#: choose MI200's other kernels of fp16, and run them.)
CHECK_INDEX = 0x8
#: Answers of a query of the workspace's size.
_SIZES = frozenset({0, 9, 10})


class RocblasApi:
    """The library's functions with their C types. Raises LibraryMissing where it is not there or lacks one of
    them; every other call raises LibraryError with its status."""

    def __init__(self) -> None:
        library = open_library("rocblas")

        def c(name: str, *arguments: Any) -> Any:
            return function(library, f"rocblas_{name}", arguments)

        operands = (_P, _INT, _INT, _P, _INT, _INT)
        strided = (_P, _INT, _INT, _STRIDE, _P, _INT, _INT, _STRIDE)
        begin = (_P, _INT, _INT, _INT, _INT, _INT, _P)
        self._create, self._set_stream = c("create_handle", _P), c("set_stream", _P, _P)
        #: rocblas_set_workspace(handle, address, bytes) -> status
        self.set_workspace = c("set_workspace", _P, _P, _SIZE)
        self._version_size = c("get_version_string_size", _P)
        self._version = c("get_version_string", ctypes.c_char_p, _SIZE)
        self._start_query = c("start_device_memory_size_query", _P)
        self._stop_query = c("stop_device_memory_size_query", _P, _P)
        end = (_INT, _INT, _INT, ctypes.c_uint32)
        #: The products: rocblas_gemm_ex and rocblas_gemm_strided_batched_ex -> status
        self.gemm_ex = c("gemm_ex", *begin, *operands, _P, *operands, *end)
        self.gemm_strided = c("gemm_strided_batched_ex", *begin, *strided, _P, *strided, _INT, *end)
        last = (_INT, _INT, ctypes.c_uint32, _P, _P)
        self._solutions = c("gemm_ex_get_solutions", *begin, *operands, _P, *operands, *last)
        self._solutions_strided = c(
            "gemm_strided_batched_ex_get_solutions", *begin, *strided, _P, *strided, _INT, *last
        )
        self._by_type = c("gemm_ex_get_solutions_by_type", _P, _INT, _INT, _INT, ctypes.c_uint32, _P, _P)

    def prepared(self, routine: Any, arguments: Sequence[Any]) -> Callable[[], int]:
        """A call of gemm_ex or gemm_strided on fixed arguments -> status."""
        return prepared(routine, arguments)

    def create(self, stream: int) -> int:
        """A handle on a stream."""
        handle = _P(0)
        checked(self._create(ctypes.byref(handle)))
        checked(self._set_stream(handle, stream))
        return int(handle.value or 0)

    def version(self) -> str:
        """Version and git revision, such as 5.2.0.dabb6df2b9. Needs no device."""
        size = _SIZE(0)
        checked(self._version_size(ctypes.byref(size)))
        text = ctypes.create_string_buffer(max(1, size.value))
        checked(self._version(text, size.value))
        return text.value.decode(errors="replace").strip()

    def of_problem(self, arguments: Sequence[Any], batched: bool) -> list[int]:
        """Indices of the solutions that support a problem; the arguments of the product up to its compute
        type."""
        ask = self._solutions_strided if batched else self._solutions
        return self._listed(lambda indices, size: ask(*arguments, BY_INDEX, 0, indices, size))

    def of_types(self, handle: int, input_type: int, output_type: int, compute: int) -> list[int]:
        """Indices of every solution for these types, whatever the problem."""
        return self._listed(
            lambda indices, size: self._by_type(handle, input_type, output_type, compute, 0, indices, size)
        )

    @staticmethod
    def _listed(ask: Any) -> list[int]:
        size = _INT(0)
        checked(ask(None, ctypes.byref(size)))
        indices = (_INT * max(1, size.value))()
        checked(ask(indices, ctypes.byref(size)))
        return list(indices[: size.value])

    def workspace_bytes(self, handle: int, product: Any) -> int | None:
        """Bytes of device memory that a product (a function without arguments, which calls it) needs; None
        where its solution does not support it."""
        checked(self._start_query(handle))
        status, size = product(), _SIZE(0)
        checked(self._stop_query(handle, ctypes.byref(size)))
        return int(size.value) if status in _SIZES else None


def missing_tables(arch: str) -> str | None:
    """Why rocBLAS has no kernels for an architecture, None where it has or where its folder is not found. To
    be asked before the first product and the first list of solutions, at which rocBLAS aborts the process
    for want of its tables."""
    for folder in _table_folders():
        known = {path.stem for path in folder.glob("TensileLibrary*.dat")}
        if any(name.startswith("TensileLibrary_lazy_") for name in known):
            own = {"TensileLibrary", f"TensileLibrary_{arch}", f"TensileLibrary_lazy_{arch}"}
            return None if own & known else f"{folder} has no TensileLibrary_lazy_{arch}.dat"
    return None


def _table_folders() -> Iterator[Path]:
    """Where rocBLAS looks, in its order; Debian adds a folder of the version."""
    folder, library = os.environ.get("ROCBLAS_TENSILE_LIBPATH"), find_library("rocblas")
    if folder:
        yield Path(folder)
    elif library is not None:
        for beside in (library.parent, library.resolve().parent):
            for place in ("../../Tensile/library", "library", "rocblas/library", "../rocblas/library"):
                yield beside / place
            yield from sorted(beside.glob("rocblas/*/library"))


@lru_cache(maxsize=1)
def rocblas() -> RocblasApi:
    """The library, opened once. Raises LibraryMissing."""
    return RocblasApi()
