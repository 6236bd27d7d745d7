"""The float64 reference that candidates are compared with, and the error bound of every element.

The reference is numpy's float64 GEMM. It is certified once per case by Freivalds' random projection in plain
(non-BLAS) float64 arithmetic, which detects an error of 1e-9 of its row's sum, so the reference may be used
to check the library that computed it. Small integers, whose sums are exact in the accumulator, may differ
only by the output's rounding. For problems too large for a full comparison, sampled columns (the first, the
last, random ones) are compared in full and, for epilogues without an activation, all columns by projection.

Bound of an element: |out - ref| <= c u_acc sqrt(k) |alpha| ||a_i|| ||b_j|| + u_out |ref|, where u are unit
roundoffs. The first term is the statistical error growth of a sum of k products (Higham, Accuracy and
Stability, 2nd ed., 3.1) with Cauchy-Schwarz norms and c = 4; the second is the rounding to the output type,
with one more rounding before each epilogue step that is not fused. Of swiglu, silu(gate) * up, a framework
rounds gate, up and silu(gate) to the output type, so the bound allows for these roundings too. error_bound()
holds these constants; a device's own reference uses the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from backends.dtypes import COMPUTE_TYPES, DTYPES, INPUT_ROUNDOFF, INTEGER, is_fp8
from backends.errors import DeviceError
from backends.grouping import gated, spans_of
from backends.operands import as_product
from backends.problem import GemmProblem
from backends.problem_rules import BLOCKS, SWIGLU
from backends.quantisation import dequantised, groups_of, mx_numbers, roundings
from backends.reference_protocol import ErrorBound
from tuners.inputs import Case, host_inputs, scaled_down

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]

#: Problems with more floating-point operations than this are compared on sampled columns.
FULL_FLOPS = 2e10
_SAFETY = 4.0
#: Spacing of the numbers just above one in the accumulator of 8-bit products (see _narrow_sums).
_FP8_ULP = 2.0**-13
#: Random sign vectors that certify the reference. Two equal errors in a row cancel under one of them with
#: probability 1/2, and under all three with 1/8.
_CERTIFIED_BY = 3
#: Columns per projection. In a wider one a single wrong element would drown in rounding noise.
_CHUNK = 256


@dataclass(frozen=True)
class Projection:
    """A check of all columns at once: D's columns times `signs` [m], summed over chunks of columns, must
    equal `sums` [batch, n, chunks] within `accumulated` plus the error of rounding D itself."""

    signs: Float
    sums: Float
    accumulated: Float


@dataclass(frozen=True)
class Reference:
    """The expected result of a case. `columns` are the m-indices that are compared in full (None: all);
    `expected` and `tolerance` are [batch, n, len(columns)]; `projection` covers the other columns where it is
    applicable."""

    case: Case
    columns: npt.NDArray[np.int64] | None
    expected: Float
    tolerance: Float
    projection: Projection | None


def make_reference(case: Case) -> tuple[Reference, dict[str, Array]]:
    """The reference of a case, and its inputs. Raises DeviceError if numpy's float64 GEMM is wrong."""
    inputs = host_inputs(case.problem, case.seed, case.distribution)
    return reference_of(case, inputs), inputs


def reference_of(case: Case, inputs: Mapping[str, Array]) -> Reference:
    """The reference of a case for these inputs. Raises DeviceError if numpy's float64 GEMM is wrong."""
    p = case.problem
    columns = _sampled_columns(p, case.seed)
    if gated(p):
        return _gated(case, inputs, columns)
    left64 = _left(p, inputs)
    chosen = slice(None) if columns is None else columns
    if p.groups:
        product, right_norm = _grouped(p, left64, inputs, chosen, case.seed)
    else:
        right64 = _right(p, inputs, chosen)
        product = np.matmul(left64, right64)
        _certify(product, left64, right64, case.seed)
        right_norm = np.sqrt(np.einsum("bkm,bkm->bm", right64, right64))[:, None, :]
    if len(product) != p.batch:  # both A and B are broadcast
        product = np.repeat(product, p.batch, axis=0)
    alpha, beta = p.scalars
    left_norm = np.sqrt(np.einsum("bnk,bnk->bn", left64, left64))[:, :, None]
    bound = error_bound(p, case.distribution)
    value = np.multiply(product, alpha, out=product)
    added = np.abs(value)  # sum of the terms' absolute values; the terms may cancel
    if "c" in inputs:
        c = inputs["c"] if columns is None else inputs["c"][:, :, columns]
        scaled = beta * c.astype(np.float64)
        value += scaled
        added += np.abs(scaled, out=scaled)
    if "bias" in inputs:
        bias = inputs["bias"][0, 0].astype(np.float64)
        if p.bias_axis == "m":
            row = (bias if columns is None else bias[columns])[None, None, :]
        else:
            row = bias[None, :, None]
        value += row
        added += np.abs(row)
    tolerance = np.multiply(added, bound.step, out=added)
    tolerance += (bound.rough * abs(alpha)) * left_norm * right_norm
    tolerance *= bound.slope
    expected = activate(p.activation, value)
    if "scale_d" in inputs:
        scale = float(inputs["scale_d"][0, 0, 0])
        expected, tolerance = scale * expected, abs(scale) * tolerance
    if DTYPES[p.dtype_d].kind == INTEGER:
        info = np.iinfo(DTYPES[p.dtype_d].storage)
        expected = np.clip(expected, info.min, info.max)  # integers saturate
    tolerance += bound.rounding * np.abs(expected) + bound.least
    projection = None
    sums_up = p.dtype_d != "int8" and (_is_exact(p) or DTYPES[p.dtype_d].kind != INTEGER)
    if columns is not None and p.activation == "none" and sums_up and not p.groups:
        projection = _project(p, inputs, case.seed, left64, left_norm, bound.rough)
    return Reference(case, columns, expected, tolerance, projection)


