"""Keys and logins under a clock that jumps: what it decides, and what it does not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from sqlalchemy import Engine

from db import keys as rows
from db.engine import reading, writing
from service import keys
from service.keys import Key, Keyring
from tests.postgres import ON_SQLITE

pytestmark = ON_SQLITE

DAY = 86400.0
NOW = 1_800_000_000.0


class Clock:
    """A clock of the wall that is set."""

    def __init__(self) -> None:
        self.at = NOW

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ring(engine: Engine, clock: Clock) -> Keyring:
    """The keys of a server that runs on through all jumps."""

    def read() -> list[dict[str, object]]:
        with reading(engine) as connection:
            return rows.valid(connection)

    return Keyring(read, clock)


def create(engine: Engine, clock: Clock, seconds: float | None = None) -> str:
    with writing(engine) as connection:
        return keys.create(connection, "a key", ["tune"], seconds, clock=clock)


def found(ring: Keyring, token: str, login: bool = False) -> Key | None:
    return asyncio.run(ring.key(token, login))


def log_in(engine: Engine, ring: Keyring, clock: Clock, token: str) -> tuple[str, int]:
    """A login, as the route makes one."""
    key = found(ring, token)
    assert key is not None
    with writing(engine) as connection:
        made = keys.log_in(connection, key, clock)
    ring.forget()
    return made


def test_expiry_is_by_the_clock_alone_in_both_directions(
    engine: Engine, clock: Clock, ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expired key is valid again while the clock says that it is not yet due, and no longer. A clock that
    was ahead for a while takes nothing from a valid key."""
    monkeypatch.setattr(keys, "REREAD_SECONDS", 3600.0)
    token, forever = create(engine, clock, seconds=100), create(engine, clock)
    key = found(ring, token)
    assert key is not None
    ring.keep(b"Bearer", key)
    for seconds, valid in (
        (0, True), (99.9, True), (100, False), (50, True), (100.1, False), (-DAY, True), (1e9, False),
        (99.9, True), (100, False),
    ):  # fmt: skip
        clock.at = NOW + seconds
        assert (found(ring, token) is not None) is valid, seconds
        assert (ring.known(b"Bearer") is not None) is valid, seconds
        assert found(ring, forever) is not None
        ring.forget()  # whether or not the keys were read since the jump
        assert (found(ring, token) is not None) is valid, seconds
        ring.keep(b"Bearer", key)


def test_a_revoked_key_stays_revoked_whatever_the_clock_says(
    engine: Engine, clock: Clock, ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = create(engine, clock, seconds=DAY)
    login, _ = log_in(engine, ring, clock, token)
    for at in (NOW - 1e9, NOW + 1e9):
        clock.at = at
        monkeypatch.setattr("db.keys.now", lambda: "2099-01-01T00:00:00.000Z")
        with writing(engine) as connection:
            rows.revoke(connection, token.split("_")[1])
        ring.forget()
        for later in (0.0, -1e9, 1e9):
            clock.at = NOW + later
            assert found(ring, token) is None
            assert found(ring, login, login=True) is None


def test_revoking_is_seen_while_the_clock_stands_still_or_goes_back(
    engine: Engine, clock: Clock, ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How old the keys of a server are is by the clock that cannot be set."""
    steady = 1000.0
    monkeypatch.setattr(keys, "time", SimpleNamespace(monotonic=lambda: steady))
    token = create(engine, clock)
    key = found(ring, token)
    assert key is not None
    ring.keep(b"Bearer", key)
    with writing(engine) as connection:
        rows.revoke(connection, key.id)
    clock.at -= 1e9
    assert found(ring, token) is not None, "the keys were read less than a second ago"
    steady += keys.REREAD_SECONDS
    assert ring.known(b"Bearer") is None
    assert found(ring, token) is None


def test_a_clock_that_was_ahead_ends_no_login_for_good(engine: Engine, clock: Clock, ring: Keyring) -> None:
    token, other = create(engine, clock), create(engine, clock)
    first, seconds = log_in(engine, ring, clock, token)
    elsewhere, _ = log_in(engine, ring, clock, other)
    assert seconds == keys.LOGIN_SECONDS
    clock.at = NOW + 365 * DAY
    assert found(ring, first, login=True) is None
    second, _ = log_in(engine, ring, clock, token)  # which forgets old logins
    assert found(ring, second, login=True) is not None
    clock.at = NOW + 1
    for login in (first, second, elsewhere):
        assert found(ring, login, login=True) is not None
    clock.at = NOW + keys.LOGIN_SECONDS
    assert found(ring, first, login=True) is None


def test_a_login_ends_with_its_key_whenever_it_was_made(engine: Engine, clock: Clock, ring: Keyring) -> None:
    token = create(engine, clock, seconds=100)
    for at in (NOW, NOW + 90, NOW - 365 * DAY, NOW - 50):
        clock.at = at
        login, seconds = log_in(engine, ring, clock, token)
        assert seconds == min(keys.LOGIN_SECONDS, int(NOW + 100 - at))
        clock.at = NOW + 100
        assert found(ring, login, login=True) is None


def test_old_logins_do_not_accumulate(
    engine: Engine, clock: Clock, ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "KEPT_LOGINS", 3)
    token = create(engine, clock)
    other, _ = log_in(engine, ring, clock, create(engine, clock))
    out, _ = log_in(engine, ring, clock, token)
    with writing(engine) as connection:
        rows.revoke(connection, out.split("_")[1])
    made = []
    for day in range(8):
        clock.at = NOW + day * DAY
        made.append(log_in(engine, ring, clock, token)[0].split("_")[1])
    live = [log_in(engine, ring, clock, token)[0].split("_")[1] for _ in range(5)]
    with reading(engine) as connection:
        left = [row["id"] for row in rows.keys(connection, logins=True) if row["login_of"]]
    assert left == [other.split("_")[1], made[-1], *live], "live ones stay, however many, and another key's"
