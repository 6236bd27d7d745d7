"""The float64 reference and its bounds: no right result is refused, and a wrong reference is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.dtypes import COMPUTE_TYPES, DTYPES, INPUT_ROUNDOFF, INTEGER, to_host
from backends.errors import DeviceError
from backends.operands import as_product
from backends.problem import GemmProblem, from_blas
from backends.problem_rules import BLOCKS
from tuners.inputs import DISTRIBUTIONS, Case, ragged
from tuners.reference import FULL_FLOPS, Reference, activate, chunk_sums, error_bound, make_reference
from tuners.verify import Finding, compare

Array = npt.NDArray[Any]

#: Input and output types.
TYPES = [
    ("fp64", "fp64"), ("fp32", "fp32"), ("fp16", "fp16"), ("fp16", "fp32"),
    ("bf16", "bf16"), ("bf16", "fp32"),
    ("int8", "int32"), ("int8", "int8"), ("int8", "fp32"), ("int8", "fp16"), ("int8", "bf16"),
    ("fp8_e4m3", "bf16"), ("fp8_e4m3", "fp8_e4m3"),
]  # fmt: skip
FLOATS = [(a, d) for a, d in TYPES if a in ("fp64", "fp32", "fp16", "bf16")]
EPILOGUES: list[dict[str, Any]] = [
    {},
    {"alpha": 2.0},
    {"beta": 1.0},
    {"alpha": 2.0, "beta": 2.0},
    {"bias": "fp32"},
    {"bias": "fp32", "bias_axis": "n", "beta": 1.0},
    {"activation": "relu"},
    {"activation": "gelu", "bias": "fp32"},
    {"activation": "silu", "alpha": 2.0, "beta": 2.0, "bias": "fp32"},
]


def numpy_result(problem: GemmProblem, inputs: Mapping[str, Array], sequential: bool = False) -> Array:
    """D's view as numpy computes it in the accumulator's own precision, rounded once to the output type:
    by its BLAS, or one k after another. Integers that meet fractions go on in single precision."""
    wide: Any = np.float64 if problem.compute in ("fp64", "int32") else np.float32
    left, right = as_product(problem, inputs["a"].astype(wide), inputs["b"].astype(wide))
    if problem.scale_a in BLOCKS:
        right = right * _spread(inputs["scale_a"][0], BLOCKS[problem.scale_a], *right.shape[:0:-1]).T
    if problem.scale_b in BLOCKS:
        left = left * _spread(inputs["scale_b"][0], BLOCKS[problem.scale_b], *left.shape[1:])
    if sequential:
        shape = (max(len(left), len(right)), problem.n, problem.m)
        product = np.zeros(shape, wide)
        for i in range(problem.k):
            product += left[:, :, i, None] * right[:, None, i, :]
    else:
        product = np.matmul(left, right)
    if problem.compute == "int32" and not _whole(problem, inputs):
        wide, product = np.float32, product.astype(np.float32)
    alpha, beta = (wide(value) for value in problem.scalars)
    if "scale_a" in inputs and problem.scale_a not in BLOCKS:
        product = product * inputs["scale_a"][0, 0].astype(wide)[None, None, :]
    if "scale_b" in inputs and problem.scale_b not in BLOCKS:
        product = product * inputs["scale_b"][0, 0].astype(wide)[None, :, None]
    value = alpha * np.broadcast_to(product, (problem.batch, *product.shape[1:]))
    if "c" in inputs:
        value = value + beta * inputs["c"].astype(wide)
    if "bias" in inputs:
        bias = inputs["bias"][0, 0].astype(wide)
        value = value + (bias[None, None, :] if problem.bias_axis == "m" else bias[None, :, None])
    with np.errstate(over="ignore"):
        value = np.asarray(activate(problem.activation, value), wide)
    if "scale_d" in inputs:
        value = value * inputs["scale_d"][0, 0, 0].astype(wide)
    return to_host(value, DTYPES[problem.dtype_d])


def _spread(scales: Array, block: tuple[int, int], rows: int, k: int) -> Array:
    """The scale of each of [rows, k] elements."""
    found: Array = scales[np.arange(rows)[:, None] // block[0], np.arange(k)[None, :] // block[1]]
    return found


def _whole(problem: GemmProblem, inputs: Mapping[str, Array]) -> bool:
    kinds = [DTYPES[problem.dtype_d].storage, *(values.dtype for values in inputs.values())]
    return all(kind.kind == "i" for kind in kinds) and problem.activation in ("none", "relu")


def judged(problem: GemmProblem, seed: int = 0, distribution: str = "normal", **how: bool) -> Finding:
    reference, inputs = make_reference(Case(problem, seed, distribution, "test"))
    return compare(reference, numpy_result(problem, inputs, **how))


every_epilogue = pytest.mark.parametrize(
    ("kind", "out", "options"),
    [
        pytest.param(kind, out, options, id="-".join([kind, out, *map(str, options.values())]))
        for kind, out in TYPES
        for options in EPILOGUES
        if not (out == "int32" and options.get("activation") in ("gelu", "silu"))
    ],
)


# ---- what the bound must let pass ----------------------------------------------------------------


@every_epilogue
def test_numpys_own_results_are_right(kind: str, out: str, options: dict[str, Any]) -> None:
    for seed, (m, n, k) in enumerate([(1, 1, 1), (40, 30, 1), (40, 30, 3), (17, 23, 100), (5, 9, 1000)]):
        problem = from_blas(m, n, k, kind, dtype_d=out, **options)
        for distribution in DISTRIBUTIONS[:4]:
            finding = judged(problem, seed, distribution)
            assert not finding.wrong, (problem.slug, distribution, finding.wrong)
            assert finding.coverage == 1.0


@pytest.mark.parametrize(("kind", "out"), FLOATS)
@pytest.mark.parametrize("k", [2048, 8192])
def test_long_sums_are_right_in_any_order(kind: str, out: str, k: int) -> None:
    problem = from_blas(24, 16, k, kind, dtype_d=out)
    for seed in range(3):
        for distribution in DISTRIBUTIONS[:4]:
            for sequential in (False, True):
                finding = judged(problem, seed, distribution, sequential=sequential)
                assert not finding.wrong, (distribution, sequential, finding.wrong)


@settings(max_examples=150, deadline=None)
@given(
    types=st.sampled_from(FLOATS),
    sizes=st.tuples(st.integers(1, 48), st.integers(1, 48), st.integers(1, 300)),
    batch=st.integers(1, 3),
    broadcast=st.sets(st.sampled_from(["stride_a", "stride_b", "stride_c"])),
    trans=st.tuples(st.sampled_from("NT"), st.sampled_from("NT")),
    options=st.sampled_from(EPILOGUES),
    distribution=st.sampled_from(DISTRIBUTIONS),
    seed=st.integers(0, 2**31),
    sequential=st.booleans(),
)
def test_numpys_own_results_are_right_for_any_problem(
    types: tuple[str, str],
    sizes: tuple[int, int, int],
    batch: int,
    broadcast: set[str],
    trans: tuple[str, str],
    options: dict[str, Any],
    distribution: str,
    seed: int,
    sequential: bool,
) -> None:
    strides: dict[str, Any] = dict.fromkeys(broadcast, 0)
    if "stride_c" in strides:
        strides["stride_d"] = sizes[0] * sizes[1]
    problem = from_blas(
        sizes[0],
        sizes[1],
        sizes[2],
        types[0],
        dtype_d=types[1],
        batch=batch,
        trans_a=trans[0],
        trans_b=trans[1],
        **strides,
        **options,
    )
    for p in (problem, ragged(problem)):
        finding = judged(p, seed, distribution, sequential=sequential)
        assert not finding.wrong, finding.wrong


@pytest.mark.parametrize("k", [1, 16, 500])
@pytest.mark.parametrize("distribution", ["normal", "large", "uniform"])
def test_a_double_product_of_inputs_in_single_precision_is_wrong(distribution: str, k: int) -> None:
    problem = from_blas(24, 16, k, "fp64")
    reference, inputs = make_reference(Case(problem, 0, distribution, "test"))
    assert not compare(reference, numpy_result(problem, inputs)).wrong
    for name in ("a", "b"):
        narrowed = {**inputs, name: inputs[name].astype(np.float32).astype(np.float64)}
        assert "elements are off" in compare(reference, numpy_result(problem, narrowed)).wrong


@pytest.mark.parametrize("distribution", ["uniform", "integers", "large"])
def test_the_bound_is_of_the_distribution_that_is_drawn(distribution: str) -> None:
    problem = from_blas(24, 16, 20_000, "fp8_e4m3", dtype_d="fp8_e4m3")
    assert error_bound(problem, distribution) == error_bound(problem, "normal")


def test_terms_that_cancel_do_not_shrink_the_bound() -> None:
    # C and the bias nearly cancel in a few of 40,000 elements; their rounding errors do not.
    problem = from_blas(200, 200, 1, "fp32", beta=1.0, bias="fp32")
    for seed in range(5):
        assert not judged(problem, seed).wrong


def test_terms_may_be_added_in_any_order() -> None:
    problem = from_blas(200, 200, 1, "fp32", beta=1.0, bias="fp32")
    for seed in range(5):
        reference, inputs = make_reference(Case(problem, seed, "normal", "test"))
        product, bias = inputs["b"] @ inputs["a"], inputs["bias"][0, 0]
        for result in (product + (inputs["c"] + bias), (product + bias) + inputs["c"]):
            assert result.dtype == np.float32
            assert not compare(reference, result).wrong


def test_the_bound_is_no_looser_than_it_must_be() -> None:
    # The share of its bound that a right result uses: rounding alone fills a 16-bit output's.
    for out, least in (("bf16", 0.9), ("fp16", 0.8)):
        assert least < judged(from_blas(64, 64, 256, out)).error_over_bound <= 1
    long = judged(from_blas(64, 64, 8192, "fp32"), 0, "uniform", sequential=True)
    assert 0.01 < long.error_over_bound < 0.5
    # Of an element: 4 u sqrt(k) |a| |b|, where the k products add up to some sqrt(k) = |a| |b| / sqrt(k).
    reference, _ = make_reference(Case(from_blas(64, 64, 4096, "fp32"), 0, "normal", "test"))
    assert np.median(reference.tolerance) < 0.002 * np.median(np.abs(reference.expected))


def test_integers_are_exact_and_saturate() -> None:
    reference, inputs = make_reference(
        Case(from_blas(30, 20, 100, "int8", dtype_d="int8"), 0, "normal", "test")
    )
    product = inputs["b"][0].astype(np.int64) @ inputs["a"][0].astype(np.int64)
    assert product.max() > 127
    assert np.array_equal(reference.expected[0], np.clip(product, -128, 127))
    assert np.all(reference.tolerance == 0.5)
    wrong = to_host(reference.expected, DTYPES["int8"])
    wrong[0, 3, 4] += 1 if wrong[0, 3, 4] < 127 else -1
    assert compare(reference, wrong).wrong.startswith("1 of 600 elements are off; first D[4,3] of batch 0")


@pytest.mark.parametrize("name", ["none", "relu", "gelu", "silu"])
def test_activations(name: str) -> None:
    x = np.array([-1e4, -3.0, -0.5, 0.0, 0.5, 3.0, 1e4])
    by_hand = {
        "none": x,
        "relu": [0, 0, 0, 0, 0.5, 3, 1e4],
        # torch.nn.functional.gelu(x, approximate="tanh") and silu(x) in float64
        "gelu": [
            0,
            -0.0036373920817729943,
            -0.15428599017485487,
            0,
            0.34571400982514394,
            2.996362607918227,
            1e4,
        ],
        "silu": [0, -0.14227761953270035, -0.1887703343990727, 0, 0.3112296656009273, 2.8577223804673, 1e4],
    }
    assert activate(name, x) == pytest.approx(np.asarray(by_hand[name], np.float64), rel=1e-12, abs=1e-300)


# ---- a reference that is wrong itself ------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "factor"),
    [
        ((0, 0, 0), 1.001),
        ((1, -1, -1), 1.001),
        ((1, 7, 11), 0.0),
        ((0, 7, 11), float("nan")),
        ((0, 7, 11), float("inf")),
    ],
)
def test_a_wrong_float64_product_is_refused(
    monkeypatch: pytest.MonkeyPatch, at: tuple[int, int, int], factor: float
) -> None:
    right_matmul = np.matmul

    def wrong_matmul(a: Array, b: Array) -> Array:
        product = np.array(right_matmul(a, b))
        product[at] *= factor
        return product

    case = Case(from_blas(70, 50, 30, "fp32", batch=2), 0, "normal", "test")
    make_reference(case)
    monkeypatch.setattr("tuners.reference.np.matmul", wrong_matmul)
    with pytest.raises(DeviceError, match="float64 matrix product is wrong"):
        make_reference(case)


def test_a_product_in_single_precision_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(a: Array, b: Array) -> Array:
        return (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float64)

    monkeypatch.setattr("tuners.reference.np.matmul", rounded)
    with pytest.raises(DeviceError, match="nothing can be verified"):
        make_reference(Case(from_blas(70, 50, 300, "fp32"), 0, "normal", "test"))


# ---- products too large to compare in full -------------------------------------------------------

WIDE = 700


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers the size from which columns are sampled."""
    monkeypatch.setattr("tuners.reference.FULL_FLOPS", 1e4)


