"""The command line's words for problems and files."""

from __future__ import annotations

from typing import Any

import pytest

from backends.problem import from_linear
from service.formats.core.base import Rejected
from service.report import problem_text, rejected_table

UINT4 = {"dtype_b": "uint4", "scale_b": "block_1x64", "scale_dtype": "bf16", "zero_b": "eight"}
MXFP4 = {"dtype_b": "fp4_e2m1", "scale_b": "block_1x32", "scale_dtype": "fp8_e8m0"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "4x64x256 bf16 NT"),
        (UINT4, "4x64x256 bf16 NT b:uint4 block_1x64+bf16+eight"),
        ({**UINT4, "prepacked": True}, "4x64x256 bf16 NT b:uint4 block_1x64+bf16+eight prepacked"),
        ({**MXFP4, "prepacked": True}, "4x64x256 bf16 NT b:fp4_e2m1 block_1x32+fp8_e8m0 prepacked"),
        ({"groups": 8}, "4x64x256 bf16 NT 8 groups uniform"),
        ({"groups": 2, "routing": "3,1"}, "4x64x256 bf16 NT 2 groups of given rows"),
        ({"groups": 8, "activation": "swiglu"}, "4x64x256 bf16 NT 8 groups uniform swiglu"),
        (
            {"groups": 8, "activation": "swiglu", "dtype_d": "fp32"},
            "4x64x256 bf16 NT 8 groups uniform d:fp32 swiglu",
        ),
        ({"groups": 8, "activation": "swiglu", "ldd": 64}, "4x64x256 bf16 NT 8 groups uniform swiglu padded"),
    ],
    ids=str,
)
def test_a_problem_in_a_few_words(options: dict[str, Any], words: str) -> None:
    assert problem_text(from_linear(4, 64, 256, "bf16", **options)) == words


@pytest.mark.parametrize(("count", "title"), [(1, "1 line rejected"), (2, "2 lines rejected")])
def test_lines_that_were_rejected_are_counted(count: int, title: str) -> None:
    assert rejected_table([Rejected(1, "no number", "x")] * count).title == title