def _left(p: GemmProblem, inputs: Mapping[str, Array]) -> Float:
    """op(B)^T, scaled, [copies, n, k]."""
    if p.mx_product:
        return mx_numbers(inputs["b"], inputs["scale_b"])
    left, _ = as_product(p, inputs["a"], inputs["b"])
    return _scaled(p, inputs, "scale_b", left.astype(np.float64))


def _gated(case: Case, inputs: Mapping[str, Array], columns: npt.NDArray[np.int64] | None) -> Reference:
    """reference_of() a product with swiglu. `columns`: of D."""
    p = case.problem
    own = np.arange(p.rows_d) if columns is None else columns
    rows, _ = as_product(p, inputs["a"], inputs["b"])
    left = rows.astype(np.float64)
    product, norms = _grouped(p, left, inputs, np.concatenate([own, own + p.rows_d]), case.seed)
    bound = error_bound(p, case.distribution)
    left_norm = np.sqrt(np.einsum("bnk,bnk->bn", left, left))[:, :, None]
    error = bound.step * np.abs(product) + bound.rough * left_norm * norms
    (gate, up), (off_gate, off_up) = (np.split(values, 2, axis=2) for values in (product, error))
    silu = activate("silu", gate)
    expected = silu * up
    tolerance = bound.slope * off_gate * (np.abs(up) + off_up) + np.abs(silu) * off_up
    tolerance += bound.rounding * np.abs(expected) + bound.least * (1 + np.abs(up))
    return Reference(case, columns, expected, tolerance, None)


def _right(p: GemmProblem, inputs: Mapping[str, Array], columns: npt.NDArray[np.int64] | slice) -> Float:
    """The given columns of op(A)^T, scaled, [copies, k, columns]."""
    if p.weight_only:
        zeros = inputs["zero_a"][0] if "zero_a" in inputs else None
        found: Float = dequantised(
            p, inputs["a"], inputs["scale_a"][0].reshape(-1, groups_of(p)), zeros, columns
        )
        return found.swapaxes(1, 2)
    if p.mx_product:
        return mx_numbers(inputs["a"][:, columns], inputs["scale_a"][:, columns]).swapaxes(1, 2)
    _, right = as_product(p, inputs["a"], inputs["b"])
    return _scaled(p, inputs, "scale_a", right[:, :, columns].astype(np.float64), columns)


def _grouped(
    p: GemmProblem,
    left: Float,
    inputs: Mapping[str, Array],
    columns: npt.NDArray[np.int64] | slice,
    seed: int,
) -> tuple[Float, Float]:
    """The product of every row by the given rows of its group's weights, scaled, and these weights' norms,
    both [1, n, columns]."""
    weights = inputs["a"][:, columns]
    product, norms = (np.zeros((1, p.n, weights.shape[1])) for _ in range(2))
    for group, start, end in spans_of(p):
        own = {name: inputs[name][group : group + 1] for name in ("a", "scale_a", "zero_a") if name in inputs}
        right = _right(p, {**inputs, **own}, columns)
        rows = left[:, start:end]
        product[:, start:end] = np.matmul(rows, right)
        _certify(product[:, start:end], rows, right, seed)
        norms[:, start:end] = np.sqrt(np.einsum("bkm,bkm->bm", right, right))[:, None, :]
    return product, norms


def _steps(p: GemmProblem) -> int:
    """Number of epilogue steps. A framework that does not fuse them rounds to the output type before each
    one, which its users accept as correct."""
    return (p.alpha != "one") + (p.beta != "zero") + (p.bias is not None) + (p.activation != "none")


