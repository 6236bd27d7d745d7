"""The best rows of a model's problems: from this machine's database, or from a service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import orjson
from sqlalchemy import Engine

from backends.environment import DeviceClass, Environment
from service import exports
from service.formats.core.export import ExportReport, ExportRow
from service.formats.core.row_values import BadRowError, Rows
from service.remote import Remote, ServiceError

#: The start of a row of gemmtune's JSON lines: most of a service's rows are of other problems, and are told
#: apart by it without being parsed.
_START = b'{"problem_id":"'


class RowSource(Protocol):
    """Where a command reads best rows."""

    def rows(self, device: DeviceClass, policy_id: str, counts: Mapping[str, int]) -> list[ExportRow]:
        """The best rows of the problems in `counts` (id -> calls), each with that count, by problem id."""


@dataclass(frozen=True)
class HereRows:
    """This machine's database. `key_formats`: the input formats whose keys a file writes back."""

    engine: Engine
    key_formats: Sequence[str] = ()

    def rows(self, device: DeviceClass, policy_id: str, counts: Mapping[str, int]) -> list[ExportRow]:
        """See RowSource. Raises DatabaseUnavailable."""
        chosen = exports.Selection(device, policy_id)
        found = exports.read_rows(self.engine, chosen, self.key_formats, ExportReport(), list(counts))
        return [replace(row, count=counts[row.problem.id]) for row in found]


@dataclass(frozen=True)
class ThereRows:
    """A service, whose export as JSON lines has everything that a row says."""

    remote: Remote

    def rows(self, device: DeviceClass, policy_id: str, counts: Mapping[str, int]) -> list[ExportRow]:
        """See RowSource. Raises ServiceError."""
        report = self.remote.get("/v1/exports/jsonl", device=str(device), policy=policy_id, report=True)
        if not report["written"]:  # a file without a row is refused
            return []
        pieces = self.remote.download("/v1/exports/jsonl", device=str(device), policy=policy_id)
        read, found = Rows(), []
        for line in _lines(pieces):
            problem_id = line[len(_START) :].split(b'"', 1)[0].decode() if line.startswith(_START) else ""
            if problem_id in counts:
                try:
                    row = read.row(orjson.loads(line))
                except (BadRowError, orjson.JSONDecodeError) as error:
                    raise ServiceError(
                        f"{self.remote.server} sent a row that cannot be read: {error}"
                    ) from None
                found.append(replace(row, count=counts[problem_id]))
        return found


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    held = b""
    for piece in pieces:
        *lines, held = (held + piece).split(b"\n")
        yield from lines
    if held:
        yield held


def environments_of(rows: Sequence[ExportRow]) -> tuple[Environment, ...]:
    """The environments that the rows were measured in, that of the latest verdict first."""
    latest = sorted(rows, key=lambda row: row.decided_at or "", reverse=True)
    return tuple({row.environment.id: row.environment for row in latest}.values())


def measured_here(row: ExportRow, here: Environment) -> bool:
    """Whether a row holds for an environment: the same device class, driver and libraries, on any card."""
    return replace(row.environment, uuid="") == replace(here, uuid="")