def wide(kind: str = "fp32", **options: Any) -> tuple[Reference, Array]:
    """A sampled reference and a right result."""
    problem = from_blas(WIDE, 12, 40, kind, **options)
    reference, inputs = make_reference(Case(problem, 0, "normal", "test"))
    return reference, numpy_result(problem, inputs)


def hidden(reference: Reference) -> int:
    """A column that is not compared one by one."""
    assert reference.columns is not None
    return int(np.setdiff1d(np.arange(WIDE), reference.columns)[50])


def test_small_products_are_compared_in_full() -> None:
    assert FULL_FLOPS >= 1e9
    reference, _ = make_reference(Case(from_blas(64, 64, 64, "fp32"), 0, "normal", "test"))
    assert reference.columns is None
    assert reference.projection is None


@pytest.mark.usefixtures("sampled")
@every_epilogue
def test_sampling_lets_numpys_own_results_pass(kind: str, out: str, options: dict[str, Any]) -> None:
    for extra in (
        {},
        {"batch": 2, "trans_a": "T", "trans_b": "T"},
        {"batch": 2, "stride_a": 0, "stride_b": 0},
    ):
        reference, result = wide(kind, dtype_d=out, **options, **extra)
        finding = compare(reference, result)
        assert not finding.wrong, finding.wrong
        assert 0 < finding.coverage < 0.5
        projected = (
            "activation" not in options and out != "int8" and not (out == "int32" and "bias" in options)
        )
        assert (reference.projection is not None) == projected


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("m", [1, 2, 16, 31, 33, 64, 65, 95, 96, 97, 300])
def test_sampled_columns_hold_both_edges_whatever_the_size(m: int) -> None:
    problem = from_blas(m, 50, 400, "fp32", beta=1.0)
    reference, inputs = make_reference(Case(problem, 0, "normal", "test"))
    assert reference.columns is not None
    columns = set(reference.columns.tolist())
    assert len(columns) == len(reference.columns)
    assert columns <= set(range(m))
    assert columns >= set(range(min(m, 32))) | set(range(max(0, m - 32), m))
    assert len(columns) >= min(m, 96)
    assert not compare(reference, numpy_result(problem, inputs)).wrong


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize(
    "options",
    [{}, {"alpha": 2.0}, {"beta": 1.0}, {"bias": "fp32"}, {"bias": "fp32", "bias_axis": "n"}, {"batch": 2}],
    ids=lambda o: "-".join(map(str, o.values())) or "plain",
)
@pytest.mark.parametrize(("kind", "out"), [t for t in TYPES if not t[1].startswith("fp8") and t[1] != "int8"])
def test_an_error_in_a_hidden_column_is_caught_by_the_projection(
    kind: str, out: str, options: dict[str, Any]
) -> None:
    if out == "int32" and "bias" in options:
        options = {**options, "bias": "int32"}  # with a fraction, a sum says nothing
    reference, result = wide(kind, dtype_d=out, **options)
    result[-1, 5, hidden(reference)] += (
        1 if DTYPES[out].kind == INTEGER else 4 * np.abs(reference.expected).max()
    )
    finding = compare(reference, result)
    assert "random projection" in finding.wrong
    assert finding.error_over_bound > 1
    assert finding.coverage < 0.5


