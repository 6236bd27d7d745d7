"""Reads for exports: a device class's best rows with every column that a file may need, and its claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Text, case, cast, func, select

from backends.outcome import Phase, Status
from db import models
from db.values import among, chunks, measured_workspace, table

_problem = table(models.Problem)
_provenance = table(models.Provenance)
_key = table(models.ProblemKey)
_solution = table(models.Solution)
_session = table(models.Session)
_verdict = table(models.Verdict)
_best = table(models.Best)
_target = table(models.TargetVerdict)
_claim = table(models.Claim)
_measurement = table(models.Measurement)

#: Statuses of a candidate that was verified and timed; and of one whose timing only was disturbed.
_USABLE, _DISTURBED = (Status.OK.value, Status.PRUNED.value), (Status.UNSTABLE.value,)

Row = dict[str, Any]


def export_rows(
    connection: Connection,
    device_class_id: str,
    policy_id: str | None,
    problem_ids: Sequence[str] | None = None,
) -> Iterator[Mapping[str, Any]]:
    """Best rows with every column that a file may need, streamed in the order of problem ids: the verdict's
    columns, then winner_family, ... and baseline_family, ... of its two solutions, with their workspaces in
    the verdict's session. With `problem_ids` only the rows of these problems. JSON columns come as text: most
    rows share their solutions with other rows, and parsing each would take longer than reading."""
    winner, baseline = _solution.alias("winner"), _solution.alias("baseline")

    def columns(which: Any, prefix: str) -> list[Any]:
        found = [
            which.c[name].label(f"{prefix}_{name}")
            for name in ("family", "version", "build", "deterministic")
        ]
        size = measured_workspace(_verdict.c.session_id, which).label(f"{prefix}_workspace_bytes")
        return [*found, size, cast(which.c.parameters, Text).label(f"{prefix}_parameters")]

    names: tuple[str, ...] = (
        "problem_id", "policy_id", "session_id", "judgement", "winner_id", "baseline_id", "baseline_name",
        "seconds", "baseline_seconds", "created_at",
    )  # fmt: skip
    query = (
        select(
            *(_verdict.c[name] for name in names), cast(_verdict.c.content, Text).label("content"),
            cast(_problem.c.content, Text).label("problem"),
            _best.c.environment_id, _best.c.targets_verdict_number,
            _provenance.c.kind.label("provenance_kind"),
            _provenance.c.source.label("provenance_source"),
            *columns(winner, "winner"), *columns(baseline, "baseline"),
        )
        .select_from(_best)
        .join(_problem, _problem.c.id == _best.c.problem_id)
        .join(_verdict, _verdict.c.number == _best.c.verdict_number)
        .join(winner, winner.c.id == _verdict.c.winner_id)
        .join(baseline, baseline.c.id == _verdict.c.baseline_id)
        .outerjoin(_provenance, _provenance.c.number == _best.c.provenance_number)
        .where(_best.c.device_class_id == device_class_id)
        .order_by(_best.c.problem_id)
    )  # fmt: skip
    if policy_id is not None:
        query = query.where(_best.c.policy_id == policy_id)
    names = tuple(column.name for column in query.selected_columns)
    parts = [query]
    if problem_ids is not None:
        ids = sorted(problem_ids)
        parts = [query.where(among(connection, _best.c.problem_id, part)) for part in chunks(ids)]
    for part in parts:
        with connection.execute(part.execution_options(yield_per=1000)) as rows:
            for row in rows:
                yield dict(zip(names, row, strict=True))


def target_wins(connection: Connection, device_class_id: str, policy_id: str, target: str) -> int:
    """How many problems of a device class have a WIN of an export target."""
    query = (
        select(func.count())
        .select_from(_best)
        .join(_target, _target.c.verdict_number == _best.c.targets_verdict_number)
        .where(
            _best.c.device_class_id == device_class_id, _best.c.policy_id == policy_id,
            _target.c.target == target, _target.c.judgement == "WIN",
        )
    )  # fmt: skip
    return int(connection.execute(query).scalar_one())


def target_rows(connection: Connection, numbers: Sequence[int]) -> dict[int, list[Row]]:
    """Verdict number -> its target verdicts, with the columns of their solutions, the session's environment
    and their workspaces in it; parameters as text, as in export_rows()."""
    names = ("family", "version", "build", "deterministic")
    query = (
        select(
            *_target.c, _verdict.c.session_id, _verdict.c.created_at, _session.c.environment_id,
            *(_solution.c[name].label(f"solution_{name}") for name in names),
            cast(_solution.c.parameters, Text).label("solution_parameters"),
            measured_workspace(_verdict.c.session_id, _solution).label("solution_workspace_bytes"),
        )
        .join(_verdict, _verdict.c.number == _target.c.verdict_number)
        .join(_session, _session.c.id == _verdict.c.session_id)
        .join(_solution, _solution.c.id == _target.c.solution_id)
        .where(_target.c.verdict_number.in_(numbers))
        .order_by(_target.c.verdict_number, _target.c.target)
    )  # fmt: skip
    columns = tuple(column.name for column in query.selected_columns)
    found: dict[int, list[Row]] = {}
    for row in connection.execute(query):
        found.setdefault(row[0], []).append(dict(zip(columns, row, strict=True)))
    return found


def candidate_rows(
    connection: Connection, session_ids: Sequence[str], families: Sequence[str]
) -> dict[str, list[Row]]:
    """Session id -> its candidates of these families that were verified and timed: `screened`, the seconds of
    the screening (None: not known), `raced`, round -> seconds of those that stayed in the latest final, and
    whether they were proven; parameters as text. A candidate that was wrong in any phase is left out."""
    names = ("family", "version", "build", "deterministic")
    final = _measurement.c.phase == Phase.FINAL.value
    query = (
        select(
            *(_measurement.c[n] for n in ("session_id", "solution_id", "phase", "take", "status", "seconds")),
            # Of screenings, which are most rows, the samples would be parsed for nothing.
            *(case((final, _measurement.c[name])).label(name) for name in ("samples", "evidence")),
            _measurement.c.workspace_bytes.label("solution_workspace_bytes"),
            *(_solution.c[name].label(f"solution_{name}") for name in names),
            cast(_solution.c.parameters, Text).label("solution_parameters"),
        )
        .join(_solution, _solution.c.id == _measurement.c.solution_id)
        .where(_measurement.c.session_id.in_(session_ids), _solution.c.family.in_(families))
        .order_by(_measurement.c.session_id, _measurement.c.number)
    )  # fmt: skip
    columns = tuple(column.name for column in query.selected_columns)
    found: dict[tuple[str, str], Row] = {}
    wrong: set[tuple[str, str]] = set()
    takes: dict[str, int] = {}
    for values in connection.execute(query):
        row = dict(zip(columns, values, strict=True))
        key = row["session_id"], row["solution_id"]
        if row["status"] not in _USABLE:
            if row["status"] not in _DISTURBED:
                wrong.add(key)
        elif row["phase"] == Phase.PROOF.value:
            if key in found:
                found[key]["proven"] = True
        elif row["seconds"] is not None:
            known = found.setdefault(key, {**row, "screened": None, "raced": {}, "proven": False})
            known["solution_workspace_bytes"] = row["solution_workspace_bytes"]
            if row["phase"] == Phase.SCREEN.value:
                known["screened"] = row["seconds"]
            elif row["status"] == Status.OK.value:
                known |= {"take": row["take"], "raced": _rounds(row)}
                takes[key[0]] = max(row["take"], takes.get(key[0], 0))
    listed: dict[str, list[Row]] = {}
    for key, row in found.items():
        if row["take"] != takes.get(key[0]):  # of an earlier final of the session, or of none
            row["raced"] = {}
        if key not in wrong and (row["raced"] or row["screened"] is not None):
            listed.setdefault(key[0], []).append(row)
    return listed


def _rounds(row: Row) -> dict[int, float]:
    """The samples of a final by their rounds, which those of a reserved candidate name."""
    samples = row["samples"] or []
    named = (row["evidence"] or {}).get("in_rounds")
    rounds = named if isinstance(named, list) and len(named) == len(samples) else range(len(samples))
    return {number: seconds for number, seconds in zip(rounds, samples, strict=True) if seconds}


def claim_rows(
    connection: Connection, device_class_id: str, problem_ids: Sequence[str] | None = None
) -> Iterator[Row]:
    """Imported claims of a class by problem, the latest first, with solution, problem and provenance.
    Workspace and determinism come from the file if it states them, else from the stored solution."""
    query = (
        select(_claim, _problem.c.content.label("problem"), _provenance.c.source, _provenance.c.format,
               _provenance.c.kind.label("provenance_kind"), _provenance.c.header, _solution.c.family,
               _solution.c.version, _solution.c.parameters, _solution.c.build,
               _solution.c.deterministic, _solution.c.workspace_bytes)
        .join(_problem, _problem.c.id == _claim.c.problem_id)
        .join(_provenance, _provenance.c.number == _claim.c.provenance_number)
        .outerjoin(_solution, _solution.c.id == _claim.c.solution_id)
        .where(_claim.c.device_class_id == device_class_id)
        .order_by(_claim.c.problem_id, _claim.c.number.desc())
    )  # fmt: skip
    if problem_ids is not None:
        query = query.where(_claim.c.problem_id.in_(list(problem_ids)))
    with connection.execute(query.execution_options(yield_per=1000)) as rows:
        for row in rows.mappings():
            said = row["content"] or {}
            yield {**row, **{n: said[n] for n in ("workspace_bytes", "deterministic") if n in said}}


def problem_keys(connection: Connection, fmt: str, problem_ids: Sequence[str]) -> dict[str, list[str]]:
    """Problem id -> the format's own keys."""
    found: dict[str, list[str]] = {}
    for part in chunks(problem_ids):
        query = select(_key.c.problem_id, _key.c.key).where(
            _key.c.format == fmt, among(connection, _key.c.problem_id, part)
        )
        for problem_id, key in connection.execute(query.order_by(_key.c.problem_id, _key.c.key)):
            found.setdefault(problem_id, []).append(key)
    return found
