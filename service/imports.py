"""Imports files of other tools, and of gemmtune elsewhere, into the database.

An import stores problems with the tool's own keys; claims (results rows, served only on request); and
sessions of a bare node's journal, which are gemmtune's own measurements and make best rows. Keys, claims and
sessions refer to the file's provenance. Imports are idempotent: the same bytes again change nothing, and the
next import completes an interrupted one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Engine, delete, update
from sqlalchemy.dialects import postgresql, sqlite

from backends.canonical import short_hash
from backends.environment import DeviceClass
from backends.errors import UnknownDevice
from backends.problem import GemmProblem
from db import models, queries, sessions
from db import provenance as provenance_rows
from db.best import touch
from db.classes import classes
from db.engine import writing
from db.values import (
    put_device_class,
    put_problems,
    storable,
    table,
)
from service import formats
from service.claims import put_claims
from service.formats import (
    ByteStream,
    Imported,
    ImportedProblem,
    ImportedSession,
    ReadOptions,
)
from service.formats.core.base import Told
from service.formats.core.row_text import problem_text, problem_wire
from service.formats.model.config import MODEL
from service.kept import INT4, LONGEST_KEY, Kept, environment_fits, parts, solution_fits
from service.prepacking import prepack

#: `format` of the reader for gemmtune's own measurements.
JOURNAL = "journal"
#: `format` of the reader for models.
MODEL_CONFIG = "model-config"
#: The kind of a pre-tuned table's provenance, and the name in the file's header that makes it one.
PRETUNED = "pretuned"


@dataclass(frozen=True)
class ImportAnswer:
    """The result of an import: what was read, and what was stored."""

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
    options: ReadOptions | None = None,
    prepacked: bool = False,
) -> ImportAnswer:
    """Reads a stream (messages call it `name`) and stores its content. `device` is the device of another
    tool's results: a selector, or a whole class, which registers nothing. `options` supply what the file
    does not say; their file name defaults to that of `source`, else of `name`. `prepacked`: its problems with
    quantised weights are those of a program that packs these (service/prepacking.py); claims and sessions are
    of the problem that was measured.

    Raises ReadError, InvalidProblem (`prepacked`, and no problem or no weights to pack), UnknownDevice,
    AmbiguousDevice, DatabaseUnavailable.
    """
    device_class = None if device is None else import_class(engine, device)
    hashed = _Hashed(stream)
    options = replace(options or ReadOptions(), arch="" if device_class is None else device_class.arch)
    if not options.file_name:
        options = replace(options, file_name=(source or name).replace("\\", "/").rpartition("/")[2])
    read = formats.read_stream(hashed, name, format_name, options)
    reader = formats.READERS[read.format]
    if isinstance(reader, Told):  # with other options the same bytes are another file
        hashed.add(options.identity(reader.declares.options))
    claimed = [item.problem for item in read.claims]
    if prepacked:
        read = prepack(read, source or name)
        hashed.add("prepacked")
    kind = "imported"
    if read.format == JOURNAL:
        kind = "node"
    elif PRETUNED in read.header:
        kind = PRETUNED
        source = read.header[PRETUNED] or source  # the table's own name, whatever the file is called
    provenance = {
        "kind": kind,
        "format": read.format,
        "source": storable(source or name)[:500],
        "sha256": hashed.digest(),
        "device_class_id": "" if device_class is None else str(device_class),
    }
    with writing(engine) as connection:
        number, new = provenance_rows.put(connection, {**provenance, "header": storable(dict(read.header))})
        if read.format == MODEL_CONFIG and not new:
            _drop_keys_without_model(connection, number)
    for part in parts(read.problems):
        with writing(engine) as connection:
            put_problems(connection, [item.problem for item in part])
            if kind == PRETUNED:  # a list of its own: it replaces no count of a user's file
                named = [replace(item, keys=(provenance["source"],)) for item in part]
                _put_keys(connection, PRETUNED, number, named)
            else:
                _put_keys(connection, read.format, number, _of_models(read, part))
    for some in parts(claimed if prepacked else ()):
        with writing(engine) as connection:
            put_problems(connection, some)
    claims = put_claims(engine, number, read, device_class)
    kept = _put_sessions(engine, number, read.sessions)
    if new or claims.stored:
        # Exports contain the tools' own keys and, on request, claims: cached ones are out of date.
        with writing(engine) as connection:
            for row in queries.device_classes(connection):
                touch(connection, row["id"])
    shown = {**provenance, "device_class": provenance["device_class_id"] or None, "new": new}
    del shown["device_class_id"]
    return ImportAnswer(read, shown, claims, kept)


def import_class(engine: Engine, text: str) -> DeviceClass:
    """The device class of an import: a known one by its selector, or any by its whole name. A new one is
    stored for the rows that refer to it, not registered. Raises UnknownDevice, AmbiguousDevice."""
    with writing(engine) as connection:
        known = classes(connection)
        try:
            return known.resolve(text)
        except UnknownDevice:
            try:
                made = DeviceClass.parse(text)
            except ValueError:
                made = None
            if made is None:
                raise
            put_device_class(connection, made)
            return made


def keep_counts(engine: Engine, read: Imported, source: str) -> None:
    """Stores a file's problems with their keys and call counts, as importing it does, but none of its claims:
    for a command that tunes the file. Again it changes nothing. Raises DatabaseUnavailable."""
    rows = [(problem_text(item.problem)[0], item.count, item.keys) for item in read.problems]
    provenance = {
        "kind": "imported", "format": read.format, "source": storable(source)[:500],
        "sha256": hashlib.sha256(repr(rows).encode()).hexdigest(), "device_class_id": "", "header": {},
    }  # fmt: skip
    with writing(engine) as connection:
        number, new = provenance_rows.put(connection, provenance)
    for part in parts(read.problems) if new else ():
        with writing(engine) as connection:
            put_problems(connection, [item.problem for item in part])
            _put_keys(connection, read.format, number, _of_models(read, part))


class _Hashed:
    """A stream whose bytes are hashed as they are read."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream, self._hash = stream, hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        return data

    def add(self, text: str) -> None:
        """Adds text to the hash, after all bytes of the stream."""
        self.digest()
        self._hash.update(b"\0" + text.encode())

    def digest(self) -> str:
        """The hash of the whole stream, including what its reader left unread."""
        while self.read(1 << 16):
            pass
        return self._hash.hexdigest()


