"""The types, the argument and the configuration of kernels with scales and integers (matrix_epilogue.h)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from backends.kernels.family import KernelConfig
from backends.kernels.oriented_gemm import CPP_TYPES, GemmArgs
from backends.operands import Operands, layouts
from backends.problem import GemmProblem

#: small_types.h: gemmtune's type -> its name there.
MATRIX_TYPES = {
    **CPP_TYPES, "int8": "gemmtune::Int8", "int32": "gemmtune::Int32",
    "fp8_e4m3": "gemmtune::E4m3", "fp8_e5m2": "gemmtune::E5m2",
    "fp8_e4m3_fnuz": "gemmtune::E4m3Fnuz", "fp8_e5m2_fnuz": "gemmtune::E5m2Fnuz",
}  # fmt: skip


class ScaledArgs(GemmArgs):
    """matrix_epilogue.h: ScaledArgs, GemmArgs and the addresses of scales (null: a scale of one)."""

    _fields_ = (
        ("scale_a", ctypes.c_void_p), ("scale_b", ctypes.c_void_p), ("scale_d", ctypes.c_void_p),
        ("scale_row", ctypes.c_int), ("scale_column", ctypes.c_int),
        ("scale_a_bytes", ctypes.c_longlong), ("scale_b_bytes", ctypes.c_longlong),
    )  # fmt: skip

    @classmethod
    def of(cls, problem: GemmProblem, plain: GemmArgs, operands: Operands) -> ScaledArgs:
        """The argument with the addresses of the problem's scales."""
        args, shapes = cls(), layouts(problem)
        ctypes.memmove(ctypes.byref(args), ctypes.byref(plain), ctypes.sizeof(GemmArgs))
        args.scale_a, args.scale_b, args.scale_d = operands.scale_a, operands.scale_b, operands.scale_d
        args.scale_a_bytes, args.scale_b_bytes = (
            shapes[name].bytes if name in shapes else 0 for name in ("scale_a", "scale_b")
        )
        args.scale_row, args.scale_column = int(problem.scale_a == "outer"), int(problem.scale_b == "outer")
        return args


def matrix_types(p: GemmProblem) -> str:
    """matrix_epilogue.h: MatrixTypes<...> of the problem."""
    kinds = (p.input_type, p.dtype_b, p.dtype_c, p.dtype_d, p.bias or p.dtype_d)
    return f"gemmtune::MatrixTypes<{', '.join(MATRIX_TYPES[kind] for kind in kinds)}>"


@dataclass(frozen=True)
class ScaledConfig(KernelConfig):
    """A configuration whose argument has scales, and whose second launch adds integers as integers."""

    def arguments(self, operands: Operands, workspace: int) -> ScaledArgs:
        """The argument of both launches for one set of operands (device addresses)."""
        return ScaledArgs.of(self.product.problem, super().arguments(operands, workspace), operands)

    @property
    def argument_bytes(self) -> int:
        """Size of ScaledArgs."""
        return ctypes.sizeof(ScaledArgs)

    @property
    def sums(self) -> str:
        """The class of the second launch."""
        return "Chosen::SecondLaunch"
