"""How long a tuning still takes."""

from __future__ import annotations

import pytest

from service.progress import Remaining, duration_text


def test_what_is_left_follows_from_what_was_measured() -> None:
    now = [0.0]
    remaining = Remaining(lambda: now[0])
    assert remaining.text(9) == ""
    now[0] = 60.0
    remaining.measured()
    remaining.measured()
    assert remaining.text(6) == ", about 3 min left"
    assert remaining.text(0) == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (89, "89 s"), (100, "2 min"), (3600, "60 min"), (9000, "2.5 h")]
)
def test_durations_are_rounded(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
