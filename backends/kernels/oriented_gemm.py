"""A problem as a kernel sees it, and the argument that describes it to the kernel (args.h: GemmArgs)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property, lru_cache

from backends.dtypes import DTYPES
from backends.operands import Layout, Operands, layouts
from backends.problem import GemmProblem

#: Bytes of the widest load.
WIDE = 16
#: args.h: enum Activation. Kernels that apply swiglu are compiled for it (gated_rows.h).
ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "silu": 3, "swiglu": 0}
#: gemmtune's type -> its name in types.h.
CPP_TYPES = {"fp32": "float", "fp16": "gemmtune::Half", "bf16": "gemmtune::Bf16"}
#: The most blocks along the grid's y and z on every vendor.
MOST_BLOCKS_YZ = 65535


def flag(value: bool) -> str:
    """A template argument."""
    return "true" if value else "false"


@dataclass(frozen=True)
class OrientedGemm:
    """op(A)[m,k] op(B)[k,n] of a problem or (swap_ab) its transpose op(B)^T[n,k] op(A)^T[k,m], whose A is the
    problem's B. The names below are those of the oriented GEMM."""

    problem: GemmProblem
    swap_ab: bool = False

    @property
    def m(self) -> int:
        """Rows of D."""
        return self.problem.n if self.swap_ab else self.problem.m

    @property
    def n(self) -> int:
        """Columns of D."""
        return self.problem.m if self.swap_ab else self.problem.n

    @property
    def k(self) -> int:
        """Length of every dot product, in elements."""
        return self.problem.k

    @property
    def batch(self) -> int:
        """GEMMs in the batch."""
        return self.problem.batch

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of A or B."""
        return DTYPES[self.problem.dtype_a].bytes

    @property
    def a_along_k(self) -> bool:
        """Whether A is contiguous along k (else along m)."""
        p = self.problem
        return p.trans_b == "N" if self.swap_ab else p.trans_a != "N"

    @property
    def b_along_k(self) -> bool:
        """Whether B is contiguous along k (else along n); a single column without gaps always is."""
        p = self.problem
        along = p.trans_a != "N" if self.swap_ab else p.trans_b == "N"
        return along or (self.n == 1 and self._ld("b") == 1)

    def _ld(self, operand: str) -> int:
        return self._layout(operand).ld

    def _layout(self, operand: str) -> Layout:
        own = {"a": "b", "b": "a"}[operand] if self.swap_ab else operand
        return layouts(self.problem)[own]

    def line_bytes(self, operand: str) -> int:
        """Bytes from the start of a contiguous line of A or B to the start of the next one."""
        return self._ld(operand) * self.element_bytes

    @cached_property
    def _aligned(self) -> dict[str, bool]:
        return {operand: self._is_aligned(operand) for operand in ("a", "b")}

    def aligned(self, operand: str) -> bool:
        """Whether every contiguous line of A or B ("a", "b") starts at a multiple of 16 bytes, given the
        alignment of the address that the problem promises."""
        return self._aligned[operand]

    def _is_aligned(self, operand: str) -> bool:
        layout = self._layout(operand)
        size = layout.dtype.bytes
        lines = layout.columns == 1 or layout.ld * size % WIDE == 0
        batches = self.batch == 1 or layout.stride * size % WIDE == 0
        return self.problem.alignment >= WIDE and lines and batches

    def whole(self, operand: str) -> bool:
        """aligned(), and every line is a whole number of 16-byte loads: a load lies entirely within or beyond
        it."""
        layout = self._layout(operand)
        return self.aligned(operand) and layout.rows * layout.dtype.bytes % WIDE == 0

    @property
    def types(self) -> str:
        """args.h: Types<...> of this problem."""
        p = self.problem
        kinds = (p.input_type, p.dtype_c, p.dtype_d, p.bias or p.dtype_d)
        return f"gemmtune::Types<{', '.join(CPP_TYPES[kind] for kind in kinds)}>"

    @property
    def sides(self) -> str:
        """The template arguments that most kernels start with: types, and the contiguous dimensions of A and
        B."""
        return f"{self.types}, {flag(self.a_along_k)}, {flag(self.b_along_k)}"

    def tiles(self, tile_m: int, tile_n: int) -> int:
        """Tiles that D is cut into."""
        return -(-self.m // tile_m) * -(-self.n // tile_n)

    @property
    def batch_blocks(self) -> int:
        """grid.z: GEMMs of the batch, as many as a grid permits there."""
        return min(self.batch, MOST_BLOCKS_YZ)

    @property
    def batch_groups(self) -> int:
        """The number of groups of batch_blocks GEMMs in the batch; a factor of grid.y."""
        return -(-self.batch // self.batch_blocks)

    def partial_bytes(self, splits: int) -> int:
        """Workspace for the sums of `splits` slices of k."""
        return 0 if splits == 1 else splits * self.batch * self.m * self.n * 4

    def arguments(self, operands: Operands, workspace: int, splits: int = 1, step: int = 1) -> GemmArgs:
        """The kernel's argument for one set of operands (device addresses); slices of k are multiples of
        `step`."""
        p, side = self.problem, self.swap_ab
        a, b = (operands.b, operands.a) if side else (operands.a, operands.b)
        on_row = (p.bias_axis == "n") if side else (p.bias_axis == "m")
        strides = (p.stride_b, p.stride_a) if side else (p.stride_a, p.stride_b)
        steps = [(ld, 1) if side else (1, ld) for ld in (p.ldc, p.ldd)]
        return GemmArgs(
            a, b, operands.c, operands.bias, operands.d, workspace,
            self._ld("a"), self._ld("b"), *strides, p.stride_c, p.stride_d, *steps[0], *steps[1],
            int(on_row), int(not on_row), self._layout("a").bytes, self._layout("b").bytes,
            self.m, self.n, self.k, self.batch, splits,
            -(-self.k // (splits * step)) * step, self.batch_blocks, self.batch_groups,
            ACTIVATIONS[p.activation], alpha=operands.alpha, beta=operands.beta,
        )  # fmt: skip


@lru_cache(maxsize=64)
def oriented(problem: GemmProblem, swap_ab: bool = False) -> OrientedGemm:
    """The same object each time, with what it has derived: a search asks thousands of times."""
    return OrientedGemm(problem, swap_ab)


_Pointers = tuple((name, ctypes.c_void_p) for name in ("a", "b", "c", "bias", "d", "partial"))
_Longs = (
    "lda", "ldb", "stride_a", "stride_b", "stride_c", "stride_d", "c_row", "c_column", "d_row", "d_column",
    "bias_row", "bias_column", "a_bytes", "b_bytes",
)  # fmt: skip
_Ints = (
    "m", "n", "k", "batch", "splits", "slice", "batch_blocks", "batch_groups", "activation", "blocks",
    "whole", "share", "extra",
)  # fmt: skip


class GemmArgs(ctypes.Structure):
    """args.h: GemmArgs. Every translation unit asserts its size."""

    _fields_ = (
        *_Pointers,
        *((name, ctypes.c_longlong) for name in _Longs),
        *((name, ctypes.c_uint if name == "slice" else ctypes.c_int) for name in _Ints),
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
    )
