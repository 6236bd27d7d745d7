"""Connections of a server: deadlines, bounds, and answers to what is no HTTP.

uvicorn closes connections that are idle between two requests. A client can do more harm: open connections and
send nothing, send a header or a body byte by byte, or not read its answer. Each of these ends here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
import sys
import time
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.errors import MEDIA_TYPE

_log = logging.getLogger(__name__)
#: Least seconds between two lines about refused connections.
_LOG_SECONDS = 10.0


@dataclass(frozen=True)
class Bounds:
    """`connections` at once, at most. `header_seconds`: from a connection, or a request's first byte, to the
    end of its headers. A body, and a client that reads, must move at least `bytes_per_second`, counted over
    `stall_seconds`."""

    connections: int
    header_seconds: float
    stall_seconds: float
    bytes_per_second: int


def bounded(bounds: Bounds) -> type[HttpToolsProtocol]:
    """A protocol class for uvicorn with these bounds."""
    return type("Bounded", (BoundedProtocol,), {"bounds": bounds})


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    bounds: Bounds
    _told = float("-inf")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuses a connection beyond the bound, and starts the headers' deadline."""
        super().connection_made(transport)
        self._moved, self._left = 0, 0
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._header: asyncio.TimerHandle | None = None
        self._watch_unread()
        if len(self.connections) > self.bounds.connections:
            self._tell()
            self._refuse(503, "busy", "The service is busy", "too many connections; try again in a moment")
            return
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the deadlines."""
        for timer in (self._reading, self._writing, self._header):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feeds the parser, unless the connection was refused."""
        if not self.transport.is_closing():
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, as a problem document."""
        self._refuse(400, "malformed-request", "The request is no HTTP", msg)

    # ---- headers ------------------------------------------------------------------------------------

    def _await_headers(self) -> None:
        if self._header is None:
            self._header = self.loop.call_later(self.bounds.header_seconds, self._late)

    def _late(self) -> None:
        self._header = None
        if not self.transport.is_closing():
            seconds = self.bounds.header_seconds
            self._refuse(408, "too-slow", "The request is too slow", f"no whole headers within {seconds:g} s")

    def on_message_begin(self) -> None:
        """A request's first byte."""
        super().on_message_begin()
        self._await_headers()

    def on_headers_complete(self) -> None:
        """Ends the headers' deadline; the body's begins."""
        if self._header is not None:
            self._header.cancel()
            self._header = None
        super().on_headers_complete()
        self._moved = 0
        self._reading = self.loop.call_later(self.bounds.stall_seconds, self._look_at_body)

    # ---- bodies -------------------------------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        """Counts what arrives."""
        self._moved += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Ends the body's deadline."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        super().on_message_complete()

    def _least(self) -> float:
        return self.bounds.stall_seconds * self.bounds.bytes_per_second

    def _look_at_body(self) -> None:
        self._reading = None
        if self.transport.is_closing():
            return
        # A paused connection waits for us, not for its client.
        if self._moved < self._least() and not self.flow.read_paused:
            _log.info("a body came too slowly from %s", self.client)
            self.transport.abort()
            return
        self._moved = 0
        self._reading = self.loop.call_later(self.bounds.stall_seconds, self._look_at_body)

    # ---- answers ------------------------------------------------------------------------------------

    def _watch_unread(self) -> None:
        """Lets every byte that waits for the client count as unread: by default the last 64 KiB do not, and
        nobody waits for them once an answer is complete."""
        # uvloop pauses a plain connection above this limit, and one with TLS at it.
        self.transport.set_write_buffer_limits(high=1 if self.scheme == "https" else 0)
        if sys.platform == "linux":
            # Not in the transport's buffer: up to 64 KiB encrypted, and what the kernel has taken.
            connection: socket.socket = self.transport.get_extra_info("socket")
            milliseconds = math.ceil(self.bounds.stall_seconds * 1000)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    def pause_writing(self) -> None:
        """The client reads slower than it is sent to."""
        super().pause_writing()
        self._left = self.transport.get_write_buffer_size()
        self._writing = self.loop.call_later(self.bounds.stall_seconds, self._look_at_answer)

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

    def _look_at_answer(self) -> None:
        self._writing = None
        left = self.transport.get_write_buffer_size()
        if self._left - left < min(self._least(), self._left):
            _log.info("an answer was not read by %s", self.client)
            self.transport.abort()
            return
        self._left = left
        self._writing = self.loop.call_later(self.bounds.stall_seconds, self._look_at_answer)

    # ---- refusing -----------------------------------------------------------------------------------

    def _tell(self) -> None:
        now = time.monotonic()
        if now - BoundedProtocol._told >= _LOG_SECONDS:
            BoundedProtocol._told = now
            _log.warning(
                "more than %d connections (GEMMTUNE_MAX_CONNECTIONS): new ones are refused",
                self.bounds.connections,
            )

    def _refuse(self, status: int, name: str, title: str, detail: str) -> None:
        """Answers a problem document and closes the connection; one in mid-answer is closed alone."""
        request_id = token_hex(8)
        document: dict[str, Any] = {
            "type": f"urn:gemmtune:{name}", "title": title, "status": status, "detail": detail,
            "instance": "/", "request_id": request_id,
        }  # fmt: skip
        if self.cycle is None or self.cycle.response_complete:
            body = json.dumps(document).encode()
            lines = [
                STATUS_LINE[status], b"content-type: %s\r\n" % MEDIA_TYPE.encode(),
                b"content-length: %d\r\nx-request-id: %s\r\n" % (len(body), request_id.encode()),
                b"retry-after: 2\r\n" if status == 503 else b"", b"connection: close\r\n\r\n", body,
            ]  # fmt: skip
            self.transport.write(b"".join(lines))
        self.transport.close()
