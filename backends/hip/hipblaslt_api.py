"""hipBLASLt's C interface and the free functions of its C++ extension, through ctypes.

The extension (hipblaslt-ext.hpp) enumerates every solution. Its functions are called by their mangled names
(Itanium C++ ABI) with libstdc++'s layout of std::vector (three pointers) and std::string (32 bytes). A build
without one of them is an answer: `extended` is False, and only the heuristic lists candidates.

Algorithms that hipBLASLt compiles at run time (hipblaslt-jit.hpp) come from another interface, which is never
called here: they mean nothing to another process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from backends.gpu.library import LibraryError
from backends.hip.library import LibraryMissing, checked, function, open_library

_P, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
#: hipblasLtMatmulPreferenceAttributes_t
_MAX_WORKSPACE_BYTES = 1
#: hipblasLtMatrixLayoutAttribute_t
_BATCH_COUNT, _BATCH_OFFSET = 0, 1
#: Bytes that hipblasLtGetGitRevision() may write.
_REVISION_BYTES = 256
_NAMESPACE = "_ZN13hipblaslt_ext"
#: GemmType::HIPBLASLT_GEMM
_GEMM = 1


class Algo(ctypes.Structure):
    """hipblasLtMatmulAlgo_t: its first four bytes are the solution's index."""

    _fields_ = (("data", ctypes.c_uint8 * 16), ("max_workspace_bytes", _SIZE))

    @property
    def index(self) -> int:
        """The solution's index."""
        return int.from_bytes(bytes(self.data[:4]), "little", signed=True)


class HeuristicResult(ctypes.Structure):
    """hipblasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", Algo), ("workspace_bytes", _SIZE), ("state", _INT), ("waves", ctypes.c_float),
        ("reserved", _INT * 4),
    )  # fmt: skip


class _Vector(ctypes.Structure):
    """std::vector of libstdc++: begin, end, and the end of what is allocated."""

    _fields_ = (("begin", _P), ("end", _P), ("room", _P))


class _String(ctypes.Structure):
    """std::string of libstdc++: its characters, their number, and those of a short one."""

    _fields_ = (("data", _P), ("size", _SIZE), ("short", ctypes.c_char * 16))


@dataclass(frozen=True)
class Found:
    """A solution that the library listed: its algorithm's 24 bytes, and bytes of workspace as listed."""

    algo: bytes
    workspace_bytes: int

    @property
    def index(self) -> int:
        """The solution's index."""
        return Algo.from_buffer_copy(self.algo).index


def _found(one: HeuristicResult) -> Found:
    return Found(bytes(one.algo), int(one.workspace_bytes))


