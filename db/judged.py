"""Sessions of judged kernels (gemmtune judge). Their verdicts are stored as any, and never decide what is
best: a user's source is on one machine, and nobody else can run it."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, or_, select

from db import models
from db.values import table

_provenance = table(models.Provenance)
_session = table(models.Session)

#: The kind of their provenance.
JUDGED = "judged"


def source_of(name: str) -> str:
    """The source, as provenance has it, of a judged kernel's sessions."""
    return f"{JUDGED}:{name}"


def is_judged_kernel(connection: Connection, name: str) -> bool:
    """Whether a kernel of this name was judged."""
    query = select(_provenance.c.number).where(
        _provenance.c.kind == JUDGED, _provenance.c.source == source_of(name)
    )
    return connection.execute(query.limit(1)).first() is not None


def unjudged() -> ColumnElement[bool]:
    """The condition that a session is none of a judged kernel."""
    number = _session.c.provenance_number
    judged = select(_provenance.c.number).where(_provenance.c.kind == JUDGED)
    return or_(number.is_(None), number.not_in(judged))


def is_judged(connection: Connection, provenance_number: int | None) -> bool:
    """Whether a provenance is that of a judged kernel."""
    if provenance_number is None:
        return False
    kind = select(_provenance.c.kind).where(_provenance.c.number == provenance_number)
    return connection.execute(kind).scalar() == JUDGED
