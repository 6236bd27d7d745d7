"""Distances of problems, and whose results a search reads."""

from __future__ import annotations

from dataclasses import replace

from backends.problem import from_mm
from backends.problem_distance import kinds_to_learn_from, problem_distance
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
