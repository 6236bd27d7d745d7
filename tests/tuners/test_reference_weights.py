"""Quantised weights in the reference: what kernels and frameworks compute passes, planted mistakes do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from backends.dtypes import DTYPES, to_host
from backends.operands import layouts
from backends.problem import GemmProblem
from backends.quantisation import dequantised, groups_of, packed_zeros, unpacked_zeros
from tests.backends.weight_samples import every_kind, fp8, weights
from tuners.inputs import DISTRIBUTIONS, Case, cases
from tuners.reference import make_reference
from tuners.verify import compare

Array = npt.NDArray[Any]


def computed(p: GemmProblem, inputs: Mapping[str, Array], rounded: bool) -> Array:
    """The product in single precision; `rounded`: by weights that are rounded once to the activations' type,
    as frameworks dequantise them."""
    zeros = inputs["zero_a"][0] if "zero_a" in inputs else None
    w = dequantised(p, inputs["a"][0], inputs["scale_a"][0].reshape(-1, groups_of(p)), zeros)
    if rounded:
        w = to_host(w, DTYPES[p.input_type]).astype(np.float64)
    x = inputs["b"][0].astype(np.float32)
    return to_host(x @ w.astype(np.float32).T, DTYPES[p.dtype_d])[None]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[:4])
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_what_kernels_and_frameworks_compute_is_right(kind: str, rounded: bool, distribution: str) -> None:
    for problem in [
        *every_kind(9, 64, 512, dtype_a=kind),
        weights(3, 40, 4096, dtype_a=kind, zero_b="uint4"),
    ]:
        reference, inputs = make_reference(Case(problem, 1, distribution, "test"))
        finding = compare(reference, computed(problem, inputs, rounded))
        assert not finding.wrong, (problem.slug, problem.zero_a, problem.scale_a, finding.wrong)


def _swapped(p: GemmProblem, inputs: dict[str, Array]) -> None:
    inputs["a"] = inputs["a"] >> 4 | inputs["a"] << 4


def _next_group(name: str) -> Callable[[GemmProblem, dict[str, Array]], None]:
    def change(p: GemmProblem, inputs: dict[str, Array]) -> None:
        by = 4 if name == "zero_a" and p.zero_a == "uint4" else 1
        inputs[name] = np.roll(inputs[name], by, axis=2)

    return change


def _next_row(name: str) -> Callable[[GemmProblem, dict[str, Array]], None]:
    def change(p: GemmProblem, inputs: dict[str, Array]) -> None:
        inputs[name] = np.roll(inputs[name], 1, axis=2 if p.scale_a == "outer" else 1)

    return change


def _halved(p: GemmProblem, inputs: dict[str, Array]) -> None:
    """Bits of e4m3 read as those of e4m3fnuz, whose exponents are one less."""
    inputs["a"] = (inputs["a"].astype(np.float32) / 2).astype(inputs["a"].dtype)


def _off_by_one(p: GemmProblem, inputs: dict[str, Array]) -> None:
    """The zero points of GPTQ's first format, z - 1, read as those of its second."""
    inputs["zero_a"] = packed_zeros((unpacked_zeros(inputs["zero_a"][0]) - 1) % 16)[None]


MISTAKES: Mapping[str, tuple[GemmProblem, Callable[[GemmProblem, dict[str, Array]], None]]] = {
    "nibbles swapped": (weights(5, 64, 1024, zero_b="eight"), _swapped),
    "the next group's scale": (weights(5, 64, 1024, zero_b="eight"), _next_group("scale_a")),
    "the next group's zero": (weights(5, 64, 1024, zero_b="uint4"), _next_group("zero_a")),
    "the next row's scale": (weights(5, 64, 1024, "int8", scale_b="outer"), _next_row("scale_a")),
    "the next block's scale": (
        fp8(5, 300, 1024, scale_b="block_128x128", scale_dtype="fp32"),
        _next_row("scale_a"),
    ),
    "the scale of the block before": (fp8(5, 300, 1024, scale_b="block_128x128"), _next_group("scale_a")),
    "a power of two less": (fp8(5, 64, 1024), _halved),
    "zero points that are one off": (weights(5, 64, 1024, zero_b="uint4"), _off_by_one),
    "the next group's float zero": (weights(5, 64, 1024, zero_b="float"), _next_group("zero_a")),
    "the next group's shift": (weights(5, 64, 1024, zero_b="shift"), _next_group("zero_a")),
}


