"""gemmtune.torch.moe against every token's experts one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gemmtune.torch
import pytest
import torch
from gemmtune.torch import GroupError, moe
from gemmtune.torch.grouped.layer import sorted_rows
from gemmtune.torch.grouped.scaled import quantised
from torch._dynamo.backends.debugging import aot_eager

E, H, INTER, TOKENS, CHOSEN = 5, 48, 32, 7, 2


def layer(dtype: Any = torch.bfloat16) -> tuple[Any, ...]:
    torch.manual_seed(1)
    x = torch.randn(TOKENS, H, dtype=dtype)
    gate_up, down = torch.randn(E, 2 * INTER, H, dtype=dtype) / 8, torch.randn(E, H, INTER, dtype=dtype) / 8
    weights, ids = torch.softmax(torch.randn(TOKENS, E), -1).topk(CHOSEN)
    return x, gate_up, down, weights, ids


def layer8(dtype: Any = torch.bfloat16, kind: Any = torch.float8_e4m3fn) -> tuple[Any, ...]:
    """With 8-bit weights, whose scales are of partial blocks too."""
    torch.manual_seed(3)
    hidden, inter = 272, 144
    x = torch.randn(TOKENS, hidden, dtype=dtype)
    x[:, 128:256] *= 100.0
    gate_up, down = (torch.randn(E, n, k).to(kind) for n, k in ((2 * inter, hidden), (hidden, inter)))
    of_gate_up, of_down = torch.rand(E, 3, 3) / 100 + 0.001, torch.rand(E, 3, 2) / 20
    weights, ids = torch.softmax(torch.randn(TOKENS, E), -1).topk(CHOSEN)
    return x, gate_up, down, weights, ids, of_gate_up, of_down


def wide(weight: Any, scale: Any) -> Any:
    """Weights by their scales, exactly."""
    of = scale.double().repeat_interleave(128, 1).repeat_interleave(128, 2)
    return weight.double() * of[:, : weight.shape[1], : weight.shape[2]]


def dequantised(x: Any, kind: Any = torch.float8_e4m3fn) -> Any:
    """Rows as they are after they were quantised by blocks."""
    q, scales = quantised(x.float(), kind)
    return q.double() * scales.double().repeat_interleave(128, 1)[:, : x.shape[1]]


def close8(out: Any, given: tuple[Any, ...]) -> bool:
    """Near the exact layer, and nearer to that whose rows are quantised."""
    x, gate_up, down, weights, ids, *scales = given
    both = wide(gate_up, scales[0]), wide(down, scales[1])
    exact = expected(x, *both, weights, ids)
    like = expected(
        dequantised(x, gate_up.dtype), *both, weights, ids, partial(dequantised, kind=gate_up.dtype)
    )
    off = (out.double() - exact).norm() / exact.norm(), (out.double() - like).norm() / like.norm()
    return bool(off[0] < 0.05 and off[1] < 0.015)


def silu_mul(hidden: Any) -> Any:
    gate, up = hidden.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def swigluoai(hidden: Any, limit: float = 7.0) -> Any:
    """gpt-oss's activation of columns that take turns."""
    gate, up = hidden[..., ::2], hidden[..., 1::2]
    gate, up = torch.minimum(gate, torch.tensor(limit)), torch.clip(up, -limit, limit)
    return (up + 1) * gate / (1 + torch.exp(-1.702 * gate))


