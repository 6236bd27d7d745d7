"""apply(fuse=True): siblings of one input as one product, never with another input's result."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gemmtune.torch
import pytest
import torch
from torch import nn

from backends.problem import from_linear
from tests.client.torch.close import close
from tests.client.torch.conftest import GATE_UP, QKV, K

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gemmtune import Table


class Attention(nn.Module):  # type: ignore[misc]
    """q, k and v of one input."""

    def __init__(self, bias: bool = True, dtype: Any = torch.float32) -> None:
        super().__init__()
        for name, n in zip(("q_proj", "k_proj", "v_proj"), QKV, strict=True):
            setattr(self, name, nn.Linear(K, n, bias=bias, dtype=dtype))
        self.requires_grad_(False)

    def forward(self, x: Any) -> tuple[Any, Any, Any]:
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)


class Mlp(nn.Module):  # type: ignore[misc]
    """gate and up of one input."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(K, n, bias=False) for n in GATE_UP)
        self.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return nn.functional.silu(self.gate_proj(x)) * self.up_proj(x)


def right(module: Any, x: Any, y: Any) -> bool:
    return close(y, x, module.weight.t(), module.bias)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[int]]]:
    """A function that returns the n of the products that ran since it was called last."""
    with gemmtune.torch.report() as count:

        def ran() -> list[int]:
            lines = count.report().lines
            count._calls.clear()
            return sorted(line.n for line in lines for _ in range(line.calls))

        yield ran


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_siblings_are_one_product(table: Table, products: Any, bias: bool, dtype: Any) -> None:
    model = Attention(bias, dtype)
    x = torch.randn(8, K, dtype=dtype)
    with gemmtune.torch.apply(model, table, fuse=True) as handle:
        assert handle.fused == 1
        outputs = model(x)
        assert products() == [sum(QKV)]
    for module, y in zip((model.q_proj, model.k_proj, model.v_proj), outputs, strict=True):
        assert right(module, x, y)


def test_gate_and_up_are_one_product(table: Table, products: Any) -> None:
    model = Mlp()
    x = torch.randn(2, 4, K)
    expected = model(x)
    with gemmtune.torch.apply(model, table, fuse=True):
        assert torch.allclose(model(x), expected, atol=1e-5)
        assert products() == [sum(GATE_UP)]


def test_disable_restores_every_bit(table: Table) -> None:
    model = Attention()
    before = {name: (one, one.clone()) for name, one in model.named_parameters()}
    with gemmtune.torch.apply(model, table, fuse=True):
        assert list(model.state_dict()) == list(before)
        storages = {one.untyped_storage().data_ptr() for one in model.parameters()}
        assert len(storages) == 2  # of all weights, of all biases
        model.q_proj.weight[0, 0] = 3.0
        before["q_proj.weight"][1][0, 0] = 3.0
        for name, one in model.state_dict().items():
            assert torch.equal(one, before[name][1])
    for name, one in model.named_parameters():
        assert one is before[name][0]
        assert torch.equal(one, before[name][1])
        assert one.untyped_storage().nbytes() == one.numel() * one.element_size()


def test_a_changed_input_is_computed_again(table: Table) -> None:
    model, x = Attention(), torch.randn(8, K)
    with gemmtune.torch.apply(model, table, fuse=True):
        assert right(model.q_proj, x, model.q_proj(x))
        x.add_(1)
        assert right(model.k_proj, x, model.k_proj(x))
        x.data = torch.randn(8, K)
        assert right(model.v_proj, x, model.v_proj(x))
        other = x.clone()
        assert right(model.q_proj, x, model.q_proj(x))
        assert right(model.k_proj, other, model.k_proj(other))
        assert right(model.q_proj, x, model.q_proj(x))
        assert right(model.q_proj, x, model.q_proj(x))


def test_changed_weights_are_seen(table: Table) -> None:
    model, x = Attention(), torch.randn(8, K)
    with gemmtune.torch.apply(model, table, fuse=True):
        model.q_proj(x)
        model.k_proj.weight.mul_(2)
        assert right(model.k_proj, x, model.k_proj(x))
        model.load_state_dict(Attention().state_dict())
        for module in (model.q_proj, model.k_proj, model.v_proj):
            assert right(module, x, module(x))
        model.v_proj.weight.data = torch.randn(QKV[2], K)
        for module in (model.q_proj, model.k_proj, model.v_proj):
            assert right(module, x, module(x))
        model.k_proj.weight = nn.Parameter(torch.randn(QKV[1], K), requires_grad=False)
        for module in (model.q_proj, model.k_proj, model.v_proj):
            assert right(module, x, module(x))
    assert right(model.k_proj, x, model.k_proj(x))


def _add(parameter: Any) -> None:
    parameter.add_(100.0)


def _replace(module: nn.Linear, name: str, value: Any) -> None:
    setattr(module, name, None if value is None else nn.Parameter(value, requires_grad=False))


def _prune(module: nn.Linear) -> None:
    module.weight.data, module.bias.data = module.weight.data[:8], module.bias.data[:8]


