"""What linear_w8a8 does after the product: the same numbers by rows, by torch and by the service's reference;
what is recorded; what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import gemmtune
import gemmtune.torch
import numpy as np
import pytest
import torch
from gemmtune.torch import WeightError, linear_w8a8, race, scaled_mm
from gemmtune.torch.layouts import OPEN_SCALAR
from gemmtune.torch.quantised import scaled
from gemmtune.torch.quantised.epilogue import Added, Epilogue
from gemmtune.torch.quantised.scaled import ScaledProduct
from gemmtune.torch.served import Served, acquire, release
from torch._dynamo.backends.debugging import aot_eager

from backends.cache import BinaryCache
from backends.problem import GemmProblem, from_linear
from backends.wire import problem_from_wire
from tests.client.torch.quantised.emulated import write
from tests.client.torch.quantised.epilogues import (
    EPILOGUES,
    INT8,
    NARROW,
    TYPES,
    K,
    M,
    N,
    call,
    problem,
    tensor,
)
from tuners.inputs import Case
from tuners.reference import make_reference

if TYPE_CHECKING:
    from gemmtune import Table


@pytest.fixture(scope="session")
def epilogue_bundle(cache: BinaryCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a row for each of EPILOGUES."""
    every = [(problem(name), "bytes-ring") for name in EPILOGUES]
    return write(tmp_path_factory.mktemp("epilogues") / "rows.gtb", every, cache, default="torch")


@pytest.fixture
def epilogue_table(epilogue_bundle: Path) -> Table:
    """The table of EPILOGUES."""
    return gemmtune.load(epilogue_bundle)


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("distribution", ["normal", "small"])
def test_by_a_row_and_by_torch_it_is_the_references_number(
    epilogue_table: Table, name: str, distribution: str
) -> None:
    p = problem(name)
    reference, inputs = make_reference(Case(p, 7, distribution, "exact"))
    with gemmtune.torch.enable(epilogue_table), gemmtune.torch.report() as count:
        ours = call(p, inputs)
    assert [line.hit for line in count.report().lines] == [True]
    for found in (ours, call(p, inputs)):
        assert (found.shape, found.dtype) == ((M, N), TYPES[p.dtype_d])
        assert np.all(np.abs(found.double().numpy() - reference.expected[0]) <= reference.tolerance[0])
    if p.dtype_d == "int8":
        assert int((ours.int() - call(p, inputs).int()).abs().max()) <= 1
        assert len(ours.unique()) > 8


def test_m_without_a_row_has_rows_of_zeros_behind(epilogue_table: Table) -> None:
    name = "int8 to int8, bias residual relu"
    p = problem(name, 3)
    reference, inputs = make_reference(Case(p, 3, "small", "exact"))
    with gemmtune.torch.enable(epilogue_table), gemmtune.torch.report() as count:
        found = call(p, inputs)
    assert [line.hit for line in count.report().lines] == [True]
    assert np.all(np.abs(found.double().numpy() - reference.expected[0]) <= reference.tolerance[0])


def test_beta_is_the_calls(epilogue_table: Table) -> None:
    """A row that leaves beta open takes each call's; beta 1 and 0 are other problems."""
    p = problem("int8 any beta gelu")
    _, inputs = make_reference(Case(p, 5, "normal", "exact"))
    with gemmtune.torch.enable(epilogue_table), gemmtune.torch.report() as count:
        found = {beta: call(p, inputs, beta=beta) for beta in (0.25, -3.0, 0.25, 1.0, 0.0)}
    lines = sorted((line.extra, line.calls, line.hit) for line in count.report().lines)
    assert lines == [("c_gelu", 1, False), ("c_gelu", 3, True), ("gelu", 1, False)]
    for beta, out in found.items():
        assert torch.allclose(out, call(p, inputs, beta=beta), rtol=2**-9, atol=2**-9)
    nothing = call(p, {**inputs, "c": inputs["c"] * np.float16("nan")}, beta=0.0)
    assert torch.equal(nothing, call(p, inputs, beta=0.0))


def test_scales_are_data(epilogue_table: Table) -> None:
    """No value of scale_out is refused: NaN becomes 0, and what is beyond int8's range its end."""
    p = problem("int8 to int8")
    _, inputs = make_reference(Case(p, 5, "normal", "exact"))
    sums = call(p, inputs, scale_out=None, out_dtype=torch.float32)
    for value, want in (
        (float("nan"), torch.zeros_like(sums)),
        (float("inf"), sums.sign() * 127 - (sums < 0).float()),
        (-1e30, -sums.sign() * 127 - (sums > 0).float()),
        (0.0, torch.zeros_like(sums)),
    ):
        assert bool((sums != 0).all())
        scale = torch.tensor([value])
        with gemmtune.torch.enable(epilogue_table), gemmtune.torch.report() as count:
            ours = call(p, inputs, scale_out=scale)
        assert count.report().hits == 1
        assert torch.equal(ours, want.to(torch.int8)), value
        assert torch.equal(ours, call(p, inputs, scale_out=scale)), value


