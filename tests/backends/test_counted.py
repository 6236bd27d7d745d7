"""One thing, several things."""

from __future__ import annotations

import pytest

from backends.counted import counted


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 rows are"), (1, "1 row is"), (2, "2 rows are"), (1000, "1000 rows are")]
)
def test_a_noun_agrees_with_its_number(count: int, text: str) -> None:
    assert counted(count, "row is", "rows are") == text
    noun = text.split()[1]
    assert counted(count, "row") == f"{count} {noun}"
