"""A program: checks the Triton kernels of a mixture of experts, and moe() with them, by Triton's interpreter.

Prints a line for each function named in CHECKS of the package: its name and "ok", or what failed. Needs
TRITON_INTERPRET=1."""

from __future__ import annotations

import traceback
from dataclasses import replace
from itertools import product
from typing import Any
from unittest import mock

import numpy
import torch
from gemmtune.torch import QuantizedExperts, experts_from_gpt_oss
from gemmtune.torch import report as reported
from gemmtune.torch.grouped import few_tokens, glue, steps
from gemmtune.torch.grouped.few_tokens import Tiles
from gemmtune.torch.grouped.layer import sorted_rows
from gemmtune.torch.grouped.scaled import MOST, quantised
from torch._dynamo.backends.debugging import aot_eager
from triton import language
from triton.runtime import interpreter

from tests.client.torch.grouped import CHECKS
from tests.client.torch.grouped.test_layer import close8, expected, layer, layer8, silu_mul, swigluoai
from tests.client.torch.grouped.test_layer_options import (
    FORMS,
    HIDDEN,
    INTERMEDIATE,
    OSS,
    PREFIX,
    biases,
    exact,
    layer4,
    moe,
    near,
    stored,
)

#: The 8-bit floats that rows are quantised to.
FP8 = tuple(MOST)


def few(ids: int) -> None:
    """Calls of more ids than these are routed by programs of experts, in tiles of 16."""
    glue._FEW, glue._TILE = (ids,), 16


def routed(dtype: Any, kind: Any, tokens: int, chosen: int, experts: int, hidden: int) -> None:
    """One call, compared bit by bit with torch's operations."""
    torch.manual_seed(tokens)
    x = torch.randn(tokens, hidden, dtype=dtype)
    x[0], x[-1, -1] = 0.0, 3.0e4
    ids = torch.randint(-2, experts + 2, (tokens, chosen), dtype=torch.int64 if kind is None else torch.int32)
    rows, scales, ends, place = glue.rows_of_experts(x, ids, experts, kind)
    sources, wanted_ends, wanted_place, here = sorted_rows(ids, experts)
    there = int(wanted_ends[-1])
    assert torch.equal(ends, wanted_ends), (ends, wanted_ends)
    assert torch.equal(place.long(), torch.where(here, wanted_place, -1))
    if kind is not None:
        wanted, wanted_scales = quantised(x, kind)
        assert torch.equal(scales[:there], wanted_scales[sources][:there])
        assert torch.equal(rows.view(torch.uint8)[:there], wanted.view(torch.uint8)[sources][:there])
    else:
        assert torch.equal(rows[:there], x[sources][:there])


SHAPES = ((7, 3, 5, 48), (1, 2, 9, 1100), (2, 1, 70, 130), (20, 2, 3, 8))


def routing_of_few_ids() -> None:
    few(64)
    for shape in SHAPES:
        routed(torch.bfloat16, None, *shape)
        for kind in FP8:
            routed(torch.float16, kind, *shape)


def routing_of_many_ids() -> None:
    few(0)
    for shape in SHAPES:
        routed(torch.float16, None, *shape)
        for kind in FP8:
            routed(torch.bfloat16, kind, *shape)