def test_ties_go_to_even(epilogue_table: Table) -> None:
    x, weight = torch.zeros(M, K, dtype=torch.int8), torch.zeros(N, K, dtype=torch.int8)
    x[:, 0], weight[:, 0] = 1, torch.arange(-20, 20)
    given = x, weight, torch.ones(M), torch.ones(N)
    options: dict[str, Any] = {"scale_out": torch.tensor([0.5]), "out_dtype": torch.int8}
    want = (torch.arange(-20, 20) / 2).round().to(torch.int8).expand(M, N)
    with gemmtune.torch.enable(epilogue_table), gemmtune.torch.report() as count:
        assert torch.equal(linear_w8a8(*given, **options), want)
    assert count.report().hits == 1
    assert torch.equal(linear_w8a8(*given, **options), want)


def test_int8_goes_through_a_layer(epilogue_table: Table) -> None:
    """An output is the next product's input, as scale_out and scale_x are reciprocals."""
    p = problem("int8 to int8")
    _, inputs = make_reference(Case(p, 9, "small", "exact"))
    step = torch.tensor([0.5])
    with gemmtune.torch.enable(epilogue_table):
        hidden = call(p, inputs, scale_out=1 / step)
    exact = call(p, inputs, scale_out=None, out_dtype=torch.float32)
    weight = torch.eye(N, dtype=torch.int8)
    out = linear_w8a8(hidden, weight, step, torch.ones(N), out_dtype=torch.float32)
    inside = exact.abs() < 60
    assert bool(inside.any())
    assert bool(((out - exact).abs()[inside] <= 0.2501).all())


def test_leading_dimensions_strides_and_empty_inputs(epilogue_table: Table) -> None:
    x, weight = torch.ones(2, 2, K, dtype=torch.int8), torch.ones(N, K, dtype=torch.int8)
    residual = torch.randn(2, N, 2, dtype=torch.bfloat16).transpose(1, 2)
    with gemmtune.torch.enable(epilogue_table):
        out = linear_w8a8(x, weight, torch.ones(4), torch.ones(N), residual=residual, activation="relu")
        none = linear_w8a8(
            x[:0], weight, torch.ones(1), torch.ones(N), scale_out=torch.ones(1), out_dtype=torch.int8
        )
    assert torch.equal(out, (K + residual.float()).to(torch.bfloat16))
    assert (none.shape, none.dtype) == ((0, 2, N), torch.int8)


def test_a_bias_with_strides_and_a_scale_anywhere(epilogue_table: Table) -> None:
    """A row reads a bias as it lies in memory, and one value of a scale wherever it is."""
    p = problem("int8 to int8, bias residual relu")
    _, inputs = make_reference(Case(p, 5, "normal", "exact"))
    want = call(p, inputs)
    bias, scale = tensor(inputs["bias"][0])[0], tensor(inputs["scale_d"][0])[0].reshape(())
    wide = torch.stack([bias, torch.full_like(bias, 9.0)], 1)[:, 0]
    apart = torch.stack([scale * 0, scale])[1:]
    assert (wide.is_contiguous(), apart.data_ptr() % 16) == (False, 4)
    with gemmtune.torch.enable(epilogue_table), gemmtune.torch.report() as count:
        found = call(p, inputs, bias=wide, scale_out=apart)
    assert count.report().hits == 1
    assert int((found.int() - want.int()).abs().max()) <= 1


