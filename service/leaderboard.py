"""The leaderboard of problems, and a device's measured ceilings, as plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from db import leaderboard, worth
from db.judged import JUDGED
from db.leaderboard import CURVE, Board, Place, geometric_mean
from service.formats.core.row_text import problem_wire
from service.pages import make_place, read_place
from service.stored_problems import stored_problem


def ranked(
    connection: Connection, asked: Board, sort: str, descending: bool, cursor: str | None, limit: int,
    by: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """board_answers.Board: a page of the board, and aggregates of all of it."""
    kind = f"board-{sort}-{'desc' if descending else 'asc'}"
    after = None if cursor is None else Place(*read_place(cursor, kind))
    sums, rows, groups = leaderboard.board(connection, asked, sort, descending, after, limit + 1, by)
    items = rows[:limit]
    last = items[-1] if len(rows) > limit else None
    scope = asked.scope
    return {
        "device_class": scope.device_class_id,
        "policy_id": scope.policy_id,
        "list": None if scope.problems is None else scope.problems.name,
        "judged": asked.judged,
        "sort": sort,
        "order": "desc" if descending else "asc",
        **_sums(sums),
        "uncounted": sums["uncounted"],
        "binds": {name: sums[f"bound_{name}"] for name in ("compute", "memory")},
        "fast_p": _curve(sums),
        "groups": [{"by": row["by"], "name": row["name"], **_sums(row)} for row in groups],
        "items": _items(connection, items, asked.judged),
        "next_cursor": None if last is None else make_place(kind, float(last["value"]), last["number"]),
    }


def ceilings(connection: Connection, device_class_id: str, policy_id: str) -> dict[str, Any]:
    """board_answers.Ceilings: the measured ceilings that the class's verdicts were compared with.

    A verdict stores the share of the roofline that its winner reached, so that share * seconds is the bound's
    time, and the problem's operations or bytes over it the ceiling's rate. Written bytes cost more than read
    ones (tuners/roofline.py): the highest rate of a problem that memory binds is nearest to that of reading.
    """
    rows = leaderboard.bound_verdicts(connection, device_class_id, policy_id)
    memory: list[float] = []
    compute: dict[str, list[float]] = {}
    for row in rows:
        problem = stored_problem(row["id"], row["content"])
        seconds = row["roofline_share"] * row["seconds"]
        if not seconds > 0:
            continue
        if row["binds"] == "memory":
            memory.append((problem.bytes_read + problem.bytes_written) / seconds)
        else:
            compute.setdefault(problem.multiplied_as, []).append(problem.flops / seconds)
    return {
        "device_class": device_class_id,
        "policy_id": policy_id,
        "environment_id": rows[-1]["environment_id"] if rows else None,
        "bytes_per_second": max(memory, default=None),
        "flops_per_second": {kind: max(found) for kind, found in sorted(compute.items())},
    }


def _sums(row: Mapping[str, Any]) -> dict[str, Any]:
    """Of a board or a group of it."""
    problems, baseline = row["problems"], row["total_baseline"] or 0.0
    saved = row["total_saved"] or 0.0
    return {
        "problems": {"all": problems, **{n: row[f"count_{n}"] for n in ("win", "tie", "loss")}},
        "geometric_mean": geometric_mean(row["log_speedup"], problems),
        "seconds": {
            "baseline": baseline,
            "saved": saved,
            "speedup": baseline / (baseline - saved) if baseline > saved else None,
        },
        "roofline": {"mean": row["mean_roofline"], "problems": row["with_roofline"]},
    }


def _curve(sums: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not sums["problems"]:
        return []
    counts = [sums[f"at_least_{place}"] for place in range(len(CURVE))]
    return [
        {"p": p, "problems": count, "share": count / sums["problems"]}
        for p, count in zip(CURVE, counts, strict=True)
    ]


def _items(
    connection: Connection, rows: Sequence[Mapping[str, Any]], judged: str | None
) -> list[dict[str, Any]]:
    contents = worth.problem_contents(connection, [row["problem_id"] for row in rows])
    verdicts = leaderboard.verdicts(connection, [row["number"] for row in rows], judged is not None)
    if judged is not None:
        verdicts = {number: _of_judged(verdict, judged) for number, verdict in verdicts.items()}
    return [_item(row, contents[row["problem_id"]], verdicts[row["number"]]) for row in rows]


def _of_judged(verdict: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A verdict with the judged kernel in the winner's place."""
    content = verdict["content"]
    own = content["targets"][JUDGED]
    tied = sum(one == own["solution"] for one in content["tie_set"])
    return {
        **verdict,
        "winner_id": own["solution"],
        "family": name,
        "speedup": own["speedup"],
        "rounds": own["rounds"],
        "tied": tied * len(content["tie_set"]),
    }


def _item(row: Mapping[str, Any], content: Mapping[str, Any], verdict: Mapping[str, Any]) -> dict[str, Any]:
    problem = stored_problem(row["problem_id"], content)
    names = ("problem_id", "calls", "judgement", "seconds", "baseline_seconds", "roofline_share", "binds")
    more = ("winner_id", "family", "baseline_name", "session_id", "environment_id")
    calls = 1 if row["calls"] is None else row["calls"]
    return {
        **{name: row[name] for name in names},
        **{name: verdict[name] for name in more},
        "problem": problem_wire(problem),
        "speedup": {name: finite_or_none(verdict["speedup"].get(name)) for name in ("low", "mid", "high")},
        "tied": verdict["ties"] if verdict["tied"] is None else verdict["tied"],
        "rounds": verdict["rounds"],
        "saved_seconds": calls * row["baseline_seconds"] * (1 - 1 / row["speedup"]),
        "flops": problem.flops,
        "bytes": problem.bytes_read + problem.bytes_written,
        "decided_at": verdict["created_at"],
    }


def finite_or_none(value: Any) -> float | None:
    """Stored infinities and NaN are text."""
    return value if isinstance(value, int | float) else None
