"""linear_w4a16 and linear_w8a16: by rows, by torch, compiled, differentiated, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gemmtune
import gemmtune.torch
import pytest
import torch
from gemmtune.torch import WeightError, linear_w4a16, linear_w8a16
from gemmtune.torch.quantised.operators import MOST_ADDED, smallest
from gemmtune.torch.quantised.products import of_row
from gemmtune.torch.quantised.stored import QuantizedWeight
from gemmtune.torch.served import current
from torch._dynamo.backends.debugging import aot_eager

from backends.cache import BinaryCache
from tests.client.torch.quantised.conftest import FP8_ROWS, ROWS, K, N, weights
from tests.client.torch.quantised.emulated import write
from tests.client.torch.quantised.samples import right, sample

if TYPE_CHECKING:
    from gemmtune import Table

#: Weights for which the table has rows, with M and the activations' type.
STORED: dict[str, tuple[dict[str, Any], int, Any]] = {
    "eight": ({}, 4, torch.bfloat16),
    "uint4": ({"zero": "uint4"}, 2, torch.bfloat16),
    "float": ({"zero": "float"}, 2, torch.bfloat16),
    "shift": ({"zero": "shift"}, 2, torch.bfloat16),
    "signed": ({"zero": "signed"}, 2, torch.bfloat16),
    "none, groups of 32": ({"zero": "none", "group": 32}, 2, torch.bfloat16),
    "fp16, a row": ({"group": -1, "scale_dtype": torch.float32}, 2, torch.float16),
    "int8, a row": ({"bits": 8, "group": -1}, 2, torch.bfloat16),
    "mxfp4": ({"zero": "mxfp4"}, 2, torch.bfloat16),
    "mxfp4, fp16": ({"zero": "mxfp4"}, 4, torch.float16),
    "fp8, a row": ({"zero": "fp8", "group": -1}, 2, torch.bfloat16),
    "fp8, one scale": ({"zero": "fp8", "group": 0, "scale_dtype": torch.float32}, 2, torch.float16),
    "fp8, blocks": (
        {"n": FP8_ROWS, "zero": "fp8 blocks", "scale_dtype": torch.float32},
        2,
        torch.bfloat16,
    ),
    "int8, one scale": ({"bits": 8, "group": 0, "scale_dtype": torch.float32}, 2, torch.bfloat16),
}


def call(x: Any, weight: QuantizedWeight, bias: Any = None) -> Any:
    if weight.bits == 8:
        return linear_w8a16(x, weight.data, weight.scales, weight.group_size, bias)
    return linear_w4a16(
        x, weight.data, weight.scales, weight.zeros, weight.group_size, bias, zero_point=weight.zero_point
    )


@contextmanager
def counted(table: Table) -> Iterator[Any]:
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        yield count


def tally(count: Any) -> tuple[int, int]:
    found = count.report()
    return found.hits, found.misses


@pytest.mark.parametrize("name", STORED)
def test_every_form_runs_by_its_row(weight_table: Table, name: str) -> None:
    how, m, dtype = STORED[name]
    weight = sample(**{"n": N, "k": K, **how})
    x = torch.randn(m, K, dtype=dtype)
    with counted(weight_table) as count:
        out = call(x, weight)
    assert tally(count) == (1, 0), count.report()
    assert out.dtype is dtype
    assert right(out, x, weight)


@pytest.mark.parametrize("name", STORED)
def test_without_a_table_torch_multiplies_what_is_dequantised(name: str) -> None:
    how, m, dtype = STORED[name]
    weight = sample(**{"n": N, "k": K, **how})
    x, bias = torch.randn(2, m, K, dtype=dtype), torch.randn(weight.shape[0], dtype=dtype)
    assert right(call(x, weight), x, weight)
    assert right(call(x, weight, bias), x, weight, bias)


@pytest.mark.parametrize("apart", [1, 2])
def test_a_bias_is_of_the_row(weight_table: Table, apart: int) -> None:
    weight, bias = sample(N, K), torch.randn(apart * N, dtype=torch.bfloat16)[::apart]
    x = torch.randn(2, 2, K, dtype=torch.bfloat16)
    with counted(weight_table) as count:
        out = call(x, weight, bias)
    assert tally(count) == (1, 0)
    assert right(out, x, weight, bias)


def test_rows_between_are_padded_to_the_next(weight_table: Table) -> None:
    weight = sample(N, K)
    with counted(weight_table) as count:
        for m in (2, 3):
            x = torch.randn(m, K, dtype=torch.bfloat16)
            out = call(x, weight)
            assert out.shape == (m, N)
            assert right(out, x, weight)
        lines = [(line.m, line.hit) for line in count.report().lines]
        assert sorted(lines) == [(2, True), (3, True)]
        x = torch.randn(max(ROWS) + 1, K, dtype=torch.bfloat16)
        assert right(call(x, weight), x, weight)
    assert tally(count) == (2, 1)


@pytest.mark.parametrize(
    ("m", "found"),
    [(1, 128), (64, 128), (128, 128), (129, None), (176, 1200), (1200, 1200), (1201, None)],
)
def test_so_many_rows_of_zeros_are_added_at_most(m: int, found: int | None) -> None:
    class Row:
        layout = None

        def __init__(self, m: int) -> None:
            self.m = m

        def applies(self, addresses: int) -> Row:
            return self

    rows = {size: Row(size) for size in (128, 1200, 9000)}
    row = smallest([rows], m, 0, m + MOST_ADDED)  # type: ignore[list-item]
    assert getattr(row, "m", None) == found


def test_what_no_row_is_for_is_torchs(weight_table: Table) -> None:
    x = torch.randn(4, K, dtype=torch.bfloat16)
    others: list[tuple[Any, QuantizedWeight]] = [
        (x, sample(N, K, group=64)),
        (x, sample(N + 8, K)),
        (x, sample(N, K, scale_dtype=torch.float32)),
        (x.float(), sample(N, K)),
        (x.half(), sample(N, K)),
        (torch.randn(70, K, dtype=torch.bfloat16), sample(N, K)),
    ]
    with counted(weight_table) as count:
        for given, weight in others:
            assert right(call(given, weight), given, weight)
    assert tally(count) == (0, len(others))


def test_strided_and_empty_inputs(weight_table: Table) -> None:
    weight = sample(N, K)
    wide = torch.randn(4, 2 * K, dtype=torch.bfloat16)
    with counted(weight_table) as count:
        x = wide[:, ::2]
        assert right(call(x, weight), x, weight)
        assert call(wide[:0, :K], weight).shape == (0, N)
        assert call(wide[:1, :K].reshape(1, 1, K), weight).shape == (1, 1, N)
    assert tally(count) == (2, 0)


def test_weights_off_the_rows_alignment_are_torchs(weight_table: Table) -> None:
    weight = sample(N, K)
    moved = torch.empty(weight.data.numel() + 4, dtype=torch.uint8)[4:].view(N, K // 2)
    moved.copy_(weight.data)
    x = torch.randn(4, K, dtype=torch.bfloat16)
    with counted(weight_table) as count:
        assert right(linear_w4a16(x, moved, weight.scales), x, weight)
    assert tally(count) == (0, 1)


def test_extreme_scales(weight_table: Table) -> None:
    for scale in (0.0, 1e-30, 1e30):
        weight = sample(N, K)
        weight.scales[3] = scale
        weight.scales[5, 1] = scale
        x = torch.randn(4, K, dtype=torch.bfloat16)
        with counted(weight_table) as count:
            out = call(x, weight)
        assert tally(count) == (1, 0)
        assert right(out, x, weight)
        assert scale != 0.0 or bool((out[:, 3] == 0).all())


def test_a_launch_that_fails_is_torchs(weight_table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmtune.launch import PreparedLaunch

    def failing(self: Any, *arguments: Any) -> None:
        raise gemmtune.LaunchError("planted")

    weight, x = sample(N, K), torch.randn(4, K, dtype=torch.bfloat16)
    with counted(weight_table) as count:
        monkeypatch.setattr(PreparedLaunch, "__call__", failing)
        with pytest.warns(RuntimeWarning, match="planted"):
            assert right(call(x, weight), x, weight)
        assert right(call(x, weight), x, weight)
    assert tally(count) == (0, 2)


# ---- compiled, differentiated, recorded ----------------------------------------------------------


def test_torchs_own_checks_of_an_operator() -> None:
    four, eight = sample(8, 64, group=32, zero="uint4"), sample(8, 64, bits=8, group=-1)
    x = torch.randn(3, 64, dtype=torch.float32, requires_grad=True)
    bias = torch.randn(8, requires_grad=True)
    w4, w8 = torch.ops.gemmtune.linear_w4a16.default, torch.ops.gemmtune.linear_w8a16.default
    torch.library.opcheck(w4, (x, four.data, four.scales, four.zeros, 32, "uint4", bias))
    torch.library.opcheck(w8, (x, eight.data, eight.scales, -1, None))


def test_gradients_flow_to_the_input_and_the_bias() -> None:
    weight = sample(8, 64, group=32)
    x = torch.randn(2, 3, 64, requires_grad=True)
    bias = torch.randn(8, requires_grad=True)
    call(x, weight, bias).square().sum().backward()
    other, added = x.detach().clone().requires_grad_(), bias.detach().clone().requires_grad_()
    torch.nn.functional.linear(other, weight.dequantize(), added).square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad)
    torch.testing.assert_close(bias.grad, added.grad)
    scales = weight.scales.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="frozen"):
        linear_w4a16(x, weight.data, scales, bias=bias).sum().backward()


def test_one_compiled_graph_serves_every_m(weight_table: Table) -> None:
    weight = sample(N, K)
    graphs = []

    def backend(module: Any, example: Any) -> Any:
        graphs.append(module)
        return aot_eager(module, example)

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: call(x, weight) * 2, dynamic=True, fullgraph=True, backend=backend)
    with counted(weight_table) as count:
        for m in (4, 2, 3, 9):
            x = torch.randn(m, K, dtype=torch.bfloat16)
            assert right(compiled(x) / 2, x, weight)
    torch._dynamo.reset()
    assert tally(count) == (3, 1)
    assert len(graphs) == 1


def test_a_recording_is_a_problem_that_is_tuned(weight_table: Table) -> None:
    from backends.wire import problem_from_wire

    x = torch.randn(3, K, dtype=torch.bfloat16)
    with gemmtune.torch.record("cpu") as recording:
        call(x, sample(N, K))
        call(x, sample(N, K, group=-1, zero="uint4"), torch.randn(N, dtype=torch.bfloat16))
        call(x, sample(N, K, bits=8, group=0, scale_dtype=torch.float32))
    found = recording.problems()
    assert all(one.pop("count") == 1 for one in found)
    assert {problem_from_wire(one) for one in found} == {
        weights(3, zero="eight"),
        weights(3, zero="uint4", scale_b="outer", bias="bf16"),
        weights(3, "int8", scale_b="tensor", scale_dtype="fp32"),
    }


def test_rows_of_another_environment_are_raced(tmp_path: Path, cache: BinaryCache) -> None:
    rows = [(weights(2, "int8", scale_b="outer"), "dequant-gemv")]
    table = gemmtune.load(write(tmp_path / "old.gtb", rows, cache, torch_build="1.0"))
    weight, x = sample(N, K, bits=8, group=-1), torch.randn(2, K, dtype=torch.bfloat16)
    with gemmtune.torch.enable(table, race=False) as handle, gemmtune.torch.report() as count:
        assert handle.pending == 1
        assert right(call(x, weight), x, weight)
    assert tally(count) == (0, 1)
    with gemmtune.torch.enable(table) as handle:  # an emulated kernel is slow: the race leaves it off
        assert handle.pending == 0
        assert right(call(x, weight), x, weight)


def test_rows_against_another_default_are_left_out(tmp_path: Path, cache: BinaryCache) -> None:
    rows = [(weights(2, "int8", scale_b="outer"), "dequant-gemv")]
    table = gemmtune.load(write(tmp_path / "other.gtb", rows, cache, default="torch"))
    with gemmtune.torch.enable(table) as handle:
        assert sum(handle.left_out.values()) == 1


@pytest.mark.parametrize("kinds", [(True,), (False, True), (True, False)], ids=str)
def test_rows_of_prepacked_problems_that_read_stored_weights_serve_calls_of_them(
    tmp_path: Path, cache: BinaryCache, kinds: tuple[bool, ...]
) -> None:
    """Their keys differ, and so do the problems that a recording has of the calls."""
    from backends.wire import problem_from_wire

    problems = [weights(2, "int8", scale_b="outer", prepacked=one) for one in kinds]
    rows = [(one, "dequant-gemv") for one in problems]
    table = gemmtune.load(write(tmp_path / "packed.gtb", rows, cache))
    products = [of_row(row) for row in table.rows]
    assert [one and one.prepacked for one in products] == list(kinds)
    assert [problem_from_wire(one.wire()) for one in products if one] == problems
    weight, x = sample(N, K, bits=8, group=-1), torch.randn(2, K, dtype=torch.bfloat16)
    with counted(table) as count:
        served = current("cpu")
        assert served is not None
        assert {key: set(rows) for key, rows in served.weights.items()} == {
            (weight.form, torch.bfloat16, False, one): {2} for one in kinds
        }
        with gemmtune.torch.record("cpu") as recording:
            assert right(call(x, weight), x, weight)
    assert tally(count) == (1, 0)
    assert ["prepacked" in one for one in recording.problems()] == [False]


# ---- what is refused -----------------------------------------------------------------------------


def refused(match: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(WeightError, match=match):
        linear_w4a16(*arguments, **options)


def test_groups_that_do_not_divide_k() -> None:
    weight, x = sample(N, K), torch.randn(1, K)
    refused("group_size 96 does not divide K 256", x, weight.data, weight.scales, group_size=96)
    refused(r"group_size 64 wants \[32, 4\]", x, weight.data, weight.scales, group_size=64)
    refused("groups that divide K", x, weight.data, torch.rand(N, 3))
    refused("positive, or -1", x, weight.data, weight.scales, group_size=0)
    refused("transposed", x, weight.data, weight.scales.t().contiguous())


def test_tensors_of_other_shapes_and_types() -> None:
    weight, x = sample(N, K), torch.randn(1, K)
    refused("scales are torch.float64", x, weight.data, weight.scales.double())
    refused("scales must be contiguous", x, weight.data, torch.rand(2, N).t())
    refused("weight must be contiguous", x, weight.data.t().contiguous().t(), weight.scales)
    refused("int8; 4-bit weights are", x, weight.data.view(torch.int8), weight.scales)
    refused("input is", x[:, :-1], weight.data, weight.scales)
    refused("input is", x.to(torch.int32), weight.data, weight.scales)
    refused("bias is", x, weight.data, weight.scales, bias=torch.randn(N + 1))
    refused("bias is", x, weight.data, weight.scales, bias=torch.randn(N).half())
    with pytest.raises(WeightError, match="uint8; 8-bit weights are"):
        linear_w8a16(x, weight.data, weight.scales)


def test_weights_prepacked_for_another_kernel_are_refused_by_name() -> None:
    x, scales = torch.randn(1, K), torch.rand(N, 2)
    tiles = torch.zeros(N // 8, K // 128, 32, 4, dtype=torch.int32)
    refused(r"torch\._convert_weight_to_int4pack, .*from_tinygemm", x, tiles, scales)
    refused("Marlin's or Machete's", x, torch.zeros(K // 16, N * 2, dtype=torch.int32), scales)


def test_zero_points_that_may_mean_two_things() -> None:
    weight, x = sample(N, K, zero="float"), torch.randn(1, K)
    refused("may mean two things", x, weight.data, weight.scales, weight.zeros)
    refused("unknown; known", x, weight.data, weight.scales, weight.zeros, zero_point="half")
    refused("takes the zeros as a tensor", x, weight.data, weight.scales, zero_point="shift")
    refused("has no zeros", x, weight.data, weight.scales, weight.zeros, zero_point="eight")
    refused("stored like the scales", x, weight.data, weight.scales, weight.zeros.float(), zero_point="float")
    words = torch.zeros(N // 8, 4, dtype=torch.int32)
    refused(r"packed zero points are \[4, 2\]", x, weight.data, weight.scales, words)
    odd = sample(12, K)
    refused("no multiple", x, odd.data, odd.scales, torch.zeros(1, 2, dtype=torch.int32))
    one = torch.rand(1)
    refused("give a scale a row", x, weight.data, one, torch.zeros(N // 8, 1, dtype=torch.int32))
