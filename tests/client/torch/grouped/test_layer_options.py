"""gemmtune.torch.moe with biases, gpt-oss's activation and weights of 4 bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import gemmtune
import gemmtune.torch
import pytest
import torch
from gemmtune.torch import GroupError, QuantizedExperts, experts_from_gpt_oss, grouped_mm, quantize_experts
from torch._dynamo.backends.debugging import aot_eager

from backends.problem import GemmProblem
from tests.backends.weight_samples import mxfp4
from tests.client.torch.grouped.test_layer import (
    INTER,
    E,
    H,
    dequantised,
    expected,
    layer,
    layer8,
    silu_mul,
    swigluoai,
    wide,
)

if TYPE_CHECKING:
    from gemmtune import Table

#: mypy takes options of a dict for any parameter.
moe: Any = gemmtune.torch.moe
#: Sizes that groups of 32 divide.
HIDDEN, INTERMEDIATE, TOKENS, CHOSEN = 64, 96, 6, 2
FORMS = ("mxfp4", "uint4", "eight")
OSS: dict[str, Any] = {"activation": "swigluoai", "interleaved": True}


def biases(dtype: Any = torch.bfloat16, hidden: int = H, inter: int = INTER) -> dict[str, Any]:
    random = torch.Generator().manual_seed(8)
    return {
        f"{name}_bias": torch.randn((E, size), generator=random).to(dtype)
        for name, size in (("gate_up", 2 * inter), ("down", hidden))
    }


def layer4(form: str = "mxfp4", dtype: Any = torch.bfloat16, tokens: int = TOKENS) -> tuple[Any, ...]:
    """With 4-bit weights."""
    random = torch.Generator().manual_seed(5)

    def quantised(n: int, k: int) -> QuantizedExperts:
        floats = torch.randn((E, n, k), generator=random) / 8
        if form == "mxfp4":
            return quantize_experts(floats, form="mxfp4")
        return quantize_experts(floats.bfloat16(), group_size=32, symmetric=form == "eight")

    gate_up, down = quantised(2 * INTERMEDIATE, HIDDEN), quantised(HIDDEN, INTERMEDIATE)
    x = 2 * torch.randn((tokens, HIDDEN), generator=random)
    weights, ids = torch.randn((tokens, E), generator=random).softmax(-1).topk(CHOSEN)
    return x.to(dtype), gate_up, down, weights, ids


def exact(given: tuple[Any, ...], **more: Any) -> Any:
    """The layer of the dequantised weights in float64."""
    x, gate_up, down, weights, ids = given
    both = gate_up.dequantize(torch.float64), down.dequantize(torch.float64)
    return expected(x, both[0], both[1], weights, ids, **more)


def near(out: Any, wanted: Any, most: float = 0.01) -> bool:
    return bool((out.double() - wanted).norm() <= most * wanted.norm())


# ---- biases and the activation -------------------------------------------------------------------


@pytest.mark.parametrize("of_bias", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_expert_has_its_biases(dtype: Any, of_bias: Any) -> None:
    given, added = layer(dtype), biases(of_bias)
    given[4][0], given[4][1, 0] = -1, E
    out, both = moe(*given, **added), tuple(added.values())
    assert out.dtype is dtype
    assert torch.equal(out[0], torch.zeros_like(out[0])), "an expert that lies elsewhere adds its bias there"
    assert near(out, expected(*given, biases=both))
    for name, alone in zip(added, ((both[0], 0.0), (0.0, both[1])), strict=True):
        assert near(moe(*given, **{name: added[name]}), expected(*given, biases=alone))


@pytest.mark.parametrize("limit", [7.0, 0.5])
def test_gpt_oss_activation(limit: float) -> None:
    x, *rest = layer()
    given, added = (8 * x, *rest), biases()
    out = moe(*given, **added, **OSS, swiglu_limit=limit)
    gated = partial(swigluoai, limit=limit)
    assert near(out, expected(*given, biases=tuple(added.values()), gated=gated))
    # Halves instead of turns: the same weights in another order.
    turned = torch.cat([given[1][:, ::2], given[1][:, 1::2]], 1)
    of_turned = torch.cat([added["gate_up_bias"][:, ::2], added["gate_up_bias"][:, 1::2]], 1)
    found = moe(
        given[0], turned, *given[2:], gate_up_bias=of_turned, down_bias=added["down_bias"],
        activation="swigluoai", swiglu_limit=limit,
    )  # fmt: skip
    assert near(found, out.double(), 1e-3)
    if limit == 7.0:
        assert torch.equal(out, moe(*given, **added, **OSS)), "the limit that is left out is gpt-oss's"


def test_the_activation_is_rounded_once() -> None:
    """down is the identity."""
    torch.manual_seed(4)
    x, gate_up = torch.randn(TOKENS, H).bfloat16(), torch.randn(1, 2 * H, H).bfloat16() / 4
    down, ones = torch.eye(H, dtype=torch.bfloat16)[None], torch.ones(TOKENS, 1)
    ids, bias = torch.zeros(TOKENS, 1, dtype=torch.int64), torch.randn(1, 2 * H)
    hidden = grouped_mm(x, gate_up, torch.tensor([TOKENS], dtype=torch.int32)).double()
    for of_bias, options, gated in ((None, OSS, swigluoai), (bias, OSS, swigluoai), (bias, {}, silu_mul)):
        out = moe(x, gate_up, down, ones, ids, gate_up_bias=of_bias, **options)
        wanted = gated(hidden if of_bias is None else hidden + bias.double())
        assert torch.allclose(out.double(), wanted, rtol=2**-8, atol=1e-5)


def test_gradients_of_biases_and_through_the_activation() -> None:
    x, gate_up, down, weights, ids = layer()
    ids[0], ids[1, 0] = -1, E
    added = biases()
    given = [one.requires_grad_() for one in (x, gate_up, down, weights, *added.values())]
    moe(x, gate_up, down, weights, ids, **added, **OSS).float().sum().backward()
    wide = [one.detach().double().requires_grad_() for one in given]
    both = wide[4], wide[5]
    expected(wide[0], wide[1], wide[2], wide[3], ids, biases=both, gated=swigluoai).sum().backward()
    for one, want in zip(given, wide, strict=True):
        assert near(one.grad, want.grad, 0.02)


@pytest.mark.parametrize("options", [{}, OSS], ids=["silu", "swigluoai"])
def test_8_bit_weights_have_biases(options: dict[str, Any]) -> None:
    x, gate_up, down, weights, ids, *scales = given = layer8()
    added = biases(hidden=272, inter=144)
    out = moe(*given, **added, **options)
    both = wide(gate_up, scales[0]), wide(down, scales[1])
    gated = swigluoai if options else silu_mul
    wanted = expected(
        dequantised(x), both[0], both[1], weights, ids, dequantised, biases=tuple(added.values()), gated=gated
    )  # fmt: skip
    assert near(out, wanted, 0.02)


def test_8_bit_weights_have_no_gradients_of_biases() -> None:
    added = biases(torch.float32, hidden=272, inter=144)
    added["gate_up_bias"].requires_grad_()
    refused("none of for 8-bit weights: call it under", *layer8(), **added)


# ---- 4-bit weights -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS)
def test_4_bit_weights(form: str, dtype: Any) -> None:
    given = layer4(form, dtype)
    given[4][0], given[4][1, 0] = -1, E
    out = moe(*given)
    assert (out.shape, out.dtype) == (given[0].shape, dtype)
    assert torch.equal(out[0], torch.zeros_like(out[0]))
    assert near(out, exact(given))
    assert moe(given[0][:0], *given[1:3], given[3][:0], given[4][:0]).shape == (0, HIDDEN)


def test_forms_may_differ() -> None:
    given = layer4("uint4")[:2] + layer4("mxfp4")[2:]
    assert near(moe(*given), exact(given))


def problems() -> Iterator[tuple[GemmProblem, str]]:
    """What the table has rows for, and the family of each: both products of a layer."""
    rows = TOKENS * CHOSEN
    yield mxfp4(rows, 2 * INTERMEDIATE, HIDDEN, groups=E), "grouped-ring"
    yield mxfp4(rows, HIDDEN, INTERMEDIATE, groups=E), "grouped-ring"


@pytest.mark.parametrize("tokens", [TOKENS, 2])
def test_rows_of_a_table_run_both_products(table: Table, tokens: int) -> None:
    given, added = layer4(tokens=tokens), biases(hidden=HIDDEN, inter=INTERMEDIATE)
    given[4][0, 0] = -1
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        out = moe(*given, **added, **OSS)
    found = count.report()
    assert (found.hits, found.misses, found.wrong_ends) == (2, 0, 0), found
    assert near(out, exact(given, biases=tuple(added.values()), gated=swigluoai))


def test_it_compiles_in_one_graph(table: Table) -> None:
    given, added = layer4(), biases(hidden=HIDDEN, inter=INTERMEDIATE)
    compiled = torch.compile(moe, backend=aot_eager, fullgraph=True)
    with gemmtune.torch.enable(table), gemmtune.torch.report() as count:
        out = compiled(*given, **added, **OSS)
    assert (count.report().hits, count.report().misses) == (2, 0)
    assert near(out, exact(given, biases=tuple(added.values()), gated=swigluoai))


# ---- gpt-oss's tensors ---------------------------------------------------------------------------

PREFIX = "model.layers.3.mlp.experts."


def stored(prefix: str = PREFIX) -> dict[str, Any]:
    """A layer's tensors as its checkpoints have them."""
    random = torch.Generator().manual_seed(9)
    found = {}
    for name, n, k in (("gate_up_proj", 2 * INTERMEDIATE, HIDDEN), ("down_proj", HIDDEN, INTERMEDIATE)):
        shape = (E, n, k // 32)
        found[f"{prefix}{name}_blocks"] = torch.randint(0, 256, (*shape, 16), generator=random).byte()
        found[f"{prefix}{name}_scales"] = torch.randint(120, 124, shape, generator=random).byte()
        found[f"{prefix}{name}_bias"] = torch.randn((E, n), generator=random).bfloat16()
    return found


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def numbers(blocks: Any, scales: Any) -> Any:
    """What MXFP4 stands for, by its definition, in float64."""
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).int()
    values = E2M1.double()[codes & 7] * torch.where(codes > 7, -1.0, 1.0)
    return (values * torch.exp2(scales.double() - 127)[..., None]).flatten(-2)


