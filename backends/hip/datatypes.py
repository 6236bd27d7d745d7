"""Number formats as AMD's libraries number them (hip/library_types.h, hipblas.h, rocblas-types.h)."""

from __future__ import annotations

from collections.abc import Mapping

#: hipDataType
DATA_TYPES: Mapping[str, int] = {
    "fp32": 0, "fp64": 1, "fp16": 2, "int8": 3, "int32": 10, "bf16": 14, "fp8_e4m3": 28, "fp8_e5m2": 29,
    "fp8_e4m3_fnuz": 1000, "fp8_e5m2_fnuz": 1001,
}  # fmt: skip
#: hipblasComputeType_t
COMPUTE_TYPES: Mapping[str, int] = {"fp16": 0, "fp32": 2, "tf32": 6, "fp64": 7, "int32": 9}
#: hipblasOperation_t, and rocblas_operation.
OPERATIONS: Mapping[str, int] = {"N": 111, "T": 112, "C": 113}
#: rocblas_datatype
ROCBLAS_TYPES: Mapping[str, int] = {
    "fp16": 150, "fp32": 151, "fp64": 152, "int8": 160, "int32": 162, "bf16": 168,
}  # fmt: skip

OCP, FNUZ = ("fp8_e4m3", "fp8_e5m2"), ("fp8_e4m3_fnuz", "fp8_e5m2_fnuz")


def fp8_formats(arch: str) -> tuple[str, ...]:
    """The 8-bit floats that an architecture multiplies: FNUZ on gfx94x (CDNA 3), the Open Compute Project's
    on gfx95x (CDNA 4) and gfx12xx (RDNA 4), none elsewhere."""
    if arch.startswith("gfx94"):
        return FNUZ
    return OCP if arch.startswith(("gfx95", "gfx12")) else ()


def fp8_rule(dtypes: tuple[str, ...], arch: str) -> str | None:
    """The rule that an 8-bit float breaks on an architecture, naming the format that it has instead."""
    known = fp8_formats(arch)
    for dtype in dtypes:
        if dtype in (*OCP, *FNUZ) and dtype not in known:
            has = f"it has {' and '.join(known)}" if known else "it has no 8-bit floats"
            return f"{arch} does not multiply {dtype}: {has}"
    return None
