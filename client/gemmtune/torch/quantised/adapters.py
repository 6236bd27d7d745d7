"""Reads weights as other tools store them, without their packages: exactly, or refused with the reason.

Each function takes the tensors of one layer as they lie in the checkpoint, and returns the stored form
(form.py).
"""

from __future__ import annotations

from typing import Any

import torch

from gemmtune.torch.quantised.form import EIGHT_BITS, MX_GROUP, MX_SCALES, ZERO_ROWS, WeightError
from gemmtune.torch.quantised.stored import QuantizedWeight, pack_int4, pack_zeros

#: The element of eight that each nibble of an AWQ word holds, the lowest nibble first.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def from_stored(
    data: Any, scales: Any, zeros: Any = None, *, zero_point: str | None = None,
    group_size: int | None = None, even: str = "low",
) -> QuantizedWeight:  # fmt: skip
    """Weights of 4 bits as uint8 [n, k / 2], or of 8 as int8 or float8_e4m3fn [n, k]. (Scales of blocks of
    128 x 128 that checkpoints call weight_scale_inv are multiplied by, like others.) even: the half of a byte
    that holds the even element of k; "high" is the order that torch._convert_weight_to_int4pack takes. The
    bytes do not say which it is. Raises WeightError."""
    if even not in ("low", "high"):
        raise WeightError(f"even is {even!r}; the even element of k is in the low or the high half of a byte")
    if even == "high":
        if data.dtype is not torch.uint8:
            raise WeightError(f"even='high' is of two elements to a byte of uint8, not of {data.dtype}")
        data = data << 4 | data >> 4
    made = QuantizedWeight(data.contiguous(), scales.contiguous(), zeros, zero_point, group_size)
    return made.check()


def from_tinygemm(packed: Any, scales_and_zeros: Any, *, group_size: int | None = None) -> QuantizedWeight:
    """Weights as torch._weight_int4pack_mm and torchao's tile-packed tensors have them on CUDA: int32
    [n / 8, k / (16 t), 32, t / 2] for t = 2, 4 or 8 k-tiles, and (scale, zero) [k / group, n, 2], where
    W = (q - 8) s + z. (ROCm and CPUs pack another way.) Raises WeightError."""
    shape = list(packed.shape)
    if packed.dtype is not torch.int32 or len(shape) != 4 or shape[2] != 32 or shape[3] not in (1, 2, 4):
        raise WeightError(
            f"packed is {shape} of {packed.dtype}; torch packs 4-bit weights as int32 "
            "[N / 8, K / (16 t), 32, t / 2], t = 2, 4 or 8"
        )
    tiles, outer, _, pairs = shape
    n, k = 8 * tiles, 32 * outer * pairs
    if scales_and_zeros.dim() != 3 or tuple(scales_and_zeros.shape[1:]) != (n, 2):
        raise WeightError(
            f"scales_and_zeros is {list(scales_and_zeros.shape)}; weights of [{n}, {k}] have [K / group, "
            f"{n}, 2]"
        )
    # A word holds, of one row, the even elements of four pairs 8 apart in its low half, the odd in its high
    # half.
    nibbles = _nibbles(packed).reshape(tiles, outer, 8, 4, pairs, 2, 4)
    integers = nibbles.permute(0, 2, 1, 4, 6, 3, 5).reshape(n, k)
    scales, zeros = (one.t().contiguous() for one in scales_and_zeros.unbind(-1))
    return _shifted(pack_int4(integers), scales, zeros, group_size)


