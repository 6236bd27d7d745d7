"""Products of two MXFP4 operands in the reference: what kernels and frameworks compute passes, planted
mistakes do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from backends.dtypes import DTYPES, to_host
from backends.operands import layouts
from backends.problem import GemmProblem
from backends.quantisation import mx_numbers
from tests.backends.weight_samples import mx_product
from tuners.inputs import DISTRIBUTIONS, Case, cases
from tuners.reference import make_reference
from tuners.verify import compare

Array = npt.NDArray[Any]
Operands = dict[str, Array]


def computed(p: GemmProblem, inputs: Mapping[str, Array], dequantised: Any = np.float32) -> Array:
    """The product in single precision of operands that are rounded once to `dequantised`."""
    x, w = (mx_numbers(inputs[name], inputs[f"scale_{name}"])[0].astype(dequantised) for name in "ba")
    return to_host(x.astype(np.float32) @ w.astype(np.float32).T, DTYPES[p.dtype_d])[None]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[:4])
@pytest.mark.parametrize("out", ["bf16", "fp16", "fp32"])
def test_what_kernels_and_frameworks_compute_is_right(out: str, distribution: str) -> None:
    for problem in (mx_product(9, 33, 512, dtype_d=out), mx_product(3, 40, 4096, dtype_d=out)):
        reference, inputs = make_reference(Case(problem, 1, distribution, "test"))
        for kind in (np.float32, ml_dtypes.bfloat16, np.float16):  # exact in each
            assert not compare(reference, computed(problem, inputs, kind)).wrong


def _swapped(name: str) -> Callable[[Operands], None]:
    def change(inputs: Operands) -> None:
        inputs[name] = inputs[name] >> 4 | inputs[name] << 4

    return change


def _rolled(name: str, axis: int) -> Callable[[Operands], None]:
    def change(inputs: Operands) -> None:
        inputs[name] = np.roll(inputs[name].view(np.uint8), 1, axis=axis).view(inputs[name].dtype)

    return change


def _bias(inputs: Operands) -> None:
    """Exponents of e8m0 with a bias of 128, as of e8m0's FNUZ kind."""
    inputs["scale_b"] = (inputs["scale_b"].view(np.uint8) - 1).view(inputs["scale_b"].dtype)


def _exchanged(inputs: Operands) -> None:
    """Two rows of scales of the activations."""
    scales = inputs["scale_b"].copy()
    scales[0, [1, 2]] = scales[0, [2, 1]]
    inputs["scale_b"] = scales


def _one_group(inputs: Operands) -> None:
    """One group of one row has twice its scale."""
    scales = inputs["scale_a"].view(np.uint8).copy()
    scales[0, 17, -1] += 1
    inputs["scale_a"] = scales.view(inputs["scale_a"].dtype)


MISTAKES: Mapping[str, Callable[[Operands], None]] = {
    "nibbles of the weights swapped": _swapped("a"),
    "nibbles of the activations swapped": _swapped("b"),
    "the neighbouring group's scale of the weights": _rolled("scale_a", 2),
    "the neighbouring group's scale of the activations": _rolled("scale_b", 2),
    "the next row's scales of the weights": _rolled("scale_a", 1),
    "rows of scales exchanged": _exchanged,
    "another bias of the exponent": _bias,
    "one group's scale of one row doubled": _one_group,
}


@pytest.mark.parametrize("distribution", ["normal", "uniform", "integers"])
@pytest.mark.parametrize("out", ["bf16", "fp32"])
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_caught(name: str, out: str, distribution: str) -> None:
    problem = mx_product(5, 64, 1024, dtype_d=out)
    reference, inputs = make_reference(Case(problem, 0, distribution, "test"))
    changed = dict(inputs)
    MISTAKES[name](changed)
    assert not compare(reference, computed(problem, inputs)).wrong
    assert "elements are off" in compare(reference, computed(problem, changed)).wrong


def test_a_scale_that_is_nan_makes_its_row_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = mx_product(4, 6, 96, dtype_d="fp32")
    _, inputs = make_reference(Case(problem, 0, "normal", "test"))
    scales = inputs["scale_b"].view(np.uint8).copy()
    scales[0, 2, 1] = 255
    given = {**inputs, "scale_b": scales.view(inputs["scale_b"].dtype)}
    numbers = mx_numbers(given["b"], given["scale_b"])
    assert np.array_equal(np.isnan(numbers).any(-1), [[False, False, True, False]])
    d = computed(problem, given)
    assert np.array_equal(np.isnan(d).any(-1), [[False, False, True, False]])


def test_twins_are_whole_groups() -> None:
    for problem in (mx_product(300, 512, 4096), mx_product(1, 1, 32), mx_product(33, 7, 2880)):
        for case in cases(problem, 1, 0):
            assert case.problem.mx_product
            assert case.problem.k % 32 == 0
            assert all(layout.elements > 0 for layout in layouts(case.problem).values())
    assert any(case.problem.m % 16 for case in cases(mx_product(300, 512, 4096), 1, 0))


def test_scales_of_cases_are_far_from_those_that_fp32_cannot_multiply() -> None:
    """From a product of 2^130 on zero is NaN by our kernels: no finding may rest on that."""
    for case in cases(mx_product(33, 64, 512), 1, 0):
        scales = [make_reference(case)[1][name].view(np.uint8) for name in ("scale_a", "scale_b")]
        largest, least = (sum(int(pick(one)) - 127 for one in scales) for pick in (np.max, np.min))
        assert -8 <= least <= largest <= 8
