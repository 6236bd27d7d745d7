"""Outcome: what became of a candidate, and its way through JSON."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.outcome import Outcome, Phase, Status
from backends.solution import Solution

SOLUTION = Solution("packed", 1, {"tile": 8}, workspace_bytes=64)
SECONDS = st.floats(1e-9, 1e3)


@given(
    st.sampled_from(Phase),
    st.sampled_from(Status),
    st.lists(SECONDS, max_size=9),
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3),
)
def test_outcomes_travel(
    phase: Phase, status: Status, samples: list[float], evidence: dict[str, Any]
) -> None:
    outcome = Outcome(SOLUTION, phase, status, tuple(samples), evidence)
    through_json = Outcome.from_dict(json.loads(json.dumps(outcome.to_dict())))
    for copy in (through_json, pickle.loads(pickle.dumps(outcome))):
        assert copy == outcome
        assert copy.solution.workspace_bytes == 64
        assert type(copy.status) is Status
        assert type(copy.phase) is Phase
        assert copy.samples == tuple(samples)


@given(st.lists(SECONDS, min_size=1, max_size=9))
def test_seconds_is_the_median(samples: list[float]) -> None:
    seconds = Outcome(SOLUTION, Phase.FINAL, Status.OK, tuple(samples)).seconds
    assert seconds is not None
    below = sum(sample <= seconds for sample in samples)
    above = sum(sample >= seconds for sample in samples)
    assert 2 * below >= len(samples)
    assert 2 * above >= len(samples)


def test_an_even_count_of_samples_meets_halfway() -> None:
    assert Outcome(SOLUTION, Phase.FINAL, Status.OK, (4.0, 1.0, 2.0, 9.0)).seconds == 3.0


def test_nothing_timed_has_no_seconds() -> None:
    assert Outcome(SOLUTION, Phase.SCREEN, Status.CRASH).seconds is None


def test_the_words_are_fixed() -> None:
    assert [status.value for status in Status] == [
        "ok", "pruned", "unstable", "illegal", "compile_error", "launch_error", "crash", "timeout",
        "out_of_memory", "wrong_result",
    ]  # fmt: skip
    assert [phase.value for phase in Phase] == ["screen", "final", "proof"]


def test_the_dict_is_plain() -> None:
    row = Outcome(SOLUTION, Phase.FINAL, Status.OK, (2.0,), {"seed": 1}).to_dict()
    assert row == {
        "solution": SOLUTION.to_dict(), "phase": "final", "status": "ok", "samples": [2.0],
        "evidence": {"seed": 1},
    }  # fmt: skip
    assert type(row["status"]) is type(row["phase"]) is str


ROW = Outcome(SOLUTION, Phase.FINAL, Status.OK, (2.0,)).to_dict()


@pytest.mark.parametrize("name", ROW)
def test_a_row_that_lacks_a_field_is_refused(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        Outcome.from_dict({key: value for key, value in ROW.items() if key != name})


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"}, {"phase": "last"}, {"samples": ["fast"]},
        {"solution": {**SOLUTION.to_dict(), "version": 2}},
        {"solution": {**SOLUTION.to_dict(), "parameters": {"tile": 16}}},
    ],
)  # fmt: skip
def test_a_row_that_is_no_outcome_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"fine|last|fast|does not match"):
        Outcome.from_dict({**ROW, **change})


@pytest.mark.parametrize("solution", [{}, {**SOLUTION.to_dict(), "colour": "red"}])
def test_a_row_whose_solution_is_none_is_refused(solution: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Outcome.from_dict({**ROW, "solution": solution})