def from_torchao(
    qdata: Any, scale: Any, zero_point: Any = None, *, group_size: int | None = None
) -> QuantizedWeight:
    """Weights as torchao's plain int4 tensors have them: int8 or uint8 [n, k / 2], two's complements, the
    even element in the low half, and scale and zero_point [k / group, n], where W = q s + z. Or as its int8
    tensors: int8 [n, k] with scale [n] or [n, 1]; its float8_e4m3fn tensors alike. Raises WeightError."""
    if scale.dim() < 2 or (qdata.dim() and scale.shape == (qdata.shape[0], 1)):
        if qdata.dtype not in EIGHT_BITS or zero_point is not None:
            raise WeightError(
                f"a scale of {list(scale.shape)} is of int8 weights [N, K] (or float8_e4m3fn) without zero "
                f"points; qdata is {qdata.dtype}"
            )
        return QuantizedWeight(qdata.contiguous(), scale.reshape(-1, 1), group_size=group_size).check()
    if (
        qdata.dtype not in (torch.int8, torch.uint8)
        or qdata.dim() != 2
        or scale.dim() != 2
        or scale.shape[1] != qdata.shape[0]
    ):
        raise WeightError(
            f"qdata is {list(qdata.shape)} of {qdata.dtype} and scale {list(scale.shape)}; torchao stores "
            "[N, K / 2] of int8 and [K / group, N]"
        )
    data = (qdata.contiguous().view(torch.uint8) ^ 0x88).contiguous()
    scales = scale.t().contiguous()
    if zero_point is None:
        return QuantizedWeight(data, scales, None, "eight", group_size).check()
    return _shifted(data, scales, zero_point.t().contiguous(), group_size)


def _shifted(data: Any, scales: Any, zeros: Any, group_size: int | None) -> QuantizedWeight:
    """W = (q - 8) s + z, symmetric where every z is 0."""
    made = QuantizedWeight(data, scales, zeros, "shift", group_size).check()
    if not bool((zeros != 0).any()):
        return QuantizedWeight(data, scales, None, "eight", made.group_size)
    return made


def from_compressed_tensors(
    weight_packed: Any, weight_scale: Any, weight_zero_point: Any = None, *, weight_shape: Any = None,
    weight_g_idx: Any = None, bits: int = 4, group_size: int | None = None,
) -> QuantizedWeight:  # fmt: skip
    """Weights of compressed-tensors' format pack-quantized: int32 [n, k / 8] (8 bits: [n, k / 4]), lowest
    first, each integer with its half range added; scales [n, k / group]; zero points packed alike along n, [n
    / 8, k / group]. Or of int-quantized with 8 bits: int8 [n, k]. Or of float-quantized: float8_e4m3fn [n,
    k], with one scale, one a row, or one for 128 x 128 weights; `bits` is not looked at. Raises
    WeightError."""
    if weight_packed.dtype is torch.float8_e4m3fn:
        if weight_zero_point is not None and bool((weight_zero_point != 0).any()):
            raise WeightError("weight_zero_point: weights of 8-bit floats have none")
        return from_stored(weight_packed, weight_scale, group_size=group_size)
    if weight_packed.dtype is torch.int8 and bits == 8:
        data = weight_packed.contiguous()
    elif weight_packed.dtype is torch.int32 and weight_packed.dim() == 2 and bits in (4, 8):
        data = weight_packed.contiguous().view(torch.uint8)
        if bits == 8:
            data = (data ^ 0x80).view(torch.int8)
    else:
        raise WeightError(
            f"weight_packed is {list(weight_packed.shape)} of {weight_packed.dtype} with {bits} bits; "
            "pack-quantized weights are int32 [N, K / 8] for 4 bits and [N, K / 4] for 8"
        )
    n, k = data.shape[0], data.shape[1] * 8 // bits
    if weight_shape is not None and [int(one) for one in weight_shape] != [n, k]:
        stated = [int(one) for one in weight_shape]
        raise WeightError(
            f"weight_shape is {stated}, and the words hold [{n}, {k}]: K {stated[-1]} is padded to whole "
            "words, which the stored form does not have"
        )
    scales = weight_scale.contiguous()
    size = k // max(
        scales.shape[1] if scales.dim() == 2 else 1, 1
    )  # no group: refused with the scales' shape
    _check_order(weight_g_idx, k, group_size or max(size, 1), "weight_g_idx")
    if bits == 8:
        if weight_zero_point is not None and bool((weight_zero_point != 0).any()):
            raise WeightError("weight_zero_point: int8 weights are taken without zero points alone")
        return QuantizedWeight(data, scales, group_size=group_size).check()
    if weight_zero_point is None:
        return QuantizedWeight(data, scales, None, "eight", group_size).check()
    zeros = weight_zero_point
    if zeros.dtype is torch.int8:  # not packed: signed, as the integers were before packing
        zeros = pack_zeros(zeros.to(torch.int64) + 8)
    return QuantizedWeight(data, scales, zeros.contiguous(), "uint4", group_size).check()


