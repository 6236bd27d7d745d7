"""Exports the best rows of a device class as a file of another tool, streamed.

A hundred thousand rows are written in seconds because values that rows share (environments, policies,
solutions) are built once, and stored problems are not validated again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.metadata import version
from itertools import islice
from typing import Any

import orjson
from sqlalchemy import Connection, Engine

from backends.canonical import slug
from backends.counted import counted
from backends.environment import DeviceClass, Environment
from backends.solution import Solution
from db import exported, queries
from db.calls import calls_state, count_calls
from db.engine import reading
from service.formats import WRITERS, ExportOptions, ExportRefused, ExportReport, ExportRow, Writer
from service.formats.core.export import (
    IMPORTED,
    MEASURED,
    ComparesCandidates,
    MeasuredCandidate,
    TargetRow,
)
from service.freshness import Freshness
from service.stored_problems import stored_problem
from tuners.policy import MeasurementPolicy

#: Rows per lookup of keys, and least characters of a piece of output.
_ROWS, _PIECE = 1000, 64 * 1024
#: Capacity of the cache of solutions with their workspaces.
_REMEMBERED = 1024
#: Most environments that a header can describe.
_ENVIRONMENTS = 100
_OWN_DEFAULT = "the claim is the target's own default"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Selection:
    """Which rows are written, and for which target: see ExportOptions."""

    device: DeviceClass
    policy_id: str
    imported: bool = False
    target: str | None = None
    ties: str = "omit"
    validators: Mapping[str, str] = field(default_factory=dict)
    workspace_limit: int | None = None
    top_k: int | None = None


@dataclass
class Export:
    """A file to write: `report` is complete once `pieces` is exhausted. Equal tags mean equal files."""

    name: str
    media_type: str
    tag: str
    report: ExportReport
    pieces: Iterator[str]

    def whole_report(self) -> ExportReport:
        """Generates the whole file, discards it and returns its report."""
        for _ in self.pieces:
            pass
        return self.report


def writer(format_name: str) -> Writer:
    """The format's writer. Raises ExportRefused, which lists the formats."""
    if format_name not in WRITERS:
        known = ", ".join(WRITERS) or "none"
        raise ExportRefused(f"{format_name!r} is no format that can be written; known: {known}")
    return WRITERS[format_name]


def export_tag(connection: Connection, format_name: str, chosen: Selection) -> str:
    """A hash of everything that the file depends on."""
    class_id = str(chosen.device)
    parts = [
        version("gemmtune"),
        format_name,
        queries.revision(connection, class_id),
        calls_state(connection),
        class_id,
        chosen.policy_id,
        chosen.imported,
        chosen.target,
        chosen.ties,
        sorted(chosen.validators.items()),
        chosen.workspace_limit,
    ]
    if chosen.top_k is not None:
        parts.append(chosen.top_k)
    return sha256(orjson.dumps(parts)).hexdigest()[:24]


def open_export(engine: Engine, format_name: str, chosen: Selection) -> Export:
    """The export; its rows are read while its pieces are consumed. Raises ExportRefused for an unknown format
    or options that the format does not take. The caller resolves the device."""
    made = writer(format_name)
    families = made.candidate_families if isinstance(made, ComparesCandidates) else ()
    if chosen.top_k is not None and not families:
        raise ExportRefused(f"{format_name} has no use for top_k, which is for configurations of experts")
    report = ExportReport()
    with reading(engine) as connection:
        tag = export_tag(connection, format_name, chosen)
        environments = [
            Environment.from_dict(row["content"])
            for row in queries.best_environments(
                connection, str(chosen.device), chosen.policy_id, _ENVIRONMENTS
            )
        ]
    options = ExportOptions(
        device=chosen.device,
        target=chosen.target,
        ties=chosen.ties,
        validators=chosen.validators,
        environments=tuple(environments),
        workspace_limit=chosen.workspace_limit,
        top_k=chosen.top_k,
    )
    found = read_rows(engine, chosen, made.key_formats, report, families=families)
    return Export(
        f"gemmtune-{made.name}-{slug(str(chosen.device))}{made.suffix}",
        made.media_type,
        tag,
        report,
        _gathered(made.write(found, options, report)),
    )


def nothing_reason(engine: Engine, chosen: Selection, report: ExportReport) -> str:
    """Why a file would hold no row."""
    if report.omitted:
        reason, count = max(report.omitted.items(), key=lambda item: item[1])
        every = counted(sum(report.omitted.values()), "row")
        return f"none of {every} can be written; {count} of them: {reason}"
    with reading(engine) as connection:
        others = queries.best_policies(connection, str(chosen.device))
    listed = ", ".join(f"{policy_id} ({counted(count, 'row')})" for policy_id, count in others)
    return f"nothing was measured on {chosen.device} under {chosen.policy_id}" + (
        f"; measured under: {listed} (policy=...)" if listed else ""
    )


