"""torch.compile: products with rows become nodes that look their row up when they run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gemmtune.torch
import pytest
import torch
import torch._inductor.config as inductor
from torch import nn

from tests.client.torch.close import close
from tests.client.torch.conftest import GATE_UP, QKV, ROWS, K, N

if TYPE_CHECKING:
    from gemmtune import Table


pytestmark = pytest.mark.usefixtures("compiling")


@pytest.fixture(autouse=True)
def left_alone() -> Iterator[None]:
    """The program's own pass is as it was."""
    before = inductor.post_grad_custom_pre_pass
    yield
    assert inductor.post_grad_custom_pre_pass is before


class Model(nn.Module):  # type: ignore[misc]
    """A product with rows and a bias, one with rows and none, one without rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(K, N), nn.Linear(K, 16, bias=False), nn.Linear(N, 7)

    def forward(self, x: Any) -> tuple[Any, Any]:
        return self.third(torch.relu(self.first(x))), self.second(x)


@pytest.mark.parametrize("cpp_wrapper", [False, True])
def test_one_graph_serves_every_m(table: Table, cpp_wrapper: bool) -> None:
    model = Model().requires_grad_(False)
    graphs = 0

    def counted(graph: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(graph, inputs)

    with inductor.patch(cpp_wrapper=cpp_wrapper), gemmtune.torch.apply(model, table):
        compiled = torch.compile(model, dynamic=True, backend=counted, fullgraph=True)
        with gemmtune.torch.report() as count:
            for m in (*ROWS[1:], 7):
                x = torch.randn(m, K)
                third, second = compiled(x)
                hidden = torch.relu(model.first(x))
                assert close(second, x, model.second.weight.t())
                assert torch.allclose(third, model.third(hidden), atol=1e-5)
    ran = [line for line in count.report().lines if line.hit and line.n in (N, 16)]
    # The model itself runs its first module as well: three times by rows, beside three of the graph's.
    assert sorted((line.n, line.calls) for line in ran) == [
        (16, 1),
        (16, 1),
        (16, 1),
        (48, 2),
        (48, 2),
        (48, 2),
    ]
    assert graphs == 1


def test_what_is_compiled_under_enable_has_its_gradients(table: Table) -> None:
    model, x = Model(), torch.randn(40, K, requires_grad=True)
    parameters = [x, *model.parameters()]
    expected = torch.autograd.grad(sum(one.square().sum() for one in model(x)), parameters)
    with gemmtune.torch.enable(table):
        compiled = torch.compile(model)
        with gemmtune.torch.report() as count:
            found = torch.autograd.grad(sum(one.square().sum() for one in compiled(x)), parameters)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-3)
    hits = {(line.m, line.n, line.k) for line in count.report().lines if line.hit}
    assert {(40, N, K), (40, 16, K), (N, K, 40)} <= hits


def test_products_without_rows_stay_inductors(table: Table) -> None:
    from gemmtune.torch.graph_pass import rewrite
    from gemmtune.torch.served import acquire, release
    from torch.fx.experimental.proxy_tensor import make_fx

    def products(x: Any, w: Any, bias: Any, y: Any) -> tuple[Any, ...]:
        return (
            torch.mm(x, w.t()), torch.addmm(bias, x, w.t()), torch.addmm(bias, x, w.t(), beta=2),
            torch.mm(x.double(), w.t().double()), torch.mm(y, w.t()),
        )  # fmt: skip

    graph = make_fx(products, tracing_mode="fake")(
        torch.randn(8, K), torch.randn(N, K), torch.randn(N), torch.randn(9, K)
    )
    served = acquire(table)
    try:
        assert rewrite(graph.graph, served) == 2
    finally:
        release(served)
    assert [str(node.target) for node in graph.graph.nodes if "gemmtune" in str(node.target)] == [
        "gemmtune.mm.default", "gemmtune.addmm.default",
    ]  # fmt: skip


def test_a_pass_of_the_programs_own_runs_first(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.custom_graph_pass import CustomGraphPass

    seen = []

    class Own(CustomGraphPass):  # type: ignore[misc]
        def __call__(self, graph: Any) -> None:
            seen.append(str(graph))

        def uuid(self) -> Any:
            return "own"

    own = Own()
    with inductor.patch(post_grad_custom_pre_pass=own):
        with gemmtune.torch.apply(Model(), table) as handle:
            assert table.digest in str(inductor.post_grad_custom_pre_pass.uuid())
            assert "own" in inductor.post_grad_custom_pre_pass.uuid()
            assert handle.modules == 2
            model = nn.Linear(K, N).requires_grad_(False)
            x = torch.randn(8, K)
            with gemmtune.torch.report() as count:
                assert close(torch.compile(model)(x), x, model.weight.t(), model.bias)
            assert count.report().hits == 1
        assert inductor.post_grad_custom_pre_pass is own
    assert len(seen) == 1
    assert "addmm" in seen[0]


def test_handles_end_in_any_order(table: Table) -> None:
    before = inductor.post_grad_custom_pre_pass
    first = gemmtune.torch.apply(Model(), table)
    second = gemmtune.torch.enable(table)
    first.disable()
    assert table.digest in str(inductor.post_grad_custom_pre_pass.uuid())
    second.disable()
    assert inductor.post_grad_custom_pre_pass is before


def test_a_pass_for_programs_that_set_it_themselves(table: Table) -> None:
    found = gemmtune.torch.compile_pass(table)
    assert table.digest in found.uuid()
    model, x = nn.Linear(K, N).requires_grad_(False), torch.randn(8, K)
    with inductor.patch(post_grad_custom_pre_pass=found), gemmtune.torch.report() as count:
        compiled = torch.compile(model)
        assert close(compiled(x), x, model.weight.t(), model.bias)  # no table is in use: torch's
        assert count.report().hits == 0
        before = inductor.post_grad_custom_pre_pass
        handle = gemmtune.torch.apply(nn.Linear(K, N), table)
        assert close(compiled(x), x, model.weight.t(), model.bias)
        assert count.report().hits == 1
        handle.disable()
        assert inductor.post_grad_custom_pre_pass is before


def test_inductor_is_not_imported_for_it(bundle: Path) -> None:
    code = f"""
