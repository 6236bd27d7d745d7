"""Problems of a program that packs its quantised weights, made of those of a file."""

from __future__ import annotations

from typing import Any

import pytest

from backends.errors import InvalidProblem
from backends.problem import GemmProblem, from_linear
from service.formats.core.base import Imported, ImportedProblem, Rejected
from service.prepacking import ids_packed_or_not, packable, prepack, prepacked

PLAIN = from_linear(4, 64, 256, "bf16")


def weights(**options: Any) -> GemmProblem:
    how = {"dtype_b": "uint4", "scale_b": "block_1x64", "scale_dtype": "bf16", "zero_b": "eight", **options}
    return from_linear(4, 64, 256, "bf16", **how)


GROUPED = weights(groups=2)


def read(*problems: tuple[GemmProblem, int, str]) -> Imported:
    rejected = [Rejected(9, "no number", "x")]
    return Imported("json", [ImportedProblem(p, count, (key,)) for p, count, key in problems], rejected, 9)


def test_quantised_weights_are_packed_and_nothing_else() -> None:
    given = read((PLAIN, 2, "lm_head"), (weights(), 32, "o"))
    found = prepack(given, "file")
    assert found.problems == [given.problems[0], ImportedProblem(weights(prepacked=True), 32, ("o",))]
    assert (found.rejected, found.lines) == (given.rejected, 9)
    assert prepack(found, "file") == found


def test_a_problem_that_is_there_twice_then_counts_once() -> None:
    found = prepack(read((weights(), 3, "a"), (PLAIN, 1, "b"), (weights(prepacked=True), 4, "c")), "file")
    assert found.problems == [
        ImportedProblem(weights(prepacked=True), 7, ("a", "c")), ImportedProblem(PLAIN, 1, ("b",)),
    ]  # fmt: skip


def test_the_ids_of_both() -> None:
    found = ids_packed_or_not(read((PLAIN, 1, ""), (weights(), 1, ""), (GROUPED, 1, "")))
    assert found == {one.id for one in (PLAIN, weights(), weights(prepacked=True), GROUPED)}


def test_a_file_without_such_weights_is_refused() -> None:
    with pytest.raises(
        InvalidProblem, match=r"none of the 1 problem of a.json has such weights: leave"
    ) as one:
        prepack(read((PLAIN, 1, "")), "a.json")
    assert one.value.field == "prepacked"
    with pytest.raises(
        InvalidProblem, match=r"2 problems.* weights of groups are read as they are stored: le"
    ):
        prepack(read((PLAIN, 1, ""), (GROUPED, 1, "")), "a.json")
    with pytest.raises(InvalidProblem, match=r"prepacked .*, and a.json holds no problem: leave it"):
        prepack(Imported("json", [], [], 0), "a.json")
    assert not packable(GROUPED)
    assert prepacked(GROUPED) is GROUPED


def test_a_file_of_rejected_lines_is_told_by_them() -> None:
    given = read()
    assert prepack(given, "a.json") is given
