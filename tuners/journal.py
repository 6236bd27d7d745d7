"""Sessions as JSON lines: written as outcomes arrive, read back to resume after a stop or a crash.

A line is written whole or not at all. If the disk fills up in the middle of a line, the file is truncated to
its state before that line; a last line that a crash cut short is dropped when the file is read.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backends.environment import Environment
from backends.errors import ReadError, StorageError
from backends.outcome import Outcome
from backends.problem import GemmProblem
from tuners.history import nearest, results_of
from tuners.session_store import Result, SessionSpec, StoredSession
from tuners.strategies.context import PriorResult

VERSION = 1
#: The start of every line, so that a first line cut short by a crash is recognized.
_START = b'{"type":"'


@dataclass
class Kept:
    """The content of the file for one session: its last start, its outcomes, and the result of that start."""

    start: Mapping[str, Any] | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    result: Mapping[str, Any] | None = None


def _asked(start: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a start that must equal another's for its result to be replayed. It excludes the options,
    which only say how a verdict was reached and are missing in files of earlier versions."""
    return {name: value for name, value in start.items() if name != "options"}


class Journal:
    """A SessionStore in an append-only file of JSON lines, each with its type and session. Raises ReadError
    for a file of another kind, StorageError if it cannot be written or is in use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sessions: dict[str, Kept] = {}
        self._session = ""
        self._past: dict[str, list[PriorResult]] = {}
        if path.is_dir():
            raise ReadError(f"cannot read {path}: it is a folder; name a file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered, so that after a failed write no rest is left for a later flush to write.
            self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        except OSError as error:
            raise self._refused(error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            good = self._load()
            self._file.truncate(good)
            self._file.seek(good)
        except BlockingIOError as error:
            self._file.close()
            raise StorageError(f"{path} is being written by another gemmtune; name another file") from error
        except OSError as error:
            self._file.close()
            raise self._refused(error) from error
        except ReadError:
            self._file.close()
            raise

    def _load(self) -> int:
        """Reads every whole line and returns the offset after the last. Raises ReadError for a file of
        another kind."""
        good = 0
        try:
            with self.path.open("rb") as file:
                lines = file.readlines()
        except OSError as error:
            raise ReadError(f"cannot read {self.path}: {error.strerror}") from error
        for number, line in enumerate(lines, 1):
            try:
                if not line.endswith(b"\n"):
                    if good == 0 and not line.startswith(_START[: len(line)]):
                        raise ValueError("it has no whole line")
                    break
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ReadError(
                    f"{self.path}, line {number}: not a session file of gemmtune ({error}); "
                    "name another file or move this one away"
                ) from error
            good += len(line)
        return good

    def _take(self, row: Mapping[str, Any]) -> None:
        if row["version"] != VERSION:
            raise ValueError(f"version {row['version']} of the file's form; this gemmtune reads {VERSION}")
        stored = self.sessions.setdefault(row["session"], Kept())
        if row["type"] == "outcome":
            stored.outcomes.append(Outcome.from_dict(row["outcome"]))
        elif row["type"] == "start":
            stored.start, stored.result = row["start"], None
        elif row["type"] == "result":
            stored.result = row["result"]
            self._past.pop(row["session"], None)

    def start(self, spec: SessionSpec) -> StoredSession:
        """See SessionStore. Writes a start line unless the last one has the same settings."""
        self._session = spec.key
        kept, start = self.sessions.get(spec.key, Kept()), spec.to_dict()
        same = kept.start is not None and _asked(kept.start) == _asked(start)
        if not same:
            self.write("start", spec.key, start)
        result = None
        if same and kept.result is not None and kept.result.get("error") is None:
            try:
                result = Result.from_dict(kept.result)
            except (KeyError, TypeError, ValueError) as error:
                raise ReadError(f"{self.path}: the result of session {spec.key} is none ({error})") from error
        return StoredSession(list(kept.outcomes), result, history=self._history(spec))

    def _history(self, spec: SessionSpec) -> list[PriorResult]:
        """What the file's other sessions on devices of the vendor found for the nearest problems."""
        known = {key: self._results(key) for key in self.sessions if key != spec.key}
        alike = [
            (results[0].problem, results)
            for results in known.values()
            if results and results[0].environment.vendor == spec.environment.vendor
        ]
        return nearest(spec.problem, spec.environment.units, alike)

    def _results(self, key: str) -> list[PriorResult]:
        """The fastest results of a session that has a verdict."""
        if key not in self._past:
            kept = self.sessions[key]
            if kept.start is None or kept.result is None or kept.result.get("verdict") is None:
                return []  # it may still end
            self._past[key] = results_of(
                GemmProblem.from_dict(kept.start["problem"]),
                Environment.from_dict(kept.start["environment"]), kept.outcomes,
                kept.result["verdict"]["baseline"],
            )  # fmt: skip
        return self._past[key]

    def add(self, outcome: Outcome) -> None:
        """See SessionStore."""
        self.write("outcome", self._session, outcome.to_dict())

    def flush(self) -> None:
        """See SessionStore. add() writes at once."""

    def finish(self, result: Result) -> None:
        """See SessionStore."""
        self.write("result", self._session, result.to_dict(), sync=True)

    def write(self, kind: str, session: str, values: Mapping[str, Any], sync: bool = False) -> None:
        """Appends {"type", "version", "session", kind: values}. Raises StorageError, and then leaves the file
        as it was."""
        row = {"type": kind, "version": VERSION, "session": session, kind: values}
        line = (json.dumps(row, separators=(",", ":")) + "\n").encode()
        start = self._file.tell()
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
            if sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._drop_from(start)
            raise self._refused(error) from error
        self._take(row)

    def _drop_from(self, start: int) -> None:
        with suppress(OSError):  # a partial line that cannot be truncated is dropped on the next read
            self._file.truncate(start)
        self._file.seek(start)

    def close(self) -> None:
        """Closes the file. Raises StorageError if the disk reports an error only now."""
        try:
            self._file.close()
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write {self.path}: {error.strerror or error}; every line before is kept: free some "
            "space and run the same command again to go on"
        )
