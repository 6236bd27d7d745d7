"""Shared by the routes: the service's state, strict reading of requests, and answers."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeVar

import orjson
from fastapi import Depends, FastAPI, Request
from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, Engine
from sqlalchemy.pool import QueuePool
from starlette.responses import Response
from starlette.routing import compile_path

from backends.environment import DeviceClass
from backends.errors import AmbiguousDevice, UnknownDevice
from backends.problem import GemmProblem
from db import tunings as tuning_rows
from db.classes import Classes, classes
from db.engine import reading
from db.lookup import Lookup
from service import errors
from service.freshness import FreshnessCache
from service.settings import Settings
from service.shared_reads import SharedReads
from service.shares import Share
from service.traceparent import TraceParent
from tuners.campaign_shares import CampaignShares
from tuners.tuning_settings import TuningSettings

Model = TypeVar("Model", bound=BaseModel)
T = TypeVar("T")

#: The form of this service's ids; text of another form names nothing.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,199}")
_CLASS_SECONDS = 1.0


class TuningService(Protocol):
    """Implemented by service.tunings.Tunings and by tests' fakes."""

    def check_share(self, share: Share | None, priority: int) -> None:
        """Raises Refused for a client that may have no job more of this priority in the queue."""

    def submit(
        self,
        device_class: DeviceClass,
        settings: TuningSettings,
        items: Sequence[tuple[GemmProblem, int]],
        priority: int,
        force: bool,
        share: Share | None,
        traceparent: TraceParent | None,
        campaign: CampaignShares | None = None,
    ) -> tuning_rows.Created:
        """Stores a tuning of (problem, call count) items and queues what must be measured. Raises Refused for
        more jobs than the share. New jobs link to `traceparent`. `campaign`: the seconds of each problem."""

    def cancel(self, tuning_id: str) -> bool:
        """Cancels a tuning; False for one that does not exist."""

    def close(self) -> None:
        """Closes the queue's connections."""


