"""Who may do what: Host, Origin, keys and their scopes, rates, and the audit lines of every change.

Plain ASGI, outside the routes: nothing of a request is read before it has passed. A browser sends its cookie
and passes on what a page of another site asks for: a change needs a key in its header, or an Origin of this
service and a content type that pages cannot send unasked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backends.errors import GemmtuneError
from service import audit, errors
from service.dashboard.assets import PREFIX
from service.dashboard.pages import is_page, login_address
from service.error_answers import problem_response
from service.errors import fault_of
from service.hosts import AllowedHosts, is_same_origin
from service.keys import ADMIN, IMPORT, READ, TUNE, Key, Keyring, Rate

COOKIE = "gemmtune_login"
LOGIN, LOGOUT = "/login", "/logout"
#: Answered to anyone by any name: what load balancers and orchestrators ask.
PROBES = frozenset({"/healthz", "/readyz"})
#: The scope's entry with the request's key, which routes read by key_of().
KEY = "gemmtune.key"
#: The scope's entry with the change that a request makes.
CHANGE = "gemmtune.change"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
#: POSTs that change nothing.
_ASKING = frozenset({"/v1/solutions/best"})
#: Content types that a page may send to another site without asking it, and none, which is one of them.
_SIMPLE = frozenset({"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
#: What may be sent without a key.
_JSON = ("application/json",)
_FILES = (*_JSON, "text/csv", "application/x-ndjson", "application/octet-stream")


def key_of(scope: Mapping[str, object]) -> Key | None:
    """The request's key; None where keys are not required."""
    found = scope.get(KEY)
    return found if isinstance(found, Key) else None


def needed_scope(method: str, path: str) -> str:
    """The scope that a request needs."""
    if method in _SAFE or path in _ASKING:
        return READ
    if path == "/v1/tunings" or path.startswith(("/v1/tunings/", "/v1/jobs/")):
        return TUNE
    if path.startswith("/v1/imports/"):
        return IMPORT
    return ADMIN


@dataclass(frozen=True)
class Rules:
    """What the guard holds requests to. `keyring` None: no keys are required. `rate`: of a key without a
    limit of its own."""

    hosts: AllowedHosts
    keyring: Keyring | None = None
    origins: frozenset[str] = field(default_factory=frozenset)
    rate: int = 10_000


