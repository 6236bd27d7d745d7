"""On an NVIDIA GPU: torch's packing is read back, its calls are the same product, graphs hold it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gemmtune.torch import QuantizedLinear, from_tinygemm
from gemmtune.torch.quantised import products
from gemmtune.torch.quantised.form import Form
from gemmtune.torch.quantised.products import WeightProduct
from gemmtune.torch.quantised.stored import dequantized

from tests.client.torch.quantised.samples import right, sample

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    if not torch.cuda.is_available() or torch.version.hip is not None:
        pytest.skip("torch finds no NVIDIA GPU")
    yield
    torch.cuda.synchronize()


@pytest.mark.parametrize("inner", [2, 4, 8])
def test_torchs_packing_is_read_back(inner: int) -> None:
    weight = sample(64, 1024, zero="shift").to("cuda")
    swapped = (weight.data << 4 | weight.data >> 4).contiguous()
    packed = torch._convert_weight_to_int4pack(swapped, inner)
    pairs = torch.stack([weight.scales.t(), weight.zeros.t()], dim=-1).contiguous()
    found = from_tinygemm(packed, pairs)
    for one, other in ((found.data, weight.data), (found.scales, weight.scales), (found.zeros, weight.zeros)):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "form",
    [
        Form(64, 1024, "uint4", "eight", 8, torch.bfloat16),
        Form(64, 1024, "uint4", "none", 8, torch.bfloat16),
        Form(64, 1024, "uint4", "shift", 16, torch.bfloat16),
        Form(64, 1024, "int4", "none", 32, torch.bfloat16),
        Form(64, 1024, "int8", "none", 1, torch.bfloat16),
        Form(64, 1024, "uint4", "uint4", 8, torch.bfloat16),
    ],
    ids=str,
)
def test_torchs_calls_are_the_same_product(form: Form) -> None:
    product = WeightProduct(3, form, torch.bfloat16)
    given: Any = products.make(product, torch.device("cuda"))
    out = products.torch_call(product, given)().double()
    w = dequantized(form, given.weight, given.scales, given.zeros, torch.float64)
    exact, sizes = given.a.double() @ w.t(), given.a.double().abs() @ w.abs().t()
    assert float(((out - exact).abs() / sizes).max()) < 2.0**-7


def test_a_graph_holds_the_operator() -> None:
    weight = sample(64, 1024, zero="uint4")
    module = QuantizedLinear(weight.to("cuda"))
    x = torch.randn(3, 1024, device="cuda", dtype=torch.bfloat16)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        module(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = module(x)
    x.copy_(torch.randn(3, 1024))
    graph.replay()
    assert right(out.cpu(), x.cpu(), weight)
