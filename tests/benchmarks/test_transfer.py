"""benchmarks/transfer.py: problems of stored layers are answered within 3% of their own best, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backends.problem import from_linear
from backends.solution import Solution
from benchmarks import transfer
from service import pretuned
from tests.service.formats.made import H200
from tuners.policy import MeasurementPolicy

POLICY = MeasurementPolicy.of("cuda")
DEFAULT = Solution("torch", 1, {}, "2.15.0+cu132", 0, None)
SKINNY = Solution(
    "skinny-ring", 3,
    {"rows": 16, "slots": 2, "splits": 1, "stream_a": 1, "tile_k": 128, "warps": 4},
)  # fmt: skip


#: Pre-tuned tables, and models of device with recorded ones.
TABLES = 6


@pytest.mark.parametrize("number", range(TABLES))
def test_held_out_numbers_of_tokens_are_answered_well_or_refused(number: int) -> None:
    tables = list(transfer.tables())
    assert len(tables) == TABLES
    name, rows = tables[number]
    found = transfer.summary(transfer.held_out(rows[:120], 30))
    assert found["asked"] >= min(8, len(rows) // 2), name
    assert found["over"] == 0, name
    assert found["refused"] + found["answered"] == found["asked"]


@pytest.mark.parametrize("number", range(3))
def test_rows_of_an_installed_table_are_answered_without_their_own(number: int) -> None:
    table = pretuned.shipped()[number]
    found = transfer.summary(transfer.elsewhere(table, 30))
    assert found["answered"] >= 8
    assert found["refused"] + found["answered"] == found["asked"]
    assert found["over"] == 0


def tuned(m: int, seconds: dict[str, float], winner: str) -> transfer.Tuned:
    solutions = {"default": DEFAULT, "ours": SKINNY}
    timed = {solutions[name].id: value for name, value in seconds.items()}
    return transfer.Tuned(
        from_linear(m, 4096, 4096, "bf16"), H200, POLICY, {one.id: one for one in solutions.values()}, timed,
        timed, DEFAULT.id, solutions[winner].id,
    )  # fmt: skip


def test_a_regret_is_against_the_fastest_and_of_what_was_timed() -> None:
    row = tuned(8, {"default": 3e-6, "ours": 2e-6}, "ours")
    assert row.regret(SKINNY.id) == 0
    assert row.regret(DEFAULT.id) == pytest.approx(0.5)
    assert row.regret("another") is None
    assert replace(row, judged={DEFAULT.id: 1e-6}).regret(SKINNY.id) is None


def test_a_default_that_won_is_no_answer() -> None:
    rows = [
        tuned(4, {"default": 3e-6, "ours": 2e-6}, "ours"),
        tuned(8, {"default": 1e-6, "ours": 2e-6}, "default"),
    ]
    found = transfer.held_out(rows)[0]
    assert found["match"] == "default"
    assert "its default is the fastest there" in found["notes"][0]


def test_a_row_is_not_seen_itself_and_layers_of_one_row_are_not_asked_for() -> None:
    (_, rows), *_ = transfer.tables()
    of = [row for row in rows if row.layer == (4096, 4096) and row.problem.n in (2, 4)]
    other = next(row for row in rows if row.layer == (8192, 1024))
    found = transfer.held_out([*of, other])
    assert [row["m"] for row in found] == [row.problem.n for row in of]
    assert [row["near_m"] for row in found] == [row.problem.n for row in reversed(of)]
    assert all(row["same_layer"] and row["distance"] == 1.0 for row in found)