@dataclass
class Service:
    """State with the application's lifetime: settings, the database, the tunings. `closing` ends streams."""

    settings: Settings
    engine: Engine
    lookup: Lookup
    open_tunings: Callable[[Engine, Settings], TuningService]
    failing_workers: Callable[[], Sequence[str]] = tuple
    closing: bool = False
    #: Clients that follow a tuning's events.
    event_streams: int = 0
    freshness: FreshnessCache = field(default_factory=FreshnessCache)
    _reads: SharedReads[Classes] = field(default_factory=SharedReads)
    _tunings: TuningService | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _classes: Classes = field(default_factory=Classes)
    _classes_until: float = float("-inf")
    _selected: dict[str | None, DeviceClass] = field(default_factory=dict)

    @property
    def tunings(self) -> TuningService:
        """Opened on first use, so that the service can start while its database is unreachable."""
        with self._lock:
            if self._tunings is None:
                self._tunings = self.open_tunings(self.engine, self.settings)
            return self._tunings

    async def close(self) -> None:
        """Closes tunings and database."""
        self.closing = True
        await self.freshness.close()
        await self._reads.close()
        await self.lookup.close()
        with self._lock:
            if self._tunings is not None:
                self._tunings.close()
        self.engine.dispose()

    def read(self, query: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Runs one of db.queries on a connection of its own."""
        with reading(self.engine) as connection:
            return query(connection, *arguments, **named)

    def process_values(self) -> dict[str, float]:
        """Values for /metrics that no other process has."""
        pool = self.engine.pool
        return {
            "event_streams": self.event_streams,
            "connections_in_use": pool.checkedout() if isinstance(pool, QueuePool) else 0,
            "failing_workers": len(self.failing_workers()),
        }

    # ---- device classes --------------------------------------------------------------------------

    def selector(self, given: str | None) -> str | None:
        """The given selector, or the service's default; None where no device was set: Classes.resolve() says
        what is meant then."""
        return self.settings.chosen_device if given is None else given

    def classes_are_fresh(self) -> bool:
        """Whether the known classes were looked up less than a second ago."""
        return time.monotonic() < self._classes_until

    def knows(self, selector: str | None) -> bool:
        """Whether the selector was resolved before among the classes last looked up."""
        return selector in self._selected

    async def reread_classes(self) -> None:
        """Looks the classes up, once for all requests that wait for it."""
        self.refresh_classes(await self._reads.result("classes", self.lookup.classes))

    def refresh_classes(self, known: Classes) -> None:
        """Stores the classes just read from the database; a change discards resolved selectors."""
        if known != self._classes:
            self._classes, self._selected = known, {}
        self._classes_until = time.monotonic() + _CLASS_SECONDS

    def selected(self, selector: str | None) -> DeviceClass:
        """The class of a selector among those last looked up. Raises UnknownDevice, AmbiguousDevice."""
        found = self._selected.get(selector)
        if found is None:
            found = self._classes.resolve(selector)
            if len(self._selected) < 1000:
                self._selected[selector] = found
        return found

    def device_class(self, connection: Connection, selector: str | None) -> DeviceClass:
        """The class of a selector. Raises UnknownDevice, AmbiguousDevice."""
        if self.classes_are_fresh():
            with suppress(UnknownDevice, AmbiguousDevice):
                return self.selected(selector)
        self.refresh_classes(classes(connection))  # it may have been registered just now
        return self.selected(selector)

    def workable_class(self, connection: Connection, selector: str | None) -> DeviceClass:
        """The registered class of a selector. Raises UnknownDevice, AmbiguousDevice."""
        return classes(connection).workable(selector)


def service_of(request: Request) -> Service:
    """The application's state."""
    found: Service = request.app.state.service
    return found


# async: FastAPI runs a synchronous dependency in a thread, and this one only reads an attribute.
async def _service(request: Request) -> Service:
    return service_of(request)


ServiceDep = Annotated[Service, Depends(_service)]


# ---- parameters of an operation ------------------------------------------------------------------


class Operations:
    """Paths, methods and query parameters, from the OpenAPI document."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._found: list[tuple[re.Pattern[str], str, dict[str, frozenset[str]]]] | None = None

    def _all(self) -> list[tuple[re.Pattern[str], str, dict[str, frozenset[str]]]]:
        if self._found is None:
            self._found = [
                (compile_path(path)[0], path, {m.upper(): _query_names(o) for m, o in operations.items()})
                for path, operations in self._app.openapi()["paths"].items()
            ]
        return self._found

    def allowed(self, path: str) -> list[str]:
        """The methods of a path; if several templates match, of the one with the fewest parameters."""
        matching = [found for found in self._all() if found[0].match(path)]
        return sorted(min(matching, key=lambda f: f[1].count("{"))[2]) if matching else []

    def parameters(self, template: str, method: str) -> frozenset[str] | None:
        """The query parameters of an operation; None for an unknown one."""
        return next((methods.get(method) for _, path, methods in self._all() if path == template), None)


def _query_names(operation: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(p["name"] for p in operation.get("parameters", ()) if p["in"] == "query")


#: Query parameters that may be given more than once.
REPEATABLE = frozenset({"by", "tokens", "validator"})


async def known_parameters(request: Request) -> None:
    """Refuses query parameters that the operation does not have, and repeated ones."""
    if not request.scope["query_string"]:
        return
    given = [name for name, _ in request.query_params.multi_items()]
    operations: Operations = request.app.state.operations
    known = operations.parameters(request.scope["route"].path_format, request.method) or frozenset()
    refuse_names(given, known)


def refuse_names(given: Sequence[str], known: frozenset[str]) -> None:
    """Raises 422 for unknown names, and for repeated ones that are not REPEATABLE."""
    listed = ", ".join(sorted(known)) or "none"
    parts = [
        {"parameter": name, "detail": f"unknown query parameter; known: {listed}"}
        for name in dict.fromkeys(given)
        if name not in known
    ]
    parts += [
        {"parameter": name, "detail": "given more than once"}
        for name in dict.fromkeys(given)
        if name in known - REPEATABLE and given.count(name) > 1
    ]
    if parts:
        raise errors.invalid(parts)


STRICT = [Depends(known_parameters)]


def identifier(what: str, name: str) -> str:
    """The id. Raises 404 for text that cannot be an id."""
    if not _ID.fullmatch(name):
        raise errors.not_found(what, name)
    return name


def found(what: str, name: str, row: T | None) -> T:
    """The row. Raises 404 for None."""
    if row is None:
        raise errors.not_found(what, name)
    return row


# ---- bodies --------------------------------------------------------------------------------------


async def body_chunks(request: Request, limit: int, setting: str) -> Any:
    """Yields the body's chunks as they arrive. Raises 413 as soon as the body is known to be too large."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise errors.too_large(limit, setting)
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise errors.too_large(limit, setting)
        yield chunk


async def _json_body(request: Request) -> Any:
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        named = f"Content-Type {kind[:100]!r} is not JSON" if kind else "Content-Type is missing"
        raise errors.unsupported_type(named, ["application/json"])
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise errors.unsupported_type(f"Content-Encoding {encoding[:100]!r} is not taken; send it plain", [])
    limit = service_of(request).settings.max_body_bytes
    chunks = [chunk async for chunk in body_chunks(request, limit, "max_body_bytes")]
    return b"".join(chunks)


#: The bytes of a JSON body; parse_json() parses them in the route's thread.
JsonBody = Annotated[bytes, Depends(_json_body)]


def parse_json(text: bytes) -> Any:
    """The parsed value. Raises 400 for invalid JSON, with the position, and for a name given twice in one
    object: parsers differ in which of the two they take."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        at = error.doc[max(0, error.pos - 1) : error.pos + 3]
        why = "; JSON has no NaN and no Infinity" if "NaN" in at or "Inf" in at else ""
        raise errors.malformed(f"{error}{why}") from None
    # Values nested too deep, or numbers too long, for this parser fit no model and are refused later.
    with suppress(RecursionError, ValueError):
        json.loads(text, object_pairs_hook=_no_name_twice)
    return value


def _no_name_twice(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise errors.malformed(f"the name {name[:100]!r} is given twice in one object")
        seen.add(name)


def parse_model(model: type[Model], value: Any, faults: Sequence[errors.Part] = ()) -> Model:
    """The value as a model. Raises 422 with a JSON pointer to every fault, after those already found."""
    parts = list(faults)
    try:
        found = model.model_validate(value)
    except ValidationError as error:
        parts += [
            {"pointer": pointer(*item["loc"]), "detail": _said(item)}
            for item in error.errors(include_url=False)
        ]
    if parts:
        raise errors.invalid(parts)
    return found


def _said(item: Any) -> str:
    if item["type"] == "extra_forbidden":
        return "unknown field"
    value = item.get("input")
    shown = f" (it is {value!r})" if isinstance(value, str | int | float | bool) else ""
    return f"{item['msg']}{shown}"


def pointer(*path: str | int) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


# ---- answers -------------------------------------------------------------------------------------


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response. Infinities and NaN become null."""
    return Response(json_bytes(value), status, headers, "application/json")


def json_bytes(value: Any) -> bytes:
    """A value as JSON. Infinities and NaN become null."""
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits, in a candidate's evidence
        return json.dumps(value).encode()
