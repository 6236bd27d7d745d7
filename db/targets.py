"""Verdicts of export targets: stored with a session's verdict, or derived from the outcomes of its final.

Sessions that ended before targets were judged have no such verdicts, but often the samples to decide them.
The decision itself is the tuners', so the caller passes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

import orjson
from sqlalchemy import Connection, Text, cast, delete, select

from backends.outcome import Phase
from db import models
from db.values import CHUNK, among, insert_new, table

_session = table(models.Session)
_measurement = table(models.Measurement)
_solution = table(models.Solution)
_verdict = table(models.Verdict)
_target = table(models.TargetVerdict)


@dataclass(frozen=True)
class FinalOutcome:
    """A candidate of a final; `samples` are seconds, one for each round from the first."""

    solution_id: str
    family: str
    workspace_bytes: int
    deterministic: bool | None
    status: str
    samples: Sequence[float]


@dataclass(frozen=True)
class StoredFinal:
    """The final that decided a verdict: its outcomes, the verdict, and the session's rule ({}: unknown)."""

    vendor: str
    rule: Mapping[str, Any]
    verdict: Mapping[str, Any]
    outcomes: Sequence[FinalOutcome]


#: Returns the verdicts of a final's export targets by name, as plain values; empty if it decides none.
Derive = Callable[[StoredFinal], Mapping[str, Mapping[str, Any]]]


def put_targets(connection: Connection, targets: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> None:
    """Stores verdict number -> the verdicts of its targets, as plain values. Raises SQLAlchemy's
    IntegrityError for a solution that was never stored."""
    rows = [
        {
            "verdict_number": number,
            "target": name,
            "solution_id": one["solution"],
            **{
                column: one[column]
                for column in ("judgement", "seconds", "baseline_seconds", "rounds", "proven")
            },
            **{end: one["speedup"][end] for end in ("low", "mid", "high")},
        }
        for number, named in targets.items()
        for name, one in named.items()
    ]
    insert_new(connection, models.TargetVerdict, rows)


def rebuild_targets(connection: Connection, derive: Derive) -> int:
    """Derives the target verdicts of all verdicts again; returns how many verdicts have some."""
    connection.execute(delete(_target))
    numbers = connection.scalars(select(_verdict.c.number).order_by(_verdict.c.number)).all()
    count = 0
    for start in range(0, len(numbers), CHUNK):
        found = _targets_of(connection, numbers[start : start + CHUNK], derive)
        put_targets(connection, found)
        count += len(found)
    return count


def _targets_of(
    connection: Connection, numbers: Sequence[int], derive: Derive
) -> dict[int, Mapping[str, Mapping[str, Any]]]:
    """The targets of those verdicts that have some: as the session decided them, else as derived."""
    query = (
        select(
            _verdict.c.number, _verdict.c.session_id, _verdict.c.device_class_id,
            cast(_verdict.c.content, Text).label("content"),
            cast(_session.c.request, Text).label("request"),
        )
        .join(_session, _session.c.id == _verdict.c.session_id)
        .where(_verdict.c.number >= numbers[0], _verdict.c.number <= numbers[-1])
    )  # fmt: skip
    found: dict[int, Mapping[str, Mapping[str, Any]]] = {}
    open_ones: dict[str, tuple[Any, Mapping[str, Any]]] = {}
    for row in connection.execute(query):
        verdict = orjson.loads(row.content)
        if "targets" in verdict:
            found[row.number] = verdict["targets"]
        else:
            open_ones[row.session_id] = row, verdict
    for session_id, outcomes in _finals(connection, list(open_ones)):
        row, verdict = open_ones[session_id]
        vendor = row.device_class_id.partition(":")[0]
        rule = (orjson.loads(row.request) or {}).get("rule", {})
        found[row.number] = derive(StoredFinal(vendor, rule, verdict, outcomes))
    return {number: targets for number, targets in found.items() if targets}


def _finals(connection: Connection, session_ids: Sequence[str]) -> Iterator[tuple[str, list[FinalOutcome]]]:
    """Session id -> the outcomes of its last final. A winner that fails its proof is followed by another
    final, so the last one lies between the last two proofs."""
    query = (
        select(
            *(_measurement.c[name] for name in ("session_id", "solution_id", "phase", "status", "take")),
            _measurement.c.workspace_bytes, _solution.c.family, _solution.c.deterministic,
            cast(_measurement.c.samples, Text).label("samples"),
        )
        .join(_solution, _solution.c.id == _measurement.c.solution_id)
        .where(
            among(connection, _measurement.c.session_id, session_ids),
            _measurement.c.phase.in_((Phase.FINAL.value, Phase.PROOF.value)),
        )
        .order_by(_measurement.c.session_id, _measurement.c.number)
    )  # fmt: skip
    for session_id, rows in groupby(connection.execute(query), key=attrgetter("session_id")):
        races: list[list[Any]] = [[]]
        for row in rows:
            if row.phase == Phase.PROOF.value:
                races.append([])
            else:
                races[-1].append(row)
        last: list[Any] = next((race for race in reversed(races) if race), [])
        # A final that a restart cut short leaves outcomes too, of an earlier take than those that ended it.
        first = min((row.take for row in last if row.status == "ok"), default=0)
        yield session_id, [
            FinalOutcome(
                row.solution_id, row.family, row.workspace_bytes, row.deterministic, row.status,
                orjson.loads(row.samples),
            )
            for row in last
            if row.take >= first
        ]  # fmt: skip
