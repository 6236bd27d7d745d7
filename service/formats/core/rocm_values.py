"""What the logs and override files of hipBLASLt and rocBLAS share: type names, whole numbers, scalars,
operation letters, and the note at the head of an override file written here.

Source: hipDataType_to_bench_string of hipBLASLt and rocblas_datatype_string of rocBLAS.
`f8_r` and `bf8_r` are the OCP formats; the names of MI300's FNUZ formats contain `fnuz`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from service.formats.tunableop.signature import BadLineError, quote

#: Type names of both libraries -> storage type.
TYPES: Mapping[str, str] = {
    "f64_r": "fp64",
    "f32_r": "fp32",
    "f16_r": "fp16",
    "bf16_r": "bf16",
    "f8_r": "fp8_e4m3",
    "bf8_r": "fp8_e5m2",
    "f8_fnuz_r": "fp8_e4m3_fnuz",
    "bf8_fnuz_r": "fp8_e5m2_fnuz",
    "i8_r": "int8",
    "i32_r": "int32",
    "f32_c": "complex64",
    "f64_c": "complex128",
}
_WHOLE = re.compile("[0-9]+")
_SCALAR = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


def whole(text: str, name: str, least: int = 1) -> int:
    """Parses a decimal integer of at least `least` that fits signed 64 bits. Raises BadLineError."""
    if not text.isascii() or not text.isdigit():
        if _WHOLE.fullmatch(text.removeprefix("-")):
            raise BadLineError(f"{name} {quote(text)} is negative; it must be at least {least}")
        raise BadLineError(f"{name} {quote(text)} is not a whole number")
    # The length is checked first: Python refuses to convert thousands of digits.
    if len(text) > 19 or (value := int(text)) >= 2**63:
        raise BadLineError(f"{name} {quote(text)} does not fit 64 bits")
    if value < least:
        raise BadLineError(f"{name} is {value}; it must be at least {least}")
    return value


def scalar(text: str, name: str) -> float:
    """Parses a finite number as C++ streams or YAML print it. Raises BadLineError."""
    value = float(text) if _SCALAR.fullmatch(text) else math.nan
    if not math.isfinite(value):
        raise BadLineError(f"{name} {quote(text)} is not a finite number")
    return value


def operation(text: str, name: str) -> str:
    """N, T or C. Raises BadLineError."""
    if text not in ("N", "T", "C"):
        raise BadLineError(f"{name} {quote(text)} is not N, T or C")
    return text


def storage(text: str, name: str) -> str:
    """The storage type of a type name. Raises BadLineError."""
    found = TYPES.get(text)
    if found is None:
        raise BadLineError(f"{name} {quote(text)} is not supported; supported: {', '.join(TYPES)}")
    return found


def accumulator(text: str, name: str, known: Mapping[str, str]) -> str:
    """The compute type of a name; `known` maps the names. Raises BadLineError."""
    found = known.get(text)
    if found is None:
        raise BadLineError(f"{name} {quote(text)} is not supported; supported: {', '.join(known)}")
    return found


# ---- the note of an override file ----------------------------------------------------------------

_NOTE = re.compile(r"#[ \t]*(hipBLASLt|rocBLAS)[ \t]+([^\s,]{1,100})(?:[ \t].*)?")


def build_note(library: str, build: str, arch: str, units: str) -> str:
    """The line that says to people and to gemmtune's readers for which build and device an override file is.
    It has no comma, so both libraries skip it."""
    return f"# {library} {build} on {arch} with {units} CUs"


def noted_build(text: str, library: str) -> str | None:
    """The build that a note names; None if the line is not a note for that library."""
    found = _NOTE.fullmatch(text)
    return None if found is None or found[1] != library else found[2]
