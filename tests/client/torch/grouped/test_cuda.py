"""The layer of a mixture of experts on a GPU: its kernels against torch's operations, in a CUDA graph, by
Inductor, and with 4-bit weights by rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import gemmtune
import gemmtune.torch
import pytest
import torch
from gemmtune.torch import experts_from_gpt_oss, quantize_experts
from gemmtune.torch.grouped import few_tokens, glue
from gemmtune.torch.grouped.layer import sorted_rows
from gemmtune.torch.grouped.scaled import quantised

from backends.cache import BinaryCache
from backends.kernels.families import FAMILIES
from backends.packages.bundle import BundleBuilder, Measured, describe_row
from backends.problem import GemmProblem, from_linear
from backends.registry import devices
from tests.backends.weight_samples import mxfp4
from tests.backends.weight_samples import weights as w4a16
from tests.client.torch.grouped.test_layer import silu_mul, swigluoai

if TYPE_CHECKING:
    from gemmtune import Table

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    if not torch.cuda.is_available() or torch.version.hip is not None:
        pytest.skip("torch finds no NVIDIA GPU")


@pytest.fixture(autouse=True)
def synchronised() -> Iterator[None]:
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
        found, _, found_ends, found_place = glue.rows_of_experts(x, ids, experts)
        assert torch.equal(found_ends, ends)
        assert torch.equal(found_place.long(), torch.where(here, place, -1))
        assert torch.equal(found[:there], x[rows][:there])
    wanted, wanted_scales = quantised(x)
    q, scales, _, _ = glue.rows_of_experts(x, chosen_ids, experts, torch.float8_e4m3fn)
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


# ---- biases, gpt-oss's activation, weights of 4 bits ---------------------------------------------

#: mypy takes options of a dict for any parameter.
moe: Any = gemmtune.torch.moe
EXPERTS, HIDDEN, INTER, CHOSEN = 32, 512, 384, 4
OSS: dict[str, Any] = {"activation": "swigluoai", "interleaved": True}


def interleaved(halves: Any) -> Any:
    return torch.stack(halves.chunk(2, -1), -1).flatten(-2)


@pytest.mark.parametrize("columns", [384, 1000, 2880])
@pytest.mark.parametrize("experts", [32, 60])
def test_activations(columns: int, experts: int) -> None:
    torch.manual_seed(columns)
    ids = torch.randint(0, experts, (300,), device="cuda").sort().values
    ends = torch.searchsorted(ids, torch.arange(experts, device="cuda"), right=True).to(torch.int32)
    for dtype, limit, turns, of_bias in product(
        (torch.bfloat16, torch.float16), (None, 3.0), (False, True), (None, torch.bfloat16, torch.float32)
    ):
        hidden = (4 * torch.randn(310, 2 * columns, device="cuda")).to(dtype)
        bias = None if of_bias is None else torch.randn(experts, 2 * columns, device="cuda").to(of_bias)
        added = hidden[:300].double() + (0.0 if bias is None else bias[ids].double())
        if limit is None:
            wanted = silu_mul(torch.cat([added[:, ::2], added[:, 1::2]], 1) if turns else added)
        else:
            wanted = swigluoai((added if turns else interleaved(added)).cpu(), limit).cuda()
        out, _ = glue.activation(hidden, ends, None, bias, turns, limit)
        assert torch.allclose(out[:300].double(), wanted, rtol=2**-7, atol=1e-4)
        q, scales = glue.activation(hidden, ends, torch.float8_e4m3fn, bias, turns, limit)
        each = scales[:300].repeat_interleave(128, 1)[:, :columns].double()
        bound = torch.maximum(wanted.abs() * 2**-4, each * 2**-10) * 1.001 + 1e-4
        assert ((q[:300].double() * each - wanted).abs() <= bound).all()


@pytest.mark.parametrize("tokens", [1, 64, 300])
def test_sums_with_biases(tokens: int) -> None:
    torch.manual_seed(tokens)
    ids = torch.randint(-1, 33, (tokens, CHOSEN), device="cuda")
    _, _, place, here = sorted_rows(ids, 32)
    rows = torch.randn(tokens * CHOSEN, 2880, device="cuda", dtype=torch.bfloat16)
    bias, weights = torch.randn(32, 2880, device="cuda"), torch.rand(tokens, CHOSEN, device="cuda")
    of_ids = torch.where(here, place, -1).to(torch.int32)
    out = glue.weighted_sum(rows, of_ids, weights, torch.bfloat16, bias, ids)
    every = torch.where(here[..., None], rows[place].double() + bias[ids.clamp(0, 31)].double(), 0.0)
    assert close(out, (every * weights[..., None].double()).sum(1), 0.003)


def biases() -> dict[str, Any]:
    torch.manual_seed(2)
    return {
        f"{name}_bias": torch.randn(EXPERTS, size, device="cuda", dtype=torch.bfloat16)
        for name, size in (("gate_up", 2 * INTER), ("down", HIDDEN))
    }


def captured(tokens: int, given: tuple[Any, ...], options: dict[str, Any], most: float = 0.01) -> None:
    """By kernels, and in a graph, the layer is that of torch's operations."""
    x, _, _, weights, ids = given
    ids[0, 0] = -1
    with mock.patch.object(glue, "runs", return_value=False):
        wanted = moe(*given, **options)
    assert close(moe(*given, **options), wanted, most)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = moe(*given, **options)
    for one in (x, weights, ids):
        one.copy_(one.flip(0))
    graph.replay()
    assert close(out, wanted.flip(0), most)


