"""Grouped products: what a problem states, what is refused and by which field, the counts of a named routing,
and that no family takes one by accident."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from gemmtune.errors import ProblemError
from gemmtune.wire import canonical

from backends.cpu.backend import CpuBackend
from backends.cuda.backend import CudaBackend
from backends.environment import Environment
from backends.errors import InvalidProblem
from backends.grouping import (
    NAMED,
    active_groups,
    counts_of,
    draws_of,
    ends_of,
    popularities,
    rows_of_a_tile,
    spans_of,
    ungrouped,
    weight_reads,
)
from backends.hip.backend import HipBackend
from backends.operands import layouts
from backends.problem import GemmProblem, from_linear
from backends.protocol import Backend
from backends.solution import Solution
from backends.wire import problem_from_wire, problem_to_wire
from service.formats.core.row_text import problem_text, problem_wire

BASE: dict[str, Any] = {"m": 64, "n": 96, "k": 128, "dtype": "bf16", "trans_b": True, "groups": 8}
GIVEN = {**BASE, "m": 6, "groups": 3, "routing": [1, 0, 5]}
FP8 = {**BASE, "dtype": "fp8_e4m3", "dtype_d": "bf16"}
BLOCKS = {**FP8, "n": 200, "k": 320, "scaling": {"a": "block_1x128", "b": "block_128x128"}}
W4 = {
    **BASE, "dtype_b": "uint4", "scaling": {"b": "group_64", "dtype": "bf16", "zero_b": "uint4"},
}  # fmt: skip
MX = {**BASE, "dtype_b": "fp4_e2m1", "scaling": {"b": "group_32"}}
FORMS = (
    W4, MX, {**W4, "dtype": "fp16", "dtype_d": "fp32", "routing": [8] * 8},
    {**W4, "ldb": 160, "strides": {"b": 160 * 96 + 32}, "scaling": {"b": "group_32", "dtype": "fp16"}},
    {**W4, "dtype_b": "int4", "scaling": {"b": "group_128", "dtype": "fp32"}, "routing": "skewed"},
    BLOCKS, {**FP8, "scaling": "row"}, {**BLOCKS, "dtype_d": "fp32", "routing": [8] * 8},
    {**BLOCKS, "dtype": "fp8_e4m3_fnuz"},
    {**BASE, "epilogue": "swiglu"}, {**BASE, "epilogue": "swiglu", "dtype_d": "fp32", "ldd": 56},
    BASE, {**BASE, "routing": "skewed"}, GIVEN, {**BASE, "dtype": "fp16", "dtype_d": "fp32"},
    {**BASE, "lda": 136, "ldb": 144, "ldd": 104}, {**BASE, "strides": {"b": 96 * 128 + 64}},
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_problem_keeps_its_groups(form: dict[str, Any]) -> None:
    """In every form, also the client's and the exports'."""
    problem = problem_from_wire(form)
    assert GemmProblem.from_dict(problem.to_dict()) == problem
    assert problem_from_wire(problem_to_wire(problem)) == problem
    assert problem_wire(problem) == problem_to_wire(problem)
    assert problem_text(problem)[0] == problem.id
    assert canonical(form) == problem.to_dict()


def test_other_problems_say_nothing_of_groups() -> None:
    """Ids of problems that were made before there were groups stay."""
    plain = from_linear(64, 96, 128, "bf16")
    assert {"groups", "routing"}.isdisjoint(plain.to_dict())
    assert plain.id == "tn_96x64x128_bf16-5f553b4c1a81"
    assert problem_from_wire({**BASE, "groups": 0}) == plain


def test_the_routing_identifies_a_problem() -> None:
    forms = [BASE, {**BASE, "routing": "skewed"}, {**BASE, "routing": [8] * 8}]
    assert len({problem_from_wire(form).id for form in forms}) == 3
    assert len({problem_from_wire(form).kind for form in forms}) == 3


def test_swiglu_halves_the_output() -> None:
    plain, gated = problem_from_wire(BASE), problem_from_wire({**BASE, "epilogue": "swiglu"})
    assert (plain.rows_d, gated.rows_d, gated.ldd, gated.m) == (96, 48, 48, 96)
    assert (gated.flops, gated.bytes_read) == (plain.flops, plain.bytes_read)
    assert gated.bytes_written * 2 == plain.bytes_written
    assert (layouts(gated)["d"].rows, layouts(gated)["a"].columns) == (48, 96)
    assert gated.id != plain.id
    assert problem_to_wire(gated)["epilogue"] == "swiglu"


#: What is given -> the field at fault, and some of the message.
REFUSED: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"routing": [1, 0, 4]}, "routing", "5 rows in all, and the product has 6"),
    ({"routing": [1, 5]}, "routing", "2 counts for 3 groups"),
    ({"routing": [7, -1, 0]}, "routing", "between 0"),
    ({"routing": "zipf"}, "routing", "known: uniform, skewed, or a list of counts"),
    ({"routing": "1,0,05"}, "routing", "unknown"),
    ({"routing": []}, "routing", "0 counts for 3 groups"),
    ({"routing": [6.0, 0, 0]}, "routing", "routing[0] must be an integer, not 6.0"),
    ({"routing": [0, 6, math.nan]}, "routing", "routing[2] must be an integer, not nan"),
    ({"routing": [0, 6, None]}, "routing", "routing[2] must be an integer, not None"),
    ({"routing": "9" * 5000}, "routing", "unknown"),
    ({"groups": 0}, "routing", "give groups"),
    ({"groups": 1024, "routing": "uniform"}, "groups", "between 0 and 1023"),
    ({"groups": True, "routing": "uniform"}, "groups", "an integer"),
    ({"epilogue": "bias"}, "epilogue", "no bias"),
    ({"epilogue": "silu"}, "epilogue", "no activation but swiglu"),
    ({"epilogue": {"activation": "swiglu", "bias": True}}, "epilogue", "no bias"),
    ({"epilogue": "bias_swiglu"}, "epilogue", "unknown"),
    ({"epilogue": "swiglu", "n": 95}, "epilogue", "half of the 95 rows of weights are the gate's"),
    ({"epilogue": "swiglu", "n": 1}, "epilogue", "half of the 1 rows"),
    ({"epilogue": "swiglu", "ldd": 47}, "ldd", "at least 48"),
    ({"epilogue": "swiglu", "groups": 0, "routing": None}, "epilogue", "only a grouped product has it"),
    ({**FP8, "scaling": "row", "epilogue": "swiglu"}, "epilogue", "bf16 or fp16 have it, not of fp8_e4m3"),
    ({**W4, "epilogue": "swiglu"}, "epilogue", "not of uint4 x bf16"),
    ({"trans_b": False}, "trans_b", "trans_b N: weights are contiguous along k and transposed, as F."),
    ({"trans_a": True}, "trans_a", "contiguous along k"),
    ({"beta": 1.0}, "beta", "nothing is added"),
    ({"alpha": 2.0}, "alpha", "not scaled"),
    ({"batch": 2}, "batch", "one product"),
    ({"scaling": "tensor"}, "scaling", "no scales"),
    ({"dtype": "fp32"}, "groups", "bf16, fp16, fp8_e4m3, fp8_e4m3_fnuz, or of weights"),
    ({"dtype": "int8", "scaling": "row"}, "groups", "not int8 x int8 in int32"),
    ({"dtype": "fp8_e5m2", "scaling": "row"}, "groups", "not fp8_e5m2"),
    ({"dtype": "fp8_e5m2", "scaling": "row"}, "groups", "not fp8_e5m2"),
    ({"dtype": "fp8_e4m3", "dtype_b": "fp8_e5m2", "scaling": "row"}, "groups", "not fp8_e5m2 x fp8_e4m3"),
    ({"dtype": "fp8_e4m3"}, "scaling", "not none of the weights with none of the rows"),
    ({"dtype": "fp8_e4m3", "scaling": "tensor"}, "scaling", "not tensor of the weights"),
    ({**FP8, "scaling": {"a": "block_128x128", "b": "block_128x128"}}, "scaling", "block_1x128 of the rows"),
    ({**FP8, "scaling": {"a": "row", "b": "row", "dtype": "fp8_e8m0"}}, "scaling", "are fp32"),
    ({**FP8, "scaling": {"a": "row", "b": "row", "d": "tensor"}}, "scaling", "no scale"),
    ({**FP8, "scaling": "row", "dtype_d": "fp8_e4m3"}, "dtype_d", "bf16, fp16, fp32"),
    ({**FP8, "scaling": "row", "fast_accumulation": True}, "fast_accumulation", "added in fp32"),
    ({"strides": {"b": 96}}, "strides", "overlap"),
    ({**W4, "dtype_b": "int8", "scaling": {"b": "group_64"}}, "groups", "int4, uint4, fp4_e2m1 by bf16"),
    ({**W4, "scaling": {"b": "row"}}, "scaling", "groups of k: block_1x32 (group_32), block_1x64"),
    ({**W4, "scaling": {"b": "tensor"}}, "scaling", "groups of k"),
    ({**W4, "scaling": "none"}, "scaling", "no scale of quantised weights"),
    ({**W4, "scaling": {"a": "row", "b": "group_64"}}, "scaling", "only the weights have scales"),
    ({**W4, "k": 96, "scaling": {"b": "group_64"}}, "k", "no multiple"),
    ({**W4, "strides": {"b": 96 * 128 + 1}}, "strides", "odd"),
    ({**W4, "n": 20}, "n", "8 rows to a word"),
    ({**W4, "epilogue": "bias"}, "epilogue", "no bias"),
    ({**MX, "scaling": {"b": "group_32", "dtype": "fp8_e4m3"}}, "scaling", "NVFP4"),
    ({**MX, "scaling": {"b": "group_32", "zero_b": "eight"}}, "scaling", "no zero point"),
)  # fmt: skip


@pytest.mark.parametrize(("change", "field", "text"), REFUSED)
def test_what_is_refused(change: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(InvalidProblem) as caught:
        problem_from_wire({**GIVEN, **change})
    assert (caught.value.field, text in str(caught.value)) == (field, True), caught.value


@pytest.mark.parametrize("change", [change for change, _, _ in REFUSED])
def test_the_client_refuses_the_same(change: dict[str, Any]) -> None:
    with pytest.raises(ProblemError):
        canonical({**GIVEN, **change})


def test_every_group_has_weights_scales_and_zero_points() -> None:
    problem = problem_from_wire({**W4, "strides": {"b": 96 * 128 + 32}})
    shapes = layouts(problem)
    assert {name: shapes[name].copies for name in ("a", "scale_a", "zero_a", "b", "d")} == {
        "a": 8, "scale_a": 8, "zero_a": 8, "b": 1, "d": 1,
    }  # fmt: skip
    assert (shapes["a"].rows, shapes["a"].stride) == (64, (96 * 128 + 32) // 2)
    assert (shapes["scale_a"].rows, shapes["scale_a"].stride) == (2, 2 * 96)
    assert shapes["zero_a"].bytes == 8 * 2 * 96 // 2
    mx = layouts(problem_from_wire(MX))
    assert (mx["scale_a"].bytes, "zero_a" in mx) == (8 * 96 * 4, False)


def test_bytes_count_weights_of_groups_that_have_rows() -> None:
    some, every = (problem_from_wire({**W4, "m": 8, "routing": rows}) for rows in ([8, *[0] * 7], [1] * 8))
    weights = 96 * 128 // 2 + 96 * 2 * 2 + 96 * 2 // 2  # with scales and zero points
    assert every.bytes_read - some.bytes_read == 7 * weights


@pytest.mark.parametrize("routing", NAMED)
@pytest.mark.parametrize("rows", [1, 8, 512, 32768])
def test_counts_of_a_named_routing(routing: str, rows: int) -> None:
    problem = from_linear(rows, 96, 128, "bf16", groups=128, routing=routing)
    counts = counts_of(problem)
    assert (counts.shape, int(counts.sum())) == ((128,), rows)
    assert ends_of(problem).tolist() == np.cumsum(counts).tolist()
    spans = spans_of(problem)
    assert sum(end - start for _, start, end in spans) == rows
    assert len(spans) == int(np.count_nonzero(counts))


@pytest.mark.parametrize(
    ("form", "draws"),
    [
        ({"m": 8}, 4),
        ({"m": 128}, 4),
        ({"m": 129}, 1),
        ({"m": 8, "routing": "skewed"}, 4),
        ({"m": 8, "routing": [1] * 8}, 1),
    ],
)
def test_few_rows_stand_for_several_draws(form: dict[str, Any], draws: int) -> None:
    problem = problem_from_wire({**W4, **form})
    assert draws_of(problem) == draws
    counts = [counts_of(problem, draw) for draw in range(draws)]
    assert all(int(one.sum()) == form["m"] for one in counts)
    assert len({tuple(one) for one in counts}) == draws
    assert [ends_of(problem, draw).tolist() for draw in range(draws)] == [
        np.cumsum(one).tolist() for one in counts
    ]
    assert active_groups(problem) == np.mean([np.count_nonzero(one) for one in counts])


def test_bytes_are_a_mean_of_draws() -> None:
    problem = problem_from_wire({**W4, "m": 8})
    given = [
        problem_from_wire({**W4, "m": 8, "routing": counts_of(problem, draw).tolist()}).bytes_read
        for draw in range(draws_of(problem))
    ]
    assert len(set(given)) > 1
    assert abs(problem.bytes_read - np.mean(given)) <= 0.5


def test_draws_are_the_same_everywhere() -> None:
    """As other machines, and other versions of numpy, draw them."""
    assert counts_of(from_linear(16, 96, 128, "bf16", groups=8)).tolist() == [2, 2, 1, 2, 3, 1, 2, 3]
    skewed = from_linear(64, 96, 128, "bf16", groups=8, routing="skewed")
    assert counts_of(skewed).tolist() == [13, 7, 0, 22, 3, 4, 4, 11]


@pytest.mark.parametrize(("chosen", "groups"), [(2, 8), (8, 128), (8, 256), (4, 32)])
@pytest.mark.parametrize("routing", NAMED)
def test_a_token_selects_an_expert_once(chosen: int, groups: int, routing: str) -> None:
    problem = from_linear(chosen, 96, 128, "bf16", groups=groups, routing=routing)
    assert [int(counts_of(problem, draw).max()) for draw in range(draws_of(problem))] == [1] * 4


def test_skew() -> None:
    """The most popular of 128 and 256 groups has 12 and 15 times the mean; draws follow."""
    for groups, least, most in ((128, 11.5, 12.5), (256, 15.5, 16)):
        found = popularities(groups, "skewed")
        assert least < found.max() / found.mean() < most
        counts = counts_of(from_linear(65536, 96, 128, "bf16", groups=groups, routing="skewed"))
        assert abs(counts.max() / counts.mean() - found.max() / found.mean()) < 1


def test_bytes_of_active_groups_alone() -> None:
    problem = problem_from_wire(GIVEN)
    weights, rows = 96 * 128 * 2, 6 * 128 * 2
    assert problem.bytes_read == 2 * weights + rows + 4 * 3
    assert problem.flops == 2 * 6 * 96 * 128
    shapes = layouts(problem)
    assert (shapes["a"].copies, shapes["offsets"].bytes, shapes["d"].columns) == (3, 12, 6)


def test_scales_of_every_group() -> None:
    """Partial blocks count. Scales of rows of x are those of all groups, in x's order."""
    blocks = problem_from_wire(BLOCKS)
    shapes = layouts(blocks)
    scales = shapes["scale_a"], shapes["scale_b"]
    assert [(one.copies, one.columns, one.rows, one.stride) for one in scales] == [
        (8, 2, 3, 6),
        (1, 64, 3, 0),
    ]
    rows = layouts(problem_from_wire({**FP8, "scaling": "row"}))
    assert (rows["scale_a"].copies, rows["scale_a"].elements, rows["scale_b"].elements) == (8, 8 * 96, 64)
    some = problem_from_wire({**BLOCKS, "routing": [64, *[0] * 7]})
    assert some.bytes_read == 200 * 320 + 64 * 320 + 4 * 8 + 4 * (2 * 3 + 64 * 3)