def until_written(export: Export) -> list[str]:
    """Consumes pieces until a row is written and returns them. If the report's `written` is still 0, the file
    has no row."""
    taken = []
    for piece in export.pieces:
        taken.append(piece)
        if export.report.written:
            break
    return taken


def _gathered(pieces: Iterator[str]) -> Iterator[str]:
    """Joins pieces until they have at least _PIECE characters."""
    held: list[str] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _PIECE:
            yield "".join(held)
            held, size = [], 0
    if held:
        yield "".join(held)


# ---- rows ----------------------------------------------------------------------------------------


def read_rows(
    engine: Engine,
    chosen: Selection,
    key_formats: Sequence[str],
    report: ExportReport,
    problem_ids: Sequence[str] | None = None,
    *,
    families: Sequence[str] = (),
) -> Iterator[ExportRow]:
    """The best rows of a selection, or of some of its problems, with their keys in these formats and the
    candidates of these families; `report` counts the measured ones."""
    with reading(engine) as connection:
        shared = _Shared(connection, chosen)
        written: set[str] = set()
        measured = exported.export_rows(connection, str(chosen.device), chosen.policy_id, problem_ids)
        while part := list(islice(measured, _ROWS)):
            keys = _keys(connection, chosen.device, key_formats, [row["problem_id"] for row in part])
            numbers = [row["targets_verdict_number"] for row in part if row["targets_verdict_number"]]
            targets = exported.target_rows(connection, numbers)
            sessions = [row["session_id"] for row in part] if families else []
            candidates = exported.candidate_rows(connection, sessions, families) if families else {}
            for row in part:
                judged = targets.get(row["targets_verdict_number"], ())
                made = shared.measured(row, keys.get(row["problem_id"], ((), 0)), judged)
                if row["session_id"] in candidates:
                    made = replace(made, candidates=shared.candidates(candidates[row["session_id"]]))
                report.measured(made)
                yield made
                if chosen.imported:
                    written.add(row["problem_id"])
        if chosen.imported:
            yield from _claims(connection, chosen, shared, written, key_formats, report, problem_ids)


def _claims(
    connection: Connection,
    chosen: Selection,
    shared: _Shared,
    written: set[str],
    key_formats: Sequence[str],
    report: ExportReport,
    problem_ids: Sequence[str] | None,
) -> Iterator[ExportRow]:
    """The latest imported claim of each problem without a measured row. A claim of the framework's own
    default is omitted: there is nothing to write."""
    claims = (
        row
        for row in exported.claim_rows(connection, str(chosen.device), problem_ids)
        if row["policy_id"] in ("", chosen.policy_id)
    )
    while part := list(islice(claims, _ROWS)):
        keys = _keys(connection, chosen.device, key_formats, [row["problem_id"] for row in part])
        for row in part:
            if row["problem_id"] in written:
                continue
            written.add(row["problem_id"])
            if row["solution_id"] is None:
                report.omit(_OWN_DEFAULT, stored_problem(row["problem_id"], row["problem"]))
            else:
                yield shared.claimed(row, keys.get(row["problem_id"], ((), 0)))


def _keys(
    connection: Connection, device: DeviceClass, formats: Sequence[str], ids: Sequence[str]
) -> dict[str, tuple[tuple[str, ...], int]]:
    """Problem id -> the tool's own keys in these formats, and the calls on the class that any file or tuning
    counted."""
    counted = count_calls(connection, str(device), ids)
    keyed: dict[str, tuple[tuple[str, ...], int]] = {name: ((), calls) for name, calls in counted.items()}
    for name in formats:
        for problem_id, keys in exported.problem_keys(connection, name, ids).items():
            texts, count = keyed.get(problem_id, ((), 0))
            keyed[problem_id] = (texts + tuple(key for key in keys if key and key not in texts), count)
    return keyed


