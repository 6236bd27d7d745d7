"""benchmarks/client_operators.py: it prints the problems that the client's operators look up."""

from __future__ import annotations

import json

import pytest

from backends.wire import problem_from_wire
from benchmarks import client_operators


def test_problems_are_printed_in_the_form_that_tune_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["client_operators", "problems"])
    client_operators.main()
    found = [problem_from_wire(json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    grouped = [p for _, _, p in client_operators.grouped_problems()]
    assert found == [*grouped, *client_operators.scaled_problems()]
    assert [(p.groups, p.n, p.m, p.k) for p in grouped[:2]] == [(128, 64, 1536, 2048), (128, 64, 2048, 768)]
    assert {(p.scale_a, p.scale_b, p.dtype_d) for p in client_operators.scaled_problems()} == {
        ("outer", "outer", "bf16")
    }
