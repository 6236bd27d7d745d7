"""The number formats of GEMM operands, and host conversions that need no torch.

Each format is stored on the host as a numpy dtype; ml_dtypes supplies those numpy lacks (bf16, fp8). Two
4-bit elements share a byte, the one at the even index in its low half. The unit roundoff is half the spacing
of numbers just above one: 2**-(significand bits), counting the hidden bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from backends.errors import InvalidProblem

FLOAT, INTEGER, COMPLEX = "float", "integer", "complex"

#: OCP's 4-bit float (Microscaling Formats 1.0, 5.3.3), and the numbers of its 16 codes: a sign, two bits of
#: exponent with bias 1, one of mantissa; neither infinity nor NaN.
FP4 = "fp4_e2m1"
#: The 8-bit float of weights beside 16-bit activations: OCP's e4m3, finite to 448, with NaN and without
#: infinity.
FP8_WEIGHT = "fp8_e4m3"
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1: tuple[float, ...] = (*_MAGNITUDES, *(-one for one in _MAGNITUDES))


@dataclass(frozen=True)
class DType:
    """One number format. `significand` counts the hidden bit (0 for integers). `packing` elements share one
    stored unit of type `storage`: 1, except for formats of 4 bits."""

    name: str
    bits: int
    kind: str
    significand: int
    storage: np.dtype[Any]
    packing: int = 1

    def __post_init__(self) -> None:
        if self.storage.itemsize * 8 != self.bits * self.packing:
            raise ValueError(
                f"{self.name}: {self.bits} bits, {self.packing} to a unit, stored in {self.storage}"
            )

    @property
    def bytes(self) -> int:
        """Size of one stored unit in bytes: of an element, or of the two that share a byte."""
        return self.storage.itemsize

    def size(self, elements: int) -> int:
        """Bytes of `elements` elements that are stored one after another."""
        return -(-elements // self.packing) * self.bytes

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding to this format (0.0 for integers)."""
        return 0.0 if self.kind == INTEGER else 2.0**-self.significand

    @property
    def poison(self) -> int:
        """The byte that elements hold before a kernel writes them: a large odd number of integers; floats of
        these bytes are NaN (FNUZ formats have one NaN, others have 0xFF..; e2m1, which no kernel writes, has
        none)."""
        if self.kind == INTEGER:
            return 0x77
        return 0x80 if self.name.endswith("_fnuz") else 0xFF

    @property
    def largest(self) -> float:
        """Largest finite value."""
        if self.name == FP4:
            return float(max(E2M1))
        if self.packing > 1:
            return float(2**self.bits - 1 if self.name.startswith("u") else 2 ** (self.bits - 1) - 1)
        if self.kind == INTEGER:
            return float(np.iinfo(self.storage).max)
        return float(ml_dtypes.finfo(self.storage).max)  # type: ignore[no-untyped-call]

    def __str__(self) -> str:
        return self.name


