"""Dequantising weights with torch's elementwise operations, as a framework's user does who has no kernel for
them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from backends.dtypes import FP8_WEIGHT
from backends.problem import GemmProblem
from backends.quantisation import MX_GROUP, MX_NAN, SQUARE, ZERO_ROWS, groups_of, scale_rows

#: A type's name -> the bits that a 4-bit float's exponent and mantissa are shifted by, and the power of two
#: by which the number is then too small.
_FLOAT_PLACES = {"bf16": (6, 126), "fp16": (9, 14), "fp32": (22, 126)}

_TORCH_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

Steps = list[Callable[[], Any]]
#: (name, shape, dtype, device) -> a tensor.
Empty = Callable[[str, tuple[int, ...], Any, Any], Any]


def plain_of(p: GemmProblem) -> GemmProblem:
    """The product by the dequantised weights, which are packed; of two MXFP4 operands by both, in D's type
    (in fp32 by tf32, in which their numbers are exact)."""
    if p.mx_product:
        kind, compute = p.dtype_d, "tf32" if p.dtype_d == "fp32" else "fp32"
        return replace(
            p, dtype_a=kind, dtype_b=kind, compute=compute, scale_a="none", scale_b="none", scale_dtype=None,
            lda=p.k, ldb=p.k,
        )  # fmt: skip
    return replace(
        p, dtype_a=p.dtype_b, scale_a="none", scale_dtype=None, zero_a="none", lda=p.k, stride_a=p.k * p.m,
        prepacked=False,
    )  # fmt: skip


def buffers(torch: Any) -> Empty:
    """Makes a tensor of every name once."""
    made: dict[str, Any] = {}

    def empty(name: str, shape: tuple[int, ...], dtype: Any, device: Any) -> Any:
        if name not in made:
            made[name] = torch.empty(shape, dtype=dtype, device=device)
        return made[name]

    return empty


def dequantising(
    torch: Any, p: GemmProblem, tensors: Mapping[str, Any], empty: Empty | None = None
) -> tuple[Any, Steps]:
    """A buffer [n, k] of the activations' type, and the operations that fill it with the dequantised weights,
    without allocating. Weights of all groups of a grouped product, [groups, n, bytes], fill one of
    [groups, n, k]. `empty` makes the buffers, for several calls that share them."""
    stored, k, groups = tensors["a"], p.k, groups_of(p)
    rows, kind = tuple(stored.shape[:-1]), tensors["b"].dtype
    empty = buffers(torch) if empty is None else empty
    if p.mx:
        return _dequantising_mxfp4(torch, p.dtype_b, stored, _powers(torch, tensors["scale_a"]), empty)
    buffer = empty("buffer", (*rows, k), kind, stored.device)
    steps: Steps = []
    if p.dtype_a in ("int8", FP8_WEIGHT):
        steps.append(lambda: buffer.copy_(stored))
    else:
        halves = empty("halves", (*rows, k // 2, 2), torch.uint8, stored.device)
        low, high, whole = halves[..., 0], halves[..., 1], halves.reshape(*rows, k)
        steps.append(lambda: torch.bitwise_and(stored, 15, out=low))
        steps.append(lambda: torch.bitwise_right_shift(stored, 4, out=high))
        if p.dtype_a == "int4":
            steps.append(lambda: halves.bitwise_xor_(8))
        steps.append(lambda: buffer.copy_(whole))
    by_group = buffer.reshape(*rows, groups, k // groups)
    each = (*rows, groups, 1)
    scales = tensors["scale_a"]
    if p.scale_a == SQUARE:
        scales = scales.repeat_interleave(scale_rows(p), dim=-2)[..., : rows[-1], :]
    scales = scales.reshape((1, 1, 1) if p.scale_a == "tensor" else each)
    if p.dtype_a == "int4" or p.zero_a in ("eight", "shift"):
        steps.append(lambda: buffer.sub_(8))
    if p.zero_a == "uint4":
        words = tensors["zero_a"].reshape(-1, groups, 4, 1)
        shifts = torch.tensor([0, 4], dtype=torch.uint8, device=stored.device)
        places = torch.bitwise_and(torch.bitwise_right_shift(words, shifts), 15)  # [n / 8, groups, 4, 2]
        zeros = places.reshape(-1, groups, ZERO_ROWS).transpose(1, 2).reshape(each)
        subtracted = zeros.to(kind)
        steps.append(lambda: by_group.sub_(subtracted))
    if p.zero_a == "float":
        subtracted = tensors["zero_a"].reshape(each)
        steps.append(lambda: by_group.sub_(subtracted))
    if p.zero_a == "shift":
        added, own = tensors["zero_a"].reshape(each).to(kind), scales.to(kind)
        steps.append(lambda: torch.addcmul(added, by_group, own, out=by_group))
    else:
        steps.append(lambda: by_group.mul_(scales))
    return buffer, steps


def dequantising_both(torch: Any, p: GemmProblem, tensors: Mapping[str, Any]) -> tuple[Any, Any, Steps]:
    """Buffers [n, k] of the weights' and [m, k] of the activations' numbers of a product of two MXFP4
    operands, in D's type, and the operations that fill them, without allocating. Scales of activations are
    converted in every launch, those of weights once, when a model is loaded."""
    powers = {"a": _powers(torch, tensors["scale_a"])}
    powers["b"] = torch.empty(tensors["scale_b"].shape, dtype=torch.float32, device=tensors["b"].device)
    scales = tensors["scale_b"].view(torch.float8_e8m0fnu)
    converting: Steps = [lambda: powers["b"].copy_(scales)]
    weights, inputs = (
        _dequantising_mxfp4(torch, p.dtype_d, tensors[name], powers[name], buffers(torch))
        for name in ("a", "b")
    )
    return weights[0], inputs[0], [*converting, *weights[1], *inputs[1]]


def _powers(torch: Any, scales: Any) -> Any:
    """Scales of e8m0, as bytes, in fp32."""
    exponents = scales.to(torch.int32)
    powers = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents - 127)
    return torch.where(exponents == MX_NAN, float("nan"), powers)


def _dequantising_mxfp4(torch: Any, kind: str, stored: Any, powers: Any, empty: Empty) -> tuple[Any, Steps]:
    """The same for MXFP4, which torch has no call for: numbers of type `kind`, from scales in fp32. A
    float's bits are shifted to where the other type has them, which takes fewer operations than a table."""
    rows, k = tuple(stored.shape[:-1]), 2 * stored.shape[-1]
    groups, (places, power) = k // MX_GROUP, _FLOAT_PLACES[kind]
    bits = 32 if kind == "fp32" else 16
    halves, signs = (
        empty(name, (*rows, k // 2, 2), getattr(torch, f"int{bits}"), stored.device)
        for name in ("halves", "signs")
    )
    low, high = halves[..., 0], halves[..., 1]
    buffer = halves.view(getattr(torch, _TORCH_TYPES[kind])).reshape(*rows, k)
    by_group = buffer.reshape(*rows, groups, MX_GROUP)
    of_groups = powers.reshape(*rows, groups, 1)
    steps = [
        lambda: low.copy_(stored),
        lambda: torch.bitwise_right_shift(low, 4, out=high),
        lambda: torch.bitwise_left_shift(halves, bits - 4, out=signs),
        lambda: signs.bitwise_and_(-(2 ** (bits - 1))),
        lambda: halves.bitwise_and_(7),
        lambda: halves.bitwise_left_shift_(places),
        lambda: halves.bitwise_or_(signs),
        lambda: buffer.mul_(2.0**power),
        lambda: by_group.mul_(of_groups),
    ]
    return buffer, steps