def test_gpt_oss_tensors_are_read_exactly() -> None:
    tensors = stored()
    found = experts_from_gpt_oss(tensors, PREFIX)
    assert found["gate_up"].data.data_ptr() == tensors[f"{PREFIX}gate_up_proj_blocks"].data_ptr()
    x, _, _, weights, ids = layer4()
    gate_up, down = (
        numbers(tensors[f"{PREFIX}{name}_blocks"], tensors[f"{PREFIX}{name}_scales"])
        for name in ("gate_up_proj", "down_proj")
    )
    added = tuple(tensors[f"{PREFIX}{name}_bias"] for name in ("gate_up_proj", "down_proj"))
    out = moe(x, weights=weights, ids=ids, **found)
    assert near(out, expected(x, gate_up, down, weights, ids, biases=added, gated=swigluoai))
    low = moe(x, weights=weights, ids=ids, **experts_from_gpt_oss(tensors, PREFIX, swiglu_limit=0.25))
    gated = partial(swigluoai, limit=0.25)
    assert near(low, expected(x, gate_up, down, weights, ids, biases=added, gated=gated))


def test_what_is_refused_of_gpt_oss_tensors() -> None:
    good = stored("")

    def refused(text: str, **changed: Any) -> None:
        tensors = {name: one for name, one in {**good, **changed}.items() if one is not None}
        with pytest.raises(gemmtune.torch.WeightError) as caught:
            experts_from_gpt_oss(tensors)
        assert text in str(caught.value)

    blocks, scales, bias = (good[f"gate_up_proj_{name}"] for name in ("blocks", "scales", "bias"))
    refused("there is no down_proj_scales", down_proj_scales=None)
    refused("there is no gate_up_proj_bias", gate_up_proj_bias=None)
    refused(
        "gate_up_proj is [5, 64, 192] of torch.bfloat16: the checkpoint was dequantised",
        gate_up_proj_blocks=None, gate_up_proj=torch.zeros(E, HIDDEN, 192, dtype=torch.bfloat16),
    )  # fmt: skip
    refused("gate_up_proj: blocks is [5, 192, 32]", gate_up_proj_blocks=blocks.flatten(2))
    refused("gate_up_proj: scales is [5, 192, 1]", gate_up_proj_scales=scales[..., :1])
    refused("gate_up_proj_bias is [192, 5]", gate_up_proj_bias=bias.t())
    refused("of torch.int64", gate_up_proj_bias=bias.long())
    nan = scales.clone()
    nan[1, 2, 0] = 255
    refused("gate_up_proj: scales[2, 0] is 255", gate_up_proj_scales=nan)
    few = {f"down_proj_{name}": good[f"down_proj_{name}"][:4] for name in ("blocks", "scales", "bias")}
    refused("gate_up_proj has 5 experts, and down_proj 4", **few)
    for rows, text in (
        (191, "has 191 rows"),
        (190, "gate_up_proj is [5, 190, 64] and down_proj [5, 64, 96]"),
    ):
        parts = {"blocks": blocks, "scales": scales, "bias": bias}
        refused(text, **{f"gate_up_proj_{name}": one[:, :rows] for name, one in parts.items()})
    with pytest.raises(gemmtune.torch.WeightError, match="Is prefix right"):
        experts_from_gpt_oss(good, PREFIX)
    for limit in (0.0, -7.0, float("nan")):
        with pytest.raises(gemmtune.torch.WeightError, match="must be positive"):
            experts_from_gpt_oss(good, swiglu_limit=limit)


