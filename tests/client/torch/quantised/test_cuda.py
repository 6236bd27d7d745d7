"""On an NVIDIA GPU: torch's packing is read back, its calls are the same product, graphs hold it; what
follows a product of 8-bit operands, by rows and by torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gemmtune
import gemmtune.torch
import numpy as np
import pytest
import torch
from gemmtune.torch import QuantizedLinear, from_tinygemm
from gemmtune.torch.quantised import products
from gemmtune.torch.quantised.form import Form
from gemmtune.torch.quantised.products import WeightProduct
from gemmtune.torch.quantised.stored import dequantized

from backends.cache import BinaryCache
from backends.kernels.families import FAMILIES
from backends.packages.bundle import BundleBuilder, Measured, describe_row
from backends.problem import GemmProblem
from backends.registry import devices
from tests.client.torch.quantised.conftest import weights
from tests.client.torch.quantised.epilogues import EPILOGUES, M, call, problem
from tests.client.torch.quantised.samples import right, sample
from tuners.inputs import Case
from tuners.reference import make_reference

if TYPE_CHECKING:
    from gemmtune import Table

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


def test_a_graph_holds_a_product_of_packed_weights(tmp_path: Path) -> None:
    """Packed on another stream than the product's, which waits for it."""
    problems = [weights(m, zero="uint4", n=64, k=1024, prepacked=True) for m in (1, 4)]
    table = _table(tmp_path, "packed-mma", problems, "torch-weights")
    weight = sample(64, 1024, zero="uint4")
    module = QuantizedLinear(weight.to("cuda"))
    with gemmtune.torch.enable(table) as handle, gemmtune.torch.report() as count:
        handle.load()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            assert module.prepack()
        torch.cuda.current_stream().wait_stream(stream)
        for m in (1, 3, 4):
            x = torch.randn(m, 1024, device="cuda", dtype=torch.bfloat16)
            assert right(module(x).cpu(), x.cpu(), weight)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = module(x)
            x.copy_(torch.randn(m, 1024))
            graph.replay()
            assert right(out.cpu(), x.cpu(), weight)
    assert (count.report().hits, count.report().misses) == (6, 0)


#: Columns that torch's calls of 8-bit operands take.
COLUMNS = 48


@pytest.fixture(scope="module")
def epilogue_rows(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A row for each of EPILOGUES, of the likeliest candidate."""
    problems = [problem(name, M, COLUMNS) for name in EPILOGUES]
    return _table(tmp_path_factory.mktemp("epilogues"), "bytes-ring", problems, "torch")


def _table(folder: Path, name: str, problems: Sequence[GemmProblem], default: str) -> Table:
    """A table of a family's likeliest candidate for each problem; `default`: the baselines' family."""
    found, notes = devices("cuda")
    if not found:
        pytest.skip("; ".join(notes))
    environment, family = found[0].environment, FAMILIES[name]
    said: dict[str, Any] = {
        "judgement": "WIN", "seconds": 1.0, "baseline_seconds": 1.0, "baseline": default, "rounds": 1,
        "baseline_family": default, "speedup": [1.0, 1.0, 1.0], "session": None, "decided_at": None,
    }  # fmt: skip
    with BundleBuilder(environment.device_class, "graph-cold", {}) as builder:
        for one in problems:
            row = Measured(one, next(iter(family.solutions(one, environment))), environment, said)
            builder.add(describe_row(row, environment.device_class.arch, BinaryCache(folder / "cache")))
        builder.write(folder / "rows.gtb")
    return gemmtune.load(folder / "rows.gtb")


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("distribution", ["normal", "small"])
def test_what_follows_is_the_references_number(epilogue_rows: Table, name: str, distribution: str) -> None:
    """By the row and by torch."""
    p = problem(name, M, COLUMNS)
    reference, inputs = make_reference(Case(p, 7, distribution, "exact"))
    with gemmtune.torch.enable(epilogue_rows), gemmtune.torch.report() as count:
        ours = call(p, inputs, "cuda")
    assert (count.report().hits, count.report().misses) == (1, 0)
    for found in (ours, call(p, inputs, "cuda")):
        differ = np.abs(found.double().cpu().numpy() - reference.expected[0])
        assert np.all(differ <= reference.tolerance[0])
    if p.dtype_d == "int8":
        assert int((ours.int() - call(p, inputs, "cuda").int()).abs().max()) <= 1


@pytest.mark.parametrize("rows", [True, False])
def test_a_graph_holds_what_follows(epilogue_rows: Table, rows: bool) -> None:
    """With a residual, beta, and a scale of the output that later replays read anew."""
    p = problem("int8 to int8, int8 residual gelu", M, COLUMNS)
    _, inputs = make_reference(Case(p, 7, "small", "exact"))
    scale = torch.ones(1, device="cuda")
    handle = gemmtune.torch.enable(epilogue_rows) if rows else None
    try:
        if handle is not None:
            handle.load()
        given = {name: torch.from_numpy(inputs[name][0]).cuda() for name in ("a", "b", "c")}
        scales = [torch.from_numpy(inputs[name][0, 0]).cuda() for name in ("scale_b", "scale_a")]
        options: dict[str, Any] = {
            "residual": given["c"], "beta": -0.5, "activation": "gelu", "scale_out": scale,
            "out_dtype": torch.int8,
        }  # fmt: skip

        def run() -> Any:
            return gemmtune.torch.linear_w8a8(given["b"], given["a"], *scales, **options)

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = run()
        for value in (0.25, 4.0):
            scale.fill_(value)
            given["c"].neg_()
            graph.replay()
            assert torch.equal(out, run())
        compiled = torch.compile(run, fullgraph=True)
        assert torch.equal(compiled(), run())
    finally:
        if handle is not None:
            handle.disable()