class HipblasLtApi:
    """The library's functions with their C types. Raises LibraryMissing where it is not there or lacks a
    function of the C interface; every other call raises LibraryError with its status."""

    def __init__(self) -> None:
        library = open_library("hipblaslt")

        def c(name: str, *arguments: Any) -> Any:
            return function(library, f"hipblasLt{name}", arguments)

        self._create, self._version = c("Create", _P), c("GetVersion", _P, _P)
        self._revision = c("GetGitRevision", _P, ctypes.c_char_p)
        self._layout = c("MatrixLayoutCreate", _P, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64)
        self._set_layout = c("MatrixLayoutSetAttribute", _P, _INT, _P, _SIZE)
        self.destroy_layout = c("MatrixLayoutDestroy", _P)
        self._desc = c("MatmulDescCreate", _P, _INT, _INT)
        self._set_desc = c("MatmulDescSetAttribute", _P, _INT, _P, _SIZE)
        self.destroy_desc = c("MatmulDescDestroy", _P)
        self._preference = c("MatmulPreferenceCreate", _P)
        self._set_preference = c("MatmulPreferenceSetAttribute", _P, _INT, _P, _SIZE)
        self._destroy_preference = c("MatmulPreferenceDestroy", _P)
        self._heuristic = c("MatmulAlgoGetHeuristic", _P, _P, _P, _P, _P, _P, _P, _INT, _P, _P)
        #: hipblasLtMatmul(handle, desc, alpha, A, layout A, B, layout B, beta, C, layout C, D, layout D,
        #: algo, workspace, bytes of workspace, stream) -> status
        self.matmul = c("Matmul", _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _SIZE, _P)
        self._extension = _Extension(library)

    @property
    def extended(self) -> bool:
        """Whether the C++ extension's functions are there."""
        return self._extension.missing is None

    @property
    def extension_missing(self) -> str | None:
        """Which function of the extension the library lacks, None where all are there."""
        return self._extension.missing

    def create(self) -> int:
        """A handle. Ends the process where there is no device: count devices first."""
        handle = _P(0)
        checked(self._create(ctypes.byref(handle)))
        return int(handle.value or 0)

    def version(self, handle: int) -> int:
        """major * 100000 + minor * 100 + patch."""
        value = _INT(0)
        checked(self._version(handle, ctypes.byref(value)))
        return int(value.value)

    def revision(self, handle: int) -> str:
        """The git revision that the library was built from; "" where its builder left it out."""
        text = ctypes.create_string_buffer(_REVISION_BYTES)
        checked(self._revision(handle, text))
        return text.value.decode(errors="replace").strip()

    def layout(self, kind: int, rows: int, columns: int, ld: int, batch: int, stride: int) -> int:
        """A column-major matrix layout; sizes in elements."""
        made = _P(0)
        checked(self._layout(ctypes.byref(made), kind, rows, columns, ld))
        if batch > 1:
            for attribute, value in ((_BATCH_COUNT, _INT(batch)), (_BATCH_OFFSET, ctypes.c_int64(stride))):
                size = ctypes.sizeof(value)
                checked(self._set_layout(made.value, attribute, ctypes.byref(value), size))
        return int(made.value or 0)

    def desc(self, compute: int, scale_type: int) -> int:
        """A matmul descriptor."""
        made = _P(0)
        checked(self._desc(ctypes.byref(made), compute, scale_type))
        return int(made.value or 0)

    def set_desc(self, desc: int, attribute: int, value: Any) -> None:
        """Sets an attribute to a ctypes value."""
        checked(self._set_desc(desc, attribute, ctypes.byref(value), ctypes.sizeof(value)))

    def heuristics(
        self, handle: int, desc: int, layouts: Sequence[int], limit: int, most: int
    ) -> list[Found]:
        """At most `most` answers of the heuristic within `limit` bytes of workspace, the best first; layouts
        of A, B, C and D."""
        preference = _P(0)
        checked(self._preference(ctypes.byref(preference)))
        try:
            size, count = ctypes.c_uint64(limit), _INT(0)
            checked(self._set_preference(preference, _MAX_WORKSPACE_BYTES, ctypes.byref(size), 8))
            results = (HeuristicResult * most)()
            checked(self._heuristic(handle, desc, *layouts, preference, most, results, ctypes.byref(count)))
        finally:
            self._destroy_preference(preference)
        return [_found(one) for one in results[: count.value] if one.state == 0]

    def every(
        self, handle: int, operations: tuple[int, int], types: Sequence[int], compute: int
    ) -> list[Found]:
        """Every solution for these operations of A and B, types of A, B, C and D, and compute type, whatever
        the sizes. Needs the extension."""
        return self._extension.every(handle, operations, types, compute)

    def from_index(self, handle: int, index: int) -> Found | None:
        """The solution of that index, None where the library has none."""
        return self._extension.from_index(handle, index)

    def supports(
        self, handle: int, desc: int, layouts: Sequence[int], scalars: tuple[int, int], found: Found
    ) -> int | None:
        """Bytes of workspace that a solution needs for a problem, None where it does not support it.
        `scalars` are the addresses of alpha and beta."""
        return self._extension.supports(handle, desc, layouts, scalars, found)

    def names(self, handle: int, found: Found) -> dict[str, str]:
        """The names of a solution's kernel and of the solution itself."""
        return self._extension.names(handle, found)


