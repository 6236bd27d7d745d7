"""API keys: their text, their hash, their scopes, and the ring that a server checks them against.

A key is gt_ID_SECRET, with 256 random bits: a plain SHA-256 of it cannot be guessed back. A login is what a
browser got for a key, gts_ID_SECRET, sent as a cookie alone.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from hmac import compare_digest
from typing import Any

from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from backends.errors import GemmtuneError
from db import keys as rows

READ, TUNE, IMPORT, ADMIN = SCOPES = ("read", "tune", "import", "admin")
#: What a scope includes besides itself.
_INCLUDED: Mapping[str, tuple[str, ...]] = {TUNE: (READ,), IMPORT: (READ,), ADMIN: (READ, TUNE, IMPORT)}
#: Limits that a key can have of its own; their settings' names begin with key_.
LIMITS = ("requests_per_second", "queued_jobs", "urgent_jobs", "upload_bytes")
#: Seconds that a server goes on with the keys that it read last: a revoked key works no longer than that.
REREAD_SECONDS = 1.0
LOGIN_SECONDS = 12 * 3600
#: A key's latest logins stay stored after they expired: a clock that was ahead for a moment must not end them
#: for good.
KEPT_LOGINS = 100
_KEY, _LOGIN = "gt", "gts"
_FORM = re.compile(r"(gts?)_([0-9a-f]{12})_[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@+-]{0,79}")


class KeyRefused(GemmtuneError):
    """The key cannot be made, or does not exist."""


@dataclass(frozen=True)
class Key:
    """A valid key or login. `owner` is the key's id, for a login that of the key that it was made with.
    `expires` is in seconds since 1970."""

    id: str
    owner: str
    name: str
    scopes: frozenset[str]
    expires: float | None
    limits: Mapping[str, int] = field(default_factory=dict)

    def may(self, scope: str) -> bool:
        """Whether the key has the scope."""
        return scope in self.scopes


def effective(scopes: Iterable[str]) -> frozenset[str]:
    """The scopes with those that they include."""
    given = tuple(scopes)
    return frozenset((*given, *(each for scope in given for each in _INCLUDED.get(scope, ()))))


def digest(token: str) -> str:
    """What is stored of a key."""
    return sha256(token.encode()).hexdigest()


def _new(kind: str) -> tuple[str, str]:
    """A random id, and the text that begins with it."""
    key_id = secrets.token_hex(6)
    return key_id, f"{kind}_{key_id}_{secrets.token_hex(32)}"


def _expiry(seconds: float | None, clock: Callable[[], float]) -> str | None:
    if seconds is None:
        return None
    try:
        at = datetime.fromtimestamp(clock(), UTC) + timedelta(seconds=seconds)
    except OverflowError:
        raise KeyRefused(f"a key cannot expire in {seconds:g} s; name fewer days") from None
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def create(
    connection: Connection,
    name: str,
    scopes: Sequence[str],
    seconds: float | None,
    limits: Mapping[str, int] | None = None,
    clock: Callable[[], float] = time.time,
) -> str:
    """Stores a new key; returns its text, which is shown this once. `seconds`: until it expires. Raises
    KeyRefused."""
    if not _NAME.fullmatch(name):
        raise KeyRefused(f"a key's name has 1 to 80 letters, digits, blanks and . _ @ + -, not {name[:80]!r}")
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise KeyRefused(f"scopes are {', '.join(SCOPES)}, not {', '.join(unknown) or 'none'}")
    if seconds is not None and seconds <= 0:
        raise KeyRefused(f"a key must expire later than now, not in {seconds:g} s")
    key_id, token = _new(_KEY)
    rows.create(
        connection, key_id, name, digest(token), sorted(set(scopes)), _expiry(seconds, clock), limits or {}
    )
    return token


def log_in(connection: Connection, key: Key, clock: Callable[[], float] = time.time) -> tuple[str, int]:
    """Stores a login with a key; returns its text and for how many seconds it is valid, at most as long as
    the key."""
    left = LOGIN_SECONDS if key.expires is None else min(LOGIN_SECONDS, int(key.expires - clock()))
    rows.forget_logins(connection, key.owner, _expiry(0, clock) or "", KEPT_LOGINS)
    login_id, token = _new(_LOGIN)
    rows.create(
        connection, login_id, f"login of {key.name}", digest(token), sorted(key.scopes),
        _expiry(left, clock), key.limits, key.owner,
    )  # fmt: skip
    return token, left


def _key_of(row: Mapping[str, Any]) -> Key:
    expires = row["expires_at"]
    return Key(
        row["id"],
        row["login_of"] or row["id"],
        row["name"],
        effective(row["scopes"]),
        None if expires is None else datetime.fromisoformat(expires).timestamp(),
        row["limits"],
    )


class Keyring:
    """The valid keys, read again once they are older than REREAD_SECONDS. For one event loop."""

    def __init__(
        self, read: Callable[[], Sequence[Mapping[str, Any]]], clock: Callable[[], float] = time.time
    ) -> None:
        self._read, self._clock = read, clock
        self._until = float("-inf")
        self._stored: dict[str, tuple[str, Key]] = {}
        self._seen: dict[str, Key] = {}
        self._headers: dict[bytes, Key] = {}
        self._reading: asyncio.Lock | None = None

    def known(self, header: bytes) -> Key | None:
        """The key of an Authorization header that key() found since the keys were last read: lookups are too
        frequent to parse it each time."""
        found = self._headers.get(header)
        if found is None or time.monotonic() >= self._until:
            return None
        return None if found.expires is not None and self._clock() >= found.expires else found

    def keep(self, header: bytes, key: Key) -> None:
        """Makes known() find a header's key."""
        self._headers[header] = key

    async def key(self, token: str, login: bool = False) -> Key | None:
        """The key of a text, or with `login` the login; None for one that is unknown, revoked, expired or of
        the other kind. Raises DatabaseUnavailable."""
        if time.monotonic() >= self._until:
            await self._reread()
        found = self._seen.get(token)
        if found is None:
            found = self._checked(token)
            if found is None:
                return None
            self._seen[token] = found
        if token.startswith(_LOGIN + "_") != login:
            return None
        return None if found.expires is not None and self._clock() >= found.expires else found

    def _checked(self, token: str) -> Key | None:
        form = _FORM.fullmatch(token)
        stored = None if form is None else self._stored.get(form.group(2))
        if stored is None or not compare_digest(stored[0], digest(token)):
            return None
        return stored[1]

    async def _reread(self) -> None:
        if self._reading is None:
            self._reading = asyncio.Lock()
        async with self._reading:
            if time.monotonic() < self._until:
                return
            found = await run_in_threadpool(self._read)
            self._stored = {row["id"]: (row["hash"], _key_of(row)) for row in found}
            self._seen, self._headers = {}, {}
            self._until = time.monotonic() + REREAD_SECONDS

    def forget(self) -> None:
        """Reads the keys again before the next one is checked."""
        self._until = float("-inf")


class Rate:
    """Requests a second of every key: as many at once as fit into one second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[str, tuple[float, float]] = {}

    def wait(self, key: Key, most: int) -> float:
        """Takes one request; returns 0, or for a key that has none left the seconds until it has."""
        now = self._clock()
        left, at = self._held.get(key.owner, (float(most), now))
        left = min(float(most), left + (now - at) * most)
        if left < 1.0:
            self._held[key.owner] = (left, now)
            return (1.0 - left) / most
        self._held[key.owner] = (left - 1.0, now)
        return 0.0