def every_number_is_rounded_as_torch_does() -> None:
    # All finite bf16 numbers in blocks with the type's largest, so that the scale is 1.
    bits = torch.arange(2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    few(64)
    for kind in FP8:
        most = MOST[kind]
        kept = bits[bits <= most]
        values = torch.cat([kept, -kept, kept.new_zeros(-2 * len(kept) % 127)]).view(-1, 127)
        x = torch.nn.functional.pad(values, (0, 1), value=most)[::8]
        hidden = x.reshape(1, -1).contiguous()
        rows, scales, _, _ = glue.rows_of_experts(hidden, torch.tensor([[0]]), 1, kind)
        assert torch.equal(scales, torch.ones_like(scales))
        assert torch.equal(rows.view(torch.uint8), hidden.to(kind).view(torch.uint8))


def what_is_not_finite_stays_so() -> None:
    x = torch.zeros(1, 256, dtype=torch.bfloat16)
    x[0, 3], x[0, 200] = float("nan"), float("-inf")
    few(64)
    for kind in FP8:
        rows, scales, _, _ = glue.rows_of_experts(x, torch.tensor([[0]]), 1, kind)
        found = rows.float().view(2, 128) * scales.view(2, 1)
        assert found[0].isnan()[3]
        assert found[1].isnan()[72]


def activations() -> None:
    torch.manual_seed(1)
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    for columns in (32, 1100):
        hidden = (4 * torch.randn(7, 2 * columns)).to(torch.bfloat16)
        hidden[0, 0], hidden[1, 1] = -200.0, 200.0
        gate, up = hidden.double().chunk(2, -1)
        wanted = (torch.nn.functional.silu(gate) * up)[:5]
        out, none = glue.activation(hidden, ends)
        assert none.shape == (0, 0)
        assert torch.allclose(out[:5].double(), wanted, rtol=2**-8, atol=1e-30)
        for kind in FP8:
            q, scales = glue.activation(hidden, ends, kind)
            assert q.dtype is kind
            each = scales[:5].repeat_interleave(128, 1)[:, :columns].double()
            bound = torch.maximum(wanted.abs() * 2**-4, each * 2**-10) * 1.001
            assert ((q[:5].double() * each - wanted).abs() <= bound).all()


def activations_of_gpt_oss() -> None:
    """Every combination of a bias, columns that take turns, and a limit, of experts without rows too."""
    torch.manual_seed(1)
    ends = torch.tensor([0, 2, 2, 5, 5], dtype=torch.int32)
    owners = torch.tensor([1, 1, 3, 3, 3])
    for columns, limit, interleaved, of_bias in product(
        (32, 1100), (None, 3.0), (False, True), (None, torch.bfloat16, torch.float32)
    ):
        hidden = (4 * torch.randn(7, 2 * columns)).to(torch.bfloat16)
        bias = None if of_bias is None else torch.randn(5, 2 * columns).to(of_bias)
        added = hidden[:5].double() + (0.0 if bias is None else bias[owners].double())
        turned = torch.stack(added.chunk(2, -1), -1).flatten(1)
        if limit is None:
            halves = torch.cat([added[:, ::2], added[:, 1::2]], 1)
            wanted = silu_mul(halves if interleaved else added)
        else:
            wanted = swigluoai(added if interleaved else turned, limit)
        out, none = glue.activation(hidden, ends, None, bias, interleaved, limit)
        assert none.shape == (0, 0)
        # What is added in fp32 is off by its last place, and (up + 1) by that of 1.
        assert torch.allclose(out[:5].double(), wanted, rtol=2**-8, atol=1e-5)
        q, scales = glue.activation(hidden, ends, FP8[0], bias, interleaved, limit)
        each = scales[:5].repeat_interleave(128, 1)[:, :columns].double()
        bound = torch.maximum(wanted.abs() * 2**-4, each * 2**-10) * 1.001 + 1e-5
        assert ((q[:5].double() * each - wanted).abs() <= bound).all()


def what_is_not_finite_passes_the_limit() -> None:
    nan, inf = float("nan"), float("inf")
    hidden = torch.tensor([[nan, 1.0, 1.0, nan, inf, inf, -200.0, -inf]], dtype=torch.bfloat16)
    out, _ = glue.activation(hidden, torch.tensor([1], dtype=torch.int32), None, None, True, 7.0)
    wanted = swigluoai(hidden.double())
    assert torch.allclose(out.double(), wanted, rtol=2**-8, atol=1e-30, equal_nan=True), out
    assert out[0].isnan().tolist() == [True, True, False, False]


def weighted_sums_with_biases() -> None:
    torch.manual_seed(3)
    place = torch.tensor([[2, 0], [-1, 1], [-1, -1]], dtype=torch.int32)
    weights = torch.rand(3, 2)
    weights[2] = float("nan")
    for columns, kind in product((72, 300), (torch.int32, torch.int64)):
        ids = torch.tensor([[3, 0], [-1, 2], [9, -5]], dtype=kind)
        rows, bias = torch.randn(3, columns, dtype=torch.bfloat16), torch.randn(4, columns)
        found = glue.weighted_sum(rows, place, weights, torch.bfloat16, bias, ids)
        wanted = torch.stack([
            weights[0, 0] * (rows[2].float() + bias[3]) + weights[0, 1] * (rows[0].float() + bias[0]),
            weights[1, 1] * (rows[1].float() + bias[2]), torch.zeros(columns),
        ])  # fmt: skip
        assert torch.equal(found, wanted.to(torch.bfloat16))


def weighted_sums() -> None:
    torch.manual_seed(2)
    place = torch.tensor([[2, 0], [-1, 1], [-1, -1]], dtype=torch.int32)
    weights = torch.rand(3, 2)
    weights[2] = float("nan")
    for columns in (72, 300):
        rows = torch.randn(4, columns, dtype=torch.bfloat16)
        rows[3] = float("nan")
        for glue._MANY in (256, 1):
            found = glue.weighted_sum(rows, place, weights, torch.bfloat16)
            wanted = torch.stack([
                weights[0, 0] * rows[2].float() + weights[0, 1] * rows[0].float(),
                weights[1, 1] * rows[1].float(), torch.zeros(columns),
            ])  # fmt: skip
            assert torch.equal(found, wanted.to(torch.bfloat16))


def whole_layers() -> None:
    few(64)
    for dtype in (torch.bfloat16, torch.float16):
        x, gate_up, down, weights, ids = layer(dtype)
        ids[0], ids[1, 0] = -1, 7
        out = moe(x, gate_up, down, weights, ids.to(torch.int32))
        assert out.dtype is dtype
        wanted = expected(x, gate_up, down, weights, ids)
        assert torch.allclose(out.double(), wanted, rtol=0.02, atol=0.02)
    x, gate_up, down, weights, ids = layer()
    wide = torch.randn(len(x), 96, dtype=x.dtype)
    found = moe(wide[:, ::2], gate_up, down, weights.t().contiguous().t(), ids.t().contiguous().t())
    assert torch.equal(found, moe(wide[:, ::2].contiguous(), gate_up, down, weights, ids))
    assert moe(x[:0], gate_up, down, weights[:0], ids[:0]).shape == (0, x.shape[1])


def whole_layers_of_8_bit_weights() -> None:
    for most, kind in product((64, 0), FP8):
        few(most)
        x, gate_up, down, weights, ids, *scales = given = layer8(kind=kind)
        ids[0], ids[1, 0] = -1, 7
        out = moe(x, gate_up, down, weights, ids, *scales)
        assert torch.equal(out[0], torch.zeros_like(out[0]))
        assert close8(out, given)


def whole_layers_of_4_bit_weights() -> None:
    for form, dtype in product(FORMS, (torch.bfloat16, torch.float16)):
        given = layer4(form, dtype)
        given[4][0], given[4][1, 0] = -1, 7
        assert glue.runs(given[0])
        out = moe(*given)
        assert out.dtype is dtype
        assert torch.equal(out[0], torch.zeros_like(out[0]))
        assert near(out, exact(given))


def whole_layers_of_gpt_oss() -> None:
    for most in (64, 0):
        few(most)
        given, added = layer4(), biases(hidden=HIDDEN, inter=INTERMEDIATE)
        given[4][0], given[4][1, 0] = -1, 7
        out = moe(*given, **added, **OSS)
        assert torch.equal(out[0], torch.zeros_like(out[0]))
        assert near(out, exact(given, biases=tuple(added.values()), gated=swigluoai))
        plain, added = layer(), biases(torch.float32)
        wanted = expected(*plain, biases=tuple(added.values()), gated=swigluoai)
        assert near(moe(*plain, **added, **OSS), wanted)
    # By torch's operations the layer is the same: one of 4 bits from a checkpoint, one of 8 bits.
    x, _, _, weights, ids = layer4()
    of_file = {"weights": weights, "ids": ids, **experts_from_gpt_oss(stored(), PREFIX)}
    wide, added = layer8(), biases(hidden=272, inter=144)
    outs = [moe(x, **of_file), moe(*wide, **added, **OSS)]
    with mock.patch.object(glue, "runs", return_value=False):
        others = [moe(x, **of_file), moe(*wide, **added, **OSS)]
    assert near(outs[0], others[0].double(), 0.005)
    assert near(outs[1], others[1].double(), 0.02)


TYPES = (torch.bfloat16, torch.float16, torch.bfloat16)


LARGE = Tiles(128, 32, 1, 4), Tiles(64, 32, 1, 4)


def large_tiles(first: Tiles = LARGE[0], second: Tiles = LARGE[1]) -> None:
    """The interpreter takes as long for small tiles as for large ones."""
    few_tokens.tiles_of_gate_up = lambda *_: first
    few_tokens.tiles_of_down = lambda *_: second


def most_slots(most: int) -> None:
    """Layers of at most so many slots take the two launches."""
    few_tokens.most_slots = lambda *_: most


def two_launches(given: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A layer by two launches."""
    most_slots(64)
    with mock.patch.object(steps, "by_kernels", side_effect=AssertionError("by products")):
        found = moe(*given, **options)
    assert found.dtype is given[0].dtype
    most_slots(0)
    return found


def layers_of_few_tokens() -> None:
    """They are those by products but for the order of their sums."""
    for dtype, kind in ((torch.bfloat16, torch.int64), (torch.float16, torch.int32)):
        x, gate_up, down, weights, ids = (one[:3] if len(one) == 7 else one for one in layer(dtype))
        weights[0], ids[0], ids[1, 0] = float("nan"), -1, 5
        given = x, gate_up, down, weights, ids.to(kind)
        added = biases(torch.float32 if kind is torch.int32 else torch.bfloat16)
        for options in ({}, added | {"interleaved": True}, added | OSS | {"swiglu_limit": 0.5}):
            out = two_launches(given, options)
            assert torch.equal(out[0], torch.zeros_like(out[0]))
            assert near(out, moe(*given, **options).double(), 1e-3)
        wanted = expected(*given, biases=tuple(added.values()), gated=swigluoai)
        wanted[0] = 0.0
        assert near(two_launches(given, added | OSS), wanted)
    turned = weights.t().contiguous().t(), ids.t().contiguous().t()
    wide = torch.randn(len(x), 96, dtype=x.dtype)[:, ::2]
    found = two_launches((wide, gate_up, down, *turned), {})
    assert torch.equal(found, two_launches((wide.contiguous(), gate_up, down, weights, ids), {}))
    whole, halved = gate_up, torch.cat([down, down], 2)[:, :, ::2]
    for most, both in ((64, (whole, halved)), (64, (whole.float(), down)), (ids.numel() - 1, (whole, down))):
        most_slots(most)
        assert not few_tokens.takes(x, ids, *(steps.weights_of(one, None) for one in both))
    most_slots(ids.numel())
    assert few_tokens.takes(x, ids, steps.weights_of(whole, None), steps.weights_of(down, None))


def packed_layers_of_few_tokens() -> None:
    """MXFP4, and integers with and without zero points, of both types of rows; two forms in one layer."""
    added = biases(hidden=HIDDEN, inter=INTERMEDIATE)
    layers = [layer4(form, dtype, 2) for form, dtype in zip(FORMS, TYPES, strict=True)]
    layers.append(layers[0][:2] + layers[1][2:])
    for given, options in zip(layers, (added | OSS, added, {}, {}), strict=True):
        given[4][0, 0], given[3][0, 0] = -1, float("nan")
        out = two_launches(given, options)
        gated = swigluoai if "activation" in options else silu_mul
        both = tuple(added.values()) if options else (0.0, 0.0)
        weights = given[3].nan_to_num(0.0)
        assert near(out, exact((*given[:3], weights, given[4]), biases=both, gated=gated))
    x, _, down, weights, ids = layers[0]
    # Every element, with scales from 2^-127, which is subnormal.
    data = torch.arange(256, dtype=torch.uint8).repeat(5, 96, 1)[:, :, :32].contiguous()
    scales = torch.tensor([0, 1, 127, 140], dtype=torch.uint8).repeat(24)[None, :, None].repeat(5, 2, 2)
    data = torch.cat([data, data.flip(2)], 1)
    every = QuantizedExperts(data, scales[:, :192].contiguous())
    found = two_launches((x * 2.0**-10, every, down, weights, ids), {})
    wanted = exact((x * 2.0**-10, every, down, weights.nan_to_num(0.0), ids))
    assert torch.isfinite(found).all()
    assert near(found, wanted)
    most_slots(64)
    integers = layer4("uint4", tokens=2)
    unknown = replace(integers[1], zeros=integers[1].scales.clone(), zero_point="float")
    both = steps.weights_of(unknown, None), steps.weights_of(integers[2], None)
    assert not few_tokens.takes(integers[0], integers[4], *both)


def blocks_and_rows_of_few_tokens() -> None:
    """Sizes that tiles do not divide, blocks behind those loaded ahead, and numbers of experts of a token
    that are no power of two."""
    torch.manual_seed(6)
    experts, inter, hidden = 6, 37, 83
    gate_up = torch.randn(experts, 2 * inter, hidden).bfloat16() / 8
    down = torch.randn(experts, hidden, inter).bfloat16() / 8
    for tokens, chosen, first, second in (
        (2, 3, Tiles(16, 32, 2, 4), Tiles(32, 16, 1, 4)), (1, 5, Tiles(32, 128, 1, 4), Tiles(16, 16, 3, 4)),
        (3, 1, Tiles(64, 16, 1, 4), Tiles(64, 64, 0, 4)),
    ):  # fmt: skip
        x = torch.randn(tokens, hidden).bfloat16()
        weights, ids = torch.rand(tokens, experts).topk(chosen)
        given = x, gate_up, down, weights, ids
        large_tiles(first, second)
        assert near(two_launches(given, {}), expected(*given))


def few_tokens_are_reported() -> None:
    x, gate_up, down, weights, ids = layer()
    given = x[:2], gate_up, down, weights[:2], ids[:2]
    with reported() as count:
        two_launches(given, {})
        two_launches(given, {})
        found = count.report()
        moe(*given)
    of_layers = [tuple(vars(one).values()) for one in found.layers]
    assert (found.hits, found.misses, of_layers) == (0, 0, [(2, 2, 5, 48, 32, "bf16", 2)])
    assert "2 calls of a layer by two launches: 2 tokens, 2 of 5 experts" in str(found)
    assert (count.report().misses, count.report().layers) == (2, found.layers)


def gradients_take_torchs_operations() -> None:
    x, gate_up, down, weights, ids = layer()
    assert glue.runs(x, gate_up, down, weights)
    for needs in (x, gate_up, down, weights):
        needs.requires_grad_()
        assert not glue.runs(x, gate_up, down, weights)
        out = moe(x, gate_up, down, weights, ids)
        (found,) = torch.autograd.grad(out.float().sum(), needs)
        assert found.abs().sum() > 0
        with torch.no_grad():
            assert glue.runs(x, gate_up, down, weights)
        needs.requires_grad_(False)


def compiled_in_one_graph() -> None:
    """One operator, which decides when it runs: a graph serves any number of tokens."""
    given, added = layer(), biases(hidden=HIDDEN, inter=INTERMEDIATE)
    targets: list[str] = []

    def seen(graph: Any, _: Any) -> Any:
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    compiled = torch.compile(moe, backend=seen, fullgraph=True, dynamic=True)
    for most in (0, 8):
        most_slots(most)
        for tokens in (7, 4):
            x, gate_up, down, weights, ids = given
            call = x[:tokens].clone(), gate_up, down, weights[:tokens].clone(), ids[:tokens].clone()
            assert torch.equal(compiled(*call), moe(*call))
    assert [one for one in targets if "gemmtune" in one] == ["gemmtune.moe_layer"], targets
    most_slots(0)
    by_aot = torch.compile(moe, backend=aot_eager, fullgraph=True)
    for call, options in (
        (given, {}), (layer4(tokens=2), added | OSS), (layer8(), {}),
    ):  # fmt: skip
        assert torch.equal(by_aot(*call, **options), moe(*call, **options))
    x, gate_up, down, weights, ids = given
    most_slots(64)
    of_layer = x[:1], weights[:1], ids[:1], [gate_up], [down], ["", ""], [0, 0], None, None, False, None
    torch.library.opcheck(torch.ops.gemmtune.moe_layer, of_layer)
    x, ids = given[0], given[-1]
    end, of_one = torch.tensor([7], dtype=torch.int32), torch.randn(1, 48)
    for name, arguments in (
        ("moe_rows", (x, ids, 5, FP8[0])),
        ("moe_rows", (x, ids, 5, None)),
        ("moe_activation", (x, end, FP8[1], None, False, None)),
        ("moe_activation", (x, end, FP8[0], of_one, True, 7.0)),
        ("moe_sum", (x, ids.to(torch.int32) % 7, given[3], torch.bfloat16, None, None)),
        ("moe_sum", (x, ids.to(torch.int32) % 7, given[3], torch.bfloat16, torch.randn(5, 48), ids)),
    ):
        # Not every output is defined everywhere, so that values are not compared here.
        operator = getattr(torch.ops.gemmtune, name)
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


def mend_interpreter() -> None:
    """What the interpreter of Triton 3.6 gets wrong: it makes an integer of an array of one element, which
    NumPy 2.4 refuses, and cuts bits off where it should round to bf16."""
    patch = interpreter._patch_lang_tensor

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda one: one.handle.data.item())

    interpreter._patch_lang_tensor = patch_tensor
    convert = interpreter._convert_float

    def rounded(values: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source, target) != (language.float32, language.bfloat16):
            return convert(values, source, target, mode)
        wide = torch.from_numpy(values.view(numpy.float32))
        return wide.to(torch.bfloat16).view(torch.int16).numpy().view(numpy.uint16)

    interpreter._convert_float = rounded


def main() -> None:
    """The checks, one line each."""
    mend_interpreter()
    for name in CHECKS:
        few(1024)
        most_slots(0)
        large_tiles()
        try:
            globals()[name]()
        except Exception:
            print(name, traceback.format_exc().replace("\n", " | "), flush=True)
        else:
            print(name, "ok", flush=True)


if __name__ == "__main__":
    main()