def expected(
    x: Any, gate_up: Any, down: Any, weights: Any, ids: Any, between: Callable[[Any], Any] | None = None, *,
    biases: tuple[Any, Any] = (0.0, 0.0), gated: Callable[[Any], Any] = silu_mul,
) -> Any:  # fmt: skip
    """In float64; `between` is done to the activation."""
    experts = len(gate_up)
    out = torch.zeros(x.shape, dtype=torch.float64)
    of_gate_up, of_down = (
        one.double() if isinstance(one, torch.Tensor) else torch.zeros(experts, 1, dtype=torch.float64)
        for one in biases
    )
    for token, (row, scales, chosen) in enumerate(
        zip(x.double(), weights.double(), ids.tolist(), strict=True)
    ):
        for scale, one in zip(scales, chosen, strict=True):
            if 0 <= one < experts:
                hidden = gated(gate_up[one].double() @ row + of_gate_up[one])
                hidden = hidden if between is None else between(hidden[None])[0]
                out[token] += scale * (down[one].double() @ hidden + of_down[one])
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

    def undefined(x: Any, weight: Any, ends: Any, activation: str = "none") -> Any:
        beyond = torch.arange(len(x)) >= ends[-1]
        return plain(x, weight, ends, activation).masked_fill(beyond[:, None], float("nan"))

    monkeypatch.setattr("gemmtune.torch.grouped.steps.grouped_mm", undefined)
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


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e4m3fnuz])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_8_bit_weights(dtype: Any, kind: Any) -> None:
    given = layer8(dtype, kind)
    ids = given[4]
    ids[0], ids[1, 0] = -1, E
    out = moe(*given)
    assert (out.shape, out.dtype) == (given[0].shape, dtype)
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert close8(out, given)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e4m3fnuz])
def test_quantised_rows_are_within_their_bound(kind: Any) -> None:
    torch.manual_seed(4)
    x = torch.randn(50, 300) * 10.0 ** torch.randint(-8, 8, (50, 300))
    x[3] = 0.0
    q, scales = quantised(x, kind)
    assert (q.shape, q.dtype, scales.shape) == (x.shape, kind, (50, 3))
    most = torch.nn.functional.pad(x, (0, 84)).view(50, 3, 128).abs().amax(-1)
    most = most.repeat_interleave(128, 1)[:, :300]
    each = scales.double().repeat_interleave(128, 1)[:, :300]
    bound = torch.maximum(x.abs() / 16, most * 2**-18)
    assert ((q.double() * each - x.double()).abs() <= bound.double() * (1 + 1e-6)).all()
    assert torch.equal(q[3].float(), torch.zeros(300))


def test_what_is_refused_of_8_bit_weights() -> None:
    x, gate_up, down, weights, ids, of_gate_up, of_down = layer8()
    for given, text in (
        ((x, gate_up, down, weights, ids), "gate_up is torch.float8_e4m3fn without gate_up_scale"),
        ((x, gate_up, down, weights, ids, of_gate_up), "without down_scale, fp32 [5, 3, 2]"),
        ((x, gate_up, down, weights, ids, of_gate_up[:, :1], of_down), "it must be [5, 3, 3]"),
        ((x, gate_up, down, weights, ids, of_gate_up, of_down.half()), "of torch.float16"),
        ((x, gate_up.half(), down.half(), weights, ids, of_gate_up, of_down), "weights with scales are both"),
        ((x, gate_up, down.half(), weights, ids, of_gate_up, of_down), "weights with scales are both"),
        (
            (x, gate_up, down.float().to(torch.float8_e4m3fnuz), weights, ids, of_gate_up, of_down),
            "torch.float8_e4m3fn or both torch.float8_e4m3fnuz",
        ),
        ((x.double(), gate_up, down, weights, ids, of_gate_up, of_down), "x is torch.float64"),
        ((x[:, :8], gate_up, down, weights, ids, of_gate_up, of_down), "hidden the same in all"),
        ((x, gate_up, down, weights, ids.to("meta"), of_gate_up, of_down), "on cpu, meta"),
    ):
        with pytest.raises(GroupError) as caught:
            moe(*given)
        assert text in str(caught.value)
    x.requires_grad_()
    with pytest.raises(GroupError, match="need a gradient"):
        moe(x, gate_up, down, weights, ids, of_gate_up, of_down)
    with torch.no_grad():
        assert moe(x, gate_up, down, weights, ids, of_gate_up, of_down).shape == x.shape


def test_what_is_refused() -> None:
    x, gate_up, down, weights, ids = layer()
    for given, text in (
        ((x, gate_up, down, weights, ids[:, :1]), "must be one shape"),
        ((x, gate_up, down, weights, weights), "whole numbers"),
        ((x, gate_up, down, weights, ids > 0), "of torch.bool; they must be one shape"),
        ((x, gate_up, down, weights, ids.to(torch.complex64)), "of torch.complex64; they must be one shape"),
        ((x[0, 0], gate_up, down, weights, ids), "one shape"),
        ((x, gate_up, down[:, :, :8], weights, ids), "[experts, hidden, intermediate]"),
    ):
        with pytest.raises(GroupError) as caught:
            moe(*given)
        assert text in str(caught.value)


def test_ids_of_no_expert_are_counted_while_a_report_watches() -> None:
    """A negative id says that its expert lies elsewhere; one beyond the experts may be a mistake."""
    x, gate_up, down, weights, ids = layer()
    ids[0, 0], ids[1, 1], ids[2, 0] = -1, E, E + 7
    with gemmtune.torch.report() as count:
        moe(x, gate_up, down, weights, ids)
        assert count.report().foreign_ids == 2
        assert "2 ids named no expert of their layer" in str(count.report())
        moe(x, gate_up, down, weights, ids.clamp(0, E - 1))
        assert count.report().foreign_ids == 2
    moe(x, gate_up, down, weights, ids)  # nobody watches
    with gemmtune.torch.report() as another:
        assert another.report().foreign_ids == 0
