"""Operands of whole layers of a mixture of experts, of 16 and of 4 bits, and a reference in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

from backends.grouping import SKEW

#: Copies of a layer's weights, which the calls of a graph take in turns, so that they are cold; and how often each is
#: taken by a call of few tokens, so that starting the graph counts for little.
COPIES, TURNS, FEW_TOKENS = 3, 4, 64
#: The standard deviation of an integer of 4 bits less a zero point of 4 bits, and of MXFP4's elements, if all are equally
#: frequent.
_OF_UINT4, _OF_FP4 = 6.52, 2.93
#: Elements of MXFP4 that share a scale, and the exponent of a scale of 1.
_MX_GROUP, _MX_BIAS = 32, 127


@dataclass(frozen=True)
class Size:
    """A layer: experts, experts of a token, hidden size, an expert's intermediate size, and whether it is gpt-oss's, with
    biases, and with its activation of interleaved columns."""

    experts: int
    top: int
    hidden: int
    inter: int
    gpt_oss: bool = False


@dataclass(frozen=True)
class Layer:
    """Operands of calls that differ in the weights alone. `options`: further ones of moe(), by name."""

    x: Any
    weights: Any
    ids: Any
    copies: Sequence[tuple[Any, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def turns(self) -> int:
        """How often a graph takes each copy."""
        return TURNS if len(self.x) <= FEW_TOKENS else 1


def routed(torch: Any, size: Size, tokens: int, routing: str, device: Any) -> Any:
    """The experts of every token, distinct, int64 [tokens, top]: the largest of the experts' log popularity and
    Gumbel noise. Popularity is that of backends/grouping.py."""
    random = torch.Generator(device).manual_seed(1)
    ranks = [NormalDist().inv_cdf((rank + 0.5) / size.experts) for rank in range(size.experts)]
    popular = torch.tensor(ranks, device=device) * (SKEW if routing == "skewed" else 0.0)
    noise = torch.rand(tokens, size.experts, generator=random, device=device).clamp(1e-9, 1 - 1e-7)
    return (popular - (-noise.log()).log()).topk(size.top).indices


def made(
    torch: Any,
    size: Size,
    tokens: int,
    routing: str,
    device: Any,
    kind: str = "bf16",
    groups: tuple[int, int] = (0, 0),
) -> Layer:
    """Random operands, of a size that keeps results near 1. `kind`: of the weights, a name of grouped.KINDS; `groups`:
    elements of k that share a scale of w4a16, for gate and up and for down."""
    random = torch.Generator(device).manual_seed(2)

    def normal(*shape: int, scale: float) -> Any:
        out = torch.empty(shape, device=device, dtype=torch.bfloat16)
        return out.normal_(generator=random).mul_(scale)

    def weights_of(n: int, k: int, group: int) -> Any:
        if kind == "bf16":
            return normal(size.experts, n, k, scale=k**-0.5)
        return _quantised(torch, (size.experts, n, k), kind, group, random, device)

    copies = [
        (
            weights_of(2 * size.inter, size.hidden, groups[0]),
            weights_of(size.hidden, size.inter, groups[1]),
        )
        for _ in range(COPIES)
    ]
    weights = torch.rand(tokens, size.top, generator=random, device=device).softmax(-1)
    ids = routed(torch, size, tokens, routing, device)
    x = normal(tokens, size.hidden, scale=1.0)
    options: dict[str, Any] = {}
    if size.gpt_oss:
        options = {
            "gate_up_bias": normal(size.experts, 2 * size.inter, scale=0.5),
            "down_bias": normal(size.experts, size.hidden, scale=0.5),
            "activation": "swigluoai", "interleaved": True,
        }  # fmt: skip
    return Layer(x, weights, ids, copies, options)


def _quantised(
    torch: Any, shape: tuple[int, int, int], kind: str, group: int, random: Any, device: Any
) -> Any:
    """QuantizedExperts of integers that are all equally frequent, with scales that keep results near 1."""
    from gemmtune.torch import QuantizedExperts  # noqa: PLC0415

    experts, n, k = shape

    def whole(low: int, high: int, dtype: Any, *sizes: int) -> Any:
        return torch.randint(low, high, sizes, generator=random, device=device, dtype=dtype)

    data = whole(0, 256, torch.uint8, experts, n, k // 2)
    if kind == "mxfp4":
        middle = round(_MX_BIAS - torch.tensor(k**0.5 * _OF_FP4).log2().item())
        return QuantizedExperts(data, whole(middle - 1, middle + 1, torch.uint8, experts, n, k // _MX_GROUP))
    along_k = k // group
    scales = torch.rand((experts, n, along_k), generator=random, device=device) + 0.5
    zeros = whole(-(2**31), 2**31, torch.int32, experts, n // 8, along_k)
    return QuantizedExperts(data, (scales * (k**-0.5 / _OF_UINT4)).to(torch.bfloat16), zeros)


def dequantised(torch: Any, layer: Layer) -> Layer:
    """The layer with its quantised weights in bf16."""
    copies = [tuple(one.dequantize(torch.bfloat16) for one in both) for both in layer.copies]
    return replace(layer, copies=copies)


def reference(torch: Any, layer: Layer) -> Any:
    """The layer's result of the first copy in float64, expert by expert."""
    gate_up, down = (
        one if isinstance(one, torch.Tensor) else one.dequantize(torch.float64) for one in layer.copies[0]
    )
    of_gate_up, of_down = (layer.options.get(name) for name in ("gate_up_bias", "down_bias"))
    out = torch.zeros(layer.x.shape, dtype=torch.float64, device=layer.x.device)
    for expert in range(len(gate_up)):
        tokens, place = (layer.ids == expert).nonzero(as_tuple=True)
        if len(tokens):
            hidden = layer.x[tokens].double() @ gate_up[expert].double().t()
            if of_gate_up is not None:
                hidden += of_gate_up[expert].double()
            found = _activated(torch, hidden, layer.options) @ down[expert].double().t()
            if of_down is not None:
                found += of_down[expert].double()
            out.index_add_(0, tokens, found * layer.weights[tokens, place].double()[:, None])
    return out


def _activated(torch: Any, hidden: Any, options: Mapping[str, Any]) -> Any:
    if options.get("activation", "silu") == "silu":
        gate, up = hidden.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up
    gate, up = hidden[:, ::2].clamp(max=7.0), hidden[:, 1::2].clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)
