"""Products of two MXFP4 operands as kernels see them: the argument, the configuration and the rules that
their families share (mx_scales.h)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from backends.grouping import ungrouped
from backends.kernels.family import KernelConfig
from backends.kernels.oriented_gemm import CPP_TYPES, GemmArgs, OrientedGemm
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.quantisation import MX_GROUP


@dataclass(frozen=True)
class MxGemm(OrientedGemm):
    """A product of two MXFP4 operands whose k is counted in bytes, of two elements each, as lines and their
    leading dimensions are."""

    @property
    def k(self) -> int:
        """Bytes of a line."""
        return self.problem.k // 2

    @property
    def types(self) -> str:
        """args.h: Types<...>; bytes as operands."""
        p = self.problem
        ends = ", ".join(CPP_TYPES[kind] for kind in (p.dtype_c, p.dtype_d, p.bias or p.dtype_d))
        return f"gemmtune::Types<gemmtune::Int8, {ends}>"

    @property
    def scale_words(self) -> bool:
        """Whether lines of scales are whole 32-bit words that begin at multiples of them."""
        return self.problem.k // MX_GROUP % 4 == 0 and self.problem.alignment >= 4


class MxArgs(GemmArgs):
    """mx_scales.h: MxArgs."""

    _fields_ = (
        ("scales_a", ctypes.c_void_p), ("scales_b", ctypes.c_void_p), ("groups", ctypes.c_longlong),
    )  # fmt: skip


@dataclass(frozen=True)
class MxConfig(KernelConfig):
    """A configuration of a family for products of two MXFP4 operands; its product is an MxGemm."""

    @property
    def argument_bytes(self) -> int:
        """Bytes of MxArgs."""
        return ctypes.sizeof(MxArgs)

    def arguments(self, operands: Operands, workspace: int) -> MxArgs:
        """The argument of both launches."""
        plain, found = super().arguments(operands, workspace), MxArgs()
        ctypes.memmove(ctypes.addressof(found), ctypes.addressof(plain), ctypes.sizeof(GemmArgs))
        found.scales_a, found.scales_b = operands.scale_a, operands.scale_b
        found.groups = self.product.problem.k // MX_GROUP
        return found


def unsupported_products(p: GemmProblem) -> str | None:
    """Why no family for products of MXFP4 has the problem's types, or None."""
    if (broken := ungrouped(p)) is not None:
        return broken
    if not p.mx_product:
        return f"these kernels multiply MXFP4 by MXFP4, not {p.dtype_a} x {p.dtype_b}"
    for kind in filter(None, (p.dtype_c, p.dtype_d, p.bias)):
        if kind not in CPP_TYPES:
            return f"our kernels have no C, D or bias of {kind}"
    return None
