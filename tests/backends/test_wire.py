"""A problem as people write it: every field, the way back, and a refusal that names the field."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.errors import InvalidProblem
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear, from_mm
from backends.wire import EPILOGUES, FIELDS, problem_from_wire, problem_to_wire
from tests.backends.test_problem import calls, problems

LEAST: dict[str, Any] = {"m": 8, "n": 16, "k": 32}


def refusal(values: object) -> InvalidProblem:
    with pytest.raises(InvalidProblem) as refused:
        problem_from_wire(values)
    return refused.value


# ---- reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({}, from_mm(8, 16, 32)),
        ({"dtype": "bf16"}, from_mm(8, 16, 32, "bf16")),
        ({"dtype": "bfloat16"}, from_mm(8, 16, 32, "bf16")),
        ({"dtype": "tf32"}, from_mm(8, 16, 32, compute="tf32")),
        ({"dtype": "TF32", "dtype_b": "fp32"}, from_mm(8, 16, 32, compute="tf32")),
        ({"dtype_a": "fp16"}, from_mm(8, 16, 32, "fp16")),
        ({"dtype_a": "fp8_e4m3", "dtype_b": "fp8_e5m2"},
         from_mm(8, 16, 32, "fp8_e4m3", dtype_b="fp8_e5m2")),
        ({"dtype": "fp8_e4m3", "dtype_b": "fp8_e5m2", "layout": "col"},
         from_blas(8, 16, 32, "fp8_e4m3", dtype_b="fp8_e5m2")),
        ({"dtype": "fp16", "dtype_c": "fp32"}, from_mm(8, 16, 32, "fp16", dtype_d="fp32")),
        ({"dtype": "fp16", "dtype_c": "fp32", "dtype_d": "fp16", "beta": 1},
         from_mm(8, 16, 32, "fp16", dtype_c="fp32", dtype_d="fp16", beta=1)),
        ({"batch": 3}, from_bmm(3, 8, 16, 32)),
        ({"trans_b": True}, from_linear(8, 16, 32)),
        ({"trans_b": "t"}, from_linear(8, 16, 32)),
        ({"trans_a": "T", "trans_b": False}, from_mm(8, 16, 32, trans_a="T")),
        ({"trans_a": "C", "dtype": "complex64"}, from_mm(8, 16, 32, "complex64", trans_a="C")),
        ({"lda": 40}, from_mm(8, 16, 32, lda=40)),
        ({"ldb": 40}, from_mm(8, 16, 32, ldb=40)),
        ({"ldc": 40}, from_mm(8, 16, 32, ldd=40)),
        ({"ldc": 40, "ldd": 20, "beta": 1}, from_mm(8, 16, 32, ldc=40, ldd=20, beta=1)),
        ({"compute": "bf16x9"}, from_mm(8, 16, 32, compute="bf16x9")),
        ({"alpha": 0.5}, from_mm(8, 16, 32, alpha=3)),
        ({"beta": 1}, from_mm(8, 16, 32, beta=1.0)),
        ({"alignment": 4}, from_mm(8, 16, 32, alignment=4)),
        ({"dtype": "fp8_e5m2", "fast_accumulation": True},
         from_mm(8, 16, 32, "fp8_e5m2", fast_accumulation=True)),
        ({"layout": "row"}, from_mm(8, 16, 32)),
        ({"layout": "col"}, from_blas(8, 16, 32)),
        ({"layout": "col", "trans_a": True, "lda": 50},
         from_blas(8, 16, 32, trans_a="T", lda=50)),
        ({"batch": 2, "strides": {"a": 0, "b": 600, "c": 200, "d": 300}, "beta": 1},
         from_bmm(2, 8, 16, 32, stride_a=0, stride_b=600, stride_c=200, stride_d=300, beta=1)),
        ({"batch": 2, "strides": {"a": None, "b": 0}}, from_bmm(2, 8, 16, 32, stride_b=0)),
        ({"epilogue": "none", "scaling": "none"}, from_mm(8, 16, 32)),
        ({"epilogue": "bias"}, from_mm(8, 16, 32, bias="fp32")),
        ({"epilogue": "bias_silu", "dtype": "bf16"},
         from_mm(8, 16, 32, "bf16", bias="bf16", activation="silu")),
        ({"epilogue": "bias", "dtype": "bf16", "dtype_c": "fp32"},
         from_mm(8, 16, 32, "bf16", dtype_d="fp32", bias="fp32")),
        ({"epilogue": "gelu"}, from_mm(8, 16, 32, activation="gelu")),
        ({"epilogue": {"activation": "relu"}}, from_mm(8, 16, 32, activation="relu")),
        ({"epilogue": {"bias": True, "bias_axis": "m"}},
         from_mm(8, 16, 32, bias="fp32", bias_axis="m")),
        ({"epilogue": {"bias": "fp32", "bias_axis": "m"}, "dtype": "fp16", "layout": "col"},
         from_blas(8, 16, 32, "fp16", bias="fp32")),
        ({"epilogue": {"bias": False, "activation": None}}, from_mm(8, 16, 32)),
        ({"scaling": "tensor"}, from_mm(8, 16, 32, scale_a="tensor", scale_b="tensor")),
        ({"scaling": "row"}, from_mm(8, 16, 32, scale_a="outer", scale_b="outer")),
        ({"m": 8, "n": 16, "k": 32, "dtype": "fp4_e2m1", "trans_b": True, "scaling": "group_32"},
         from_linear(8, 16, 32, "fp4_e2m1", scale_a="block_1x32", scale_b="block_1x32")),
        ({"scaling": "block_32"}, from_mm(8, 16, 32, scale_a="block_32", scale_b="block_32")),
        ({"scaling": {"a": "row", "b": "block_128x128", "d": "tensor", "dtype": "fp8_e8m0"}},
         from_mm(8, 16, 32, scale_a="outer", scale_b="block_128x128", scale_d="tensor",
                 scale_dtype="fp8_e8m0")),
    ],
)  # fmt: skip
def test_every_field_reads(extra: dict[str, Any], problem: GemmProblem) -> None:
    assert problem_from_wire({**LEAST, **extra}) == problem


@pytest.mark.parametrize("name", sorted(set(FIELDS) - set(LEAST)))
def test_null_is_not_given(name: str) -> None:
    assert problem_from_wire({**LEAST, name: None}) == from_mm(8, 16, 32)


@given(calls())
def test_the_column_layout_is_from_blas(call: dict[str, Any]) -> None:
    columns = {"lda": 2000, "ldb": 2000, "ldc": 2000, "ldd": 2000, "batch": 1}
    call |= columns
    if call["dtype_a"] == "fp4_e2m1":  # contiguous along k: a transposed A and a plain B here
        call |= {"trans_a": "T", "trans_b": "N"}
    wire = {name: call[name] for name in FIELDS if name in call}
    wire["layout"] = "col"
    wire["epilogue"] = {name: call[name] for name in ("activation", "bias", "bias_axis")}
    wire["scaling"] = {side: call[f"scale_{side}"] for side in "abd"} | {"dtype": call["scale_dtype"]}
    assert problem_from_wire(wire) == from_blas(**call)


# ---- writing -----------------------------------------------------------------------------------


@given(problems())
def test_what_is_written_reads_back(problem: GemmProblem) -> None:
    wire = problem_to_wire(problem)
    again = problem_from_wire(json.loads(json.dumps(wire)))
    assert again == problem
    assert again.id == problem.id
    assert set(wire) <= set(FIELDS)


@given(problems())
@settings(max_examples=30)
def test_nothing_written_could_be_left_out(problem: GemmProblem) -> None:
    wire = problem_to_wire(problem)
    for name in set(wire) - {"m", "n", "k", "dtype"}:
        rest = {key: value for key, value in wire.items() if key != name}
        try:
            assert problem_from_wire(rest) != problem, name
        except InvalidProblem:
            continue


@pytest.mark.parametrize(
    ("problem", "wire"),
    [
        (from_mm(16, 4096, 512, "bf16"), {"m": 16, "n": 4096, "k": 512, "dtype": "bf16"}),
        (from_linear(16, 4096, 512, "fp16", bias="fp16", activation="gelu"),
         {"m": 16, "n": 4096, "k": 512, "dtype": "fp16", "trans_b": True,
          "epilogue": "bias_gelu"}),
        (from_bmm(4, 3, 5, 7, beta=1, alpha=2),
         {"m": 3, "n": 5, "k": 7, "dtype": "fp32", "batch": 4, "alpha": 1.5, "beta": 1.0}),
        (from_mm(3, 5, 7, "tf32", lda=9),
         {"m": 3, "n": 5, "k": 7, "dtype": "fp32", "compute": "tf32", "lda": 9}),
        (from_mm(3, 5, 7, "complex64", trans_a="C", alignment=8),
         {"m": 3, "n": 5, "k": 7, "dtype": "complex64", "trans_a": "C", "alignment": 8}),
        (from_mm(3, 5, 7, "int8", beta=2),
         {"m": 3, "n": 5, "k": 7, "dtype": "int8", "beta": -1.0}),
        (from_blas(3, 5, 7, bias="fp32", bias_axis="n"),
         {"m": 5, "n": 3, "k": 7, "dtype": "fp32",
          "epilogue": {"activation": "none", "bias": "fp32", "bias_axis": "m"}}),
        (from_blas(3, 5, 7, bias="fp16", bias_axis="n"),
         {"m": 5, "n": 3, "k": 7, "dtype": "fp32",
          "epilogue": {"activation": "none", "bias": "fp16", "bias_axis": "m"}}),
    ],
)  # fmt: skip
def test_only_what_differs_from_the_defaults_is_written(problem: GemmProblem, wire: dict[str, Any]) -> None:
    assert problem_to_wire(problem) == wire


def test_epilogues_are_all_named() -> None:
    grouped = {**LEAST, "n": 2, "dtype": "bf16", "trans_b": True, "groups": 1}
    kinds = {
        problem_from_wire({**(grouped if name == "swiglu" else LEAST), "epilogue": name}).epilogue
        for name in EPILOGUES
    }
    assert kinds == set(EPILOGUES)
    assert len(EPILOGUES) == 9


# ---- refusing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [None, 5, "m=5", b"{}", [], [LEAST], (("m", 5),), math.nan, True, {5}])
def test_a_problem_is_an_object(values: object) -> None:
    error = refusal(values)
    assert error.field is None
    assert "must be an object" in str(error)


@pytest.mark.parametrize("name", ["M", "colour", "", "dtype_bias", "stride_a", "scale_a", "bias"])
def test_unknown_fields_are_refused(name: str) -> None:
    extra: dict[str, Any] = {name: 1}
    error = refusal({**LEAST, **extra})
    assert error.field == name
    assert repr(name) in str(error)
    assert all(known in str(error) for known in FIELDS)


def test_field_names_are_strings() -> None:
    values: dict[Any, Any] = {**LEAST}
    assert refusal({**values, 3: 1}).field == "3"


@pytest.mark.parametrize("name", ["m", "n", "k"])
def test_sizes_are_required(name: str) -> None:
    for values in ({k: v for k, v in LEAST.items() if k != name}, {**LEAST, name: None}):
        error = refusal(values)
        assert error.field == name
        assert "missing" in str(error)


@pytest.mark.parametrize("layout", ["row", "col"])
@pytest.mark.parametrize(
    ("field", "extra"),
    [
        ("m", {"m": 0}), ("n", {"n": "16"}), ("k", {"k": 2**31}), ("batch", {"batch": True}),
        ("dtype", {"dtype": "fp31"}), ("dtype", {"dtype": ""}), ("dtype", {"dtype": []}),
        ("dtype", {"dtype": "int32"}), ("dtype_a", {"dtype_a": "fp31"}),
        ("dtype_a", {"dtype_a": 0}), ("dtype_a", {"dtype": "fp32", "dtype_a": "fp32"}),
        ("dtype_b", {"dtype": "fp32", "dtype_b": "fp31"}), ("dtype_b", {"dtype_b": []}),
        ("dtype_b", {"dtype": "tf32", "dtype_b": []}), ("dtype_c", {"dtype_c": "int8"}),
        ("dtype_d", {"dtype_d": ""}), ("dtype_d", {"dtype_d": "bf16", "dtype_c": "fp32"}),
        ("compute", {"compute": "int32"}), ("compute", {"compute": ""}),
        ("trans_a", {"trans_a": "X"}), ("trans_b", {"trans_b": 1}), ("trans_b", {"trans_b": []}),
        ("lda", {"lda": 1}), ("ldb", {"ldb": 1}), ("ldc", {"ldc": 1}), ("ldd", {"ldd": 1}),
        ("ldc", {"ldc": 1, "ldd": 100, "beta": 1}), ("lda", {"lda": 64.0}),
        ("alpha", {"alpha": 0}), ("alpha", {"alpha": math.nan}), ("alpha", {"alpha": 10**400}),
        ("beta", {"beta": math.inf}), ("beta", {"beta": "1"}), ("beta", {"beta": True}),
        ("alignment", {"alignment": 3}), ("alignment", {"alignment": 16.0}),
        ("fast_accumulation", {"fast_accumulation": 1, "dtype": "fp8_e4m3"}),
        ("fast_accumulation", {"fast_accumulation": True}),
        ("prepacked", {"prepacked": 1}), ("prepacked", {"prepacked": "yes"}),
        ("prepacked", {"prepacked": True}),
        ("epilogue", {"epilogue": "tanh"}), ("epilogue", {"epilogue": "relu_bias"}),
        ("epilogue", {"epilogue": 1}), ("epilogue", {"epilogue": {"colour": 1}}),
        ("epilogue", {"epilogue": {"bias": "fp31"}}), ("epilogue", {"epilogue": {"bias": []}}),
        ("epilogue", {"epilogue": {"activation": []}}),
        ("epilogue", {"epilogue": {"bias": True, "bias_axis": []}}),
        ("epilogue", {"epilogue": {"bias": True, "bias_axis": "k"}}),
        ("epilogue", {"epilogue": "bias", "dtype": "complex64"}),
        ("dtype", {"epilogue": "bias", "dtype": "fp31"}),
        ("scaling", {"scaling": "outer"}), ("scaling", {"scaling": ["tensor"]}),
        ("scaling", {"scaling": {"a": []}}), ("scaling", {"scaling": {"c": "tensor"}}),
        ("scaling", {"scaling": {"d": "row"}}), ("scaling", {"scaling": {"a": "fp31"}}),
        ("scaling", {"scaling": {"a": "row", "dtype": ""}}),
        ("scaling", {"scaling": "tensor", "dtype": "fp64"}),
        ("strides", {"strides": {"a": -1}}), ("strides", {"strides": 5}), ("strides", {"strides": {"e": 5}}),
        ("strides", {"batch": 2, "strides": {"a": -1}}),
        ("strides", {"batch": 2, "strides": {"b": 1.5}}),
        ("strides", {"batch": 2, "strides": {"d": 0}}),
        ("strides", {"batch": 2, "strides": {"c": 0}}),
    ],
)  # fmt: skip
def test_every_fault_names_its_field(layout: str, field: str, extra: dict[str, Any]) -> None:
    error = refusal({**LEAST, "layout": layout, **extra})
    assert error.field == field
    assert str(error)


@pytest.mark.parametrize("layout", ["rows", "", "R", 0, [], {}])
def test_layouts_are_row_and_col(layout: object) -> None:
    assert refusal({**LEAST, "layout": layout}).field == "layout"


def test_a_message_uses_the_words_of_the_request() -> None:
    assert str(refusal({**LEAST, "dtype": "fp31"})).startswith("dtype 'fp31' is unknown")
    assert str(refusal({**LEAST, "ldc": 5})).startswith("ldc 5 is too small")
    known = "none, tensor, block_1x128, block_128x128, block_32, block_1x32, block_1x64, row, group_32"
    found = refusal({**LEAST, "dtype": "int8", "scaling": {"a": "row", "b": "rows"}})
    assert str(found).startswith(f"scale_b 'rows' is unknown; known: {known}")
    assert str(refusal({**LEAST, "m": -3})) == f"m must be between 1 and {2**31 - 1}, not -3"


WORDS = st.sampled_from(
    ["bf16", "fp32", "tf32", "fp8_e4m3", "complex64", "row", "col", "tensor", "bias_relu", "T", "n"]
)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS
    | st.sampled_from([0, 1, 16, 2**31, 2**64, 10**400, -(10**400), 1e308])
)  # fmt: skip
KEYS = st.sampled_from(["a", "b", "c", "d", "dtype", "activation", "bias", "bias_axis"])
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=6,
)


#: Unequal inputs are either's fault; a batch's packed strides follow from a leading dimension; groups need a
#: transposed A.
PARTNERS = ("dtype", "strides", "trans_b")


def outcome(values: object) -> GemmProblem | InvalidProblem:
    """What reading gives; any other exception passes through."""
    try:
        return problem_from_wire(values)
    except InvalidProblem as error:
        return error


@given(JSON)
def test_no_json_value_is_a_crash(value: object) -> None:
    read = outcome(value)
    assert isinstance(read, InvalidProblem)
    assert str(read)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), st.booleans())
@settings(max_examples=500)
def test_no_hostile_field_is_a_crash(extra: dict[str, Any], sized: bool) -> None:
    values = {**LEAST, **extra} if sized else {**extra}
    read = outcome(values)
    if isinstance(read, InvalidProblem):
        assert read.field in {*values, "m", "n", "k", *PARTNERS}
    else:
        assert problem_from_wire(problem_to_wire(read)).id == read.id


@pytest.mark.parametrize("name", FIELDS)
@given(value=JSON)
@settings(max_examples=60)
def test_no_hostile_value_is_a_crash(name: str, value: object) -> None:
    values = {**LEAST, "dtype": "fp8_e4m3", "batch": 2, "beta": 1, name: value}
    if name == "dtype_a":
        values.pop("dtype")
    read = outcome(values)
    if isinstance(read, InvalidProblem):
        assert read.field in (name, *PARTNERS)
    else:
        assert problem_from_wire(problem_to_wire(read)).id == read.id


def test_a_bias_of_quantised_weights_has_the_outputs_type() -> None:
    for dtype in ("bf16", "fp16"):
        problem = from_linear(
            2, 16, 128, dtype, dtype_b="uint4", scale_b="block_1x64", scale_dtype="bf16", bias=dtype
        )
        wire = problem_to_wire(problem)
        assert wire["epilogue"] == "bias"
        assert problem_from_wire(wire) == problem