def from_gptq(
    qweight: Any, scales: Any, qzeros: Any = None, g_idx: Any = None, *, checkpoint_format: str, bits: int = 4
) -> QuantizedWeight:
    """Weights of GPTQ and GPTQModel: int32 [k / 8, n] (8 bits: [k / 4, n]), lowest first; scales [k / group,
    n]; zero points packed along n, [k / group, n / 8], which "gptq" (version 1) stores less one and "gptq_v2"
    as they are. checkpoint_format: one of the two, as quantize_config.json has it. g_idx: the group of each
    k, which must be in order. Raises WeightError."""
    if checkpoint_format not in ("gptq", "gptq_v2"):
        raise WeightError(f"checkpoint_format {checkpoint_format!r} is neither gptq nor gptq_v2")
    if bits not in (4, 8) or qweight.dtype is not torch.int32 or qweight.dim() != 2 or not qweight.numel():
        raise WeightError(
            f"qweight is {list(qweight.shape)} of {qweight.dtype} with {bits} bits; GPTQ stores int32 [K / "
            "8, N] for 4 bits and [K / 4, N] for 8"
        )
    count, (_, n) = 32 // bits, qweight.shape
    integers = _apart(qweight, bits).permute(0, 2, 1).reshape(-1, n).t().contiguous()  # [n, k]
    k = integers.shape[1]
    if not _fits(scales, n, k):
        raise WeightError(f"scales is {list(scales.shape)}; weights of [K {k}, N {n}] have [K / group, {n}]")
    groups = scales.shape[0]
    _check_order(g_idx, k, k // groups, "g_idx")
    zeros = None
    if qzeros is not None:
        if qzeros.dtype is not torch.int32 or list(qzeros.shape) != [groups, -(-n // count)]:
            raise WeightError(
                f"qzeros is {list(qzeros.shape)} of {qzeros.dtype}; GPTQ stores int32 [{groups}, "
                f"{-(-n // count)}]"
            )
        stored = _apart(qzeros, bits).reshape(groups, -1)[:, :n].t().contiguous()
        zeros = _gptq_zeros(stored, checkpoint_format, bits)
    return _unsigned(integers, scales.t().contiguous(), zeros, bits)


def _gptq_zeros(stored: Any, checkpoint_format: str, bits: int) -> Any:
    """Zero points [n, groups] of what GPTQ stores."""
    half, most = 2 ** (bits - 1), 2**bits - 1
    other = {"gptq": "gptq_v2", "gptq_v2": "gptq"}[checkpoint_format]
    # A symmetric checkpoint has its half range everywhere: another constant next to it is the other format's.
    if bool((stored == (half if checkpoint_format == "gptq" else half - 1)).all()):
        meant = half + 1 if checkpoint_format == "gptq" else half - 1
        raise WeightError(
            f"every zero point would be {meant} as {checkpoint_format}, and is {half} as {other}: the "
            f"checkpoint is symmetric and mislabelled. Give checkpoint_format={other!r}"
        )
    if checkpoint_format == "gptq_v2":
        return stored
    if bool((stored == most).any()):
        raise WeightError(
            f"qzeros of gptq hold {most}, which is a zero point of {most + 1} for some kernels and of 0 for "
            "others: convert the checkpoint to gptq_v2, which says which is meant"
        )
    return stored + 1


def from_awq(qweight: Any, scales: Any, qzeros: Any = None) -> QuantizedWeight:
    """Weights of AWQ's version gemm, 4 bits: int32 [k, n / 8] packed along n in the order 0, 2, 4, 6, 1, 3,
    5, 7; scales [k / group, n]; qzeros [k / group, n / 8] packed alike. Raises WeightError."""
    if qweight.dtype is not torch.int32 or qweight.dim() != 2 or not qweight.numel():
        raise WeightError(f"qweight is {list(qweight.shape)} of {qweight.dtype}; AWQ stores int32 [K, N / 8]")
    k, n = qweight.shape[0], qweight.shape[1] * 8
    if not _fits(scales, n, k):
        raise WeightError(f"scales is {list(scales.shape)}; weights of [K {k}, N {n}] have [K / group, {n}]")
    groups, zeros = scales.shape[0], None
    if qzeros is not None:
        if qzeros.dtype is not torch.int32 or list(qzeros.shape) != [groups, n // 8]:
            raise WeightError(
                f"qzeros is {list(qzeros.shape)} of {qzeros.dtype}; AWQ stores int32 [{groups}, {n // 8}]"
            )
        zeros = _awq_integers(qzeros).t().contiguous()
    return _unsigned(_awq_integers(qweight).t().contiguous(), scales.t().contiguous(), zeros, 4)


def from_mxfp4(blocks: Any, scales: Any, *, expert: int | None = None) -> QuantizedWeight:
    """Weights of MXFP4 as gpt-oss stores them: uint8 blocks [n, k / 32, 16], two elements to a byte, the even
    one in the low half, and scales [n, k / 32]. Of experts, [E, n, k / 32, 16] and [E, n, k / 32], `expert`
    says which. Raises WeightError."""
    shaped = blocks.dim() in (3, 4) and blocks.shape[-1] == MX_GROUP // 2 and blocks.numel() > 0
    if blocks.dtype is not torch.uint8 or not shaped:
        raise WeightError(
            f"blocks is {list(blocks.shape)} of {blocks.dtype}; gpt-oss stores MXFP4 as uint8 "
            "[N, K / 32, 16], or [E, N, K / 32, 16] for E experts"
        )
    if scales.dtype not in MX_SCALES or tuple(scales.shape) != tuple(blocks.shape[:-1]):
        raise WeightError(
            f"scales is {list(scales.shape)} of {scales.dtype}; blocks of {list(blocks.shape)} have uint8 "
            f"scales of {list(blocks.shape[:-1])}"
        )
    experts = blocks.shape[0] if blocks.dim() == 4 else None
    if (experts is None) != (expert is None):
        has = "one matrix, and has no experts" if experts is None else f"of {experts} experts: give expert="
        raise WeightError(f"blocks of {list(blocks.shape)} is {has}")
    if experts is not None and expert is not None:
        if not 0 <= expert < experts:
            raise WeightError(f"expert {expert} is not of 0 to {experts - 1}")
        blocks, scales = blocks[expert], scales[expert]
    data = blocks.reshape(blocks.shape[0], -1)
    return QuantizedWeight(data.contiguous(), scales.contiguous()).check()


def _fits(scales: Any, n: int, k: int) -> bool:
    """Whether scales are [groups, n] of groups that divide k."""
    groups, columns = scales.shape if scales.dim() == 2 else (0, 0)
    return groups > 0 and columns == n and k % int(groups) == 0


def _awq_integers(words: Any) -> Any:
    inverse = [_AWQ_ORDER.index(one) for one in range(8)]
    return _apart(words, 4)[..., inverse].reshape(words.shape[0], -1)


def _unsigned(integers: Any, scales: Any, zeros: Any, bits: int) -> QuantizedWeight:
    """Unsigned integers [n, k] with zero points [n, groups]; without them with the half range."""
    constant = zeros is None or bool((zeros == 2 ** (bits - 1)).all())
    if bits == 8:
        if not constant:
            raise WeightError("8-bit weights with zero points other than 128 have no stored form here")
        return QuantizedWeight((integers - 128).to(torch.int8), scales).check()
    data = pack_int4(integers)
    if constant:
        return QuantizedWeight(data, scales, None, "eight").check()
    if integers.shape[0] % ZERO_ROWS:
        raise WeightError(
            f"zero points of {ZERO_ROWS} rows share a word, and {integers.shape[0]} rows are no multiple "
            "of that"
        )
    return QuantizedWeight(data, scales, pack_zeros(zeros), "uint4").check()


def _check_order(g_idx: Any, k: int, size: int, name: str) -> None:
    """Raises WeightError for groups that are not in the order of k (act-order)."""
    if g_idx is None or g_idx.numel() == 0 or bool((g_idx < 0).all()):
        return
    if g_idx.numel() != k or bool((g_idx.reshape(-1).cpu() != torch.arange(k) // size).any()):
        raise WeightError(
            f"{name} has groups that are not in the order of k (act-order): the stored form has no "
            "permutation of the activations. Quantise with desc_act=False, or use static groups"
        )


def _apart(words: Any, bits: int) -> Any:
    """The unsigned integers of words, in a dimension of their own behind theirs, the lowest first."""
    places = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    return (words.unsqueeze(-1) >> places) & (2**bits - 1)


def _nibbles(words: Any) -> Any:
    return _apart(words, 4)
