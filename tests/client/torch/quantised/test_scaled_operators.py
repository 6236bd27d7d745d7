"""linear_w8a8 and scaled_mm: by rows, by torch, compiled, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gemmtune
import gemmtune.torch
import pytest
import torch
from gemmtune.torch import WeightError, linear_w8a8, scaled_mm
from gemmtune.torch.nesting import inside
from gemmtune.torch.quantised import scaled
from torch._dynamo.backends.debugging import aot_eager

from backends.cache import BinaryCache
from backends.problem import GemmProblem, from_linear
from tests.client.torch.quantised.emulated import write

if TYPE_CHECKING:
    from gemmtune import Table

N, K = 40, 256
FP8 = torch.float8_e4m3fn
#: Kind -> types of input and weight, scales of a row's problem.
KINDS: dict[str, tuple[Any, str, str]] = {
    "int8 rows": (torch.int8, "outer", "outer"),
    "int8 tensors": (torch.int8, "tensor", "tensor"),
    "int8 row by tensor": (torch.int8, "outer", "tensor"),
    "fp8 rows": (FP8, "outer", "outer"),
    "fp8 tensors": (FP8, "tensor", "tensor"),
    "fp8 blocks": (FP8, "block_1x128", "block_128x128"),
}
#: M of the table's rows.
ROWS = (2, 5)


def problem(name: str, m: int, **more: Any) -> GemmProblem:
    dtype, of_x, of_w = KINDS[name]
    kind = "int8" if dtype is torch.int8 else "fp8_e4m3"
    return from_linear(m, N, K, kind, **{"dtype_d": "bf16", "scale_a": of_x, "scale_b": of_w, **more})


def problems() -> Iterator[tuple[GemmProblem, str]]:
    """What the table has rows for, and the family of each."""
    for name in KINDS:
        for m in ROWS:
            yield problem(name, m), "bytes-ring"
    yield problem("int8 rows", 5, bias="bf16"), "bytes-ring"


@pytest.fixture(scope="session")
def scaled_bundle(cache: BinaryCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of problems()."""
    return write(tmp_path_factory.mktemp("scaled") / "rows.gtb", problems(), cache, default="torch")


@pytest.fixture
def scaled_table(scaled_bundle: Path) -> Table:
    """The table of problems()."""
    return gemmtune.load(scaled_bundle)


def operands(name: str, m: int) -> tuple[Any, Any, Any, Any]:
    dtype, of_x, of_w = KINDS[name]
    made = scaled.make(
        scaled.ScaledProduct(m, N, K, dtype, dtype, of_x, of_w, torch.bfloat16), torch.device("cpu")
    )
    return made.a, made.weight, made.scale_x, made.scale_w


def right(out: Any, given: tuple[Any, Any, Any, Any], bias: Any = None) -> bool:
    x, weight, scale_x, scale_w = given
    x, weight = x.double(), weight.double()
    wide = [scale_x.double(), scale_w.double()]
    if scale_x.dim() == 2 and scale_x.shape[1] > 1:
        x = x * wide[0].repeat_interleave(128, 1)
        weight = weight * wide[1].repeat_interleave(128, 0)[:N].repeat_interleave(128, 1)
        wide = [torch.ones(1), torch.ones(1)]
    with inside():  # a report counts no product of the test's own
        sums, sizes = x @ weight.t(), x.abs() @ weight.abs().t()
    want = sums * wide[0].reshape(-1, 1) * wide[1].reshape(1, -1)
    want = want if bias is None else want + bias.double()
    size = sizes * wide[0].reshape(-1, 1) * wide[1].reshape(1, -1)
    return bool(((out.double() - want).abs() <= 2**-8 * want.abs() + 2**-16 * size).all())


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_runs_by_its_row(scaled_table: Table, name: str) -> None:
    """M that was measured, and the M below by rows of zeros; above by torch."""
    with gemmtune.torch.enable(scaled_table), gemmtune.torch.report() as count:
        for m in (2, 3, 5, 6):
            given = operands(name, m)
            out = linear_w8a8(*given)
            assert (out.shape, out.dtype) == ((m, N), torch.bfloat16)
            assert right(out, given), m
    lines = {line.m: line.hit for line in count.report().lines}
    assert lines == {2: True, 3: True, 5: True, 6: False}


def test_a_bias_is_of_the_row(scaled_table: Table) -> None:
    given, bias = operands("int8 rows", 5), torch.randn(N, dtype=torch.bfloat16)
    with gemmtune.torch.enable(scaled_table), gemmtune.torch.report() as count:
        out = linear_w8a8(*given, bias)
    assert [line.hit for line in count.report().lines] == [True]
    assert right(out, given, bias)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_without_a_table_torch_computes(name: str, kind: Any) -> None:
    given, bias = operands(name, 7), torch.randn(N, dtype=kind)
    out = linear_w8a8(*given, bias, out_dtype=kind)
    assert out.dtype is kind
    assert right(out, given, bias)


def test_it_takes_what_scaled_mm_takes(scaled_table: Table) -> None:
    for name in ("fp8 rows", "int8 rows", "fp8 tensors"):
        x, weight, scale_x, scale_w = operands(name, 5)
        if name.endswith("rows"):
            scale_x, scale_w = scale_x.reshape(-1, 1), scale_w.reshape(1, -1)
        with gemmtune.torch.enable(scaled_table):
            out = scaled_mm(x, weight.t(), scale_x, scale_w)
        assert torch.equal(out, linear_w8a8(x, weight, scale_x, scale_w.reshape(-1))) or right(
            out, (x, weight, scale_x, scale_w)
        )


def test_leading_dimensions_and_empty_inputs(scaled_table: Table) -> None:
    x, weight, _, scale_w = operands("int8 row by tensor", 4)
    with gemmtune.torch.enable(scaled_table):
        out = linear_w8a8(x.view(2, 2, K), weight, torch.ones(4), scale_w)
        none = linear_w8a8(x[:0], weight, torch.ones(1), scale_w)
    assert out.shape == (2, 2, N)
    assert none.shape == (0, N)


def test_it_compiles(scaled_table: Table) -> None:
    compiled = torch.compile(linear_w8a8, backend=aot_eager, fullgraph=True)
    given = operands("fp8 rows", 5)
    with gemmtune.torch.enable(scaled_table):
        assert right(compiled(*given), given)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight": torch.zeros(N, K, dtype=torch.uint8)}, "both are int8, or 8-bit floats"),
        ({"weight": torch.zeros(N, K + 16, dtype=torch.int8)}, "K. and .N, K."),
        ({"weight": torch.zeros(K, N, dtype=torch.int8).t()}, "must be contiguous"),
        ({"scale_x": torch.ones(5, dtype=torch.float64)}, "scales are contiguous float32"),
        ({"scale_w": torch.ones(7)}, "scale_w is .7.; it is one value"),
        ({"bias": torch.zeros(N)}, "it must be .40. of torch.bfloat16"),
        ({"out_dtype": torch.int32}, "out_dtype is torch.int32"),
    ],
)
def test_what_it_refuses(change: dict[str, Any], words: str) -> None:
    x, weight, scale_x, scale_w = operands("int8 rows", 5)
    given = {"x": x, "weight": weight, "scale_x": scale_x, "scale_w": scale_w, **change}
    with pytest.raises(WeightError, match=words):
        linear_w8a8(**given)
