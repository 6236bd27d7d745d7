"""Best rows: derived from verdicts, rebuilt whenever a verdict arrives, and served exactly as stored.

Row locks are taken in the order class, then best rows: a transaction may derive several of a class.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, exists, select, update

from backends.problem import GemmProblem
from backends.wire import problem_to_wire
from db import models
from db.judged import unjudged
from db.targets import Derive, rebuild_targets
from db.values import CHUNK, among, bucket_of, chunks, insert_new, measured_workspace, table

_session = table(models.Session)
_measurement = table(models.Measurement)
_verdict = table(models.Verdict)
_best = table(models.Best)
_solution = table(models.Solution)
_target = table(models.TargetVerdict)
_environment = table(models.Environment)
_outlier = table(models.OutlierDevice)


def refresh_best(connection: Connection, problem_id: str, device_class_id: str, policy_id: str) -> None:
    """Rebuilds one best row from its verdicts. Without a verdict that a best row may show there is none."""
    # The class's row is locked until the transaction ends. Of two sessions of one problem that end at once,
    # the second one waits here, and reads both verdicts.
    touch(connection, device_class_id)
    mine = (
        _best.c.problem_id == problem_id,
        _best.c.device_class_id == device_class_id,
        _best.c.policy_id == policy_id,
    )
    query = _weights_query().where(
        _verdict.c.problem_id == problem_id,
        _verdict.c.device_class_id == device_class_id,
        _verdict.c.policy_id == policy_id,
    )
    weights = connection.execute(query).all()
    if not weights:
        connection.execute(delete(_best).where(*mine))
        return
    number, with_targets = _choose(weights)
    chosen = _best_query().where(_verdict.c.number == number)
    row = best_row(connection.execute(chosen).mappings().one(), with_targets)
    if not insert_new(connection, models.Best, [row], "problem_id"):
        connection.execute(update(_best).where(*mine).values(row))


def refresh_winners(connection: Connection, solution_ids: Sequence[str]) -> None:
    """Rebuilds the documents of all best rows with a winner among the solutions."""
    key = (_best.c.problem_id, _best.c.device_class_id, _best.c.policy_id)
    won: set[tuple[str, ...]] = set()
    classes: set[str] = set()
    for part in chunks(solution_ids):
        # Start from the measurements: they are indexed by solution; verdicts and best rows are not.
        measured = among(connection, _measurement.c.solution_id, part)
        query = (
            select(*key)
            .select_from(_measurement)
            .join(
                _verdict,
                and_(
                    _verdict.c.session_id == _measurement.c.session_id,
                    _verdict.c.winner_id == _measurement.c.solution_id,
                ),
            )
            .join(
                _best,
                and_(
                    _best.c.problem_id == _verdict.c.problem_id,
                    _best.c.device_class_id == _verdict.c.device_class_id,
                    _best.c.policy_id == _verdict.c.policy_id,
                    _best.c.verdict_number == _verdict.c.number,
                ),
            )
            .where(measured)
        )
        won |= {tuple(row) for row in connection.execute(query)}
        met = select(_session.c.device_class_id).distinct()
        met = met.join(_measurement, _measurement.c.session_id == _session.c.id).where(measured)
        classes |= set(connection.scalars(met))
    for class_id in sorted(classes):
        touch(connection, class_id)
    for ids in chunks(sorted({row[0] for row in won})):
        # Lock in key order and read the verdict numbers under the lock: a new verdict may have arrived.
        held = select(*key, _best.c.verdict_number).where(among(connection, _best.c.problem_id, ids))
        rows = connection.execute(held.order_by(*key).with_for_update()).all()
        numbers = [row.verdict_number for row in rows if tuple(row[:3]) in won]
        chosen = _best_query().where(_verdict.c.number.in_(numbers))
        made = [best_row(row) for row in connection.execute(chosen).mappings()]
        if made:
            connection.execute(
                update(_best)
                .where(*(column == bindparam(f"its_{column.name}") for column in key))
                .values(document=bindparam("its_document")),
                [
                    {f"its_{name}": row[name] for name in (*(column.name for column in key), "document")}
                    for row in made
                ],
            )


def of_outlier() -> ColumnElement[bool]:
    """The condition that a verdict's environment is of a device apart from its class."""
    return exists().where(
        _outlier.c.device_class_id == _verdict.c.device_class_id,
        _outlier.c.uuid == _environment.c.uuid,
        _outlier.c.differs,
    )


def _weights_query() -> Any:
    """The verdicts that best rows may show: not of judged kernels, nor of devices apart from their class."""
    query = select(
        _verdict.c.number,
        _verdict.c.problem_id,
        _verdict.c.device_class_id,
        _verdict.c.policy_id,
        _verdict.c.restricted,
        _verdict.c.budget_seconds,
        _environment.c.software,
        _session.c.provenance_number,
        exists().where(_target.c.verdict_number == _verdict.c.number).label("has_targets"),
    )
    return (
        query.join(_session, _session.c.id == _verdict.c.session_id)
        .join(_environment, _environment.c.id == _session.c.environment_id)
        .where(~of_outlier(), unjudged())
    )


