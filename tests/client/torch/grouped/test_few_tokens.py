"""Which layers of experts take two launches, and their tiles. interpreted.py and test_cuda.py run them."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from gemmtune.torch import record
from gemmtune.torch.grouped import few_tokens
from gemmtune.torch.grouped.few_tokens_layer import FewTokens
from gemmtune.torch.grouped.steps import ExpertWeights, weights_of
from gemmtune.torch.watch import tell_layer

from tests.client.torch.grouped.test_layer import layer, layer8
from tests.client.torch.grouped.test_layer_options import layer4


def taken(x: torch.Tensor, ids: torch.Tensor, *both: ExpertWeights) -> bool:
    return few_tokens.takes(x, ids, *both)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_few_slots_of_many_experts_take_two_launches(tokens: int) -> None:
    x, gate_up, down, _, ids = layer()
    plain = weights_of(gate_up, None), weights_of(down, None)
    x, ids = x[:tokens], ids[:tokens]
    assert few_tokens.most_slots(len(gate_up), False) == 5
    assert taken(x, ids, *plain) == (2 * tokens <= 5)
    assert not taken(x, ids[:0], *plain)
    assert not taken(x.half(), ids, *plain), "rows of another type"
    packed = layer4(tokens=tokens)
    assert taken(packed[0], packed[4], *(weights_of(one, None) for one in packed[1:3])) == (2 * tokens <= 5)


def test_4_bit_weights_take_fewer() -> None:
    assert few_tokens.most_slots(128, True) < few_tokens.most_slots(128, False)
    x, gate_up, down, _, ids = layer4()
    wide = weights_of(gate_up.dequantize(torch.bfloat16), None)
    many = ids[:1].repeat(1, few_tokens._MOST_CHOSEN)
    assert few_tokens.takes(x[:1], ids[:1], wide, weights_of(down, None)), "one of 4 bits and one of 16"
    assert not few_tokens.takes(x[:1], many, wide, wide)


def test_8_bit_weights_take_products() -> None:
    x, gate_up, down, _, ids, *scales = layer8()
    both = weights_of(gate_up, scales[0]), weights_of(down, scales[1])
    assert all(one.scaled for one in both)
    assert not few_tokens.takes(x[:1], ids[:1], *both)


def test_tiles_are_powers_of_two_and_no_larger_than_their_weights_need() -> None:
    for size, form in product((32, 200, 768, 2048, 2880, 14336), ("", "none", "uint4", "eight", "signed")):
        tiles = [few_tokens.tiles_of_gate_up(size, form)]
        tiles += [few_tokens.tiles_of_down(size, choices, form) for choices in (1, 2, 4, 8, 16)]
        for one in tiles:
            assert all(value & (value - 1) == 0 for value in (one.rows, one.block_k, one.warps)), one
            assert one.block_k >= 256
        assert all((one.blocks - 1) * one.block_k < size for one in tiles[1:]), "a block ahead is all padding"


def test_a_recording_has_no_products_of_such_layers() -> None:
    with record("cpu") as recording:
        tell_layer(FewTokens(1, 8, 128, 2048, 768, "bf16"), "cpu")
    assert recording.problems() == []
