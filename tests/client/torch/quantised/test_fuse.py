"""apply(fuse=True) of QuantizedLinear siblings: one product, and each alone where anything differs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import gemmtune.torch
import pytest
import torch
from gemmtune.torch import QuantizedLinear, WeightError
from torch import nn

from tests.client.torch.quantised.conftest import K
from tests.client.torch.quantised.samples import right, sample

if TYPE_CHECKING:
    from gemmtune import Table

#: Outputs of q, k and v, which are together the table's weights.
SIZES = (16, 8, 8)


class Attention(nn.Module):  # type: ignore[misc]
    """Three projections of one input."""

    def __init__(self, zero: str = "eight", bias: bool = False) -> None:
        super().__init__()
        for number, (name, n) in enumerate(zip(("q_proj", "k_proj", "v_proj"), SIZES, strict=True)):
            added = torch.randn(n, dtype=torch.bfloat16) if bias else None
            setattr(self, name, QuantizedLinear(sample(n, K, zero=zero, seed=number), added))

    @property
    def projections(self) -> tuple[Any, ...]:
        return self.q_proj, self.k_proj, self.v_proj

    def forward(self, x: Any) -> tuple[Any, ...]:
        return tuple(one(x) for one in self.projections)


def all_right(model: Attention, x: Any, outputs: tuple[Any, ...]) -> bool:
    pairs = zip(model.projections, outputs, strict=True)
    return all(right(out, x, one.quantized_weight, one.bias) for one, out in pairs)


@pytest.mark.parametrize(
    ("zero", "bias", "m"), [("eight", False, 4), ("eight", True, 3), ("uint4", False, 2)]
)
def test_siblings_are_one_product(weight_table: Table, zero: str, bias: bool, m: int) -> None:
    model = Attention(zero, bias)
    before = [one.scales.clone() for one in model.projections]
    with gemmtune.torch.apply(model, weight_table, fuse=True) as handle, gemmtune.torch.report() as count:
        assert (handle.fused, handle.quantized) == (1, 0)
        storages = {one.weight.untyped_storage().data_ptr() for one in model.projections}
        assert len(storages) == 1
        for _ in range(2):
            x = torch.randn(m, K, dtype=torch.bfloat16)
            assert all_right(model, x, model(x))
    found = count.report()
    assert [(line.m, line.n, line.calls, line.hit) for line in found.lines] == [(m, 32, 2, True)]
    after = [one.scales for one in model.projections]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert len({one.weight.untyped_storage().data_ptr() for one in model.projections}) == 3
    assert all_right(model, x, model(x))


def test_what_differs_computes_alone(weight_table: Table) -> None:
    model = Attention()
    x, y = (torch.randn(4, K, dtype=torch.bfloat16) for _ in range(2))
    with gemmtune.torch.apply(model, weight_table, fuse=True):
        q = model.q_proj(x)
        assert right(model.k_proj(y), y, model.k_proj.quantized_weight)  # another input
        assert right(q, x, model.q_proj.quantized_weight)
        model.q_proj(x)
        x.mul_(2)  # the input changes between two projections
        assert right(model.k_proj(x), x, model.k_proj.quantized_weight)
        model.q_proj(x)
        model.v_proj.scales.mul_(2)  # so do scales
        assert right(model.v_proj(x), x, model.v_proj.quantized_weight)
        model.k_proj.weight = model.k_proj.weight.clone()  # weights that lie elsewhere
        assert all_right(model, x, model(x))
        other = copy.deepcopy(model)
        assert all_right(other, x, other(x))
        nine = torch.randn(9, K, dtype=torch.bfloat16)  # more rows than any row has
        assert all_right(model, nine, model(nine))
        assert [out.shape for out in model(nine[:0])] == [(0, n) for n in SIZES]
        with pytest.raises(WeightError, match="input is"):
            model(nine[:, :-1])
        with pytest.raises(WeightError, match="input is"):
            model(torch.tensor(1.0, dtype=torch.bfloat16))
        grad = torch.randn(4, K, dtype=torch.bfloat16, requires_grad=True)
        model(grad)[1].sum().backward()
        assert grad.grad is not None


def test_siblings_that_differ_are_left_alone(weight_table: Table) -> None:
    model = Attention()
    model.k_proj = QuantizedLinear(sample(8, K, zero="none"))
    other = Attention()
    other.v_proj.scales = other.v_proj.scales.float()
    tied = Attention()
    tied.v_proj = tied.k_proj
    x = torch.randn(4, K, dtype=torch.bfloat16)
    for one in (model, other, tied):
        with gemmtune.torch.apply(one, weight_table, fuse=True) as handle:
            assert handle.fused == 0
            assert all_right(one, x, one(x))


# ---- torch.compile ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("zero", "bias", "m"), [("eight", True, 3), ("uint4", False, 2)])
def test_compiled_siblings_are_one_product(
    weight_table: Table, compiling: None, zero: str, bias: bool, m: int
) -> None:
    model, x = Attention(zero, bias), torch.randn(m, 1, K, dtype=torch.bfloat16)
    with torch.no_grad(), gemmtune.torch.apply(model, weight_table, fuse=True):
        compiled = torch.compile(model, fullgraph=True)
        with gemmtune.torch.report() as count:
            assert all_right(model, x, compiled(x))
        assert [(line.m, line.n, line.calls, line.hit) for line in count.report().lines] == [(m, 32, 1, True)]
        model.k_proj.scales = model.k_proj.scales.clone()  # elsewhere: each computes alone
        with gemmtune.torch.report() as count:
            assert all_right(model, x, compiled(x))
        assert sorted(line.n for line in count.report().lines for _ in range(line.calls)) == [8, 8, 16]
    # What is compiled outlives the handle.
    with torch.no_grad():
        assert all_right(model, x, compiled(x))


def test_compiled_siblings_of_another_m_or_input_compute_alone(weight_table: Table, compiling: None) -> None:
    model = Attention()

    def crossed(x: Any, y: Any) -> tuple[Any, ...]:
        return model.q_proj(x), model.k_proj(y), model.v_proj(x)

    given = torch.randn(9, K, dtype=torch.bfloat16)  # more rows than any row has
    x, y = given[:4], given[4:8]
    with torch.no_grad(), gemmtune.torch.apply(model, weight_table, fuse=True):
        with gemmtune.torch.report() as count:
            assert all_right(model, given, torch.compile(model, fullgraph=True)(given))
            found = torch.compile(crossed, fullgraph=True)(x, y)
        assert sorted({line.n for line in count.report().lines}) == [8, 16]
    for out, rows, one in zip(found, (x, y, x), model.projections, strict=True):
        assert right(out, rows, one.quantized_weight)


def test_rows_that_a_thread_goes_through_stay_as_they_were_in_a_refresh(
    weight_table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What load() of merged weights iterates over, while another thread refreshes the table."""
    model = Attention()
    with gemmtune.torch.apply(model, weight_table, fuse=True) as handle:
        served = handle._served
        before, items = served.weights, iter(served.weights.items())
        next(items)
        monkeypatch.setattr(type(weight_table), "rows", property(lambda _: ()))
        monkeypatch.setattr(type(weight_table), "digest", property(lambda _: "newer"))
        monkeypatch.setattr(type(weight_table), "refresh", lambda _: True)
        assert handle.refresh()
        assert len(list(items)) == len(before) - 1
        assert served.weights == {}