def activate(name: str, x: Float) -> Float:
    """relu, gelu (tanh approximation) or silu in float64."""
    if name == "relu":
        return np.maximum(x, 0.0)
    if name == "gelu":
        x = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * x * (1 + 0.044715 * x * x)))
    if name == "silu":
        with np.errstate(over="ignore"):
            x = x / (1 + np.exp(-x))
    return x


def _scaled(
    p: GemmProblem,
    inputs: Mapping[str, Array],
    name: str,
    values: Float,
    columns: npt.NDArray[np.int64] | slice | None = None,
) -> Float:
    """op(B)^T times scale_b, or the given columns of op(A)^T times scale_a; unchanged without a scale."""
    if name not in inputs:
        return values
    mode = getattr(p, name)
    if mode in BLOCKS:
        of_rows = _block_scales(inputs[name][0], mode, p.k, p.m if name == "scale_a" else p.n)
        chosen = of_rows if columns is None else of_rows[columns]
        found: Float = values * (chosen.T if name == "scale_a" else chosen)[None]
        return found
    scale = inputs[name][0, 0].astype(np.float64)
    if columns is not None and scale.size > 1:
        scale = scale[columns]
    scaled: Float = values * (scale[None, None, :] if name == "scale_a" else scale[None, :, None])
    return scaled


def _block_scales(scales: Array, mode: str, k: int, rows: int) -> Float:
    """The scale of every element [rows, k] of an operand, from those of its blocks."""
    side, depth = BLOCKS[mode]
    whole = scales.astype(np.float64).repeat(side, axis=0).repeat(depth, axis=1)
    return whole[:rows, :k]


def error_bound(problem: GemmProblem, distribution: str) -> ErrorBound:
    """The constants of an element's bound, for inputs of `distribution` (before inputs.scaled_down)."""
    p, out = problem, DTYPES[problem.dtype_d]
    distribution = scaled_down(distribution, p)
    unit = 2.0 ** -COMPUTE_TYPES[p.compute] if p.compute != "int32" else 0.0
    narrow = is_fp8(DTYPES[p.input_type])
    depths = [BLOCKS[scale][1] for scale in (p.scale_a, p.scale_b) if scale in BLOCKS]
    length = min(p.k, *depths) if depths else p.k  # of the sums before they are scaled
    whole = distribution == "integers" and not p.weight_only and not p.mx_product
    exact = whole and p.compute != "int32" and 64 * length <= 1 / unit
    if (
        narrow
    ):  # the narrow accumulator holds integers up to six standard deviations of the sum, with a bit to spare
        exact = exact and 6 * (20 / 3) * length**0.5 <= 0.5 / _FP8_ULP
    if exact and not depths:
        unit = 0.0  # |a|, |b| <= 4, so every partial sum is exact; scaled sums of blocks are rounded
    rough = unit * p.k**0.5 + 2 * INPUT_ROUNDOFF.get(p.compute, 0.0)
    if p.compute == "int32" and _is_scaled(p):
        rough += 2.0**-53 * p.k**0.5  # the reference adds up scaled integers in float64
    if p.weight_only and not p.mx:  # numbers of MXFP4 are exact in 16 bits
        rough += _rounded_weights(p, distribution)
    if narrow and not exact:
        rough += _narrow_sums(p, distribution)
    # If an exact integer sum is combined with fractions or a floating output, the epilogue is in fp32.
    step = unit if p.compute != "int32" or _is_exact(p) else 2.0**-24
    step = 4 * step + _steps(p) * out.unit_roundoff
    slope, rounding, least = 1.0, 0.0, 0.5
    if out.kind != INTEGER:
        smallest = ml_dtypes.finfo(out.storage).smallest_subnormal  # type: ignore[no-untyped-call]
        rounding = 1.01 * out.unit_roundoff
        least = max(float(np.finfo(np.float32).tiny), float(smallest))
    if p.activation == SWIGLU:
        rounding += 1.01 * out.unit_roundoff  # of silu(gate), before it is multiplied by up
    if p.activation in ("gelu", "silu", SWIGLU):
        # Slopes stay below 1.13; evaluating the functions costs a few ulp.
        slope, rounding, least = 1.2, rounding + 32 * 2.0**-24, least + 32 * 2.0**-44
    if _is_scaled(p):  # scales, and multiplications by them, are in single precision
        step, rounding = step + 4 * 2.0**-24, rounding + 2 * 2.0**-24
    return ErrorBound(_SAFETY * rough, step, slope, rounding, least)


def _rounded_weights(p: GemmProblem, distribution: str) -> float:
    """The error of sums of quantised weights that are rounded once to the activations' type, relative to the
    norms. The errors of a row are independent of signed activations' signs. With one-sided activations they
    add up as far as they are equal: equal integers of a group have the same error."""
    independent = roundings(p) if distribution == "uniform" else p.k
    return 2 * DTYPES[p.input_type].unit_roundoff / math.sqrt(independent)


