"""The argument of a user's C++ or CUDA kernel (gemm_call.h), made from a canonical problem."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, ClassVar

from backends.operands import Operands
from backends.problem import GemmProblem

#: The folder of gemm_call.h.
HEADERS = Path(__file__).parent
_I64, _I32, _PTR, _F64 = ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p, ctypes.c_double
_TYPES = {"fp32": 0, "fp64": 1, "fp16": 2, "bf16": 3, "int8": 4, "int32": 5}
_ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "silu": 3}
#: A canonical bias along m is one value for each column of the row-major output.
_AXES = {None: 0, "m": 1, "n": 2}


class GemmCall(ctypes.Structure):
    """struct GemmCall, field by field."""

    _fields_: ClassVar[Any] = [
        *((name, _I64) for name in ("m", "n", "k", "batch")),
        *((name, _PTR) for name in ("a", "b", "c", "bias", "d")),
        *((name, _I64) for name in ("lda", "ldb", "ldc", "ldd")),
        *((name, _I64) for name in ("stride_a", "stride_b", "stride_c", "stride_d")),
        ("alpha", _F64), ("beta", _F64),
        *((name, _I32) for name in (
            "transposed_a", "transposed_b", "bias_axis", "activation", "input", "output",
        )),
    ]  # fmt: skip


def gemm_call(problem: GemmProblem, operands: Operands) -> GemmCall:
    """The call in row-major terms: the canonical B is its A, and the canonical m its n."""
    p = problem
    return GemmCall(
        m=p.n, n=p.m, k=p.k, batch=p.batch,
        a=operands.b, b=operands.a, c=operands.c or None, bias=operands.bias or None, d=operands.d,
        lda=p.ldb, ldb=p.lda, ldc=p.ldc, ldd=p.ldd,
        stride_a=p.stride_b, stride_b=p.stride_a, stride_c=p.stride_c, stride_d=p.stride_d,
        alpha=operands.alpha, beta=operands.beta,
        transposed_a=int(p.trans_b != "N"), transposed_b=int(p.trans_a != "N"),
        bias_axis=_AXES[p.bias_axis if p.bias is not None else None],
        activation=_ACTIVATIONS[p.activation], input=_TYPES[p.dtype_a], output=_TYPES[p.dtype_d],
    )  # fmt: skip


def sizes_of(problem: GemmProblem) -> dict[str, int]:
    """The sizes that expressions of extents name."""
    return {"m": problem.n, "n": problem.m, "k": problem.k, "batch": problem.batch}
