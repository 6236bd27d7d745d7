"""Products of two MXFP4 operands as problems: identity, normal form, wire, operands, what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from backends.dtypes import DTYPES, E2M1
from backends.errors import InvalidProblem
from backends.operands import layouts
from backends.problem import GemmProblem, from_blas, from_mm
from backends.quantisation import mx_numbers, packed, packed_scales
from backends.wire import problem_from_wire, problem_to_wire
from tests.backends.weight_samples import mx_product, mxfp4

WIRE: dict[str, Any] = {
    "m": 16, "n": 64, "k": 128, "dtype": "fp4_e2m1", "trans_b": True, "scaling": "block_1x32",
}  # fmt: skip


def test_one_problem_whichever_way_it_is_written() -> None:
    p = mx_product(16, 64, 128)
    assert (p.dtype_a, p.dtype_b, p.dtype_d, p.compute) == ("fp4_e2m1", "fp4_e2m1", "bf16", "fp32")
    assert (p.trans_a, p.trans_b, p.scale_a, p.scale_b) == ("T", "N", "block_1x32", "block_1x32")
    assert p.scale_dtype == "fp8_e8m0"
    assert p.mx_product
    assert not p.weight_only
    assert p.slug == "tn_64x16x128_fp4_e2m1"
    same = from_blas(
        64, 16, 128, "float4_e2m1fn_x2", trans_a="T", scale_a="block_1x32", scale_b="block_1x32",
        scale_dtype="fp8_e8m0",
    )  # fmt: skip
    assert same.id == p.id
    for scaling in ("block_1x32", {"a": "group_32", "b": "group_32"},
                    {"a": "block_1x32", "b": "group_32", "dtype": "fp8_e8m0"}):  # fmt: skip
        assert problem_from_wire({**WIRE, "scaling": scaling}) == p
    assert p.id != mxfp4(16, 64, 128).id


@pytest.mark.parametrize("out", ["bf16", "fp16", "fp32"])
def test_what_is_written_reads_back(out: str) -> None:
    p = mx_product(3, 5, 96, dtype_d=out, lda=98, bias=out, activation="silu", alpha=2.0)
    assert problem_from_wire(json.loads(json.dumps(problem_to_wire(p)))) == p


def test_a_bias_is_of_the_outputs_type() -> None:
    assert problem_from_wire({**WIRE, "epilogue": "bias"}).bias == "bf16"
    assert problem_from_wire({**WIRE, "epilogue": "bias", "dtype_d": "float16"}).bias == "fp16"


def test_operands_are_packed_and_have_scales_of_a_byte() -> None:
    """Of fewer rows than a byte's elements, too: scales and rows have sizes of their own."""
    found = layouts(mx_product(3, 5, 96, lda=100, ldb=104))
    shapes = {name: (one.columns, one.rows, one.ld, one.bytes) for name, one in found.items()}
    assert shapes == {
        "a": (5, 48, 52, 4 * 52 + 48), "b": (3, 48, 50, 2 * 50 + 48), "d": (3, 5, 5, 30),
        "scale_a": (5, 3, 3, 15), "scale_b": (3, 3, 3, 9),
    }  # fmt: skip
    assert found["scale_b"].dtype == DTYPES["fp8_e8m0"]


def test_bytes_are_those_of_both_operands_and_their_scales() -> None:
    p = mx_product(16, 64, 128)
    assert p.bytes_read == (16 + 64) * (128 // 2 + 128 // 32)
    assert p.flops == 2 * 16 * 64 * 128


def test_every_code_and_every_scale_is_its_number() -> None:
    codes = np.tile(np.array(E2M1), 2)
    stored = packed(np.tile(codes, (255, 1)), "fp4_e2m1")
    exponents = np.arange(-127, 128)
    found = mx_numbers(stored, packed_scales(2.0 ** exponents[:, None]))
    assert np.array_equal(found, codes * 2.0 ** exponents[:, None])
    scales = np.array([[255], [127]], np.uint8).view(DTYPES["fp8_e8m0"].storage)
    assert np.array_equal(np.isnan(mx_numbers(stored[:2] * 0, scales)), np.tile([[True], [False]], 32))


NVFP4 = "NVFP4, of e4m3 scales of groups of 16 and an fp32 scale of the matrix, is not supported"


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"k": 48}, "k", "k 48 is no multiple of the scale's group of 32"),
        ({"lda": 129}, "lda", "lda 129 is odd: two elements of fp4_e2m1 share a byte"),
        ({"ldb": 131}, "ldb", "ldb 131 is odd"),
        ({"scale_a": "none"}, "scale_a", "none is no scale of fp4_e2m1; known: block_1x32 (group_32) on"),
        ({"scale_b": "block_1x128"}, "scale_b", "block_1x128 is no scale of fp4_e2m1"),
        ({"scale_a": "group_16"}, "scale_a", NVFP4),
        ({"scale_b": "block_1x16"}, "scale_b", NVFP4),
        ({"scale_dtype": "fp8_e4m3"}, "scale_dtype", NVFP4),
        ({"scale_dtype": "bf16"}, "scale_dtype", "known: fp8_e8m0"),
        ({"scale_d": "tensor"}, "scale_d", "only the operands of fp4_e2m1 have scales"),
        ({"trans_a": "T"}, "trans_a", "contiguous along k"),
        ({"trans_b": "N"}, "trans_b", "contiguous along k"),
        ({"batch": 2}, "batch", "products of fp4_e2m1 are single ones"),
        ({"groups": 4}, "groups", "not fp4_e2m1 x fp4_e2m1"),
        ({"zero_b": "eight"}, "zero_b", "is of quantised weights, not of fp4_e2m1"),
        ({"prepacked": True}, "prepacked", "is of quantised weights, not of fp4_e2m1"),
        ({"fast_accumulation": True}, "fast_accumulation", "applies to 8-bit floats"),
        ({"compute": "tf32"}, "compute", "known: fp32"),
        ({"dtype_d": "fp8_e4m3"}, "dtype_d", "known: bf16, fp16, fp32"),
        ({"dtype_b": "fp8_e4m3"}, "dtype_a", "differs from the other input's fp8_e4m3"),
    ],
)  # fmt: skip
def test_what_is_refused_names_its_field(change: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidProblem) as caught:
        built(**change)
    assert caught.value.field == field
    assert words in str(caught.value)


def built(**change: Any) -> GemmProblem:
    call = {"scale_a": "block_1x32", "scale_b": "block_1x32", "trans_b": "T", "k": 128, **change}
    return from_mm(16, 64, call.pop("k"), "fp4_e2m1", **call)
