"""Sessions as JSON lines: written as outcomes come, read back to go on after a stop or a crash.

A line is written whole or not at all: a disk that fills up in the middle of one leaves the file as it was
before it, and a last line that a crash cut short is dropped when the file is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backends.canonical import short_hash
from backends.environment import Environment
from backends.errors import ReadError, StorageError
from backends.outcome import Outcome
from backends.problem import GemmProblem
from tuners.policy import MeasurementPolicy

VERSION = 1


def session_key(problem: GemmProblem, environment: Environment, policy: MeasurementPolicy, seed: int) -> str:
    """What must be equal for stored outcomes to be replayed."""
    return short_hash([problem.id, environment.to_dict(), policy.id, seed], 16)


@dataclass
class StoredSession:
    """What a journal holds of one session: its outcomes, and its result once there is one."""

    outcomes: list[Outcome] = field(default_factory=list)
    result: Mapping[str, Any] | None = None


class Journal:
    """An append-only file of JSON lines; each carries its type and session."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sessions: dict[str, StoredSession] = {}
        good = self._load() if path.exists() else 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("r+b" if path.exists() else "w+b")
            self._file.truncate(good)
            self._file.seek(good)
        except OSError as error:
            raise self._refused(error) from error

    def _load(self) -> int:
        """Reads every whole line; the offset after the last. Raises ReadError for another kind of file."""
        good = 0
        try:
            lines = self.path.read_bytes().splitlines(keepends=True)
        except OSError as error:
            raise ReadError(f"cannot read {self.path}: {error.strerror}") from error
        for number, line in enumerate(lines, 1):
            try:
                if not line.endswith(b"\n"):
                    break
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ReadError(
                    f"{self.path}, line {number}: not a session file of gemmtune ({error}); "
                    "name another file or move this one away"
                ) from error
            good += len(line)
        return good

    def _take(self, row: Mapping[str, Any]) -> None:
        stored = self.sessions.setdefault(row["session"], StoredSession())
        if row["type"] == "outcome":
            stored.outcomes.append(Outcome.from_dict(row["outcome"]))
        elif row["type"] == "result":
            stored.result = row["result"]

    def write(self, kind: str, session: str, values: Mapping[str, Any], sync: bool = False) -> None:
        """Appends {"type", "session", kind: values}. Raises StorageError; the file then ends as before."""
        row = {"type": kind, "version": VERSION, "session": session, kind: values}
        line = (json.dumps(row, separators=(",", ":")) + "\n").encode()
        start = self._file.tell()
        try:
            self._file.write(line)
            self._file.flush()
            if sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._drop_from(start)
            raise self._refused(error) from error
        self._take(row)

    def _drop_from(self, start: int) -> None:
        try:
            os.ftruncate(self._file.fileno(), start)
        finally:
            # The buffered writer still holds the line: close without letting it try again.
            self._file = os.fdopen(os.dup(self._file.fileno()), "r+b")
            self._file.seek(start)

    def close(self) -> None:
        """Flushes to the disk and closes."""
        try:
            self._file.close()
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write {self.path}: {error.strerror or error}; every line before is kept: free some "
            "space and run the same command again to go on"
        )