import sys, warnings, gemmtune, gemmtune.torch, torch
module = torch.nn.Linear({K}, {N}).requires_grad_(False)
with gemmtune.torch.apply(module, gemmtune.load({str(bundle)!r})):
    assert "torch._inductor.config" not in sys.modules
    import torch._inductor.config as config
    assert "gemmtune" in str(config.post_grad_custom_pre_pass.uuid())
assert config.post_grad_custom_pre_pass is None
assert not [one for one in sys.meta_path if "gemmtune" in type(one).__module__]
"""
    client = str(Path(gemmtune.__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": client}, check=True, timeout=120
    )


# ---- weights that apply(fuse=True) merged --------------------------------------------------------


class Block(nn.Module):  # type: ignore[misc]
    """q, k and v of one input, whose rows reach each of them through a view of its own; gate and up."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        for name, n in zip(("q_proj", "k_proj", "v_proj"), QKV, strict=True):
            setattr(self, name, nn.Linear(K, n, bias=bias))
        self.gate_proj, self.up_proj = (nn.Linear(K, n, bias=False) for n in GATE_UP)
        self.requires_grad_(False)

    def forward(self, x: Any) -> tuple[Any, ...]:
        y = torch.relu(x)
        heads = [one(y).view(*x.shape[:2], -1, 16).transpose(1, 2) for one in (self.q_proj, self.k_proj)]
        return *heads, self.v_proj(y) + 1, nn.functional.silu(self.gate_proj(y)) * self.up_proj(y)


@pytest.mark.parametrize(
    ("bias", "cpp_wrapper", "m"), [(True, False, 8), (False, False, 1), (False, True, 8)]
)
def test_merged_weights_are_one_product(table: Table, bias: bool, cpp_wrapper: bool, m: int) -> None:
    model, x = Block(bias), torch.randn(m, 1, K)
    expected = model(x)
    compiled = torch.compile(model, fullgraph=True)
    with inductor.patch(cpp_wrapper=cpp_wrapper), gemmtune.torch.apply(model, table, fuse=True) as handle:
        assert handle.fused == 2
        with gemmtune.torch.report() as count:
            for one, other in zip(compiled(x), expected, strict=True):
                assert one.shape == other.shape
                assert torch.allclose(one, other, atol=1e-5)
        assert sorted(line.n for line in count.report().lines) == [sum(QKV), sum(GATE_UP)]
    # What is compiled outlives the handle: the weights are apart again.
    with gemmtune.torch.report() as count:
        for one, other in zip(compiled(x), expected, strict=True):
            assert torch.allclose(one, other, atol=1e-5)
    assert count.report().hits == 0


def test_weights_that_were_replaced_are_computed_one_by_one(table: Table) -> None:
    model, x = Block(bias=False), torch.randn(8, 1, K)
    with gemmtune.torch.apply(model, table, fuse=True):
        compiled = torch.compile(model, fullgraph=True)
        compiled(x)
        model.k_proj.weight.data = torch.randn(QKV[1], K)
        expected = [nn.functional.linear(torch.relu(x), one.weight) for one in (model.k_proj, model.v_proj)]
        with gemmtune.torch.report() as count:
            found = compiled(x)
    assert torch.allclose(found[1].transpose(1, 2).flatten(2), expected[0], atol=1e-5)
    assert torch.allclose(found[2], expected[1] + 1, atol=1e-5)
    ran = [line.n for line in count.report().lines for _ in range(line.calls)]
    assert sorted(ran) == [*sorted(QKV), sum(GATE_UP)]


def test_a_bias_that_the_graph_computes_leaves_products_apart(table: Table) -> None:
    model, x = Block(bias=True), torch.randn(8, K)

    def forward(x: Any) -> tuple[Any, ...]:
        q = model.q_proj(x)
        k, v = (
            nn.functional.linear(x, one.weight, one.bias + q.mean()) for one in (model.k_proj, model.v_proj)
        )
        return q, k, v

    expected = forward(x)
    with gemmtune.torch.apply(model, table, fuse=True):
        found = torch.compile(forward, fullgraph=True)(x)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