HERE = {
    "cpu": Environment(
        "cpu", "x86_64", "a CPU", 2, 2**33, "CPU-1", libraries={"torch": "2.11.0", "blas": "x"}
    ),
    "cuda": Environment(
        "cuda", "sm_90", "NVIDIA H100", 132, 2**36, "GPU-1",
        libraries={"torch": "2.11.0+cu130", "nvrtc": "13.0", "triton": "3.6.0", "cublaslt": "1",
                   "cublas": "1"},
    ),
    "hip": Environment(
        "hip", "gfx942", "AMD MI300X", 304, 2**37, "GPU-2",
        libraries={"torch": "2.11.0+rocm7.0", "hiprtc": "7.0", "triton": "3.6.0"},
    ),
}  # fmt: skip
#: The families that were made for groups.
MADE = {
    "cpu": {"torch-grouped", "numpy-grouped"},
    "cuda": {"torch-grouped", "grouped-ring", "grouped-tile", "grouped-wgmma", "triton-fused-moe"},
    "hip": {"torch-grouped", "grouped-mfma", "grouped-wmma", "triton-fused-moe"},
}


@pytest.mark.parametrize("backend", [CpuBackend(), CudaBackend(), HipBackend()], ids=["cpu", "cuda", "hip"])
def test_no_other_family_takes_a_grouped_product(backend: Backend) -> None:
    """Nor does one that was made for them take another product."""
    grouped, plain = from_linear(64, 96, 128, "bf16", groups=8), from_linear(64, 96, 128, "bf16")
    environment = HERE[backend.name]
    families = backend.families()
    assert {name for name, one in families.items() if one.supports(grouped)} == MADE[backend.name]
    assert {name for name, one in families.items() if one.supports(plain)}.isdisjoint(MADE[backend.name])
    for name, family in families.items():
        own = next(iter(family.solutions(plain, environment)), Solution(name, 1, {}))
        assert family.illegal(grouped, own, environment) is not None


