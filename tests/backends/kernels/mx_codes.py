"""Operands of MXFP4 that multiply every code by every code."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dtypes import DTYPES, E2M1
from backends.problem import GemmProblem
from backends.quantisation import mx_numbers, packed
from tests.backends.weight_samples import mx_product

E8M0 = DTYPES["fp8_e8m0"].storage
COLUMNS, K = 48, 128


def every_code(rows: int) -> tuple[GemmProblem, dict[str, Any], npt.NDArray[np.float32]]:
    """A product of `rows` rows of weights to fp32, its operands by name, and what it is, [COLUMNS, rows]. A
    row and a column have one product, of another place and code in each column, under the scale of the row's
    number (255 is NaN), times scales that give numbers of fp32, rounded once to them."""
    rng = np.random.default_rng(5)
    codes_w, codes_x = np.zeros((rows, K), int), np.zeros((COLUMNS, K), int)
    for column in range(COLUMNS):
        codes_x[column, (5 * column) % 32] = column % 16
    codes_w[:, :32] = rng.integers(0, 16, (rows, 32))
    scales_w, scales_x = np.full((rows, 4), 127, np.uint8), np.full((COLUMNS, 4), 127, np.uint8)
    scales_w[:, 0] = np.arange(rows)
    scales_x[:, 0] = 127 + np.arange(COLUMNS) % 5 - 2
    given = {
        "a": packed(np.array(E2M1)[codes_w], "fp4_e2m1"), "b": packed(np.array(E2M1)[codes_x], "fp4_e2m1"),
        "scale_a": scales_w, "scale_b": scales_x,
    }  # fmt: skip
    w, x = (mx_numbers(given[name], given[f"scale_{name}"].view(E8M0)) for name in ("a", "b"))
    with np.errstate(over="ignore"):
        product = (x @ w.T).astype(np.float32)
    return mx_product(COLUMNS, rows, K, dtype_d="fp32"), given, product


def beyond_fp32(power: int) -> tuple[GemmProblem, dict[str, Any]]:
    """A product of two rows of x by two of weights, whose group's scales multiply to 2**power: the first
    element of the first rows is 0.5, everything else is zero."""
    codes = np.zeros((2, 32), int)
    codes[0, 0] = E2M1.index(0.5)
    of_w = min(power, 127)
    given = {
        "a": packed(np.array(E2M1)[codes], "fp4_e2m1"), "b": packed(np.array(E2M1)[codes], "fp4_e2m1"),
        "scale_a": np.full((2, 1), 127 + of_w, np.uint8),
        "scale_b": np.full((2, 1), 127 + power - of_w, np.uint8),
    }  # fmt: skip
    return mx_product(2, 2, 32, dtype_d="fp32"), given