class _Extension:
    """The free functions of hipblaslt_ext."""

    def __init__(self, library: ctypes.CDLL) -> None:
        #: Which function is not there.
        self.missing: str | None = None
        result = "33_hipblasLtMatmulHeuristicResult_t"
        layout = "P29hipblasLtMatrixLayoutOpaque_t"
        try:
            self._every = function(
                library,
                f"{_NAMESPACE}11getAllAlgosEPvNS_8GemmTypeE18hipblasOperation_tS2_11hipDataTypeS3_S3_S3_"
                f"20hipblasComputeType_tRSt6vectorI{result}SaIS6_EE",
                (_P, *[_INT] * 8, _P),
            )
            self._supported = function(
                library,
                f"{_NAMESPACE}21matmulIsAlgoSupportedEPvP27hipblasLtMatmulDescOpaque_tPKv{layout}S6_S4_S6_S6_"
                "R22_hipblasLtMatmulAlgo_tRm",
                (_P,) * 10,
            )
            self._from_index = function(
                library,
                f"{_NAMESPACE}17getAlgosFromIndexEPvRSt6vectorIiSaIiEERS1_I{result}SaIS5_EE",
                (_P, _P, _P),
            )
            #: A std::string is returned through a hidden first argument.
            self._kernel_name, self._solution_name = (
                function(
                    library,
                    f"{_NAMESPACE}{len(name)}{name}B5cxx11EPvR22_hipblasLtMatmulAlgo_t",
                    (_P, _P, _P),
                    None,
                )
                for name in ("getKernelNameFromAlgo", "getSolutionNameFromAlgo")
            )
            self._delete = function(_libstdcpp(), "_ZdlPv", (_P,), None)
        except LibraryMissing as error:
            self.missing = str(error)

    def every(
        self, handle: int, operations: tuple[int, int], types: Sequence[int], compute: int
    ) -> list[Found]:
        vector = _Vector()
        try:
            checked(self._every(handle, _GEMM, *operations, *types, compute, ctypes.byref(vector)))
            return list(self._results(vector))
        finally:
            self._delete(vector.begin)

    def from_index(self, handle: int, index: int) -> Found | None:
        indices, vector = (_INT * 1)(index), _Vector()
        begin = ctypes.addressof(indices)
        asked = _Vector(begin, begin + ctypes.sizeof(indices), begin + ctypes.sizeof(indices))
        try:
            status = self._from_index(handle, ctypes.byref(asked), ctypes.byref(vector))
            return None if status else next(self._results(vector), None)
        finally:
            self._delete(vector.begin)

    def supports(
        self, handle: int, desc: int, layouts: Sequence[int], scalars: tuple[int, int], found: Found
    ) -> int | None:
        algo, size = Algo.from_buffer_copy(found.algo), _SIZE(0)
        a, b, c, d = layouts
        alpha, beta = scalars
        status = self._supported(
            handle, desc, alpha, a, b, beta, c, d, ctypes.byref(algo), ctypes.byref(size)
        )
        return None if status else int(size.value)

    def names(self, handle: int, found: Found) -> dict[str, str]:
        algo, names = Algo.from_buffer_copy(found.algo), {}
        for key, ask in (("kernel_name", self._kernel_name), ("solution_name", self._solution_name)):
            text = _String()
            ask(ctypes.byref(text), handle, ctypes.byref(algo))
            try:
                names[key] = (
                    ctypes.string_at(text.data, text.size).decode(errors="replace") if text.size else ""
                )
            finally:
                # A short string lies within the object itself.
                if text.data and text.data != ctypes.addressof(text) + _String.short.offset:
                    self._delete(text.data)
        return names

    @staticmethod
    def _results(vector: _Vector) -> Iterator[Found]:
        size = ctypes.sizeof(HeuristicResult)
        count = ((vector.end or 0) - (vector.begin or 0)) // size
        if count:
            for one in (HeuristicResult * count).from_address(vector.begin):
                yield _found(one)


@lru_cache(maxsize=1)
def _libstdcpp() -> ctypes.CDLL:
    """Whose operator new allocated what the extension returns."""
    try:
        return ctypes.CDLL("libstdc++.so.6")
    except OSError as error:
        raise LibraryMissing(f"libstdc++.so.6 does not load: {error}") from error


@lru_cache(maxsize=1)
def hipblaslt() -> HipblasLtApi:
    """The library, opened once. Raises LibraryMissing."""
    return HipblasLtApi()


__all__ = ["Algo", "Found", "HipblasLtApi", "LibraryError", "hipblaslt"]