@pytest.mark.parametrize("backend", [CpuBackend(), CudaBackend(), HipBackend()], ids=["cpu", "cuda", "hip"])
@pytest.mark.parametrize("form", [BLOCKS, {**FP8, "scaling": "row"}], ids=["blocks", "rows"])
def test_no_other_family_takes_a_scaled_grouped_product(form: dict[str, Any], backend: Backend) -> None:
    """Those that multiply 8-bit floats are for one matrix."""
    grouped, plain = problem_from_wire(form), problem_from_wire({**form, "groups": 0})
    made = {
        "cuda": {"torch-grouped", "grouped-ring", "grouped-wgmma", "triton-fused-moe"},
        "hip": {"torch-grouped", "grouped-mfma", "grouped-wmma", "triton-fused-moe"},
    }.get(backend.name, set())
    environment = HERE[backend.name]
    for name, family in backend.families().items():
        assert family.supports(grouped) == (name in made), name
        if name not in made:
            takes = family.solutions(plain, environment) if family.supports(plain) else ()
            own = next(iter(takes), Solution(name, 1, {}))
            assert family.illegal(grouped, own, environment) is not None, name


@pytest.mark.parametrize("backend", [CpuBackend(), CudaBackend(), HipBackend()], ids=["cpu", "cuda", "hip"])
@pytest.mark.parametrize("form", [W4, MX], ids=["w4a16", "mxfp4"])
def test_no_other_family_takes_grouped_quantised_weights(form: dict[str, Any], backend: Backend) -> None:
    """Families for quantised weights are for one matrix, and others for groups do not dequantise."""
    grouped, plain = problem_from_wire(form), problem_from_wire({**form, "groups": 0})
    made = {
        "cpu": {"numpy-grouped"},
        "cuda": {"torch-grouped", "grouped-ring", "grouped-dequant-wgmma"},
        "hip": {"torch-grouped", "grouped-dequant-mfma", "grouped-dequant-wmma"},
    }
    environment = HERE[backend.name]
    for name, family in backend.families().items():
        assert family.supports(grouped) == (name in made[backend.name]), name
        if name not in made[backend.name]:
            takes = family.solutions(plain, environment) if family.supports(plain) else ()
            own = next(iter(takes), Solution(name, 1, {}))
            assert family.illegal(grouped, own, environment) is not None, name


