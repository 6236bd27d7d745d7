"""The client's canonical problem is the service's, field by field."""

from __future__ import annotations

from typing import Any

import gemmtune
import pytest
from gemmtune import problem, weights, wire
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import dtypes
from backends.errors import InvalidProblem
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.wire import EPILOGUES, problem_from_wire

SIZES = st.integers(1, 9) | st.sampled_from([16, 512, 4096, 2**31 - 1])
KINDS = st.sampled_from([*dtypes.DTYPES, "tf32", "bfloat16", "Half"])
STRIDE = st.integers(0, 400) | st.sampled_from([2**20, 2**40])
SCALE = st.sampled_from(["none", "tensor", "outer", "row", "block_1x128", "block_128x128", "block_32"])


def _optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: st.none() | one for name, one in fields.items()})


WIRE = st.builds(
    lambda sizes, kinds, rest: {**sizes, **kinds, **rest},
    st.fixed_dictionaries({"m": SIZES, "n": SIZES, "k": SIZES}),
    st.fixed_dictionaries({}, optional={"dtype": KINDS})
    | _optional(dtype_a=KINDS, dtype_b=KINDS, dtype_c=KINDS, dtype_d=KINDS),
    _optional(
        batch=st.integers(1, 4),
        trans_a=st.booleans() | st.sampled_from("NTCt"), trans_b=st.booleans() | st.sampled_from("NTC"),
        lda=STRIDE, ldb=STRIDE, ldc=STRIDE, ldd=STRIDE,
        compute=st.sampled_from(["fp32", "fp64", "tf32", "int32", "fp16", "bf16x9"]),
        alpha=st.sampled_from([0, 1, 1.0, 2.5]), beta=st.sampled_from([0, 1, -0.0, 0.5]),
        alignment=st.sampled_from([1, 2, 4, 8, 16, 16.0, 32]), fast_accumulation=st.booleans(),
        prepacked=st.sampled_from([False, False, False, True, 1]),
        epilogue=st.sampled_from(["none", *EPILOGUES]) | _optional(
            activation=st.sampled_from(["none", "relu", "gelu", "silu", "swiglu", "tanh"]),
            bias=st.booleans() | KINDS, bias_axis=st.sampled_from(["m", "n", "k"]),
        ),
        scaling=SCALE | _optional(a=SCALE, b=SCALE, d=SCALE, dtype=st.sampled_from(["fp32", "fp8_e8m0"])),
        strides=_optional(a=STRIDE, b=STRIDE, c=STRIDE, d=STRIDE),
        layout=st.sampled_from(["row", "col"]),
    ),
)  # fmt: skip


def _of_service(values: dict[str, Any]) -> dict[str, Any] | None:
    try:
        return problem_from_wire(values).to_dict()
    except InvalidProblem:
        return None


def _of_client(values: dict[str, Any]) -> dict[str, Any] | None:
    try:
        return wire.canonical(values)
    except gemmtune.ProblemError:
        return None


#: Forms of quantised weights, most of them valid.
WEIGHTS = st.fixed_dictionaries(
    {
        "m": st.sampled_from([1, 3, 8]), "n": st.sampled_from([5, 8, 16]),
        "k": st.sampled_from([7, 64, 96, 128, 256]), "dtype": st.sampled_from(["bf16", "fp16", "fp32"]),
        "dtype_b": st.sampled_from(["uint4", "int4", "int8", "fp4_e2m1", "fp8_e4m3"]),
        "trans_b": st.sampled_from([True, True, False]),
        "scaling": _optional(
            a=st.sampled_from(["none", "tensor"]),
            b=st.sampled_from(
                ["row", "tensor", "group_32", "block_1x64", "group_128", "block_128x128", "group_7"]
            ),
            dtype=st.sampled_from(["fp32", "bf16", "fp16", "fp8_e8m0", "fp8_e4m3"]),
            zero_b=st.sampled_from([*weights.ZEROS, "nine"]), zero_a=st.sampled_from(["none", "eight"]),
        ),
    },
    optional={
        "epilogue": st.sampled_from(["bias", "bias_relu", "swiglu"]),
        "dtype_d": st.sampled_from(["fp32", "bf16"]),
        "ldb": st.sampled_from([128, 129, 512]), "batch": st.sampled_from([1, 2]), "beta": st.just(1),
        "prepacked": st.sampled_from([True, True, True, False, None, 1, "yes"]),
        "groups": st.sampled_from([0, 2, 4]), "strides": _optional(b=st.sampled_from([4096, 4097, 8192])),
    },
)  # fmt: skip


