"""Distances of problems, and whose results a search reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backends.problem import GemmProblem, from_linear, from_mm
from backends.problem_distance import (
    kinds_to_learn_from,
    kinds_without_epilogue,
    problem_distance,
    with_others,
    without_epilogue,
)
from tests.backends.weight_samples import weights

STORED, PACKED = weights(16, 64, 256), weights(16, 64, 256, prepacked=True)


def test_another_order_and_packed_weights_count_as_a_doubling_each() -> None:
    plain = from_mm(16, 16, 16)
    assert problem_distance(plain, plain, 2) == 0.0
    assert problem_distance(plain, replace(plain, trans_a="T"), 2) == 1.0
    assert problem_distance(plain, replace(plain, trans_a="T", trans_b="T"), 2) == 2.0
    assert problem_distance(STORED, PACKED, 2) == problem_distance(PACKED, STORED, 2) == 1.0


def test_what_runs_stored_weights_is_tried_for_prepacked_ones_alone() -> None:
    assert kinds_to_learn_from(STORED) == {STORED.kind: 0.0}
    assert kinds_to_learn_from(PACKED) == {PACKED.kind: 0.0, STORED.kind: 1.0}


GROUPS = from_linear(16, 48, 64, "bf16", groups=4)
ENDS = [
    (from_linear(16, 48, 64, "bf16", groups=4, activation="swiglu"), GROUPS),
    (from_linear(16, 48, 64, "bf16", bias="bf16", activation="gelu"), from_linear(16, 48, 64, "bf16")),
    (from_linear(16, 48, 64, "bf16", beta=1.0), from_linear(16, 48, 64, "bf16")),
    (from_linear(16, 48, 64, "bf16", bias="bf16", batch=3), from_linear(16, 48, 64, "bf16", batch=3)),
]


@pytest.mark.parametrize(("ended", "plain"), ENDS)
def test_another_epilogue_counts_as_a_doubling(ended: GemmProblem, plain: GemmProblem) -> None:
    assert without_epilogue(ended) == plain == without_epilogue(plain)
    assert problem_distance(ended, plain, 2) == problem_distance(plain, ended, 2) == 1.0
    assert problem_distance(ended, ended, 2) == 0.0


@pytest.mark.parametrize(("ended", "plain"), ENDS)
def test_what_runs_the_product_alone_is_tried_with_its_epilogue_alone(
    ended: GemmProblem, plain: GemmProblem
) -> None:
    assert kinds_to_learn_from(ended) == {ended.kind: 0.0}
    assert kinds_without_epilogue(ended) == {plain.kind: 1.0}
    assert kinds_without_epilogue(plain) == {}


def test_packed_weights_and_an_epilogue_add_up() -> None:
    ended = replace(PACKED, bias="bf16", bias_axis="m")
    assert kinds_without_epilogue(ended) == {PACKED.kind: 1.0, STORED.kind: 2.0}
    assert problem_distance(ended, STORED, 2) == 2.0


def test_rows_without_the_epilogue_count_where_none_with_it_is_as_near() -> None:
    others = [(1.0, "a"), (1.5, "b")]
    assert with_others([], others) == others
    assert with_others([(1.25, "own")], others) == [(1.25, "own"), (1.0, "a")]
    assert with_others([(1.0, "own")], others) == [(1.0, "own")]
