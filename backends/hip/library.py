"""AMD's libraries through ctypes: opening them, and their status codes."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from backends.errors import LaunchError
from backends.gpu.library import LibraryError, LibraryStatuses
from backends.toolchains.rocm import find_library, why_missing

#: hipblasStatus_t (hipblas-common.h). Refusals: INVALID_VALUE, NOT_SUPPORTED, ARCH_MISMATCH, INVALID_ENUM.
HIPBLAS = LibraryStatuses(
    "HIPBLAS_STATUS_",
    {
        1: "NOT_INITIALIZED", 2: "ALLOC_FAILED", 3: "INVALID_VALUE", 4: "MAPPING_ERROR",
        5: "EXECUTION_FAILED", 6: "INTERNAL_ERROR", 7: "NOT_SUPPORTED", 8: "ARCH_MISMATCH",
        9: "HANDLE_IS_NULLPTR", 10: "INVALID_ENUM", 11: "UNKNOWN",
    },
    refusals=frozenset({3, 7, 8, 10}),
    executions=frozenset({4, 5, 6, 11}),
)  # fmt: skip
#: rocblas_status (rocblas-types.h). Refusals: not_implemented, invalid_size, invalid_value,
#: excluded_from_build, arch_mismatch.
ROCBLAS = LibraryStatuses(
    "rocblas_status_",
    {
        1: "invalid_handle", 2: "not_implemented", 3: "invalid_pointer", 4: "invalid_size",
        5: "memory_error", 6: "internal_error", 7: "perf_degraded", 8: "size_query_mismatch",
        9: "size_increased", 10: "size_unchanged", 11: "invalid_value", 12: "continue",
        13: "check_numerics_fail", 14: "excluded_from_build", 15: "arch_mismatch",
    },
    refusals=frozenset({2, 4, 11, 14, 15}),
    executions=frozenset({6}),
)  # fmt: skip


#: C types that a Python integer is passed as without a declared type.
_INTS = (ctypes.c_int, ctypes.c_uint32)


class LibraryMissing(Exception):
    """The library is not installed, does not load, or lacks a function; the message says which."""


@lru_cache(maxsize=8)
def open_library(name: str) -> ctypes.CDLL:
    """The shared library lib`name`.so, loaded once. Raises LibraryMissing."""
    path = find_library(name)
    if path is None:
        raise LibraryMissing(why_missing(name))
    try:
        return ctypes.CDLL(os.fspath(path))
    except OSError as error:
        raise LibraryMissing(f"{path} does not load: {error}") from error


def function(library: ctypes.CDLL, name: str, arguments: Sequence[Any], result: Any = ctypes.c_int) -> Any:
    """A function of a library with its C types. Raises LibraryMissing where the library lacks it."""
    try:
        found = getattr(library, name)
    except AttributeError as error:
        raise LibraryMissing(f"{library._name} has no function {name}: is it another release?") from error
    found.argtypes, found.restype = list(arguments), result
    return found


def prepared(function: Any, arguments: Sequence[int | None]) -> Callable[[], int]:
    """A call of a function (with its C types) on fixed arguments, which are converted once: a launch's host
    time is mostly that of converting arguments. The call returns the function's status."""
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    untyped = ctypes.CFUNCTYPE(ctypes.c_int)(address)
    # Without declared types ctypes passes a Python integer as a C int, which is the fastest conversion.
    values = tuple(
        value if kind in _INTS else kind(value)
        for kind, value in zip(function.argtypes, arguments, strict=True)
    )

    def call(_alive: Any = function) -> int:
        status: int = untyped(*values)
        return status

    return call


def checked(status: int) -> None:
    """Raises LibraryError for a status other than success; backends.gpu.library.call() names it."""
    if status:
        raise LibraryError(status)


@lru_cache(maxsize=8)
def file_digest(name: str) -> str:
    """12 digits of the SHA-256 of a library's file, which stand for its build where it has no revision."""
    path = find_library(name)
    if path is None:
        raise LibraryMissing(why_missing(name))
    if not path.is_absolute():  # the loader knows where it is
        path = _loaded_path(path.name)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**22):
            digest.update(block)
    return digest.hexdigest()[:12]


def _loaded_path(file: str) -> Path:
    """Where a library that this process has loaded lies. Raises LaunchError where it is not loaded."""
    stem = file.partition(".so")[0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        place = line.rpartition(" ")[2]
        if Path(place).name.startswith(stem):
            return Path(place)
    raise LaunchError(f"{file} is not loaded")
