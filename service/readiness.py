"""Whether the disks that the service writes to have room, and its audit log takes lines."""

from __future__ import annotations

import os
from pathlib import Path

from backends.errors import StorageError
from db.engine import parse_url
from service.audit import Trail
from service.settings import Settings

#: Less free space than this is a full disk: a commit, or a kernel's binary, may not fit.
LEAST_FREE_BYTES = 16 << 20


def check_disks(settings: Settings) -> None:
    """Raises StorageError, which names the folder, if the disk of the SQLite file, of the cache or of the
    audit log is full; AuditUnwritable if the log takes no line."""
    Trail.of_server(settings).check()
    url = parse_url(settings.database_url)
    folders = {"GEMMTUNE_CACHE_DIR": settings.cache_dir}
    if url.get_backend_name() == "sqlite":
        folders["GEMMTUNE_DATABASE_URL"] = Path(str(url.database)).parent
    if settings.audit_log is not None:
        folders["GEMMTUNE_AUDIT_LOG"] = settings.audit_log.parent
    for setting, folder in folders.items():
        free = _free_bytes(folder)
        if free < LEAST_FREE_BYTES:
            raise StorageError(
                f"the disk of {folder} is full ({free >> 10} KiB are free); free some space or name another "
                f"folder in {setting}"
            )


def _free_bytes(folder: Path) -> int:
    """Free bytes of the disk of a folder, which need not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
