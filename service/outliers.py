"""Sets devices apart that differ from their class, and takes them back once they agree."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from backends.environment import Environment
from backends.errors import StorageError
from db import outliers, schema
from db.engine import DatabaseUnavailable, open_engine, parse_url, reading, writing
from service.settings import Settings
from tuners.device_agreement import agreements

_log = logging.getLogger(__name__)

#: Best rows that one transaction derives again.
PIECE = 50


def compare_later(engine: Engine, environment: Environment) -> None:
    """As compare_devices(), but whatever goes wrong is logged: the next call makes up for it, and a worker
    goes on."""
    try:
        compare_devices(engine, environment)
    except (DatabaseUnavailable, StorageError) as error:
        _log.warning("the devices of the class are compared after the next job: %s", error)
    except Exception:
        _log.exception("the devices of the class are not compared")


def outliers_here(settings: Settings, environments: Sequence[Environment]) -> dict[str, dict[str, Any]]:
    """UUID -> the comparison of those of this machine's devices that differ from their class, by what the
    settings' database knows; a database that does not exist knows nothing. Raises StaleSchema,
    DatabaseUnavailable, DatabaseBroken."""
    url = parse_url(settings.database_url)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        return {}
    engine = open_engine(settings.database_url)
    try:
        schema.check(engine)
        with reading(engine) as connection:
            found = [row for row in outliers.rows(connection) if row["differs"]]
    finally:
        engine.dispose()
    here = {(str(one.device_class), one.uuid) for one in environments}
    return {
        row["uuid"]: {**row["content"], "since": row["since"]}
        for row in found
        if (row["device_class_id"], row["uuid"]) in here
    }


def compare_devices(engine: Engine, environment: Environment) -> None:
    """Compares the devices of an environment's class by the default's times, and lets best rows follow. A
    device with too few times stays as it is. Raises DatabaseUnavailable."""
    class_id = str(environment.device_class)
    with reading(engine) as connection:
        times = outliers.default_times(connection, environment)
        rows = outliers.rows(connection, class_id)
    known, changed = {row["uuid"]: row for row in rows}, False
    for uuid, found in sorted(agreements(times).items()):
        differed = uuid in known and known[uuid]["differs"]
        if found.differs is None or not (found.differs or differed):
            continue
        if found.differs != differed:
            kept = "results are kept apart" if found.differs else "results are merged again"
            _log.warning("device %s of %s: %s; its %s", uuid, class_id, found.reason, kept)
        elif known[uuid]["content"] == found.to_dict():
            continue
        with writing(engine) as connection:
            outliers.put(connection, class_id, uuid, found.differs, found.to_dict())
        changed = True
    if changed:
        with reading(engine) as connection:
            rows = outliers.rows(connection, class_id)
    for uuid in [row["uuid"] for row in rows if not row["applied"]]:
        after: tuple[str, str] | None = ("", "")
        while after is not None:
            with writing(engine) as connection:
                after = outliers.apply(connection, class_id, uuid, after, PIECE)
