"""The layer of a mixture of experts on a GPU: its kernels against torch's operations, in a CUDA graph, and by
Inductor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import gemmtune.torch
import pytest
import torch
from gemmtune.torch.grouped import glue
from gemmtune.torch.grouped.layer import sorted_rows
from gemmtune.torch.grouped.scaled import quantised

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    if not torch.cuda.is_available() or torch.version.hip is not None:
        pytest.skip("torch finds no NVIDIA GPU")
    yield
    torch.cuda.synchronize()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("tokens", "chosen", "experts", "hidden"),
    [(1, 8, 128, 2048), (8, 8, 128, 2048), (64, 8, 512, 2050), (129, 8, 256, 7168), (4097, 3, 60, 1000),
     (16384, 8, 512, 192)],
)  # fmt: skip
def test_rows_are_those_of_torch(dtype: Any, tokens: int, chosen: int, experts: int, hidden: int) -> None:
    torch.manual_seed(tokens)
    x = torch.randn(tokens, hidden, dtype=dtype, device="cuda")
    chosen_ids = torch.randint(-1, experts + 1, (tokens, chosen), device="cuda")
    for ids in (chosen_ids, chosen_ids.to(torch.int32)):
        rows, ends, place, here = sorted_rows(ids, experts)
        there = int(ends[-1])
        found, _, found_ends, found_place = glue.rows_of_experts(x, ids, experts, False)
        assert torch.equal(found_ends, ends)
        assert torch.equal(found_place.long(), torch.where(here, place, -1))
        assert torch.equal(found[:there], x[rows][:there])
    wanted, wanted_scales = quantised(x)
    q, scales, _, _ = glue.rows_of_experts(x, chosen_ids, experts, True)
    assert torch.equal(scales[:there], wanted_scales[rows][:there])
    assert torch.equal(q.view(torch.uint8)[:there], wanted.view(torch.uint8)[rows][:there])


def layer(tokens: int, dtype: Any = torch.bfloat16) -> tuple[Any, ...]:
    torch.manual_seed(1)
    experts, hidden, inter = 32, 512, 384
    x = torch.randn(tokens, hidden, dtype=dtype, device="cuda")
    gate_up = torch.randn(experts, 2 * inter, hidden, dtype=dtype, device="cuda") * hidden**-0.5
    down = torch.randn(experts, hidden, inter, dtype=dtype, device="cuda") * inter**-0.5
    weights, ids = torch.rand(tokens, experts, device="cuda").softmax(-1).topk(4)
    return x, gate_up, down, weights, ids


def close(one: Any, other: Any, most: float = 0.01) -> bool:
    return bool((one.double() - other.double()).norm() <= most * other.double().norm())


@pytest.mark.parametrize("tokens", [1, 8, 300, 3000])
def test_a_layer_is_that_of_torchs_operations_and_captured(tokens: int) -> None:
    given = layer(tokens)
    given[-1][0, 0] = -1
    with mock.patch.object(glue, "runs", return_value=False):
        wanted = gemmtune.torch.moe(*given)
    assert close(gemmtune.torch.moe(*given), wanted)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gemmtune.torch.moe(*given)
    given[0].copy_(given[0].flip(0))
    given[-1].copy_(given[-1].flip(0))
    given[3].copy_(given[3].flip(0))
    graph.replay()
    assert close(out, wanted.flip(0))
    again = out.clone()
    graph.replay()
    assert torch.equal(out, again)


def test_inductor_compiles_it() -> None:
    given = layer(8)
    wanted = gemmtune.torch.moe(*given)
    found = torch.compile(gemmtune.torch.moe, fullgraph=True)(*given)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("tokens", [1, 300])
def test_8_bit_weights(tokens: int) -> None:
    x, gate_up, down, weights, ids = layer(tokens)

    def blocks(weight: Any) -> tuple[Any, Any]:
        groups, n, k = weight.shape
        each = weight.float().view(groups, n // 128, 128, k // 128, 128)
        scale = each.abs().amax((2, 4)) / 448
        return (each / scale[:, :, None, :, None]).view(groups, n, k).to(torch.float8_e4m3fn), scale

    (of_gate_up, gate_up_scale), (of_down, down_scale) = blocks(gate_up), blocks(down)
    out = gemmtune.torch.moe(x, of_gate_up, of_down, weights, ids, gate_up_scale, down_scale)
    assert close(out, gemmtune.torch.moe(x, gate_up, down, weights, ids), 0.08)
    with mock.patch.object(glue, "runs", return_value=False):
        other = gemmtune.torch.moe(x, of_gate_up, of_down, weights, ids, gate_up_scale, down_scale)
    assert close(out, other, 0.02)
