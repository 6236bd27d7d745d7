"""Quantised weights in a problem: their types, scales and zero points, and which combinations exist. The
service has the same rules in backends/quantisation.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmtune.errors import ProblemError
from gemmtune.values import check_flag, one_of

#: OCP's 4-bit float, the elements of MXFP4; the 8-bit float of weights; the types of weights, and of the
#: activations beside them.
FP4, FP8 = "fp4_e2m1", "fp8_e4m3"
WEIGHTS, ACTIVATION_TYPES = ("int4", "uint4", "int8", FP4, FP8), ("bf16", "fp16")
ZEROS = ("none", "eight", "uint4", "float", "shift")
STORED_ZEROS = ZEROS[2:]
#: Scale of a group of k -> elements of the group.
GROUPS: Mapping[str, int] = {"block_1x32": 32, "block_1x64": 64, "block_1x128": 128}
#: The scale of MXFP4; that of blocks of rows, which weights of fp8 alone have; elements of a block's side.
MX_SCALE, SQUARE, SQUARE_SIDE = "block_1x32", "block_128x128", 128


def is_weight(a: str, b: str) -> bool:
    """Whether A is a quantised weight matrix."""
    return a in WEIGHTS and b in ACTIVATION_TYPES


def is_mx_product(p: Mapping[str, Any]) -> bool:
    """Whether A and B are both MXFP4."""
    return bool(p["dtype_a"] == p["dtype_b"] == FP4)


def weight_scale_dtypes(p: Mapping[str, Any]) -> tuple[str, ...]:
    """The types that scales of weights may have. Raises ProblemError for those of NVFP4."""
    if p["dtype_a"] != FP4:
        return "fp32", "bf16", "fp16"
    if p["scale_dtype"] in ("fp8_e4m3", "fp32"):
        raise ProblemError(
            f"scale_dtype {p['scale_dtype']}: NVFP4, of e4m3 scales of groups of 16 and an fp32 scale of the "
            "matrix, is not supported; MXFP4 has scales of fp8_e8m0",
            "scale_dtype",
        )
    return ("fp8_e8m0",)


def prepacking(prepacked: bool) -> dict[str, Any]:
    """The field of a product whose weights are packed at load; none where they are read as stored."""
    check_flag(prepacked, "prepacked")
    return {"prepacked": True} if prepacked else {}


def check_weights(p: Mapping[str, Any]) -> None:
    """Checks what only quantised weights have, and that nothing else has it; and products of MXFP4."""
    zero, kind, scale = p.get("zero_a", "none"), p["dtype_a"], p["scale_a"]
    one_of(zero, "zero_a", ZEROS)
    _check_prepacked(p)
    if is_mx_product(p):
        _check_mx_product(p)
    if not is_weight(kind, p["dtype_b"]):
        if zero != "none":
            raise ProblemError(f"zero_a {zero} is of quantised weights, not of {kind}", "zero_a")
        return
    if p["trans_a"] != "T":
        raise ProblemError(
            f"trans_a {p['trans_a']}: weights of {kind} are contiguous along k (F.linear's w[n,k])", "trans_a"
        )
    if p["batch"] != 1:
        raise ProblemError(f"batch {p['batch']}: quantised weights are of one product", "batch")
    for name in ("scale_b", "scale_d"):
        if p[name] != "none":
            raise ProblemError(f"{name} {p[name]}: only the weights have scales here", name)
    scales = (MX_SCALE,) if kind == FP4 else ("tensor", "outer", *GROUPS)
    one_of(scale, "scale_a", (*scales, SQUARE) if kind == FP8 else scales, f" for weights of {kind}")
    group = SQUARE_SIDE if scale == SQUARE else GROUPS.get(scale)
    if group is not None and p["k"] % group:
        raise ProblemError(f"k {p['k']} is no multiple of the scale's group of {group}", "k")
    for name in ("k", "lda", *(("stride_a",) if p.get("groups") else ())):
        if kind not in ("int8", FP8) and p[name] % 2:
            raise ProblemError(f"{name} {p[name]} is odd: two elements of {kind} share a byte", name)
    if kind == FP4 and zero != "none":
        raise ProblemError(f"zero_a {zero}: {kind} has a sign, and MXFP4 no zero point", "zero_a")
    if kind != "uint4" and zero != "none":
        raise ProblemError(f"zero_a {zero}: {kind} is signed and has no zero point", "zero_a")
    if scale == "tensor" and zero in STORED_ZEROS:
        raise ProblemError(
            f"zero_a {zero} is one a group or a row; a single scale has none or eight", "zero_a"
        )
    if zero == "uint4" and p["m"] % 8:
        raise ProblemError(f"m {p['m']}: zero points of uint4 are packed 8 rows to a word", "m")


def _check_mx_product(p: Mapping[str, Any]) -> None:
    for name, along_k in (("trans_a", "T"), ("trans_b", "N")):
        if p[name] != along_k:
            raise ProblemError(
                f"{name} {p[name]}: operands of {FP4} are contiguous along k (F.linear's x[m,k] and w[n,k])",
                name,
            )
    if p["batch"] != 1:
        raise ProblemError(f"batch {p['batch']}: products of {FP4} are single ones", "batch")
    for name in ("scale_a", "scale_b"):
        one_of(p[name], name, (MX_SCALE,), f" for operands of {FP4}")
    if p["scale_d"] != "none":
        raise ProblemError(f"scale_d {p['scale_d']}: only the operands of {FP4} have scales", "scale_d")
    if p["k"] % GROUPS[MX_SCALE]:
        raise ProblemError(f"k {p['k']} is no multiple of the scale's group of {GROUPS[MX_SCALE]}", "k")
    for name in ("lda", "ldb"):
        if p[name] % 2:
            raise ProblemError(f"{name} {p[name]} is odd: two elements of {FP4} share a byte", name)


def _check_prepacked(p: Mapping[str, Any]) -> None:
    if p.get("prepacked") and not is_weight(p["dtype_a"], p["dtype_b"]):
        kinds = f"{p['dtype_a']} x {p['dtype_b']}"
        raise ProblemError(
            f"prepacked true is of quantised weights, not of {kinds}: leave it out", "prepacked"
        )
    if p.get("prepacked") and p.get("groups"):
        raise ProblemError(
            "prepacked true: weights of groups are read as they are stored; leave it out", "prepacked"
        )
