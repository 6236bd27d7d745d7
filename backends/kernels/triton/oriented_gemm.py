"""A problem in the kernels' orientation: D[M,N] = A[M,K] B[K,N], each operand contiguous along one dimension.

A column-major D is read as its transpose, row-major: the kernel's A is op(B)^T and its B is op(A)^T.
`swapped` is the other orientation, whose M is the problem's: a problem with few columns then has them on the
side of the tensor-core instruction that can be narrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from backends.dtypes import DTYPES
from backends.kernels.triton.description import Constant
from backends.operands import Layout, layouts
from backends.problem import GemmProblem

#: gemmtune's type -> Triton's.
TRITON_TYPES: Mapping[str, str] = {
    "fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8_e4m3": "fp8e4nv", "fp8_e5m2": "fp8e5",
    "fp8_e4m3_fnuz": "fp8e4b8", "fp8_e5m2_fnuz": "fp8e5b16", "int8": "i8", "int32": "i32",
    "int4": "u8", "uint4": "u8", "fp4_e2m1": "u8", "fp8_e8m0": "u8",
}  # fmt: skip
POINTERS = ("a", "b", "c", "d", "bias", "scale_a", "scale_b", "scale_d")
#: Every operand that a kernel may have: scales and zeros are of quantised weights, the last is a grouped
#: product's.
OPERANDS = (*POINTERS, "scales", "zeros", "offsets")
_LEADING = ("lda", "ldb", "ldc", "ldd")
_STRIDES = ("stride_a", "stride_b", "stride_c", "stride_d")
#: Triton makes no use of larger divisors: 16 bytes is the widest load.
WIDEST = 16
#: Bound on how far a tile or step reaches beyond a matrix.
_REACH = 1024

Pointer = TypeVar("Pointer")


def divides(value: int) -> int:
    """The largest power of two up to 16 that `value` is a multiple of; 16 for zero."""
    return min(WIDEST, value & -value) if value else WIDEST


@dataclass(frozen=True)
class TritonOrientedGemm:
    """A problem in one of its orientations. The names below are those of the kernels: "a" of an unswapped one
    is the problem's b."""

    problem: GemmProblem
    swapped: bool = False

    @property
    def m(self) -> int:
        """Rows of the kernel's D."""
        return self.problem.m if self.swapped else self.problem.n

    @property
    def n(self) -> int:
        """Columns of the kernel's D."""
        return self.problem.n if self.swapped else self.problem.m

    @property
    def k(self) -> int:
        """Length of every dot product, in elements."""
        return self.problem.k

    @property
    def batch(self) -> int:
        """GEMMs in the batch."""
        return self.problem.batch

    def own(self, name: str) -> str:
        """The problem's name of a kernel's operand; its own inverse."""
        if self.swapped:
            return name
        return {"a": "b", "b": "a", "scale_a": "scale_b", "scale_b": "scale_a"}.get(name, name)

    def _layout(self, name: str) -> Layout | None:
        return layouts(self.problem).get(self.own(name))

    @property
    def a_along_k(self) -> bool:
        """Whether A is contiguous along k (else along M)."""
        p = self.problem
        return p.trans_a != "N" if self.swapped else p.trans_b == "N"

    @property
    def b_along_k(self) -> bool:
        """Whether B is contiguous along k (else along N)."""
        p = self.problem
        return p.trans_b == "N" if self.swapped else p.trans_a != "N"

    @property
    def integer(self) -> bool:
        """Whether sums are integers."""
        return self.problem.compute == "int32"

    @property
    def out_integer(self) -> bool:
        """Whether D, and with it the whole epilogue, is of integers."""
        return self.problem.dtype_d == "int32"

    @property
    def accumulator_bytes(self) -> int:
        """Bytes of a sum: fp32 or int32."""
        return 4

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of A or B."""
        return DTYPES[self.problem.dtype_a].bytes

    @property
    def wide(self) -> bool:
        """Whether an offset within a matrix, including what a tile reaches beyond it, exceeds 32 bits."""
        p = self.problem
        if (p.m + _REACH) * (p.n + _REACH) >= 2**31:  # sums of slices
            return True
        found = (layouts(p)[name] for name in ("a", "b", "c", "d") if name in layouts(p))
        return any(one.ld * (one.columns + _REACH) + one.rows + _REACH >= 2**31 for one in found)

    @property
    def describable(self) -> bool:
        """Whether tensor maps can describe A and B: every line starts at a multiple of 16 bytes, and strides
        are below 2^40 bytes (CUDA driver API, cuTensorMapEncodeTiled)."""
        p = self.problem
        lines = [layouts(p)[name].ld * layouts(p)[name].dtype.bytes for name in ("a", "b")]
        return p.alignment >= WIDEST and all(size % WIDEST == 0 and size < 2**40 for size in lines)

    def partial_bytes(self, slices: int) -> int:
        """Workspace for the sums of `slices` slices of k, each [batch, m, n]."""
        p = self.problem
        return 0 if slices == 1 else slices * p.batch * p.m * p.n * self.accumulator_bytes

    # ---- what a kernel is compiled for -----------------------------------------------------------

    def pointer_type(self, name: str) -> str:
        """Triton's type of an operand's address; that of D if the problem has no such operand."""
        if name == "partial":
            return "*i32" if self.integer else "*fp32"
        p, layout = self.problem, self._layout(name)
        kind = layout.dtype.name if layout is not None else "fp32" if name.startswith("scale") else p.dtype_d
        return f"*{TRITON_TYPES[kind]}"

    def type_of(self, name: str) -> str:
        """Triton's type of a parameter of the kernels."""
        if name in OPERANDS or name == "partial":
            return self.pointer_type(name)
        if name in ("alpha", "beta"):
            return "i32" if self.out_integer else "fp32"
        return "i64" if name in _STRIDES or (name in _LEADING and self.wide) else "i32"

    def divisibility(self, name: str) -> int:
        """The known divisor of a parameter: of an address in bytes, or of the number itself. 1 if nothing is
        known, or if it is of no use."""
        if name == "partial":
            return WIDEST
        if name in OPERANDS:
            layout = self._layout(name)
            if layout is None:
                return 1
            return max(self.problem.alignment, layout.dtype.bytes)
        if name in ("M", "N", "K", *_LEADING, *_STRIDES):
            return divides(self.numbers[name])
        return 1

    def along_k(self, name: str) -> bool:
        """Whether A or B is contiguous along k."""
        return self.a_along_k if name == "a" else self.b_along_k

    def load_bytes(self, name: str) -> int:
        """Bytes of A or B that one load of a thread reads: 16, or fewer if lines start or end at addresses
        that are not multiples of 16."""
        length = self.k if self.along_k(name) else self.m if name == "a" else self.n
        elements = min(divides(self.numbers[f"ld{name}"]), divides(length))
        return min(WIDEST, self.divisibility(name), elements * self.element_bytes)

    @property
    def numbers(self) -> dict[str, int]:
        """Sizes, leading dimensions and batch strides."""
        p = self.problem
        found = {"M": self.m, "N": self.n, "K": self.k, "batch": p.batch}
        for name in ("a", "b", "c", "d"):
            own = self.own(name)
            found |= {f"ld{name}": getattr(p, f"ld{own}"), f"stride_{name}": getattr(p, f"stride_{own}")}
        return found

    @property
    def epilogue(self) -> dict[str, Constant]:
        """The compile-time constants of the epilogue."""
        p = self.problem
        bias = "none"
        if p.bias is not None:
            bias = "m" if (p.bias_axis == "m") == self.swapped else "n"
        scales = (p.scale_a, p.scale_b) if self.swapped else (p.scale_b, p.scale_a)
        return {
            "OUT_INTEGER": self.out_integer,
            "ALPHA_ONE": p.alpha == "one",
            "BETA": p.beta,
            "BIAS": bias,
            "ACTIVATION": p.activation,
            "SCALE_A": scales[0],
            "SCALE_B": scales[1],
            "SCALE_D": p.scale_d == "tensor",
        }

    # ---- what it is launched with ----------------------------------------------------------------

    def arguments(
        self, pointers: Mapping[str, Pointer], scalars: tuple[float, float]
    ) -> dict[str, Pointer | int | float]:
        """Values of the parameters that every kernel has. `pointers` are the problem's operands, by its
        names; scalars are (alpha, beta). Raises ValueError for a fractional scalar of an integer GEMM."""
        found: dict[str, Pointer | int | float] = {
            name: pointers[self.own(name)] for name in OPERANDS if self.own(name) in pointers
        }
        found |= self.numbers
        for name, value in zip(("alpha", "beta"), scalars, strict=True):
            if self.out_integer and value != int(value):
                raise ValueError(f"{name} of an integer product is a whole number, not {value}")
            found[name] = int(value) if self.out_integer else value
        return found
