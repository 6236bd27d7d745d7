"""Server-sent events of a tuning, read from its stored, numbered list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from backends.errors import GemmtuneError
from db import queries
from db.tunings import ACTIVE
from service import errors
from service.deps import Service
from service.event_hub import BATCH, EventHub, Followed
from service.schemas import INT64

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


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


def event_stream(service: Service, hub: EventHub, tuning: dict[str, Any], after: int) -> Response:
    """The stream; 204, at which browsers stop reconnecting, if no event is left and none will come. Raises
    Refused (503) if too many streams are open."""
    if tuning["status"] not in ACTIVE and after >= tuning["last_event"]:
        return Response(status_code=204)
    hub.take_place()
    return _Stream(service, hub, _events(service, hub, tuning, after))


class _Stream(StreamingResponse):
    """Gives its place back at its end, also if the client was gone before its beginning."""

    def __init__(self, service: Service, hub: EventHub, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, headers=_HEADERS, media_type="text/event-stream")
        self._service, self._hub = service, hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._service.event_streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._service.event_streams -= 1
            self._hub.give_place()


async def _events(
    service: Service, hub: EventHub, tuning: dict[str, Any], after: int
) -> AsyncIterator[bytes]:
    settings = service.settings
    yield b": events\n\n"
    async with hub.follow(tuning["number"], tuning["last_event"]) as followed:
        while not service.closing:
            changed = followed.changed
            try:
                rows = await _rows(service, hub, followed, after)
            except GemmtuneError:
                rows, followed.away = [], True
            for row in rows:
                yield b"id: %d\nevent: %s\ndata: %s\n\n" % (
                    row["number"], row["kind"].encode(), orjson.dumps(row["content"]),
                )  # fmt: skip
                after = row["number"]
                if row["kind"] == "ended":
                    return
            if followed.away:
                # The client reconnects with Last-Event-ID, and gets the error then if it persists.
                wait = settings.retry_after_seconds * 1000
                yield b"retry: %d\n: the database does not answer\n\n" % wait
                return
            if rows:
                continue
            if followed.ended and after >= followed.last:
                return  # the client named an event that does not exist
            try:
                async with asyncio.timeout(settings.events_heartbeat_seconds):
                    await changed.wait()
            except TimeoutError:
                yield b": still here\n\n"


async def _rows(service: Service, hub: EventHub, followed: Followed, after: int) -> list[dict[str, Any]]:
    found = followed.after(after)
    if found is None:
        async with hub.catching_up:
            found = await run_in_threadpool(service.read, queries.events, followed.number, after, BATCH)
    return found