class _Shared:
    """Values that many rows share, each built once."""

    def __init__(self, connection: Connection, chosen: Selection) -> None:
        self._connection, self._device = connection, chosen.device
        content = queries.policy_content(connection, chosen.policy_id)
        self._policy = (
            MeasurementPolicy.of(chosen.device.vendor)
            if content is None
            else MeasurementPolicy.from_dict(content)
        )
        self._freshness = Freshness.of(connection, str(chosen.device))
        self._environments: dict[str, Environment] = {}
        self._solutions: dict[tuple[str, int, bool | None], Solution] = {}
        self._parsed: dict[str, Solution] = {}

    def measured(self, row: Row, keys: tuple[tuple[str, ...], int], judged: Sequence[Row]) -> ExportRow:
        """A best row; `judged` are the verdicts of its export targets."""
        verdict = orjson.loads(row["content"])
        speedup = verdict["speedup"]
        won = self._solution(row["winner_id"], row, "winner_")
        return ExportRow(
            problem=stored_problem(row["problem_id"], orjson.loads(row["problem"])),
            keys=keys[0],
            count=keys[1],
            environment=self._environment(row["environment_id"]),
            policy=self._policy,
            solution=won,
            baseline=self._solution(row["baseline_id"], row, "baseline_"),
            baseline_name=row["baseline_name"],
            judgement=row["judgement"],
            seconds=row["seconds"],
            baseline_seconds=row["baseline_seconds"],
            speedup=(speedup["low"], speedup["mid"], speedup["high"]),
            rounds=verdict["rounds"],
            session=row["session_id"],
            decided_at=row["created_at"],
            provenance=MEASURED,
            source=row["provenance_source"] or "",
            targets=self._targets(judged),
            targets_judged="targets" in verdict,
            stale=self._stale(row, won),
        )

    def _stale(self, row: Row, solution: Solution) -> str:
        """Why a solution that was measured in the row's environment is stale, or ""."""
        return self._freshness.stale(row["environment_id"], solution.family, solution.version) or ""

    def _targets(self, judged: Sequence[Row]) -> dict[str, TargetRow]:
        found = [(row, self._solution(row["solution_id"], row, "solution_")) for row in judged]
        return {
            row["target"]: TargetRow(
                solution=solution,
                judgement=row["judgement"],
                seconds=row["seconds"],
                baseline_seconds=row["baseline_seconds"],
                speedup=(row["low"], row["mid"], row["high"]),
                rounds=row["rounds"],
                session=row["session_id"],
                decided_at=row["created_at"],
                proven=row["proven"],
                stale=self._stale(row, solution),
            )
            for row, solution in found
        }

    def candidates(self, rows: Sequence[Row]) -> tuple[MeasuredCandidate, ...]:
        """A session's candidates."""
        return tuple(
            MeasuredCandidate(
                self._solution(row["solution_id"], row, "solution_"),
                row["screened"],
                row["proven"],
                row["raced"],
            )
            for row in rows
        )

    def claimed(self, row: Row, keys: tuple[tuple[str, ...], int]) -> ExportRow:
        said = row["content"] or {}
        solution = self._solution(row["solution_id"], row, "")
        speedup = said.get("speedup")
        environment_id = said.get("environment_id")
        return ExportRow(
            problem=stored_problem(row["problem_id"], row["problem"]),
            keys=keys[0],
            count=keys[1],
            environment=self._unknown() if environment_id is None else self._environment(environment_id),
            policy=self._policy,
            solution=solution,
            baseline=Solution.from_dict(said["baseline"]) if said.get("baseline") else None,
            baseline_name=said.get("baseline_name") or "",
            judgement="",
            seconds=row["seconds"],
            baseline_seconds=said.get("baseline_seconds"),
            speedup=None if speedup is None else (speedup[0], speedup[1], speedup[2]),
            rounds=said.get("rounds") or 0,
            session=said.get("session"),
            decided_at=said.get("decided_at"),
            provenance=IMPORTED,
            source=row["source"],
        )

    def _environment(self, environment_id: str) -> Environment:
        if environment_id not in self._environments:
            found = queries.environment_contents(self._connection, [environment_id])
            self._environments[environment_id] = Environment.from_dict(found[environment_id])
        return self._environments[environment_id]

    def _unknown(self) -> Environment:
        """The environment of another tool's results, of which only the device class is known."""
        device = self._device
        if "" not in self._environments:
            self._environments[""] = Environment(
                device.vendor, device.arch, device.product, device.units, memory_bytes=0, uuid=""
            )
        return self._environments[""]

    def _solution(self, solution_id: str, row: Row, prefix: str) -> Solution:
        workspace, deterministic = row[prefix + "workspace_bytes"], row[prefix + "deterministic"]
        key = (solution_id, workspace, deterministic)
        known = self._solutions.get(key)
        if known is None:
            parsed = self._parsed.get(solution_id)
            if parsed is None:
                parameters = row[prefix + "parameters"]
                parsed = self._parsed[solution_id] = Solution(
                    parameters=orjson.loads(parameters) if isinstance(parameters, str) else parameters,
                    **{name: row[prefix + name] for name in ("family", "version", "build")},
                )
            # Validated and hashed once per id; the copies differ only in workspace and determinism.
            known = object.__new__(Solution)
            vars(known).update(
                vars(parsed), id=parsed.id, workspace_bytes=workspace, deterministic=deterministic
            )
            if len(self._solutions) >= _REMEMBERED:
                self._solutions.clear()
            self._solutions[key] = known
        return known