@pytest.mark.parametrize("backend", [CudaBackend(), HipBackend()], ids=["cuda", "hip"])
@pytest.mark.parametrize("form", [BASE, BLOCKS, W4], ids=["bf16", "blocks", "w4a16"])
def test_a_family_of_tiles_says_how_many_rows_of_a_group_one_has(
    form: dict[str, Any], backend: Backend
) -> None:
    grouped = problem_from_wire(form)
    for name in MADE[backend.name] | {f"grouped-dequant-{kind}" for kind in ("wgmma", "mfma", "wmma")}:
        family = backend.families().get(name)
        if family is not None and family.supports(grouped):
            for one in family.solutions(grouped, HERE[backend.name]):
                rows = rows_of_a_tile(one.parameters)
                assert rows is None if name == "torch-grouped" else rows in range(8, 257), one


def test_weights_are_read_once_for_each_tile_of_a_groups_rows() -> None:
    given = problem_from_wire({**GIVEN, "m": 106, "groups": 4, "routing": [0, 1, 32, 73]})
    assert [weight_reads(given, rows) for rows in (8, 32, 48, 64, 80)] == [1 + 4 + 10, 5, 4, 4, 3]
    few = from_linear(8, 96, 128, "bf16", groups=128)  # a mean of draws, of at most 8 groups that have rows
    assert weight_reads(few, 256) == active_groups(few) <= 8


