"""What a search is told before it measures: the portfolio of a file, the shipped one, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.environment import Environment
from backends.problem import from_linear
from backends.solution import Solution
from tests.tuners.recorded import RecordedRunner
from tests.tuners.test_session import quiet
from tuners.portfolio import file
from tuners.portfolio.values import Group, Member
from tuners.prior import known_of

PROBLEM = from_linear(1, 4096, 4096, "bf16")
H100 = Environment("cuda", "sm_90", "NVIDIA H100 80GB HBM3", 132, 85_017_493_504, "GPU-1")
OWN = Solution("gemv-persistent", 1, {
    "stream": "a", "rows": 2, "warps": 8, "blocks_per_unit": 4, "ahead": 1,
})  # fmt: skip


class OnH100(RecordedRunner):
    """A runner whose device is an H100."""

    environment = H100


@pytest.fixture
def runner() -> Any:
    return OnH100(quiet())


def test_the_shipped_portfolio_is_the_default(runner: Any) -> None:
    known, notes = known_of(PROBLEM, runner, ())
    assert list(known.portfolio) == file.shipped().solutions(PROBLEM, H100)
    assert known.portfolio
    assert notes == []


def test_a_portfolio_of_a_file_replaces_it(runner: Any, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    group = Group("cuda", "sm_90", "bf16 -> fp32 -> bf16", [Member(OWN, (PROBLEM,))], 1, 0.01, ["here"])
    file.write(path, [group], {"release": "1"})
    known, notes = known_of(PROBLEM, runner, (), path)
    assert [one.id for one in known.portfolio] == [OWN.id]
    assert notes == []


@pytest.mark.parametrize("text", ["", '{"gemmtune": "portfolio"', '{"gemmtune": "portfolio", "version": 0}'])
def test_a_search_goes_on_without_a_portfolio_that_cannot_be_read(
    text: str, runner: Any, tmp_path: Path
) -> None:
    """Cut short, or of another version."""
    path = tmp_path / "own.json"
    path.write_text(text)
    known, notes = known_of(PROBLEM, runner, (), path)
    assert known.portfolio == ()
    (note,) = notes
    assert note.startswith(f"searched without a portfolio: {path} is ")
