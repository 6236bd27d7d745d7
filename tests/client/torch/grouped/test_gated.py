"""gemmtune.torch.grouped_mm with swiglu, and moe(), by rows of emulated kernels and without; recorded,
compiled, differentiated, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import gemmtune
import gemmtune.torch
import pytest
import torch
from gemmtune.torch import GroupError, grouped_mm, moe
from gemmtune.torch.grouped.products import GroupedProduct, make, of_row, torch_call
from torch._dynamo.backends.debugging import aot_eager

from backends.problem import GemmProblem, from_linear
from backends.wire import problem_from_wire
from tests.client.torch.grouped.samples import exact_products, random_operands, tally

if TYPE_CHECKING:
    from gemmtune import Table

E, N, K = 4, 48, 64


def gated(m: int, n: int = N, k: int = K, dtype: str = "bf16", **more: Any) -> GemmProblem:
    return from_linear(m, n, k, dtype, groups=E, activation="swiglu", **more)


def problems() -> Iterator[tuple[GemmProblem, str]]:
    """What the table has rows for, and the family of each: the product with the activation and, of more rows,
    the one without."""
    yield gated(6), "grouped-ring"
    yield gated(6, dtype="fp16", routing="skewed"), "grouped-ring"
    yield gated(6, ldd=32), "grouped-ring"
    yield gated(14), "grouped-ring"
    yield from_linear(14, K, N // 2, "bf16", groups=E), "grouped-ring"
    yield from_linear(90, N, K, "bf16", groups=E), "grouped-tile"


def operands(counts: list[int], dtype: Any = torch.bfloat16) -> tuple[Any, Any, Any]:
    x, w, ends = random_operands(counts, N, K, dtype)
    return x, w / 4, ends


def expected(x: Any, w: Any, counts: list[int]) -> Any:
    gate, up = exact_products(x, w, counts).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def right(out: Any, x: Any, w: Any, counts: list[int], most: float = 0.02) -> bool:
    wanted = expected(x, w, counts)
    return bool((out.double() - wanted).norm() / wanted.norm() < most)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("counts", [[6, 0, 0, 0], [1, 2, 0, 3]])
def test_a_row_runs_the_product_with_its_activation(table: Table, counts: list[int], dtype: Any) -> None:
    """It rounds once: it is nearer than what is rounded before the activation."""
    x, w, offs = operands(counts, dtype)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        out = grouped_mm(x, w, offs, activation="swiglu")
    assert tally(count) == (1, 0), count.report()
    assert (out.shape, out.dtype) == ((6, N // 2), dtype)
    assert right(out, x, w, counts, 0.0025)


def test_rows_between_are_padded_to_the_next(table: Table) -> None:
    x, w, offs = operands([1, 2, 0, 1])
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        out = grouped_mm(x, w, offs, "swiglu")
    assert (tally(count), out.shape) == ((1, 0), (4, N // 2))
    assert right(out, x, w, [1, 2, 0, 1])


def test_rows_of_the_other_product_are_not_taken_for_it(table: Table) -> None:
    """The one without the activation runs by its own row, with the activation behind it."""
    counts = [40, 0, 20, 30]
    x, w, offs = operands(counts)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        out, plain = grouped_mm(x, w, offs, "swiglu"), grouped_mm(x, w, offs)
    assert tally(count) == (2, 0), "the row of the product without the activation ran twice"
    assert right(out, x, w, counts)
    assert plain.shape == (90, N)
    x, w, offs = operands([1, 2, 0, 3])
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        assert grouped_mm(x, w, offs).shape == (6, N)
        assert torch._grouped_mm(x, w.transpose(-2, -1), offs=offs).shape == (6, N)
    assert tally(count) == (0, 2)


def test_without_a_table_torch_computes() -> None:
    x, w, offs = operands([1, 2, 0, 3])
    assert right(grouped_mm(x, w, offs, "swiglu"), x, w, [1, 2, 0, 3])
    assert grouped_mm(x[:0], w, torch.zeros(E, dtype=torch.int32), "swiglu").shape == (0, N // 2)


def test_rows_of_a_table(table: Table) -> None:
    found = [of_row(row) for row in table.rows]
    assert found.count(None) == 1, "padded outputs serve no call"
    assert {(one.activation, one.columns) for one in found if one is not None and one.n == N} == {
        ("swiglu", N // 2), ("none", N),
    }  # fmt: skip
    assert "swiglu" in next(one.type_name for one in found if one is not None and one.activation != "none")


def test_a_race_is_of_the_same_output() -> None:
    product = GroupedProduct(6, E, N, K, torch.bfloat16, activation="swiglu")
    made = make(product, torch.device("cpu"))
    assert made.out.shape == (6, N // 2)
    counts = torch.diff(made.offsets, prepend=torch.zeros(1, dtype=torch.int32)).tolist()
    assert right(torch_call(product, made)(), made.a, made.weight, counts)


def layer(tokens: int) -> tuple[Any, ...]:
    torch.manual_seed(tokens)
    x, gate_up = torch.randn(tokens, K).bfloat16(), torch.randn(E, N, K).bfloat16() / 8
    down = torch.randn(E, K, N // 2).bfloat16() / 8
    weights, ids = torch.softmax(torch.randn(tokens, E), -1).topk(2)
    return x, gate_up, down, weights, ids


def test_a_layer_takes_the_row(table: Table) -> None:
    """7 tokens of two experts each: both products run by rows, and the activation is in the first."""
    given = layer(7)
    wanted = moe(*given)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        found = moe(*given)
    assert tally(count) == (2, 0), count.report()
    assert torch.allclose(found.float(), wanted.float(), rtol=0.05, atol=0.01)


def test_a_layer_with_biases_does_not(table: Table) -> None:
    x, gate_up, down, weights, ids = layer(7)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        moe(x, gate_up, down, weights, ids, gate_up_bias=torch.zeros(E, N))
        moe(x, gate_up, down, weights, ids, interleaved=True)
    assert tally(count) == (2, 2)


def test_a_recording_leaves_out_types_that_gemmtune_has_no_groups_of() -> None:
    """A service refuses a whole request with one such problem."""
    x, w, offs = operands([3, 0, 5, 1], torch.float32)
    with gemmtune.torch.record("cpu") as recording:
        grouped_mm(x, w, offs, activation="swiglu")
        grouped_mm(x, w, offs)
    assert recording.problems() == []


def test_a_recording_has_the_product_with_its_activation_and_without() -> None:
    """A row of either serves the layer."""
    with gemmtune.torch.record(device_type="cpu") as recording:
        moe(*layer(7))
    found = [
        problem_from_wire({k: v for k, v in one.items() if k != "count"}) for one in recording.problems()
    ]
    assert set(found) == {
        gated(14), from_linear(14, N, K, "bf16", groups=E), from_linear(14, K, N // 2, "bf16", groups=E),
    }  # fmt: skip


def test_it_compiles_and_differentiates(table: Table) -> None:
    counts = [1, 2, 0, 3]
    x, w, offs = operands(counts)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        compiled = torch.compile(
            lambda x, w, offs: grouped_mm(x, w, offs, activation="swiglu"), backend=aot_eager, fullgraph=True
        )
        out = compiled(x, w, offs)
    assert tally(count) == (1, 0)
    assert right(out, x, w, counts)
    wanted = [one.clone().double().requires_grad_() for one in (x, w)]
    grad = torch.randn(6, N // 2, dtype=torch.bfloat16)
    expected(wanted[0], wanted[1], counts).backward(grad.double())
    for run in (grouped_mm, torch.compile(grouped_mm, backend=aot_eager, fullgraph=True)):
        own = [one.clone().requires_grad_() for one in (x, w)]
        run(own[0], own[1], offs, "swiglu").backward(grad)
        for one, other in zip(own, wanted, strict=True):
            assert (one.grad.double() - other.grad).norm() / other.grad.norm() < 0.02


def test_what_is_refused() -> None:
    x, w, offs = operands([1, 2, 0, 3])
    with pytest.raises(GroupError, match="'gelu'; it must be one of none, swiglu"):
        grouped_mm(x, w, offs, "gelu")
    with pytest.raises(GroupError, match="half of the 47 rows of weights are the gate's"):
        grouped_mm(x, w[:, 1:].contiguous(), offs, "swiglu")
    with pytest.raises(GroupError, match="has no gradients"):
        torch.ops.gemmtune.grouped_mm(x.requires_grad_(), w, offs, "swiglu")
