"""Weights of other tools' checkpoints: packed here as their sources pack them, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gemmtune.torch import (
    WeightError,
    from_awq,
    from_compressed_tensors,
    from_gptq,
    from_mxfp4,
    from_tinygemm,
    from_torchao,
)

N, K, G = 16, 256, 64
_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


def numbers(low: int = 0, high: int = 16, shape: tuple[int, ...] = (N, K)) -> Any:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(3))


def floats(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(4)) + 0.25).to(dtype)


def words(integers: Any, along: int, bits: int = 4, order: tuple[int, ...] | None = None) -> Any:
    """Integers in 32-bit words along a dimension; nibble i of a word holds the element order[i]."""
    count = 32 // bits
    order = tuple(range(count)) if order is None else order
    moved = integers.movedim(along, -1)
    found = torch.zeros(*moved.shape[:-1], moved.shape[-1] // count, dtype=torch.int64)
    for place, element in enumerate(order):
        found |= moved[..., element::count].to(torch.int64) << bits * place
    found = torch.where(found >= 2**31, found - 2**32, found)
    return found.to(torch.int32).movedim(-1, along).contiguous()


def spread(by_group: Any) -> Any:
    """[n, groups] as [n, k], in double precision."""
    return by_group.double().repeat_interleave(K // by_group.shape[1], dim=1)


def same(weight: Any, expected: Any) -> bool:
    return bool(torch.equal(weight.check().dequantize(torch.float64), expected))


# ---- torch and torchao ---------------------------------------------------------------------------


def tiles(integers: Any, inner: int) -> Any:
    """As the kernel of torch._convert_weight_to_int4pack writes them on CUDA: word [n tile, k tiles, lane,
    pair]."""
    n, k = integers.shape
    found = torch.zeros(n // 8, k // (16 * inner), 32, inner // 2, dtype=torch.int64)
    for tile in range(n // 8):
        for outer in range(k // (16 * inner)):
            for lane in range(32):
                for pair in range(inner // 2):
                    row = integers[8 * tile + lane // 4]
                    base = 16 * (outer * inner + 2 * pair)
                    pairs = [base + 8 * j + 2 * (lane % 4) for j in range(4)]
                    word = 0
                    for j, at in enumerate(pairs):
                        word |= int(row[at]) << 4 * j | int(row[at + 1]) << 16 + 4 * j
                    found[tile, outer, lane, pair] = word
    return torch.where(found >= 2**31, found - 2**32, found).to(torch.int32)


@pytest.mark.parametrize("inner", [2, 4, 8])
def test_tinygemm_with_its_float_shift(inner: int) -> None:
    q, s, z = numbers(), floats(N, K // G), floats(N, K // G) - 0.5
    pairs = torch.stack([s.t(), z.t()], dim=-1).contiguous()
    found = from_tinygemm(tiles(q, inner), pairs, group_size=G)
    assert found.zero_point == "shift"
    assert same(found, (q.double() - 8) * spread(s) + spread(z))
    zeroless = torch.stack([s.t(), torch.zeros_like(s).t()], dim=-1)
    assert from_tinygemm(tiles(q, inner), zeroless).zero_point == "eight"


def test_torchao_plain() -> None:
    q, s, z = numbers(-8, 8), floats(N, K // G), floats(N, K // G) - 0.5
    nibbles = (q & 15).to(torch.uint8)
    data = (nibbles[:, 0::2] | nibbles[:, 1::2] << 4).view(torch.int8)
    found = from_torchao(data, s.t(), z.t(), group_size=G)
    assert same(found, q.double() * spread(s) + spread(z))
    assert same(from_torchao(data, s.t()), q.double() * spread(s))
    eight, rows = numbers(-128, 128).to(torch.int8), floats(N, dtype=torch.float32)
    assert same(from_torchao(eight, rows), eight.double() * rows.double().unsqueeze(1))


# ---- compressed-tensors --------------------------------------------------------------------------


def test_compressed_tensors() -> None:
    q, s, z = numbers(-8, 8), floats(N, K // G), numbers(-8, 8, (N, K // G))
    packed, packed_zeros = words(q + 8, 1), words(z + 8, 0)
    shape = torch.tensor([N, K])
    assert same(from_compressed_tensors(packed, s, weight_shape=shape), q.double() * spread(s))
    asymmetric = from_compressed_tensors(packed, s, packed_zeros, weight_shape=shape, group_size=G)
    assert same(asymmetric, (q.double() - spread(z)) * spread(s))
    assert same(from_compressed_tensors(packed, s, z.to(torch.int8)), (q.double() - spread(z)) * spread(s))
    eight, channel = numbers(-128, 128), floats(N, 1)
    assert same(
        from_compressed_tensors(words(eight + 128, 1, 8), channel, bits=8), eight.double() * spread(channel)
    )
    assert same(
        from_compressed_tensors(eight.to(torch.int8), channel, bits=8), eight.double() * spread(channel)
    )
    order = torch.arange(K) // G
    assert same(from_compressed_tensors(packed, s, weight_g_idx=order), q.double() * spread(s))


# ---- GPTQ and AWQ --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("bits", [4, 8])
def test_gptq(version: str, bits: int) -> None:
    half, less = 2 ** (bits - 1), 1 if version == "gptq" else 0
    q, s = numbers(0, 2 * half), floats(N, K // G, dtype=torch.float16)
    z = torch.full((N, K // G), half)
    if bits == 4:
        z = numbers(1, 16, (N, K // G))
    stored = words(z.t() - less, 1, bits)
    found = from_gptq(
        words(q.t(), 0, bits), s.t(), stored, torch.arange(K) // G, checkpoint_format=version, bits=bits
    )
    assert same(found, (q.double() - spread(z)) * spread(s))
    symmetric = from_gptq(words(q.t(), 0, bits), s.t(), checkpoint_format=version, bits=bits)
    assert same(symmetric, (q.double() - half) * spread(s))


def test_awq() -> None:
    q, s, z = numbers(), floats(N, K // G, dtype=torch.float16), numbers(0, 16, (N, K // G))
    found = from_awq(words(q.t(), 1, order=_AWQ), s.t(), words(z.t(), 1, order=_AWQ))
    assert same(found, (q.double() - spread(z)) * spread(s))
    assert same(from_awq(words(q.t(), 1, order=_AWQ), s.t()), (q.double() - 8) * spread(s))


def test_zero_points_of_the_other_version_of_gptq() -> None:
    q, s = words(numbers().t(), 0), floats(N, K // G).t()
    eights, sevens = (words(torch.full((K // G, N), one), 1) for one in (8, 7))
    for version, stored, other in (("gptq", eights, "gptq_v2"), ("gptq_v2", sevens, "gptq")):
        with pytest.raises(WeightError, match=f"mislabelled. Give checkpoint_format='{other}'"):
            from_gptq(q, s, stored, checkpoint_format=version)
        assert from_gptq(q, s, stored, checkpoint_format=other).zero_point == "eight"
    wrapped = torch.full((K // G, N), 7)
    wrapped[0, 0] = 15  # of a zero point of 0, less one
    with pytest.raises(WeightError, match="15, which is a zero point of 16 for some kernels and of 0"):
        from_gptq(q, s, words(wrapped, 1), checkpoint_format="gptq")


# ---- what is refused -----------------------------------------------------------------------------

_Q, _S = torch.zeros(K // 8, N, dtype=torch.int32), floats(K // G, N)
_REFUSED: list[tuple[str, Callable[[], Any]]] = [
    ("neither gptq nor", lambda: from_gptq(_Q, _S, checkpoint_format="v1")),
    ("act-order", lambda: from_gptq(_Q, _S, None, torch.arange(K).flip(0) // G, checkpoint_format="gptq")),
    ("GPTQ stores int32", lambda: from_gptq(_Q.long(), _S, checkpoint_format="gptq")),
    ("scales is", lambda: from_gptq(_Q, _S[:3], checkpoint_format="gptq")),
    ("qzeros is", lambda: from_gptq(_Q, _S, _Q[:2], checkpoint_format="gptq")),
    (
        "no stored form",
        lambda: from_gptq(
            torch.zeros(K // 4, N, dtype=torch.int32), _S, torch.zeros(K // G, N // 4, dtype=torch.int32),
            checkpoint_format="gptq", bits=8,
        ),
    ),
    ("AWQ stores int32", lambda: from_awq(torch.zeros(K, N // 8), _S)),
    ("qzeros is", lambda: from_awq(torch.zeros(K, N // 8, dtype=torch.int32), _S, _Q)),
    ("scales is", lambda: from_awq(torch.zeros(K, N // 8, dtype=torch.int32), _S.t())),
    ("K 250 is padded", lambda: from_compressed_tensors(_Q.t(), floats(N, 4), weight_shape=(N, 250))),
    (
        "act-order",
        lambda: from_compressed_tensors(_Q.t(), floats(N, 4), weight_g_idx=torch.arange(K).flip(0) // G),
    ),
    ("pack-quantized weights are", lambda: from_compressed_tensors(_Q.t().long(), floats(N, 4))),
    ("groups that divide K", lambda: from_compressed_tensors(_Q.t(), floats(N, 3))),
    (
        "without zero points alone",
        lambda: from_compressed_tensors(
            torch.zeros(N, K, dtype=torch.int8), floats(N, 1), torch.ones(N, 1), bits=8
        ),
    ),
    ("torch packs 4-bit weights", lambda: from_tinygemm(_Q, _S)),
    (
        "scales_and_zeros is",
        lambda: from_tinygemm(torch.zeros(2, 2, 32, 4, dtype=torch.int32), floats(4, N + 8, 2)),
    ),
    ("int8 weights", lambda: from_torchao(torch.zeros(N, K // 2, dtype=torch.uint8), floats(N))),
    ("torchao stores", lambda: from_torchao(torch.zeros(N, K // 2, dtype=torch.int8), floats(N, 4))),
    ("nan", lambda: from_awq(torch.zeros(K, N // 8, dtype=torch.int32), _S * float("nan"))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("match", "read"), _REFUSED, ids=[f"{i}-{one}" for i, (one, _) in enumerate(_REFUSED)]
)
def test_what_is_refused_says_why(match: str, read: Callable[[], Any]) -> None:
    with pytest.raises(WeightError, match=match):
        read()


def test_tensors_without_elements_are_refused() -> None:
    """A file that was cut short has them; they are no error of torch's, and no division by zero."""

    def empty(*shape: int, dtype: Any = torch.int32) -> Any:
        return torch.zeros(shape, dtype=dtype)

    few, none = torch.ones(1, 8), torch.ones(0, 8)
    reads: tuple[Callable[[], Any], ...] = (
        lambda: from_gptq(empty(4, 8), none, checkpoint_format="gptq_v2"),
        lambda: from_gptq(empty(0, 8), few, checkpoint_format="gptq_v2"),
        lambda: from_gptq(empty(4, 0), few[:, :0], checkpoint_format="gptq_v2"),
        lambda: from_awq(empty(32, 1), none),
        lambda: from_awq(empty(0, 1), few),
        lambda: from_compressed_tensors(empty(8, 4), none.t()),
        lambda: from_compressed_tensors(empty(8, 4), none.t(), weight_g_idx=torch.arange(32)),
        lambda: from_mxfp4(empty(0, 1, 16, dtype=torch.uint8), empty(0, 1, dtype=torch.uint8)),
        lambda: from_torchao(empty(dtype=torch.int8), few),
        lambda: from_torchao(empty(8, 16, dtype=torch.int8), few[..., None]),
    )
    for read in reads:
        with pytest.raises(WeightError):
            read()