def _narrow_sums(p: GemmProblem, distribution: str) -> float:
    """The additional error of fp8 sums, relative to the norms, when the accumulator is narrower than fp32.

    Hopper's tensor cores align 32 products and the accumulator to the largest of them, keep about 14 bits of
    the sum and truncate the rest; DeepSeek-V3 (arXiv:2412.19437, 3.3.2) reports errors near 2% of the result
    at k = 4096. With fast accumulation all k/32 steps use this accumulator. Truncation is towards zero, so
    one-sided sums lose half an ulp of the running sum at every step; signed sums lose half an ulp of a sum
    that is sqrt(k) times smaller. Without fast accumulation, partial sums are added in fp32 every few steps.
    """
    if not p.fast_accumulation:
        return _FP8_ULP
    steps = p.k / 64 if distribution == "uniform" else p.k**0.5 / 32
    return _FP8_ULP * (1 + steps)


def _is_exact(p: GemmProblem) -> bool:
    """Whether every step is integer arithmetic."""
    added = ([p.dtype_c] if p.beta != "zero" else []) + ([p.bias] if p.bias is not None else [])
    whole = all(DTYPES[kind].kind == INTEGER for kind in [p.dtype_d, *added]) and not _is_scaled(p)
    return p.compute == "int32" and whole and p.activation in ("none", "relu")


def _is_scaled(p: GemmProblem) -> bool:
    return {p.scale_a, p.scale_b, p.scale_d} != {"none"}


def _certify(product: Float, left: Float, right: Float, seed: int) -> None:
    """Freivalds' check without BLAS: product @ x must equal left @ (right @ x) for random signs x. Raises
    DeviceError."""
    x = np.random.default_rng([seed, 0xF1E1]).choice([-1.0, 1.0], (product.shape[2], _CERTIFIED_BY))
    got = np.einsum("bnm,mx->bnx", product, x)
    inner = np.einsum("bkm,mx->bkx", right, x)
    want = np.einsum("bnk,bkx->bnx", left, inner)
    scale = np.einsum("bnm->bn", np.abs(product))[:, :, None] + np.abs(want)
    if not np.all(np.isfinite(scale) & (np.abs(got - want) <= 1e-9 * scale + 1e-300)):
        raise DeviceError("numpy's float64 matrix product is wrong on this machine; nothing can be verified")


def _sampled_columns(p: GemmProblem, seed: int) -> npt.NDArray[np.int64] | None:
    if p.flops <= FULL_FLOPS:
        return None
    rows = p.rows_d
    budget = max(96, int(rows * FULL_FLOPS / 4 / p.flops))
    rng = np.random.default_rng([seed, rows])
    edges = [
        np.arange(min(32, rows)),
        np.arange(max(0, rows - 32), rows),
        rng.choice(rows, min(rows, budget), replace=False),
    ]
    return np.unique(np.concatenate(edges))


def _project(
    p: GemmProblem, inputs: Mapping[str, Array], seed: int, left: Float, left_norm: Float, rough: float
) -> Projection:
    signs = np.random.default_rng([seed, 0x51]).choice([-1.0, 1.0], p.m)
    alpha, beta = p.scalars
    sums, norms = [], []
    for start in range(0, p.m, _CHUNK):
        part = slice(start, start + _CHUNK)
        block = _right(p, inputs, part)
        sums.append(np.einsum("bkm,m->bk", block, signs[start : start + _CHUNK]))
        norms.append(np.sqrt(np.einsum("bkm,bkm->b", block, block)))
    want = alpha * np.einsum("bnk,bkc->bnc", left, np.stack(sums, 2))
    if "c" in inputs:
        want = want + beta * chunk_sums(inputs["c"], signs)
    if "bias" in inputs:
        bias = inputs["bias"][0, 0].astype(np.float64)
        row = (
            bias[None, None, :] if p.bias_axis == "m" else np.broadcast_to(bias[None, :, None], (1, p.n, p.m))
        )
        want = want + chunk_sums(row, signs)
    scale = float(inputs["scale_d"][0, 0, 0]) if "scale_d" in inputs else 1.0
    frobenius = np.stack(norms, 1)[:, None, :]  # bounds the root of the sum of a chunk's squared errors
    accumulated = 6 * rough * abs(alpha * scale) * left_norm * frobenius
    exact = 0.5 if DTYPES[p.dtype_d].kind == INTEGER else float(np.finfo(np.float32).tiny)
    return Projection(signs, scale * want, accumulated + exact)


def chunk_sums(values: Array, signs: Float) -> Float:
    """Sums of sign * value over chunks of the last axis."""
    return np.stack(
        [
            np.einsum(
                "bnm,m->bn",
                values[:, :, at : at + _CHUNK].astype(np.float64),
                signs[at : at + _CHUNK],
            )
            for at in range(0, len(signs), _CHUNK)
        ],
        axis=2,
    )
