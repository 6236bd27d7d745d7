"""API keys and browsers' logins: stored as hashes, revoked but never deleted while a log may name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, delete, insert, or_, select, update

from db import models
from db.engine import now
from db.values import table

_key = table(models.ApiKey)


def create(
    connection: Connection,
    key_id: str,
    name: str,
    digest: str,
    scopes: Sequence[str],
    expires_at: str | None,
    limits: Mapping[str, int],
    login_of: str | None = None,
) -> None:
    """Stores a key, or with `login_of` a login with that key. Times are UTC in ISO 8601."""
    row = {
        "id": key_id,
        "name": name,
        "hash": digest,
        "scopes": list(scopes),
        "limits": dict(limits),
        "login_of": login_of,
        "created_at": now(),
        "expires_at": expires_at,
    }
    connection.execute(insert(_key).values(row))


def keys(connection: Connection, logins: bool = False) -> list[dict[str, Any]]:
    """Every key, the oldest first; with `logins` the logins too."""
    query = select(_key).order_by(_key.c.number)
    if not logins:
        query = query.where(_key.c.login_of.is_(None))
    return [dict(row) for row in connection.execute(query).mappings()]


def valid(connection: Connection) -> list[dict[str, Any]]:
    """The keys and logins that are not revoked, neither themselves nor the key that a login is of. Some may
    have expired."""
    parent = _key.alias()
    query = (
        select(_key)
        .outerjoin(parent, parent.c.id == _key.c.login_of)
        .where(_key.c.revoked_at.is_(None), parent.c.revoked_at.is_(None))
    )
    return [dict(row) for row in connection.execute(query).mappings()]


def revoke(connection: Connection, key_id: str) -> bool:
    """Revokes a key or login and every login with it; False for one that does not exist or was revoked."""
    live = update(_key).where(_key.c.id == key_id, _key.c.revoked_at.is_(None)).values(revoked_at=now())
    done = connection.execute(live).rowcount == 1
    connection.execute(delete(_key).where(_key.c.login_of == key_id))
    return done


def forget_logins(connection: Connection, key_id: str, before: str, kept: int) -> None:
    """Deletes a key's logins that were revoked, and those that expired before a time, except its `kept`
    latest ones."""
    mine = select(_key.c.number).where(_key.c.login_of == key_id).order_by(_key.c.number.desc())
    last = connection.scalar(mine.offset(kept).limit(1)) or 0
    expired = and_(_key.c.expires_at < before, _key.c.number <= last)
    connection.execute(
        delete(_key).where(_key.c.login_of == key_id, or_(_key.c.revoked_at.is_not(None), expired))
    )
