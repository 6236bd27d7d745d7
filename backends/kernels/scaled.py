"""8-bit operands with scales as NVIDIA's kernels see them: the types and the rules that their families share
(matrix_epilogue.h)."""

from __future__ import annotations

from backends.environment import Environment
from backends.grouping import ungrouped
from backends.kernels.legality import capability
from backends.kernels.oriented_gemm import WIDE, OrientedGemm
from backends.problem import GemmProblem

#: The 8-bit floats of NVIDIA's tensor cores.
FP8 = ("fp8_e4m3", "fp8_e5m2")
#: Elements of C, of D and of the bias.
_ENDS = ("fp32", "fp16", "bf16", "int8", "int32", *FP8)
#: The compute capability (times ten) from which 8-bit floats are converted by instructions.
_CONVERTS = 89


def blocks(p: GemmProblem) -> bool:
    """Whether 128 x 128 elements of A share a scale, and 128 of a column of B."""
    return (p.scale_a, p.scale_b) == ("block_128x128", "block_1x128")


def unsupported_bytes(p: GemmProblem) -> str | None:
    """Why no family for 8-bit operands has the problem's types or scales, or None."""
    if (broken := ungrouped(p)) is not None:
        return broken
    fp8 = p.dtype_a in FP8 and p.dtype_b in FP8 and p.compute == "fp32"
    if not fp8 and (p.dtype_a, p.dtype_b, p.compute) != ("int8", "int8", "int32"):
        kinds = f"int8 in int32, or {' and '.join(FP8)} in fp32"
        return f"these kernels multiply {kinds}, not {p.dtype_a} x {p.dtype_b} in {p.compute}"
    for kind in filter(None, (p.dtype_c, p.dtype_d, p.bias)):
        if kind not in _ENDS:
            return f"our kernels have no C, D or bias of {kind}"
    if p.scale_dtype not in (None, "fp32"):
        return f"our kernels have scales of fp32, not {p.scale_dtype}"
    if blocks(p) and fp8:
        return None
    for scale in (p.scale_a, p.scale_b):
        if scale not in ("none", "tensor", "outer"):
            return (
                "our kernels have scales of tensors, rows and columns, and of 128 x 128 elements of an 8-bit "
                f"float's A with 1 x 128 of its B, not {p.scale_a} with {p.scale_b}"
            )
    return None


def bytes_rule(product: OrientedGemm, environment: Environment) -> str | None:
    """The rule that is broken, or None: 8-bit floats on this architecture."""
    if product.problem.dtype_a in FP8 and capability(environment) < _CONVERTS:
        return f"8-bit floats need sm_89 or later, not {environment.arch}"
    return None


def lines_rule(product: OrientedGemm) -> str | None:
    """The rule that is broken, or None: a 16-byte word of an operand is within or beyond a line along k."""
    if not (product.a_along_k and product.b_along_k):
        return "both operands must be contiguous along k"
    for operand in ("a", "b"):
        if not product.whole(operand):
            what = f"lines of {operand.upper()} must start at multiples of {WIDE} bytes"
            return f"{what} and be whole numbers of them"
    return None


def sums_kind(product: OrientedGemm) -> str:
    """matrix_epilogue.h: enum SumsKind, for the product."""
    p = product.problem
    if blocks(p):
        return "kScaled"
    return "kPromoted" if p.dtype_a in FP8 and not p.fast_accumulation else "kPlain"
