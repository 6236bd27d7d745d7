"""Rows of pre-tuned tables for a problem's layer with other numbers of tokens, as documents of answers.

Problems are of one layer if they differ in the number of tokens alone: every other field is equal, leading
dimensions and batch strides too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from backends.environment import DeviceClass
from backends.problem import GemmProblem
from db import layers
from db.neighbours import FARTHEST, doublings
from service.formats.core.row_text import problem_wire
from service.nearness import Place
from service.stored_problems import stored_problem


@dataclass(frozen=True)
class TableRow:
    """A row: the table's name, its problem, how far that is from the requested one, and the document, which
    has what a best row's has. Its session is of the service that measured it. `seconds`: what the winner, the
    default and the best of each export target took, by the solutions' ids."""

    table: str
    problem: GemmProblem
    place: Place
    document: Mapping[str, Any]
    seconds: Mapping[str, float]


def of_layer(
    connection: Connection, problem: GemmProblem, device: DeviceClass, policy_id: str
) -> list[TableRow]:
    """The layer's rows, the nearest first; of two that are equally far that of fewer tokens, and of one
    problem that of the table that was installed last. Rows that are too far to be served are among them: they
    say how solutions fare. A row that does not say where it was measured, or of its default, is left out."""
    words = _layer(problem)
    found = []
    for row in layers.table_rows(connection, problem, str(device), policy_id, FARTHEST):
        near = stored_problem(row["problem_id"], row["problem"])
        if _layer(near) == words and _complete(row):
            found.append((doublings(problem, near), near.n, -row["number"], near, row))
    return [
        TableRow(
            row["source"], near, Place(distance, True, problem.n), _document(near, row), _seconds(row)
        )
        for distance, _, _, near, row in sorted(found, key=lambda one: one[:3])
    ]  # fmt: skip


def regrets(rows: Sequence[TableRow], chosen: TableRow) -> list[float]:
    """By what share the chosen row's solution was slower than the best of the layer's other problems, of
    those that have its time."""
    others = {row.problem.id: row.seconds for row in reversed(rows) if row.problem.id != chosen.problem.id}
    name = chosen.document["solution"]["id"]
    return [known[name] / min(known.values()) - 1 for known in others.values() if name in known]


def _layer(problem: GemmProblem) -> dict[str, Any]:
    return {name: value for name, value in problem_wire(problem).items() if name != "m"}


def _complete(row: Mapping[str, Any]) -> bool:
    said = row["content"] or {}
    names = ("environment_id", "session", "decided_at")
    return row["seconds"] is not None and bool(claimed_verdict(row)) and all(said.get(name) for name in names)


def _seconds(row: Mapping[str, Any]) -> dict[str, float]:
    said = row["content"]
    found = {said["baseline"]["id"]: said["baseline_seconds"], row["solution_id"]: row["seconds"]}
    for target in said.get("targets", {}).values():  # raced in rounds of its own: by its ratio to the default
        ours = target["seconds"] * said["baseline_seconds"] / target["baseline_seconds"]
        found.setdefault(target["solution"], ours)
    return found


def _document(problem: GemmProblem, row: Mapping[str, Any]) -> dict[str, Any]:
    said = row["content"]
    return {
        "problem_id": problem.id,
        "problem": problem_wire(problem),
        "device_class": row["device_class_id"],
        "policy_id": row["policy_id"],
        "solution": claimed_solution(row),
        "seconds": row["seconds"],
        **claimed_verdict(row),
        "tie_set": [row["solution_id"]],
        "rounds": said["rounds"],
        "reason": f"the pre-tuned table {row['source']} says so of {problem.id}; it was not measured here",
        "roofline": None,
        "session_id": said["session"],
        "environment_id": said["environment_id"],
        "decided_at": said["decided_at"],
        "provenance": {"kind": row["provenance_kind"], "source": row["source"], "format": row["format"]},
    }


def claimed_solution(row: Mapping[str, Any]) -> dict[str, Any]:
    """The solution of a claim that names one."""
    names = ("family", "version", "parameters", "build", "workspace_bytes", "deterministic")
    return {"id": row["solution_id"], **{name: row[name] for name in names}}


def claimed_verdict(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a claim says of its solution beside a default: judgement, baseline and speed-up. Empty where it
    does not say all three, as other tools' files do not."""
    said = row["content"] or {}
    if not all(said.get(name) for name in ("judgement", "baseline", "baseline_seconds", "speedup")):
        return {}
    baseline = {
        "name": said["baseline_name"], "solution_id": said["baseline"]["id"],
        "seconds": said["baseline_seconds"],
    }  # fmt: skip
    return {
        "judgement": said["judgement"],
        "baseline": baseline,
        "speedup": dict(zip(("low", "mid", "high"), said["speedup"], strict=True)),
    }