@pytest.mark.usefixtures("sampled")
def test_a_hidden_element_left_at_zero_is_caught_in_single_precision() -> None:
    reference, result = wide("fp32")
    row = int(np.argmax(np.abs(result[0, :, hidden(reference)])))
    result[0, row, hidden(reference)] = 0
    assert "random projection" in compare(reference, result).wrong


@pytest.mark.usefixtures("sampled")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_hidden_element_that_is_not_finite_is_caught(value: float) -> None:
    reference, result = wide("fp32")
    result[0, 5, hidden(reference)] = value
    finding = compare(reference, result)
    assert "random projection" in finding.wrong
    assert finding.error_over_bound == np.inf


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize("column", [0, 31, WIDE - 32, WIDE - 1])
@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_the_edges_are_compared_one_by_one(column: int, activation: str) -> None:
    reference, result = wide("fp32", activation=activation)
    result[0, 5, column] += 0.01
    assert compare(reference, result).wrong.startswith(f"1 of {reference.expected.size} elements are off; "
                                                       f"first D[{column},5] of batch 0")  # fmt: skip


def test_chunk_sums_cover_every_column_once() -> None:
    values = np.random.default_rng(0).standard_normal((2, 3, WIDE))
    signs = np.random.default_rng(1).choice([-1.0, 1.0], WIDE)
    sums = chunk_sums(values, signs)
    assert sums.shape == (2, 3, -(-WIDE // 256))
    assert np.allclose(sums.sum(axis=2), values @ signs)


# ---- the bound's constants -----------------------------------------------------------------------


def tolerance_of_an_element(
    p: GemmProblem, distribution: str, norms: float, terms: float, value: float
) -> float:
    """The bound written out as one formula."""
    out = DTYPES[p.dtype_d]
    unit = 2.0 ** -COMPUTE_TYPES[p.compute] if p.compute != "int32" else 0.0
    if distribution == "integers" and p.compute != "int32" and 64 * p.k <= 1 / unit:
        unit = 0.0
    rough: float = 4 * (unit * p.k**0.5 + 2 * INPUT_ROUNDOFF.get(p.compute, 0.0))
    added = [kind for kind in (p.dtype_d, p.bias, p.dtype_c) if kind is not None]
    whole = all(DTYPES[kind].kind == INTEGER for kind in added) and p.activation in ("none", "relu")
    step = unit if p.compute != "int32" or whole else 2.0**-24
    steps = (p.alpha != "one") + (p.beta != "zero") + (p.bias is not None) + (p.activation != "none")
    tolerance = rough * norms + (4 * step + steps * out.unit_roundoff) * terms
    if p.activation in ("gelu", "silu"):
        tolerance = 1.2 * tolerance + 32 * 2.0**-24 * (value + 2.0**-20)
    if out.kind == INTEGER:
        return tolerance + 0.5
    least = 2.0**-126 if out.storage.itemsize > 2 or out.name == "bf16" else 2.0**-24
    return tolerance + 1.01 * out.unit_roundoff * value + least


@every_epilogue
def test_the_bound_is_the_formula_it_always_was(kind: str, out: str, options: dict[str, Any]) -> None:
    if kind.startswith("fp8"):
        return  # sums in a narrow accumulator
    for k in (1, 100, 5000):
        p = from_blas(8, 8, k, kind, dtype_d=out, **options)
        for distribution in DISTRIBUTIONS[:4]:
            bound = error_bound(p, distribution)
            for norms, terms, value in [(0, 0, 0), (3, 0, 0), (0, 5, 0), (0, 0, 7), (1e4, 300.0, 20.0)]:
                got = bound.slope * (bound.rough * norms + bound.step * terms) + bound.rounding * value
                want = tolerance_of_an_element(p, distribution, norms, terms, value)
                assert got + bound.least == pytest.approx(want, rel=1e-14, abs=0)


def test_sums_in_a_narrow_accumulator_are_given_what_they_lose() -> None:
    def rough(distribution: str, k: int = 4096, **options: Any) -> float:
        return error_bound(from_blas(64, 64, k, "fp8_e4m3", dtype_d="fp32", **options), distribution).rough

    single = 4 * 2.0**-24 * 64
    assert rough("normal") > 8 * single
    # The result is some |a| |b| / sqrt(k) where inputs are signed: 2 % of it must pass, half of it must not.
    assert 0.02 / 64 < rough("normal", fast_accumulation=True) < 0.5 / 64
    assert rough("uniform", fast_accumulation=True) > 0.02
    assert (
        rough("normal") < rough("normal", fast_accumulation=True) < rough("uniform", fast_accumulation=True)
    )
    assert rough("integers") == rough("integers", fast_accumulation=True) == 0
    assert rough("integers", k=2**17) > 0


# ---- scales --------------------------------------------------------------------------------------

SCALES: dict[str, Any] = {"scale_a": "outer", "scale_b": "outer", "scale_d": "tensor"}


@pytest.mark.parametrize(("kind", "out"), [(k, d) for k, d in TYPES if k != "fp64"])
@pytest.mark.parametrize("options", EPILOGUES, ids=lambda o: "-".join(map(str, o.values())) or "plain")
def test_numpys_own_scaled_results_are_right(kind: str, out: str, options: dict[str, Any]) -> None:
    if out == "int32" and options.get("activation") in ("gelu", "silu"):
        return
    for seed, (m, n, k) in enumerate([(1, 1, 1), (40, 30, 3), (17, 23, 100)]):
        problem = from_blas(m, n, k, kind, dtype_d=out, **SCALES, **options)
        for distribution in DISTRIBUTIONS[:4]:
            if not (out.startswith("fp8") and k > 3):
                finding = judged(problem, seed, distribution)
                assert not finding.wrong, (distribution, finding.wrong)


@pytest.mark.parametrize("name", ["scale_a", "scale_b", "scale_d"])
@pytest.mark.parametrize("kind", ["fp8_e4m3", "bf16", "int8"])
def test_a_scale_that_is_forgotten_or_shifted_is_caught(kind: str, name: str) -> None:
    problem = from_blas(40, 30, 64, kind, dtype_d="bf16", **SCALES)
    reference, inputs = make_reference(Case(problem, 0, "normal", "test"))
    for wrong in (np.ones_like(inputs[name]), np.roll(inputs[name], 1) * np.float32(1 + (name == "scale_d"))):
        assert "elements are off" in compare(reference, numpy_result(problem, {**inputs, name: wrong})).wrong


@pytest.mark.usefixtures("sampled")
def test_scaled_columns_that_are_not_compared_are_projected() -> None:
    reference, result = wide("fp32", **SCALES)
    assert not compare(reference, result).wrong
    result[0, 5, hidden(reference)] += 4 * np.abs(reference.expected).max()
    assert "random projection" in compare(reference, result).wrong
