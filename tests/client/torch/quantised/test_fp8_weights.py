"""Weights of 8-bit floats: checkpoints' forms, modules, fusing, NaN, and what is refused."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import gemmtune.torch
import pytest
import torch
from gemmtune.torch import (
    QuantizedLinear,
    QuantizedWeight,
    WeightError,
    from_compressed_tensors,
    from_stored,
    from_torchao,
    linear_w8a16,
)
from gemmtune.torch.quantised.fuse import _mergeable
from torch import nn

from backends.problem import GemmProblem
from backends.wire import problem_from_wire
from tests.client.torch.quantised.conftest import FP8_ROWS, K, weights
from tests.client.torch.quantised.samples import exact, right, sample

if TYPE_CHECKING:
    from gemmtune import Table

N = 300


def floats(*shape: int, dtype: Any = torch.float32) -> Any:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(4)) + 0.25).to(dtype)


def numbers(n: int = N, k: int = K) -> Any:
    return torch.randn((n, k), generator=torch.Generator().manual_seed(3)).to(torch.float8_e4m3fn)


def same(weight: QuantizedWeight, expected: Any) -> bool:
    return bool(torch.equal(weight.check().dequantize(torch.float64), expected))


def test_checkpoints_of_every_scale() -> None:
    """compressed-tensors' float-quantized, and the blocks of DeepSeek's and Qwen's, whose weight_scale_inv
    multiplies."""
    w, row, one, blocks = numbers(), floats(N, 1), floats(1), floats(3, K // 128)
    spread = blocks.double().repeat_interleave(128, 0)[:N].repeat_interleave(128, 1)
    for read in (from_stored, from_compressed_tensors):
        assert same(read(w, row), w.double() * row.double())
        assert same(read(w, one), w.double() * one.double())
        assert same(read(w, blocks), w.double() * spread)
    assert same(from_compressed_tensors(w, floats(), bits=8), w.double() * floats().double())
    assert same(from_compressed_tensors(w, row, torch.zeros(N, 1)), w.double() * row.double())
    assert same(from_torchao(w, row), w.double() * row.double())
    assert same(
        from_stored(w, floats(N, 2), group_size=128),
        w.double() * floats(N, 2).double().repeat_interleave(128, 1),
    )


def test_which_scales_are_of_blocks() -> None:
    """Rows of k = 128 have one block along k; scales of a row each stay what they are where n is one."""
    assert sample(N, 128, zero="fp8 blocks").form[4:] == (1, torch.bfloat16, 128)
    assert sample(N, 128, zero="fp8 blocks").group_size == 128
    assert QuantizedWeight(numbers(1), floats(1, 2)).form[4:] == (2, torch.float32, 1)
    assert QuantizedWeight(numbers(3, 128), floats(1, 1)).form[4:] == (0, torch.float32, 1)
    assert QuantizedWeight(numbers(129), floats(2, 2)).form.side == 128


@pytest.mark.parametrize("zero", ["fp8", "fp8 blocks"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_numbers_are_rounded_once(zero: str, dtype: Any) -> None:
    weight = sample(N, K, zero=zero, scale_dtype=torch.float32)
    off, kind = (weight.dequantize(dtype).double() - exact(weight)).abs(), torch.finfo(dtype)
    subnormal = kind.smallest_normal * kind.eps
    assert bool((off <= kind.eps / 2 * 1.0001 * exact(weight).abs() + subnormal).all())


def test_nan_is_of_its_column_alone(weight_table: Table) -> None:
    """By a row and by torch."""
    weight = sample(FP8_ROWS, K, zero="fp8 blocks", scale_dtype=torch.float32)
    weight.data.view(torch.uint8)[130, 77] = 0xFF
    x = torch.zeros(2, K, dtype=torch.bfloat16)
    for table in (weight_table, None):
        if table is None:
            out = linear_w8a16(x, weight.data, weight.scales)
        else:
            with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
                out = linear_w8a16(x, weight.data, weight.scales)
            assert count.report().hits == 1
        assert torch.equal(out.isnan().nonzero()[:, 1], torch.full((2,), 130))


def test_a_module_keeps_the_weights_type() -> None:
    module = QuantizedLinear(sample(N, K, zero="fp8 blocks"), torch.zeros(N))
    moved = copy.deepcopy(module).half()
    assert (moved.weight.dtype, moved.bias.dtype) == (torch.float8_e4m3fn, torch.float16)
    assert torch.equal(moved.weight.view(torch.uint8), module.weight.view(torch.uint8))
    x = torch.randn(3, K, dtype=torch.float16)
    assert right(moved(x), x, module.quantized_weight)
    assert "bits=8, group_size=128" in repr(module)


def test_torchs_own_checks_of_the_operator() -> None:
    """Those that torch has for such tensors."""
    for zero in ("fp8", "fp8 blocks"):
        weight = sample(130, 256, zero=zero)
        x = torch.randn(3, 256, requires_grad=True)
        given = (x, weight.data, weight.scales, weight.group_size, torch.randn(130, requires_grad=True))
        torch.library.opcheck(
            torch.ops.gemmtune.linear_w8a16.default,
            given,
            test_utils=("test_faketensor", "test_autograd_registration"),
        )
        linear_w8a16(*given).square().sum().backward()
        other = x.detach().clone().requires_grad_()
        torch.nn.functional.linear(other, weight.dequantize(), given[-1].detach()).square().sum().backward()
        torch.testing.assert_close(x.grad, other.grad)


def test_a_recording_is_a_problem_that_is_tuned() -> None:
    x = torch.randn(3, K, dtype=torch.bfloat16)
    with gemmtune.torch.record("cpu") as recording:
        for zero in ("fp8", "fp8 blocks"):
            given = sample(N, K, zero=zero, group=-1 if zero == "fp8" else 128, scale_dtype=torch.float32)
            linear_w8a16(x, given.data, given.scales)
    found = {
        problem_from_wire({k: v for k, v in one.items() if k != "count"}) for one in recording.problems()
    }
    wanted: set[GemmProblem] = {
        weights(3, "fp8_e4m3", n=N, scale_b=scale, scale_dtype="fp32") for scale in ("outer", "block_128x128")
    }
    assert found == wanted


def test_only_whole_blocks_are_merged() -> None:
    """Scales of blocks of two modules behind each other are those of one where the first's rows are whole
    blocks."""

    def modules(*sizes: int) -> list[Any]:
        return [QuantizedLinear(sample(n, K, zero="fp8 blocks", seed=n)) for n in sizes]

    assert _mergeable(modules(128, 256, 40))
    assert not _mergeable(modules(128, 200, 256))
    assert _mergeable([QuantizedLinear(sample(n, K, zero="fp8", group=-1, seed=n)) for n in (24, 40)])


class Gated(nn.Module):  # type: ignore[misc]
    """Two projections of one input, whose weights are together the table's."""

    def __init__(self) -> None:
        super().__init__()
        for name, n in (("gate_proj", 128), ("up_proj", FP8_ROWS - 128)):
            weight = sample(n, K, zero="fp8 blocks", scale_dtype=torch.float32, seed=n)
            setattr(self, name, QuantizedLinear(weight))


