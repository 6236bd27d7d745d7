"""Files of other tools, and of gemmtune elsewhere, taken into the database.

What a file says is kept apart by where it came from: problems and the tool's own names for them; claims (what
its results rows say, never served unless asked for); sessions of a bare node's journal, which are gemmtune's
own measurements and make best rows. Writing is idempotent: the same bytes again change nothing, and an import
that was cut off is finished by the next.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, select, update
from sqlalchemy.dialects import postgresql, sqlite

from backends.canonical import short_hash
from backends.environment import DeviceClass, Environment, resolve
from backends.errors import UnknownDevice
from backends.problem import GemmProblem
from backends.solution import Solution
from db import models, queries, sessions
from db.engine import now, writing
from db.values import (
    insert_new,
    put_device_class,
    put_environment,
    put_policy,
    put_problems,
    put_solutions,
    storable,
    table,
)
from service import formats
from service.formats import ByteStream, Imported, ImportedClaim, ImportedProblem, ImportedSession
from service.formats.row_text import problem_text, problem_wire
from service.formats.tunableop_target import contradicts

T = TypeVar("T")

#: Rows of one transaction.
BATCH = 1000
#: Reasons of one kind that are told.
_REASONS = 20
#: PostgreSQL indexes no longer text.
_LONGEST_KEY = 1000
_INT4, _INT8 = 2**31 - 1, 2**63 - 1
#: `format` of a reader that brings gemmtune's own measurements.
JOURNAL = "journal"
#: `format` of the reader whose header says which device its rows were found on.
TUNABLEOP = "tunableop"
#: Libraries that run on one vendor's devices.
_VENDORS = {"rocblas": "hip", "hipblaslt": "hip", "cublas": "cuda", "cublaslt": "cuda"}


@dataclass
class Kept:
    """How many of a kind were stored, were there already, and were left out (why: `reasons`)."""

    stored: int = 0
    known: int = 0
    skipped: int = 0
    reasons: list[str] = field(default_factory=list)

    def skip(self, count: int, reason: str) -> None:
        """Counts what was left out."""
        self.skipped += count
        if len(self.reasons) < _REASONS and reason not in self.reasons:
            self.reasons.append(reason)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**vars(self), "reasons": list(self.reasons)}


@dataclass(frozen=True)
class ImportAnswer:
    """What became of a file: what was read, and what was kept of it."""

    read: Imported
    provenance: Mapping[str, Any]
    claims: Kept
    sessions: Kept

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        read = self.read
        return {
            "format": read.format,
            "problems": [
                {**problem_wire(item.problem), "id": problem_text(item.problem)[0], "count": item.count}
                for item in read.problems
            ],
            "rejected": [{"line": r.line, "reason": r.reason} for r in read.rejected],
            "rejected_more": read.rejected_more,
            "claims": self.claims.to_dict(),
            "sessions": self.sessions.to_dict(),
            "provenance": dict(self.provenance),
        }


def import_file(
    engine: Engine,
    stream: ByteStream,
    name: str,
    format_name: str | None = None,
    device: str | None = None,
    source: str | None = None,
) -> ImportAnswer:
    """Reads a stream (messages call it `name`) and stores what it says. `device` is whose results the rows of
    another tool are: a selector, or a whole class, which is then registered.

    Raises ReadError, UnknownDevice, AmbiguousDevice, DatabaseUnavailable.
    """
    device_class = None if device is None else import_class(engine, device)
    hashed = _Hashed(stream)
    read = formats.read_stream(hashed, name, format_name)
    kind = "node" if read.format == JOURNAL else "imported"
    provenance = {
        "kind": kind,
        "format": read.format,
        "source": storable(source or name)[:500],
        "sha256": hashed.digest(),
        "device_class_id": "" if device_class is None else str(device_class),
    }
    with writing(engine) as connection:
        number, new = _put_provenance(connection, {**provenance, "header": storable(dict(read.header))})
    for part in _parts(read.problems):
        with writing(engine) as connection:
            put_problems(connection, [item.problem for item in part])
            _put_keys(connection, read.format, number, part)
    claims = _put_claims(engine, number, read, device_class)
    kept = _put_sessions(engine, number, read.sessions)
    if new:
        # Exports write a tool's own keys and, where asked to, claims.
        with writing(engine) as connection:
            for row in queries.device_classes(connection):
                sessions.touch(connection, row["id"])
    shown = {**provenance, "device_class": provenance["device_class_id"] or None, "new": new}
    del shown["device_class_id"]
    return ImportAnswer(read, shown, claims, kept)


def import_class(engine: Engine, text: str) -> DeviceClass:
    """The class that an import is for: a known one by its selector, or any by its whole name. A new one is
    registered. Raises UnknownDevice, AmbiguousDevice."""
    with writing(engine) as connection:
        known = queries.known_classes(connection)
        try:
            return resolve(text, known)
        except UnknownDevice:
            try:
                made = DeviceClass.parse(text)
            except ValueError:
                made = None
            if made is None:
                raise
            put_device_class(connection, made)
            return made


class _Hashed:
    """A stream whose bytes are hashed as they are read."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream, self._hash = stream, hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        return data

    def digest(self) -> str:
        """Of the whole stream, whether its reader wanted the rest or not."""
        while self.read(1 << 16):
            pass
        return self._hash.hexdigest()