@pytest.mark.parametrize("tokens", [1, 300])
def test_gpt_oss_layer_of_16_bits(tokens: int) -> None:
    captured(tokens, layer(tokens), biases() | OSS)


def test_inductor_compiles_gpt_oss_layer() -> None:
    given, options = layer(8), biases() | OSS
    wanted = moe(*given, **options)
    assert torch.equal(torch.compile(moe, fullgraph=True)(*given, **options), wanted)


def layer4(tokens: int, form: str) -> tuple[Any, ...]:
    x, gate_up, down, weights, ids = layer(tokens)
    options: dict[str, Any] = {"form": "mxfp4"} if form == "mxfp4" else {"group_size": 64}
    return x, quantize_experts(gate_up, **options), quantize_experts(down, **options), weights, ids


@pytest.mark.parametrize("form", ["mxfp4", "w4a16"])
@pytest.mark.parametrize("tokens", [1, 300])
def test_4_bit_weights_without_rows(tokens: int, form: str) -> None:
    given = layer4(tokens, form)
    x, gate_up, down, weights, ids = given
    both = gate_up.dequantize(torch.bfloat16), down.dequantize(torch.bfloat16)
    # At 1 token integers by their scales are not rounded to bf16.
    assert close(moe(*given), moe(x, *both, weights, ids), 0.008)
    captured(tokens, given, biases() | OSS)


def by_products(*given: Any, **options: Any) -> Any:
    with mock.patch.object(few_tokens, "most_slots", return_value=0):
        return moe(*given, **options)


def by_launches(*given: Any, **options: Any) -> Any:
    """By two launches; the report says so."""
    with (
        mock.patch.object(few_tokens, "most_slots", return_value=64),
        gemmtune.torch.report() as count,
    ):
        out = moe(*given, **options)
    found = count.report()
    assert (sum(one.calls for one in found.layers), found.misses) == (1, 0), found
    return out


@pytest.mark.parametrize(
    ("tokens", "chosen", "experts", "hidden", "inter"),
    [(1, 8, 128, 2048, 768), (4, 8, 128, 2048, 768), (2, 4, 32, 2880, 2880), (3, 2, 8, 4096, 1792),
     (5, 1, 4, 1000, 616), (2, 6, 16, 328, 136), (2, 16, 20, 256, 64)],
)  # fmt: skip
def test_few_tokens(tokens: int, chosen: int, experts: int, hidden: int, inter: int) -> None:
    torch.manual_seed(tokens)
    for dtype, kind in ((torch.bfloat16, torch.int64), (torch.float16, torch.int32)):
        x = torch.randn(tokens, hidden, dtype=dtype, device="cuda")
        gate_up = torch.randn(experts, 2 * inter, hidden, dtype=dtype, device="cuda") * hidden**-0.5
        down = torch.randn(experts, hidden, inter, dtype=dtype, device="cuda") * inter**-0.5
        weights, ids = torch.rand(tokens, experts, device="cuda").softmax(-1).topk(chosen)
        ids[0, 0] = experts
        given = x, gate_up, down, weights, ids.to(kind)
        added = {
            f"{name}_bias": torch.randn(experts, size, device="cuda")
            for name, size in (("gate_up", 2 * inter), ("down", hidden))
        }
        for options in ({}, added | OSS):
            assert close(by_launches(*given, **options), by_products(*given, **options), 0.003)
        ids[:] = -1
        assert not by_launches(*given[:4], ids).any()


@pytest.mark.parametrize("form", ["mxfp4", "uint4", "eight"])
def test_few_tokens_by_4_bit_weights(form: str) -> None:
    for hidden, inter, chosen in ((2880, 2880, 4), (512, 384, 8), (256, 640, 1)):
        torch.manual_seed(inter)
        x, weights = torch.randn(2, hidden, device="cuda").bfloat16(), torch.rand(2, chosen, device="cuda")
        ids = torch.rand(2, 10, device="cuda").topk(chosen).indices
        floats = [
            torch.randn(10, n, k, device="cuda").bfloat16() * k**-0.5
            for n, k in ((2 * inter, hidden), (hidden, inter))
        ]
        options = {"form": "mxfp4"} if form == "mxfp4" else {"group_size": 32, "symmetric": form == "eight"}
        both = [quantize_experts(one, **options) for one in floats]
        wide = [one.dequantize(torch.bfloat16) for one in both]
        for more in ({}, OSS):
            found = by_launches(x, *both, weights, ids, **more)
            # MXFP4 is exact in bf16; integers by their scales are rounded there.
            most = 0.004 if form == "mxfp4" else 0.008
            assert close(found, by_launches(x, *wide, weights, ids, **more), most)


