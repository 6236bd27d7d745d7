"""Our number formats in the words of CUDA's libraries (library_types.h, cublas_api.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from backends.problem import GemmProblem

#: cudaDataType_t
DATA_TYPES: Mapping[str, int] = {
    "fp32": 0, "fp64": 1, "fp16": 2, "int8": 3, "int32": 10, "bf16": 14, "fp8_e4m3": 28, "fp8_e5m2": 29,
}  # fmt: skip
#: cublasComputeType_t
COMPUTE_TYPES: Mapping[str, int] = {
    "fp16": 64, "fp32": 68, "fp64": 70, "int32": 72, "tf32": 77, "bf16x9": 78,
}  # fmt: skip
OPERATIONS: Mapping[str, int] = {"N": 0, "T": 1, "C": 2}
_SCALARS: Mapping[str, Any] = {
    "fp32": ctypes.c_float, "fp64": ctypes.c_double, "int32": ctypes.c_int32, "fp16": ctypes.c_uint16,
}  # fmt: skip


def scale_type(problem: GemmProblem) -> str:
    """The type of alpha and beta: the compute type's own, but fp32 for int8 products that end as int8."""
    if problem.compute == "int32":
        return "int32" if problem.dtype_d == "int32" else "fp32"
    return problem.compute if problem.compute in ("fp64", "fp16") else "fp32"


def scalar(problem: GemmProblem, value: float) -> Any:
    """alpha or beta as the ctypes value that a call's pointer points to."""
    kind = scale_type(problem)
    if kind == "fp16":
        import numpy as np  # noqa: PLC0415

        return ctypes.c_uint16(int(np.float16(value).view(np.uint16)))
    return _SCALARS[kind](int(value) if kind == "int32" else value)
