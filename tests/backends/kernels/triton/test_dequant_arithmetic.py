"""What the kernel of quantised weights computes, through Triton's interpreter: every storage type, scale and
zero point; rows, columns and k that are no whole tile; slices of k; planted mistakes; scales that are NaN."""

from __future__ import annotations

from math import isnan, nan
from typing import Any

import pytest

from backends.dtypes import FP8_WEIGHT
from backends.problem import GemmProblem
from backends.quantisation import GROUPS
from backends.toolchains.triton import missing
from tests.backends.kernels.triton.asking import Asked, Mistake, line
from tests.backends.weight_samples import every_kind, mxfp4, weights

pytestmark = [pytest.mark.torch, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


def ident(p: GemmProblem) -> str:
    return f"{p.dtype_a} {p.zero_a} {p.scale_a} {p.dtype_b}"


#: Every kind of weight, with one group a step, several, or several steps a group; in slices; A or B.
KINDS = {
    ident(p): (p, {"block_k": (32, 64, 128, 256)[at % 4], "split_k": 1 + at % 3, "swap": at // 2 % 2 == 1})
    for at, p in enumerate(
        one
        for one in (
            *every_kind(36, 40, 512),
            *every_kind(36, 40, 256, dtype_a="fp16", scale_dtype="fp16")[:-1],  # no MXFP4 by fp16
        )
        if one.dtype_a != FP8_WEIGHT
    )
}  # fmt: skip
CASES: dict[str, tuple[GemmProblem, dict[str, Any]]] = {
    **KINDS,
    "one row": (weights(1, 130, 256, zero_b="eight"), {"swap": True, "block_n": 16, "split_k": 2}),
    "one row, one column": (weights(1, 1, 128, zero_b="eight"), {}),
    "a k tail of groups": (weights(40, 72, 96, zero_b="uint4", scale_b="block_1x32"), {"block_k": 64}),
    "a k tail of one group in eight": (
        weights(33, 72, 288, zero_b="shift", scale_b="block_1x32"), {"block_k": 256, "swap": True},
    ),
    "a k tail of rows": (weights(40, 70, 50, zero_b="eight", scale_b="outer", scale_dtype="fp32"), {}),
    "a k tail of int8": (
        weights(40, 70, 131, "int8", scale_b="outer", scale_dtype="fp32", alignment=1), {"split_k": 3},
    ),
    "a matrix's scale": (weights(40, 70, 48, "int8", scale_b="tensor", scale_dtype="fp32"), {"swap": True}),
    "scales of groups of another type": (
        weights(40, 72, 256, zero_b="uint4", scale_dtype="fp32", scale_b="block_1x64"), {"block_k": 128},
    ),
    "zero points of another type": (
        weights(40, 72, 256, zero_b="float", scale_dtype="fp16", scale_b="block_1x64"), {"swap": True},
    ),
    "scales of rows of another type": (weights(40, 70, 64, "int4", scale_b="outer", scale_dtype="fp16"), {}),
    "fused": (
        weights(40, 72, 256, zero_b="float", bias="bf16", activation="silu", beta=2.0, alpha=1.5), {},
    ),
    "fused, in slices, A": (
        weights(40, 72, 256, "int8", scale_b="outer", bias="fp32", activation="gelu", dtype_d="fp32"),
        {"split_k": 3, "swap": True},
    ),
    "padded": (weights(70, 136, 512, zero_b="uint4", lda=520, ldb=544, ldd=141), {"swap": True}),
    "mxfp4, a k tail": (mxfp4(40, 131, 544, alignment=2), {"block_k": 256}),
    "mxfp4, one group a step": (mxfp4(33, 67, 96, ldb=98), {"block_k": 32, "swap": True, "split_k": 2}),
    # What the compiler gets wrong for fewer warps (dequant_configuration.py: miscompiled()).
    "steps of 16": (weights(40, 72, 256, zero_b="eight"), {"block_k": 16, "num_warps": 8, "swap": True}),
    "steps of 16, in slices": (
        weights(40, 72, 384, zero_b="uint4"), {"block_k": 16, "num_warps": 8, "split_k": 3},
    ),
    "more slices than steps": (weights(40, 72, 128, zero_b="eight"), {"split_k": 8, "block_k": 64}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_right(name: str, interpreter: Asked) -> None:
    answer = interpreter(line(*CASES[name]))
    assert answer["wrong"] == ""
    assert "exact" in answer["cases"]
    assert any(case.startswith("ragged") for case in answer["cases"])


LONG = weights(36, 72, 640, zero_b="uint4", scale_b="block_1x64")
#: What is mistaken -> the text of a function, what stands there instead, a problem that shows it, parameters.
MISTAKES: dict[str, tuple[Mistake, GemmProblem, dict[str, Any]]] = {
    "the high half first": (
        ("elements_of", "interleave(stored & 15, stored >> 4)", "interleave(stored >> 4, stored & 15)"),
        LONG, {},
    ),
    "no sign": (
        ("elements_of", "(nibbles ^ 8).to(tl.float32) - 8.0", "nibbles.to(tl.float32)"),
        weights(36, 40, 128, "int4"), {},
    ),
    "numbers below one": (("elements_of", "code < 2", "code < 1"), mxfp4(36, 40, 128), {}),
    "an exponent": (("power_of_two", "exponent << 23", "exponent + 1 << 23"), mxfp4(36, 40, 128), {}),
    "no eight": (("dequantise", "found -= 8.0", "found -= 7.0"), weights(36, 40, 128, zero_b="eight"), {}),
    "another row's zero point": (("dequantise", "% 2 == 0", "% 2 == 1"), LONG, {}),
    "the zero point two rows below": (("dequantise", "% 8 // 2", "% 4 // 2"), LONG, {}),
    "zero points of other rows": (("dequantise", "// 8 * groups", "// 8 * 0"), LONG, {}),
    "a row's first group": (("dequantise", "at = group +", "at = 0 * group +"), LONG, {}),
    "a step's first group": (
        ("by_group", "COUNT, BLOCK_K // COUNT))", "COUNT, BLOCK_K // COUNT)).flip(1)"), LONG,
        {"block_k": 128},
    ),
    "other rows' scales": (("dequantise", "rows[:, None] * groups + at", "rows[:, None] * 0 + at"), LONG, {}),
    "a slice's first group": (
        ("dequant_gemm", "(first + step) * BLOCK_K", "step * BLOCK_K"), LONG, {"split_k": 2},
    ),
    "elements beyond the last": (
        ("dequant_gemm", "rk < left", "rk < left + 64"),
        weights(36, 40, 50, zero_b="eight", scale_b="outer"), {},
    ),
    "steps of weights": (("dequant_gemm", "at_w += BLOCK_K // PACKED", "at_w += BLOCK_K"), LONG, {}),
    "a scale that is applied twice": (
        ("dequantise", "if SCALED:", "if ZERO == 'eight':"),
        weights(36, 40, 128, zero_b="eight", scale_b="outer"), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_shows(name: str, interpreter: Asked) -> None:
    mistake, problem, changed = MISTAKES[name]
    assert interpreter(line(problem, changed))["wrong"] == ""
    wrong = interpreter(line(problem, changed, mistake))["wrong"]
    assert "off" in wrong or "NaN" in wrong, wrong


@pytest.mark.parametrize("number", [nan, 0.0])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(
    "problem",
    [weights(40, 72, 192, zero_b="eight", scale_b="block_1x64"), mxfp4(40, 72, 96),
     weights(40, 72, 100, "int8", scale_b="outer"), weights(40, 72, 100, zero_b="shift", scale_b="outer")],
    ids=ident,
)  # fmt: skip
def test_a_scale_that_is_nan_or_zero_reaches_its_own_row_alone(
    problem: GemmProblem, swap: bool, number: float, interpreter: Asked
) -> None:
    """A step of 128 reaches beyond the last group."""
    if problem.mx and number == 0.0:
        number = 2.0**-127  # the least that an e8m0 scale has
    group = 1 if problem.scale_a in GROUPS else 0
    asked = line(problem, {"swap": swap, "block_k": 128}, scale=(70, group, number))
    assert interpreter(asked)["cases"] == ([[70, 40]] if isnan(number) else [])
