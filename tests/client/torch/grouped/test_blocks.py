"""gemmtune.torch.moe of 8-bit experts with scales of blocks, against exact numbers and a bound of each of its
roundings; activations as 8-bit floats."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gemmtune.torch import GroupError, moe
from gemmtune.torch.grouped import blocks
from gemmtune.torch.grouped.scaled import TYPE
from torch._dynamo.backends.debugging import aot_eager

#: Partial blocks along every size.
E, H, INTER, TOKENS, CHOSEN = 5, 272, 144, 7, 2
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-22}


def layer(dtype: Any = torch.bfloat16) -> tuple[Any, ...]:
    torch.manual_seed(1)
    x = torch.randn(TOKENS, H, dtype=dtype) * torch.logspace(-1, 1, TOKENS)[:, None].to(dtype)
    x[3, :140] = 0.0
    gate_up, down = torch.randn(E, 2 * INTER, H).to(TYPE), torch.randn(E, H, INTER).to(TYPE)
    weights, ids = torch.softmax(torch.randn(TOKENS, E), -1).topk(CHOSEN)
    ids[0], ids[1, 0] = -1, E
    of_gate_up = (torch.rand(E, 3, 3) + 0.5) / 16
    of_down = (torch.rand(E, 3, 2) + 0.5) / 12
    return x, gate_up, down, weights, ids, of_gate_up, of_down


def whole(weight: Any, scales: Any) -> Any:
    """Weights in fp64."""
    _, n, k = weight.shape
    every = scales.double().repeat_interleave(128, 1)[:, :n].repeat_interleave(128, 2)[:, :, :k]
    return weight.double() * every


def rounded(values: Any, error: Any) -> Any:
    """What is lost when values that are off by `error` become e4m3 with a scale for 128 of them: half a unit
    of 3 bits, or of the smallest number."""
    large = values.abs() + error
    padded = torch.nn.functional.pad(large, (0, -len(large) % 128)).view(-1, 128)
    smallest = (padded.amax(-1) / 448).repeat_interleave(128)[: len(large)] * 2**-10
    return torch.maximum(large / 16, smallest)


def expected(given: tuple[Any, ...]) -> tuple[Any, Any]:
    """The layer in fp64, and the most that each element may be off: every rounding's error carried through
    what follows. silu'(z) is at most 1.1."""
    x, gate_up, down, weights, ids, of_gate_up, of_down = given
    first, last, unit = whole(gate_up, of_gate_up), whole(down, of_down), ROUNDING[x.dtype]
    out, bound = torch.zeros(len(x), H, dtype=torch.float64), torch.zeros(len(x), H, dtype=torch.float64)
    for token, row in enumerate(x.double()):
        of_row = rounded(row, torch.zeros_like(row))
        for scale, one in zip(weights[token].double(), ids[token].tolist(), strict=True):
            if not 0 <= one < E:
                continue
            both, of_both = first[one] @ row, first[one].abs() @ of_row
            of_both += unit * (both.abs() + of_both) + 1e-5 * (first[one].abs() @ row.abs())
            (gate, up), (of_gate, of_up) = both.chunk(2), of_both.chunk(2)
            silu = torch.nn.functional.silu(gate)
            error = 1.1 * of_gate * (up.abs() + of_up) + silu.abs() * of_up
            error = error + rounded(silu * up, error)
            found, of_found = last[one] @ (silu * up), last[one].abs() @ error
            of_found += unit * (found.abs() + of_found)
            out[token] += scale * found
            bound[token] += scale * of_found
    return out, bound + 2 * unit * (out.abs() + bound)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_layer_is_within_its_roundings(dtype: Any) -> None:
    """And far within them on the average."""
    given = layer(dtype)
    found = moe(*given)
    exact, bound = expected(given)
    assert (found.shape, found.dtype) == ((TOKENS, H), dtype)
    assert torch.equal(found[0], torch.zeros(H, dtype=dtype)), "a token without experts"
    error = (found.double() - exact).abs()
    assert bool((error <= bound).all())
    assert error.square().mean().sqrt() < 0.06 * exact.square().mean().sqrt()


def test_it_compiles_in_one_graph() -> None:
    given = layer()
    out = torch.compile(moe, backend=aot_eager, fullgraph=True)(*given)
    assert torch.equal(out, moe(*given))


def test_activations_have_a_scale_for_128() -> None:
    x = torch.tensor([[1.0, -3.5] * 64 + [0.0] * 128 + [1e-31, 900.0]], dtype=torch.float32)
    found, scales = blocks.in_blocks(x)
    assert scales.tolist() == [[3.5 / 448, 1.0, pytest.approx(900 / 448)]]
    assert found.float()[0, [0, 1, 128, 256, 257]].tolist() == [128.0, -448.0, 0.0, 0.0, 448.0]
    found, scales = blocks.in_blocks(torch.zeros(2, 40, dtype=torch.bfloat16))
    assert (found.float().abs().max(), scales.tolist()) == (0.0, [[1.0], [1.0]])


def test_which_gpus_have_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "TRITON", True)
    monkeypatch.setattr(torch.version, "hip", None)
    for capability, known in (((8, 6), False), ((8, 9), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert blocks.has_kernels(torch.device("cuda")) is known
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert not blocks.has_kernels(torch.device("cuda"))


def test_what_is_refused() -> None:
    x, gate_up, down, weights, ids, of_gate_up, of_down = layer()
    for given, text in (
        ((x, gate_up, down, weights, ids, of_gate_up), "down_scale is not given"),
        ((x, gate_up, down, weights, ids, None, of_down), "gate_up_scale is not given"),
        ((x, gate_up, down, weights, ids, of_gate_up[:, :2], of_down), "gate_up_scale is [5, 2, 3]; for blo"),
        ((x, gate_up, down, weights, ids, of_gate_up, of_down[:4]), "it is [5, 3, 2]"),
        ((x, gate_up.half(), down, weights, ids, of_gate_up, of_down), "gate_up is torch.float16"),
        ((x[:, :9], gate_up, down, weights, ids, of_gate_up, of_down), "must be [tokens, 272]"),
        ((x, gate_up, down, weights, ids, of_gate_up.half(), of_down), "scale_w is torch.float16"),
        ((x, gate_up, down, weights, ids), "of one type"),
    ):
        with pytest.raises(GroupError) as caught:
            moe(*given)
        assert text in str(caught.value)


@pytest.mark.cuda
@pytest.mark.parametrize("tokens", [1, 600])
def test_on_a_gpu(tokens: int) -> None:
    """Gathered rows are the same bits as torch's; SiLU's now and then the next number."""
    torch.manual_seed(tokens)
    x = torch.randn(tokens, H, device="cuda", dtype=torch.bfloat16)
    rows = torch.arange(tokens, device="cuda").repeat(3)
    ends = torch.tensor([0, 3 * tokens], dtype=torch.int32, device="cuda")
    if not blocks.has_kernels(x.device):
        pytest.skip("the GPU has no e4m3")
    found, scales = blocks.gather_by_kernel(x, rows, ends)
    expected_rows, of_rows = blocks.gather_by_torch(x, rows, ends)
    assert torch.equal(found.view(torch.uint8), expected_rows.view(torch.uint8))
    assert torch.equal(scales, of_rows)
    both = torch.randn(3 * tokens, 2 * INTER, device="cuda", dtype=torch.bfloat16) * 4
    found, scales = blocks.silu_by_kernel(both, ends)
    wanted, of_wanted = blocks.silu_by_torch(both, ends)
    assert (found.float() != wanted.float()).float().mean() < 0.005
    assert torch.allclose(scales, of_wanted, rtol=1e-5)