def _parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), BATCH):
        yield values[start : start + BATCH]


# ---- provenance and keys -------------------------------------------------------------------------


def _put_provenance(connection: Connection, row: Mapping[str, Any]) -> tuple[int, bool]:
    """The row's number, and whether it is new."""
    made = insert_new(connection, models.Provenance, [{**row, "created_at": now()}], "number")
    if made:
        return made[0][0], True
    target = table(models.Provenance)
    names = ("kind", "format", "sha256", "device_class_id")
    query = select(target.c.number).where(*(target.c[name] == row[name] for name in names))
    return connection.execute(query).scalar_one(), False


def _put_keys(
    connection: Connection, format_name: str, number: int, items: Sequence[ImportedProblem]
) -> None:
    """The tool's own texts; the calls of a problem are counted with its first. Of two files that name the
    same, the one that was first imported later counts, however often either is imported again."""
    rows = [
        {
            "problem_id": problem_text(item.problem)[0],
            "format": format_name,
            "key": key,
            "provenance_number": number,
            "count": min(item.count, _INT4) if place == 0 else 0,
        }
        for item in items
        for place, key in enumerate([k for k in item.keys if len(k) <= _LONGEST_KEY] or [""])
    ]
    # In one order, so that two imports of the same problems cannot block each other.
    rows.sort(key=lambda row: (str(row["problem_id"]), str(row["key"])))
    target = table(models.ProblemKey)
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = insert(target)
    later = {name: statement.excluded[name] for name in ("count", "provenance_number")}
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["problem_id", "format", "key"],
            set_=later,
            where=target.c.provenance_number < later["provenance_number"],
        ),
        rows,
    )


# ---- claims --------------------------------------------------------------------------------------


def _put_claims(engine: Engine, number: int, read: Imported, device_class: DeviceClass | None) -> Kept:
    kept = Kept()
    contradiction = _header_fault(read, device_class)
    for part in _parts(read.claims):
        rows: list[dict[str, Any]] = []
        solutions: dict[str, Solution] = {}
        environments: dict[int, Environment] = {}
        policies: dict[str, Mapping[str, Any]] = {}
        classes: set[DeviceClass] = set()
        for item in part:
            claim = item.claim
            fault = _claim_fault(item, device_class) or contradiction
            if fault is not None:
                kept.skip(1, fault)
                continue
            if claim.row is not None:
                environments[id(claim.row.environment)] = claim.row.environment
                policies[claim.row.policy.id] = claim.row.policy.to_dict()
            elif claim.device is not None:
                classes.add(claim.device)
            if claim.solution is not None:
                solutions[claim.solution.id] = claim.solution
            rows.append(_claim_row(number, item, device_class))
        with writing(engine) as connection:
            for found in sorted(classes):
                put_device_class(connection, found)
            for environment in environments.values():
                put_environment(connection, environment)
            for policy_id, content in policies.items():
                put_policy(connection, policy_id, content)
            # What a file says of determinism is the claim's alone.
            put_solutions(connection, (replace(s, deterministic=None) for s in solutions.values()))
            made = len(insert_new(connection, models.Claim, rows, "number"))
        kept.stored += made
        kept.known += len(rows) - made
    return kept


def _claim_fault(item: ImportedClaim, device_class: DeviceClass | None) -> str | None:
    claim = item.claim
    named = claim.found_on
    device = named or device_class
    if device is None:
        return "results need the device they were found on: name the device, as vendor:arch:product:units"
    if device_class is not None and device != device_class:
        return f"the file says {device}, not {device_class}"
    if claim.solution is not None:
        vendor = _VENDORS.get(claim.solution.family, device.vendor)
        if vendor != device.vendor:
            return f"the file says {vendor}, not {device}: its solutions are of {claim.solution.family}"
    if len(item.key) > _LONGEST_KEY:
        return f"line {item.line}: its key is longer than {_LONGEST_KEY} characters"
    if claim.row is not None and not _environment_fits(claim.row.environment):
        return f"line {item.line}: its environment cannot be stored"
    if claim.solution is not None and not _solution_fits(claim.solution):
        return f"line {item.line}: its solution cannot be stored"
    return None