def _row(name: str, kind: str, significand: int, storage: npt.DTypeLike, packing: int = 1) -> DType:
    dtype = np.dtype(storage)
    return DType(name, dtype.itemsize * 8 // packing, kind, significand, dtype, packing)


DTYPES: Mapping[str, DType] = {
    row.name: row
    for row in (
        _row("fp64", FLOAT, 53, np.float64),
        _row("fp32", FLOAT, 24, np.float32),
        _row("fp16", FLOAT, 11, np.float16),
        _row("bf16", FLOAT, 8, ml_dtypes.bfloat16),
        _row("fp8_e4m3", FLOAT, 4, ml_dtypes.float8_e4m3fn),
        _row("fp8_e5m2", FLOAT, 3, ml_dtypes.float8_e5m2),
        _row("fp8_e4m3_fnuz", FLOAT, 4, ml_dtypes.float8_e4m3fnuz),
        _row("fp8_e5m2_fnuz", FLOAT, 3, ml_dtypes.float8_e5m2fnuz),
        _row("fp8_e8m0", FLOAT, 1, ml_dtypes.float8_e8m0fnu),
        _row("int8", INTEGER, 0, np.int8),
        _row("int32", INTEGER, 0, np.int32),
        _row("complex64", COMPLEX, 24, np.complex64),
        _row("complex128", COMPLEX, 53, np.complex128),
        # New ones last: a C header numbers them in this order.
        _row("int4", INTEGER, 0, np.uint8, 2),
        _row("uint4", INTEGER, 0, np.uint8, 2),
        _row(FP4, FLOAT, 2, np.uint8, 2),
    )
}

#: Names that other tools use for the same formats.
ALIASES: Mapping[str, str] = {
    "float64": "fp64", "double": "fp64", "f64": "fp64",
    "float32": "fp32", "float": "fp32", "f32": "fp32",
    "float16": "fp16", "half": "fp16", "f16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2",
    "float8_e4m3fnuz": "fp8_e4m3_fnuz", "float8_e5m2fnuz": "fp8_e5m2_fnuz",
    "float8_e8m0fnu": "fp8_e8m0", "float4_e2m1fn_x2": FP4, "float4_e2m1fn": FP4,
    "i8": "int8", "i32": "int32", "i4": "int4", "u4": "uint4",
}  # fmt: skip

#: Significand bits of the accumulator, by compute type. tf32 and the bf16 splits accumulate in fp32; how they
#: round their *inputs* is in INPUT_ROUNDOFF.
COMPUTE_TYPES: Mapping[str, int] = {
    "fp64": 53, "fp32": 24, "tf32": 24, "bf16x9": 24, "fp16": 11, "int32": 0,
}  # fmt: skip

#: Relative error that a compute type adds to each input before multiplying.
INPUT_ROUNDOFF: Mapping[str, float] = {"tf32": 2.0**-11}

_FP8 = ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3_fnuz", "fp8_e5m2_fnuz")

#: Compute types that make sense for an input format; the first is the default.
COMPUTE_FOR: Mapping[str, tuple[str, ...]] = {
    "fp64": ("fp64",),
    "fp32": ("fp32", "tf32", "bf16x9"),
    "fp16": ("fp32", "fp16"),
    "bf16": ("fp32",),
    "int8": ("int32",),
    "complex64": ("fp32", "tf32"),
    "complex128": ("fp64",),
    **dict.fromkeys(_FP8, ("fp32",)),
    FP4: ("fp32",),
}

#: Output formats that an input format may produce; the first is the default.
OUTPUTS_FOR: Mapping[str, tuple[str, ...]] = {
    "fp64": ("fp64",),
    "fp32": ("fp32",),
    "fp16": ("fp16", "fp32"),
    "bf16": ("bf16", "fp32"),
    "int8": ("int32", "int8", "fp32", "fp16", "bf16"),
    "complex64": ("complex64",),
    "complex128": ("complex128",),
    **dict.fromkeys(_FP8, ("bf16", "fp16", "fp32", *_FP8)),
    FP4: ("bf16", "fp16", "fp32"),
}

#: Characters of a value that a message shows.
MOST_SHOWN = 80

#: Storage types of quantised weights, and the types of the activations that are multiplied by them.
WEIGHT_TYPES = ("int4", "uint4", "int8", FP4, FP8_WEIGHT)
ACTIVATION_TYPES = ("bf16", "fp16")


def is_weight_only(a: str, b: str) -> bool:
    """Whether a product of these two types is one of quantised weights and 16-bit activations."""
    return a in WEIGHT_TYPES and b in ACTIVATION_TYPES


def is_fp8(dtype: DType) -> bool:
    """Whether the format is one of the 8-bit floats that GEMM operands use."""
    return dtype.name in _FP8


def dtype(name: object, field: str = "dtype") -> DType:
    """The format called `name` (or an alias). Raises InvalidProblem naming `field`."""
    if isinstance(name, DType):
        return name
    if isinstance(name, str):
        if name in DTYPES:
            return DTYPES[name]
        key = name.strip().lower()
        found = DTYPES.get(ALIASES.get(key, key))
        if found is not None:
            return found
    known = ", ".join(DTYPES)
    raise InvalidProblem(f"{field} {shown(name)} is unknown; known: {known}", field)


def shown(value: object) -> str:
    """A value as a message shows it: what is too long to leave room for the rest is cut."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def to_host(values: npt.NDArray[Any], target: DType) -> npt.NDArray[Any]:
    """Rounds float64 or float32 `values` to `target` once (nearest even; integers clip to their range)."""
    if target.packing > 1:
        raise ValueError(f"two elements of {target} share a byte: backends.quantisation packs them")
    if target.kind == INTEGER:
        info = np.iinfo(target.storage)
        # In float64, because fp32 cannot represent 2**31 - 1.
        values = np.clip(np.rint(values.astype(np.float64)), info.min, info.max)
    elif values.dtype == np.float64 and target.kind == FLOAT and target.significand < 11:
        values = _to_odd_fp32(values)
    rounded: npt.NDArray[Any] = values.astype(target.storage)
    return rounded


def _to_odd_fp32(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rounds float64 to float32; inexact values go to the neighbour with an odd last bit. ml_dtypes converts
    through float32, and the second rounding is correct only after rounding to odd (Boldo and Melquiond,
    2008)."""
    near = values.astype(np.float32)
    with np.errstate(invalid="ignore"):
        inexact = np.isfinite(near) & (near.astype(np.float64) != values)
        beyond = inexact & (np.abs(near.astype(np.float64)) > np.abs(values))
    cut = np.where(beyond, np.nextafter(near, np.float32(0)), near)
    bits = cut.view(np.uint32) | inexact.astype(np.uint32)
    odd: npt.NDArray[Any] = bits.view(np.float32)
    return odd
