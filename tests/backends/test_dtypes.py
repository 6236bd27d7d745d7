"""Number formats, against exact rational arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.dtypes import (
    ALIASES,
    COMPLEX,
    COMPUTE_FOR,
    COMPUTE_TYPES,
    DTYPES,
    FLOAT,
    FP4,
    INPUT_ROUNDOFF,
    INTEGER,
    OUTPUTS_FOR,
    DType,
    dtype,
    is_fp8,
    to_host,
)
from backends.errors import InvalidProblem

#: name -> (significand bits with the hidden one, exponent of the least normal number, largest).
FORMATS: dict[str, tuple[int, int, Fraction]] = {
    "fp16": (11, -14, Fraction(65504)),
    "bf16": (8, -126, (2 - Fraction(1, 2**7)) * 2**127),
    "fp8_e4m3": (4, -6, Fraction(448)),
    "fp8_e5m2": (3, -14, Fraction(57344)),
    "fp8_e4m3_fnuz": (4, -7, Fraction(240)),
    "fp8_e5m2_fnuz": (3, -15, Fraction(57344)),
}
NARROW = tuple(FORMATS)
FLOATS = tuple(name for name, row in DTYPES.items() if row.kind == FLOAT and name not in ("fp8_e8m0", FP4))


def nearest_even(value: Fraction, name: str) -> Fraction:
    """`value` rounded to the format, subnormals included, as if its exponents had no upper end."""
    digits, least, _ = FORMATS[name]
    if value == 0:
        return value
    exponent = math.frexp(value.numerator / value.denominator)[1] - 1
    while Fraction(2) ** exponent > abs(value):
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= abs(value):
        exponent += 1
    spacing = Fraction(2) ** (max(exponent, least) - digits + 1)
    return round(value / spacing) * spacing  # Fraction rounds halves to even


def rounded(values: Iterable[float], name: str, source: npt.DTypeLike) -> list[float]:
    found = to_host(np.array(list(values), dtype=source), DTYPES[name])
    assert found.dtype == DTYPES[name].storage
    return [float(value) for value in found.astype(np.float64)]


def finite(name: str) -> list[float]:
    """Every finite number of a format of at most 16 bits."""
    row = DTYPES[name]
    codes = np.arange(2**row.bits, dtype=np.uint8 if row.bits == 8 else np.uint16)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = codes.view(row.storage).astype(np.float64)
    return sorted({float(value) for value in values if math.isfinite(value)})


# ---- rounding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NARROW)
def test_numbers_of_the_format_stay(name: str) -> None:
    values = finite(name)[:: 1 if DTYPES[name].bits == 8 else 37]
    assert rounded(values, name, np.float32) == values
    assert rounded(values, name, np.float64) == values
    assert all(nearest_even(Fraction(value), name) == value for value in values)


@pytest.mark.parametrize("name", NARROW)
def test_halves_round_to_even_and_their_neighbours_to_the_nearest(name: str) -> None:
    values = finite(name)
    values = values if len(values) < 300 else values[:50] + values[len(values) // 2 :: 301]
    halves = [np.float32((low + high) / 2) for low, high in pairwise(values)]
    edges = [
        float(edge)
        for half in halves
        for edge in (np.nextafter(half, np.float32(-np.inf)), half,
                     np.nextafter(half, np.float32(np.inf)))
        if abs(edge) <= FORMATS[name][2]
    ]  # fmt: skip
    expected = [nearest_even(Fraction(edge), name) for edge in edges]
    assert rounded(edges, name, np.float32) == [float(value) for value in expected]


@pytest.mark.parametrize("name", NARROW)
@given(data=st.data())
def test_any_fp32_number_rounds_to_the_nearest(name: str, data: st.DataObject) -> None:
    largest = float(FORMATS[name][2])
    value = data.draw(st.floats(-largest, largest, width=32))
    assert rounded([value], name, np.float32) == [float(nearest_even(Fraction(value), name))]


@given(st.floats(-65504, 65504))
def test_fp64_rounds_to_fp16_once(value: float) -> None:
    assert rounded([value], "fp16", np.float64) == [float(nearest_even(Fraction(value), "fp16"))]


@pytest.mark.parametrize("name", [name for name in NARROW if name != "fp16"])
def test_fp64_rounds_once(name: str) -> None:
    above_half = 1 + 2.0 ** -FORMATS[name][0] + 2.0**-45
    assert nearest_even(Fraction(above_half), name) > 1
    assert rounded([above_half], name, np.float64)[0] > 1


@pytest.mark.parametrize(("name", "past"), [("fp16", 65520.0), ("bf16", 3.4e38), ("fp8_e5m2", 61440.0)])
def test_formats_with_infinity_overflow_to_it(name: str, past: float) -> None:
    with np.errstate(over="ignore"):
        assert rounded([past, -past], name, np.float32) == [math.inf, -math.inf]
    below = float(FORMATS[name][2])
    assert rounded([below], name, np.float32) == [below]


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e4m3_fnuz", "fp8_e5m2_fnuz"])
def test_formats_without_infinity_overflow_to_nan(name: str) -> None:
    values = rounded([2 * float(FORMATS[name][2]), -math.inf], name, np.float32)
    assert all(math.isnan(value) for value in values)


@pytest.mark.parametrize("name", FLOATS)
def test_nan_stays_nan(name: str) -> None:
    assert math.isnan(rounded([math.nan], name, np.float32)[0])


INTEGER_EDGES = [
    (0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (-2.5, -2), (126.5, 126), (127.4, 127),
    (127.5, 127), (128.0, 127), (1e9, 127), (math.inf, 127), (-128.5, -128), (-129.0, -128),
    (-math.inf, -128), (3.49, 3),
]  # fmt: skip


@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_int8_rounds_to_even_and_saturates(source: npt.DTypeLike) -> None:
    values, expected = zip(*INTEGER_EDGES, strict=True)
    assert rounded(values, "int8", source) == list(expected)


def test_int32_saturates_from_fp64() -> None:
    values = [2.0**31, -(2.0**31) - 1, 2.0**31 - 0.75, 1e300, -7.5]
    limits = [2**31 - 1, -(2**31), 2**31 - 1, 2**31 - 1, -8]
    assert rounded(values, "int32", np.float64) == limits


def test_int32_saturates_from_fp32() -> None:
    with np.errstate(invalid="ignore"):
        assert rounded([2.0**31, 3e9], "int32", np.float32) == [2**31 - 1] * 2


def test_complex_parts_are_rounded_each() -> None:
    values = np.array([1 + 2.0**-30 + 1j * (2.0**-60), -2.5j])
    found = to_host(values, DTYPES["complex64"])
    assert found.dtype == np.complex64
    assert found.tolist() == [1 + 1j * 2.0**-60, -2.5j]


# ---- facts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOATS)
def test_unit_roundoff_is_half_the_spacing_above_one(name: str) -> None:
    row = DTYPES[name]
    code = np.ones(1, row.storage).view(f"u{row.bytes}") + np.array(1, f"u{row.bytes}")
    above = code.view(row.storage).astype(np.float64)[0]
    assert row.unit_roundoff == (above - 1.0) / 2


@pytest.mark.parametrize("name", [name for name in NARROW if name != "fp16"])
def test_no_rounding_of_a_normal_number_errs_by_more(name: str) -> None:
    row = DTYPES[name]
    values = np.linspace(1.0, 4.0, 4097, dtype=np.float32)
    exact = values.astype(np.float64)
    errors = np.abs(to_host(values, row).astype(np.float64) - exact) / exact
    assert row.unit_roundoff / 2 < errors.max() <= row.unit_roundoff


def test_integers_have_no_roundoff_and_complex_parts_have_their_own() -> None:
    assert DTYPES["int8"].unit_roundoff == DTYPES["int32"].unit_roundoff == 0.0
    assert DTYPES["complex64"].unit_roundoff == DTYPES["fp32"].unit_roundoff == 2.0**-24
    assert DTYPES["complex128"].unit_roundoff == DTYPES["fp64"].unit_roundoff == 2.0**-53
    assert INPUT_ROUNDOFF["tf32"] == 2.0**-11


@pytest.mark.parametrize("name", NARROW)
def test_the_largest_finite_number(name: str) -> None:
    assert DTYPES[name].largest == float(FORMATS[name][2]) == max(finite(name))


def test_the_largest_of_the_wide_formats() -> None:
    assert DTYPES["int8"].largest == 127
    assert DTYPES["int32"].largest == 2**31 - 1
    assert DTYPES["fp32"].largest == DTYPES["complex64"].largest == (2 - 2.0**-23) * 2.0**127
    assert DTYPES["fp64"].largest == np.finfo(np.float64).max


def test_sizes_are_the_storage_s() -> None:
    sizes = {name: row.bytes for name, row in DTYPES.items()}
    assert sizes == {
        "fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1,
        "fp8_e4m3_fnuz": 1, "fp8_e5m2_fnuz": 1, "fp8_e8m0": 1, "int8": 1, "int32": 4,
        "complex64": 8, "complex128": 16, "int4": 1, "uint4": 1, "fp4_e2m1": 1,
    }  # fmt: skip
    assert all(np.dtype(row.storage).itemsize == row.bytes for row in DTYPES.values())


def test_two_floats_of_4_bits_share_a_byte() -> None:
    row = DTYPES[FP4]
    assert (row.size(5), row.largest, row.unit_roundoff) == (3, 6.0, 0.25)
    with pytest.raises(ValueError, match="two elements of fp4_e2m1 share a byte"):
        to_host(np.ones(2), row)


def test_a_row_that_contradicts_its_storage_is_refused() -> None:
    with pytest.raises(ValueError, match="wrong: 8 bits"):
        DType("wrong", 8, FLOAT, 11, np.dtype(np.float16))


# ---- names -------------------------------------------------------------------------------------

NUMPY_NAMES: dict[str, Any] = {
    "float64": np.float64, "double": np.float64, "float32": np.float32, "half": np.float16,
    "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2, "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip


@pytest.mark.parametrize("name", NUMPY_NAMES)
def test_aliases_name_the_same_storage(name: str) -> None:
    assert dtype(name).storage == np.dtype(NUMPY_NAMES[name])


def test_names_are_read_without_case_or_space() -> None:
    for name, row in DTYPES.items():
        assert row.name == str(row) == name
        assert dtype(name) is dtype(f" {name.upper()} ") is dtype(row) is row
    for alias, name in ALIASES.items():
        assert alias not in DTYPES
        assert dtype(alias) is DTYPES[name]


@pytest.mark.parametrize("name", ["fp31", "", "tf32", None, 32, [], {}, True, np.float32])
def test_unknown_names_are_refused(name: object) -> None:
    with pytest.raises(InvalidProblem, match="known: fp64, fp32") as refused:
        dtype(name, "dtype_b")
    assert refused.value.field == "dtype_b"
    assert str(refused.value).startswith("dtype_b ")


def test_the_8_bit_floats_that_operands_use() -> None:
    found = {name for name, row in DTYPES.items() if is_fp8(row)}
    assert found == {"fp8_e4m3", "fp8_e5m2", "fp8_e4m3_fnuz", "fp8_e5m2_fnuz"}


def test_the_tables_speak_of_known_formats() -> None:
    assert set(COMPUTE_FOR) == set(OUTPUTS_FOR) < set(DTYPES)
    assert {kind for kinds in COMPUTE_FOR.values() for kind in kinds} == set(COMPUTE_TYPES)
    for name, outputs in OUTPUTS_FOR.items():
        kinds = {DTYPES[output].kind for output in outputs}
        assert (COMPLEX in kinds) is (DTYPES[name].kind == COMPLEX)
        assert len(set(outputs)) == len(outputs)
        assert (INTEGER in kinds) is (DTYPES[name].kind == INTEGER)
    for name, computes in COMPUTE_FOR.items():
        floor = min(DTYPES[name].significand, 11)
        assert all(COMPUTE_TYPES[compute] >= floor for compute in computes)