# ---- what moe() refuses --------------------------------------------------------------------------


def refused(text: str, *given: Any, **options: Any) -> None:
    with pytest.raises(GroupError) as caught:
        moe(*given, **options)
    assert text in str(caught.value)


def test_biases_that_are_refused() -> None:
    given, added = layer(), biases()
    bias = added["gate_up_bias"]
    for wrong, text in (
        (bias[:, :INTER], "gate_up_bias is [5, 32] of torch.bfloat16 on cpu; it must be [5, 64]"),
        (bias[:4], "gate_up_bias is [4, 64]"),
        (bias.long(), "of torch.int64"),
        (bias.to("meta"), "on meta"),
    ):
        refused(text, *given, gate_up_bias=wrong)
    refused("down_bias is [5, 64]", *given, down_bias=bias)


def test_activations_that_are_refused() -> None:
    given = layer()
    refused("activation is 'gelu'; it must be one of silu, swigluoai", *given, activation="gelu")
    refused("swiglu_limit is 7.0, and silu has no limit", *given, swiglu_limit=7.0)
    for limit in (0.0, -1.0, float("nan")):
        refused(f"swiglu_limit is {limit}; it must be positive", *given, **OSS, swiglu_limit=limit)
    x, gate_up, *rest = given
    refused("gate_up is [5, 63, 48]", x, gate_up[:, :63], *rest, **OSS)