@pytest.mark.parametrize("backend", [CpuBackend(), CudaBackend(), HipBackend()], ids=["cpu", "cuda", "hip"])
def test_defaults_are_the_frameworks(backend: Backend) -> None:
    found = backend.baselines(from_linear(64, 96, 128, "bf16", groups=8), HERE[backend.name])
    families = [one.solution.family for one in found]
    expected = {
        "cpu": ["torch-grouped", "numpy-grouped"],
        "cuda": ["torch-grouped"] * 2 + ["triton-fused-moe"] * 2,
        "hip": ["torch-grouped"] + ["triton-fused-moe"] * 2,
    }
    assert families == expected[backend.name]
    assert found[0].framework
    for form in (W4, MX):
        found = backend.baselines(problem_from_wire(form), HERE[backend.name])
        calls = [one.solution.parameters.get("call", one.solution.family) for one in found]
        dequantised = {
            "cpu": ["numpy-grouped"],
            "cuda": ["dequantise_grouped_mm", "dequantise_loop"],
            "hip": ["dequantise_loop"],
        }
        assert calls == dequantised[backend.name]


def test_the_rule() -> None:
    assert ungrouped(from_linear(64, 96, 128, "bf16")) is None
    assert "8 groups" in (ungrouped(from_linear(64, 96, 128, "bf16", groups=8)) or "")