@pytest.mark.parametrize("distribution", ["normal", "uniform"])
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_caught(name: str, distribution: str) -> None:
    problem, change = MISTAKES[name]
    reference, inputs = make_reference(Case(problem, 0, distribution, "test"))
    changed = dict(inputs)
    change(problem, changed)
    assert not compare(reference, computed(problem, inputs, True)).wrong
    assert "elements are off" in compare(reference, computed(problem, changed, False)).wrong


def test_one_wrong_group_of_one_row_is_caught() -> None:
    """The last group of 4096 elements of k left out, in one row."""
    problem = weights(2, 64, 4096, zero_b="eight")
    reference, inputs = make_reference(Case(problem, 0, "normal", "test"))
    scales = inputs["scale_a"].copy()
    scales[0, 17, -1] = 0
    assert (
        "elements are off"
        in compare(reference, computed(problem, {**inputs, "scale_a": scales}, False)).wrong
    )


@pytest.mark.parametrize("factor", [2.0**-40, 2.0**40])
@pytest.mark.parametrize(
    "problem",
    [
        weights(4, 48, 512, zero_b="uint4", scale_dtype="fp32", dtype_d="fp32"),
        fp8(4, 200, 512, scale_b="block_128x128", scale_dtype="fp32", dtype_d="fp32"),
    ],
)
def test_extreme_scales(monkeypatch: pytest.MonkeyPatch, problem: GemmProblem, factor: float) -> None:
    """The reference is exact and its tolerance as wide as the numbers are large."""
    _, inputs = make_reference(Case(problem, 0, "normal", "test"))
    extreme = {**inputs, "scale_a": (inputs["scale_a"] * np.float32(factor)).astype(np.float32)}
    monkeypatch.setattr("tuners.reference.host_inputs", lambda *_: dict(extreme))
    reference, _ = make_reference(Case(problem, 0, "normal", "test"))
    assert not compare(reference, computed(problem, extreme, True)).wrong
    assert compare(reference, computed(problem, inputs, False)).wrong


def test_ragged_twins_are_whole_groups() -> None:
    for problem in every_kind(300, 512, 4096):
        for case in cases(problem, 1, 0):
            p = case.problem
            assert (p.scale_a, p.zero_a, p.dtype_a) == (problem.scale_a, problem.zero_a, problem.dtype_a)
            assert p.k % 2 == 0
            assert all(layout.elements > 0 for layout in layouts(p).values())
        assert any(case.problem.m % 16 for case in cases(problem, 1, 0)), "rows that are no whole tile"


def test_twins_of_prepacked_weights_are_prepacked() -> None:
    """A kernel that reads packed weights is illegal for others."""
    for problem in every_kind(300, 512, 4096, prepacked=True):
        stored = cases(replace(problem, prepacked=False), 1, 0)
        found = cases(problem, 1, 0)
        assert all(case.problem.prepacked for case in found)
        assert [replace(case.problem, prepacked=False) for case in found] == [one.problem for one in stored]


def test_columns_that_are_not_compared_are_projected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuners.reference.FULL_FLOPS", 1e4)
    problem = weights(12, 3000, 384, zero_b="uint4")
    reference, inputs = make_reference(Case(problem, 0, "normal", "test"))
    assert reference.columns is not None
    assert reference.projection is not None
    result = computed(problem, inputs, True)
    assert not compare(reference, result).wrong
    hidden = int(np.setdiff1d(np.arange(3000), reference.columns)[50])
    result[0, 5, hidden] += ml_dtypes.bfloat16(4 * np.abs(reference.expected).max())
    assert "random projection" in compare(reference, result).wrong
