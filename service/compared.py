"""Two boards side by side, as plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from db import compared, leaderboard, worth
from db.compared import CHANGES, CURVE, MARGIN, Compared
from db.leaderboard import Board, Place, geometric_mean
from service.formats.core.row_text import problem_wire
from service.leaderboard import finite_or_none
from service.pages import make_place, read_place
from service.stored_problems import stored_problem


def comparison(
    connection: Connection, asked: Compared, descending: bool, cursor: str | None, limit: int
) -> dict[str, Any]:
    """board_answers.Comparison: a page of the problems of two boards, and aggregates of all of them."""
    kind = f"compare-{asked.by}-{'desc' if descending else 'asc'}"
    after = None if cursor is None else Place(*read_place(cursor, kind))
    sums, rows = compared.compared(connection, asked, descending, after, limit + 1)
    items = rows[:limit]
    last = items[-1] if len(rows) > limit else None
    problems = asked.a.scope.problems
    return {
        "a": _board(asked.a),
        "b": _board(asked.b),
        "by": asked.by,
        "list": None if problems is None else problems.name,
        "margin": MARGIN,
        "problems": {
            "a": sums["a"], "b": sums["b"], "both": sums["a"] - sums["lost"],
            **{name: sums[name] for name in CHANGES},
        },
        "geometric_mean": geometric_mean(sums["log_ratio"], sums["ratios"]),
        "curve": [
            {"p": p, "problems": count, "share": count / sums["ratios"]}
            for p, count in zip(CURVE, (sums[f"at_least_{n}"] for n in range(len(CURVE))), strict=True)
            if sums["ratios"]
        ],
        "order": "desc" if descending else "asc",
        "items": _items(connection, items),
        "next_cursor": None if last is None else make_place(kind, float(last["value"]), last["number"]),
    }  # fmt: skip


def _board(asked: Board) -> dict[str, Any]:
    return {"device_class": asked.scope.device_class_id, "policy_id": asked.scope.policy_id}


def _items(connection: Connection, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    contents = worth.problem_contents(connection, [row["problem_id"] for row in rows])
    numbers = {row[name] for row in rows for name in ("a_number", "b_number")} - {None}
    verdicts = leaderboard.verdicts(connection, sorted(numbers))
    return [
        {
            "problem_id": row["problem_id"],
            "problem": problem_wire(stored_problem(row["problem_id"], contents[row["problem_id"]])),
            "change": row["change"],
            "ratio": row["ratio"],
            "a": _side(verdicts.get(row["a_number"])),
            "b": _side(verdicts.get(row["b_number"])),
        }
        for row in rows
    ]


def _side(verdict: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    names = (
        "judgement",
        "seconds",
        "baseline_seconds",
        "winner_id",
        "family",
        "session_id",
        "environment_id",
    )
    return {
        **{name: verdict[name] for name in names},
        "speedup": {name: finite_or_none(verdict["speedup"].get(name)) for name in ("low", "mid", "high")},
        "decided_at": verdict["created_at"],
    }