#: Forms of grouped products with swiglu, most of them valid.
GATED = st.fixed_dictionaries(
    {
        "m": st.just(6), "n": st.sampled_from([1, 2, 15, 16, 64]), "k": st.sampled_from([7, 64]),
        "dtype": st.sampled_from(["bf16", "fp16", "bf16", "fp8_e4m3", "fp32"]), "trans_b": st.just(True),
        "groups": st.sampled_from([3, 3, 3, 0]), "epilogue": st.just("swiglu"),
    },
    optional={
        "ldd": st.sampled_from([7, 8, 32]), "dtype_d": st.sampled_from(["bf16", "fp32"]),
        "scaling": st.just("row"), "dtype_b": st.just("uint4"), "beta": st.just(1),
    },
)  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(WIRE | WEIGHTS | GATED)
def test_every_wire_form_is_read_as_the_service_reads_it(values: dict[str, Any]) -> None:
    assert _of_client(values) == _of_service(values), values


#: Forms that are valid, so that the comparison above is not of refusals alone.
VALID = (
    {"m": 16, "n": 4096, "k": 4096, "dtype": "bf16"},
    {"m": 16, "n": 4096, "k": 512, "dtype": "tf32", "trans_a": True, "lda": 20},
    {"m": 3, "n": 5, "k": 7, "dtype": "fp8_e4m3", "dtype_b": "fp8_e5m2", "trans_b": True,
     "scaling": {"a": "outer", "b": "tensor"}, "fast_accumulation": True},
    {"m": 3, "n": 5, "k": 7, "dtype": "fp16", "batch": 3, "strides": {"a": 0}, "beta": 0.5, "ldc": 9},
    {"m": 3, "n": 5, "k": 7, "dtype": "bf16", "epilogue": {"activation": "gelu", "bias": "fp32"}},
    {"m": 3, "n": 5, "k": 7, "dtype": "complex64", "trans_a": "C", "layout": "col"},
    {"m": 3, "n": 5, "k": 7, "dtype": "int8", "dtype_d": "int32", "epilogue": "bias_relu", "alignment": 4},
    {"m": 3, "n": 16, "k": 256, "dtype": "bf16", "dtype_b": "uint4", "trans_b": True, "epilogue": "bias",
     "scaling": {"b": "group_128", "dtype": "bf16", "zero_b": "uint4"}},
    {"m": 3, "n": 5, "k": 96, "dtype": "fp16", "dtype_b": "fp4_e2m1", "trans_b": True,
     "scaling": {"b": "group_32"}},
    {"m": 3, "n": 16, "k": 256, "dtype": "bf16", "dtype_b": "uint4", "trans_b": True, "prepacked": True,
     "scaling": {"b": "group_128", "dtype": "bf16", "zero_b": "uint4"}},
    {"m": 16, "n": 3, "k": 64, "dtype": "int8", "dtype_b": "fp16", "trans_a": True, "layout": "col",
     "scaling": {"a": "row"}, "prepacked": True},
    {"m": 3, "n": 5, "k": 7, "dtype": "fp16", "dtype_b": "int8", "trans_b": True, "prepacked": False,
     "scaling": {"b": "row"}},
    {"m": 3, "n": 5, "k": 96, "dtype": "bf16", "dtype_b": "float4_e2m1fn_x2", "trans_b": True,
     "scaling": {"b": "block_1x32", "dtype": "fp8_e8m0"}},
    {"m": 3, "n": 5, "k": 7, "dtype": "fp16", "dtype_b": "int8", "trans_b": True,
     "scaling": {"b": "row", "dtype": "fp32"}},
    {"m": 5, "n": 3, "k": 64, "dtype": "int4", "dtype_b": "bf16", "trans_a": True, "layout": "col",
     "scaling": {"a": "group_32"}},
    {"m": 6, "n": 16, "k": 64, "dtype": "bf16", "dtype_b": "uint4", "trans_b": True, "groups": 3,
     "routing": [1, 0, 5], "scaling": {"b": "group_64", "dtype": "bf16", "zero_b": "uint4"}},
    *({"m": 6, "n": 16, "k": 64, "dtype": kind, "trans_b": True, "groups": 3, "epilogue": "swiglu", **more}
      for kind, more in (("bf16", {"routing": [1, 0, 5]}), ("fp16", {"ldd": 11, "dtype_d": "fp32"}))),
    {"m": 6, "n": 16, "k": 64, "dtype": "fp16", "dtype_b": "fp4_e2m1", "trans_b": True, "groups": 32,
     "scaling": {"b": "group_32"}},
    {"m": 6, "n": 16, "k": 64, "dtype": "fp4_e2m1", "trans_b": True, "scaling": "block_1x32"},
    {"m": 6, "n": 16, "k": 64, "dtype": "fp4_e2m1", "trans_b": True, "epilogue": "bias",
     "scaling": {"a": "group_32", "b": "group_32", "dtype": "fp8_e8m0"}},
    {"m": 6, "n": 16, "k": 64, "dtype": "fp4_e2m1", "dtype_d": "fp32", "trans_b": True, "lda": 66,
     "beta": 0.5, "epilogue": {"activation": "gelu", "bias": True},
     "scaling": {"a": "group_32", "b": "group_32"}},
)  # fmt: skip


