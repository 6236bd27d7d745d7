"""gemmtune.torch.moe against every token's experts one by one."""

from __future__ import annotations

from typing import Any

import gemmtune.torch
import pytest
import torch
from gemmtune.torch import GroupError, moe
from gemmtune.torch.grouped.layer import sorted_rows
from torch._dynamo.backends.debugging import aot_eager

E, H, INTER, TOKENS, CHOSEN = 5, 48, 32, 7, 2


def layer(dtype: Any = torch.bfloat16) -> tuple[Any, ...]:
    torch.manual_seed(1)
    x = torch.randn(TOKENS, H, dtype=dtype)
    gate_up, down = torch.randn(E, 2 * INTER, H, dtype=dtype) / 8, torch.randn(E, H, INTER, dtype=dtype) / 8
    weights, ids = torch.softmax(torch.randn(TOKENS, E), -1).topk(CHOSEN)
    return x, gate_up, down, weights, ids


def expected(x: Any, gate_up: Any, down: Any, weights: Any, ids: Any) -> Any:
    out = torch.zeros(len(x), H, dtype=torch.float64)
    for token, (row, scales, chosen) in enumerate(
        zip(x.double(), weights.double(), ids.tolist(), strict=True)
    ):
        for scale, one in zip(scales, chosen, strict=True):
            if 0 <= one < E:
                gate, up = (gate_up[one].double() @ row).chunk(2)
                out[token] += scale * (down[one].double() @ (torch.nn.functional.silu(gate) * up))
    return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_token_gets_its_experts(dtype: Any) -> None:
    given = layer(dtype)
    out = moe(*given)
    assert (out.shape, out.dtype) == ((TOKENS, H), dtype)
    assert torch.allclose(out.double(), expected(*given), rtol=0.02, atol=0.02)


def test_experts_of_other_devices_add_nothing() -> None:
    x, gate_up, down, weights, ids = layer()
    ids = ids.to(torch.int32)
    ids[0], ids[1, 0], ids[2, 1] = -1, E, -7
    found = moe(x, gate_up, down, weights, ids)
    assert torch.equal(found[0], torch.zeros(H, dtype=x.dtype))
    assert torch.allclose(found.double(), expected(x, gate_up, down, weights, ids), rtol=0.02, atol=0.02)


def test_rows_of_no_expert_have_no_gradients() -> None:
    x, gate_up, down, weights, ids = layer()
    ids[0], ids[1, 0] = -1, -1
    given = [one.requires_grad_() for one in (x, gate_up, down)]
    moe(x, gate_up, down, weights, ids).float().sum().backward()
    wanted = [one.detach().double().requires_grad_() for one in given]
    expected(wanted[0], wanted[1], wanted[2], weights, ids).sum().backward()
    for one, want in zip(given, wanted, strict=True):
        assert torch.allclose(one.grad.double(), want.grad, rtol=0.05, atol=0.1)
    assert torch.equal(x.grad[0], torch.zeros(H, dtype=x.dtype))


def test_a_row_of_no_expert_that_is_nan_leaves_gradients_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows beyond the last end are undefined."""
    plain = gemmtune.torch.grouped_mm

    def undefined(x: Any, weight: Any, ends: Any) -> Any:
        beyond = torch.arange(len(x)) >= ends[-1]
        return plain(x, weight, ends).masked_fill(beyond[:, None], float("nan"))

    monkeypatch.setattr("gemmtune.torch.grouped.layer.grouped_mm", undefined)
    x, gate_up, down, weights, ids = layer()
    ids[0] = -1
    weights.requires_grad_()
    moe(x, gate_up, down, weights, ids).float().sum().backward()
    assert torch.equal(weights.grad[0], torch.zeros(CHOSEN))
    assert weights.grad.isfinite().all()


def test_one_expert_twice_and_experts_without_tokens() -> None:
    x, gate_up, down, weights, ids = layer()
    ids = torch.full_like(ids, 3)
    assert torch.allclose(
        moe(x, gate_up, down, weights, ids).double(),
        expected(x, gate_up, down, weights, ids),
        rtol=0.02,
        atol=0.02,
    )


def test_rows_are_sorted_by_expert() -> None:
    ids = torch.tensor([[3, 0], [0, 4], [-1, 3]])
    rows, ends, place, here = sorted_rows(ids, 5)
    assert rows.tolist() == [0, 1, 0, 2, 1, 2]
    assert (ends.tolist(), ends.dtype) == ([2, 2, 2, 4, 5], torch.int32)
    assert place.tolist() == [[2, 0], [1, 4], [5, 3]]
    assert here.tolist() == [[True, True], [True, True], [False, True]]


def test_it_compiles_in_one_graph_and_differentiates() -> None:
    x, gate_up, down, weights, ids = layer()
    for one in (x, gate_up, down):
        one.requires_grad_()
    out = torch.compile(moe, backend=aot_eager, fullgraph=True)(x, gate_up, down, weights, ids)
    out.float().sum().backward()
    got = x.grad
    wanted = [one.detach().double().requires_grad_() for one in (x, gate_up, down)]
    expected(wanted[0], wanted[1], wanted[2], weights, ids).sum().backward()
    assert torch.allclose(got.double(), wanted[0].grad, rtol=0.05, atol=0.1)


def test_what_is_refused() -> None:
    x, gate_up, down, weights, ids = layer()
    for given, text in (
        ((x, gate_up, down, weights, ids[:, :1]), "must be one shape"),
        ((x, gate_up, down, weights, weights), "whole numbers"),
        ((x, gate_up, down[:, :, :8], weights, ids), "[experts, hidden, intermediate]"),
    ):
        with pytest.raises(GroupError) as caught:
            moe(*given)
        assert text in str(caught.value)
