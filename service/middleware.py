"""Middleware around every request: request ids, access log, metrics, and the answer to unexpected errors.

Plain ASGI: one layer of Starlette's BaseHTTPMiddleware would take half of a lookup's time and delay streams.
"""

from __future__ import annotations

import logging
import re
import time
from secrets import token_hex

from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.error_answers import problem_response
from service.errors import UNEXPECTED
from service.metrics import Metrics
from service.tracing import SPAN, RequestSpan, Tracing

_access = logging.getLogger("gemmtune.access")
_log = logging.getLogger(__name__)
_SANE_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
#: The route of paths without one, in metrics: labels must not grow with the paths that clients try.
UNMATCHED = "unmatched"
#: The status, in log and metrics, of a client that disconnected before it had sent its request; not answered.
CLIENT_GONE = 499
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"))


class Observed:
    """Our outermost layer: request ids, access log, metrics, and 500 without a traceback."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, access_log: bool, retry_after: int, tracing: Tracing
    ) -> None:
        self._app, self._metrics, self._tracing = app, metrics, tracing
        self._access_log, self._retry_after = access_log, retry_after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one ASGI request. An exception before the response starts is answered with 500; later ones
        are raised."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        request_id = _request_id(scope)
        scope["request_id"] = request_id
        header = (b"x-request-id", request_id.encode())
        status, span = 0, self._tracing.request(scope)
        scope[SPAN] = span

        async def sender(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        try:
            await self._app(scope, receive, sender)
        except ClientDisconnect:
            status = status or CLIENT_GONE
        except Exception:
            _log.exception("request %s failed: %s %s", request_id, scope["method"], _shown(scope["path"]))
            if status:  # the answer has begun: leave it visibly incomplete
                raise
            response = problem_response(UNEXPECTED, scope["path"], request_id, self._retry_after)
            await response(scope, receive, sender)
        finally:
            self._count(scope, status, time.perf_counter() - begin, request_id, span)

    def _count(
        self, scope: Scope, status: int, seconds: float, request_id: str, span: RequestSpan | None
    ) -> None:
        route = getattr(scope.get("route"), "path_format", UNMATCHED)
        method = scope["method"]
        named = method if method in _METHODS else "OTHER"
        self._metrics.observe(route, named, status, seconds)
        if span is not None:
            span.end(named, route, status, request_id)
        if self._access_log and _access.isEnabledFor(logging.INFO):
            _access.info(
                "method=%s path=%s status=%d ms=%.2f request_id=%s",
                method,
                _shown(scope["path"]),
                status,
                seconds * 1e3,
                request_id,
            )


class Compressed:
    """gzip for answers that gain from it: not for lookups, which are small and many, event streams, nor
    bundles, which are compressed and sent in ranges."""

    def __init__(self, app: ASGIApp, minimum_size: int, plain: frozenset[str]) -> None:
        self._app, self._plain = app, plain
        self._packed = GZipMiddleware(app, minimum_size=minimum_size, compresslevel=5)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one ASGI request: compressed, unless it is a GET of a plain path."""
        plain = scope["type"] != "http" or (scope["method"] == "GET" and scope["path"] in self._plain)
        await (self._app if plain else self._packed)(scope, receive, send)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            if _SANE_ID.fullmatch(value):
                return str(value, "ascii")
            break
    return token_hex(8)


def _shown(path: str) -> str:
    """The path on one line, escaped if a terminal or a log reader could misread it."""
    return path[:300] if path.isascii() and path.isprintable() and " " not in path else repr(path[:300])
