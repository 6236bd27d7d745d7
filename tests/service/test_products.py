"""Kinds of products and their rows, by which lists of one device are told apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backends.problem import GemmProblem, from_linear
from service.products import product_text, products_of

WEIGHTS = from_linear(
    4, 64, 256, "bf16", dtype_b="uint4", scale_b="block_1x64", scale_dtype="bf16", zero_b="eight"
)  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (from_linear(4, 64, 256, "bf16", bias="bf16"), "bf16"),
        (from_linear(4, 64, 256, "fp32", compute="tf32"), "tf32"),
        (WEIGHTS, "bf16 b:uint4 block_1x64"),
        (replace(WEIGHTS, prepacked=True), "bf16 b:uint4 block_1x64 prepacked"),
        (from_linear(4, 64, 256, "int8", dtype_d="bf16", scale_a="outer", scale_b="outer"), "int8 outer"),
        (
            from_linear(4, 128, 256, "fp8_e4m3", scale_a="block_1x128", scale_b="block_128x128"),
            "fp8_e4m3 block_1x128+block_128x128",
        ),
        (from_linear(4, 64, 256, "bf16", groups=2), "bf16 groups"),
    ],
)
def test_what_a_problem_multiplies(problem: GemmProblem, text: str) -> None:
    assert product_text(problem) == text


def test_the_products_of_a_list() -> None:
    plain = [from_linear(m, 64, 256, "bf16") for m in (16, 1)]
    assert products_of([WEIGHTS, *plain]) == {
        "types": ["bf16", "bf16 b:uint4"],
        "products": {"bf16": 2, "bf16 b:uint4 block_1x64": 1},
        "m": {"least": 1, "most": 16},
    }
    assert products_of([]) == {"types": [], "products": {}, "m": None}