CHANGES: dict[str, Callable[[nn.Linear], None]] = {
    "another weight": lambda module: _replace(module, "weight", torch.randn(QKV[1], K)),
    "another bias": lambda module: _replace(module, "bias", torch.full((QKV[1],), 100.0)),
    "no bias": lambda module: _replace(module, "bias", None),
    "a weight changed in place": lambda module: _add(module.weight),
    "a bias changed in place": lambda module: _add(module.bias),
    "pruned": _prune,
}


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_each_change_of_a_parameter_is_seen(table: Table, name: str, between: bool) -> None:
    model, x = Attention(), torch.randn(8, K)
    with gemmtune.torch.apply(model, table, fuse=True) as handle:
        assert handle.fused == 1
        if between:
            model.q_proj(x)  # computes the columns of all
        CHANGES[name](model.k_proj)
        for module in (model.k_proj, model.q_proj, model.v_proj):
            assert right(module, x, module(x))


def test_an_output_may_be_changed_in_place(table: Table, products: Any) -> None:
    model, x, lora = Attention(), torch.randn(8, K), nn.Linear(K, QKV[0])
    with gemmtune.torch.apply(model, table, fuse=True):
        q = model.q_proj(x)
        q += lora(x)
        k, v = model.k_proj(x), model.v_proj(x)
        assert products() == [sum(QKV)]
        assert (q.requires_grad, k.requires_grad, v._version) == (True, False, 0)
        (grad,) = torch.autograd.grad((q.sum() + (k * v).sum()), [lora.bias])
        assert torch.equal(grad, torch.full((QKV[0],), 8.0))
        assert right(model.k_proj, x, k)
        assert right(model.v_proj, x, v)


def test_inputs_that_nobody_shares_end_the_group(table: Table, products: Any) -> None:
    model = Attention(bias=False)
    with gemmtune.torch.apply(model, table, fuse=True):
        for _ in range(5):
            x, y = torch.randn(8, K), torch.randn(8, K)
            assert right(model.q_proj, x, model.q_proj(x))
            assert right(model.k_proj, y, model.k_proj(y))
        products()
        x = torch.randn(8, K)
        model(x)
        assert products() == sorted(QKV)


def test_columns_go_with_their_input(table: Table) -> None:
    import gc
    import weakref

    model = Attention()
    with gemmtune.torch.apply(model, table, fuse=True) as handle:
        x = torch.randn(8, K)
        storage = weakref.ref(model.q_proj(x).untyped_storage())
        held = handle._groups[0]._local.held
        assert held is not None
        assert any(part is not None for part in held.parts)
        del x
        gc.collect()
        assert not held.parts
        del storage


def test_inference_tensors_are_computed_alone(table: Table, products: Any) -> None:
    model = Attention(bias=False)
    with gemmtune.torch.apply(model, table, fuse=True), torch.inference_mode():
        x = torch.randn(8, K)
        model(x)
        assert products() == sorted(QKV)
        x.add_(1)
        assert right(model.k_proj, x, model.k_proj(x))


def test_gradients_are_computed_alone(table: Table) -> None:
    model = Attention(bias=False).requires_grad_()
    x = torch.randn(8, K, requires_grad=True)
    expected = torch.autograd.grad(sum(one.square().sum() for one in model(x)), [x, *model.parameters()])
    with gemmtune.torch.apply(model, table, fuse=True):
        found = torch.autograd.grad(sum(one.square().sum() for one in model(x)), [x, *model.parameters()])
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_copies_have_weights_of_their_own(table: Table) -> None:
    model, x = Attention(), torch.randn(8, K)
    with gemmtune.torch.apply(model, table, fuse=True):
        other = copy.deepcopy(model)
        other.q_proj.weight.mul_(2)
        for one in (model, other, model):
            for module, y in zip((one.q_proj, one.k_proj, one.v_proj), one(x), strict=True):
                assert right(module, x, y)


def test_modules_that_share_parameters_are_left_alone(table: Table) -> None:
    model = Attention(bias=False)
    model.v_proj.weight = model.k_proj.weight
    views = Attention(bias=False)
    views.v_proj.weight = nn.Parameter(views.k_proj.weight.data, requires_grad=False)
    mixed = Attention()
    mixed.k_proj.bias = None
    for one in (model, views, mixed):
        with gemmtune.torch.apply(one, table, fuse=True) as handle:
            assert handle.fused == 0


def test_rows_of_the_siblings_are_used_where_they_are_faster(make_table: Any, products: Any) -> None:
    rows = [from_linear(8, n, K, "fp32") for n in (*sorted(set(QKV)), sum(QKV))]
    table = make_table(rows, seconds={48: 3e-6, 16: 2e-6, sum(QKV): 8e-6})
    model, x = Attention(bias=False), torch.randn(8, K)
    with gemmtune.torch.apply(model, table, fuse=True):
        model(x)
        assert products() == sorted(QKV)


def test_threads_take_their_own_columns(table: Table) -> None:
    model = Attention()
    failures: list[int] = []

    def work(number: int) -> None:
        for _ in range(10):
            x = torch.randn(8, K)
            for module, y in zip((model.q_proj, model.k_proj, model.v_proj), model(x), strict=True):
                if not right(module, x, y):
                    failures.append(number)

    with gemmtune.torch.apply(model, table, fuse=True):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
