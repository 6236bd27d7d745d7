"""Problems of quantised weights: every type, group and zero point."""

from __future__ import annotations

from typing import Any

from backends.problem import GemmProblem, from_linear

#: (storage type, zero point) that exist.
KINDS = (
    ("uint4", "none"), ("uint4", "eight"), ("uint4", "uint4"), ("uint4", "float"), ("uint4", "shift"),
    ("int4", "none"), ("int8", "none"),
)  # fmt: skip
SCALES = ("block_1x32", "block_1x64", "block_1x128", "outer", "tensor")


def weights(m: int, n: int, k: int, kind: str = "uint4", **options: Any) -> GemmProblem:
    """x[m,k] of bf16 by w[n,k] of `kind`, groups of 128 with scales of bf16."""
    how = {"dtype_b": kind, "scale_b": "block_1x128", "scale_dtype": "bf16", **options}
    return from_linear(m, n, k, how.pop("dtype_a", "bf16"), **how)


def mxfp4(m: int, n: int, k: int, **options: Any) -> GemmProblem:
    """x[m,k] of bf16 by w[n,k] of MXFP4."""
    return weights(m, n, k, "fp4_e2m1", **{**options, "scale_b": "block_1x32", "scale_dtype": "fp8_e8m0"})


def mx_product(m: int, n: int, k: int, **options: Any) -> GemmProblem:
    """x[m,k] by w[n,k], both of MXFP4, to bf16."""
    both = {"scale_a": "block_1x32", "scale_b": "block_1x32", "dtype_d": "bf16"}
    return from_linear(m, n, k, "fp4_e2m1", **{**both, **options})


#: Scales of weights of fp8.
FP8_SCALES = (*SCALES, "block_128x128")


def fp8(m: int, n: int, k: int, **options: Any) -> GemmProblem:
    """x[m,k] of bf16 by w[n,k] of fp8_e4m3, one scale of bf16 a row."""
    return weights(m, n, k, "fp8_e4m3", **{"scale_b": "outer", **options})


def every_kind(m: int, n: int, k: int, **options: Any) -> list[GemmProblem]:
    """Every pair of KINDS with every scale that it may have, fp8, and MXFP4."""
    integers = [
        weights(m, n, k, kind, zero_b=zero, scale_b=scale, **options)
        for kind, zero in KINDS
        for scale in SCALES
        if scale != "tensor" or zero in ("none", "eight")
    ]
    floats = [fp8(m, n, k, scale_b=scale, **options) for scale in FP8_SCALES]
    return [*integers, *floats, mxfp4(m, n, k, **options)]