@pytest.mark.parametrize("values", VALID, ids=str)
def test_valid_forms(values: dict[str, Any]) -> None:
    expected = _of_service(values)
    assert expected is not None
    assert wire.canonical(values) == expected
    assert problem.key(expected) == tuple({**problem.OPTIONAL, **expected}[name] for name in problem.FIELDS)


def test_the_fields_and_the_tables_are_the_services() -> None:
    assert tuple(GemmProblem.__dataclass_fields__) == problem.FIELDS
    assert problem.ALIASES == dtypes.ALIASES
    assert {name: kind.bytes for name, kind in dtypes.DTYPES.items()} == problem.DTYPES
    assert problem._COMPUTE == dtypes.COMPUTE_FOR
    assert problem._OUTPUTS == dtypes.OUTPUTS_FOR


def test_calls() -> None:
    assert problem.linear(
        2, 16, 128, "bf16", dtype_b="uint4", scale_b="block_1x64", scale_dtype="bf16", zero_b="uint4"
    ) == problem.key(
        from_linear(
            2, 16, 128, "bf16", dtype_b="uint4", scale_b="block_1x64", scale_dtype="bf16", zero_b="uint4"
        ).to_dict()
    )
    assert problem.mm(2, 3, 5, "fp32", trans_a="T") == problem.key(from_mm(2, 3, 5, trans_a="T").to_dict())
    assert problem.bmm(4, 2, 3, 5, "bf16", stride_b=0) == problem.key(
        from_bmm(4, 2, 3, 5, "bf16", stride_b=0).to_dict()
    )
    assert problem.linear(2, 3, 5, "fp16") == problem.key(from_linear(2, 3, 5, "fp16").to_dict())
    assert problem.linear(2, 3, 5, "fp16", bias=True, dtype_d="fp32") == problem.key(
        from_linear(2, 3, 5, "fp16", bias="fp32", dtype_d="fp32").to_dict()
    )
    assert problem.addmm(2, 3, 5, "fp64", alpha=2.0) == problem.key(
        from_mm(2, 3, 5, "fp64", alpha=2.0, beta=1.0).to_dict()
    )
    assert problem.scaled_mm(2, 3, 5, "fp8_e4m3", scaling="outer", dtype_d="bf16") == problem.key(
        from_linear(2, 3, 5, "fp8_e4m3", scale_a="outer", scale_b="outer", dtype_d="bf16").to_dict()
    )


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"m": 1, "n": 1}, "k"),
        ({"m": 1, "n": 1, "k": 0}, "k"),
        ({"m": 1, "n": 1, "k": 1, "dtype": "fp7"}, "dtype"),
        ({"m": 1, "n": 1, "k": 1, "mode": "eager"}, "mode"),
        ({"m": 3, "n": 5, "k": 7, "lda": 6}, "lda"),
        ({"m": 3, "n": 5, "k": 7, "ldb": 4}, "ldb"),
        ({"m": 1, "n": 1, "k": 1, "alpha": float("nan")}, "alpha"),
        ({"m": 1, "n": 1, "k": 1, "prepacked": True}, "prepacked"),
    ],
)
def test_an_error_names_its_field(values: dict[str, Any], field: str) -> None:
    with pytest.raises(gemmtune.ProblemError) as caught:
        wire.canonical(values)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "values",
    [
        {"m": 1, "n": 1, "k": 1, "dtype": "bf16", "prepacked": True},
        {"m": 8, "n": 16, "k": 32, "dtype": "fp8_e4m3", "scaling": "tensor", "prepacked": True},
        {**VALID[7], "prepacked": 1},
        {**VALID[7], "prepacked": "yes"},
        {**VALID[7], "epilogue": "none", "groups": 3, "prepacked": True},
    ],
    ids=str,
)
def test_what_is_not_prepacked_is_refused_in_the_services_words(values: dict[str, Any]) -> None:
    with pytest.raises(gemmtune.ProblemError) as ours:
        wire.canonical(values)
    with pytest.raises(InvalidProblem) as theirs:
        problem_from_wire(values)
    assert (str(ours.value), ours.value.field) == (str(theirs.value), "prepacked")
    assert theirs.value.field == "prepacked"


def test_a_call_of_prepacked_weights_has_a_key_of_its_own() -> None:
    how: dict[str, Any] = {"dtype_b": "int8", "scale_b": "outer", "scale_dtype": "bf16"}
    stored, packed = (problem.linear(2, 16, 128, "bf16", prepacked=one, **how) for one in (False, True))
    assert stored == problem.key(from_linear(2, 16, 128, "bf16", **how).to_dict())
    assert packed == problem.key(from_linear(2, 16, 128, "bf16", prepacked=True, **how).to_dict())
    assert stored != packed
