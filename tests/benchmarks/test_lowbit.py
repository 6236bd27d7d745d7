"""The list of low-bit products: every kind's problem, its rows, and the bound by its own type's ceilings."""

from __future__ import annotations

import pytest

from benchmarks.lowbit import (
    BYTE_TOKENS,
    KINDS,
    MX_KIND,
    MX_LAYERS,
    TOKENS,
    Case,
    cases,
    ceilings_by_type,
    ratios,
    tokens_of,
)
from benchmarks.lowbit_calls import _CALLS
from tuners.ceilings import Ceilings
from tuners.roofline import bound


def test_every_kind_has_its_problems() -> None:
    found = list(cases(list(KINDS), ("llama-3-8b",), None))
    assert len(found) == 4 * sum(len(tokens_of(kind)) for kind in KINDS)
    assert (tokens_of("w4a16"), tokens_of("w8a8_fp8_rows")) == (TOKENS, BYTE_TOKENS)
    assert {one.problem.id for one in found} == {one.words()["problem"] for one in found}
    assert set(_CALLS) == set(KINDS)
    assert {one.m for one in cases(["w8a8_int8_rows"], ("llama-3-8b",), [2, 3])} == {2, 3}


def test_layers_of_mxfp4_alone() -> None:
    """gpt-oss's k of 2880 is of no whole groups of 128."""
    found = list(cases(list(KINDS), tuple(MX_LAYERS), [1]))
    assert [(one.kind, one.n, one.k) for one in found] == [
        (MX_KIND, 5760, 2880), (MX_KIND, 2880, 2880)
    ]  # fmt: skip
    assert all(one.problem.mx for one in found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bound_is_of_the_input_type(kind: str) -> None:
    """Of a type that could not be measured there is none."""
    case = Case(kind, "m", "l", 8, 256, 512)
    measured = ceilings_by_type([case], lambda of: Ceilings(4e12, 4e12, {of: 1e15}))
    (found,) = measured.values()
    assert found is not None
    assert bound(case.problem, found).binds == "memory"
    assert ceilings_by_type([case], lambda of: None) == {case.problem.input_type: None}


def test_ratios_are_over_our_best() -> None:
    found = ratios({"best_us": 2.0, "default_us": 4.0, "torch_fast_us": 3.0, "bound_us": 1.0})
    assert found["over_default"] == 2.0
    assert found["over_torch_fast"] == 1.5
    assert found["over_torch"] is None
    assert found["share_of_bound"] == 0.5