def test_there_are_no_gradients() -> None:
    x, weight = torch.ones(2, 32, dtype=torch.int8), torch.ones(16, 32, dtype=torch.int8)
    one = torch.ones(1)
    residual = torch.ones(2, 16, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(WeightError, match=r"has no gradients: call it under torch.no_grad\(\)"):
        linear_w8a8(x, weight, one, one, residual=residual).sum().backward()
    with torch.no_grad():
        assert linear_w8a8(x, weight, one, one, residual=residual).shape == (2, 16)


def test_scaled_mm_has_the_same_arguments() -> None:
    p = problem("int8 to int8, bias residual relu")
    _, inputs = make_reference(Case(p, 5, "small", "exact"))
    given = {name: tensor(values[0]) for name, values in inputs.items()}
    out = scaled_mm(
        given["b"], given["a"].t(), given["scale_b"].t(), given["scale_a"], given["bias"][0],
        residual=given["c"], activation="relu", scale_out=given["scale_d"], out_dtype=torch.int8,
    )  # fmt: skip
    assert torch.equal(out, call(p, inputs))


@pytest.mark.parametrize("name", ["int8 to int8, bias residual relu", "int8 any beta gelu"])
def test_it_compiles(epilogue_table: Table, name: str) -> None:
    p = problem(name)
    _, inputs = make_reference(Case(p, 5, "small", "exact"))
    compiled = torch.compile(lambda: call(p, inputs), backend=aot_eager)
    with gemmtune.torch.enable(epilogue_table), gemmtune.torch.report() as count:
        assert torch.equal(compiled(), call(p, inputs))
    assert (count.report().hits, count.report().misses) == (2, 0)


def test_the_fake_kernel_has_the_output() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, weight = torch.empty(3, 2, K, dtype=torch.int8), torch.empty(N, K, dtype=torch.int8)
        out = linear_w8a8(
            x, weight, torch.empty(6), torch.empty(N), residual=torch.empty(3, 2, N, dtype=torch.int8),
            beta=0.5, activation="silu", scale_out=torch.empty(1), out_dtype=torch.int8,
        )  # fmt: skip
    assert (out.shape, out.dtype) == ((3, 2, N), torch.int8)


@pytest.mark.parametrize("name", EPILOGUES)
def test_what_runs_is_recorded_as_its_problem(name: str) -> None:
    p = problem(name)
    _, inputs = make_reference(Case(p, 5, "small", "exact"))
    with gemmtune.torch.record("cpu") as recording:
        call(p, inputs)
    (found,) = recording.problems()
    assert found.pop("count") == 1
    assert problem_from_wire(found) == p


def products() -> Iterator[ScaledProduct]:
    bf16 = torch.bfloat16
    for dtype, kinds in ((torch.int8, ("outer", "outer")), (torch.float8_e4m3fn, ("tensor", "tensor"))):
        yield ScaledProduct(M, N, K, dtype, dtype, *kinds, bf16, Epilogue(bf16, bf16, "any", "silu"))
    narrow = Epilogue(torch.float32, torch.int8, "one", "none", True)
    yield ScaledProduct(M, N, K, torch.int8, torch.int8, "outer", "tensor", torch.int8, narrow)


@pytest.mark.parametrize("product", [*products()], ids=lambda p: p.extra)
def test_operands_for_a_race(product: ScaledProduct) -> None:
    made = scaled.make(product, torch.device("cpu"))
    found = scaled.product_of(
        made.a, made.weight, made.scale_x, made.scale_w, made.added, product.epilogue.activation,
        product.out_dtype,
    )  # fmt: skip
    assert found == product
    assert scaled.torch_call(product, made)().dtype is product.out_dtype
    assert len(made.addresses()) == 5 + len(product.epilogue.operands)
    assert made.added.beta == (OPEN_SCALAR if product.epilogue.beta == "any" else 1.0)


def test_rows_are_raced(cache: BinaryCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of another torch, one with an open beta among them."""
    monkeypatch.setattr(race.race_rows, "__defaults__", (0, 60.0))
    every = [(problem(name), "bytes-ring") for name in ("int8 any beta gelu", "int8 to int8")]
    table = gemmtune.load(
        write(tmp_path / "elsewhere.gtb", every, cache, default="torch-int8", torch_build="1.0")
    )
    served = acquire(table)
    try:
        assert all(row.pending for row in served.rows)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            race.race_rows(served, served.rows, True)
        assert [row.pending for row in served.rows] == [False, False]
    finally:
        release(served)


def test_which_defaults_a_row_may_be_judged_against(
    cache: BinaryCache, tmp_path: Path, epilogue_table: Table
) -> None:
    """The library's call that adds C takes no more time than torch._scaled_mm and an addition."""
    served = Served(epilogue_table)
    assert (len(served.rows), dict(served.left_out)) == (len(EPILOGUES), {})
    every = [(problem(name), "bytes-ring") for name in ("fp8 bias residual gelu", "int8 any beta gelu")]
    served = Served(
        gemmtune.load(write(tmp_path / "library.gtb", every, cache, default="cublaslt-heuristic"))
    )
    assert [row.product.dtype for row in served.rows] == [torch.float8_e4m3fn]
    assert dict(served.left_out) == {"judged against cublaslt-heuristic, which torch does not run": 1}


@pytest.mark.parametrize(
    ("hip", "capability", "dtype", "n", "expected"),
    [
        (None, (9, 0), torch.float8_e4m3fn, 48, True),
        (None, (8, 9), torch.float8_e4m3fn, 48, True),
        (None, (8, 0), torch.float8_e4m3fn, 48, False),
        (None, (9, 0), torch.float8_e4m3fn, 40, False),
        (None, (9, 0), torch.float8_e5m2, 48, False),
        (None, (9, 0), torch.float8_e4m3fnuz, 48, False),
        ("7.0", (9, 4), torch.float8_e4m3fnuz, 48, True),
        ("7.0", (9, 4), torch.float8_e4m3fn, 48, False),
        ("7.0", (9, 5), torch.float8_e4m3fn, 48, True),
        ("7.0", (12, 0), torch.float8_e4m3fn, 48, True),
        ("7.0", (9, 0), torch.float8_e4m3fn, 48, False),
        ("7.0", (11, 0), torch.float8_e4m3fn, 48, False),
    ],
)
def test_where_torch_has_a_call_of_8_bit_floats(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, capability: Any, dtype: Any, n: int, expected: bool
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    x: Any = SimpleNamespace(is_cuda=True, device="cuda:0")
    p = ScaledProduct(M, n, K, dtype, dtype, "tensor", "tensor", torch.bfloat16)
    assert scaled._multiplies(p, x) is expected


def other_rows() -> Iterator[GemmProblem]:
    """Problems that no call has."""
    yield from_linear(M, N, K, **INT8, dtype_d="int8")
    yield from_linear(M, N, K, **INT8, dtype_d="bf16", scale_d="tensor")
    yield from_linear(M, N, K, **INT8, dtype_d="bf16", beta=1.0, dtype_c="fp32")
    yield from_linear(M, N, K, **INT8, dtype_d="bf16", beta=1.0, ldc=N + 8, ldd=N)
    yield from_linear(M, N, K, **INT8, dtype_d="bf16", bias="fp32")
    yield from_linear(M, N, K, **INT8, dtype_d="bf16", alpha=2.0)
    yield from_linear(M, N, K, **NARROW, bias="int8")


def test_rows_that_no_call_has_are_left_out(cache: BinaryCache, tmp_path: Path) -> None:
    every = [(one, "bytes-ring") for one in other_rows()]
    served = Served(gemmtune.load(write(tmp_path / "other.gtb", every, cache, default="torch")))
    assert dict(served.left_out) == {"no call of torch's is such a product": len(every)}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"residual": torch.zeros(M, N)}, r"residual is \[5, 40\] of torch.float32; it must be \[5, 40\] of"),
    ({"residual": torch.zeros(N, dtype=torch.bfloat16)}, r"residual is \[40\] of torch.bfloat16; it must be"),
    ({"residual": torch.zeros(M, N, dtype=torch.int8)}, r"must be \[5, 40\] of torch.bfloat16$"),
    ({"beta": 0.5}, "beta is 0.5, and there is no residual"),
    ({"residual": torch.zeros(M, N, dtype=torch.bfloat16), "beta": float("nan")}, "a finite number of fp32"),
    ({"residual": torch.zeros(M, N, dtype=torch.bfloat16), "beta": 1e39}, r"beta is 1e\+39; it must be"),
    ({"activation": "tanh"}, "activation 'tanh' is unknown; known: none, relu, gelu, silu"),
    ({"out_dtype": torch.int8}, "out_dtype is torch.int8 and scale_out is not given"),
    ({"scale_out": torch.ones(1)}, "scale_out is given and out_dtype is torch.bfloat16: only int8"),
    ({"scale_out": torch.ones(2), "out_dtype": torch.int8}, r"scale_out is \[2\] of torch.float32"),
    ({"scale_out": torch.ones(1, dtype=torch.float64), "out_dtype": torch.int8}, "one value of float32"),
    ({"bias": torch.zeros(N, dtype=torch.int8), "scale_out": torch.ones(1), "out_dtype": torch.int8},
     "bias is .40. of torch.int8"),
    ({"scale_x": torch.ones(M, 2), "scale_w": torch.ones(1, 2)}, "scales of blocks are of 8-bit floats"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_what_it_refuses(change: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {
        "x": torch.zeros(M, K, dtype=torch.int8), "weight": torch.zeros(N, K, dtype=torch.int8),
        "scale_x": torch.ones(M), "scale_w": torch.ones(N),
    }  # fmt: skip
    with pytest.raises(WeightError, match=words):
        linear_w8a8(**{**given, **change})


def test_int8_outputs_are_of_int8_operands() -> None:
    x, weight = (torch.zeros(rows, K).to(torch.float8_e4m3fn) for rows in (M, N))
    with pytest.raises(WeightError, match="or int8 of int8 operands"):
        linear_w8a8(x, weight, torch.ones(M), torch.ones(N), scale_out=torch.ones(1), out_dtype=torch.int8)


def test_the_tensors_of_an_epilogue() -> None:
    assert Added().tensors == []
    assert Epilogue().operands == set()
    assert [Epilogue(activation="relu").name, Epilogue().name] == ["relu", ""]