class Guarded:
    """Refuses requests before a route sees them, and records those that change something."""

    def __init__(self, app: ASGIApp, rules: Rules, retry_after: int, trail: audit.Trail) -> None:
        self._app, self._rules, self._retry_after, self._trail = app, rules, retry_after, trail
        self._rate = Rate()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one ASGI request."""
        if scope["type"] != "http" or (scope["method"] in _SAFE and scope["path"] in PROBES):
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        changes = method not in _SAFE and path not in _ASKING
        if changes:
            scope[CHANGE] = self._trail.change(method, path, _actor(scope))
        try:
            await self._check(scope, method, path)
            if changes and path != LOGIN:  # a login's key is in its body
                await begin_change(scope)
        except GemmtuneError as error:
            fault = fault_of(error)
            response: Response = problem_response(fault, path, scope.get("request_id", ""), self._retry_after)
            if fault.status == 401 and _is_shown(scope):
                query = scope["query_string"].decode("latin-1")
                response = RedirectResponse(login_address(path, query), 303, {"Cache-Control": "no-store"})
            await response(scope, receive, send)
            if changes:
                _end_change(scope, fault.status)
            return
        if not changes:
            await self._app(scope, receive, send)
            return
        status = 0

        async def sender(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sender)
        finally:
            _end_change(scope, status)

    async def _check(self, scope: Scope, method: str, path: str) -> None:
        """Raises Refused."""
        host = kind = authorization = cookie = origin = site = None
        has_body = False
        for name, value in scope["headers"]:
            if name == b"host":
                if host is not None:
                    raise errors.misdirected("it is given twice")
                host = value
            elif name == b"authorization":
                authorization = value
            elif name == b"cookie":
                cookie = value if cookie is None else cookie + b"; " + value
            elif name == b"content-type":
                kind = value
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                site = value
            elif name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
                has_body = True
        if host is None or not self._rules.hosts.allows(host):
            named = "it is missing" if host is None else f"it is {host.decode('latin-1')[:100]!r}"
            raise errors.misdirected(named)
        keyed = self._rules.keyring is not None and await self._authenticate(scope, authorization, cookie)
        if method in _SAFE or keyed:
            return
        if origin is None and site not in (None, b"same-origin", b"none"):
            raise errors.cross_site(f"Sec-Fetch-Site is {site.decode('latin-1')[:40]}")
        if origin is not None:
            given = origin.decode("latin-1")
            if given not in self._rules.origins and not is_same_origin(given, host.decode("latin-1")):
                raise errors.cross_site(f"Origin is {given[:100]!r}")
        plain = b"" if kind is None else kind.partition(b";")[0].strip().lower()
        if has_body and plain.decode("latin-1") in _SIMPLE:
            accepted = _FILES if path.startswith("/v1/imports/") else _JSON
            raise errors.simple_type(plain.decode("latin-1")[:100], accepted)

    async def _authenticate(self, scope: Scope, authorization: bytes | None, cookie: bytes | None) -> bool:
        """Puts the request's key into its scope; returns whether it came in the header, which no page of
        another site can set. Raises Refused."""
        path, keyring = scope["path"], self._rules.keyring
        assert keyring is not None
        if path == LOGIN or (scope["method"] in _SAFE and path.startswith(PREFIX)):
            return False
        login = None
        key = None if authorization is None else keyring.known(authorization)
        if key is not None:
            pass
        elif authorization is not None:
            scheme, _, token = authorization.decode("latin-1").partition(" ")
            if scheme.lower() != "bearer":
                raise errors.unauthorized(f"Authorization is of scheme {scheme[:40]!r}, not Bearer")
            key = await keyring.key(token.strip())
            if key is not None:
                keyring.keep(authorization, key)
        else:
            login = None if cookie is None else cookie_parser(cookie.decode("latin-1")).get(COOKIE)
            if login is None:
                raise errors.unauthorized("the request has no key")
            key = await keyring.key(login, login=True)
        if key is None:
            raise errors.unauthorized(
                f"the {'key' if login is None else 'login'} is unknown, revoked or expired"
            )
        scope[KEY] = key
        wait = self._rate.wait(key, key.limits.get("requests_per_second", self._rules.rate))
        if wait:
            raise errors.too_many(
                f"key {key.id} ({key.name}) made more requests than it may", math.ceil(wait)
            )
        needed = needed_scope(scope["method"], path)
        if path != LOGOUT and not key.may(needed):
            raise errors.out_of_scope(needed, key.scopes)
        return login is None


def _is_shown(scope: Scope) -> bool:
    """Whether a browser asks for a page, to show it."""
    accepted = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    return scope["method"] in _SAFE and b"text/html" in accepted and is_page(scope["path"])


def _actor(scope: Scope) -> audit.Actor:
    key, client = key_of(scope), scope.get("client")
    return audit.Actor(
        "" if key is None else f"key:{key.id}", "" if key is None else key.name,
        "" if client is None else client[0], scope.get("request_id", ""),
    )  # fmt: skip


async def begin_change(scope: Scope, key: Key | None = None) -> None:
    """Records that the request is about to change something. `key`: the key that it is made with, where the
    guard does not know it. Raises AuditUnwritable."""
    change: audit.Change = scope[CHANGE]
    if key is not None:
        scope[KEY] = key
    change.actor = _actor(scope)
    if change.is_kept:
        await run_in_threadpool(change.begin)


def _end_change(scope: Scope, status: int) -> None:
    """`status`: 0 for a request without an answer."""
    change: audit.Change = scope[CHANGE]
    change.actor = _actor(scope)
    if not 200 <= status < 400:
        change.result = audit.REFUSED if 400 <= status < 500 else audit.FAILED
    change.end(status)


class Headed:
    """Answers HEAD as GET without the body: the route is stopped once it has sent its headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one ASGI request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        inner: Scope = {**scope, "method": "GET"}  # a copy: the server reads the method of its own
        answered = False

        async def sender(message: Message) -> None:
            nonlocal answered
            if answered:
                raise _Answered
            await send(message)
            if message["type"] == "http.response.start":
                answered = True
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            await self._app(inner, receive, sender)
        except _Answered:
            pass
        except BaseExceptionGroup as group:
            if group.split(_Answered)[1] is not None:
                raise
        finally:
            if "route" in inner:  # for the metrics
                scope["route"] = inner["route"]


class _Answered(Exception):
    """The headers of a HEAD are sent; nothing more is wanted of its route."""
