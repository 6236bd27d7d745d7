"""Stored weights: packing and its inverse, what the stored numbers mean, and which words are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from backends.errors import InvalidProblem
from backends.operands import layouts
from backends.problem import GemmProblem, from_blas, from_mm
from backends.quantisation import dequantised, packed, packed_zeros, unpacked, unpacked_zeros
from backends.wire import problem_from_wire, problem_to_wire
from tests.backends.weight_samples import every_kind, weights

RANGES = {"uint4": (0, 15), "int4": (-8, 7), "int8": (-128, 127)}


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


def test_the_even_element_is_the_low_half() -> None:
    assert packed(np.array([[1, 2, 15, 0]]), "uint4").tolist() == [[0x21, 0x0F]]
    assert packed(np.array([[-1, 7]]), "int4").tolist() == [[0x7F]]
    words = packed_zeros(np.arange(8)[:, None]).view("<u4")
    assert words.tolist() == [[0x76543210]]


@pytest.mark.parametrize(
    ("q", "kind", "words"),
    [([[16, 0]], "uint4", "0 to 15, not 0 to 16"), ([[-9, 0]], "int4", "-8 to 7"), ([[1]], "uint4", "odd")],
)
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
    group = {"outer": p.k, "tensor": p.k}.get(p.scale_a) or int(p.scale_a.removeprefix("block_1x"))
    out = np.empty(q.shape)
    for i, k in np.ndindex(q.shape):
        s = scales[0, 0] if p.scale_a == "tensor" else scales[i, k // group]
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
    low, high = RANGES[p.dtype_a]
    q = rng.integers(low, high + 1, (p.m, p.k))
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


def test_every_kind_is_another_problem() -> None:
    found = every_kind(3, 64, 256) + every_kind(3, 64, 256, dtype_a="fp16")
    found += [weights(3, 64, 256, scale_dtype=kind) for kind in ("fp32", "fp16")]
    assert len({p.id for p in found}) == len(found) == len({p.kind for p in found})


def test_a_group_and_a_zero_point_are_named_as_people_write_them() -> None:
    values = {"m": 1, "n": 64, "k": 256, "dtype": "bf16", "dtype_b": "uint4", "trans_b": True}
    scaling = {"b": "group_64", "dtype": "bf16", "zero_b": "eight"}
    problem = problem_from_wire({**values, "scaling": scaling})
    assert problem == weights(1, 64, 256, scale_b="block_1x64", zero_b="eight")


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
        ({"trans_b": "N"}, "trans_b", "weights of uint4 are contiguous along k"),
        ({"scale_b": "none"}, "scale_b", "scale_b none is no scale of quantised weights"),
        ({"scale_b": "block_128x128"}, "scale_b", "known: tensor, outer, block_1x32"),
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
        ({"dtype_a": "fp32"}, "dtype_b", "dtype_b uint4 is no GEMM input"),
        ({"dtype_a": "fp32", "dtype_b": "int8"}, "dtype_a", "only 8-bit floats may mix"),
        ({"dtype_a": "uint4"}, "dtype_b", "dtype_b uint4 is no GEMM input"),
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
