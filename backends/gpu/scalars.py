"""alpha and beta as BLAS libraries take them: host memory of the scale type, alike for both vendors."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from backends.problem import GemmProblem

_SCALARS: Mapping[str, Any] = {
    "fp32": ctypes.c_float, "fp64": ctypes.c_double, "int32": ctypes.c_int32, "fp16": ctypes.c_uint16,
}  # fmt: skip


def scale_type(problem: GemmProblem) -> str:
    """The type of alpha and beta: the compute type's own, but fp32 for int8 problems whose D is not int32."""
    if problem.compute == "int32":
        return "int32" if problem.dtype_d == "int32" else "fp32"
    return problem.compute if problem.compute in ("fp64", "fp16") else "fp32"


def scalar(problem: GemmProblem, value: float) -> Any:
    """alpha or beta as the ctypes value that a call's pointer points to."""
    kind = scale_type(problem)
    if kind == "fp16":
        return ctypes.c_uint16(int(np.float16(value).view(np.uint16)))
    return _SCALARS[kind](int(value) if kind == "int32" else value)
