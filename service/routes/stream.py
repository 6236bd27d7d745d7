"""Server-sent events of a tuning, read from its stored, numbered list."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from backends.errors import GemmtuneError
from db import queries
from db.tunings import ACTIVE
from service import errors
from service.deps import Service
from service.schemas import INT64

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
#: Most events per read of the database.
_BATCH = 500


def wants_json(request: Request) -> bool:
    """Whether the Accept header names JSON and no event stream."""
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/event-stream" not in accepted


def after_of(request: Request, after: int | None) -> int:
    """The number of the client's last event: from the header that browsers send, else from the parameter."""
    header = request.headers.get("last-event-id", "").strip()
    if not header:
        return after or 0
    if not (header.isascii() and header.isdigit() and len(header) <= 19 and int(header) <= INT64):
        raise errors.bad_parameter("Last-Event-ID", f"must be an event's number, not {header[:40]!r}")
    return int(header)


def event_stream(service: Service, tuning: dict[str, Any], after: int) -> Response:
    """The stream; 204, at which browsers stop reconnecting, if no event is left and none will come."""
    if tuning["status"] not in ACTIVE and after >= tuning["last_event"]:
        return Response(status_code=204)
    return StreamingResponse(
        _counted(service, _events(service, tuning, after)), headers=_HEADERS, media_type="text/event-stream"
    )


async def _counted(service: Service, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    service.event_streams += 1
    try:
        async for event in events:
            yield event
    finally:
        service.event_streams -= 1


async def _events(service: Service, tuning: dict[str, Any], after: int) -> AsyncIterator[bytes]:
    settings = service.settings
    yield b": events\n\n"
    told = time.monotonic()
    while not service.closing:
        try:
            rows = await run_in_threadpool(service.read, queries.events, tuning["number"], after, _BATCH)
        except GemmtuneError:
            # The client reconnects with Last-Event-ID, and gets the error then if it persists.
            yield b"retry: %d\n: the database does not answer\n\n" % (settings.retry_after_seconds * 1000)
            return
        for row in rows:
            yield b"id: %d\nevent: %s\ndata: %s\n\n" % (
                row["number"], row["kind"].encode(), orjson.dumps(row["content"]),
            )  # fmt: skip
            after = row["number"]
            if row["kind"] == "ended":
                return
        if rows:
            told = time.monotonic()
        elif time.monotonic() - told >= settings.events_heartbeat_seconds:
            yield b": still here\n\n"
            told = time.monotonic()
            try:
                present = await run_in_threadpool(_now, service, tuning["id"])
            except GemmtuneError:
                continue
            if present is None or (present["status"] not in ACTIVE and after >= present["last_event"]):
                return  # the client named an event that does not exist
        if len(rows) < _BATCH:
            await asyncio.sleep(settings.events_poll_seconds)


def _now(service: Service, tuning_id: str) -> dict[str, Any] | None:
    return service.read(queries.tuning, tuning_id)
