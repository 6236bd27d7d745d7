"""The status codes of NVIDIA's libraries."""

from __future__ import annotations

from backends.gpu.library import LibraryCall, LibraryStatuses, Waits
from backends.gpu.library import call as library_call

#: cublasStatus_t (cublas_api.h); cuBLASLt shares it. Refusals: INVALID_VALUE, ARCH_MISMATCH, NOT_SUPPORTED.
CUBLAS = LibraryStatuses(
    "CUBLAS_STATUS_",
    {
        1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 11: "MAPPING_ERROR",
        13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED", 16: "LICENSE_ERROR",
    },
    refusals=frozenset({7, 8, 15}),
    executions=frozenset({11, 13, 14}),
    module="nvmath",
)  # fmt: skip


def call(device: Waits, what: str) -> LibraryCall:
    """A context manager for calls of cuBLAS and cuBLASLt; see backends.gpu.library.call()."""
    return library_call(device, what, CUBLAS)
