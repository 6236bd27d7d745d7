"""Stored weights: packing and its inverse, what the stored numbers mean, and which words are refused."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from backends.dtypes import E2M1
from backends.errors import InvalidProblem
from backends.operands import layouts
from backends.problem import GemmProblem, from_blas, from_mm
from backends.quantisation import (
    dequantised,
    packed,
    packed_scales,
    packed_zeros,
    scale_rows,
    unpacked,
    unpacked_zeros,
)
from backends.wire import problem_from_wire, problem_to_wire
from tests.backends.weight_samples import every_kind, fp8, mxfp4, weights

RANGES = {"uint4": (0, 15), "int4": (-8, 7), "int8": (-128, 127)}
FP8 = {"dtype_b": "fp8_e4m3"}
MX = {"dtype_b": "fp4_e2m1", "scale_b": "block_1x32", "scale_dtype": "fp8_e8m0"}
#: What refusing another scale of e2m1 says.
NVFP4 = "NVFP4, of e4m3 scales of groups of 16 and an fp32 scale of the matrix, is not supported"


@given(st.data(), st.sampled_from(sorted(RANGES)), st.integers(1, 5), st.integers(1, 40))
def test_packing_is_invertible(data: Any, kind: str, rows: int, pairs: int) -> None:
    low, high = RANGES[kind]
    q = data.draw(arrays(np.int64, (rows, 2 * pairs), elements=st.integers(low, high)))
    stored = packed(q, kind)
    assert stored.shape == (rows, pairs if kind != "int8" else 2 * pairs)
    assert np.array_equal(unpacked(weights(1, rows, 128, kind), stored), q)


@given(st.data(), st.integers(1, 4), st.integers(1, 9))
def test_packing_zero_points_is_invertible(data: Any, words: int, groups: int) -> None:
    z = data.draw(arrays(np.int64, (8 * words, groups), elements=st.integers(0, 15)))
    stored = packed_zeros(z)
    assert stored.shape == (words, 4 * groups)
    assert np.array_equal(unpacked_zeros(stored), z)


@given(st.data(), st.integers(1, 5), st.integers(1, 40))
def test_packing_floats_is_invertible(data: Any, rows: int, pairs: int) -> None:
    q = data.draw(arrays(np.float64, (rows, 2 * pairs), elements=st.sampled_from(E2M1)))
    stored = packed(q, "fp4_e2m1")
    assert stored.shape == (rows, pairs)
    assert stored.dtype == np.uint8
    found = unpacked(mxfp4(1, rows, 32), stored)
    assert np.array_equal(found, q)
    assert np.array_equal(np.signbit(found), np.signbit(q)), "a zero keeps its sign"


def test_codes_of_floats_are_those_of_the_standard() -> None:
    """OCP Microscaling Formats 1.0, table 5: (-1)^s 2^(e - 1) (1 + m / 2), and m / 2 where e is 0."""
    codes = np.arange(16, dtype=np.uint8)
    sign, exponent, mantissa = codes >> 3, codes >> 1 & 3, codes & 1
    numbers = np.where(exponent == 0, mantissa / 2, 2.0 ** (exponent - 1.0) * (1 + mantissa / 2))
    assert list(E2M1) == list(numbers * (1.0 - 2.0 * sign))
    stored = packed(np.array(E2M1), "fp4_e2m1")
    assert stored.tolist() == [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]


def test_scales_of_powers_of_two_are_a_byte() -> None:
    exponents = np.arange(-127, 128)
    stored = packed_scales(2.0**exponents)
    assert stored.view(np.uint8).tolist() == list(range(255))
    assert np.array_equal(stored.astype(np.float64), 2.0**exponents)


@pytest.mark.parametrize("scale", [0.0, 3.0, -1.0, np.nan, np.inf, 2.0**128, 2.0**-128])
def test_other_scales_of_powers_of_two_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match=r"powers of two from 2\^-127 to 2\^127, not"):
        packed_scales(np.array([[1.0, scale]]))


def test_a_group_whose_scale_is_nan_is_nan() -> None:
    """And no other group, whatever its elements."""
    p = mxfp4(1, 2, 96)
    scales = np.full((2, 3), 127, np.uint8)
    scales[1, 1] = 255
    q = np.zeros((2, 96))
    found = dequantised(p, packed(q, p.dtype_a), scales.view(ml_dtypes.float8_e8m0fnu), None)
    wanted = np.zeros((2, 96), bool)
    wanted[1, 32:64] = True
    assert np.array_equal(np.isnan(found), wanted)


def test_floats_of_8_bits_are_stored_as_they_are() -> None:
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    stored = codes.view(ml_dtypes.float8_e4m3fn)[None]
    found = unpacked(fp8(1, 1, 254), stored)
    assert found.dtype == np.float64
    assert np.abs(found).max() == 448
    assert packed(found, "fp8_e4m3").view(np.uint8).tolist() == [codes.tolist()]


def test_a_block_of_rows_has_one_scale() -> None:
    """Of 300 rows the last block has 44; of 256 elements of k there are two."""
    p = fp8(1, 300, 256, scale_b="block_128x128", scale_dtype="fp32")
    assert (layouts(p)["scale_a"].columns, layouts(p)["scale_a"].rows) == (3, 2)
    scales = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    found = dequantised(p, packed(np.ones((300, 256)), p.dtype_a), scales, None)
    wanted = np.kron(scales.astype(np.float64), np.ones((128, 128)))[:300]
    assert np.array_equal(found, wanted)
    rows = np.array([0, 127, 128, 299])
    assert np.array_equal(
        dequantised(p, packed(np.ones((300, 256)), p.dtype_a), scales, None, rows), wanted[rows]
    )
    assert scale_rows(p) == 128
    assert scale_rows(fp8(1, 300, 256)) == 1


def test_the_even_element_is_the_low_half() -> None:
    assert packed(np.array([[1, 2, 15, 0]]), "uint4").tolist() == [[0x21, 0x0F]]
    assert packed(np.array([[-1, 7]]), "int4").tolist() == [[0x7F]]
    words = packed_zeros(np.arange(8)[:, None]).view("<u4")
    assert words.tolist() == [[0x76543210]]


@pytest.mark.parametrize(
    ("q", "kind", "words"),
    [([[16, 0]], "uint4", "0 to 15, not 0 to 16"), ([[-9, 0]], "int4", "-8 to 7"), ([[1]], "uint4", "odd"),
     ([[1, 5]], "fp4_e2m1", "3, 4 and 6 with a sign, not 5"), ([[7, 1]], "fp4_e2m1", "not 7"),
     ([[float("nan"), 1]], "fp4_e2m1", "not nan"), ([[1.5]], "fp4_e2m1", "odd"),
     ([[449, 1]], "fp8_e4m3", "does not hold 449"), ([[1.0625, 1]], "fp8_e4m3", "does not hold 1.0625")],
)  # fmt: skip
def test_what_cannot_be_packed_is_refused(q: list[list[int]], kind: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        packed(np.array(q), kind)


def test_zero_points_that_cannot_be_packed_are_refused() -> None:
    with pytest.raises(ValueError, match="7 rows are no multiple"):
        packed_zeros(np.zeros((7, 1), int))
    with pytest.raises(ValueError, match="0 to 15, not -1 to 0"):
        packed_zeros(np.array([[-1]] + [[0]] * 7))


def written_out(p: GemmProblem, q: Any, scales: Any, zeros: Any) -> Any:
    """The weights' numbers, one at a time."""
    group = {"outer": p.k, "tensor": p.k}.get(p.scale_a) or int(p.scale_a.split("x")[1])
    side = 128 if p.scale_a == "block_128x128" else 1
    out = np.empty(q.shape)
    for i, k in np.ndindex(q.shape):
        s = scales[0, 0] if p.scale_a == "tensor" else scales[i // side, k // group]
        z = zeros[i, k // group] if zeros is not None else 0
        out[i, k] = {
            "none": q[i, k] * s, "eight": (q[i, k] - 8) * s, "uint4": (q[i, k] - z) * s,
            "float": (q[i, k] - z) * s, "shift": (q[i, k] - 8) * s + z,
        }[p.zero_a]  # fmt: skip
    return out


@pytest.mark.parametrize(
    "problem", every_kind(2, 16, 256), ids=lambda p: f"{p.dtype_a} {p.zero_a} {p.scale_a}"
)
def test_what_the_stored_numbers_mean(problem: GemmProblem) -> None:
    p, rng = problem, np.random.default_rng(3)
    low, high = RANGES.get(p.dtype_a, (0, 15))
    q: Any = rng.integers(low, high + 1, (p.m, p.k))
    if p.mx:
        q = np.array(E2M1)[q]
    found = layouts(p)
    shape = found["scale_a"].columns, found["scale_a"].rows
    scales = rng.random(shape) + 0.5
    zeros: Any = None
    stored: Any = None
    if p.zero_a == "uint4":
        zeros = rng.integers(0, 16, (p.m, shape[1] if p.scale_a != "outer" else 1))
        stored = packed_zeros(zeros)
        assert stored.shape == (found["zero_a"].columns, found["zero_a"].rows)
    elif "zero_a" in found:
        zeros = stored = rng.random((found["zero_a"].columns, found["zero_a"].rows)) * 16
    if p.scale_a == "outer":
        scales = scales.reshape(p.m, 1)
    got = dequantised(p, packed(q, p.dtype_a), scales, stored)
    want = written_out(p, q, scales, zeros)
    assert np.allclose(got, want, rtol=1e-15)
    assert np.array_equal(dequantised(p, packed(q, p.dtype_a), scales, stored, slice(3, 9)), got[3:9])


@pytest.mark.parametrize(
    "problem", every_kind(3, 64, 256), ids=lambda p: f"{p.dtype_a} {p.zero_a} {p.scale_a}"
)
def test_the_words_are_read_as_written(problem: GemmProblem) -> None:
    assert problem_from_wire(problem_to_wire(problem)) == problem
    assert GemmProblem.from_dict(problem.to_dict()) == problem


PREPACKED = every_kind(3, 64, 256, prepacked=True)


@pytest.mark.parametrize("problem", PREPACKED, ids=lambda p: f"{p.dtype_a} {p.zero_a} {p.scale_a}")
def test_weights_that_may_be_packed_are_said_so(problem: GemmProblem) -> None:
    stored = replace(problem, prepacked=False)
    assert problem_to_wire(problem) == {**problem_to_wire(stored), "prepacked": True}
    assert problem.to_dict() == {**stored.to_dict(), "prepacked": True}
    assert problem_from_wire(problem_to_wire(problem)) == problem
    assert GemmProblem.from_dict(problem.to_dict()) == problem == pickle.loads(pickle.dumps(problem))
    assert problem.id.rpartition("-")[0] == f"{stored.slug}_prepacked"
    assert problem.kind != stored.kind
    assert (problem.bytes_read, problem.flops) == (stored.bytes_read, stored.flops)


def test_weights_as_stored_keep_their_ids() -> None:
    assert weights(3, 64, 256).id == "tn_64x3x256_uint4_bf16-249668c304b2"
    assert weights(3, 64, 256, prepacked=False) == weights(3, 64, 256)
    assert "prepacked" not in problem_to_wire(weights(3, 64, 256)) | weights(3, 64, 256).to_dict()


@pytest.mark.parametrize("value", [1, 0, "yes", None])
def test_prepacked_is_a_bool_in_a_canonical_problem(value: object) -> None:
    with pytest.raises(InvalidProblem, match="prepacked must be true or false, not") as found:
        GemmProblem.from_dict({**weights(3, 64, 256).to_dict(), "prepacked": value})
    assert found.value.field == "prepacked"


@pytest.mark.parametrize(
    "stored", [from_mm(8, 16, 32, "bf16"), from_mm(8, 16, 32, "fp8_e4m3", scale_a="tensor", scale_b="tensor")]
)
def test_other_products_are_not_prepacked(stored: GemmProblem) -> None:
    with pytest.raises(InvalidProblem, match=f"is of quantised weights, not of {stored.dtype_a}") as found:
        replace(stored, prepacked=True)
    assert found.value.field == "prepacked"


def test_weights_of_groups_are_not_prepacked() -> None:
    groups = weights(6, 64, 256, groups=4)
    assert "prepacked" not in groups.to_dict()
    with pytest.raises(InvalidProblem, match="weights of groups are read as they are stored") as found:
        replace(groups, prepacked=True)
    assert found.value.field == "prepacked"


def test_every_kind_is_another_problem() -> None:
    found = every_kind(3, 64, 256) + every_kind(3, 64, 256, dtype_a="fp16")
    found += [weights(3, 64, 256, scale_dtype=kind) for kind in ("fp32", "fp16")] + PREPACKED
    assert len({p.id for p in found}) == len(found) == len({p.kind for p in found})


def test_a_group_and_a_zero_point_are_named_as_people_write_them() -> None:
    values = {"m": 1, "n": 64, "k": 256, "dtype": "bf16", "dtype_b": "uint4", "trans_b": True}
    scaling = {"b": "group_64", "dtype": "bf16", "zero_b": "eight"}
    problem = problem_from_wire({**values, "scaling": scaling})
    assert problem == weights(1, 64, 256, scale_b="block_1x64", zero_b="eight")


def test_mxfp4_as_people_write_it() -> None:
    """Scales are e8m0 without being told; torch's names of the types are known."""
    values = {"m": 1, "n": 64, "k": 96, "dtype": "bf16", "trans_b": True, "scaling": {"b": "group_32"}}
    for name in ("fp4_e2m1", "float4_e2m1fn_x2"):
        assert problem_from_wire({**values, "dtype_b": name}) == mxfp4(1, 64, 96)
    assert mxfp4(1, 64, 96).scale_dtype == "fp8_e8m0"
    assert problem_to_wire(mxfp4(1, 64, 96))["scaling"]["dtype"] == "fp8_e8m0"
    assert mxfp4(1, 64, 96).bytes_read == 64 * 48 + 96 * 2 + 64 * 3


def test_bytes_count_half_a_byte_an_element() -> None:
    assert weights(1, 64, 256).bytes_read == 64 * 128 + 256 * 2 + 64 * 2 * 2
    assert weights(1, 64, 256, zero_b="uint4").bytes_read == weights(1, 64, 256).bytes_read + 64
    found = layouts(weights(1, 64, 256, ldb=272))["a"]
    assert (found.rows, found.columns, found.ld, found.bytes) == (128, 64, 136, 63 * 136 + 128)


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"k": 192}, "k", "k 192 is no multiple of the scale's group of 128"),
        ({"k": 129, "scale_b": "outer"}, "k", "k 129 is odd: two elements of uint4 share a byte"),
        ({"ldb": 257}, "ldb", "ldb 257 is odd"),
        ({"trans_b": "N"}, "trans_b", "weights of uint4 are contiguous along k and transposed, as F"),
        ({"scale_b": "none"}, "scale_b", "scale_b none is no scale of quantised weights"),
        ({"scale_b": "block_128x128"}, "scale_b", r"known: tensor, outer \(row\), block_1x32 \(group_32\), "),
        ({"scale_a": "outer"}, "scale_a", "only the weights have scales"),
        ({"scale_d": "tensor"}, "scale_d", "only the weights have scales"),
        ({"scale_dtype": "fp8_e8m0"}, "scale_dtype", "known: fp32, bf16, fp16"),
        ({"zero_b": "nine"}, "zero_b", "zero_b 'nine' is unknown; known: none, eight, uint4, float, shift"),
        ({"zero_a": "eight"}, "zero_a", "zero_a 'eight': only weights have zero points"),
        ({"dtype_b": "int4", "zero_b": "eight"}, "zero_b", "int4 is signed and has no zero point"),
        ({"dtype_b": "int8", "zero_b": "uint4"}, "zero_b", "store the weights as uint4"),
        ({"scale_b": "tensor", "zero_b": "float"}, "zero_b", "a single scale has none or eight"),
        ({"n": 60, "zero_b": "uint4"}, "n", "packed 8 rows to a word"),
        ({"batch": 2}, "batch", "quantised weights are of one product"),
        ({**FP8, "k": 192, "scale_b": "block_128x128"}, "k", "no multiple of the scale's group of 128"),
        ({**FP8, "zero_b": "eight"}, "zero_b", "zero_b eight: fp8_e4m3 is signed and has no zero point"),
        ({**FP8, "scale_b": "none"}, "scale_b", r"block_1x128 \(group_128\), block_128x128"),
        ({**FP8, "scale_dtype": "fp8_e8m0"}, "scale_dtype", "known: fp32, bf16, fp16"),
        ({**FP8, "groups": 4}, "groups", "weights of int4, uint4, fp4_e2m1"),
        ({"dtype_b": "fp8_e5m2"}, "dtype_a", "int8, fp4_e2m1, fp8_e4m3 with bf16 or fp16"),
        ({"dtype_b": "fp8_e4m3_fnuz"}, "dtype_a", "int8, fp4_e2m1, fp8_e4m3 with bf16 or fp16"),
        ({**MX, "k": 48}, "k", "k 48 is no multiple of the scale's group of 32"),
        ({**MX, "scale_b": "block_1x64"}, "scale_b", "known: block_1x32"),
        ({**MX, "scale_b": "outer"}, "scale_b", "known: block_1x32"),
        ({**MX, "scale_b": "none"}, "scale_b", "known: block_1x32"),
        ({**MX, "scale_dtype": "fp8_e4m3"}, "scale_dtype", f"{NVFP4}; MXFP4 has scales of fp8_e8m0"),
        ({**MX, "scale_dtype": "fp32"}, "scale_dtype", f"fp32: {NVFP4}"),
        ({**MX, "scale_b": "group_16"}, "scale_b", f"group_16: {NVFP4}"),
        ({**MX, "scale_dtype": "bf16"}, "scale_dtype", "known: fp8_e8m0"),
        ({**MX, "zero_b": "eight"}, "zero_b", "fp4_e2m1 has a sign, and MXFP4 no zero point"),
        ({**MX, "zero_b": "float"}, "zero_b", "fp4_e2m1 has a sign, and MXFP4 no zero point"),
        ({**MX, "dtype_a": "fp32"}, "dtype_a", "int8, fp4_e2m1, fp8_e4m3 with bf16 or fp16"),
        ({**MX, "ldb": 257}, "ldb", "two elements of fp4_e2m1 share a byte"),
        ({"dtype_a": "fp32"}, "dtype_b", "dtype_b uint4: a weight matrix of uint4 is multiplied"),
        ({"dtype_a": "fp32", "dtype_b": "int8"}, "dtype_a", "only 8-bit floats may mix"),
        ({"dtype_a": "uint4"}, "dtype_b", "rows of bf16 or fp16, not of uint4"),
        ({"dtype_a": "int8", "prepacked": True}, "dtype_b", "rows of bf16 or fp16, not of int8"),
        ({"dtype_a": "fp8_e4m3", "prepacked": True}, "dtype_b", "rows of bf16 or fp16, not of fp8_e4m3"),
        ({"compute": "int32"}, "compute", "known: fp32"),
        ({"dtype_d": "int32"}, "dtype_d", "known: bf16, fp32"),
    ],
)  # fmt: skip
def test_what_is_refused_names_its_field(change: dict[str, Any], field: str, words: str) -> None:
    call: dict[str, Any] = {
        "m": 1, "n": 64, "k": 256, "dtype_a": "bf16", "dtype_b": "uint4", "trans_b": "T",
        "scale_b": "block_1x128", "scale_dtype": "bf16", **change,
    }  # fmt: skip
    with pytest.raises(InvalidProblem, match=words) as found:
        from_mm(**call)
    assert found.value.field == field


def test_other_products_have_no_zero_points() -> None:
    with pytest.raises(InvalidProblem, match="of quantised weights, not of bf16"):
        from_blas(16, 16, 16, "bf16", zero_a="eight")
    with pytest.raises(InvalidProblem, match="only 8-bit floats may mix"):
        from_blas(16, 16, 16, "bf16", dtype_b="uint4")
    assert "zero_a" not in from_blas(16, 16, 16, "bf16").to_dict(), "ids stand"