def problems(rows: int) -> Iterator[GemmProblem]:
    for n, k in ((2 * INTER, HIDDEN), (HIDDEN, INTER)):
        yield mxfp4(rows, n, k, groups=EXPERTS)
        yield w4a16(rows, n, k, zero_b="eight", scale_b="block_1x64", groups=EXPERTS)


@pytest.fixture(scope="module")
def table(gpu: None, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Rows of both products for up to 64 tokens, of the likeliest candidate each."""
    return table_of([(one, "grouped-ring") for one in problems(64 * CHOSEN)], tmp_path_factory.mktemp("rows"))


def table_of(rows: Sequence[tuple[GemmProblem, str]], folder: Path) -> Table:
    """A row of the likeliest candidate of a family for each problem."""
    found, notes = devices("cuda")
    assert found, notes
    environment = found[0].environment
    said: dict[str, Any] = {
        "judgement": "WIN", "seconds": 1.0, "baseline_seconds": 1.0, "baseline": "torch", "rounds": 1,
        "baseline_family": "torch-grouped", "speedup": [1.0, 1.0, 1.0], "session": None, "decided_at": None,
    }  # fmt: skip
    with BundleBuilder(environment.device_class, "graph-cold", {}) as builder:
        for one, family in rows:
            solution = next(iter(FAMILIES[family].solutions(one, environment)))
            row = Measured(one, solution, environment, said)
            builder.add(describe_row(row, environment.device_class.arch, BinaryCache(folder / "cache")))
        builder.write(folder / "rows.gtb")
    return gemmtune.load(folder / "rows.gtb")


@pytest.mark.parametrize("family", ["grouped-ring", "grouped-tile", "grouped-wgmma"])
@pytest.mark.parametrize("tokens", [40, 512])
def test_the_activation_is_in_the_first_product(gpu: None, family: str, tokens: int, tmp_path: Path) -> None:
    """moe() takes the row, eager, captured and compiled, and is nearer to the exact layer than without."""
    if family == "grouped-wgmma" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs sm_90a")
    rows = tokens * CHOSEN
    first = from_linear(rows, 2 * INTER, HIDDEN, "bf16", groups=EXPERTS, activation="swiglu")
    second = from_linear(rows, HIDDEN, INTER, "bf16", groups=EXPERTS)
    given = layer(tokens)
    wanted = moe(*given)
    table = table_of([(first, family), (second, family)], tmp_path)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        assert close(moe(*given), wanted)
        found = count.report()
        assert (found.hits, found.misses, found.wrong_ends) == (2, 0, 0), found
        captured(tokens, given, {})
        compiled = torch.compile(moe, fullgraph=True)(*given)
        assert torch.equal(compiled, moe(*given))


@pytest.mark.parametrize("form", ["mxfp4", "w4a16"])
@pytest.mark.parametrize("tokens", [40, 64])
def test_4_bit_weights_by_rows_of_a_table(table: Table, tokens: int, form: str) -> None:
    given, options = layer4(tokens, form), biases() | OSS
    wanted = moe(*given, **options)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        assert close(moe(*given, **options), wanted)
        found = count.report()
        assert (found.hits, found.misses, found.wrong_ends) == (2, 0, 0), found
        captured(tokens, given, options)
        compiled = torch.compile(moe, fullgraph=True)(*given, **options)
        assert torch.equal(compiled, moe(*given, **options))
        assert (count.report().misses, count.report().wrong_ends) == (0, 0)


def test_gpt_oss_tensors() -> None:
    torch.manual_seed(5)
    tensors: dict[str, Any] = {}
    for name, n, k in (("gate_up_proj", 2 * INTER, HIDDEN), ("down_proj", HIDDEN, INTER)):
        shape = (EXPERTS, n, k // 32)
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), device="cuda").byte()
        tensors[f"{name}_scales"] = torch.randint(119, 122, shape, device="cuda").byte()
        tensors[f"{name}_bias"] = torch.randn(EXPERTS, n, device="cuda", dtype=torch.bfloat16)
    x, _, _, weights, ids = layer(8)
    found = experts_from_gpt_oss(tensors)
    both = {name: found[name].dequantize(torch.bfloat16) for name in ("gate_up", "down")}
    out = moe(x, weights=weights, ids=ids, **found)
    assert close(out, moe(x, weights=weights, ids=ids, **{**found, **both}))
