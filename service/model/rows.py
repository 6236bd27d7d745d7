"""The best rows of a model's problems: from this machine's database, or from a service."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import orjson
from sqlalchemy import Engine

from backends.counted import counted
from backends.environment import DeviceClass, Environment
from backends.errors import InvalidProblem
from service import exports
from service.formats.core.export import ExportReport, ExportRow
from service.formats.core.row_values import BadRowError, Rows
from service.remote import Remote, ServiceError

#: The start of a row of gemmtune's JSON lines: most of a service's rows are of other problems, and are told
#: apart by it without being parsed.
_START = b'{"problem_id":"'
#: The start of the last line, which an export that was cut short lacks.
_END = b'{"report":'


class RowSource(Protocol):
    """Where a command reads best rows."""

    def rows(self, device: DeviceClass, policy_id: str, counts: Mapping[str, int]) -> list[ExportRow]:
        """The best rows of the problems in `counts` (id -> calls), each with that count, by problem id."""

    def every(self, device: DeviceClass, policy_id: str) -> Iterator[ExportRow]:
        """Every best row of the class under the policy."""


@dataclass(frozen=True)
class HereRows:
    """This machine's database. `key_formats`: the input formats whose keys a file writes back. `families`:
    those whose candidates its writer compares."""

    engine: Engine
    key_formats: Sequence[str] = ()
    families: Sequence[str] = ()

    def rows(self, device: DeviceClass, policy_id: str, counts: Mapping[str, int]) -> list[ExportRow]:
        """See RowSource. Raises DatabaseUnavailable."""
        chosen = exports.Selection(device, policy_id)
        found = exports.read_rows(
            self.engine, chosen, self.key_formats, ExportReport(), list(counts), families=self.families
        )
        return [replace(row, count=counts[row.problem.id]) for row in found]

    def every(self, device: DeviceClass, policy_id: str) -> Iterator[ExportRow]:
        """See RowSource. Raises DatabaseUnavailable."""
        chosen = exports.Selection(device, policy_id)
        return exports.read_rows(self.engine, chosen, self.key_formats, ExportReport())


@dataclass(frozen=True)
class ThereRows:
    """A service, whose export as JSON lines has everything that a row says."""

    remote: Remote

    def rows(self, device: DeviceClass, policy_id: str, counts: Mapping[str, int]) -> list[ExportRow]:
        """See RowSource. Raises ServiceError."""
        found = self._read(device, policy_id, counts)
        return [replace(row, count=counts[row.problem.id]) for row in found]

    def every(self, device: DeviceClass, policy_id: str) -> Iterator[ExportRow]:
        """See RowSource. Raises ServiceError."""
        return self._read(device, policy_id, None)

    def _read(
        self, device: DeviceClass, policy_id: str, wanted: Container[str] | None
    ) -> Iterator[ExportRow]:
        """The rows of the wanted problems (None: of all)."""
        asked: dict[str, Any] = {"device": str(device), "policy": policy_id}
        if not self.remote.get("/v1/exports/jsonl", **asked, report=True)["written"]:
            return  # a file without a row would be refused
        read, whole, came = Rows(), False, 0
        for line in _lines(self.remote.download("/v1/exports/jsonl", **asked)):
            whole = line.startswith(_END)
            if not line.startswith(_START):
                continue
            came += 1
            if wanted is not None and line[len(_START) :].split(b'"', 1)[0].decode() not in wanted:
                continue
            try:
                yield read.row(orjson.loads(line))
            except (BadRowError, InvalidProblem, orjson.JSONDecodeError) as error:
                text = f"{self.remote.server} sent a row that cannot be read: {error}"
                raise ServiceError(text) from None
        if not whole:
            raise ServiceError(
                f"the export of {self.remote.server} was cut short: {counted(came, 'row')} "
                "came, and not the report, which is its last line; try again"
            )


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
