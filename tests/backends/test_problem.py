"""GemmProblem: one id for one GEMM, another id for every other, and a refusal for what is none."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.dtypes import ACTIVATION_TYPES, COMPUTE_FOR, COMPUTE_TYPES, DTYPES, FP4, OUTPUTS_FOR, is_fp8
from backends.errors import InvalidProblem
from backends.grouping import NAMED
from backends.problem import OPTIONAL, GemmProblem, from_blas, from_bmm, from_linear, from_mm, with_scalars
from backends.problem_rules import (
    ACTIVATIONS,
    ALIGNMENTS,
    ALPHA_CLASSES,
    BETA_CLASSES,
    MAX_SIZE,
    MAX_STRIDE,
    SCALE_DTYPES,
    SCALES,
    TRANSPOSES,
)
from backends.quantisation import ZEROS

ROOT = Path(__file__).parents[2]
FP8 = tuple(name for name, row in DTYPES.items() if is_fp8(row))
COMPLEX = ("complex64", "complex128")
UNSCALED = ("fp64", *COMPLEX)
BIASES = ("fp64", "fp32", "fp16", "bf16", *FP8, "int8", "int32")
NO_SCALES: dict[str, Any] = {
    "scale_a": "none", "scale_b": "none", "scale_d": "none", "scale_dtype": None,
}  # fmt: skip
#: Those of a product of one matrix.
PLAIN_ACTIVATIONS = tuple(name for name in ACTIVATIONS if name != "swiglu")
NO_EPILOGUE: dict[str, Any] = {"activation": "none", "bias": None, "bias_axis": None}
Build = Callable[..., GemmProblem]


@st.composite
def calls(draw: st.DrawFn, largest: int = 40) -> dict[str, Any]:
    """Every argument of a legal row-major call, each given."""
    m, n, k = (draw(st.integers(1, largest)) for _ in range(3))
    batch = draw(st.integers(1, 4))
    kind = draw(st.sampled_from(tuple(COMPUTE_FOR)))
    trans_a, trans_b = (draw(st.sampled_from(TRANSPOSES)) for _ in range(2))
    padding = st.integers(0, 5)
    strides = st.integers(0, 2 * largest**2)
    ldd = n + draw(padding)
    stride_d = ldd * (m - 1) + n + draw(padding)
    if draw(st.booleans()):  # the batches' rows interleaved
        stride_d = n + draw(padding)
        ldd = stride_d * (batch - 1) + n + draw(padding)
    call: dict[str, Any] = {
        "m": m, "n": n, "k": k, "batch": batch, "trans_a": trans_a, "trans_b": trans_b,
        "lda": (k if trans_a == "N" else m) + draw(padding),
        "ldb": (n if trans_b == "N" else k) + draw(padding),
        "ldc": n + draw(padding), "ldd": ldd,
        "stride_a": draw(strides), "stride_b": draw(strides), "stride_c": draw(strides),
        "stride_d": stride_d,
        "dtype_a": kind, "dtype_b": draw(st.sampled_from(FP8)) if kind in FP8 else kind,
        "dtype_c": draw(st.sampled_from(OUTPUTS_FOR[kind])),
        "dtype_d": draw(st.sampled_from(OUTPUTS_FOR[kind])),
        "compute": draw(st.sampled_from(COMPUTE_FOR[kind])),
        "alpha": draw(st.sampled_from((1, 1.0, 2.5, -1.0))),
        "beta": draw(st.sampled_from((0, 0.0, 1, 1.0, 0.25, -1.0))),
        "alignment": draw(st.sampled_from(ALIGNMENTS)),
        "fast_accumulation": draw(st.booleans()) if kind in FP8 else False,
        **NO_EPILOGUE, **NO_SCALES,
    }  # fmt: skip
    if kind not in COMPLEX:
        exact = call["dtype_d"] == "int32"
        call["activation"] = draw(st.sampled_from(("none", "relu") if exact else PLAIN_ACTIVATIONS))
        call["bias"] = draw(st.none() | st.just(call["dtype_d"]) | st.sampled_from(BIASES))
        call["bias_axis"] = draw(st.sampled_from(("m", "n"))) if call["bias"] else None
    if kind not in UNSCALED:
        call["scale_a"], call["scale_b"] = (draw(st.sampled_from(SCALES)) for _ in range(2))
        call["scale_d"] = draw(st.sampled_from(("none", "tensor")))
        call["scale_dtype"] = draw(st.sampled_from(SCALE_DTYPES))
    return call if kind != FP4 else call | _mxfp4(call)


def _mxfp4(call: dict[str, Any]) -> dict[str, Any]:
    """What a call of two MXFP4 operands must have."""
    k = 32 * (1 + call["k"] % 3)
    m, n = call["m"], call["n"]
    return {
        "k": k, "batch": 1, "trans_a": "N", "trans_b": "T", "lda": k + 2 * (call["lda"] % 3),
        "ldb": k + 2 * (call["ldb"] % 3), "ldd": n + call["ldd"] % 5, "stride_d": (n + 5) * m,
        "scale_a": "block_1x32", "scale_b": "block_1x32", "scale_d": "none", "scale_dtype": "fp8_e8m0",
    }  # fmt: skip


def problems(largest: int = 40) -> st.SearchStrategy[GemmProblem]:
    """Canonical problems of every kind."""
    return calls(largest).map(lambda call: from_mm(**call))


def column_major(call: dict[str, Any]) -> GemmProblem:
    """The same memory described to from_blas: a row-major matrix is its transpose by columns."""
    axis = {"m": "n", "n": "m", None: None}[call["bias_axis"]]
    return from_blas(
        m=call["n"], n=call["m"], k=call["k"], batch=call["batch"],
        trans_a=call["trans_b"], lda=call["ldb"], stride_a=call["stride_b"],
        dtype_a=call["dtype_b"], scale_a=call["scale_b"],
        trans_b=call["trans_a"], ldb=call["lda"], stride_b=call["stride_a"],
        dtype_b=call["dtype_a"], scale_b=call["scale_a"],
        ldc=call["ldc"], stride_c=call["stride_c"], dtype_c=call["dtype_c"],
        ldd=call["ldd"], stride_d=call["stride_d"], dtype_d=call["dtype_d"],
        scale_d=call["scale_d"], scale_dtype=call["scale_dtype"],
        compute=call["compute"], alpha=call["alpha"], beta=call["beta"],
        activation=call["activation"], bias=call["bias"], bias_axis=axis,
        alignment=call["alignment"], fast_accumulation=call["fast_accumulation"],
    )  # fmt: skip


# ---- one problem, one id -----------------------------------------------------------------------


@given(calls())
def test_a_row_major_call_is_its_column_major_twin(call: dict[str, Any]) -> None:
    row, column = from_mm(**call), column_major(call)
    assert row == column
    assert row.id == column.id
    assert hash(row) == hash(column)


def test_the_twin_of_a_linear_layer() -> None:
    problem = from_linear(16, 4096, 512, "bf16", bias="fp32", activation="gelu", scale_a="outer")
    expected = from_blas(
        4096, 16, 512, "bf16", trans_a="T", lda=512, ldb=512, ldc=4096, bias="fp32", bias_axis="m",
        activation="gelu", scale_b="outer",
    )  # fmt: skip
    assert problem == expected
    assert (problem.m, problem.n, problem.lda, problem.bias_axis) == (4096, 16, 512, "m")
    assert (problem.scale_a, problem.scale_b) == ("none", "outer")


@given(calls())
def test_a_linear_is_an_mm_with_its_weight_transposed(call: dict[str, Any]) -> None:
    call |= {"trans_b": "T", "ldb": call["k"]}
    rest = {name: value for name, value in call.items() if name != "trans_b"}
    assert from_linear(**rest) == from_mm(**call)


@given(calls())
def test_a_batch_of_one_is_a_plain_product(call: dict[str, Any]) -> None:
    call["ldd"] = max(call["ldd"], call["n"])
    rest = {name: value for name, value in call.items() if not name.startswith("stride_")}
    m, n, k = (rest.pop(name) for name in ("m", "n", "k"))
    rest.pop("batch")
    assert from_bmm(1, m, n, k, **rest) == from_mm(m, n, k, **rest)
    strided = {**rest, "stride_a": 7, "stride_d": 0}
    assert from_bmm(1, m, n, k, **strided).id == from_mm(m, n, k, **rest).id


def test_what_is_not_given_is_packed() -> None:
    problem = from_bmm(3, 5, 7, 11, "fp16", trans_a="T", beta=1)
    assert problem == from_blas(
        7, 5, 11, "fp16", batch=3, trans_b="T", lda=7, ldb=5, ldc=7, ldd=7, stride_a=77,
        stride_b=55, stride_c=35, stride_d=35, dtype_b="fp16", dtype_c="fp16", dtype_d="fp16",
        compute="fp32", beta=1,
    )  # fmt: skip
    in_place = from_mm(5, 7, 11, "fp16", ldc=9, batch=2, stride_c=100, dtype_c="fp32", beta=1)
    assert (in_place.ldd, in_place.stride_d, in_place.dtype_d) == (9, 100, "fp32")
    apart = from_mm(5, 7, 11, "fp16", ldd=9, batch=2, stride_d=100, dtype_d="fp32", beta=1)
    assert (apart.ldc, apart.stride_c, apart.dtype_c) == (9, 100, "fp32")


@pytest.mark.parametrize("build", [from_mm, from_blas])
@pytest.mark.parametrize(
    "spelling",
    [
        {"dtype_a": "tf32"},
        {"dtype_a": " TF32"},
        {"dtype_a": "tf32", "dtype_b": "tf32"},
        {"dtype_a": "tf32", "dtype_b": "fp32"},
        {"dtype_a": "fp32", "dtype_b": "tf32"},
        {"dtype_a": "float32", "compute": "tf32"},
    ],
)
def test_tf32_is_fp32_storage_computed_in_tf32(build: Build, spelling: dict[str, Any]) -> None:
    problem = build(8, 16, 32, **spelling)
    assert (problem.dtype_a, problem.dtype_b, problem.dtype_d) == ("fp32",) * 3
    assert problem.compute == "tf32"
    assert problem == build(8, 16, 32, "fp32", compute="tf32")
    assert problem.id != build(8, 16, 32, "fp32").id
    assert problem.slug.endswith("_tf32")


@given(problems())
def test_aliases_are_the_formats_they_name(problem: GemmProblem) -> None:
    longer = {"fp32": "float32", "fp16": "HALF", "bf16": "bfloat16", "int8": "i8", "fp64": "double"}
    values = problem.to_dict()
    for name in ("dtype_a", "dtype_b", "dtype_c", "dtype_d", "bias"):
        values[name] = longer.get(values[name], values[name])
    assert GemmProblem.from_dict(values) == problem
    assert GemmProblem.from_dict(values).id == problem.id


# ---- another problem, another id ---------------------------------------------------------------

CHOICES: dict[str, tuple[Any, ...]] = {
    "trans_a": TRANSPOSES, "trans_b": TRANSPOSES, "compute": tuple(COMPUTE_TYPES),
    "alpha": ALPHA_CLASSES, "beta": BETA_CLASSES, "activation": ACTIVATIONS,
    "bias": (None, *DTYPES), "bias_axis": ("m", "n"), "scale_a": SCALES, "scale_b": SCALES,
    "scale_d": SCALES, "scale_dtype": (None, *SCALE_DTYPES), "alignment": ALIGNMENTS,
    "fast_accumulation": (False, True),
    **dict.fromkeys(("dtype_a", "dtype_b", "dtype_c", "dtype_d"), tuple(DTYPES)), "zero_a": ZEROS,
    "routing": ("none", *NAMED), "prepacked": (False, True),
}  # fmt: skip


def neighbours(problem: GemmProblem, name: str) -> Iterator[tuple[object, GemmProblem]]:
    """(value, problem) for every legal value of the field `name` but its own."""
    own = getattr(problem, name)
    for value in CHOICES.get(name) or (0, 1, own - 1, own + 1, 2 * own + 3, own + 1000):
        if value != own:
            try:
                yield value, replace(problem, **{name: value})
            except InvalidProblem:
                continue


def is_normal_form(problem: GemmProblem, name: str, value: object) -> bool:
    """Whether nothing that runs `problem` may read the field."""
    if name in ("trans_a", "trans_b") and problem.dtype_a not in COMPLEX:
        return {value, getattr(problem, name)} == {"T", "C"}
    if name == "bias_axis":
        return problem.bias is None
    if name == "scale_dtype":
        return {problem.scale_a, problem.scale_b, problem.scale_d} == {"none"}
    if name in ("ldc", "dtype_c", "stride_c") and problem.beta == "zero":
        return True
    return name.startswith("stride_") and problem.batch == 1 and not (problem.groups and name == "stride_a")


@given(problems())
@settings(max_examples=60)
def test_a_changed_field_is_another_problem_except_in_the_normal_form(problem: GemmProblem) -> None:
    for field in fields(problem):
        for value, changed in neighbours(problem, field.name):
            same = is_normal_form(problem, field.name, value)
            assert (changed == problem) is same, (field.name, value)
            assert (changed.id == problem.id) is same, (field.name, value)


BATCHED = from_mm(5, 6, 7, "fp8_e4m3", batch=2, trans_a="T", ldd=20, ldc=20, beta=2, bias="fp32",
                  scale_a="tensor")  # fmt: skip
QUANTISED = from_mm(5, 8, 64, "bf16", dtype_b="uint4", trans_b="T", scale_b="block_1x32")
BASES = (
    BATCHED, from_mm(6, 6, 6), from_mm(5, 6, 7, "complex64"), from_mm(5, 6, 7, "fp32", ldd=9), QUANTISED,
    from_linear(5, 8, 64, "bf16", groups=4),
)  # fmt: skip


@pytest.mark.parametrize("name", [f.name for f in fields(GemmProblem)])
def test_every_field_counts_somewhere(name: str) -> None:
    ids = {changed.id for base in BASES for _, changed in neighbours(base, name) if changed != base}
    assert ids - {base.id for base in BASES}


@given(calls(), calls())
def test_different_calls_have_different_ids(one: dict[str, Any], other: dict[str, Any]) -> None:
    left, right = from_mm(**one), from_mm(**other)
    assert (left == right) is (left.id == right.id)


@pytest.mark.parametrize("name", ["stride_a", "stride_b", "stride_c", "stride_d"])
def test_no_batch_no_strides(name: str) -> None:
    plain = from_mm(5, 6, 7, "bf16", beta=1)
    assert from_mm(5, 6, 7, "bf16", beta=1, **{name: 12345}) == plain
    assert getattr(plain, name) == 0
    batched = from_mm(5, 6, 7, "bf16", beta=1, batch=2)
    assert from_mm(5, 6, 7, "bf16", beta=1, batch=2, **{name: 12345}) != batched


@pytest.mark.parametrize("other", [{"ldc": 99}, {"dtype_c": "fp32"}, {"stride_c": 999}])
def test_without_beta_c_is_not_there(other: dict[str, Any]) -> None:
    call: dict[str, Any] = {
        "m": 5, "n": 6, "k": 7, "dtype_a": "bf16", "batch": 2, "ldd": 8, "stride_d": 50,
        "dtype_d": "bf16",
    }  # fmt: skip
    plain = from_mm(**call)
    assert from_mm(**call, **other) == plain
    assert (plain.ldc, plain.dtype_c, plain.stride_c) == (8, "bf16", 50)
    assert from_mm(**call, **other, beta=1) != from_mm(**call, beta=1)


@pytest.mark.parametrize("name", ["trans_a", "trans_b"])
def test_conjugation_is_transposition_for_real_operands_only(name: str) -> None:
    assert from_mm(5, 5, 5, "fp16", **{name: "C"}) == from_mm(5, 5, 5, "fp16", **{name: "T"})
    turned = from_mm(5, 5, 5, "complex64", **{name: "T"})
    assert from_mm(5, 5, 5, "complex64", **{name: "C"}).id != turned.id


def test_the_axis_of_no_bias_and_the_type_of_no_scale_are_dropped() -> None:
    plain = from_mm(5, 6, 7)
    assert from_mm(5, 6, 7, bias_axis="m") == plain
    assert from_mm(5, 6, 7, scale_dtype="fp8_e8m0") == plain
    assert (plain.bias_axis, plain.scale_dtype) == (None, None)
    assert replace(plain, bias_axis="n", scale_dtype="fp32").id == plain.id
    assert from_mm(5, 6, 7, bias="fp32", bias_axis="m") != from_mm(5, 6, 7, bias="fp32")
    assert from_mm(5, 6, 7, scale_a="tensor").scale_dtype == "fp32"


def test_scalars_count_by_class() -> None:
    assert from_mm(5, 6, 7, alpha=2.0).id == from_mm(5, 6, 7, alpha=-0.3).id
    assert from_mm(5, 6, 7, beta=2).id == from_mm(5, 6, 7, beta=-1.5).id
    ids = {from_mm(5, 6, 7, alpha=a, beta=b).id for a in (1, 2) for b in (0, 1, 2)}
    assert len(ids) == 6
    assert from_mm(5, 6, 7, beta=-0.0) == from_mm(5, 6, 7, beta=0)


@given(problems(), st.sampled_from((1.0, 3.0)), st.sampled_from((0.0, 1.0, 3.0)))
def test_scalars_stand_for_their_class(problem: GemmProblem, alpha: float, beta: float) -> None:
    changed = with_scalars(problem, alpha, beta)
    got_alpha, got_beta = changed.scalars
    assert with_scalars(problem, got_alpha, got_beta) == changed
    assert (got_alpha == 1.0) is (alpha == 1.0)
    assert (got_beta == 0.0, got_beta == 1.0) == (beta == 0.0, beta == 1.0)
    if problem.compute == "int32":
        assert got_alpha == int(got_alpha)
        assert got_beta == int(got_beta)
    if problem.beta == "zero":
        assert (changed.ldc, changed.dtype_c) == (problem.ldd, problem.dtype_d)


# ---- identity as text --------------------------------------------------------------------------


@given(problems(), st.randoms(use_true_random=False))
def test_the_dict_reads_back_in_any_order(problem: GemmProblem, random: Any) -> None:
    items = list(json.loads(json.dumps(problem.to_dict())).items())
    random.shuffle(items)
    back = GemmProblem.from_dict(dict(items))
    assert back == problem
    assert back.id == problem.id
    assert set(dict(items)) == {f.name for f in fields(GemmProblem)} - set(OPTIONAL)


LINEAR = "from_linear(16, 4096, 4096, 'bf16')"
HEADS = "from_bmm(8, 64, 64, 128, 'fp16', trans_a='T', stride_b=0, beta=0.5, bias='fp32')"
SCALED = "from_blas(100, 200, 300, 'fp8_e4m3', lda=512, scale_a='outer', dtype_d='bf16')"
FROZEN = {
    LINEAR: "tn_4096x16x4096_bf16-e47f2be7ab8e",
    HEADS: "nt_64x64x128_b8_fp16-2857beb28d74",
    SCALED: "nn_100x200x300_fp8_e4m3-83c902373961",
}


def test_ids_never_change() -> None:
    names = {"from_linear": from_linear, "from_bmm": from_bmm, "from_blas": from_blas}
    assert {text: eval(text, dict(names)).id for text in FROZEN} == FROZEN


def test_ids_are_the_same_in_every_process() -> None:
    code = "from backends.problem import *\n" + "\n".join(f"print({text}.id)" for text in FROZEN)
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONHASHSEED": seed}, text=True,
            capture_output=True, check=True,
        )  # fmt: skip
        assert run.stdout.split() == list(FROZEN.values())


def test_from_dict_refuses_what_is_missing_or_unknown() -> None:
    values = from_mm(5, 6, 7).to_dict()
    with pytest.raises(InvalidProblem, match="colour") as unknown:
        GemmProblem.from_dict({**values, "colour": "red"})
    assert unknown.value.field == "colour"
    for name in values:
        with pytest.raises(InvalidProblem, match=f"lacks {name}") as missing:
            GemmProblem.from_dict({key: value for key, value in values.items() if key != name})
        assert missing.value.field == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alignment", 16.0), ("alignment", True), ("alignment", "16"), ("fast_accumulation", 0),
        ("fast_accumulation", None), ("fast_accumulation", "yes"), ("m", 5.0), ("lda", 7.0),
        ("dtype_a", "fp31"), ("dtype_c", []), ("dtype_d", {}), ("bias", ["fp32"]), ("alpha", 1.0),
        ("beta", 0), ("trans_a", "n"), ("scale_a", []), ("activation", None),
    ],
)  # fmt: skip
def test_from_dict_refuses_values_of_another_kind(name: str, value: object) -> None:
    values = from_mm(5, 6, 7, "fp8_e4m3", beta=1).to_dict()
    with pytest.raises(InvalidProblem) as refused:
        GemmProblem.from_dict({**values, name: value})
    assert refused.value.field == name


def test_slug_and_epilogue_are_readable() -> None:
    assert from_linear(16, 4096, 512, "bf16").slug == "tn_4096x16x512_bf16"
    assert from_bmm(3, 16, 8, 4, "complex64", trans_a="C").slug == "nc_8x16x4_b3_complex64"
    assert from_mm(1, 1, 1).epilogue == "none"
    assert from_mm(1, 1, 1, bias="fp32").epilogue == "bias"
    assert from_mm(1, 1, 1, bias="fp32", activation="relu").epilogue == "bias_relu"
    assert from_mm(1, 1, 1, activation="silu").epilogue == "silu"


# ---- work counted ------------------------------------------------------------------------------


def addresses(rows: int, columns: int, ld: int, stride: int, batch: int, kind: str) -> set[tuple[str, int]]:
    """(format, offset) of each element, or of each byte of two, that a column-major operand's batches
    touch."""
    spots = itertools.product(range(batch), range(columns), range(rows))
    return {(kind, (t * stride + j * ld + i) // DTYPES[kind].packing) for t, j, i in spots}


def bytes_of(touched: set[tuple[str, int]]) -> int:
    return sum(DTYPES[kind].storage.itemsize for kind, _ in touched)


def test_scales_of_whole_and_cut_blocks_are_read() -> None:
    plain = from_linear(5, 300, 260, "fp8_e4m3", dtype_d="bf16")
    scaled = from_linear(
        5, 300, 260, "fp8_e4m3", dtype_d="bf16", scale_a="block_1x128", scale_b="block_128x128"
    )
    assert scaled.bytes_read - plain.bytes_read == 4 * (5 * 3 + 3 * 3)


@given(calls(largest=6), st.tuples(*[st.booleans()] * 3))
def test_flops_and_bytes_are_counted(call: dict[str, Any], broadcast: tuple[bool, bool, bool]) -> None:
    for side, zero in zip("abc", broadcast, strict=True):
        call[f"stride_{side}"] = 0 if zero else 1000
    p = from_mm(**call)
    a = (p.m, p.k) if p.trans_a == "N" else (p.k, p.m)
    b = (p.k, p.n) if p.trans_b == "N" else (p.n, p.k)
    read = bytes_of(addresses(*a, p.lda, p.stride_a, p.batch, p.dtype_a))
    read += bytes_of(addresses(*b, p.ldb, p.stride_b, p.batch, p.dtype_b))
    if call["beta"] != 0:
        read += bytes_of(addresses(p.m, p.n, p.ldc, p.stride_c, p.batch, p.dtype_c))
    if call["bias"] is not None:
        length = call["m"] if call["bias_axis"] == "m" else call["n"]
        read += length * DTYPES[call["bias"]].storage.itemsize
    for scale, rows in ((p.scale_a, p.m), (p.scale_b, p.n)):
        by_rows = {"block_1x128": rows, "block_1x32": rows * -(-p.k // 32), "block_1x64": rows}
        scales = {**by_rows, "block_128x128": 1}.get(scale, 0)  # sizes are below a block's
        read += scales * DTYPES[p.scale_dtype or "fp32"].storage.itemsize
    assert p.bytes_read == read
    assert p.bytes_written == bytes_of(addresses(p.m, p.n, p.ldd, p.stride_d, p.batch, p.dtype_d))
    steps = itertools.product(range(p.batch), range(p.m), range(p.n), range(p.k))
    assert p.flops == sum(2 for _ in steps)


# ---- outputs of a batch ------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 5), st.integers(2, 4), st.data())
@settings(max_examples=300)
def test_outputs_that_overlap_are_refused(m: int, n: int, batch: int, data: st.DataObject) -> None:
    ldd = data.draw(st.integers(m, 4 * m + 4))
    stride = data.draw(st.integers(0, 6 * m * n))
    touched = addresses(m, n, ldd, stride, batch, "fp32")
    apart = len(touched) == m * n * batch
    packed = stride >= ldd * (n - 1) + m
    interleaved = stride >= m and ldd >= stride * (batch - 1) + m
    if packed or interleaved:
        assert apart
        assert from_blas(m, n, 3, batch=batch, ldd=ldd, stride_d=stride).stride_d == stride
    elif not apart:
        with pytest.raises(InvalidProblem, match="overlap") as refused:
            from_blas(m, n, 3, batch=batch, ldd=ldd, stride_d=stride)
        assert refused.value.field == "stride_d"


def test_interleaved_batches_are_accepted_and_overlapping_ones_refused() -> None:
    heads = from_bmm(4, 6, 8, 5, "bf16", ldd=32, stride_d=8)
    assert (heads.ldd, heads.stride_d) == (32, 8)
    back_to_back = from_bmm(4, 6, 8, 5, "bf16", ldd=32, stride_d=32 * 5 + 8)
    assert back_to_back.stride_d == 168
    for stride, ldd in ((0, 8), (7, 32), (8, 31), (47, 8)):
        with pytest.raises(InvalidProblem, match="overlap") as refused:
            from_bmm(4, 6, 8, 5, "bf16", ldd=ldd, stride_d=stride)
        assert refused.value.field == "stride_d"
    with pytest.raises(InvalidProblem, match="overlap") as in_place:
        from_bmm(4, 6, 8, 5, "bf16", stride_c=0, beta=1)
    assert in_place.value.field == "stride_c"
    assert from_bmm(4, 6, 8, 5, "bf16", stride_c=0, stride_d=48, beta=1).stride_c == 0


# ---- what is no GEMM ---------------------------------------------------------------------------

BUILDERS: tuple[Build, ...] = (from_mm, from_blas)
HUGE = pytest.param(10**400, id="huge")
LEAST = {"m": 8, "n": 16, "k": 32}


def refusal(build: Build, **arguments: Any) -> InvalidProblem:
    with pytest.raises(InvalidProblem) as refused:
        build(**{**LEAST, **arguments})
    return refused.value


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("name", ["m", "n", "k", "batch"])
@pytest.mark.parametrize("value", [0, -1, 2**31, HUGE, True, False, 4.0, math.nan, "4", None, []])
def test_sizes_are_integers_in_range(build: Build, name: str, value: object) -> None:
    error = refusal(build, **{name: value})
    assert error.field == name
    assert str(error).startswith(f"{name} must be ")
    assert str(value)[:20] in str(error)


@pytest.mark.parametrize("build", BUILDERS)
def test_the_largest_sizes_are_accepted(build: Build) -> None:
    assert build(m=MAX_SIZE, n=MAX_SIZE, k=MAX_SIZE).flops == 2 * (2**31 - 1) ** 3
    assert build(**LEAST, lda=MAX_STRIDE, batch=2, stride_a=MAX_STRIDE).stride_b in (
        MAX_STRIDE, 512,
    )  # fmt: skip


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("name", ["lda", "ldb", "ldc", "ldd"])
@pytest.mark.parametrize("value", [0, -64, 2**49 + 1, True, 64.0, "64", [64]])
def test_leading_dimensions_are_integers_in_range(build: Build, name: str, value: object) -> None:
    error = refusal(build, **{name: value})
    assert error.field == name
    assert str(error).startswith(f"{name} must be ")


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("name", ["stride_a", "stride_b", "stride_c", "stride_d"])
@pytest.mark.parametrize("value", [-1, 2**49 + 1, True, 640.0, "640"])
def test_batch_strides_are_integers_in_range(build: Build, name: str, value: object) -> None:
    error = refusal(build, batch=2, beta=1, **{name: value})
    assert error.field == name
    assert str(error).startswith(f"{name} must be ")


# m=8, n=16, k=32
MINIMA = [
    (from_mm, "lda", "N", 32), (from_mm, "lda", "T", 8), (from_mm, "ldb", "N", 16),
    (from_mm, "ldb", "T", 32), (from_mm, "ldc", "N", 16), (from_mm, "ldd", "N", 16),
    (from_blas, "lda", "N", 8), (from_blas, "lda", "T", 32), (from_blas, "ldb", "N", 32),
    (from_blas, "ldb", "T", 16), (from_blas, "ldc", "N", 8), (from_blas, "ldd", "N", 8),
]  # fmt: skip


@pytest.mark.parametrize(("build", "name", "trans", "least"), MINIMA)
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_a_leading_dimension_covers_its_rows(
    build: Build, name: str, trans: str, least: int, beta: float
) -> None:
    both = {"trans_a": trans, "trans_b": trans, "beta": beta}
    assert build(**LEAST, **both, **{name: least})
    error = refusal(build, **both, **{name: least - 1})
    assert error.field == name
    assert str(error).startswith(f"{name} {least - 1} is too small")
    assert str(error).endswith(f"at least {least}")


WRONG_WORDS: list[tuple[str, Any]] = [
    ("dtype_a", "fp31"), ("dtype_a", ""), ("dtype_a", None), ("dtype_a", 32), ("dtype_a", []),
    ("dtype_a", "int32"), ("dtype_a", "fp8_e8m0"), ("dtype_b", "fp31"), ("dtype_b", []),
    ("dtype_b", ""), ("dtype_c", "fp31"), ("dtype_d", "fp31"), ("dtype_d", ""), ("dtype_c", "int8"),
    ("dtype_d", "complex64"), ("compute", "fp31"), ("compute", ""), ("compute", "int32"),
    ("compute", []), ("trans_a", "n"), ("trans_b", "X"), ("trans_a", True), ("trans_b", []),
    ("activation", "tanh"), ("activation", None), ("activation", []), ("bias", "fp31"),
    ("bias", ""), ("bias", True), ("bias", "complex64"), ("bias", "fp8_e8m0"),
    ("scale_a", "row"), ("scale_b", None), ("scale_a", []), ("scale_d", "outer"),
    ("alignment", 3), ("alignment", 32), ("alignment", 16.0), ("alignment", True),
    ("fast_accumulation", True), ("fast_accumulation", 1), ("fast_accumulation", None),
]  # fmt: skip


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize(("name", "value"), WRONG_WORDS)
def test_unknown_words_are_refused(build: Build, name: str, value: object) -> None:
    error = refusal(build, **{name: value})
    assert error.field == name
    assert str(error).startswith(name)


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"dtype_a": "fp16", "compute": "tf32"}, "compute"),
        ({"dtype_a": "fp64", "compute": "fp32"}, "compute"),
        ({"dtype_a": "fp32", "dtype_d": "bf16"}, "dtype_d"),
        ({"dtype_a": "bf16", "beta": 1, "dtype_c": "complex64", "dtype_d": "bf16"}, "dtype_c"),
        ({"dtype_a": "tf32", "compute": ""}, "compute"),
        ({"dtype_a": "complex64", "bias": "fp32"}, "epilogue"),
        ({"dtype_a": "complex64", "activation": "relu"}, "epilogue"),
        ({"dtype_a": "int8", "activation": "gelu"}, "epilogue"),
        ({"dtype_a": "fp64", "scale_a": "tensor"}, "scaling"),
        ({"bias": "fp32", "bias_axis": "k"}, "bias_axis"),
        ({"bias": "fp32", "bias_axis": []}, "bias_axis"),
        ({"scale_a": "tensor", "scale_dtype": "fp64"}, "scale_dtype"),
        ({"scale_b": "outer", "scale_dtype": ""}, "scale_dtype"),
    ],
)
def test_parts_that_do_not_go_together(build: Build, arguments: dict[str, Any], field: str) -> None:
    assert refusal(build, **arguments).field == field


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize(("left", "right"), list(itertools.permutations(COMPUTE_FOR, 2)))
def test_inputs_are_of_one_type_except_8_bit_floats(build: Build, left: str, right: str) -> None:
    if left in FP8 and right in FP8:
        problem = build(**LEAST, dtype_a=left, dtype_b=right)
        assert problem.id != build(**LEAST, dtype_a=right, dtype_b=left).id
    elif {left, right} & {"int8", "fp8_e4m3", FP4} and {left, right} & set(ACTIVATION_TYPES):
        error = refusal(build, dtype_a=left, dtype_b=right)  # weights lack a layout, or a scale
        assert error.field in ("dtype_a", "dtype_b", "trans_a", "trans_b")
    else:
        error = refusal(build, dtype_a=left, dtype_b=right)
        assert error.field in ("dtype_a", "dtype_b")
        own, other = (left, right) if error.field == "dtype_a" else (right, left)
        assert str(error).startswith(f"{error.field} {own} differs from the other input's {other}")


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, HUGE, True, "1", None, 1j, [1.0]])
def test_scalars_are_finite_numbers(build: Build, name: str, value: object) -> None:
    error = refusal(build, **{name: value})
    assert error.field == name
    assert "finite number" in str(error)


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_alpha_zero_is_no_gemm(build: Build, zero: float) -> None:
    assert refusal(build, alpha=zero).field == "alpha"


def test_an_invalid_problem_is_a_value_error() -> None:
    assert isinstance(refusal(from_mm, m=0), ValueError)


def test_problems_are_frozen() -> None:
    problem = from_mm(5, 6, 7)
    with pytest.raises(AttributeError):
        problem.m = 6  # type: ignore[misc]
    assert asdict(problem) == {**problem.to_dict(), **OPTIONAL}


def test_a_pickled_problem_brings_its_fields_and_no_hash_of_another_process() -> None:
    problem = from_mm(5, 6, 7, "bf16")
    assert hash(problem) == hash(from_mm(5, 6, 7, "bf16"))
    assert problem.id
    state = problem.__getstate__()
    assert set(state) == set(problem.to_dict())
    copy = pickle.loads(pickle.dumps(problem))
    assert vars(copy).keys() == state.keys()
    assert (copy, hash(copy), copy.id) == (problem, hash(problem), problem.id)