def test_siblings_are_one_product(weight_table: Table) -> None:
    model, x = Gated(), torch.randn(2, K, dtype=torch.bfloat16)
    with gemmtune.torch.apply(model, weight_table, fuse=True) as handle, gemmtune.torch.report() as count:
        assert handle.fused == 1
        outputs = model.gate_proj(x), model.up_proj(x)
        for module, out in zip((model.gate_proj, model.up_proj), outputs, strict=True):
            assert right(out, x, module.quantized_weight)
    assert [(line.n, line.calls, line.hit) for line in count.report().lines] == [(FP8_ROWS, 1, True)]


@pytest.mark.parametrize(
    ("match", "weight", "scales", "group_size"),
    [
        ("float8_e5m2; 8-bit weights are", numbers().to(torch.float8_e5m2), floats(N, 1), None),
        ("groups that divide K", numbers(), floats(2, 2), None),
        ("transposed", numbers(), floats(2, N), None),
        ("one for 128 x 128 weights of .*; group_size is 64", numbers(), floats(3, 2), 64),
        ("scales are torch.float64", numbers(), floats(N, 1).double(), None),
        ("weight must be contiguous", numbers(K, N).t(), floats(N, 1), None),
    ],
)
def test_what_is_refused_says_why(match: str, weight: Any, scales: Any, group_size: int | None) -> None:
    with pytest.raises(WeightError, match=match):
        linear_w8a16(torch.randn(1, K), weight, scales, group_size)


def test_zero_points_are_refused() -> None:
    with pytest.raises(WeightError, match="8-bit floats have none"):
        from_compressed_tensors(numbers(), floats(N, 1), torch.ones(N, 1))
    with pytest.raises(WeightError, match="signed and have no zero point"):
        QuantizedWeight(numbers(), floats(N, 1), torch.ones(N, 1))