def _header_fault(read: Imported, device_class: DeviceClass | None) -> str | None:
    """What the header of a tool's results file says instead of the class that is named for it."""
    if device_class is None or read.format != TUNABLEOP:
        return None
    named = Environment(**vars(device_class), memory_bytes=0, uuid="")
    for key in ("GCN_ARCH_NAME", "CUDA_DEVICE"):
        value = read.header.get(key)
        if value is not None and contradicts(named, key, value) is not None:
            shown = value.partition(":")[0] if key == "GCN_ARCH_NAME" else value
            return f"the file says {shown[:100]}, not {device_class}"
    return None


def _claim_row(number: int, item: ImportedClaim, device_class: DeviceClass | None) -> dict[str, Any]:
    claim, row = item.claim, item.claim.row
    content = None if claim.said is None else storable(dict(claim.said))
    if row is not None:
        names = ("judgement", "baseline_name", "baseline_seconds", "speedup", "rounds", "session",
                 "decided_at", "provenance", "source")  # fmt: skip
        content = storable({name: getattr(row, name) for name in names})
        content["environment_id"] = row.environment.id
        content["baseline"] = row.baseline.to_dict()
    solution = claim.solution
    if solution is not None and (content, solution.workspace_bytes, solution.deterministic) != (
        None,
        0,
        None,
    ):
        properties = {"workspace_bytes": solution.workspace_bytes, "deterministic": solution.deterministic}
        content = {**(content or {}), **properties}
    return {
        "provenance_number": number,
        "problem_id": problem_text(item.problem)[0],
        "device_class_id": str(claim.found_on or device_class),
        "policy_id": claim.policy_id if row is None else row.policy.id,
        "solution_id": None if claim.solution is None else claim.solution.id,
        "seconds": claim.seconds,
        "key": item.key,
        "content": content,
    }


def _environment_fits(environment: Environment) -> bool:
    values = environment.to_dict()
    return storable(values) == values and environment.units <= _INT4 and environment.memory_bytes <= _INT8


def _solution_fits(solution: Solution) -> bool:
    values = solution.to_dict()
    numbers = (solution.workspace_bytes, *(v for v in solution.parameters.values() if isinstance(v, int)))
    return (
        storable(values) == values
        and solution.version <= _INT4
        and all(-_INT8 <= number <= _INT8 for number in numbers)
    )


# ---- sessions ------------------------------------------------------------------------------------


def _put_sessions(engine: Engine, number: int, found: Sequence[ImportedSession]) -> Kept:
    kept = Kept()
    for item in found:
        fault = _session_fault(item)
        if fault is not None:
            kept.skip(1, f"line {item.line}: {fault}")
            continue
        with writing(engine) as connection:
            if _put_session(connection, number, item):
                kept.stored += 1
            else:
                kept.known += 1
    return kept


def _session_fault(item: ImportedSession) -> str | None:
    if not item.outcomes:
        return "the session has no outcome yet"
    if not _environment_fits(item.environment):
        return "its environment cannot be stored"
    solutions = {outcome.solution.id: outcome.solution for outcome in item.outcomes}
    if not all(_solution_fits(solution) for solution in solutions.values()):
        return "one of its solutions cannot be stored"
    verdict = None if item.result is None else item.result["verdict"]
    if verdict is not None and not {verdict["winner"], verdict["baseline"]} <= solutions.keys():
        return "its verdict names a solution that the session never measured"
    return None


def _put_session(connection: Connection, number: int, item: ImportedSession) -> bool:
    """Whether anything of the session is new. A journal that has grown since goes on where it was."""
    start = sessions.SessionStart(
        item.problem,
        item.environment,
        item.policy.id,
        item.policy.to_dict(),
        storable({name: item.start[name] for name in ("budget", "search", "rule")}),
        provenance_number=number,
        # Two journals may hold a session of the same key; their first samples tell them apart.
        origin=f"{item.key}:{short_hash(storable(item.outcomes[0].to_dict()))}",
    )
    row = queries.session(connection, start.id)
    if row is not None and row["ended_at"] is not None:
        return False
    before = 0 if row is None else len(sessions.stored_outcomes(connection, start.id))
    sessions.begin_session(connection, start)
    sessions.append_outcomes(connection, start.id, item.outcomes, 1, Counter())
    if item.result is not None:
        defaults: dict[str, Any] = {
            "error": None,
            "counts": {},
            "notes": [],
            "roofline_share": None,
            "binds": None,
        }
        sessions.end_session(connection, start, storable({**defaults, **item.result}))
        return True
    target = table(models.Session)
    connection.execute(update(target).where(target.c.id == start.id).values(status="stopped"))
    return row is None or len(item.outcomes) > before


def distinct(read: Imported) -> list[tuple[GemmProblem, int]]:
    """The file's problems with their calls, as a tuning takes them."""
    return [(item.problem, min(item.count, _INT4)) for item in read.problems]