def _choose(weights: Sequence[Any]) -> tuple[int, int | None]:
    """The number of the verdict that the best row shows, which models.Verdict states the rule for, and of the
    verdict that the same rule chooses among those with target verdicts."""
    # What was measured here outranks whatever an imported file says.
    weights = [row for row in weights if row.provenance_number is None] or weights
    newest = max(weights, key=lambda row: row.number)
    # Of all devices of the class: each verdict is a ratio to the default on the same device.
    present = [row for row in weights if row.software == newest.software]
    present.sort(key=lambda row: (not row.restricted, row.budget_seconds, row.number), reverse=True)
    with_targets = next((int(row.number) for row in present if row.has_targets), None)
    return int(present[0].number), with_targets


def touch(connection: Connection, device_class_id: str) -> None:
    """Increments the class's revision, which invalidates cached exports of the class, and locks its row."""
    device_class = table(models.DeviceClass)
    connection.execute(
        update(device_class)
        .where(device_class.c.id == device_class_id)
        .values(revision=device_class.c.revision + 1)
    )


def rebuild_best(connection: Connection, derive: Derive | None = None) -> int:
    """Derives every best row again from the verdicts; returns how many there are. With `derive`, first the
    target verdicts of every session, from its verdict or its final."""
    classes = select(table(models.DeviceClass).c.id).order_by(table(models.DeviceClass).c.id)
    for class_id in connection.scalars(classes).all():
        touch(connection, class_id)
    connection.execute(delete(_best))
    if derive is not None:
        rebuild_targets(connection, derive)
    key = (_verdict.c.problem_id, _verdict.c.device_class_id, _verdict.c.policy_id)
    query = _weights_query().order_by(*key).execution_options(yield_per=1000)
    groups = groupby(connection.execute(query), key=lambda row: tuple(row[1:4]))
    count = 0
    for part in _batches(_choose(list(rows)) for _, rows in groups):
        with_targets = dict(part)
        chosen = _best_query().where(_verdict.c.number.in_(with_targets))
        rows = connection.execute(chosen).mappings()
        insert_new(connection, models.Best, [best_row(row, with_targets[row["number"]]) for row in rows])
        count += len(part)
    return count


def _batches(chosen: Iterator[tuple[int, int | None]]) -> Iterator[list[tuple[int, int | None]]]:
    while part := list(islice(chosen, CHUNK)):
        yield part


def _best_query() -> Any:
    problem, provenance = table(models.Problem), table(models.Provenance)
    return (
        select(
            _verdict,
            _solution.c.family,
            _solution.c.version,
            _solution.c.parameters,
            _solution.c.build,
            _solution.c.deterministic,
            problem.c.content.label("problem"),
            _session.c.environment_id,
            _session.c.provenance_number,
            provenance.c.kind.label("provenance_kind"),
            provenance.c.source.label("provenance_source"),
            measured_workspace(_verdict.c.session_id, _solution).label("workspace_bytes"),
        )
        .join(_solution, _solution.c.id == _verdict.c.winner_id)
        .join(problem, problem.c.id == _verdict.c.problem_id)
        .join(_session, _session.c.id == _verdict.c.session_id)
        .outerjoin(provenance, provenance.c.number == _session.c.provenance_number)
    )


def best_row(row: Mapping[Any, Any], targets_verdict_number: int | None = None) -> dict[str, Any]:
    """The best row of a verdict, from a row of _best_query()."""
    problem = GemmProblem.from_dict(row["problem"])
    verdict = row["content"]
    document = {
        "problem_id": problem.id,
        "problem": problem_to_wire(problem),
        "device_class": row["device_class_id"],
        "policy_id": row["policy_id"],
        "solution": {
            "id": row["winner_id"],
            "family": row["family"],
            "version": row["version"],
            "parameters": row["parameters"],
            "build": row["build"],
            "workspace_bytes": row["workspace_bytes"],
            "deterministic": row["deterministic"],
        },
        "seconds": row["seconds"],
        "judgement": row["judgement"],
        "baseline": {
            "name": row["baseline_name"],
            "solution_id": row["baseline_id"],
            "seconds": row["baseline_seconds"],
        },
        "speedup": verdict["speedup"],
        "tie_set": verdict["tie_set"],
        "rounds": verdict["rounds"],
        "reason": verdict["reason"],
        "roofline": None
        if row["roofline_share"] is None
        else {"share": row["roofline_share"], "binds": row["binds"]},
        "session_id": row["session_id"],
        "environment_id": row["environment_id"],
        "decided_at": row["created_at"],
        "provenance": {"kind": row["provenance_kind"] or "measured", "source": row["provenance_source"]},
    }
    if verdict.get("packing") is not None:
        document["packing"] = verdict["packing"]
    return {
        "problem_id": problem.id,
        "device_class_id": row["device_class_id"],
        "policy_id": row["policy_id"],
        "verdict_number": row["number"],
        "environment_id": row["environment_id"],
        "provenance_number": row["provenance_number"],
        "kind": problem.kind,
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "batch": problem.batch,
        "bucket": bucket_of(problem.m, problem.n, problem.k),
        "targets_verdict_number": targets_verdict_number,
        "document": json.dumps(document, separators=(",", ":")),
    }