def test_4_bit_weights_that_are_refused() -> None:
    x, gate_up, down, weights, ids = layer4()
    floats = gate_up.dequantize(torch.bfloat16), down.dequantize(torch.bfloat16)
    scale = torch.ones(E, 2, 1)
    refused("down is torch.bfloat16, and gate_up is QuantizedExperts", x, gate_up, floats[1], weights, ids)
    refused("gate_up is torch.bfloat16, and down is QuantizedExperts", x, floats[0], down, weights, ids)
    refused("gate_up_scale is given; QuantizedExperts have", x, gate_up, down, weights, ids, scale)
    refused("down_scale is given", x, gate_up, down, weights, ids, None, scale)
    refused("x is torch.float32; 4-bit weights are", x.float(), gate_up, down, weights, ids)
    few = QuantizedExperts(down.data[:4], down.scales[:4])
    refused("gate_up is [5, 192, 64] and down [4, 64, 96]", x, gate_up, few, weights, ids)
    refused("and hidden the same in all", x[:, :32], gate_up, down, weights, ids)
    there = QuantizedExperts(down.data.to("meta"), down.scales.to("meta"))
    refused("on cpu, meta", x, gate_up, there, weights, ids)


@pytest.mark.parametrize("needs", ["x", "weights", "bias", "scales"])
def test_4_bit_weights_have_no_gradients(needs: str) -> None:
    x, gate_up, down, weights, ids = layer4("uint4")
    bias = torch.zeros(E, HIDDEN)
    {"x": x, "weights": weights, "bias": bias, "scales": down.scales}[needs].requires_grad_()
    refused("none of for 4-bit weights: call it under", x, gate_up, down, weights, ids, down_bias=bias)
    with torch.no_grad():
        assert moe(x, gate_up, down, weights, ids, down_bias=bias).shape == x.shape
