"""Random operands, the ragged twin of a problem, and operands as stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.dtypes import DTYPES, INTEGER, to_host
from backends.operands import Layout, layouts
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear
from tuners.inputs import (
    DISTRIBUTIONS,
    RAGGED_BATCH,
    RAGGED_K,
    RAGGED_M,
    RAGGED_N,
    Case,
    applicable,
    cases,
    draw,
    host_inputs,
    physical,
    ragged,
    scaled_down,
)
from tuners.reference import make_reference
from tuners.verify import compare

TYPES = ("fp64", "fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8")
COUNT = 20_000
SHAPES = [
    from_blas(512, 256, 1024, "fp32"),
    from_blas(5, 3, 2, "fp32"),
    from_blas(512, 256, 1024, "bf16", trans_a="T", trans_b="T", lda=2000, alpha=2.0),
    from_linear(512, 256, 1024, "fp16", bias="fp16", activation="gelu"),
    from_bmm(12, 64, 128, 32, "bf16", beta=1.0),
    from_blas(64, 64, 64, "fp32", batch=2, stride_a=0, beta=0.5, ldc=70, stride_c=0, stride_d=70 * 64),
    from_blas(64, 64, 64, "int8", batch=9, stride_b=0, trans_b="T"),
]


#: Outputs of few exponents, with what else may carry a sum out of their range.
NARROW_OUTPUTS: list[tuple[str, str, dict[str, Any]]] = [
    ("fp8_e4m3", "fp8_e4m3", {}),
    ("fp8_e4m3", "fp8_e4m3", {"alpha": 2.0, "beta": 2.0, "bias": "bf16"}),
    ("fp8_e4m3", "fp8_e4m3", {"scale_a": "outer", "scale_b": "outer", "scale_d": "tensor", "alpha": 2.0}),
    ("fp8_e4m3", "fp8_e4m3", {"scale_a": "tensor", "scale_d": "tensor", "activation": "gelu"}),
    ("fp8_e5m2", "fp8_e4m3", {"beta": 1.0}),
    ("fp8_e4m3", "fp8_e5m2", {"scale_a": "tensor", "scale_b": "tensor"}),
    ("fp8_e4m3", "fp16", {"scale_a": "tensor", "scale_b": "tensor", "alpha": 2.0}),
    ("fp16", "fp16", {"alpha": 2.0, "beta": 2.0}),
    ("fp16", "fp32", {"compute": "fp16", "alpha": 2.0}),
    ("int8", "fp16", {"alpha": 2.0, "beta": 2.0}),
]


def drawn(dtype: str, distribution: str, seed: int = 0) -> Any:
    return draw(np.random.default_rng(seed), COUNT, DTYPES[dtype], distribution)


# ---- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("distribution", sorted(set(DISTRIBUTIONS)))
def test_values_are_finite_of_the_type_and_follow_the_seed(dtype: str, distribution: str) -> None:
    values = drawn(dtype, distribution)
    assert values.dtype == DTYPES[dtype].storage
    assert values.shape == (COUNT,)
    wide = values.astype(np.float64)
    assert np.all(np.isfinite(wide))
    assert np.array_equal(wide, drawn(dtype, distribution).astype(np.float64))
    assert not np.array_equal(wide, drawn(dtype, distribution, 1).astype(np.float64))
    assert len(np.unique(wide)) > 8


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
def test_distributions_of_floats(dtype: str) -> None:
    normal = drawn(dtype, "normal").astype(np.float64)
    assert abs(normal.mean()) < 0.05
    assert abs(normal.std() - 1) < 0.05
    uniform = drawn(dtype, "uniform").astype(np.float64)
    assert uniform.min() >= 0
    assert uniform.max() <= 1
    assert abs(uniform.mean() - 0.5) < 0.02
    integers = drawn(dtype, "integers").astype(np.float64)
    assert set(integers) == set(range(-4, 5))
    large = drawn(dtype, "large").astype(np.float64)
    assert large.std() > 10 * normal.std()
    assert np.abs(large).max() ** 2 < DTYPES[dtype].largest


@pytest.mark.parametrize(
    ("distribution", "span"), [("normal", 8), ("integers", 8), ("uniform", 128), ("large", 128)]
)
def test_integers_span_what_their_distribution_says(distribution: str, span: int) -> None:
    assert set(drawn("int8", distribution)) == set(range(-span, span))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("k", [1, 64, 8192])
def test_large_inputs_are_drawn_only_where_their_products_fit_the_output(dtype: str, k: int) -> None:
    problem = from_blas(16, 16, k, dtype)
    kind = scaled_down("large", problem)
    assert kind in ("large", "normal")
    inputs = host_inputs(problem, 0, "large")
    product = inputs["b"][0].astype(np.float64) @ (inputs["a"][0].astype(np.float64))
    if DTYPES[dtype].kind != INTEGER and kind == "large":
        assert 10 * np.abs(product).max() < DTYPES[problem.dtype_d].largest
        assert np.abs(product).max() > 10 * k**0.5
    if dtype in ("fp64", "fp32", "bf16"):
        assert kind == "large"


@pytest.mark.parametrize("out", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_integer_products_fit_a_floating_point_output(out: str, distribution: str) -> None:
    problem = from_blas(64, 64, 8192, "int8", dtype_d=out)
    inputs = host_inputs(problem, 0, distribution)
    product = 2.0 * inputs["b"][0].astype(np.float64) @ inputs["a"][0].astype(np.float64)
    assert np.abs(product).max() < DTYPES[out].largest


@pytest.mark.parametrize("k", [1, 100, 900, 2000, 9000, 40_000, 140_000])
@pytest.mark.parametrize("distribution", sorted(set(DISTRIBUTIONS)))
@pytest.mark.parametrize(("kind", "out", "options"), NARROW_OUTPUTS)
def test_what_is_expected_stays_in_a_narrow_outputs_range(
    kind: str, out: str, options: dict[str, Any], distribution: str, k: int
) -> None:
    problem = from_blas(20, 12, k, kind, dtype_d=out, **options)
    largest = DTYPES["fp16" if problem.compute == "fp16" else out].largest
    reference = make_reference(Case(problem, 0, distribution, "test"))[0]
    assert 0.1 < np.abs(reference.expected).max() < 0.75 * largest
    rounded = to_host(reference.expected, DTYPES[out])
    assert not compare(reference, rounded).wrong


@pytest.mark.parametrize(
    ("kind", "out", "k", "distribution", "want"),
    [
        ("fp8_e4m3", "fp8_e4m3", 64, "uniform", "uniform"),
        ("fp8_e4m3", "fp8_e4m3", 64, "integers", "integers"),
        ("fp8_e4m3", "fp8_e4m3", 1000, "uniform", "normal"),
        ("fp8_e4m3", "fp8_e4m3", 1000, "integers", "normal"),
        ("fp8_e4m3", "fp8_e4m3", 4096, "uniform", "small"),
        ("fp8_e4m3", "fp8_e4m3", 8192, "normal", "small"),
        ("fp8_e4m3", "bf16", 8192, "uniform", "uniform"),
        ("fp16", "fp16", 100_000, "uniform", "uniform"),
        ("fp16", "fp16", 300_000, "uniform", "integers"),
        ("fp16", "fp32", 300_000, "uniform", "uniform"),
        ("int8", "fp16", 8192, "normal", "normal"),
        ("int8", "fp16", 300_000, "normal", "small"),
        ("int8", "int8", 300_000, "uniform", "uniform"),
        ("fp32", "fp32", 10**6, "large", "large"),
    ],
)
def test_a_distribution_gives_way_only_where_the_output_cannot_hold_its_sums(
    kind: str, out: str, k: int, distribution: str, want: str
) -> None:
    problem = from_blas(64, 64, k, kind, dtype_d=out)
    assert scaled_down(distribution, problem) == want
    assert scaled_down(want, problem) == want


@pytest.mark.parametrize("out", ["fp64", "fp32", "bf16", "fp16"])
@pytest.mark.parametrize("distribution", ["normal", "integers", "uniform"])
def test_sums_that_fit_are_of_the_distribution_that_was_asked_for(out: str, distribution: str) -> None:
    problem = from_blas(64, 64, 32_768, out, alpha=2.0, beta=2.0, bias=out)
    assert scaled_down(distribution, problem) == distribution


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp8_e4m3", "int8"])
def test_small_values(dtype: str) -> None:
    values = drawn(dtype, "small").astype(np.float64)
    if dtype == "int8":
        assert set(values) == {-1, 0, 1}
    else:
        assert abs(values.mean()) < 0.005
        assert abs(values.std() - 1 / 8) < 0.005


@pytest.mark.parametrize("distribution", ["normal", "uniform", "large", "scale"])
def test_values_of_fp64_use_their_whole_significand(distribution: str) -> None:
    values = drawn("fp64", distribution)
    assert np.mean(values != values.astype(np.float32)) > 0.99
    significands = np.frexp(values)[0] * 2.0**53
    assert np.all(significands == np.rint(significands))
    assert np.mean(significands % 16 != 0) > 0.8


@pytest.mark.parametrize("options", [{"bias": "fp32"}, {"dtype_c": "fp32", "dtype_d": "fp16", "beta": 1.0}])
def test_large_terms_that_are_added_fit_the_output(options: dict[str, Any]) -> None:
    problem = from_blas(16, 16, 4, "fp16", **options)
    for values in host_inputs(problem, 0, "large").values():
        assert np.abs(values.astype(np.float64)).max() < DTYPES["fp16"].largest / 4


@pytest.mark.parametrize("problem", SHAPES, ids=lambda p: p.slug)
def test_host_inputs_have_every_operand_but_d(problem: GemmProblem) -> None:
    inputs, shape = host_inputs(problem, 3, "normal"), layouts(problem)
    assert set(inputs) == set(shape) - {"d"}
    for name, values in inputs.items():
        assert values.shape == (shape[name].copies, shape[name].columns, shape[name].rows)
        assert values.dtype == shape[name].dtype.storage
    again, other = host_inputs(problem, 3, "normal"), host_inputs(problem, 4, "normal")
    assert all(np.array_equal(values, again[name]) for name, values in inputs.items())
    assert not any(np.array_equal(values, other[name]) for name, values in inputs.items())


@pytest.mark.parametrize("stride", [1, 20, 40, 399, 400, 401])
def test_inputs_that_overlap_in_memory_are_what_memory_holds(stride: int) -> None:
    problem = from_blas(20, 20, 20, "fp32", batch=3, stride_a=stride)
    a, layout = host_inputs(problem, 0, "normal")["a"], layouts(problem)["a"]
    stored = physical(layout, a, 0, 0xFF).view(np.float32)
    assert np.array_equal(layout.view(stored), a)


# ---- the ragged twin and the cases -------------------------------------------------------------


@pytest.mark.parametrize("problem", SHAPES, ids=lambda p: p.slug)
def test_the_ragged_twin_keeps_what_a_kernel_is_chosen_by(problem: GemmProblem) -> None:
    small = ragged(problem)
    for name in (
        "trans_a", "trans_b", "dtype_a", "dtype_b", "dtype_d", "compute", "activation", "bias", "bias_axis",
        "alignment", "fast_accumulation",
    ):  # fmt: skip
        assert getattr(small, name) == getattr(problem, name)
    assert (small.m, small.n) == (min(problem.m, RAGGED_M), min(problem.n, RAGGED_N))
    assert (small.k, small.batch) == (min(problem.k, RAGGED_K), min(problem.batch, RAGGED_BATCH))
    assert (small.alpha, small.beta) == ("any", "any")
    for name, layout in layouts(small).items():
        if name != "bias":
            assert layout.ld > layout.rows, f"{name} has padding"
    assert len({small.lda, small.ldb, small.ldc, small.ldd} & {problem.lda, problem.ldb}) == 0
    if problem.batch > 1:
        assert (small.stride_a == 0) == (problem.stride_a == 0)
        assert (small.stride_b == 0) == (problem.stride_b == 0)
        d = layouts(small)["d"]
        assert small.stride_d > d.ld * (d.columns - 1) + d.rows


def test_ragged_sizes_are_no_multiple_of_a_tile() -> None:
    for size in (RAGGED_M, RAGGED_N, RAGGED_K):
        assert all(size % tile for tile in (2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128))


@pytest.mark.parametrize("problem", SHAPES, ids=lambda p: p.slug)
def test_each_seed_checks_the_ragged_twin_and_the_exact_problem(problem: GemmProblem) -> None:
    found = cases(problem, 5, 10)
    assert [c.seed for c in found if c.name == "exact"] == [10, 11, 12, 13, 14]
    assert [c.seed for c in found if c.name == "ragged"] == [10, 11, 12, 13, 14]
    assert [c.distribution for c in found if c.name == "exact"] == list(DISTRIBUTIONS)
    assert all(c.problem == problem for c in found if c.name == "exact")
    assert all(c.problem == ragged(problem) for c in found if c.name == "ragged")
    assert len({(c.problem.id, c.seed) for c in found}) == len(found)
    assert len({(c.name, c.seed) for c in found}) == len(found)


@pytest.mark.parametrize(
    ("alpha", "beta", "own"),
    [(1.0, 0.0, True), (2.0, 0.0, True), (1.0, 1.0, True), (1.0, 2.0, True), (2.0, 2.0, False)],
)
def test_ragged_sizes_are_run_with_the_scalars_that_the_problem_has(
    alpha: float, beta: float, own: bool
) -> None:
    problem = from_blas(512, 256, 1024, "fp32", alpha=alpha, beta=beta)
    scalars = {(c.problem.alpha, c.problem.beta) for c in cases(problem, 1, 0) if c.problem.m == RAGGED_M}
    assert (problem.alpha, problem.beta) in scalars
    assert ("any", "any") in scalars
    assert len(scalars) == 1 + own


# ---- what stands in for a ragged twin ------------------------------------------------------------

LADDERS = [*SHAPES, from_blas(512, 512, 512, "fp8_e4m3", dtype_d="fp32", bias="bf16", trans_a="T")]


@pytest.mark.parametrize("problem", LADDERS, ids=lambda p: p.slug)
def test_what_stands_in_for_a_ragged_twin_has_leading_dimensions_of_whole_vectors(
    problem: GemmProblem,
) -> None:
    for case in cases(problem, 2, 0):
        if case.instead_of is None:
            assert case.name in ("ragged", "ragged, own scalars", "exact")
            continue
        p = case.problem
        for name, layout in layouts(p).items():
            if name != "bias":
                assert layout.ld * layout.dtype.bytes % 16 == 0
                assert layout.stride * layout.dtype.bytes % 16 == 0
                assert layout.ld > layout.rows, f"{name} has padding"
        assert (p.trans_a, p.trans_b, p.bias, p.activation) == (
            problem.trans_a, problem.trans_b, problem.bias, problem.activation,
        )  # fmt: skip
        sizes, own = (p.m, p.n, p.k), (problem.m, problem.n, problem.k)
        if case.name.endswith("multiples of 16"):
            assert all(s % 16 == 0 if o >= 16 else s == o for s, o in zip(sizes, own, strict=True))
        elif case.name.endswith("aligned rows"):
            vector = max(1, 16 // layouts(p)["d"].dtype.bytes)
            assert p.m % vector == 0 if own[0] >= vector else p.m == own[0]
            assert sizes[1:] == (min(own[1], RAGGED_N), own[2])
        else:
            assert sizes == (min(own[0], RAGGED_M), min(own[1], RAGGED_N), own[2])
        if "own scalars" in case.name:
            assert (p.alpha, p.beta) == (problem.alpha, problem.beta)
        else:
            assert (p.alpha, p.beta) == ("any", "any")


def test_the_ladder_names_what_each_case_stands_in_for() -> None:
    found = cases(from_blas(512, 256, 1024, "bf16"), 2, 5)
    assert [(c.seed, c.name, c.instead_of) for c in found] == [
        (5, "ragged", None),
        (5, "ragged, aligned", "ragged"),
        (5, "ragged, aligned rows", "ragged, aligned"),
        (5, "ragged, multiples of 16", "ragged, aligned rows"),
        (5, "ragged, own scalars", None),
        (5, "ragged, own scalars, aligned", "ragged, own scalars"),
        (5, "ragged, own scalars, aligned rows", "ragged, own scalars, aligned"),
        (5, "ragged, own scalars, multiples of 16", "ragged, own scalars, aligned rows"),
        (5, "exact", None),
        (6, "ragged", None),
        (6, "ragged, aligned", "ragged"),
        (6, "ragged, aligned rows", "ragged, aligned"),
        (6, "ragged, multiples of 16", "ragged, aligned rows"),
        (6, "exact", None),
    ]
    assert {(c.problem.m, c.problem.n, c.problem.k) for c in found if "multiples" in c.name} == {
        (144, 48, 1024)
    }


def test_what_equals_the_case_it_stands_in_for_is_dropped() -> None:
    # An int8 twin of 13 x 3 x 5 with every leading dimension a multiple of 16 bytes already.
    problem = from_blas(9, 3, 13, "int8", dtype_d="int32", trans_a="T")
    names = [c.name for c in cases(problem, 1, 0)]
    assert "ragged" in names
    for case in cases(problem, 1, 0):
        before = [c for c in cases(problem, 1, 0) if c.name == case.instead_of]
        assert all(c.problem != case.problem for c in before)
        assert len(before) == (case.instead_of is not None)
    assert "ragged, multiples of 16" not in names  # sizes below 16 are the problem's own either way


@pytest.mark.parametrize(
    ("legal", "want"),
    [
        (lambda p: True, ["ragged", "ragged, own scalars", "exact"]),
        (lambda p: p.lda % 8 == 0, ["ragged, aligned", "ragged, own scalars, aligned", "exact"]),
        (
            lambda p: p.n % 16 == 0,
            ["ragged, multiples of 16", "ragged, own scalars, multiples of 16", "exact"],
        ),
        (lambda p: p.beta == "zero", ["ragged, own scalars", "exact"]),
        (lambda p: p.m == 512, ["exact"]),
    ],
)
def test_a_stand_in_is_checked_only_where_what_it_stands_in_for_cannot_be(
    legal: Any, want: list[str]
) -> None:
    asked: list[Case] = []

    def runs(case: Case) -> bool:
        asked.append(case)
        return bool(legal(case.problem))

    found = list(applicable(cases(from_blas(512, 256, 1024, "bf16"), 2, 0), runs))
    assert [c.name for c in found if c.seed == 0] == want
    assert [c.name for c in found if c.seed == 1] == [name for name in want if "own" not in name]
    assert len(asked) == len(set(asked))


# ---- scales --------------------------------------------------------------------------------------


def test_scales_lie_about_one_and_change_no_other_operand() -> None:
    plain = from_blas(600, 500, 40, "fp8_e4m3", bias="bf16")
    scaled = replace(plain, scale_a="outer", scale_b="outer", scale_d="tensor", scale_dtype="fp32")
    without, inputs = host_inputs(plain, 0, "large"), host_inputs(scaled, 0, "large")
    assert all(np.array_equal(values, inputs[name]) for name, values in without.items())
    assert (inputs["scale_a"].shape, inputs["scale_d"].shape) == ((1, 1, 600), (1, 1, 1))
    for name in ("scale_a", "scale_b"):
        assert 0.5 <= inputs[name].min() < 0.51
        assert 1.49 < inputs[name].max() <= 1.5


# ---- as stored ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [name for name in TYPES if name != "fp8_e5m2"])
@pytest.mark.parametrize("guard", [0, 64])
def test_every_byte_that_is_no_element_is_poison(dtype: str, guard: int) -> None:
    kind = DTYPES[dtype]
    layout = Layout(rows=5, columns=3, ld=7, stride=30, copies=2, dtype=kind)
    values = np.ones((2, 3, 5)).astype(kind.storage)
    raw = physical(layout, values, guard, 0xEE)
    assert raw.size == layout.bytes + 2 * guard
    is_element = np.zeros(raw.size, np.bool_)
    for copy in range(2):
        for column in range(3):
            start = guard + (copy * 30 + column * 7) * kind.bytes
            is_element[start : start + 5 * kind.bytes] = True
            assert np.all(raw[start : start + 5 * kind.bytes].view(kind.storage) == 1)
    assert np.all(raw[~is_element] == 0xEE)


def test_an_operand_without_values_is_all_poison() -> None:
    layout = layouts(replace(from_blas(4, 4, 4, "fp32"), ldd=6))["d"]
    assert np.all(physical(layout, None, 16, 0x77) == 0x77)


def test_a_broadcast_operand_is_stored_once() -> None:
    layout = layouts(from_blas(4, 3, 2, "fp32", batch=5, stride_a=0))["a"]
    values = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    assert np.array_equal(physical(layout, values, 0, 0).view(np.float32), np.arange(8))