# ---- provenance and keys -------------------------------------------------------------------------


def _of_models(read: Imported, items: Sequence[ImportedProblem]) -> Sequence[ImportedProblem]:
    """A model's layers with keys that begin with the model's hash, since two models may have the same layer:
    each keeps its own, and their calls add up."""
    if read.format != MODEL_CONFIG:
        return items
    model = f"model {read.header[MODEL]}: "
    return [replace(item, keys=tuple(model + key for key in item.keys)) for item in items]


def _drop_keys_without_model(connection: Connection, number: int) -> None:
    """Removes the keys that earlier versions stored of a model's file, which did not name the model."""
    keys = table(models.ProblemKey)
    bare = ~keys.c.key.like("model %: %")
    connection.execute(
        delete(keys).where(keys.c.provenance_number == number, keys.c.format == MODEL_CONFIG, bare)
    )


def _put_keys(
    connection: Connection, format_name: str, number: int, items: Sequence[ImportedProblem]
) -> None:
    """Stores the tool's own keys; a problem's call count goes with its first key. If two files have the same
    key, the file with the later first import wins, however often either is imported again."""
    rows = [
        {
            "problem_id": problem_text(item.problem)[0],
            "format": format_name,
            "key": key,
            "provenance_number": number,
            "count": min(item.count, INT4) if place == 0 else 0,
        }
        for item in items
        for place, key in enumerate([k for k in item.keys if len(k) <= LONGEST_KEY] or [""])
    ]
    # In key order, so that two imports of the same problems cannot deadlock.
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
    if not environment_fits(item.environment):
        return "its environment cannot be stored"
    solutions = {outcome.solution.id: outcome.solution for outcome in item.outcomes}
    if not all(solution_fits(solution) for solution in solutions.values()):
        return "one of its solutions cannot be stored"
    verdict = None if item.result is None else item.result["verdict"]
    named: set[str] = set()
    if verdict is not None:
        named = {verdict["winner"], verdict["baseline"]}
        named |= {target["solution"] for target in verdict.get("targets", {}).values()}
    if not named <= solutions.keys():
        return "its verdict names a solution that the session never measured"
    return None


def _put_session(connection: Connection, number: int, item: ImportedSession) -> bool:
    """Stores the session; returns whether anything of it is new. A journal that has grown since its last
    import continues the stored session."""
    start = sessions.SessionStart(
        item.problem,
        item.environment,
        item.policy.id,
        item.policy.to_dict(),
        storable({name: item.start[name] for name in ("budget", "search", "rule")}),
        provenance_number=number,
        # Two journals may hold a session with the same key; their first outcomes tell them apart.
        origin=f"{item.key}:{short_hash(storable(item.outcomes[0].to_dict()))}",
        options=storable(item.start.get("options")),
    )
    row = queries.session(connection, start.id)
    if row is not None and row["ended_at"] is not None:
        return False
    before = 0 if row is None else len(sessions.stored_outcomes(connection, start.id))
    sessions.begin_session(connection, start)
    sessions.append_outcomes(connection, start.id, item.outcomes, 1, Counter(), learn=False)
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
    """The file's problems with their call counts, as a tuning takes them."""
    return [(item.problem, min(item.count, INT4)) for item in read.problems]
